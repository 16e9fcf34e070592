"""Goal: a client asks a broker what to push, pushes it, and finds its metrics on the broker's page.

Method: requests to a whole broker on virtual time, or to its telemetry alone; the registry is read as a scrape does.
"""

from __future__ import annotations

import sys
from itertools import permutations, repeat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, UUID, uuid5

import trio
from opentelemetry.proto.metrics.v1 import metrics_pb2

from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from moldau.records.compression import Compression, compress
from moldau.runtime.telemetry.metrics import Registry
from moldau_broker.server.client_metrics.core.instances import (
    INTERVAL_MS_DEFAULT,
    Subscription,
    id_text,
    subscription_id,
)
from moldau_broker.server.client_metrics.core.instances import (
    Client as Instance,
)
from moldau_broker.server.client_metrics.core.series import Point
from moldau_broker.server.client_metrics.manager import OFFERED, ClientMetrics, _subscription
from moldau_broker.server.metrics.clients import register_client_metrics
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    import pytest

    from moldau.values import Buffer
    from moldau_broker.server.client_metrics.core.series import Labels
    from support.cluster.broker_cluster import Client, Cluster

NAME = "org.apache.kafka.producer.connection.creation.total"
SENDER = Instance(
    client_id="app",
    client_software_name="",
    client_software_version="",
    client_source_address="",
    client_source_port="",
)


def metrics(value: int = 1) -> bytes:
    data = metrics_pb2.MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name=NAME)
    metric.sum.aggregation_temporality = 1
    metric.sum.is_monotonic = True
    metric.sum.data_points.add(as_int=value)
    return data.SerializeToString()


async def subscribe(client: Client, name: str, **values: str) -> None:
    configs = [
        AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value) for key, value in values.items()
    ]
    resource = AlterConfigsResource(resource_type=16, resource_name=name, configs=configs)
    (answer,) = (await client.request(IncrementalAlterConfigsRequest(resources=[resource]))).responses
    assert answer.error_code == ErrorCode.NONE, answer


def page(cluster: Cluster) -> str:
    registry = Registry()
    clients = cluster.running[1].context.client_metrics
    assert clients is not None
    register_client_metrics(registry, clients)
    return registry.expose()


def test_a_client_asks_and_pushes() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await subscribe(client, "all", metrics="*", interval_ms="100")
        await subscribe(client, "no-client", metrics="never.", match="client_id=no-such-client")
        granted = await client.request(GetTelemetrySubscriptionsRequest())
        assert granted.error_code == ErrorCode.NONE
        assert granted.client_instance_id.int > 1
        assert list(granted.accepted_compression_types) == [4, 3, 1, 2]
        assert (granted.push_interval_ms, granted.telemetry_max_bytes) == (100, 2000)
        assert granted.delta_temporality
        assert list(granted.requested_metrics) == ["*"]

        async def push(data: bytes, codec: int, **changes: object) -> int:
            await trio.sleep(0.1)
            fields = {
                "client_instance_id": granted.client_instance_id,
                "subscription_id": granted.subscription_id,
                "compression_type": codec,
                "metrics": data,
            }
            return int((await client.request(PushTelemetryRequest(**{**fields, **changes}))).error_code)

        for codec in (Compression.NONE, *OFFERED):
            assert await push(compress(codec, metrics()), codec) == ErrorCode.NONE, codec
            bomb = compress(codec, bytes(100_000))
            assert await push(bomb, codec) == ErrorCode.TELEMETRY_TOO_LARGE, codec
        assert await push(b"damaged", Compression.GZIP) == ErrorCode.INVALID_RECORD
        assert await push(b"\xff\xff", Compression.NONE) == ErrorCode.INVALID_RECORD
        assert await push(b"", Compression.NONE, subscription_id=0) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        assert await push(b"", Compression.NONE, client_instance_id=UUID(int=0)) == ErrorCode.INVALID_REQUEST
        labels = f'client_id="test",client_instance_id="{id_text(granted.client_instance_id)}"'
        shown = page(cluster)
        assert f"org_apache_kafka_producer_connection_creation_total{{{labels}}} 5\n" in shown
        assert "kafka_server_client_metrics_plugin_error_total 2\n" in shown
        asking = GetTelemetrySubscriptionsRequest(client_instance_id=granted.client_instance_id)
        answers = [(await client.request(asking)).error_code for _ in range(2)]
        assert answers == [ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED], (
            "one retry after an unknown subscription"
        )

    run_cluster(scenario, telemetry_max_bytes="2000")


