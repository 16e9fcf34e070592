"""The consumer against a small cluster on virtual time: positions, resets, long polls, isolation, faults."""

import itertools
import struct
from dataclasses import replace

import pytest
import trio

from moldau import KafkaError, TopicPartition
from moldau.cluster.interceptors import ConsumerInterceptor
from moldau.consumer import LogTruncatedError, OffsetOutOfRangeError
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.records import encode_batch, encode_end_txn_marker
from moldau.runtime.config import ConfigError
from moldau.values import duration_ms
from support.client.consumer_stories import fill, numbers, simulate, take

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


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


def test_a_consumer_that_leaves_a_broker_closes_its_session():
    """The broker would keep the session until another one needs its room."""

    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 2)
        fill(parts[0], 0, 10)
        fill(parts[1], 10, 20)
        async with open_consumer() as consumer:
            consumer.assign([T0, T1])
            found = 0
            while found < 20:
                found += sum(len(batch.records) for batch in await consumer.poll(1000))
            await consumer.poll(2000)
            assert [len(cluster.sessions[part.leader]) for part in parts] == [1, 1]
            consumer.assign([T0])
            await consumer.poll(2000)
            assert [len(cluster.sessions[part.leader]) for part in parts] == [1, 0]
            consumer.assign([T0, T1])
            fill(parts[1], 20, 30)
            cluster.appended.notify()
            while found < 30:
                found += sum(len(batch.records) for batch in await consumer.poll(1000) if batch.topic_partition == T1)

    simulate(scenario)


def test_a_closed_consumer_leaves_no_sessions():
    """The brokers forget the session, also in a long poll; closing takes a moment only."""

    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 2)
        fill(parts[0], 0, 10)
        async with open_consumer() as consumer:
            consumer.assign([T0, T1])
            await consumer.poll(1000)
            await consumer.poll(2000)
            assert [len(cluster.sessions[part.leader]) for part in parts] == [1, 1]
            begun = trio.current_time()
        assert trio.current_time() - begun < 0.2
        await trio.sleep(1)
        assert [len(cluster.sessions[part.leader]) for part in parts] == [0, 0]

    simulate(scenario)


def test_a_loop_that_closes_its_consumer_ends():
    """It went on with prefetched records, up to 253 of them: a close that waits for no broker takes no time."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 5000)
        async with open_consumer(queued_max_messages_kbytes=1, max_partition_fetch_bytes=1000) as consumer:
            consumer.assign([T0])
            seen = []
            async for record in consumer:
                seen.append(record.value)
                if len(seen) == 3:
                    await consumer.close()
            assert seen == numbers(0, 3)

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


def test_a_seek_makes_earlier_errors_of_its_partition_void():
    """The consumer looks for a position, or reads a damaged batch, before the application seeks away from it."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 30)
        part.batches[1] = part.batches[1][:-1] + bytes([part.batches[1][-1] ^ 1])
        async with open_consumer(auto_offset_reset="none") as consumer:
            consumer.assign([T0])
            await trio.sleep(1)
            consumer.seek(T0, 0)
            assert await take(consumer, 10) == numbers(0, 10)
            with pytest.raises(KafkaError, match="CORRUPT_MESSAGE: t-0 at offset 10"):
                await consumer.poll()
            await trio.sleep(2)  # the batch is fetched and reported again
            consumer.seek(T0, 20)
            assert await take(consumer, 10) == numbers(20, 30)

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


def test_a_reset_waits_for_the_buffered_records():
    """The log start passes the next fetch while the application has yet to poll what was fetched before."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 100)
        async with open_consumer() as consumer:
            consumer.assign([T0])
            (first,) = await consumer.poll(5_000, max_records=10)
            assert [record.value for record in first.records] == numbers(0, 10)
            fill(part, 100, 250)
            part.start = 200
            await trio.sleep(1)
            assert await take(consumer, 90) == numbers(10, 100)
            assert await take(consumer, 50) == numbers(200, 250)

    simulate(scenario, brokers=1)


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


def test_corrupt_batches_are_reported_and_not_skipped():
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


def test_misuse_is_refused():
    async def scenario(cluster, open_consumer):
        cluster.add_topic("t")
        with pytest.raises(RuntimeError, match="not open"):
            open_consumer().assign([T0])
        with pytest.raises(ConfigError, match="ISO 8601 duration"):
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


def test_iteration_yields_one_partition_at_a_time():
    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 2)
        fill(parts[0], 0, 10)
        fill(parts[1], 10, 20)
        async with open_consumer() as consumer:
            consumer.assign([T0, T1])
            seen = {}
            async for batch in consumer.batches():
                seen[batch.partition] = [record.value for record in batch.records]
                if len(seen) == 2:
                    break
            assert seen == {0: numbers(0, 10), 1: numbers(10, 20)}

    simulate(scenario)


@pytest.mark.parametrize("taken", [40, 100], ids=["prefetched", "handed-out"])
def test_a_log_that_is_cut_twice_is_noticed_twice(taken):
    """Two unclean elections. No record comes between, so the position after the first cut is all that is known."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 40)
        fill(part, 40, 100)
        async with open_consumer(max_poll_records=40) as consumer:
            consumer.assign([T0])
            assert await take(consumer, taken) == numbers(0, taken)
            consumer.pause(T0)
            part.truncate(50)
            cluster.move("t", 0, 2)
            assert await consumer.poll(400_000) == [], "until the metadata are fetched again"
            part.truncate(30)
            cluster.move("t", 0, 1)
            fill(part, 1000, 1060)
            consumer.resume(T0)
            assert await take(consumer, 60) == numbers(1000, 1060)

    simulate(scenario)


def test_a_log_that_was_cut_below_a_reset_position_is_noticed():
    """An unclean election: the position was read past the records that the new leader has in place of the lost ones."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 50)
        fill(part, 50, 100)
        async with open_consumer(auto_offset_reset="latest") as consumer:
            consumer.assign([T0])
            assert await consumer.position(T0) == 100
            part.truncate(50)
            cluster.move("t", 0, 2)
            fill(part, 50, 120)
            assert await take(consumer, 70) == numbers(50, 120)

    simulate(scenario)


class Evens(ConsumerInterceptor):
    """Hides records with odd values from the application."""

    def on_consume(self, batches):
        return [replace(each, records=[r for r in each.records if int(r.value) % 2 == 0]) for each in batches]


def test_iteration_passes_records_that_an_interceptor_hides():
    """The batch of a hidden record is empty, which ended the loop with RuntimeError."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        async with open_consumer({"interceptors": [Evens()]}) as consumer:
            consumer.assign([T0])
            with trio.fail_after(60):
                assert [(await anext(consumer)).value for _ in range(5)] == numbers(0, 10)[::2]

    simulate(scenario)
