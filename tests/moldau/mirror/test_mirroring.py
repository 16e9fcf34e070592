"""Mirrors between whole simulated clusters: what arrives, what follows, and what happens to topics that change.

Goal: the target holds the records of its sources in their partitions, in both modes of delivery. Method: clusters of
one broker each share a world with a mirror on a machine of its own; the targets are read by ordinary consumers.
"""

import dataclasses
from collections import Counter
from dataclasses import replace

import pytest
import trio

from moldau import ErrorCode, KafkaError, TopicPartition
from moldau.admin import ConfigAlteration, ConfigResource, ResourceType
from moldau.admin.calls.acls import Acl, AclFilter
from moldau.mirror.at_least_once import AtLeastOnce
from moldau.mirror.core.formats import Heartbeat
from moldau.mirror.status import source_status
from moldau.producer.sender import Sender
from moldau.records import Compression, encode_batch
from support.mirror.clusters import numbers, run_clusters
from support.proof import proof_beyond

MODES = ["disabled", "enabled"]
"""Values of ``exactly.once.source.support``."""


async def stored_batches(clusters, alias, topic, partition=0):
    """Returns the headers of a partition's batches as they are stored."""
    consumer = clusters.consumer(alias)
    wanted = TopicPartition(topic, partition)
    async with consumer:
        consumer.assign([wanted])
        consumer.seek_to_beginning()
        found = await consumer.poll_encoded(5000)
    return [each.header for part in found for each in part.batches]


@pytest.mark.parametrize("mode", proof_beyond(1, reversed(MODES)))
def test_records_arrive_unchanged(mode):
    """Key, value, headers, time, partition and compression are the source's; batches are not decoded."""
    codecs = [Compression.LZ4, Compression.NONE, Compression.ZSTD]

    async def scenario(clusters):
        await clusters.create("east", "orders", 3)
        async with clusters.producer("east") as producer:
            for number, codec in enumerate(codecs):
                records = [(5_000 + n, b"k%d" % n, b"v" * n, (("a", b"1"), ("b", None))) for n in range(20)]
                records += [(9_000, None, None, ())]
                await producer.send_encoded("orders", number, encode_batch(records, compression=codec))
        clusters.start(clusters.settings(["east"], "hub", exactly_once_source_support=mode))
        for number, codec in enumerate(codecs):
            await clusters.wait_values("hub", "east.orders", [b"v" * 19], number)
            assert await clusters.read("hub", "east.orders", number) == await clusters.read("east", "orders", number)
            headers = await stored_batches(clusters, "hub", "east.orders", number)
            assert [each.compression for each in headers if not each.is_control] == [codec]
        (statistics,) = clusters.mirrors["mirror"].statistics
        assert (statistics.batches_passed, statistics.batches_encoded) == (3, 0)

    run_clusters(scenario)


@pytest.mark.parametrize("mode", proof_beyond(1, MODES))
def test_batches_of_single_records_are_joined(mode):
    """Each batch costs a request of its own, so a topic with a record in each batch would be copied slowly."""

    async def scenario(clusters):
        await clusters.create("east", "orders", 1)
        async with clusters.producer("east") as producer:
            for number in range(40):
                await producer.send_encoded("orders", 0, encode_batch([(number, None, b"%d" % number, ())]))
        clusters.start(clusters.settings(["east"], "hub", exactly_once_source_support=mode))
        await clusters.wait_values("hub", "east.orders", [b"%d" % number for number in range(40)], 0)
        headers = await stored_batches(clusters, "hub", "east.orders", 0)
        assert len([each for each in headers if not each.is_control]) < 10

    run_clusters(scenario)


