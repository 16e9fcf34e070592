"""Goal: clients find their cluster again when all addresses that they know are of no use (KIP-899, 1102, 1242).

Method: the decision on made times; then clients on virtual time whose brokers move to other addresses, fall silent,
answer REBOOTSTRAP_REQUIRED, or exchange their addresses with another cluster. Controls run without the recovery.
"""

import logging
import math
from functools import partial

import pytest
import trio

from moldau import Admin, CommitFailedError, Consumer, FatalTransactionError, KafkaError, Producer, ShareConsumer
from moldau.admin import ConfigAlteration, ConfigResource, ResourceType
from moldau.cluster.client import ClusterClient
from moldau.cluster.connections.recovery import ATTEMPT_MS_MIN, Recovery
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsResponse, DescribeLogDirsResult
from moldau.protocol.messages.metadata import MetadataResponse
from moldau.runtime.config import ADMIN_CONFIG, PRODUCER_CONFIG
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import PORT, FakeCluster
from support.cluster.broker_cluster import Cluster, run_cluster

WITHOUT = {"metadata.recovery.strategy": "none"}
WITHOUT_CHECK = {"metadata.cluster.check.enable": "false"}
PATIENT = {"delivery.timeout.ms": "300000", "max.block.ms": "300000", "request.timeout.ms": "5000"}


# --- the decision


def recovery(*, is_enabled=True, checks_cluster=True, trigger_ms=10_000):
    return Recovery(is_enabled=is_enabled, checks_cluster=checks_cluster, trigger_ms=trigger_ms)


def test_recovery_is_due_after_the_trigger():
    one = recovery()
    assert one.asked(5_000) == 10_000
    assert not one.is_due(14_999)
    assert one.asked(14_500) == ATTEMPT_MS_MIN, "the last attempt gets its time"
    assert one.is_due(15_000)
    one.begun("a", 15_000)
    assert (one.generation, one.is_due(24_999), one.is_due(25_000)) == (1, False, True)
    assert one.answered("a") is None
    assert not one.is_due(1e12), "an answer ends the wait"


def test_recovery_can_be_off():
    one = recovery(is_enabled=False)
    assert one.asked(0) == math.inf
    assert not one.is_due(1e12)
    assert one.expected("a", 1) is None
    assert not one.is_foreign("a", "b")


def test_only_known_brokers_are_expected():
    one = recovery()
    assert one.expected("a", 1) == ("a", 1)
    assert one.expected("a", -1) is None, "a bootstrap server may be any broker"
    assert one.expected(None, 1) is None
    assert recovery(checks_cluster=False).expected("a", 1) is None
    assert [
        one.is_foreign("a", "b"),
        one.is_foreign("a", "a"),
        one.is_foreign(None, "b"),
        one.is_foreign("a", None),
    ] == [
        True,
        False,
        False,
        False,
    ]


def test_a_change_of_the_cluster_is_noticed_once():
    one = recovery()
    assert one.answered("a") is None
    one.begun("a", 0)
    one.begun(None, 1)  # it started again before any answer
    assert one.answered("b") == "a"
    assert one.answered("b") is None


# --- all brokers at other addresses


async def moved(cluster, names):
    """Restarts all brokers under names that the clients have never heard of; the old ones are no host's."""
    for broker in cluster.broker_ids:
        cluster.kill(broker)
        names.pop(f"old{broker}", None)
        names[f"new{broker}"] = f"b{broker}"
    names["kafka"] = f"b{cluster.broker_ids[-1]}"
    for broker in cluster.broker_ids:
        cluster.start_broker(broker, advertised_listeners=f"PLAINTEXT://new{broker}:9092")
    await cluster.until(lambda: len(cluster.running) == len(cluster.broker_ids))


def run_moved(scenario, *, brokers=2):
    """Runs ``scenario(cluster, move)`` with brokers named ``old1`` and ``old2``; clients start at ``kafka``."""

    async def main(world):
        names = world.network.names
        cluster = Cluster(world, brokers=brokers, share_coordinator_state_topic_num_partitions="1")
        cluster.start_controller(cluster.controller_ids[0])
        for broker in cluster.broker_ids:
            names[f"old{broker}"] = f"b{broker}"
            cluster.start_broker(broker, advertised_listeners=f"PLAINTEXT://old{broker}:9092")
        names["kafka"] = "b1"
        await cluster.until(lambda: len(cluster.running) == brokers)
        await cluster.client(1).create_topic("t", replicas=brokers)
        await cluster.leader("t")

        async def move():
            await moved(cluster, names)

        with trio.fail_after(400):
            await scenario(cluster, move)
        assert world.failures == []

    run_world(main, 1)


