"""The consumer against a small cluster on virtual time: positions, resets, long polls, isolation, faults."""

import itertools
import struct
from contextlib import asynccontextmanager

import pytest
import trio

from client_fake_cluster import FakeCluster
from moldau import Consumer, KafkaError, TopicPartition
from moldau.consumer import LogTruncatedError, OffsetOutOfRangeError
from moldau.consumer.values import duration_ms
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.records import encode_batch, encode_end_txn_marker
from moldau.runtime.config import ConfigError
from moldau_jepsen.simulation.world import run_world

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def simulate(scenario, seed=1, brokers=2):
    """Runs ``scenario(cluster, open_consumer)`` in a simulated world."""

    async def main(world):
        cluster = FakeCluster(world, brokers)
        cluster.start()
        environment = world.node("client").environment

        def consumer(callbacks=None, **config):
            given = {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest"}
            given |= {key.replace("_", "."): value for key, value in config.items()}
            return Consumer(given, environment=environment, **(callbacks or {}))

        return await scenario(cluster, consumer)

    return run_world(main, seed)


def fill(part, start, end, *, size=10, **options):
    """Appends the records ``start`` .. ``end`` in batches of ``size``; timestamp and value are the number."""
    for first in range(start, end, size):
        numbers = range(first, min(first + size, end))
        part.append(encode_batch([(number, None, b"%d" % number, ()) for number in numbers], **options))


async def take(consumer, count):
    """Polls until ``count`` values have come, in the order in which they came."""
    values = []
    with trio.fail_after(60):
        while len(values) < count:
            for batch in await consumer.poll(500):
                values += [record.value for record in batch.records]
    return values


def numbers(start, end):
    return [b"%d" % number for number in range(start, end)]


def test_assigned_partitions_are_read_in_order():
    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 2)
        fill(parts[0], 0, 1000)
        fill(parts[1], 1000, 1500)
        async with open_consumer(max_poll_records=70) as consumer:
            consumer.assign([T0, T1])
            seen = {T0: [], T1: []}
            while sum(map(len, seen.values())) < 1500:
                batches = await consumer.poll()
                assert sum(len(batch.records) for batch in batches) <= 70
                for batch in batches:
                    seen[batch.topic_partition] += [record.value for record in batch.records]
                    assert batch.next_offset == batch.records[-1].offset + 1
                    assert consumer.position_nowait(batch.topic_partition) == batch.next_offset
            assert seen == {T0: numbers(0, 1000), T1: numbers(1000, 1500)}
            assert consumer.lag(T0).records == 0
            assert await consumer.poll(10) == []

    simulate(scenario)


def test_a_long_poll_ends_when_a_record_arrives():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        async with open_consumer(fetch_max_wait_ms=10_000) as consumer:
            consumer.assign([T0])
            assert await consumer.poll(100) == []
            started = trio.current_time()

            async def write() -> None:
                await trio.sleep(3)
                fill(part, 0, 1)
                cluster.appended.notify()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                (batch,) = await consumer.poll(9_000)
            assert batch.records[0].value == b"0"
            assert trio.current_time() - started == pytest.approx(3, abs=0.1)
            fetches = [key for _, key, _ in cluster.requests if key == ApiKey.FETCH]
            assert len(fetches) <= 3, "waiting costs no requests"

    simulate(scenario)


def test_seek_rewind_and_replay():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 100)
        async with open_consumer(max_poll_records=10) as consumer:
            consumer.assign([T0])
            assert await take(consumer, 30) == numbers(0, 30)
            consumer.seek(T0, 95)
            assert await take(consumer, 5) == numbers(95, 100)
            consumer.seek_to_beginning()
            assert await take(consumer, 10) == numbers(0, 10)
            consumer.seek(T0, 53)
            assert await take(consumer, 10) == numbers(53, 63)
            consumer.seek_to_end(T0)
            assert await consumer.position(T0) == 100
            assert await consumer.poll(50) == []
            with pytest.raises(LookupError, match="t-1 is not assigned"):
                consumer.seek(T1, 0)
            with pytest.raises(ValueError, match="negative"):
                consumer.seek(T0, -1)

    simulate(scenario)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", 0), ("latest", 50), ("by_duration:PT0.02S", 30)])