@pytest.mark.parametrize("mode", proof_beyond(1, MODES))
def test_a_hub_holds_the_records_of_two_sources(mode):
    async def scenario(clusters):
        for alias in ("east", "west"):
            await clusters.create(alias, "orders", 2)
        clusters.start(clusters.settings(["east", "west"], "hub", exactly_once_source_support=mode))
        for alias, first in (("east", 0), ("west", 500)):
            for number in (0, 1):
                await clusters.fill(alias, "orders", numbers(first + 100 * number, first + 100 * number + 100), number)
        for alias, first in (("east", 0), ("west", 500)):
            for number in (0, 1):
                wanted = numbers(first + 100 * number, first + 100 * number + 100)
                found = await clusters.wait_values("hub", f"{alias}.orders", wanted, number)
                assert Counter(found) == Counter(wanted)

    run_clusters(scenario, "east", "west", "hub")


def test_topics_partitions_and_configurations_follow():
    """New topics come, excluded and internal ones do not; partitions grow; configurations change and go back."""

    async def scenario(clusters):
        keep = ConfigResource(ResourceType.TOPIC, "keep")
        copy = ConfigResource(ResourceType.TOPIC, "east.keep")
        await clusters.create("east", "keep", 1, retention_ms="7000000", min_insync_replicas="1")
        await clusters.create("east", "drop")
        await clusters.create("east", "some.internal")
        mirrored = {"topics": ["keep", "late", ".*internal"], "topics.exclude": ["drop"]}
        clusters.start(clusters.settings(["east"], "hub", per_source={"east": mirrored}))
        await clusters.fill("east", "keep", [b"1"])
        await clusters.wait_values("hub", "east.keep", [b"1"])
        async with clusters.admin("east") as source, clusters.admin("hub") as target:

            async def value(key):
                return (await target.describe_configs([copy]))[copy][key]

            assert (await value("retention.ms")).value == "7000000"
            assert (await value("min.insync.replicas")).is_default
            await clusters.create("east", "late", 2)
            await source.create_partitions({"keep": 3})
            await clusters.fill("east", "late", [b"2"], 1)
            await clusters.fill("east", "keep", [b"3"], 2)
            await clusters.wait_values("hub", "east.late", [b"2"], 1)
            await clusters.wait_values("hub", "east.keep", [b"3"], 2)
            names = {topic.name: topic.partition_count for topic in await target.list_topics()}
            assert {name for name in names if name.startswith("east.")} == {
                "east.keep",
                "east.late",
                "east.checkpoints.internal",
            }
            assert (names["east.keep"], names["east.late"]) == (3, 2)
            await source.alter_configs({keep: [ConfigAlteration(name="retention.ms", value="8000000")]})
            with trio.fail_after(30):
                while (await value("retention.ms")).value != "8000000":  # noqa: ASYNC110 - another cluster changes it
                    await trio.sleep(0.5)

    run_clusters(scenario)


