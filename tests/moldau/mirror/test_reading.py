"""The reader of a source: truncated logs, lost records, topic ids, and partitions that are held or fail.

Goal: it reads on where no record is left out. Method: scripted brokers in a simulated world, whose logs and topic ids
change between two polls.
"""

import itertools
import random
import uuid
from types import SimpleNamespace

import pytest
import trio

from moldau import Consumer, TopicPartition
from moldau.consumer.core.values import EncodedBatches
from moldau.mirror.core.formats import Position
from moldau.mirror.core.settings import parse_settings
from moldau.mirror.core.topics import SourceTopic
from moldau.mirror.reading import FIRST_RETRY_MS, SourceMemory, SourceReader
from moldau.mirror.statistics import SourceStatistics
from moldau.mirror.syncs import SyncWriter
from moldau.records import decode_records, encode_batch
from moldau.runtime.telemetry.log import EventLogger
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster
from support.mirror.clusters import numbers

T0 = TopicPartition("t", 0)
SETTINGS = (
    'target = "h"\n[clusters.h]\n"bootstrap.servers" = "h:1"\n[clusters.e]\n"bootstrap.servers" = "e:1"\n[sources.e]'
)


class Lab:
    """A reader of the topic ``t`` of scripted brokers."""

    def __init__(self, world, consumer, stored, *, starts_at_end=False, memory=None):
        self.clock = world.node("client").environment.clock
        (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
        self.statistics = SourceStatistics(alias="e")
        self.reader = SourceReader(
            world.node("client").environment,
            consumer,
            stored,
            starts_at_end=starts_at_end,
            memory=memory or SourceMemory(),
            retry_max_ms=4_000,
            statistics=self.statistics,
            syncs=SyncWriter(settings, self.statistics),
            logger=EventLogger("moldau.mirror"),
        )

    async def take(self, count):
        """Polls until ``count`` records have come; each part is acknowledged at once."""
        found = []
        with trio.fail_after(60):
            while len(found) < count:
                for part in await self.reader.poll(500, 1 << 20):
                    for batch in part.batches.batches:
                        records = decode_records(batch.data, 0, batch.header, first_offset=batch.first_offset)
                        found += [bytes(record.value) for record in records]
                    span = self.reader.progress.sent(
                        part.partition,
                        part.generation,
                        (),
                        part.batches.next_offset,
                        topic_id=part.batches.topic_id,
                        leader_epoch=part.batches.leader_epoch,
                    )
                    assert self.reader.progress.acknowledged(span)
                    self.reader.acknowledged(part.partition)
        return found

    @property
    def position(self):
        return self.reader.progress.by_partition[T0].position.offset


def simulate(scenario, stored=None, *, starts_at_end=False, memory=None):
    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.start()
        (part,) = cluster.add_topic("t")
        config = {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "none", "metadata.max.age.ms": 1000}
        async with Consumer(config, environment=world.node("client").environment) as consumer:
            lab = Lab(world, consumer, stored or {}, starts_at_end=starts_at_end, memory=memory)
            lab.want = lambda: lab.reader.want({"t": SourceTopic(topic_id=cluster.ids["t"], partitions=1)})
            lab.want()
            await scenario(cluster, part, lab)

    run_world(main, 1)


def fill(part, first, last):
    for value in numbers(first, last):
        part.append(encode_batch([(1_000, None, value, ())]))


def test_a_truncated_log_is_read_from_where_it_diverged():
    """Unclean election: the target keeps the records that the source lost, and gets those that took their offsets."""

    async def scenario(cluster, part, lab):
        fill(part, 0, 100)
        assert await lab.take(100) == numbers(0, 100)
        part.truncate(50)
        cluster.move("t", 0, 2)
        fill(part, 1000, 1100)
        part.epochs = {0: 50, 1: part.end}
        assert await lab.take(100) == numbers(1000, 1100)
        assert lab.position == 150

    simulate(scenario)


def test_a_stored_position_beyond_the_end_begins_again():
    """Without a leader epoch it is unknown where the logs diverge, so everything is read rather than too little."""

    async def scenario(cluster, part, lab):
        fill(part, 0, 20)
        assert await lab.take(20) == numbers(0, 20)

    simulate(scenario, {T0: Position(90)})


def test_a_stored_position_of_another_topic_does_not_count():
    async def scenario(cluster, part, lab):
        fill(part, 0, 20)
        assert await lab.take(20) == numbers(0, 20)

    simulate(scenario, {T0: Position(10, uuid.UUID(int=77))})


def test_a_stored_position_is_read_on_from():
    async def scenario(cluster, part, lab):
        fill(part, 0, 20)
        assert await lab.take(10) == numbers(10, 20)

    simulate(scenario, {T0: Position(10, uuid.UUID(int=1000))})


def test_a_topic_list_of_a_broker_behind_changes_nothing():
    """The topic was created again, and a list that still has the former one is no third topic."""

    async def scenario(cluster, part, lab):
        former = cluster.ids["t"]
        fill(part, 0, 10)
        assert await lab.take(10) == numbers(0, 10)
        cluster.ids["t"] = uuid.UUID(int=77)
        part.truncate(0)
        fill(part, 100, 105)
        lab.want()
        assert await lab.take(5) == numbers(100, 105)
        lab.reader.want({"t": SourceTopic(topic_id=former, partitions=1)})
        assert await lab.reader.poll(500, 1 << 20) == []
        assert lab.position == 5
        fill(part, 105, 110)
        assert await lab.take(5) == numbers(105, 110)

    simulate(scenario)


def test_an_answer_of_the_former_topic_moves_no_position():
    """A broker that still has the deleted topic answers; the consumer is then behind what that answer held."""

    async def scenario(cluster, part, lab):
        former, consumer = cluster.ids["t"], lab.reader._consumer
        fill(part, 0, 10)
        assert await lab.take(10) == numbers(0, 10)
        cluster.ids["t"] = uuid.UUID(int=77)
        part.truncate(0)
        fill(part, 100, 105)
        lab.want()
        assert await lab.take(5) == numbers(100, 105)

        async def of_the_former(*_, **__):
            await trio.lowlevel.checkpoint()
            consumer.seek(T0, 9)
            ends = {"next_offset": 9, "leader_epoch": 0, "high_watermark": 9, "end_offset": 9}
            return [EncodedBatches(topic="t", partition=0, topic_id=former, batches=[], **ends)]

        poll, consumer.poll_encoded = consumer.poll_encoded, of_the_former
        assert await lab.reader.poll(100, 1 << 20) == []
        consumer.poll_encoded = poll
        fill(part, 105, 110)
        assert await lab.take(5) == numbers(105, 110)

    simulate(scenario)


def test_a_failed_partition_waits_longer_each_time():
    """It is read again from its acknowledged position; the waits are bounded, and an acknowledgement ends them."""

    async def scenario(cluster, part, lab):
        fill(part, 0, 10)
        assert await lab.take(10) == numbers(0, 10)
        fill(part, 10, 15)
        waits = []
        for _ in range(6):
            while not (parts := await lab.reader.poll(500, 1 << 20)):
                pass
            before = lab.clock.monotonic_ms()
            lab.reader.failed(T0, OSError("refused"))
            with trio.fail_after(60):
                while not (parts := await lab.reader.poll(50, 1 << 20)):
                    pass
            assert parts[0].batches.batches[0].first_offset == 10
            waits.append(lab.clock.monotonic_ms() - before)
            lab.reader.back_to(T0)
        assert waits[1] > waits[0]
        assert waits[2] > waits[1]
        assert max(waits) < 4_000 * 1.2 + 700
        assert lab.reader.is_doubtful(T0)
        assert await lab.take(5) == numbers(10, 15)
        assert not lab.reader.is_doubtful(T0)

    simulate(scenario)


def test_a_held_partition_is_not_read():
    async def scenario(cluster, part, lab):
        fill(part, 0, 5)
        assert await lab.take(5) == numbers(0, 5)
        lab.reader.hold(T0)
        fill(part, 5, 10)
        assert await lab.reader.poll(3000, 1 << 20) == []
        lab.reader.release([T0])
        assert await lab.take(5) == numbers(5, 10)

    simulate(scenario)


def test_a_wait_that_ends_reads_no_held_partition():
    """It is held for the bytes on their way, which have no bound else."""

    async def scenario(cluster, part, lab):
        fill(part, 0, 5)
        assert await lab.take(5) == numbers(0, 5)
        lab.reader.failed(T0, OSError("refused"))
        lab.reader.hold(T0)
        fill(part, 5, 10)
        ended = lab.clock.monotonic_ms() + 2 * FIRST_RETRY_MS
        while lab.clock.monotonic_ms() < ended:
            assert await lab.reader.poll(200, 1 << 20) == []
        lab.reader.release([T0])
        assert await lab.take(5) == numbers(5, 10)

    simulate(scenario)


def test_a_position_of_an_earlier_reader_is_stored():
    """Only memory has it: a crash would begin again at the end, and leave records out."""
    position = Position(10, uuid.UUID(int=1000))

    async def scenario(cluster, part, lab):
        fill(part, 0, 20)
        assert await lab.reader.poll(0, 1) == []
        assert lab.reader.progress.take_moved() == {T0: position}
        assert await lab.take(10) == numbers(10, 20)

    memory = SourceMemory(first={T0: position.topic_id}, positions={T0: position})
    simulate(scenario, starts_at_end=True, memory=memory)


def test_a_partition_that_comes_back_keeps_its_place():
    """A topic that the target lacks for a while is not read; it goes on where it was, not from its start."""

    async def scenario(cluster, part, lab):
        fill(part, 0, 10)
        assert await lab.take(10) == numbers(0, 10)
        lab.reader.want({})
        assert await lab.reader.poll(100, 1 << 20) == []
        assert lab.reader.progress.by_partition == {}
        fill(part, 10, 20)
        lab.want()
        assert await lab.take(10) == numbers(10, 20)

    simulate(scenario)


def test_a_partition_without_a_leader_does_not_stop_the_others():
    """Where it begins is not known before it has a leader; that held up all partitions, and ended the source."""

    async def scenario(cluster, part, lab):
        fill(part, 0, 20)
        (other,) = cluster.add_topic("u")
        other.leader = -1
        topics = {name: SourceTopic(topic_id=cluster.ids[name], partitions=1) for name in ("t", "u")}
        lab.reader.want(topics)
        began = trio.current_time()
        assert await lab.take(20) == numbers(0, 20)
        assert trio.current_time() - began < 5
        fill(other, 20, 40)
        other.leader = 1
        assert await lab.take(20) == numbers(20, 40)

    simulate(scenario)


@pytest.mark.parametrize("starts_at_end", [False, True])
@pytest.mark.parametrize("goes", [False, True])
def test_a_partition_begins_where_it_must_whatever_came_before(goes, starts_at_end):
    """Its topic went, and came back, before a leader had named the offset at which the partition begins."""

    async def scenario(cluster, part, lab):
        part.leader = -1
        fill(part, 0, 10)
        for _ in range(3):
            await lab.reader.poll(100, 1 << 20)
        if goes:
            lab.reader.want({})
            await lab.reader.poll(100, 1 << 20)
            lab.want()
            await lab.reader.poll(100, 1 << 20)
        part.leader = 1
        expected = numbers(0, 20)
        if starts_at_end:
            expected = numbers(10, 20)
            with trio.fail_after(60):
                while lab.statistics.partitions[T0].position < 10:
                    await lab.reader.poll(100, 1 << 20)
        fill(part, 10, 20)
        assert await lab.take(len(expected)) == expected

    simulate(scenario, starts_at_end=starts_at_end)


def test_an_acknowledgement_ends_no_wait_after_a_failure():
    """Batches before the refused one are acknowledged after it; the partition was held for their bytes."""

    async def scenario(cluster, part, lab):
        fill(part, 0, 10)
        assert await lab.take(10) == numbers(0, 10)
        lab.reader.hold(T0)
        lab.reader.failed(T0, OSError("refused"))
        lab.reader.release([T0])
        fill(part, 10, 15)
        begun_ms = lab.clock.monotonic_ms()
        assert await lab.take(5) == numbers(10, 15)
        assert lab.clock.monotonic_ms() - begun_ms >= FIRST_RETRY_MS * 0.5

    simulate(scenario)


class Paused:
    """A consumer that keeps which partitions it does not read; a partition that is assigned again is read."""

    def __init__(self):
        self.assigned = {}
        self.paused = set()
        self.place = None

    def assign(self, partitions):
        self.assigned = dict.fromkeys(partitions)
        self.paused &= self.assigned.keys()

    def seek(self, partition, offset, *, leader_epoch=-1):
        assert partition in self.assigned
        self.place = offset

    def seek_to_beginning(self, partition):
        assert partition in self.assigned
        self.place = "start"

    def pause(self, partition):
        self.paused.add(partition)

    def resume(self, partition):
        self.paused.discard(partition)


EVENTS = ("hold", "release", "fail", "wait", "return")


def check_history(history):
    """Compares the pauses of a partition with a model of two flags; a new beginning concerns consumer and syncs."""
    forgotten = []
    at_ms, ids, topic = [0.0], itertools.count(8), {"t": SourceTopic(topic_id=uuid.UUID(int=7), partitions=1)}
    clock = SimpleNamespace(monotonic_ms=lambda: at_ms[0])
    consumer = Paused()
    reader = SourceReader(
        SimpleNamespace(clock=clock, random=random.Random(1)),
        consumer,
        {T0: Position(3, uuid.UUID(int=7))},
        starts_at_end=False,
        memory=SourceMemory(),
        retry_max_ms=4_000,
        statistics=SourceStatistics(alias="e"),
        syncs=SimpleNamespace(forget=forgotten.append),
        logger=SimpleNamespace(warning=lambda *_, **__: None),
    )
    reader.want(topic)
    reader._assign()
    is_held = is_waiting = False
    generation, place = None, 3
    for event in history:
        if reader.progress.generation(T0) != generation:
            generation = reader.progress.generation(T0)
            assert (consumer.place, forgotten[-1:]) == (place, [T0]), history
            forgotten.clear()
        match event:
            case "hold":
                reader.hold(T0)
                is_held = True
            case "release":
                reader.release([T0])
                is_held = False
            case "fail":
                reader.failed(T0, OSError("refused"))
                is_waiting = True
            case "wait":
                at_ms[0] += 10_000
                reader._resume_due()
                is_waiting = False
            case "acknowledge":
                reader.acknowledged(T0)
            case "recreate":
                reader._recreated(T0, uuid.UUID(int=next(ids)))
                place = "start"
            case "return":
                for wanted in ({}, topic):
                    reader.want(wanted)
                    reader._assign()
                is_held = is_waiting = False
        assert (T0 in consumer.paused) == (is_held or is_waiting), history


def test_a_partition_is_read_unless_it_is_held_or_waits():
    """In all histories of four events, and in those of two with others that change nothing between them."""
    for history in itertools.product(EVENTS, repeat=4):
        check_history(history)
    for first, other, last in itertools.product(EVENTS, ("acknowledge", "recreate"), EVENTS):
        check_history((first, other, last))


def test_a_reader_begins_with_numbers_of_its_own():
    """After a restart of the source, a deleted topic kept its lag, and a copied partition its failures in a row."""

    async def scenario(cluster, part, lab):
        gone = TopicPartition("gone", 0)
        lab.statistics.state(gone).position, lab.statistics.state(gone).end_offset = 3, 1_000
        lab.statistics.state(T0).failures = 4
        fill(part, 0, 10)
        assert await lab.take(10) == numbers(0, 10)
        assert lab.statistics.partitions.keys() == {T0}
        assert lab.statistics.state(T0).failures == 0
        assert lab.statistics.lag == 0

    simulate(scenario)


def test_damaged_partitions_do_not_stop_the_others():
    """Each was fetched again at once, and each of its errors ended a poll: with some tens nothing else was read."""

    async def scenario(cluster, part, lab):
        damaged = cluster.add_topic("u", 40)
        for each in damaged:
            fill(each, 20, 21)
        whole = damaged[0].batches[0]
        for each in damaged:
            each.batches[0] = whole[:-1] + b"!"
        topics = {name: SourceTopic(topic_id=cluster.ids[name], partitions=len(cluster.topics[name])) for name in "tu"}
        lab.reader.want(topics)
        fill(part, 0, 20)
        assert await lab.take(20) == numbers(0, 20)
        failures = lab.statistics.failures
        assert lab.statistics.state(TopicPartition("u", 7)).failures
        assert await lab.reader.poll(500, 1 << 20) == []
        assert lab.statistics.failures <= failures + 1, "they wait"
        for each in damaged:
            each.batches[0] = whole
        assert await lab.take(40) == numbers(20, 21) * 40

    simulate(scenario)