def test_reset_policies(policy, expected):
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        wall = cluster.world.node("client").environment.clock.wall_ms()
        part.append(encode_batch([(wall - 50 + i, None, b"%d" % i, ()) for i in range(50)]))
        async with open_consumer(auto_offset_reset=policy) as consumer:
            consumer.assign([T0])
            assert await consumer.position(T0) == pytest.approx(expected, abs=3 if "duration" in policy else 0)

    simulate(scenario)


def test_without_a_reset_policy_the_application_decides():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        async with open_consumer(auto_offset_reset="none") as consumer:
            consumer.assign([T0])
            with pytest.raises(OffsetOutOfRangeError, match="no committed offset"):
                await consumer.poll()
            consumer.seek(T0, 500)
            with pytest.raises(OffsetOutOfRangeError, match="no offset 500"):
                await consumer.poll()
            consumer.seek(T0, 8)
            assert await take(consumer, 2) == numbers(8, 10)

    simulate(scenario)


def test_a_position_below_the_log_start_is_reset():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 100)
        part.start = 40
        async with open_consumer() as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 5)
            assert (await take(consumer, 60))[0] == b"40"

    simulate(scenario)


def test_pause_and_resume():
    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 2)
        fill(parts[0], 0, 50)
        fill(parts[1], 50, 100)
        async with open_consumer() as consumer:
            consumer.assign([T0, T1])
            consumer.pause(T0)
            assert consumer.paused == [T0]
            assert await take(consumer, 50) == numbers(50, 100)
            assert await consumer.poll(100) == []
            consumer.resume(T0)
            assert await take(consumer, 50) == numbers(0, 50)

    simulate(scenario)


def test_read_committed_hides_aborted_records_and_markers():
    """Two producers interleave; one aborts. Markers are never seen, at either level."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")

        def write(producer, sequence, *values):
            part.append(
                encode_batch(
                    [(0, None, value, ()) for value in values],
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=sequence,
                    is_transactional=True,
                )
            )

        def end(producer, commit):
            marker = encode_end_txn_marker(
                commit=commit, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=0
            )
            part.append(bytes(marker))

        write(1, 0, b"a1", b"a2")
        write(2, 0, b"b1")
        write(1, 2, b"a3")
        end(1, commit=False)
        end(2, commit=True)
        write(1, 3, b"a4")
        end(1, commit=True)
        part.aborted = [(1, 0)]
        async with open_consumer(isolation_level="read_committed") as consumer:
            consumer.assign([T0])
            assert await take(consumer, 2) == [b"b1", b"a4"]
            assert await consumer.poll(100) == []
            assert consumer.position_nowait(T0) == part.end, "the position goes past what is hidden"
        async with open_consumer() as consumer:
            consumer.assign([T0])
            assert await take(consumer, 5) == [b"a1", b"a2", b"b1", b"a3", b"a4"]
            consumer.seek(T0, 1)
            assert (await take(consumer, 4))[0] == b"a2"

    simulate(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_faults_neither_lose_nor_double(seed):
    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 2)
        drawn = cluster.world.random("faults")
        async with open_consumer(max_poll_records=25) as consumer, trio.open_nursery() as nursery:
            consumer.assign([T0, T1])

            async def write() -> None:
                for number in range(0, 400, 5):
                    fill(parts[number // 5 % 2], number, number + 5)
                    cluster.appended.notify()
                    await trio.sleep(drawn.random() * 0.1)

            async def harm() -> None:
                while True:
                    await trio.sleep(drawn.random() * 0.5)
                    cluster.errors.clear()
                    match drawn.randrange(4):
                        case 0:
                            cluster.lost_answers[ApiKey.FETCH] = 1
                        case 1:
                            cluster.fail_next(
                                ApiKey.FETCH,
                                drawn.choice([ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_NOT_AVAILABLE]),
                            )
                        case 2:
                            cluster.move("t", drawn.randrange(2), 1 + drawn.randrange(2))
                        case 3:
                            cluster.lost_answers[ApiKey.OFFSET_FOR_LEADER_EPOCH] = 1

            nursery.start_soon(write)
            nursery.start_soon(harm)
            seen = []
            with trio.fail_after(600):
                while len(seen) < 400:
                    for batch in await consumer.poll(1000):
                        seen += [(batch.partition, record.value) for record in batch.records]
            nursery.cancel_scope.cancel()
        for number in (0, 1):
            assert [value for partition, value in seen if partition == number] == parts[number].values()

    simulate(scenario, seed)


def test_a_truncated_log_is_noticed_after_a_leader_change():
    """Unclean election: the new leader lacks records that were read. With a reset policy reading goes on at the cut."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")

        def lose() -> None:
            part.truncate(50)
            cluster.move("t", 0, 2)
            fill(part, 1000, 1100)
            part.epochs = {0: 50, 1: part.end}

        fill(part, 0, 100)
        async with open_consumer() as consumer:
            consumer.assign([T0])
            assert await take(consumer, 100) == numbers(0, 100)
            lose()
            assert await take(consumer, 100) == numbers(1000, 1100), "read from the point of divergence"
        part.batches.clear()
        part.end = part.epoch = 0
        part.leader = 1
        fill(part, 0, 100)
        async with open_consumer(auto_offset_reset="none") as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 0)
            assert await take(consumer, 100) == numbers(0, 100)
            lose()
            with pytest.raises(LogTruncatedError) as caught:
                await take(consumer, 1)
            assert (caught.value.offset, caught.value.diverging_offset) == (100, 50)

    simulate(scenario)