def settings(**more):
    return {"bootstrap.servers": "kafka:9092"} | {key.replace("_", "."): value for key, value in more.items()}


async def read_values(consumer, count):
    values = []
    with trio.move_on_after(60):
        while len(values) < count:
            values += [record.value for batch in await consumer.poll(200) for record in batch.records]
    return values


async def shared(consumer, wanted):
    """Polls a share consumer until it has a value; each poll accepts the records of the one before."""
    with trio.fail_after(60):
        while all(record.value != wanted for record in await consumer.poll(200)):
            pass


@pytest.mark.parametrize("transactional_id", [None, "tx"])
def test_records_go_on_to_moved_brokers(transactional_id):
    """The producer has records in flight, or a transaction open, and a member of a group reads them."""

    async def scenario(cluster, move):
        environment = cluster.client_environment
        given = settings(**PATIENT) | ({} if transactional_id is None else {"transactional.id": transactional_id})
        reading = settings(group_id="g", auto_offset_reset="earliest", isolation_level="read_committed")
        async with (
            Producer(given, environment=environment) as producer,
            Consumer(reading, environment=environment) as c,
        ):
            c.subscribe(["t"])
            if transactional_id is not None:
                await producer.init_transactions()
                producer.begin_transaction()
            before = [await producer.send("t", b"%d" % n) for n in range(5)]
            await before[0]
            if transactional_id is not None:
                await producer.commit_transaction()
            assert await read_values(c, 5) == [b"%d" % n for n in range(5)]
            if transactional_id is not None:
                producer.begin_transaction()
            more = [await producer.send("t", b"%d" % n) for n in range(5, 10)]
            await move()
            more += [await producer.send("t", b"%d" % n) for n in range(10, 15)]
            for delivery in more:
                await delivery
            if transactional_id is not None:
                await producer.commit_transaction()
            assert await read_values(c, 10) == [b"%d" % n for n in range(5, 15)]

    run_moved(scenario)


def test_other_clients_go_on_to_moved_brokers():
    async def scenario(cluster, move):
        environment = cluster.client_environment
        async with (
            Admin(settings(), environment=environment) as admin,
            Producer(settings(), environment=environment) as p,
        ):
            group = ConfigResource(ResourceType.GROUP, "g")
            await admin.alter_configs({group: [ConfigAlteration(name="share.auto.offset.reset", value="earliest")]})
            async with ShareConsumer(settings(group_id="g"), environment=environment) as consumer:
                consumer.subscribe(["t"])
                await (await p.send("t", b"1"))
                await shared(consumer, b"1")
                await move()
                assert [topic.name for topic in await admin.list_topics()] == ["t"]
                assert sorted(node.host for node in (await admin.describe_cluster()).brokers) == ["new1", "new2"]
                await (await p.send("t", b"2"))
                await shared(consumer, b"2")

    run_moved(scenario)


def test_without_recovery_clients_stay_stuck():
    """The control: the same move, with metadata.recovery.strategy=none."""

    async def scenario(cluster, move):
        environment = cluster.client_environment
        given = settings(request_timeout_ms="5000", delivery_timeout_ms="60000") | WITHOUT
        async with Producer(given, environment=environment) as producer:
            await (await producer.send("t", b"1"))
            await move()
            stuck = await producer.send("t", b"2")
            with pytest.raises(KafkaError):
                await stuck
        async with Producer(given, environment=environment) as producer:
            await (await producer.send("t", b"3"))

    run_moved(scenario, brokers=1)


# --- silent brokers


async def seconds_until_served(world, **more):
    """Returns how long a client needs that knows only servers that have fallen silent.

    Its connection to the bootstrap server is open, too, while the name leads to another host since.
    """
    cluster = FakeCluster(world, 2)
    cluster.add_topic("t")
    cluster.start()
    world.network.names["kafka"] = "broker1"
    config = ADMIN_CONFIG.parse(settings(**more))
    client = ClusterClient(world.node("client").environment, config, "admin")
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        client.add_topic("t")
        await client.wait_update(client.now_ms + 60_000)
        world.network.cut_between(["client"], ["broker1", "broker2"])
        cluster.brokers[1] = "elsewhere"
        cluster.start_broker(1)
        world.network.names["kafka"] = "elsewhere"
        cluster.advertised[2] = "elsewhere"
        begun = client.now_ms
        await client.wait_update(client.now_ms + 600_000)
        found = (client.now_ms - begun) / 1000
        nursery.cancel_scope.cancel()
    return found


