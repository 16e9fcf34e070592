"""Goal: a client uses what its quota allows, within 10 %, then receives throttle times; others keep their speed.

Method: one broker and one controller in a simulated world, and clients that send as fast as they are answered. The
steady rate is measured on virtual time after the allowance of an idle client is used up. Quotas change meanwhile.
"""

from __future__ import annotations

import pytest
import trio

from moldau.cluster.metadata import TopicPartition
from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.runtime.config import ADMIN_CONFIG
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.telemetry.metrics import Registry
from moldau.runtime.tls.outgoing import client_environment
from moldau_broker.server.data_path.connection import BrokerConnection
from moldau_broker.server.metrics.export import register_metrics
from support.cluster.broker_cluster import batch, run_cluster

WARM_MS, MEASURED_MS = 12_000, 66_000
"""Measured are six times all windows: when the oldest amounts leave the windows, they may be used again at once."""
FEW_WINDOWS = {"quota.window.num": "3"}
"""The allowance of an idle client is small."""


async def alter(client, cluster, key, value, **parts):
    """Sets a quota of the entity ``parts`` (user, client_id, ip), and waits until every node knows it."""
    entity = [
        AlterClientQuotasRequestEntityData(entity_type=kind.replace("_", "-"), entity_name=name)
        for kind, name in parts.items()
    ]
    operation = OpData(key=key, value=value or 0.0, remove=value is None)
    entries = [AlterClientQuotasRequestEntryData(entity=entity, ops=[operation])]
    response = await client.request(AlterClientQuotasRequest(entries=entries), timeout_ms=60_000)
    assert response.entries[0].error_code == ErrorCode.NONE, response
    known = tuple(sorted((part.entity_type, part.entity_name) for part in entity))
    await cluster.until(
        lambda: all(broker.metadata.image.quota(known).get(key) == value for broker in cluster.running.values())
    )


async def opened(cluster, client_id):
    return await RpcConnection.open(cluster.client_environment, "b1", 9092, client_id)


def produce_request(size=2_000, acks=-1):
    records = batch(bytes(size))
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])
    return ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[data])


def fetch_request(max_bytes=3_000):
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=[FetchTopic(topic="t", partitions=[partition])]
    )


class Usage:
    """A client's work: its amounts with their times, and the throttle times that it received."""

    def __init__(self):
        self.amounts = []
        self.pauses = []

    def rate(self, begin_ms, end_ms):
        inside = sum(amount for when, amount in self.amounts if begin_ms <= when < end_ms)
        return inside / (end_ms - begin_ms) * 1_000


async def use(connection, usage, message, version, amount_of, until_ms):
    while (now_ms := trio.current_time() * 1_000) < until_ms:
        answer = await connection.request(message, version, timeout_ms=120_000)
        usage.amounts.append((now_ms, amount_of(answer)))
        usage.pauses.append(answer.throttle_time_ms)


async def steady(cluster, client_ids, message, version, amount_of):
    """Returns the rate of connections with the given client ids together, and their usage."""
    usage = Usage()
    begin_ms = trio.current_time() * 1_000 + WARM_MS
    async with trio.open_nursery() as nursery:
        for client_id in client_ids:
            connection = await opened(cluster, client_id)
            nursery.start_soon(use, connection, usage, message, version, amount_of, begin_ms + MEASURED_MS)
    return usage.rate(begin_ms, begin_ms + MEASURED_MS), usage


def fetched_bytes(answer):
    return sum(len(each.records or b"") for topic in answer.responses for each in topic.partitions)


def test_produce_and_fetch_at_the_rate_of_their_quotas():
    """Two connections share the quota of their client id; another client is not limited; a change holds at once."""

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", retention_ms="-1")
        await client.produce("t", *[batch(bytes(1_000)) for _ in range(10)])
        await alter(client, cluster, "producer_byte_rate", 20_000.0, client_id="p")
        await alter(client, cluster, "consumer_byte_rate", 10_000.0, user="ANONYMOUS", client_id=None)
        await alter(client, cluster, "consumer_byte_rate", 1_000.0, client_id="c")  # less specific: does not hold
        produced = len(produce_request().topic_data[0].partition_data[0].records) + 60
        rate, usage = await steady(cluster, ["p", "p"], produce_request(), 9, lambda _: produced)
        assert rate == pytest.approx(20_000, rel=0.1)
        assert max(usage.pauses) > 0
        rate, usage = await steady(cluster, ["c"], fetch_request(), 12, fetched_bytes)
        assert rate == pytest.approx(10_000, rel=0.1)
        throttled = [amount for (_, amount), pause in zip(usage.amounts, usage.pauses, strict=True) if pause]
        assert throttled
        assert set(throttled) == {0}
        begun = trio.current_time()
        for _ in range(20):
            assert (await client.request(produce_request(), 9)).throttle_time_ms == 0
        assert trio.current_time() - begun < 2
        await alter(client, cluster, "producer_byte_rate", 60_000.0, client_id="p")
        rate, _ = await steady(cluster, ["p"], produce_request(), 9, lambda _: produced)
        assert rate == pytest.approx(60_000, rel=0.1)
        use = cluster.running[1].context.quotas.use
        assert all(use.throttled[key] > 0 for key in ("producer_byte_rate", "consumer_byte_rate"))

    run_cluster(scenario)


