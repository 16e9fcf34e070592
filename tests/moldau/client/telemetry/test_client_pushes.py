"""Goal: metrics of each client reach the brokers that want them, and the client's own work never waits for that.

Method: whole brokers on virtual time, whose registry is read as a scrape does; for bad brokers a fake cluster.
"""

from __future__ import annotations

import math
import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio

from moldau import Admin, Consumer, Producer, ShareConsumer
from moldau.admin import ConfigAlteration, ConfigResource, ResourceType
from moldau.cluster.reports import LAST_PUSH_MS
from moldau.cluster.telemetry.application import REGISTERED_MAX, ApplicationMetrics
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse
from moldau.protocol.messages.push_telemetry import PushTelemetryResponse
from moldau.records.compression import Compression, decompress
from moldau.runtime.config import ConfigError
from moldau.runtime.telemetry.log import EventLogger
from moldau.runtime.telemetry.metrics import Registry
from moldau_broker.server.client_metrics.core.instances import id_text
from moldau_broker.server.client_metrics.otlp import points_of
from moldau_broker.server.metrics.clients import register_client_metrics
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import SERVED, FakeCluster
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster

BOOTSTRAP = {"bootstrap.servers": "b1:9092"}
OF_CLIENT = r'(?:,(?:group_id|group_member_id)="[^"]*")*'
LINE = re.compile(r'org_apache_kafka_(\w+){client_id="([^"]*)",client_instance_id="[^"]*"' + OF_CLIENT + r"(.*)} (\S+)")
GET, PUSH = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY


async def subscribe(cluster: Cluster, name: str = "all", **values: str) -> None:
    changes = [ConfigAlteration(name=key.replace("_", "."), value=value) for key, value in values.items()]
    async with Admin(BOOTSTRAP, environment=cluster.client_environment) as admin:
        await admin.alter_configs({ConfigResource(type=ResourceType.CLIENT_METRICS, name=name): changes})


def page(cluster: Cluster, *brokers: int) -> dict[str, dict[str, float]]:
    """The client metrics on the brokers' pages: values by name, without the labels of all metrics."""
    found: dict[str, dict[str, float]] = {}
    for broker_id in brokers or (1,):
        registry = Registry()
        register_client_metrics(registry, cluster.running[broker_id].context.client_metrics)
        for line in registry.expose().splitlines():
            match = LINE.fullmatch(line)
            if match:
                found.setdefault(match[2], {})[match[1] + match[3]] = float(match[4])
    return found


def settings(client_id: str, **more: object) -> dict[str, object]:
    return {**BOOTSTRAP, "client.id": client_id, **{key.replace("_", "."): value for key, value in more.items()}}