def test_silent_brokers_are_left_after_the_trigger():
    trigger = {"metadata_recovery_rebootstrap_trigger_ms": "3000", "request_timeout_ms": "200000"}
    assert run_world(lambda world: seconds_until_served(world, **trigger), 1) < 6
    late = run_world(lambda world: seconds_until_served(world, request_timeout_ms="200000"), 1)
    assert late > 15, "the control: only the transport notices that the server is gone"


# --- REBOOTSTRAP_REQUIRED


@pytest.mark.parametrize("strategy", ["rebootstrap", "none"])
def test_metadata_may_demand_a_start_again(strategy):
    """Such an answer names no brokers and no topics, which must not be taken for the cluster's state."""

    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.add_topic("t")
        demands = [0]

        def on_metadata(broker, request):
            if demands[0]:
                demands[0] -= 1
                return MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
            return cluster.on_metadata(broker, request)

        cluster.handlers[ApiKey.METADATA] = on_metadata
        cluster.start()
        config = ADMIN_CONFIG.parse({"bootstrap.servers": cluster.bootstrap, "metadata.recovery.strategy": strategy})
        client = ClusterClient(world.node("client").environment, config, "admin")
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            client.want_all_topics()
            await client.wait_update(client.now_ms + 60_000)
            connection = await client.connection(1, "fetch")
            demands[0] = 1
            version = client.cluster_metadata.version
            await client.wait_update(client.now_ms + 60_000)
            assert demands == [0]
            assert client.cluster_metadata.version == version + 1
            assert list(client.cluster_metadata.topics) == ["t"]
            assert sorted(client.cluster_metadata.brokers) == [1, 2]
            assert client.recovery.generation == (strategy == "rebootstrap")
            assert connection.is_open == (strategy == "none")
            nursery.cancel_scope.cancel()

    run_world(main, 1)


# --- another cluster


def run_exchanged(scenario, *, config=(), versions=()):
    """Runs ``scenario(world, red, blue, producer, exchange)`` with two clusters of one broker each.

    ``red`` names its broker ``r``, and ``exchange`` lets that name lead to blue's host. Clients start at ``kafka``.
    """

    async def main(world):
        names = world.network.names
        clusters = []
        for name in ("red", "blue"):
            cluster = FakeCluster(world, 1, prefix=name, cluster_id=name)
            cluster.add_topic("t")
            cluster.advertised[1] = name[0]
            names[name[0]] = f"{name}1"
            cluster.max_versions.update(versions)
            cluster.start()
            clusters.append(cluster)
        names["kafka"] = "red1"

        def exchange(bootstrap):
            names["r"], names["b"], names["kafka"] = "blue1", "red1", bootstrap
            world.network.reset_connections("client", "red1")

        given = settings(**PATIENT) | dict(config)
        async with Producer(given, environment=world.node("client").environment) as producer:
            await (await producer.send("t", b"1"))
            with trio.fail_after(300):
                await scenario(world, *clusters, producer, exchange)

    run_world(main, 1)


def values(cluster):
    return [bytes(value) for value in cluster.topics["t"][0].values()]


def test_a_client_leaves_an_address_of_another_cluster(caplog):
    """The name of red's broker leads to blue, and red advertises another name since."""

    async def scenario(world, red, blue, producer, exchange):
        world.network.names["moved"] = "red1"
        red.advertised[1] = "moved"
        exchange("red1")
        with caplog.at_level(logging.WARNING):
            await (await producer.send("t", b"2"))
        assert (values(red), values(blue)) == ([b"1", b"2"], [])
        assert blue.expected == [("red", 1)], "the broker was asked once, and no request followed"
        assert "rebootstrapping" in caplog.text

    run_exchanged(scenario)