def test_corrupt_batches_are_told_and_not_skipped():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 20)
        good = part.batches[1]
        part.batches[1] = good[:-1] + bytes([good[-1] ^ 1])
        async with open_consumer() as consumer:
            consumer.assign([T0])
            assert await take(consumer, 10) == numbers(0, 10)
            with pytest.raises(KafkaError, match="CORRUPT_MESSAGE: t-0 at offset 10"):
                await consumer.poll()
            part.batches[1] = good
            assert await take(consumer, 10) == numbers(10, 20)

    simulate(scenario)


def test_fatal_errors_reach_the_application():
    async def scenario(cluster, open_consumer):
        cluster.add_topic("t")
        async with open_consumer() as consumer:
            consumer.assign([T0])
            cluster.fail_next(ApiKey.FETCH, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED: t-0"):
                await consumer.poll()
            assert await consumer.poll(500) == []

    simulate(scenario)


def test_columns_hold_the_same_records():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 300)
        async with open_consumer() as consumer:
            consumer.assign([T0])
            assert (await take(consumer, 15))[:15] == numbers(0, 300)[:15]
            start = consumer.position_nowait(T0)
            if start == 300:
                consumer.seek(T0, 15)
                start = 15
            values, offsets = [], []
            while len(values) < 300 - start:
                for columns in await consumer.poll_columns(max_bytes=500):
                    data, ends = columns.columns.values.data, columns.columns.values.offsets
                    bounds = struct.unpack(f"{columns.columns.length + 1}i", ends)
                    values += [data[a:b] for a, b in itertools.pairwise(bounds)]
                    offsets += struct.unpack(f"{columns.columns.length}q", columns.columns.offsets)
                    assert columns.next_offset == offsets[-1] + 1
            assert values == numbers(start, 300)
            assert offsets == list(range(start, 300))

    simulate(scenario)


