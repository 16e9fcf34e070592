"""Goal: no partition with records waits for one without; prefetched records are bounded in bytes.

Method: consumers against a small cluster on virtual time. The long poll of an idle partition takes ten seconds, so
that a wait for it shows at once.
"""

import sys

import pytest
import trio

from moldau import TopicPartition
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.fetch import FetchResponse
from support.client.consumer_stories import fill, numbers, simulate, take

T0 = TopicPartition("t", 0)
LONG = {"fetch_max_wait_ms": 10_000}
SMALL = LONG | {"max_partition_fetch_bytes": 2000}


def fetches(cluster):
    return [request for _, key, request in cluster.requests if key == ApiKey.FETCH]


async def seconds_for(consumer, count):
    begun = trio.current_time()
    values = []
    while len(values) < count:
        for batch in await consumer.poll(20_000, max_records=10):
            values += [record.value for record in batch.records]
        await trio.sleep(0.001)  # the application's own work
    assert values == numbers(0, count)
    return trio.current_time() - begun


@pytest.mark.parametrize("idle", [0, 1, 30])
def test_busy_partition_waits_for_no_idle_one(idle):
    """The idle partitions' long poll began while the busy one's buffer was full: it stopped for all of it."""

    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 1 + idle)
        fill(parts[0], 0, 2000)
        async with open_consumer(**SMALL) as consumer:
            consumer.assign([("t", number) for number in range(1 + idle)])
            assert await seconds_for(consumer, 2000) < 2.0
            waits = [request.max_wait_ms for request in fetches(cluster)]
            assert len(waits) < 200, "idle partitions must not be asked without end"
            await consumer.poll(1000)
            assert fetches(cluster)[-1].max_wait_ms == 10_000, "all are idle: the broker holds the fetch again"

    simulate(scenario, brokers=1)


def test_records_of_idle_partitions_come_while_one_is_full():
    """The application works off one partition slowly; what comes to another one is fetched soon nevertheless."""

    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 2)
        fill(parts[0], 0, 2000)
        async with open_consumer(**SMALL) as consumer:
            consumer.assign([T0, ("t", 1)])
            assert await consumer.poll(1000, max_records=1)
            await trio.sleep(30)
            asked = len(fetches(cluster))
            await trio.sleep(10)
            assert 50 <= len(fetches(cluster)) - asked <= 210, "about every 50 ms"
            fill(parts[1], 0, 10)
            cluster.appended.notify()
            await trio.sleep(1)
            batches = await consumer.poll(0, max_records=1000)
            assert sorted(batch.partition for batch in batches) == [0, 1]

    simulate(scenario, brokers=1)


@pytest.mark.parametrize("how", ["resumed", "sought", "assigned"])
def test_ready_partition_waits_for_no_long_poll(how):
    """A partition that becomes ready while the broker holds a fetch without it has a connection of its own."""

    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 2)
        fill(parts[0], 0, 20)
        async with open_consumer(**LONG) as consumer:
            consumer.assign([("t", 1)] if how == "assigned" else [T0, ("t", 1)])
            if how == "resumed":
                consumer.pause(T0)
            elif how == "sought":
                assert await take(consumer, 20) == numbers(0, 20)
            assert await consumer.poll(3000) == []
            begun = trio.current_time()
            if how == "resumed":
                consumer.resume(T0)
            elif how == "sought":
                consumer.seek(T0, 0)
            else:
                consumer.assign([T0, ("t", 1)])
            assert await take(consumer, 20) == numbers(0, 20)
            assert trio.current_time() - begun < 0.5

    simulate(scenario, brokers=1)


def test_brokers_are_fetched_independently():
    """A broker that does not answer holds up its own partitions only."""

    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 2)  # one on each broker
        fill(parts[0], 0, 2000)
        fill(parts[1], 0, 10)
        async with open_consumer(**SMALL) as consumer:
            consumer.assign([T0, ("t", 1)])
            assert len(await take(consumer, 20)) >= 20
            cluster.world.node("broker2").pause()
            consumer.seek(T0, 0)
            assert await seconds_for(consumer, 2000) < 2.0
            cluster.world.node("broker2").resume()

    simulate(scenario)


def test_buffers_are_bounded_in_bytes():
    """Forty full partitions of 20 kB each, 64 KiB for all of them: the rest is fetched when the application polls."""

    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 40)
        for part in parts:
            fill(part, 0, 250, value=b"x" * 80)
        size = sum(len(batch) for batch in parts[0].batches)
        async with open_consumer(max_partition_fetch_bytes=10_000, queued_max_messages_kbytes=64) as consumer:
            consumer.assign([("t", number) for number in range(40)])
            await trio.sleep(5)
            assert 32 * 1024 <= cluster.fetched_bytes <= 66 * 1024
            seen = dict.fromkeys(range(40), 0)
            while sum(seen.values()) < 40 * 250:
                for batch in await consumer.poll(1000):
                    seen[batch.partition] += len(batch.records)
                buffered = sum(each.buffered_bytes for each in consumer._positions.by_partition.values())
                assert buffered <= 66 * 1024
            assert set(seen.values()) == {250}
            assert cluster.fetched_bytes < 2 * 40 * size, "little is fetched twice"

    simulate(scenario, brokers=1)


