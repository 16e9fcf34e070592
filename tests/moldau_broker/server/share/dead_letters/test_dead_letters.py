"""Goal: a record that a share group gives up is in the group's dead letter queue before it is forgotten.

Method: brokers on virtual time, the durable state in memory, and members that reject, release and let locks expire.
"""

from __future__ import annotations

import random

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.records import decode_records, iterate_batches
from moldau_broker.server.share.core.values import RecordState
from moldau_broker.server.share.dead_letters import writer as writer_module
from moldau_broker.server.share.dead_letters.queue import ALLOWED
from moldau_broker.server.share.dead_letters.writer import GIVE_UP_MS
from support.cluster.broker_cluster import batch, run_cluster
from support.share.member import Member, acquired, codes, outcomes
from support.share.memory_persister import MemoryPersister

OK = ErrorCode.NONE
ACCEPT, RELEASE, REJECT = (1,), (2,), (3,)
QUEUE = "errors.deadletterqueue.topic.name"
COPY = "errors.deadletterqueue.copy.record.enable"
SHORT_MS = 5_000.0
"""In place of ``GIVE_UP_MS``, where a test runs through all of it."""


async def configure(cluster, kind, name, settings):
    configs = [AlterableConfig(name=key, config_operation=0, value=value) for key, value in settings.items()]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = await cluster.client(1).request(IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == OK, answer
    want = settings.items()
    await cluster.until(
        lambda: all(want <= b.metadata.image.config(kind, name).items() for b in cluster.running.values())
    )


def run(scenario, *, brokers=1, partitions=1, group=None, queue_partitions=2, **settings):
    """Runs a scenario with a topic ``t``, its queue ``dlq.t`` and a group ``g``, whose state is in memory."""

    async def prepared(cluster):
        cluster.memory = MemoryPersister()
        await cluster.client(1).create_topic("t", partitions=partitions, replicas=brokers)
        if queue_partitions:
            configs = {ALLOWED: "true", "min.insync.replicas": str(min(2, brokers))}
            await cluster.client(1).create_topic("dlq.t", partitions=queue_partitions, replicas=brokers)
            await configure(cluster, 2, "dlq.t", configs)
        given = {"share.auto.offset.reset": "earliest", QUEUE: "dlq.t", "share.delivery.count.limit": "2"}
        await configure(cluster, 32, "g", given | (group or {}))
        for broker in cluster.running.values():
            broker.context.share_partitions.persister = cluster.memory
        await cluster.leader("t")
        await scenario(cluster)

    return run_cluster(prepared, brokers=brokers, **settings)


async def letters_in(cluster, partition=0, topic="dlq.t"):
    """Returns value, record, delivery count and cause of each dead letter."""
    leader = await cluster.leader(topic, partition)
    fetched = await cluster.client(leader).fetch(topic, partition=partition)
    found = []
    for position, header in iterate_batches(fetched.records or b""):
        for record in decode_records(fetched.records, position, header):
            facts = {name.removeprefix("__dlq.errors."): value.decode() for name, value in record.headers}
            place = (facts["topic"], int(facts["partition"]), int(facts["offset"]))
            found.append((record.value, place, int(facts["delivery.count"]), facts["message"].split()[1]))
    return found


def states(cluster):
    (records,) = cluster.memory.records.values()
    return {offset: state for offset, (state, _) in records.items()}


@pytest.mark.parametrize("copies", ["false", "true"])
def test_rejected_records_go_to_the_queue(copies):
    """In order, with or without a copy; accepted ones do not, and the group goes on behind them."""

    async def scenario(cluster):
        member = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", batch(b"0", b"1"), batch(b"2", b"3"), partition=0)
        await member.fetch(0, max_wait_ms=1000)
        assert codes(await member.acknowledge({0: [(0, 3, (3, 1, 3, 3))]})) == {0: OK}
        await cluster.until(lambda: cluster.memory.start_offsets and set(cluster.memory.start_offsets.values()) == {4})
        values = [b"0", b"2", b"3"] if copies == "true" else [None] * 3
        assert await letters_in(cluster) == [
            (value, ("t", 0, offset), 1, "rejected") for value, offset in zip(values, (0, 2, 3), strict=True)
        ]
        assert cluster.running[1].context.share_partitions.dead_letters.counts.written == 3

    run(scenario, group={COPY: copies})


def test_records_that_are_delivered_too_often_go_there():
    """By releases as by locks that expire, and to the partition of the queue with the same number."""

    async def scenario(cluster):
        a, b = Member(cluster, 1, "a"), Member(cluster, 1, "b")
        await cluster.client(1).produce("t", batch(b"0"), batch(b"1"), partition=1)
        await a.fetch(1, max_wait_ms=1000)
        await trio.sleep(20)  # the lock of the first delivery
        assert acquired(await b.fetch(1, max_wait_ms=1000, max_records=1)) == {1: [(0, 0, 2)]}
        assert codes(await b.acknowledge({1: [(0, 0, RELEASE)]})) == {1: OK}
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {1})
        assert acquired(await b.fetch(1, max_wait_ms=20_000)) == {1: [(1, 1, 2)]}
        await trio.sleep(20)
        assert await letters_in(cluster) == []
        assert [letter[1:] for letter in await letters_in(cluster, 1)] == [
            (("t", 1, offset), 2, "delivery") for offset in (0, 1)
        ]
        assert set(cluster.memory.start_offsets.values()) == {2}

    run(scenario, partitions=2, group={"share.record.lock.duration.ms": "15000"})