@pytest.mark.parametrize("config", [WITHOUT, WITHOUT_CHECK], ids=["none", "unchecked"])
def test_without_the_check_records_reach_another_cluster(config):
    """The control: a broker that is not asked takes the record."""

    async def scenario(world, red, blue, producer, exchange):
        world.network.names["moved"] = "red1"
        red.advertised[1] = "moved"
        exchange("red1")
        blue.topics["t"][0].producers[1001] = (0, 0)  # where blue knows no such producer, it refuses the sequence
        await (await producer.send("t", b"2"))
        assert (values(red), values(blue)) == ([b"1"], [b"2"])
        assert blue.expected == []

    run_exchanged(scenario, config=config)


def test_metadata_of_another_cluster_are_refused():
    """Brokers before Kafka 4.4 do not check, so the client compares the cluster id of Metadata answers."""

    async def scenario(world, red, blue, producer, exchange):
        world.network.names["moved"] = "red1"
        red.advertised[1] = "moved"
        blue.topics["t"][0].leader = 2  # so that the record is refused and the client asks for metadata
        exchange("red1")
        await (await producer.send("t", b"2"))
        assert (values(red), values(blue)) == ([b"1", b"2"], [])
        assert {key for _, key, _ in blue.requests} >= {ApiKey.METADATA}

    run_exchanged(scenario, versions={ApiKey.API_VERSIONS: 4})


def test_a_producer_takes_no_id_to_another_cluster(caplog):
    """The bootstrap server is of another cluster, whose brokers know the producer id as another producer's.

    They would answer that the record is a duplicate, and the producer would report it as written.
    """

    async def scenario(world, red, blue, producer, exchange):
        given = {"bootstrap.servers": blue.bootstrap}
        async with Producer(given, environment=world.node("other").environment) as other:
            for value in (b"a", b"b", b"c"):
                await (await other.send("t", value))
        blue.advertised.clear()
        exchange("blue1")
        with caplog.at_level(logging.WARNING):
            await (await producer.send("t", b"2"))
            await (await producer.send("t", b"3"))
        assert (values(red), values(blue)) == ([b"1"], [b"a", b"b", b"c", b"2", b"3"])
        assert "cluster-changed" in caplog.text

    run_exchanged(scenario)


async def two_clusters(world):
    """Starts ``red`` and ``blue``, clusters of one broker each that clients know by these names; returns red."""
    clusters = []
    for name, broker, controller in (("red", 1, 101), ("blue", 11, 201)):
        cluster = Cluster(world, brokers=1, first_broker=broker, first_controller=controller)
        cluster.start_controller(controller)
        world.network.names[name] = f"b{broker}"
        cluster.start_broker(broker, advertised_listeners=f"PLAINTEXT://{name}:9092")
        await cluster.until(partial(bool, cluster.running))
        await cluster.client(broker).create_topic("t")
        await cluster.leader("t")
        clusters.append(cluster)
    return clusters[0]


async def lead_to_blue(world, red):
    """Takes red out of service; its name leads to blue since, as a disaster recovery by DNS does."""
    red.kill(1)
    world.network.names["red"] = "b11"


def test_a_call_ends_at_no_broker_of_another_cluster():
    """Blue has a broker 1 too: its log directories were returned as those of red's."""
    asked = []

    def answer_of(name):
        found = DescribeLogDirsResponse(results=[DescribeLogDirsResult(log_dir="/d")])
        return lambda *_: asked.append(name) or found

    async def main(world):
        names = world.network.names
        clusters = {name: FakeCluster(world, 1, prefix=name, cluster_id=name) for name in ("red", "blue")}
        for name, cluster in clusters.items():
            cluster.advertised[1] = name
            cluster.handlers[ApiKey.DESCRIBE_LOG_DIRS] = answer_of(name)
            cluster.start()
            names[name] = f"{name}1"
        names["kafka"] = "red1"
        config = {"bootstrap.servers": f"kafka:{PORT}", "metadata.recovery.rebootstrap.trigger.ms": "3000"}
        async with Admin(config, environment=world.node("client").environment) as admin:
            await admin.describe_log_dirs([1])
            clusters["red"].kill_broker(1)
            names["kafka"] = "blue1"
            with trio.fail_after(60), pytest.raises(KafkaError) as refused:
                await admin.describe_log_dirs([1])
            assert refused.value.code is ErrorCode.BROKER_NOT_AVAILABLE
            assert asked == ["red"]
            await admin.describe_log_dirs([1])
        assert asked == ["red", "blue"], "the next call is about the cluster that was found"

    for seed in range(1, 4):
        asked.clear()
        run_world(main, seed)