@pytest.mark.parametrize("mode", proof_beyond(1, reversed(MODES)))
def test_a_recreated_topic_is_mirrored_from_its_start(mode):
    """Its offsets have passed the old position, so only its id shows that it is another topic."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        clusters.start(
            clusters.settings(["east"], "hub", exactly_once_source_support=mode, refresh_topics_interval_seconds=40)
        )
        await clusters.fill("east", "orders", numbers(0, 50))
        await clusters.wait_values("hub", "east.orders", numbers(0, 50))
        await trio.sleep(2)
        clusters.world.node("mirror").pause()
        async with clusters.admin("east") as admin:
            await admin.delete_topics(["orders"])
        await trio.sleep(2)
        await clusters.create("east", "orders")
        await clusters.fill("east", "orders", numbers(100, 200))
        clusters.world.node("mirror").resume()
        found = await clusters.wait_values("hub", "east.orders", numbers(100, 200), timeout_s=120)
        assert found == numbers(0, 50) + numbers(100, 200)

    run_clusters(scenario)


def test_the_lag_of_a_recreated_topic_counts_from_its_start():
    """The position of the former topic made it negative, and the sum of a source hid the lag of other topics."""

    async def scenario(clusters):
        settings = clusters.settings(["east"], "hub")
        await clusters.create("east", "orders")
        clusters.start(settings)
        await clusters.fill("east", "orders", numbers(0, 50))
        await clusters.wait_values("hub", "east.orders", numbers(0, 50))
        await clusters.stop()
        before = await source_status(clusters.environment, settings.sources[0])
        assert [(each.position, each.lag) for each in before.partitions] == [(50, 0)]
        async with clusters.admin("east") as admin:
            await admin.delete_topics(["orders"])
        await trio.sleep(2)
        await clusters.create("east", "orders")
        await clusters.fill("east", "orders", numbers(0, 20))
        found = await source_status(clusters.environment, settings.sources[0])
        assert [(each.position, each.lag) for each in found.partitions] == [(-1, 20)]

    run_clusters(scenario)


def test_a_deleted_topic_keeps_its_copy():
    async def scenario(clusters):
        await clusters.create("east", "orders")
        clusters.start(clusters.settings(["east"], "hub"))
        await clusters.fill("east", "orders", numbers(0, 20))
        await clusters.wait_values("hub", "east.orders", numbers(0, 20))
        async with clusters.admin("east") as admin:
            await admin.delete_topics(["orders"])
        await trio.sleep(6)
        assert await clusters.values("hub", "east.orders") == numbers(0, 20)
        (statistics,) = clusters.mirrors["mirror"].statistics
        assert statistics.is_running
        assert statistics.partitions == {}

    run_clusters(scenario)


def test_a_stop_does_not_wait_for_a_dead_cluster():
    """Nothing was copied yet, so nothing must be stored: the mirror ends although its calls are still tried."""

    async def scenario(clusters):
        for broker in clusters["east"].broker_ids:
            clusters["east"].kill(broker)
        clusters.start(clusters.settings(["east"], "hub"))
        await trio.sleep(3)
        clusters.mirrors["mirror"].stop.set()
        with trio.fail_after(1):
            await clusters.world.node("mirror").wait_ended()

    run_clusters(scenario)


@pytest.mark.parametrize("mode", proof_beyond(1, reversed(MODES)))
def test_a_stop_waits_no_longer_than_platforms_do(mode):
    """A target that is away holds up outcomes for minutes; containers are killed 30 s after the signal."""

    async def scenario(clusters):
        (source,) = clusters.settings(["east"], "hub", exactly_once_source_support=mode).sources
        keys = {**source.target.keys, "producer.delivery.timeout.ms": 120_000, "default.api.timeout.ms": 60_000}
        settings = clusters.settings(["east"], "hub", exactly_once_source_support=mode)
        patient = replace(source, target=replace(source.target, keys=keys))
        await clusters.create("east", "orders")
        clusters.start(replace(settings, sources=(patient,)))
        await clusters.fill("east", "orders", numbers(0, 20))
        await clusters.wait_values("hub", "east.orders", numbers(0, 20))
        for broker in clusters["hub"].broker_ids:
            clusters["hub"].kill(broker)
        await clusters.fill("east", "orders", numbers(20, 40))
        await trio.sleep(2)
        clusters.mirrors["mirror"].stop.set()
        with trio.fail_after(30):
            await clusters.world.node("mirror").wait_ended()
        for broker in clusters["hub"].broker_ids:
            clusters["hub"].start_broker(broker)
        clusters.start(settings)
        found = await clusters.wait_values("hub", "east.orders", numbers(0, 40), timeout_s=180)
        assert sorted(set(found)) == numbers(0, 40)

    run_clusters(scenario)


@pytest.mark.parametrize("mode", proof_beyond(1, MODES))
def test_deleted_records_are_skipped(mode):
    """Records that the source deleted while the mirror was down are gone; mirroring goes on behind them."""

    async def scenario(clusters):
        settings = clusters.settings(["east"], "hub", exactly_once_source_support=mode)
        await clusters.create("east", "orders")
        clusters.start(settings)
        await clusters.fill("east", "orders", numbers(0, 50))
        await clusters.wait_values("hub", "east.orders", numbers(0, 50))
        await clusters.stop()
        await clusters.fill("east", "orders", numbers(50, 100))
        async with clusters.admin("east") as admin:
            await admin.delete_records({("orders", 0): 80})
        clusters.start(settings)
        found = await clusters.wait_values("hub", "east.orders", numbers(80, 100))
        assert found == numbers(0, 50) + numbers(80, 100)

    run_clusters(scenario)


@pytest.mark.parametrize("mode", proof_beyond(1, MODES))
@pytest.mark.parametrize("down", proof_beyond(1, ["east", "hub"]))
def test_a_cluster_that_is_down_is_waited_for(down, mode):
    """The cluster is away for 20 s, longer than any timeout of the mirror's clients."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        await clusters.create("west", "orders")
        clusters.start(clusters.settings(["east", "west"], "hub", exactly_once_source_support=mode))
        await clusters.fill("east", "orders", numbers(0, 50))
        await clusters.wait_values("hub", "east.orders", numbers(0, 50))
        cluster = clusters[down]
        cluster.kill(cluster.broker_ids[0])
        if down != "east":
            await clusters.fill("east", "orders", numbers(50, 100))
        await clusters.fill("west", "orders", numbers(0, 30))
        if down == "east":  # the other source goes on
            await clusters.wait_values("hub", "west.orders", numbers(0, 30))
        await trio.sleep(20)
        cluster.start_broker(cluster.broker_ids[0])
        await cluster.until(lambda: cluster.running)
        if down == "east":
            await clusters.fill("east", "orders", numbers(50, 100))
        found = await clusters.wait_values("hub", "east.orders", numbers(0, 100), timeout_s=150)
        await clusters.wait_values("hub", "west.orders", numbers(0, 30), timeout_s=150)
        if mode == "enabled":
            assert found == numbers(0, 100)

    run_clusters(scenario, "east", "west", "hub")