def test_dead_letters_fit_the_segments_of_the_queue():
    """A batch that is larger than ``segment.bytes`` is refused for good, and all its dead letters with it."""

    async def scenario(cluster):
        await configure(cluster, 2, "dlq.t", {"segment.bytes": "2000"})
        member = Member(cluster, 1, "a")
        values = [b"%d" % number * 700 for number in range(3)]
        await cluster.client(1).produce("t", batch(*values), partition=0)
        await member.fetch(0, max_wait_ms=1000)
        assert codes(await member.acknowledge({0: [(0, 2, REJECT)]})) == {0: OK}
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {3})
        counts = cluster.running[1].context.share_partitions.dead_letters.counts
        assert (counts.written, counts.given_up) == (3, 0)
        assert [letter[0] for letter in await letters_in(cluster)] == values[:2], "one fetch reads one segment"

    run(scenario, group={COPY: "true"})


def test_a_copy_that_grows_in_the_codec_of_the_queue_is_left_out():
    """The dead letters of the other records keep their copies."""

    async def scenario(cluster):
        await configure(cluster, 2, "dlq.t", {"compression.type": "gzip", "max.message.bytes": "1200"})
        member = Member(cluster, 1, "a")
        large = random.Random(1).randbytes(960)
        await cluster.client(1).produce("t", batch(b"0", large, b"2"))
        await member.fetch(0, max_wait_ms=1000)
        assert codes(await member.acknowledge({0: [(0, 2, REJECT)]})) == {0: OK}
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {3})
        assert [letter[0] for letter in await letters_in(cluster)] == [b"0", None, b"2"]

    run(scenario, group={COPY: "true"})


def test_a_new_leader_copies_what_it_does_not_know_as_committed():
    """Its high watermark lags for a moment, but members have had the record."""

    async def scenario(cluster):
        member = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", batch(b"0"), batch(b"1"))
        await member.fetch(0, max_wait_ms=1000)
        shares = cluster.running[1].context.share_partitions
        replica = shares.find("g", (member.topic_id, 0)).partition.replica
        write = shares.dead_letters.write

        async def write_as_new_leader(*given):
            replica.high_watermark = 1
            return await write(*given)

        shares.dead_letters.write = write_as_new_leader
        assert codes(await member.acknowledge({0: [(0, 1, REJECT)]})) == {0: OK}
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {2})
        assert [letter[0] for letter in await letters_in(cluster)] == [b"0", b"1"]

    run(scenario, group={COPY: "true"})