def test_all_clients_push_their_metrics() -> None:
    async def scenario(cluster: Cluster) -> None:
        environment = cluster.client_environment
        await cluster.client(1).create_topic("t")
        await subscribe(cluster, metrics="*", interval_ms="1000")
        grouped = {"group_id": "g", "auto_offset_reset": "earliest"}
        async with (
            Producer(settings("p"), environment=environment) as producer,
            Consumer(settings("c", **grouped), environment=environment) as consumer,
            ShareConsumer(settings("s", group_id="h"), environment=environment) as sharer,
        ):
            consumer.subscribe(["t"])
            sharer.subscribe(["t"])
            with trio.fail_after(30):
                while sharer.statistics().acknowledgements_send_total < 5:
                    await (await producer.send("t", b"value"))
                    await consumer.poll(200)
                    await consumer.commit()
                    await sharer.poll(200)
            sent = producer.statistics().record_send_total
            ids = [await client.client_instance_id() for client in (producer, consumer, sharer)]
            assert len(set(ids)) == 3
            shown = page(cluster)
            assert {"p", "c", "s"} == set(shown)
            assert 0 < shown["p"]["producer_record_send_total"] <= sent
        shown = page(cluster)
        produced, consumed, shared = shown["p"], shown["c"], shown["s"]
        assert produced["producer_record_send_total"] == sent, "the last push has the rest"
        assert produced['producer_topic_record_send_total,topic="t"'] == sent
        assert produced["producer_connection_creation_total"] >= 1
        for name in ("record_queue_time", "produce_throttle_time", "request_latency"):
            assert produced[f"producer_{name}_avg"] <= produced[f"producer_{name}_max"]
        assert produced['producer_node_request_latency_max,node_id="node-1"'] > 0
        for name in ("commit_latency", "rebalance_latency"):
            assert 0 <= consumed[f"consumer_coordinator_{name}_avg"] <= consumed[f"consumer_coordinator_{name}_max"]
        assert consumed["consumer_coordinator_rebalance_latency_total"] > 0
        assert consumed["consumer_coordinator_assigned_partitions"] in (0, 1)
        assert consumed["consumer_fetch_manager_records_consumed_total"] == sent
        assert consumed["consumer_fetch_manager_fetch_latency_max"] > 0
        assert 0 < consumed["consumer_poll_idle_ratio_avg"] <= 1
        assert consumed['consumer_node_request_latency_avg,node_id="node-1"'] > 0
        assert shared["consumer_share_fetch_manager_records_consumed_total"] > 0
        assert shared["consumer_share_fetch_manager_acknowledgements_send_total"] > 0
        assert shared["consumer_share_fetch_manager_acknowledgements_error_total"] == 0
        assert shared["consumer_connection_creation_total"] >= 1

    run_cluster(scenario)


def test_applications_push_metrics_of_their_own() -> None:
    """Beside those of the client, under the names that operators subscribe to; one that fails is left out."""

    async def scenario(cluster: Cluster) -> None:
        await subscribe(cluster, metrics="org.apache.kafka.orders.", interval_ms="1000")
        async with Producer(settings("p"), environment=cluster.client_environment) as producer:
            metrics, backlog = producer.application_metrics, [3.0]
            metrics.register("orders.backlog", lambda: backlog[0], shop="east")
            metrics.register("orders.broken", lambda: 1 / 0)
            metrics.register("orders-handled.total", lambda: 7)
            await trio.sleep(4)
            assert page(cluster)["p"] == {'orders_backlog,shop="east"': 3.0, "orders_handled_total": 7.0}
            backlog[0] = 5.0
            metrics.unregister("orders-handled.total")
            metrics.unregister("orders.unknown")
        assert page(cluster)["p"]['orders_backlog,shop="east"'] == 5.0, "the last push has the last value"

    run_cluster(scenario)


def test_members_of_groups_are_named_in_their_metrics() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        await subscribe(cluster, metrics="org.apache.kafka.consumer.connection.", interval_ms="1000")
        environment = cluster.client_environment
        async with (
            Consumer(settings("c", group_id="g"), environment=environment) as consumer,
            ShareConsumer(settings("s", group_id="h"), environment=environment) as sharer,
        ):
            consumer.subscribe(["t"])
            sharer.subscribe(["t"])
            with trio.fail_after(30):
                while not consumer.assignment or not sharer.assignment:
                    await consumer.poll(200)
                    await sharer.poll(200)
            await trio.sleep(3)
            registry = Registry()
            register_client_metrics(registry, cluster.running[1].context.client_metrics)
            members = re.findall(r'creation_total{client_id="(\w)".*group_member_id="([^"]+)"', registry.expose())
            assert sorted(members) == [("c", consumer.group_metadata().member_id), ("s", sharer.member_id)]

    run_cluster(scenario)