def test_small_answers_are_bounded_too():
    """A slow application, and one record after the other: each buffered answer counts for what it costs."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        async with open_consumer(max_partition_fetch_bytes=10_000) as consumer:
            consumer.assign([T0])
            assert await consumer.poll(100) == []
            for number in range(100):
                fill(part, number, number + 1)
                cluster.appended.notify()
                await trio.sleep(0.05)
            (position,) = consumer._positions.by_partition.values()
            assert 2 < len(position.chunks) <= 12
            assert await take(consumer, 100) == numbers(0, 100)
            assert (position.buffered_bytes, len(position.chunks)) == (0, 0)

    simulate(scenario)


def test_paused_partitions_give_way_to_others():
    """Records of paused partitions fill the bound: they are dropped, and fetched again after a resume."""

    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 8)
        for part in parts:
            fill(part, 0, 200)
        config = {"max_partition_fetch_bytes": 2000, "queued_max_messages_kbytes": 8, "max_poll_records": 5}
        async with open_consumer(**config) as consumer:
            consumer.assign([("t", number) for number in range(7)])
            await consumer.poll(1000)
            await trio.sleep(1)
            consumer.pause(*consumer.assignment)
            consumer.assign([("t", number) for number in range(8)])
            assert await take(consumer, 200) == numbers(0, 200)
            consumer.resume(*consumer.paused)
            rest = await take(consumer, 7 * 200 - 5)
            assert len(rest) == 7 * 200 - 5, "each record once"

    simulate(scenario, brokers=1)


def test_incremental_fetches_name_what_changed():
    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 50)
        fill(parts[7], 0, 500)
        async with open_consumer(**SMALL) as consumer:
            consumer.assign([("t", number) for number in range(50)])
            await take(consumer, 500)
            named = [sum(len(topic.partitions) for topic in request.topics) for request in fetches(cluster)]
            assert named[0] > 1
            assert sum(named) < 50 + 4 * len(named)
            assert len({request.session_id for request in fetches(cluster) if request.session_epoch > 0}) == 1

    simulate(scenario, brokers=1)


@pytest.mark.parametrize("fault", ["forgotten", "refused", "cut", "swallowed"])
def test_lost_sessions_are_opened_again(fault):
    """Every record comes once and in order, even if broker and client disagree about a session."""

    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 3)
        fill(parts[0], 0, 100)
        async with open_consumer(max_poll_records=10, max_partition_fetch_bytes=500) as consumer:
            consumer.assign([("t", number) for number in range(3)])
            values = await take(consumer, 20)
            for _ in range(3):
                if fault == "forgotten":
                    cluster.sessions[1]._sessions.clear()
                elif fault == "refused":
                    cluster.handlers[ApiKey.FETCH] = lambda *_: (
                        cluster.handlers.pop(ApiKey.FETCH),
                        FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH),
                    )[1]
                elif fault == "swallowed":
                    cluster.lost_answers[ApiKey.FETCH] = 1
                else:
                    cluster.kill_broker(1)
                    await trio.sleep(1)
                    cluster.start_broker(1)
                values += await take(consumer, 20)
            values += await take(consumer, 100 - len(values))
            assert values == numbers(0, 100)
            fill(parts[1], 100, 110)
            cluster.appended.notify()
            assert await take(consumer, 10) == numbers(100, 110)

    simulate(scenario, brokers=1)


def test_topic_made_again_is_fetched_in_the_session():
    """The session knows topics by id: the old id is forgotten when the topic has another one."""

    async def scenario(cluster, open_consumer):
        for name in ("t", "u"):
            fill(cluster.add_topic(name)[0], 0, 10)
        async with open_consumer(metadata_max_age_ms=500) as consumer:
            consumer.assign([T0, ("u", 0)])
            assert len(await take(consumer, 20)) == 20
            fill(cluster.add_topic("t")[0], 0, 5)
            await trio.sleep(2)
            consumer.seek(T0, 0)
            fill(cluster.topics["u"][0], 10, 15)
            cluster.appended.notify()
            assert sorted(await take(consumer, 10)) == sorted(numbers(0, 5) + numbers(10, 15))

    simulate(scenario, brokers=1)


def test_many_partitions_cost_few_calls():
    """A consumer of thousands of partitions looks at all of them around each fetch, in the application's event loop."""

    async def scenario(cluster, open_consumer):
        partitions, records = 200, 40
        parts = cluster.add_topic("t", partitions)
        calls = 0

        def count(frame, event, _):
            nonlocal calls
            path = frame.f_code.co_filename
            calls += event == "call" and ("/moldau/consumer/" in path or "/moldau/cluster/" in path)

        async with open_consumer(**LONG) as consumer:
            consumer.assign([("t", number) for number in range(partitions)])
            await consumer.poll(1000)
            asked = len(fetches(cluster))
            sys.setprofile(count)
            try:
                for number in range(records):
                    fill(parts[number % 3], number, number + 1)
                    cluster.appended.notify()
                    assert sum(len(batch.records) for batch in await consumer.poll(5000)) == 1
            finally:
                sys.setprofile(None)
            each = calls / partitions / (len(fetches(cluster)) - asked)
            assert each < 15, f"{each} calls for each partition and fetch"

    simulate(scenario, brokers=1)


def test_a_poll_sees_at_once_what_is_resumed():
    """The records are buffered already; another task resumes the partition while the poll waits."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 20)
        async with open_consumer(**LONG) as consumer:
            consumer.assign([T0])
            assert await consumer.poll(5_000, max_records=10)
            consumer.pause(T0)
            found = []

            async def poll():
                found.extend(await consumer.poll(5_000))
                found.append(trio.current_time())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll)
                await trio.sleep(1)
                assert found == []
                consumer.resume(T0)
                resumed = trio.current_time()
            assert found[1:] == [resumed]

    simulate(scenario, brokers=1)