@pytest.mark.parametrize("end", ["lock", "session"])
@pytest.mark.parametrize("queue", ["dlq.t", ""])
def test_a_record_is_given_up_by_the_present_settings(end, queue):
    """Not by those of the last fetch: the queue may have been set, or taken away, while the member had the record."""

    async def scenario(cluster):
        member = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", batch(b"0"), partition=0)
        await member.fetch(0, max_wait_ms=1000)
        assert codes(await member.acknowledge({0: [(0, 0, RELEASE)]})) == {0: OK}
        assert acquired(await member.fetch(0, max_wait_ms=1000)) == {0: [(0, 0, 2)]}
        await configure(cluster, 32, "g", {QUEUE: queue})
        if end == "session":
            member.client.close()
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {1})
        assert len(await letters_in(cluster)) == (1 if queue else 0)
        assert not cluster.running[1].context.share_partitions.dead_letters.counts.given_up

    run(scenario, group={QUEUE: "" if queue else "dlq.t"})


def test_a_record_waits_for_its_dead_letter():
    """While the queue cannot be written the record is archiving; the records behind it are delivered meanwhile."""

    async def scenario(cluster):
        leader = await cluster.leader("t")
        other = next(each for each in cluster.broker_ids if each != leader)
        member = Member(cluster, leader, "a")
        await cluster.client(leader).produce("t", batch(b"0"), batch(b"1"))
        cluster.kill(other)
        await cluster.until(lambda: len(cluster.partition_image("dlq.t").isr) == 1)
        await member.fetch(0, max_wait_ms=1000, max_records=1)
        assert codes(await member.acknowledge({0: [(0, 0, REJECT)]})) == {0: OK}, "it does not wait for the queue"
        await trio.sleep(20)
        assert states(cluster)[0] is RecordState.ARCHIVING
        assert acquired(await member.fetch(0, max_wait_ms=1000)) == {0: [(1, 1, 1)]}
        cluster.start_broker(other)
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {1})
        assert [letter[1] for letter in await letters_in(cluster)] == [("t", 0, 0)]

    run(scenario, brokers=2)


def test_the_next_leader_writes_what_is_left():
    """A leader that dies before the dead letter is written loses nothing."""

    async def scenario(cluster):
        leader = await cluster.leader("t")
        member = Member(cluster, leader, "a")
        await cluster.client(leader).produce("t", batch(b"0", b"1"))
        await member.fetch(0, max_wait_ms=1000)
        writer = cluster.running[leader].context.share_partitions.dead_letters
        writer.write = never
        assert codes(await member.acknowledge({0: [(0, 0, REJECT)]})) == {0: OK}
        await trio.sleep(5)
        assert states(cluster)[0] is RecordState.ARCHIVING
        cluster.kill(leader)
        following = await cluster.leader("t", other_than=leader)
        other = Member(cluster, following, "b")
        assert acquired(await other.fetch(0, max_wait_ms=20_000)) == {0: [(1, 1, 1)]}
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {1})
        assert [letter[1:] for letter in await letters_in(cluster)] == [(("t", 0, 0), 1, "rejected")]

    run(scenario, brokers=3)


def test_the_next_leader_writes_of_records_that_are_gone():
    """Retention may have deleted them meanwhile; the dead letter still says which they were."""

    async def scenario(cluster):
        leader = await cluster.leader("t")
        member = Member(cluster, leader, "a")
        await cluster.client(leader).produce("t", batch(b"0", b"1"), batch(b"2"))
        await member.fetch(0, max_wait_ms=1000)
        cluster.running[leader].context.share_partitions.dead_letters.write = never
        assert codes(await member.acknowledge({0: [(0, 2, (3, 3, 1))]})) == {0: OK}
        cluster.kill(leader)
        following = await cluster.leader("t", other_than=leader)
        await delete_records(cluster, following, 2)
        other = Member(cluster, following, "b")
        assert acquired(await other.fetch(0, max_wait_ms=1000)) == {}
        await cluster.until(lambda: cluster.running[following].context.share_partitions.dead_letters.counts.written)
        assert [letter[1] for letter in await letters_in(cluster)] == [("t", 0, 0), ("t", 0, 1)]
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {3})

    run(scenario, brokers=3)