def test_other_tasks_run_between_two_pushes() -> None:
    """One drain of a connection may hold many pushes, each of which is a megabyte when it is decompressed."""
    order: list[str] = []

    async def turn() -> None:
        order.append("turn")

    async def scenario(cluster: Cluster) -> None:
        async with trio.open_nursery() as nursery:

            def read(data: Buffer) -> tuple[list[Point], int, Labels]:
                order.append("push")
                nursery.start_soon(turn)
                return [], 0, ()

            clients = cluster.running[1].context.client_metrics
            assert clients is not None
            clients._read = read
            connection = await cluster.client(1).connection()
            pushes = [
                PushTelemetryRequest(
                    client_instance_id=instance_id,
                    subscription_id=subscription_id(instance_id, (), INTERVAL_MS_DEFAULT),
                    metrics=metrics(),
                )
                for instance_id in map(uuid5, repeat(NAMESPACE_URL), "abcde")
            ]
            for answer in [connection.submit(push) for push in pushes]:
                assert await answer.wait() == PushTelemetryResponse()

    run_cluster(scenario)
    assert order == ["push", "turn"] * 5


def test_the_page_forgets_clients_that_are_gone() -> None:
    """Even the last ones, of which no request of another client reminds the broker."""
    clock = SimpleNamespace(now_ms=0.0)
    environment: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: clock.now_ms))
    point = Point(name="client_load", labels=(), is_counter=False, is_delta=False, value=1.0)
    clients = ClientMetrics(environment, lambda _: ([point], 0, ()), lambda: 1_000)
    clients.instances.replace_subscriptions([Subscription(metrics=("*",), interval_ms=1_000)])
    registry = Registry()
    register_client_metrics(registry, clients)
    for number in range(3):
        instance_id = UUID(int=2 + number)
        granted = clients.get(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), SENDER)
        push = PushTelemetryRequest(
            client_instance_id=instance_id, subscription_id=granted.subscription_id, metrics=b"any"
        )
        assert clients.push(push, SENDER) == PushTelemetryResponse()
        assert registry.expose().count('client_id="app"') == 1
        clock.now_ms += 3_600_000
        shown = registry.expose()
        assert 'client_id="app"' not in shown
        assert "kafka_server_client_metrics_instance_count 0\n" in shown
        assert "moldau_client_metrics_series 0\n" in shown


def test_the_page_shows_the_labels_of_the_last_push() -> None:
    """A client that has left its group sends no group any more, and must not be shown as a member of it."""
    clock = SimpleNamespace(now_ms=0.0)
    environment: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: clock.now_ms))
    point = Point(name="client_load", labels=(), is_counter=False, is_delta=False, value=1.0)
    rack, group, other = ("client_rack", "r"), ("group_id", "g"), ("group_id", "h")
    pushes: tuple[Labels, ...] = ((), (group,), (rack, other), (rack,))
    for number, order in enumerate(permutations(pushes)):
        left = iter(order)
        clients = ClientMetrics(environment, lambda _, left=left: ([point], 0, next(left)), lambda: 1_000)
        instance_id = UUID(int=2 + number)
        granted = clients.get(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), SENDER)
        push = PushTelemetryRequest(
            client_instance_id=instance_id, subscription_id=granted.subscription_id, metrics=b"any"
        )
        for labels in order:
            clock.now_ms += INTERVAL_MS_DEFAULT
            assert clients.push(push, SENDER) == PushTelemetryResponse()
            assert [shown.labels for _, _, shown in clients.points()] == [labels], order


def test_a_subscription_that_cannot_be_matched_selects_no_client() -> None:
    """Without one of its expressions it would be meant for more clients than its author wanted."""
    matched = {"metrics": "*", "match": "client_id=app,client_software_name=a(?=b)"}
    assert _subscription("s", matched) is None
    assert _subscription("s", {"metrics": "*", "match": "client_id=app"}) is not None


def test_without_the_library_nothing_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.metrics.v1.metrics_pb2", None)
    monkeypatch.delitem(sys.modules, "moldau_broker.server.client_metrics.otlp", raising=False)

    async def scenario(cluster: Cluster) -> None:
        answer = await cluster.client(1).request(
            ApiVersionsRequest(client_software_name="t", client_software_version="1")
        )
        offered = {entry.api_key for entry in answer.api_keys}
        assert ApiKey.LIST_CONFIG_RESOURCES in offered
        assert not offered & {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}

    run_cluster(scenario)