@pytest.mark.parametrize("mode", proof_beyond(1, reversed(MODES)))
def test_a_batch_that_is_too_large_is_divided(mode):
    """The target takes smaller batches than the source; a single record that is too large stops its partition only."""

    async def scenario(clusters):
        await clusters.create("east", "orders", 2)
        await clusters.create("hub", "east.orders", 2, max_message_bytes="2000")
        config = {"sync.topic.configs.enabled": False}
        clusters.start(clusters.settings(["east"], "hub", exactly_once_source_support=mode, **config))
        values = [b"%04d" % n + b"x" * 300 for n in range(40)]
        async with clusters.producer("east") as producer:
            records = [(1_000, None, value, ()) for value in values]
            await producer.send_encoded("orders", 0, encode_batch(records))
        assert await clusters.wait_values("hub", "east.orders", values, timeout_s=120) == values
        async with clusters.producer("east") as producer:
            await producer.send("orders", b"y" * 5000, partition=0)
            await producer.send("orders", b"behind", partition=0)
        for number in range(5):
            await clusters.fill("east", "orders", numbers(number * 10, number * 10 + 10), 1)
            await clusters.wait_values("hub", "east.orders", numbers(number * 10, number * 10 + 10), 1)
        behind = (await clusters.values("hub", "east.orders"))[len(values) :]
        # Outside of a transaction, a batch that was on its way behind the refused one may be written, but only once.
        assert behind in ([[]] if mode == "enabled" else [[], [b"behind"]])
        (statistics,) = clusters.mirrors["mirror"].statistics
        assert statistics.partitions[TopicPartition("orders", 0)].failures > 0
        async with clusters.admin("hub") as admin:
            copy = ConfigResource(ResourceType.TOPIC, "east.orders")
            await admin.alter_configs({copy: [ConfigAlteration(name="max.message.bytes", value="100000")]})
        found = await clusters.wait_values("hub", "east.orders", [*values, b"y" * 5000, b"behind"], timeout_s=200)
        assert found == [*values, *behind, b"y" * 5000, b"behind"]

    run_clusters(scenario)