@pytest.mark.parametrize(
    ("name", "read", "labels", "error", "text"),
    [
        ("backlog", float, {}, ValueError, "at least two, such as"),
        ("Orders.backlog", float, {}, ValueError, "small letters"),
        (7, float, {}, ValueError, "name int 7 must be words"),
        ("producer.backlog", float, {}, ValueError, "belong to the client's own metrics"),
        ("orders.backlog", 7, {}, TypeError, "read must be a function"),
        ("orders.backlog", float, {"shop": 7}, TypeError, "the label shop must be a string"),
    ],
)
def test_wrong_metrics_are_refused(
    name: Any, read: Any, labels: dict[str, Any], error: type[Exception], text: str
) -> None:
    metrics = ApplicationMetrics(EventLogger("test"))
    with pytest.raises(error, match=text):
        metrics.register(name, read, **labels)
    assert list(metrics.values()) == []


def test_the_number_of_metrics_is_bounded() -> None:
    metrics = ApplicationMetrics(EventLogger("test"))
    for number in range(REGISTERED_MAX):
        metrics.register("orders.backlog", float, shop=str(number))
    with pytest.raises(ValueError, match="200 metrics are registered already"):
        metrics.register("orders.backlog", float)
    metrics.register("orders.backlog", float, shop="7")
    metrics.unregister("orders.backlog", shop="7")
    metrics.register("orders.backlog", float)
    assert len(list(metrics.values())) == REGISTERED_MAX


def test_a_change_of_the_subscription_is_followed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        await subscribe(cluster, metrics="org.apache.kafka.producer.connection.", interval_ms="1000")
        async with Producer(settings("p"), environment=cluster.client_environment) as producer:
            await (await producer.send("t", b"value"))
            await trio.sleep(3)
            assert set(page(cluster)["p"]) == {
                "producer_connection_creation_rate",
                "producer_connection_creation_total",
            }
            await subscribe(cluster, metrics="org.apache.kafka.producer.record.send.", interval_ms="500")
            await trio.sleep(5)
            pushes = cluster.running[1].context.client_metrics.counts.pushes
            assert page(cluster)["p"]["producer_record_send_total"] == 1
            await trio.sleep(5)
            assert cluster.running[1].context.client_metrics.counts.pushes == pytest.approx(pushes + 10, abs=1)

    run_cluster(scenario)


def test_pushes_go_on_when_their_broker_dies() -> None:
    async def scenario(cluster: Cluster) -> None:
        await subscribe(cluster, metrics="*", interval_ms="1000")
        async with Producer(settings("p"), environment=cluster.client_environment) as producer:
            await trio.sleep(5)
            (served,) = [broker_id for broker_id in cluster.broker_ids if "p" in page(cluster, broker_id)]
            instance_id = await producer.client_instance_id()
            cluster.kill(served)
            await trio.sleep(30)
            (other,) = cluster.running
            assert page(cluster, other)["p"]["producer_connection_creation_total"] == 1, "since the last push"
            assert await producer.client_instance_id() == instance_id, "another broker keeps the id"
            assert instance_id in cluster.running[other].context.client_metrics.instances

    run_cluster(scenario, brokers=2)


def test_an_exception_of_the_block_still_sends_the_last_push() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        await subscribe(cluster, metrics="*", interval_ms="60000")

        async def use(client: Any) -> None:
            async with client:
                await client.client_instance_id()
                raise LookupError("a bug of the application")

        environment = cluster.client_environment
        for client in (
            Producer(settings("p"), environment=environment),
            Consumer(settings("c"), environment=environment),
            ShareConsumer(settings("s", group_id="g"), environment=environment),
        ):
            with pytest.raises(LookupError):
                await use(client)
        assert set(page(cluster)) == {"p", "c", "s"}, "none has lived for an interval"

    run_cluster(scenario)


def test_clients_that_push_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await subscribe(cluster, metrics="*", interval_ms="1000")
        environment = cluster.client_environment
        off = settings("off", enable_metrics_push=False)
        async with Producer(off, environment=environment) as producer, Admin(off, environment=environment) as silent:
            await trio.sleep(5)
            for client in (producer, silent):
                with pytest.raises(ConfigError, match=r"enable\.metrics\.push"):
                    await client.client_instance_id()
        async with Admin(settings("a"), environment=environment) as admin:
            instance_id = await admin.client_instance_id()
            assert await admin.client_instance_id(0) == instance_id, "it is known"
            await trio.sleep(5)
        assert page(cluster) == {}
        assert instance_id in cluster.running[1].context.client_metrics.instances
        assert len(id_text(instance_id)) == 22

    run_cluster(scenario)