def test_memory_is_bounded_by_two_answers_for_each_partition():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 5000)
        async with open_consumer(max_partition_fetch_bytes=2000, max_poll_records=1) as consumer:
            consumer.assign([T0])
            await take(consumer, 1)
            await trio.sleep(30)
            fetches = [key for _, key, _ in cluster.requests if key == ApiKey.FETCH]
            assert len(fetches) <= 3, "a slow application stops the fetching"

    simulate(scenario)


def test_offsets_by_time_and_ends():
    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 2)
        fill(parts[0], 0, 100)
        parts[0].start = 5
        async with open_consumer() as consumer:
            assert await consumer.beginning_offsets([T0, T1]) == {T0: 5, T1: 0}
            cluster.fail_next(ApiKey.LIST_OFFSETS, ErrorCode.LEADER_NOT_AVAILABLE)
            assert await consumer.end_offsets([T0, T1]) == {T0: 100, T1: 0}
            assert await consumer.offsets_for_times({T0: 42, T1: 42}) == {T0: (42, 42), T1: (-1, -1)}
            assert [info.partition for info in await consumer.partitions_for("t")] == [0, 1]

    simulate(scenario)


def test_misuse_is_told():
    async def scenario(cluster, open_consumer):
        cluster.add_topic("t")
        with pytest.raises(RuntimeError, match="not open"):
            open_consumer().assign([T0])
        with pytest.raises(ConfigError, match="no duration"):
            open_consumer(auto_offset_reset="by_duration:P")
        async with open_consumer() as consumer:
            with pytest.raises(RuntimeError, match="nothing to poll"):
                await consumer.poll()
            with pytest.raises(ConfigError, match=r"group\.id: needed to subscribe"):
                consumer.subscribe(["t"])
            with pytest.raises(ConfigError, match=r"group\.id: needed to commit"):
                await consumer.commit()
            consumer.assign([TopicPartition("t", 9)])
            with pytest.raises(trio.TooSlowError, match="no position within 700 ms"):
                await consumer.position(("t", 9), 700)
        with pytest.raises(RuntimeError, match="closed"):
            await consumer.poll()

    simulate(scenario)


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("PT1H", 3_600_000), ("P1DT1M", 86_460_000), ("PT0.5S", 500), ("P2D", 172_800_000)]
)
def test_durations(text, milliseconds):
    assert duration_ms(text) == milliseconds


@asynccontextmanager
async def group_of(cluster, open_consumer, count, **config):
    """Opens ``count`` members of one group, each polled by a task of its own that collects what it reads."""
    async with trio.open_nursery() as nursery:
        members = []
        for number in range(count):
            members.append(Member(cluster, open_consumer, number, config))
            await nursery.start(members[-1].run)
        yield members
        nursery.cancel_scope.cancel()


class Member:
    def __init__(self, cluster, open_consumer, number, config):
        self.seen: list[tuple[int, bytes]] = []
        self.events: list[tuple[str, list[TopicPartition]]] = []
        self.stop = trio.Event()
        self.stopped = trio.Event()
        self.pattern = config.pop("pattern", None)
        self.pace = config.pop("pace", 0)
        self.errors: list[KafkaError] = []

        def note(kind):
            async def callback(partitions):
                self.events.append((kind, sorted(partitions)))
                await trio.lowlevel.checkpoint()

            return callback

        callbacks = {f"on_{kind}": note(kind) for kind in ("assigned", "revoked", "lost")}
        self.consumer = open_consumer(callbacks, client_id=f"member{number}", **{"group_id": "g"} | config)

    async def run(self, *, task_status):
        async with self.consumer as consumer:
            consumer.subscribe(["t"] if self.pattern is None else [], pattern=self.pattern)
            task_status.started()
            while not self.stop.is_set():
                try:
                    batches = await consumer.poll(200)
                except KafkaError as error:
                    self.errors.append(error)
                    continue
                for batch in batches:
                    self.seen += [(batch.partition, record.value) for record in batch.records]
                if self.pace:
                    await trio.sleep(self.pace)
        self.stopped.set()