async def delete_records(cluster, leader, offset):
    part = DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsTopic(name="t", partitions=[part])
    answer = await cluster.client(leader).request(DeleteRecordsRequest(topics=[topic], timeout_ms=5000))
    assert answer.topics[0].partitions[0].error_code == OK, answer


async def never(*_):
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("group", "queue_partitions"),
    [({QUEUE: "orders"}, 2), ({QUEUE: "dlq.other"}, 2), ({}, 0)],
    ids=["a name without the prefix", "another topic, which does not exist", "no topic"],
)
def test_a_queue_that_must_not_be_written_is_no_obstacle(group, queue_partitions, caplog):
    """The record is archived all the same, as in Kafka, and the log says which and why."""

    async def scenario(cluster):
        member = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", batch(b"0"))
        await member.fetch(0, max_wait_ms=1000)
        assert codes(await member.acknowledge({0: [(0, 0, REJECT)]})) == {0: OK}
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {1})
        assert cluster.running[1].context.share_partitions.dead_letters.counts.given_up == 1

    run(scenario, group=group, queue_partitions=queue_partitions)
    (line,) = [each.getMessage() for each in caplog.records if "dead-letters-given-up" in each.getMessage()]
    assert "group=g" in line
    assert "partition=t-0" in line


@pytest.mark.parametrize("copies", ["false", "true"])
def test_a_compacted_queue_gets_a_key_with_each_dead_letter(copies):
    """Such a topic takes no record without a key: one of them cost all dead letters of its range."""

    async def scenario(cluster):
        member = Member(cluster, 1, "a")
        await configure(cluster, 2, "dlq.t", {"cleanup.policy": "compact"})
        await cluster.client(1).produce("t", batch(b"0", b"1"))
        await member.fetch(0, max_wait_ms=1000)
        assert codes(await member.acknowledge({0: [(0, 1, REJECT)]})) == {0: OK}
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {2})
        assert cluster.running[1].context.share_partitions.dead_letters.counts.given_up == 0
        assert [place for _, place, *_ in await letters_in(cluster)] == [("t", 0, 0), ("t", 0, 1)]

    run(scenario, group={COPY: copies})


def test_other_tasks_run_between_dead_letters_that_are_given_up():
    """A group may have thousands in flight, and those that are given up at once wait for nothing."""

    async def scenario(cluster):
        member = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", batch(*[b"v"] * 40))
        await member.fetch(0, max_wait_ms=1000)
        writer, begun, turns = cluster.running[1].context.share_partitions.dead_letters, trio.Event(), []
        write = writer.write

        async def watched(*given):
            begun.set()
            turns.append("dead letter")
            return await write(*given)

        async def other():
            await begun.wait()
            turns.append("other")

        writer.write = watched
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            assert codes(await member.acknowledge({0: [(0, 39, (1, 3) * 20)]})) == {0: OK}
            await cluster.until(lambda: writer.counts.given_up == 20)
        assert turns[:-1].count("other") == 1

    run(scenario, group={QUEUE: "orders"})


def test_brokers_create_the_queue_if_they_may():
    """With Kafka's settings for such a topic: groups may use it, and times are those of the dead letters."""

    async def scenario(cluster):
        member = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", batch(b"0"))
        await member.fetch(0, max_wait_ms=1000)
        assert codes(await member.acknowledge({0: [(0, 0, REJECT)]})) == {0: OK}
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {1})
        assert [letter[1] for letter in await letters_in(cluster)] == [("t", 0, 0)]
        configs = cluster.image().topic_config("dlq.t")
        assert configs == {ALLOWED: "true", "message.timestamp.type": "CreateTime"}

    run(scenario, queue_partitions=0, errors_deadletterqueue_auto_create_topics_enable="true")