def test_an_admin_client_has_one_id() -> None:
    """The calls ask at the same time, and within a limit of their own; brokers give each question another id."""
    found = []

    async def scenario(cluster: Cluster) -> None:
        async with (
            Admin(settings("a"), environment=cluster.client_environment) as admin,
            trio.open_nursery() as nursery,
        ):

            async def ask(asked: Admin) -> None:
                found.append(await asked.client_instance_id())

            for each in (admin, admin, admin.within(5_000)):
                nursery.start_soon(ask, each)
        assert len(found) == 3

    run_cluster(scenario)
    assert len(set(found)) == 1


class Telemetry:
    """The telemetry of a fake cluster, with answers and error codes that a test sets."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.requested = ["*"]
        self.interval_ms = 1_000
        self.bytes_max = 100_000
        self.codes: dict[int, ErrorCode] = {}
        self.pushes: list[Any] = []
        cluster.served = dict.fromkeys(cluster.brokers, (*SERVED, GET, PUSH))
        cluster.handlers[GET] = self.on_get
        cluster.handlers[PUSH] = self.on_push

    def on_get(self, broker: int, request: Any) -> GetTelemetrySubscriptionsResponse:
        return GetTelemetrySubscriptionsResponse(
            error_code=self.codes.get(GET, ErrorCode.NONE),
            client_instance_id=request.client_instance_id if request.client_instance_id.int else UUID(int=99),
            subscription_id=3,
            accepted_compression_types=[4],
            push_interval_ms=self.interval_ms,
            telemetry_max_bytes=self.bytes_max,
            delta_temporality=True,
            requested_metrics=self.requested,
        )

    def on_push(self, broker: int, request: Any) -> PushTelemetryResponse:
        self.pushes.append(request)
        return PushTelemetryResponse(error_code=self.codes.get(PUSH, ErrorCode.NONE))

    def count(self, key: ApiKey) -> int:
        return sum(asked == key for _, asked, _ in self.cluster.requests)


def unpacked(push: Any) -> bytes:
    return bytes(decompress(Compression(push.compression_type), push.metrics)) if push.metrics else b""


def run_fake(scenario: Any, *, offered: bool = True) -> Any:
    async def main(world: Any) -> Any:
        cluster = FakeCluster(world, 1)
        cluster.add_topic("t")
        telemetry = Telemetry(cluster) if offered else None
        cluster.start()
        given = {"bootstrap.servers": cluster.bootstrap}
        opened = partial(Producer, given, environment=world.node("client").environment)
        return await scenario(cluster, telemetry, opened)

    return run_world(main, 1)


def test_a_client_without_a_subscription_asks_once_an_interval() -> None:
    async def scenario(cluster: FakeCluster, telemetry: Telemetry, opened: Any) -> None:
        telemetry.requested, telemetry.interval_ms = [], 300_000
        async with opened():
            await trio.sleep(3_000)
            assert telemetry.count(GET) == pytest.approx(10, abs=1)
        assert telemetry.count(PUSH) == 0

    run_fake(scenario)


def test_brokers_that_take_no_metrics_are_asked_nothing() -> None:
    async def scenario(cluster: FakeCluster, _: None, opened: Any) -> None:
        async with opened() as producer:
            await (await producer.send("t", b"value"))
            await trio.sleep(1_000)
            with pytest.raises(KafkaError) as refused:
                await producer.client_instance_id(500)
            assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert {key for _, key, _ in cluster.requests} <= {*SERVED}

    run_fake(scenario, offered=False)


@pytest.mark.parametrize(("code", "at_most"), [(ErrorCode.INVALID_RECORD, 1), (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, 30)])
def test_a_broker_that_refuses_all_pushes(code: ErrorCode, at_most: int) -> None:
    async def scenario(cluster: FakeCluster, telemetry: Telemetry, opened: Any) -> None:
        telemetry.codes[PUSH] = code
        async with opened() as producer:
            await trio.sleep(20)
            assert 1 <= telemetry.count(PUSH) <= at_most
            assert (await (await producer.send("t", b"value"))).offset == 0

    run_fake(scenario)


def test_a_push_has_at_most_the_bytes_that_the_broker_takes() -> None:
    async def scenario(cluster: FakeCluster, telemetry: Telemetry, opened: Any) -> None:
        telemetry.bytes_max = 500
        async with opened():
            await trio.sleep(5)
        assert telemetry.pushes
        assert all(len(push.metrics) <= 500 for push in telemetry.pushes)

    run_fake(scenario)


def test_sums_that_found_no_room_come_with_a_later_push() -> None:
    """A push has no room for any metric at first; the broker is then content with more bytes."""

    async def scenario(cluster: FakeCluster, telemetry: Telemetry, opened: Any) -> None:
        telemetry.bytes_max = 10
        telemetry.requested = ["org.apache.kafka.producer.record.send.total"]
        async with opened() as producer:
            for _ in range(3):
                await (await producer.send("t", b"value"))
                await trio.sleep(1)
            assert telemetry.pushes
            telemetry.bytes_max = 100_000
            telemetry.codes[PUSH] = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
            await trio.sleep(2)
            del telemetry.codes[PUSH]
            telemetry.pushes.clear()
            await (await producer.send("t", b"value"))
            await trio.sleep(5)
        sent = [point.value for push in telemetry.pushes for point in points_of(unpacked(push))[0]]
        assert sum(sent) == 4

    run_fake(scenario)


def test_closing_waits_a_bounded_time_for_the_last_push() -> None:
    """The broker hangs: the records are delivered, and the answer to the last push never comes."""

    async def scenario(cluster: FakeCluster, telemetry: Telemetry, opened: Any) -> None:
        telemetry.interval_ms = 60_000
        async with opened() as producer:
            await producer.client_instance_id()
            assert (await (await producer.send("t", b"value"))).offset == 0
            assert cluster.world is not None
            cluster.world.node("broker1").pause()
            began = trio.current_time()
        assert LAST_PUSH_MS / 1000 <= trio.current_time() - began <= LAST_PUSH_MS / 1000 + 0.1

    run_fake(scenario)


def test_without_the_library_nothing_is_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.metrics.v1.metrics_pb2", None)
    monkeypatch.delitem(sys.modules, "moldau.cluster.telemetry.otlp", raising=False)

    async def scenario(cluster: FakeCluster, telemetry: Telemetry, opened: Any) -> None:
        async with opened() as producer:
            assert await producer.client_instance_id() == UUID(int=99)
            await trio.sleep(20)
            assert (await (await producer.send("t", b"value"))).offset == 0
        assert (telemetry.count(GET), telemetry.count(PUSH)) == (1, 0)

    run_fake(scenario)


@pytest.mark.parametrize("limit_ms", [20_000, 20_000.5, math.inf])
def test_an_admin_client_waits_for_its_id_as_long_as_asked(limit_ms: float) -> None:
    """A longer wait than ``default.api.timeout.ms`` ended with that."""

    async def main(world: Any) -> None:
        cluster = FakeCluster(world, 1)
        Telemetry(cluster)
        given = {"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": "2000", "request.timeout.ms": "1000"}
        async with Admin(given, environment=world.node("client").environment) as admin, trio.open_nursery() as nursery:

            async def start_late() -> None:
                await trio.sleep(8)
                cluster.start()

            nursery.start_soon(start_late)
            with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
                await admin.client_instance_id()
            assert await admin.client_instance_id(limit_ms) == UUID(int=99)

    run_world(main, 1)