def test_heartbeats_show_the_chain():
    """A chain of two mirrors: the last cluster has the heartbeats of both, and topics with two prefixes."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        clusters.start(clusters.settings(["east"], "west"), "first")
        clusters.start(clusters.settings(["west"], "hub"), "second")
        await clusters.fill("east", "orders", numbers(0, 20))
        assert await clusters.wait_values("hub", "west.east.orders", numbers(0, 20)) == numbers(0, 20)
        await trio.sleep(5)

        async def pairs(topic):
            found = [Heartbeat.parse(each.key, each.value) for each in await clusters.read("hub", topic)]
            return {(beat.source, beat.target) for beat in found}

        assert await pairs("heartbeats") == {("west", "hub")}
        assert await pairs("west.heartbeats") == {("east", "west")}

    run_clusters(scenario, "east", "west", "hub")


async def write_while_down(clusters, settings, values):
    """Starts a mirror, kills it after some seconds, writes values of ``orders`` in the east, and starts it again."""
    clusters.start(settings)
    await trio.sleep(5)
    clusters.kill()
    await clusters.fill("east", "orders", values)
    clusters.start(settings)


def test_a_mirror_starts_at_the_end_if_wanted():
    """Records before the first start stay out, those while the mirror is down do not; later topics begin at 0."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        await clusters.fill("east", "orders", numbers(0, 50))
        settings = clusters.settings(["east"], "hub", auto_offset_reset="latest")
        await write_while_down(clusters, settings, numbers(50, 60))
        assert await clusters.wait_values("hub", "east.orders", numbers(50, 60)) == numbers(50, 60)
        await clusters.create("east", "late")
        await clusters.fill("east", "late", numbers(70, 80))
        await clusters.wait_values("hub", "east.late", numbers(70, 80))

    run_clusters(scenario)


@pytest.mark.parametrize("support", proof_beyond(1, MODES))
def test_an_empty_partition_does_not_start_at_the_end_twice(support):
    """Its first records are written while the mirror is down."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        settings = clusters.settings(["east"], "hub", auto_offset_reset="latest", exactly_once_source_support=support)
        await write_while_down(clusters, settings, numbers(0, 10))
        await clusters.wait_values("hub", "east.orders", numbers(0, 10))

    run_clusters(scenario)


@pytest.mark.parametrize("support", proof_beyond(1, reversed(MODES)))
def test_a_start_at_the_end_is_stored_at_once(support):
    """The mirror is killed long before it stores positions for the second time."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        await clusters.fill("east", "orders", numbers(0, 50))
        keys = {"auto_offset_reset": "latest", "offset_flush_interval_ms": 60_000}
        settings = clusters.settings(["east"], "hub", exactly_once_source_support=support, **keys)
        await write_while_down(clusters, settings, numbers(50, 60))
        assert await clusters.wait_values("hub", "east.orders", numbers(50, 60)) == numbers(50, 60)

    run_clusters(scenario)


@pytest.mark.parametrize("flush_ms", proof_beyond(1, [500, 600_000]))
def test_a_source_that_restarts_does_not_start_at_the_end(monkeypatch, flush_ms):
    """Neither with a topic that was made meanwhile, nor where its position was not stored yet."""
    failing, failed, has_failed = AtLeastOnce.run, trio.Event(), trio.Event()

    async def fail_once(flow, stop):
        if has_failed.is_set():
            await failing(flow, stop)
            return
        with trio.move_on_after(5):
            await failing(flow, stop)
        failed.set()
        await has_failed.wait()
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    monkeypatch.setattr(AtLeastOnce, "run", fail_once)

    async def scenario(clusters):
        await clusters.create("east", "orders")
        await clusters.fill("east", "orders", numbers(0, 50))
        keys = {"auto_offset_reset": "latest", "offset_flush_interval_ms": flush_ms}
        clusters.start(clusters.settings(["east"], "hub", **keys))
        await failed.wait()
        await clusters.create("east", "late")
        await clusters.fill("east", "late", numbers(70, 80))
        await clusters.fill("east", "orders", numbers(50, 60))
        has_failed.set()
        await clusters.wait_values("hub", "east.late", numbers(70, 80))
        assert await clusters.wait_values("hub", "east.orders", numbers(50, 60)) == numbers(50, 60)

    run_clusters(scenario)