def test_dead_letters_are_given_up_in_the_end():
    """A queue that cannot be written for minutes does not hold up its group for ever."""

    async def scenario(cluster):
        leader = await cluster.leader("t")
        other = next(each for each in cluster.broker_ids if each != leader)
        member = Member(cluster, leader, "a")
        await cluster.client(leader).produce("t", batch(b"0"))
        cluster.kill(other)
        await cluster.until(lambda: len(cluster.partition_image("dlq.t").isr) == 1)
        await member.fetch(0, max_wait_ms=1000)
        assert codes(await member.acknowledge({0: [(0, 0, REJECT)]})) == {0: OK}
        await trio.sleep(0.9 * GIVE_UP_MS / 1000)
        assert states(cluster)[0] is RecordState.ARCHIVING
        await trio.sleep(0.2 * GIVE_UP_MS / 1000)
        assert set(cluster.memory.start_offsets.values()) == {1}

    run(scenario, brokers=2)


def test_dead_letters_go_on_when_a_group_has_members_again():
    """Its state is read again then, and says which are left."""

    async def scenario(cluster):
        a, b = Member(cluster, 1, "a"), Member(cluster, 1, "b")
        await cluster.client(1).produce("t", batch(b"0", b"1"))
        await a.fetch(0, max_wait_ms=1000)
        writer = cluster.running[1].context.share_partitions.dead_letters
        write, writer.write = writer.write, never
        assert codes(await a.acknowledge({0: [(0, 1, (3, 1))]}, share_session_epoch=-1)) == {0: OK}
        (key,) = cluster.memory.start_offsets
        assert states(cluster) == {0: RecordState.ARCHIVING, 1: RecordState.ACKNOWLEDGED}
        writer.write = write
        assert acquired(await b.fetch(0)) == {}, "nothing was altered"
        await cluster.until(lambda: cluster.memory.start_offsets[key] == 2)
        assert [letter[1] for letter in await letters_in(cluster)] == [("t", 0, 0)]

    run(scenario)


def test_offsets_can_be_altered_beside_dead_letters():
    """A group has no members then, as in F310; only a read of the state shows what was altered."""

    async def scenario(cluster):
        a, b = Member(cluster, 1, "a"), Member(cluster, 1, "b")
        await cluster.client(1).produce("t", batch(b"0", b"1"))
        await a.fetch(0, max_wait_ms=1000)
        cluster.running[1].context.share_partitions.dead_letters.write = never
        assert codes(await a.acknowledge({0: [(0, 1, (3, 1))]}, share_session_epoch=-1)) == {0: OK}
        (key,) = cluster.memory.start_offsets
        cluster.memory.state_epochs[key], cluster.memory.start_offsets[key] = 1, 0
        cluster.memory.records[key] = {}
        assert acquired(await b.fetch(0, max_wait_ms=1000)) == {0: [(0, 1, 1)]}
        assert codes(await b.acknowledge({0: [(0, 1, ACCEPT)]})) == {0: OK}

    run(scenario)


def test_a_group_that_is_deleted_beside_dead_letters_ends():
    """A share coordinator without the state refuses the write for good, and no member comes to read the state."""

    async def scenario(cluster):
        member = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", batch(b"0"))
        await member.fetch(0, max_wait_ms=1000)
        shares = cluster.running[1].context.share_partitions
        deleted, write = trio.Event(), shares.dead_letters.write

        async def later(*given):
            await deleted.wait()
            return await write(*given)

        shares.dead_letters.write = later
        answer = await member.acknowledge({0: [(0, 0, REJECT)]}, share_session_epoch=-1)
        assert codes(answer) == {0: OK}
        cluster.memory.refusals = [ErrorCode.INVALID_REQUEST]
        deleted.set()
        await cluster.until(lambda: not cluster.memory.refusals)
        assert shares.find("g", (member.topic_id, 0)) is None

    run(scenario)


def test_many_dead_letters_are_given_up_in_the_same_time():
    """Ranges with accepted records between them; one time for each in turn would hold up the group for days."""

    async def scenario(cluster):
        leader = await cluster.leader("t")
        other = next(each for each in cluster.broker_ids if each != leader)
        member = Member(cluster, leader, "a")
        await cluster.client(leader).produce("t", batch(*[b"v"] * 20))
        cluster.kill(other)
        await cluster.until(lambda: len(cluster.partition_image("dlq.t").isr) == 1)
        await member.fetch(0, max_wait_ms=1000)
        assert codes(await member.acknowledge({0: [(0, 19, (1, 3) * 10)]})) == {0: OK}
        await trio.sleep(0.9 * GIVE_UP_MS / 1000)
        assert states(cluster)[1] is RecordState.ARCHIVING
        await trio.sleep(0.2 * GIVE_UP_MS / 1000)
        assert set(cluster.memory.start_offsets.values()) == {20}
        assert cluster.running[leader].context.share_partitions.dead_letters.counts.given_up == 10

    run(scenario, brokers=2, log_retention_ms="-1")