def test_a_quota_that_is_raised_ends_pauses_at_once():
    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t")
        await alter(client, cluster, "producer_byte_rate", 100.0, client_id=None)
        connection = await opened(cluster, "p")
        throttle_ms = (await connection.request(produce_request(20_000), 9, timeout_ms=5_000)).throttle_time_ms
        assert throttle_ms > 100_000
        assert cluster.running[1].context.quotas.paused_count() == 1
        waiting = connection.submit(produce_request(10), 9)
        await trio.sleep(3)
        await alter(client, cluster, "producer_byte_rate", None, client_id=None)
        begun = trio.current_time()
        answer = await waiting.wait(5_000)
        assert answer.throttle_time_ms == 0
        assert trio.current_time() - begun < 1
        assert cluster.running[1].context.quotas.paused_count() == 0

    run_cluster(scenario, **FEW_WINDOWS)


def test_acks_0_pauses_too_and_no_pause_delays_the_stop():
    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t")
        await alter(client, cluster, "producer_byte_rate", 100.0, user=None)
        connection = await opened(cluster, "p")
        connection.submit_without_response(produce_request(20_000, acks=0), 9)
        connection.submit(produce_request(10), 9)
        await cluster.until(lambda: cluster.running[1].context.quotas.paused_count() == 1)
        begun = trio.current_time()
        await cluster.stop(1)
        assert trio.current_time() - begun < 10

    run_cluster(scenario, **FEW_WINDOWS)


def test_request_time_at_the_rate_of_its_quota(monkeypatch):
    """Each Metadata request costs 20 ms: a clock that runs ahead while the handler runs stands for the processor."""
    cost_ms = 20.0

    class BusyClock:
        def __init__(self, clock):
            self.clock, self.ahead_ms = clock, 0.0

        def monotonic_ms(self):
            return self.clock.monotonic_ms() + self.ahead_ms

    clocks = []
    handle, judge = BrokerConnection.handle, BrokerConnection._judge

    def busy(self, request, version):
        for clock in clocks:
            clock.ahead_ms += cost_ms if isinstance(request, MetadataRequest) else 0
        return judge(self, request, version)

    def handled(self, frame):
        try:
            return handle(self, frame)
        finally:
            for clock in clocks:
                clock.ahead_ms = 0.0

    monkeypatch.setattr(BrokerConnection, "_judge", busy)
    monkeypatch.setattr(BrokerConnection, "handle", handled)

    async def scenario(cluster):
        client = cluster.client(1)
        await alter(client, cluster, "request_percentage", 10.0, client_id="busy")
        quotas = cluster.running[1].context.quotas
        quotas.clock = BusyClock(quotas.clock)
        clocks.append(quotas.clock)
        rate, usage = await steady(cluster, ["busy"], MetadataRequest(topics=[]), 12, lambda _: cost_ms / 10)
        assert rate == pytest.approx(10, rel=0.1)
        assert 0 < max(usage.pauses) <= 1_000
        assert (await client.request(MetadataRequest(topics=[]), 12)).throttle_time_ms == 0

    run_cluster(scenario, **FEW_WINDOWS)


def creation(name, partitions):
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)], timeout_ms=5_000
    )