def test_a_transaction_does_not_end_in_another_cluster():
    """The same application ran with both clusters, so that blue knows its transactional id by the same producer id."""

    async def main(world):
        red = await two_clusters(world)
        environment = world.node("client").environment
        transactional = {"transactional.id": "tx", "request.timeout.ms": "5000"}

        async def write(producer, value):
            producer.begin_transaction()
            await (await producer.send("t", value))

        async with Producer({"bootstrap.servers": "blue:9092", **transactional}, environment=environment) as other:
            await other.init_transactions()
            await write(other, b"b1")
            await other.commit_transaction()
            await write(other, b"b2")
            async with Producer(
                {"bootstrap.servers": "red:9092", **transactional}, environment=environment
            ) as producer:
                await producer.init_transactions()
                await write(producer, b"r1")
                await producer.commit_transaction()
                await write(producer, b"r2")
                await lead_to_blue(world, red)
                with trio.fail_after(60), pytest.raises(FatalTransactionError, match="works with another cluster"):
                    await producer.commit_transaction()
            await other.abort_transaction()
        reading = {
            "bootstrap.servers": "blue:9092",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
        async with Consumer(reading, environment=environment) as consumer:
            consumer.assign([("t", 0)])
            assert await read_values(consumer, 1) == [b"b1"]
            with trio.move_on_after(2):
                assert await read_values(consumer, 1) == [], "the other producer's transaction was its own to end"

    run_world(main, 1)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_in_another_cluster(protocol):
    """From the offsets that the group has there."""

    async def main(world):
        red = await two_clusters(world)
        environment = world.node("client").environment
        for name in ("red", "blue"):
            async with Producer({"bootstrap.servers": f"{name}:9092"}, environment=environment) as producer:
                await (await producer.send("t", name.encode()))
        given = {"bootstrap.servers": "red:9092", "group.id": "g", "auto.offset.reset": "earliest"}
        async with Consumer({**given, "group.protocol": protocol}, environment=environment) as consumer:
            consumer.subscribe(["t"])
            assert await read_values(consumer, 1) == [b"red"]
            await lead_to_blue(world, red)
            assert await read_values(consumer, 1) == [b"blue"]

    run_world(main, 1)


def test_positions_of_another_cluster_are_not_kept():
    """A consumer without a membership commits for its group, too; it must not skip records of the other cluster."""

    async def main(world):
        red = await two_clusters(world)
        environment = world.node("client").environment
        for name, count in (("red", 5), ("blue", 9)):
            async with Producer({"bootstrap.servers": f"{name}:9092"}, environment=environment) as producer:
                for number in range(count):
                    await (await producer.send("t", b"%s%d" % (name.encode(), number)))
        given = {"group.id": "g", "auto.offset.reset": "earliest", "auto.commit.interval.ms": "100"}
        async with Consumer({"bootstrap.servers": "red:9092", **given}, environment=environment) as consumer:
            consumer.assign([("t", 0)])
            assert await read_values(consumer, 5) == [b"red%d" % number for number in range(5)]
            await lead_to_blue(world, red)
            with trio.fail_after(60), pytest.raises(CommitFailedError, match="another cluster"):
                await consumer.commit({("t", 0): 5})
            with trio.fail_after(60):
                while not (found := [record.value for batch in await consumer.poll(200) for record in batch.records]):
                    pass
            assert found[0] == b"blue0"

    run_world(main, 1)


def test_a_login_comes_before_the_check():
    """The server answers a login's ApiVersions without the check, so the client asks again afterwards."""
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    secured = {
        "listeners": "INSIDE://:9094,OUTSIDE://:9092",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "listener.name.outside.plain.sasl.jaas.config": f'{plain} user_bob="bob-secret";',
    }

    async def scenario(cluster):
        config = PRODUCER_CONFIG.parse(
            {
                "bootstrap.servers": "b1:9092",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "bob",
                "sasl.password": "bob-secret",
            }
        )
        client = ClusterClient(cluster.client_environment, config, "producer")
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            await client.wait_update(client.now_ms + 60_000)
            assert (await client.connection(1)).is_open
            client.cluster_metadata.cluster_id = "another"
            with pytest.raises(ConnectionError, match="is not broker 1 of this cluster"):
                await client.connection(1, "fetch")
            nursery.cancel_scope.cancel()

    run_cluster(scenario, **secured)