async def settled(members, expected, sizes=None, seconds=30):
    """Waits until the members own exactly ``expected`` partitions between them, each one owner, so many each."""
    with trio.fail_after(seconds):
        while True:
            owned = [p for member in members for p in member.consumer.assignment]
            counts = [len(member.consumer.assignment) for member in members]
            if sorted(owned) == sorted(expected) and counts == (sizes or counts):
                return
            await trio.sleep(0.05)


ALL = [TopicPartition("t", number) for number in range(4)]


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_members_share_partitions_through_joins_and_leaves(strategy):
    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 4)
        for number, part in enumerate(parts):
            fill(part, number * 100, number * 100 + 50)
        config = {"partition_assignment_strategy": strategy, "heartbeat_interval_ms": 300, "session_timeout_ms": 6000}
        async with group_of(cluster, open_consumer, 1, **config) as (first,):
            await settled([first], ALL)
            async with group_of(cluster, open_consumer, 1, **config) as (second,):
                await settled([first, second], ALL, [2, 2])
                for part in parts:
                    fill(part, 1000, 1010)
                cluster.appended.notify()
                await trio.sleep(3)
                second.stop.set()
                await second.stopped.wait()
            await settled([first], ALL)
            await trio.sleep(2)
            seen = first.seen + second.seen
            assert sorted(seen) == sorted((n, v) for n, part in enumerate(parts) for v in part.values())
            kinds = [kind for kind, _ in first.events]
            assert kinds.count("lost") == 0
            if strategy == "cooperative-sticky":
                assert first.events[0] == ("assigned", ALL)
                assert next(len(partitions) for kind, partitions in first.events if kind == "revoked") == 2
            else:
                assert first.events[1] == ("revoked", ALL), "the eager protocol gives everything up"

    simulate(scenario)


def test_committed_offsets_are_where_the_next_member_goes_on():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 100)
        options = {"group_id": "g", "enable_auto_commit": False, "max_poll_records": 30}
        async with open_consumer(**options) as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 30) == numbers(0, 30)
            await consumer.commit()
            assert await take(consumer, 30) == numbers(30, 60)
        assert cluster.offsets["g", "t", 0] == (30, 0, "")
        async with open_consumer(**options) as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 5) == numbers(30, 60)
            await consumer.commit({T0: 77})
            assert (await consumer.committed([T0, T1]))[T0].offset == 77
            assert list(await consumer.committed([T0, T1])) == [T0]

    simulate(scenario)


def test_auto_commit_covers_what_earlier_polls_returned():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 100)
        async with open_consumer(group_id="g", max_poll_records=10, auto_commit_interval_ms=1000) as consumer:
            consumer.subscribe(["t"])
            assert len(await take(consumer, 10)) == 10
            assert ("g", "t", 0) not in cluster.offsets
            await trio.sleep(1.5)
            await consumer.poll()
            await trio.sleep(0.5)
            assert cluster.offsets["g", "t", 0][0] == 10, "what the last poll returned is not processed yet"
        assert cluster.offsets["g", "t", 0][0] == 20, "closing commits"

    simulate(scenario)


def test_a_member_that_does_not_poll_leaves_and_comes_back():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        lost = []

        async def on_lost(partitions):
            lost.extend(partitions)
            await trio.lowlevel.checkpoint()

        options = {"group_id": "g", "max_poll_interval_ms": 5000, "enable_auto_commit": False}
        async with open_consumer({"on_lost": on_lost}, **options) as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 10) == numbers(0, 10)
            await trio.sleep(12)
            assert cluster.groups["g"].members == {}
            assert await take(consumer, 10) == numbers(0, 10), "nothing was committed"
            assert lost == [T0]

    simulate(scenario)