def test_mutations_at_the_rate_of_their_quota():
    """New versions are refused above the quota, old ones are carried out; both clients receive throttle times."""

    async def scenario(cluster):
        client = cluster.client(1)
        await alter(client, cluster, "controller_mutation_rate", 2.0, client_id="admin")
        created, begun_ms = [], trio.current_time() * 1_000
        connection = await opened(cluster, "admin")
        refused = throttled = number = 0
        while (now_ms := trio.current_time() * 1_000 - begun_ms) < WARM_MS + MEASURED_MS:
            answer = await connection.request(creation(f"t{number}", 3), 7, timeout_ms=60_000)
            number += 1
            code = answer.topics[0].error_code
            assert code in (ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            refused += code != ErrorCode.NONE
            throttled += answer.throttle_time_ms > 0
            created.append((now_ms, 0 if code else 3))
        rate = sum(count for now_ms, count in created if now_ms >= WARM_MS) / MEASURED_MS * 1_000
        assert rate == pytest.approx(2, rel=0.1)
        assert refused > 0
        assert throttled == refused
        old = await connection.request(creation("old", 20), 5, timeout_ms=60_000)
        assert (old.topics[0].error_code, old.throttle_time_ms > 5_000) == (ErrorCode.NONE, True)
        growth = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="old", count=21, assignments=None)], timeout_ms=5_000
        )
        fresh = await opened(cluster, "admin")
        strict = await fresh.request(growth, 3, timeout_ms=60_000)
        assert strict.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        fresh = await opened(cluster, "admin")
        deletion = DeleteTopicsRequest(topic_names=["old"], timeout_ms=5_000)
        assert (await fresh.request(deletion, 4, timeout_ms=60_000)).responses[0].error_code == ErrorCode.NONE
        fresh = await opened(cluster, "admin")
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="t0")], timeout_ms=5_000)
        code = (await fresh.request(deletion, 6, timeout_ms=60_000)).responses[0].error_code
        assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert (await client.request(creation("other", 50), 7)).throttle_time_ms == 0
        fresh = await opened(cluster, "admin")
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name="auto")], allow_auto_topic_creation=True)
        (topic,) = (await fresh.request(wanted, 12, timeout_ms=60_000)).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await trio.sleep(60)
        (topic,) = (await fresh.request(wanted, 12, timeout_ms=60_000)).topics
        assert topic.error_code == ErrorCode.NONE

    run_cluster(scenario, **FEW_WINDOWS)


def test_followers_are_exempt_and_quotas_are_described():
    """A quota that would stop replication at once does not touch it."""

    async def scenario(cluster):
        client = cluster.client(1)
        await alter(client, cluster, "consumer_byte_rate", 1.0, client_id=None)
        await alter(client, cluster, "request_percentage", 50.0, user=None)
        await client.create_topic("t", replicas=2)
        leader = cluster.client(await cluster.leader("t"))
        for _ in range(20):
            answer = await leader.produce("t", batch(bytes(10_000)))
            assert answer.error_code == ErrorCode.NONE
        described = await client.request(DescribeClientQuotasRequest(components=[], strict=False))
        assert [
            ([(part.entity_type, part.entity_name) for part in entry.entity], [(v.key, v.value) for v in entry.values])
            for entry in described.entries
        ] == [
            ([("client-id", None)], [("consumer_byte_rate", 1.0)]),
            ([("user", None)], [("request_percentage", 50.0)]),
        ]

    run_cluster(scenario, brokers=2)


def test_connections_of_a_busy_address_are_closed():
    async def scenario(cluster):
        client = cluster.client(1)
        await alter(client, cluster, "connection_creation_rate", 2.0, ip=None)
        await trio.sleep(10)
        network = cluster.client_environment.network
        opened_now = [await network.connect("b1", 9092) for _ in range(30)]
        await trio.sleep(1.5)
        (_, server), *_ = cluster.running[1].listening.servers()
        assert server.throttled > 0
        assert server.throttled + len(server.connections) == 31
        for each in opened_now:
            each.close()
        assert (await client.request(MetadataRequest(topics=[]), 12)).throttle_time_ms == 0

    run_cluster(scenario, **FEW_WINDOWS)


def test_connections_of_a_busy_broker_are_accepted_later():
    """The rate changes while the broker runs; none is refused."""

    async def scenario(cluster):
        client = cluster.client(1)
        change = AlterableConfig(name="max.connection.creation.rate", config_operation=0, value="2")
        resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
        await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
        await cluster.until(lambda: cluster.running[1].context.config.get_int(change.name) == 2)
        (_, server), *_ = cluster.running[1].listening.servers()
        network = cluster.client_environment.network
        opened_now = [await network.connect("b1", 9092) for _ in range(20)]
        await trio.sleep(1)
        assert len(server.connections) < 12
        await cluster.until(lambda: len(server.connections) == 21)
        assert server.refused == server.throttled == 0
        for each in opened_now:
            each.close()

    run_cluster(scenario, **FEW_WINDOWS)


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
WITH_SASL = {
    "listeners": "INSIDE://:9094,OUTSIDE://:9092",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
    "listener.name.outside.plain.sasl.jaas.config": f'{PLAIN} user_alice="p-alice" user_bob="p-bob";',
}