def test_aborted_records_are_not_mirrored():
    async def scenario(clusters):
        await clusters.create("east", "orders")
        async with clusters.producer("east", transactional_id="t") as producer:
            await producer.init_transactions()
            for number in range(4):
                producer.begin_transaction()
                await producer.send("orders", b"%d" % number)
                await producer.flush()
                await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
        clusters.start(clusters.settings(["east"], "hub"))
        assert await clusters.wait_values("hub", "east.orders", [b"0", b"2"]) == [b"0", b"2"]
        await trio.sleep(3)
        (statistics,) = clusters.mirrors["mirror"].statistics
        assert statistics.lag == 0, "markers at the end are no lag"

    run_clusters(scenario)


def test_a_refused_record_is_not_forgotten_by_a_restart():
    """The position stays before a record that the target refuses, also over restarts, until the target takes it."""

    async def scenario(clusters):
        settings = clusters.settings(["east"], "hub", sync_topic_configs_enabled=False)
        await clusters.create("east", "orders")
        await clusters.create("hub", "east.orders", 1, max_message_bytes="2000")
        clusters.start(settings)
        await clusters.fill("east", "orders", numbers(0, 10))
        await clusters.wait_values("hub", "east.orders", numbers(0, 10))
        async with clusters.producer("east") as producer:
            await producer.send("orders", b"y" * 5000)
            await producer.send("orders", b"behind")
        await trio.sleep(5)
        clusters.kill()
        clusters.start(settings)
        await trio.sleep(5)
        async with clusters.admin("hub") as admin:
            copy = ConfigResource(ResourceType.TOPIC, "east.orders")
            await admin.alter_configs({copy: [ConfigAlteration(name="max.message.bytes", value="100000")]})
        found = await clusters.wait_values("hub", "east.orders", [b"y" * 5000, b"behind"], timeout_s=100)
        assert found[-2:] == [b"y" * 5000, b"behind"]

    run_clusters(scenario)


def test_a_producer_that_failed_is_replaced(monkeypatch):
    """An idempotent producer that gets no producer id takes no records any longer, so the source starts again."""
    refusals = iter(range(4))
    fetch = Sender._init_producer_id

    async def refused(self):
        if next(refusals, None) is None:
            await fetch(self)
        else:
            self.fail(KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    async def scenario(clusters):
        await clusters.create("east", "orders")
        await clusters.fill("east", "orders", numbers(0, 50))
        monkeypatch.setattr(Sender, "_init_producer_id", refused)
        clusters.start(clusters.settings(["east"], "hub"))
        assert await clusters.wait_values("hub", "east.orders", numbers(0, 50)) == numbers(0, 50)
        assert clusters.mirrors["mirror"].statistics[0].restarts > 0

    run_clusters(scenario)


def test_rights_to_read_follow():
    """Both clusters have an authorizer; the mirror's user is a super user of both."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }

    async def scenario(clusters):
        await clusters.create("east", "orders")
        reader = Acl(resource="topic", name="orders", principal="User:reader", operation="read")
        every = Acl(resource="topic", name="orders", principal="User:boss", operation="all")
        others = [
            Acl(resource="topic", name="orders", principal="User:writer", operation="write"),
            Acl(resource="topic", name="other.internal", principal="User:reader", operation="read"),
            Acl(resource="group", name="orders", principal="User:reader", operation="read"),
        ]
        async with clusters.admin("east") as source, clusters.admin("hub") as target:
            await source.create_acls([reader, every, *others])
            clusters.start(clusters.settings(["east"], "hub"))
            copied = [dataclasses.replace(each, name="east.orders", operation="read") for each in (every, reader)]
            with trio.fail_after(60):
                while await target.describe_acls(AclFilter()) != copied:  # noqa: ASYNC110 - another cluster changes it
                    await trio.sleep(0.5)
            await source.create_acls([dataclasses.replace(reader, principal="User:late")])
            with trio.fail_after(60):
                while len(await target.describe_acls(AclFilter())) < 3:  # noqa: ASYNC110 - as above
                    await trio.sleep(0.5)
            assert {each.operation for each in await target.describe_acls(AclFilter())} == {"read"}

    run_clusters(scenario, **settings)