def test_a_cooperative_member_that_was_expelled_works_on_nothing_while_it_joins_again():
    """It went on with what it had kept, and its commits, of no generation, were refused to nobody."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        lost = []

        async def on_lost(partitions):
            lost.extend(partitions)
            await trio.lowlevel.checkpoint()

        options = {"group_id": "g", "enable_auto_commit": False, "partition_assignment_strategy": "cooperative-sticky"}
        async with open_consumer({"on_lost": on_lost}, **options) as consumer:
            consumer.subscribe(["t"])
            with trio.fail_after(30):
                while not await consumer.poll(500, max_records=1):
                    continue
            before = consumer.group_metadata()
            assert (before.generation_id, before.member_id != "") == (consumer.group_generation, True)
            cluster.fail_next(ApiKey.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS)
            cluster.fail_next(ApiKey.JOIN_GROUP, ErrorCode.UNKNOWN_MEMBER_ID)
            await trio.sleep(4)
            await consumer.poll(0, max_records=1)  # begins to join; what is kept may be worked on
            await trio.sleep(0.2)
            assert consumer.group_generation == -1, "the story needs a member that has not joined again yet"
            assert consumer.group_metadata() == before, "whose offsets are refused, as it is not a member any more"
            with pytest.raises(KafkaError, match=r"offsets were not committed \(UNKNOWN_MEMBER_ID"):
                await consumer.commit()
            assert await consumer.poll(0) == []
            assert (lost, consumer.assignment) == ([T0], [])
            assert await take(consumer, 10) == numbers(0, 10), "nothing was committed"
            assert consumer.group_metadata().generation_id > before.generation_id

    simulate(scenario)


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS]
)
def test_a_commit_that_comes_too_late_fails_and_the_member_joins_again(code):
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        async with open_consumer(group_id="g", enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"])
            await take(consumer, 10)
            generation = consumer.group_generation
            assert consumer.assignment_generation == generation
            cluster.fail_next(ApiKey.OFFSET_COMMIT, code)
            with pytest.raises(KafkaError, match=f"offsets were not committed .{code.name}"):
                await consumer.commit()
            with trio.fail_after(30):
                while consumer.group_generation <= generation or not consumer.assignment:
                    await consumer.poll(500)
            await consumer.commit()

    simulate(scenario)


def test_coordinator_trouble_is_waited_out():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        for key in (ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.OFFSET_FETCH):
            cluster.fail_next(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        cluster.lost_answers = {ApiKey.JOIN_GROUP: 1, ApiKey.OFFSET_COMMIT: 1}
        async with open_consumer(group_id="g") as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 10) == numbers(0, 10)
            cluster.fail_next(ApiKey.OFFSET_COMMIT, ErrorCode.NOT_COORDINATOR)
            await consumer.commit()
        assert cluster.offsets["g", "t", 0][0] == 10

    simulate(scenario)


def test_hopeless_joins_are_told():
    async def scenario(cluster, open_consumer):
        cluster.add_topic("t")
        cluster.fail_next(ApiKey.JOIN_GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        async with open_consumer(group_id="g") as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED: group g"):
                await consumer.poll(2000)
            await consumer.poll(2000)
            assert consumer.assignment == [T0]

    simulate(scenario)


def test_new_partitions_and_matching_topics_make_a_rebalance():
    async def scenario(cluster, open_consumer):
        cluster.add_topic("t", 1)
        cluster.add_topic("other", 1)
        config = {"pattern": "t.*", "metadata_max_age_ms": 1000, "heartbeat_interval_ms": 300}
        async with group_of(cluster, open_consumer, 1, **config) as (member,):
            await settled([member], [T0])
            cluster.topics["t"] += cluster.add_topic("spare", 1)
            await settled([member], [T0, T1])
            cluster.add_topic("t2", 1)
            await settled([member], [T0, T1, TopicPartition("t2", 0)])
            assert member.errors == []

    simulate(scenario)


def test_a_leader_that_knew_no_topic_when_it_assigned_joins_again_for_what_it_learns():
    """Nothing was assigned for want of metadata; the first member is its own leader, and nobody else will tell it."""

    async def scenario(cluster, open_consumer):
        async with open_consumer(group_id="g", metadata_max_age_ms=1000) as consumer:
            consumer.subscribe(["t"])
            assert await consumer.poll(3000) == []
            assert consumer.group_generation == 1
            assert consumer.assignment == []
            fill(cluster.add_topic("t")[0], 0, 5)
            assert await take(consumer, 5) == numbers(0, 5)
            assert consumer.group_generation == 2

    simulate(scenario)


def test_changing_the_subscription_and_unsubscribing():
    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("a")[0], 0, 5)
        fill(cluster.add_topic("b")[0], 5, 10)
        async with open_consumer(group_id="g") as consumer:
            consumer.subscribe(["a"])
            assert await take(consumer, 5) == numbers(0, 5)
            consumer.subscribe(["b"])
            assert await take(consumer, 5) == numbers(5, 10)
            assert consumer.assignment == [TopicPartition("b", 0)]
            assert consumer.subscription == ["b"]
            await consumer.unsubscribe()
            assert consumer.assignment == []
            assert cluster.groups["g"].members == {}
            consumer.assign([("a", 0)])
            assert await consumer.position(("a", 0)) == 5, "the group's offset"
            consumer.seek(("a", 0), 0)
            assert await take(consumer, 5) == numbers(0, 5)
        with pytest.raises(ValueError, match="either topics or a pattern"):
            async with open_consumer(group_id="g") as consumer:
                consumer.subscribe()

    simulate(scenario)


def test_iteration_yields_one_partition_at_a_time():
    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 2)
        fill(parts[0], 0, 10)
        fill(parts[1], 10, 20)
        async with open_consumer() as consumer:
            consumer.assign([T0, T1])
            seen = {}
            async for batch in consumer:
                seen[batch.partition] = [record.value for record in batch.records]
                if len(seen) == 2:
                    break
            assert seen == {0: numbers(0, 10), 1: numbers(10, 20)}

    simulate(scenario)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_polls_that_are_cancelled_lose_nothing(strategy, seed):
    """A member polls with deadlines that cut it off anywhere, callbacks included, while another comes and goes."""

    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 4)
        drawn = cluster.world.random("cuts")
        config = {"partition_assignment_strategy": strategy, "heartbeat_interval_ms": 200, "enable_auto_commit": False}
        seen: list[tuple[int, int, bytes]] = []

        async def pause(partitions) -> None:
            await trio.sleep(0.02)

        callbacks = {"on_assigned": pause, "on_revoked": pause, "on_lost": pause}

        async def rival() -> None:
            for _ in range(3):
                async with open_consumer(group_id="g", **config) as other:
                    other.subscribe(["t"])
                    with trio.move_on_after(2):
                        while True:
                            for batch in await other.poll(100):
                                seen.extend((batch.partition, r.offset, r.value) for r in batch.records)
                            await other.commit()
                await trio.sleep(1)

        async with open_consumer(callbacks, group_id="g", **config) as consumer, trio.open_nursery() as nursery:
            consumer.subscribe(["t"])
            nursery.start_soon(rival)
            with trio.move_on_after(15):
                number = 0
                while True:
                    if number < 150:
                        fill(parts[number % 4], number, number + 1)
                        cluster.appended.notify()
                    number += 1
                    batches = []
                    await trio.sleep(drawn.random() * 0.1)
                    with trio.move_on_after(drawn.random() * 0.15):
                        batches = await consumer.poll(1000)
                    for batch in batches:
                        seen.extend((batch.partition, r.offset, r.value) for r in batch.records)
            with trio.fail_after(60):
                while len(consumer.assignment) < 4 or any(
                    (consumer.position_nowait(p) or 0) < parts[p.partition].end for p in consumer.assignment
                ):
                    for batch in await consumer.poll(200):
                        seen.extend((batch.partition, r.offset, r.value) for r in batch.records)
        expected = {(n, r.offset, r.value) for n, part in enumerate(parts) for r in part.records()}
        assert set(seen) == expected, "every record was seen at least once"

    simulate(scenario, seed)