async def logged_in(cluster, user):
    settings = {
        "bootstrap.servers": "b1:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"p-{user}",
    }
    environment = client_environment(cluster.client_environment, ADMIN_CONFIG.parse(settings))
    return await RpcConnection.open(environment, "b1", 9092, "p")


def test_users_of_sasl_have_quotas_of_their_own():
    """The principal of the session decides, not the client id; the listener of brokers has no quota."""

    async def scenario(cluster):
        alice, bob = await logged_in(cluster, "alice"), await logged_in(cluster, "bob")
        await bob.request(creation("t", 1), 7, timeout_ms=60_000)
        await cluster.leader("t")
        await alter(bob, cluster, "producer_byte_rate", 100.0, user="alice")
        await alter(bob, cluster, "producer_byte_rate", 100.0, user="ANONYMOUS")
        inside = await RpcConnection.open(cluster.client_environment, "b1", 9094, "p")
        throttle_ms = [
            (await each.request(produce_request(20_000), 9, timeout_ms=60_000)).throttle_time_ms
            for each in (bob, inside, alice)
        ]
        assert throttle_ms[:2] == [0, 0]
        assert throttle_ms[2] > 100_000

    run_cluster(scenario, **WITH_SASL, **FEW_WINDOWS)


def test_own_clients_read_and_write_all_above_their_quotas():
    """An empty answer to a fetch, in a session and at its begin, is not taken for the end of a partition."""

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", partitions=2)
        for key in ("producer_byte_rate", "consumer_byte_rate"):
            await alter(client, cluster, key, 10_000.0, client_id="own")
        config = {"bootstrap.servers": "b1:9092", "client.id": "own"}
        environment = cluster.client_environment
        values = [bytes([number]) * 3_000 for number in range(60)]
        async with Producer({**config, "batch.size": 4_000}, environment=environment) as producer:
            for number, value in enumerate(values):
                await producer.send("t", value, partition=number % 2)
        reading = {**config, "auto.offset.reset": "earliest", "fetch.max.bytes": 10_000}
        read = []
        async with Consumer({**reading, "max.partition.fetch.bytes": 5_000}, environment=environment) as consumer:
            consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
            with trio.fail_after(300):
                async for record in consumer:
                    read.append(bytes(record.value))
                    if len(read) == len(values):
                        break
        assert sorted(read) == sorted(values)
        throttled = cluster.running[1].context.quotas.use.throttled
        assert throttled["producer_byte_rate"] > 0
        assert throttled["consumer_byte_rate"] > 2

    run_cluster(scenario)


def test_own_clients_wait_for_a_pause_on_one_connection():
    """A pause longer than the request timeout ends no connection: the timeout begins when the pause ends."""

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t")
        await alter(client, cluster, "producer_byte_rate", 300.0, client_id="own")
        config = {"bootstrap.servers": "b1:9092", "client.id": "own", "request.timeout.ms": 5_000, "batch.size": 4_000}
        async with Producer(config, environment=cluster.client_environment) as producer:
            began = trio.current_time()
            for number in range(8):
                await (await producer.send("t", bytes(4_000), partition=0))
                if number == 0:
                    accepted = connections_of(cluster)
            took_s = trio.current_time() - began
        assert took_s > 40  # 32,000 bytes at 300 bytes per second, less the allowance of an idle client
        assert connections_of(cluster) == accepted

    run_cluster(scenario, **FEW_WINDOWS)


def connections_of(cluster):
    """Counts the connections that the broker has accepted from clients."""
    return sum(server.statistics().accepted for _, server in cluster.running[1].listening.servers())


def test_metrics_show_groups_and_pauses():
    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t")
        await alter(client, cluster, "producer_byte_rate", 1_000.0, client_id="p")
        await (await opened(cluster, "p")).request(produce_request(20_000), 9, timeout_ms=5_000)
        registry = Registry()
        register_metrics(registry, cluster.running[1])
        text = registry.expose()
        assert 'kafka_server_produce_byte_rate{user="",client_id="p"}' in text
        assert 'moldau_throttled_requests_total{quota="producer_byte_rate"} 1' in text
        assert "moldau_throttled_connections 1" in text

    run_cluster(scenario, **FEW_WINDOWS)