def test_later_dead_letters_have_their_own_time():
    """Those of a record that is rejected minutes after another are tried for as long."""

    async def scenario(cluster):
        leader = await cluster.leader("t")
        other = next(each for each in cluster.broker_ids if each != leader)
        member = Member(cluster, leader, "a")
        await cluster.client(leader).produce("t", batch(b"0"), batch(b"1"))
        cluster.kill(other)
        await cluster.until(lambda: len(cluster.partition_image("dlq.t").isr) == 1)
        for offset in range(2):
            await member.fetch(0, max_wait_ms=1000, max_records=1)
            assert codes(await member.acknowledge({0: [(offset, offset, REJECT)]})) == {0: OK}
            await trio.sleep(0.9 * GIVE_UP_MS / 1000)
        assert set(cluster.memory.start_offsets.values()) == {1}
        cluster.start_broker(other)
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {2})
        assert [letter[1] for letter in await letters_in(cluster)] == [("t", 0, 1)]

    run(scenario, brokers=2, log_retention_ms="-1")


def test_dead_letters_that_waited_for_others_are_tried_again(monkeypatch):
    """A queue that was written a moment ago works: one failure is no reason to give up those that came long before."""

    async def scenario(cluster):
        member = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", batch(b"0", b"1", b"2"))
        await member.fetch(0, max_wait_ms=1000)
        writer = cluster.running[1].context.share_partitions.dead_letters
        writer._peers = peers = SlowThenBroken(writer._peers)
        assert codes(await member.acknowledge({0: [(0, 2, (3, 1, 3))]})) == {0: OK}
        await cluster.until(lambda: set(cluster.memory.start_offsets.values()) == {3}, timeout_ms=3 * SHORT_MS)
        assert peers.asked > 2, "the write of the second one was tried again"
        assert [letter[1] for letter in await letters_in(cluster)] == [("t", 0, 0), ("t", 0, 2)]
        assert (writer.counts.written, writer.counts.given_up) == (2, 0)

    monkeypatch.setattr(writer_module, "GIVE_UP_MS", SHORT_MS)
    run(scenario)


class SlowThenBroken:
    """Peers of which the first answer comes after the time to give up, and the second one not at all."""

    def __init__(self, peers):
        self.peers, self.asked = peers, 0

    async def request(self, *asked):
        self.asked += 1
        if self.asked == 1:
            await trio.sleep(1.1 * SHORT_MS / 1000)
        if self.asked == 2:
            raise ConnectionResetError
        return await self.peers.request(*asked)


def test_a_group_without_a_queue_has_no_dead_letters():
    """Nor has any group while the cluster is at a level of its features that older brokers support."""

    async def scenario(cluster):
        client = cluster.client(1)
        await configure(cluster, 32, "h", {"share.auto.offset.reset": "earliest"})
        await client.produce("t", batch(b"0", b"1"))
        member = Member(cluster, 1, "a", group="h")
        await member.fetch(0, max_wait_ms=1000)
        assert codes(await member.acknowledge({0: [(0, 1, REJECT)]})) == {0: OK}
        update = FeatureUpdateKey(feature="share.version", max_version_level=1, upgrade_type=3)
        answer = await client.request(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=5000))
        assert answer.error_code == OK
        await cluster.until(lambda: cluster.image().features["share.version"] == 1)
        member = Member(cluster, 1, "b")
        assert outcomes(await member.fetch(0, max_wait_ms=1000)) == {0: (OK, OK)}
        assert codes(await member.acknowledge({0: [(0, 1, REJECT)]})) == {0: OK}
        await trio.sleep(5)
        assert await letters_in(cluster) == []

    run(scenario)
