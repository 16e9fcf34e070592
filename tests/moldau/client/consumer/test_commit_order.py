"""Goal: the commits of one consumer take effect in the order of the calls, each in its own generation.

Method: consumers against a small cluster on virtual time. If a consumer must look up its coordinator, it resends a
commit a second or more later. Meanwhile another commit is requested, the caller gives up, or the group enters its next
generation. The tests check the requests at the coordinator and its final offsets.
"""

from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau import KafkaError, TopicPartition
from moldau.consumer import CommitFailedError
from moldau.consumer.auto_commit import AutoCommit
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.runtime.config import CONSUMER_CONFIG
from moldau.runtime.telemetry.log import EventLogger
from support.client.consumer_stories import fill, simulate

T0, T1 = (TopicPartition("t", number) for number in range(2))
GONE = ErrorCode.COORDINATOR_NOT_AVAILABLE
BACKOFF = {"retry_backoff_ms": 1000, "retry_backoff_max_ms": 1000}
MANUAL = BACKOFF | {"group_id": "g", "enable_auto_commit": False}
AUTOMATIC = BACKOFF | {"group_id": "g", "auto_commit_interval_ms": 2000}


def commits(cluster):
    """Generation and offset of each commit that reached the coordinator."""
    return [
        (request.generation_id_or_member_epoch, part.committed_offset)
        for _, key, request in cluster.requests
        if key == ApiKey.OFFSET_COMMIT
        for topic in request.topics
        for part in topic.partitions
    ]


async def begun(cluster, consumer):
    """Subscribes, and polls until the first record was handed out."""
    fill(cluster.add_topic("t")[0], 0, 100)
    consumer.subscribe(["t"])
    with trio.fail_after(30):
        while not await consumer.poll(500, max_records=1):
            continue


async def background_commit_of_one_fails(cluster, consumer):
    """A poll commits offset 1 in the background, which is to be sent again after a back-off, and hands out more."""
    await trio.sleep(2.5)
    cluster.fail_next(ApiKey.OFFSET_COMMIT, GONE)
    assert await consumer.poll(0, max_records=5)
    await trio.sleep(0.3)
    assert [offset for _, offset in commits(cluster)] == [1], "the story needs a commit that has failed once"


def test_background_commit_is_not_resent_after_a_newer_one():
    """The old commit reset the offset that the newer one had committed."""

    async def scenario(cluster, open_consumer):
        async with open_consumer(**AUTOMATIC) as consumer:
            await begun(cluster, consumer)
            await background_commit_of_one_fails(cluster, consumer)
            await consumer.commit()
            assert cluster.offsets["g", "t", 0][0] == 6
            await trio.sleep(5)
            assert cluster.offsets["g", "t", 0][0] == 6
            assert [offset for _, offset in commits(cluster)] == [1, 6]

    simulate(scenario)


def test_only_refused_partitions_are_committed_again():
    """The other offset is committed: an administrator moves it while the consumer waits for the refused partition."""

    async def scenario(cluster, open_consumer):
        cluster.add_topic("t", 2)
        unknown = [True]

        def answer(broker, request):
            response = cluster.on_offset_commit(broker, request)
            for topic in response.topics:
                for part in topic.partitions:
                    if part.partition_index == 1 and unknown[0]:
                        part.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return response

        cluster.handlers[ApiKey.OFFSET_COMMIT] = answer
        async with open_consumer(**MANUAL) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.commit, {T0: 1, T1: 2})
            await trio.sleep(2.5)
            assert cluster.offsets["g", "t", 0][0] == 1
            cluster.offsets["g", "t", 0] = (50, -1, "by hand")
            await trio.sleep(2.5)
            unknown[0] = False
        assert cluster.offsets["g", "t", 0] == (50, -1, "by hand")
        assert cluster.offsets["g", "t", 1][0] == 2

    simulate(scenario)


def test_a_deleted_topic_ends_no_commit_of_another_partition():
    """The commit before a rebalance soon gives up a partition of no topic, not one beside it that has to wait."""

    async def scenario(cluster, open_consumer):
        for partition in cluster.add_topic("t", 2):
            fill(partition, 0, 10)
        loading = [True]

        def answer(broker, request):
            response = cluster.on_offset_commit(broker, request)
            for topic in response.topics:
                for part in topic.partitions:
                    if part.partition_index == 1:
                        part.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    elif loading[0]:
                        part.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            if loading[0]:
                cluster.offsets.clear()
            return response

        cluster.handlers[ApiKey.OFFSET_COMMIT] = answer
        async with open_consumer(**AUTOMATIC) as consumer, trio.open_nursery() as nursery:
            consumer.subscribe(["t"])
            read = 0
            with trio.fail_after(30):
                while read < 20:
                    read += sum(len(each.records) for each in await consumer.poll(500))
            nursery.start_soon(consumer.unsubscribe)  # it commits first
            await trio.sleep(3.5)
            loading[0] = False
        assert cluster.offsets["g", "t", 0][0] == 10

    simulate(scenario)


def test_background_commit_is_resent_if_none_is_newer():
    """The consumer resends a background commit if no newer commit was requested."""

    async def scenario(cluster, open_consumer):
        async with open_consumer(**AUTOMATIC) as consumer:
            await begun(cluster, consumer)
            await background_commit_of_one_fails(cluster, consumer)
            await trio.sleep(5)
            assert [offset for _, offset in commits(cluster)] == [1, 1]
            assert cluster.offsets["g", "t", 0][0] == 1

    simulate(scenario)


def test_background_commit_ends_before_the_rebalance_commit():
    """It was resent under the next generation, although another member might own the partition."""

    async def scenario(cluster, open_consumer):
        async with open_consumer(**AUTOMATIC) as consumer:
            await begun(cluster, consumer)
            await background_commit_of_one_fails(cluster, consumer)
            before = consumer.group_generation
            consumer.subscribe(["t", "another"])  # the next poll commits, gives everything up and joins
            with trio.fail_after(30):
                while consumer.group_generation == before or not consumer.assignment:
                    await consumer.poll(100, max_records=0)
            await trio.sleep(1)
            assert commits(cluster) == [(before, 1), (before, 6)]

    simulate(scenario)


def test_commit_resent_in_another_generation_is_refused():
    """A commit that is resent in another generation is refused, and the member keeps its place."""

    async def scenario(cluster, open_consumer):
        config = MANUAL | {"retry_backoff_ms": 9000, "retry_backoff_max_ms": 9000}
        config |= {"partition_assignment_strategy": "cooperative-sticky"}
        async with open_consumer(**config) as consumer, trio.open_nursery() as nursery:
            await begun(cluster, consumer)
            before = consumer.group_generation
            refused = trio.Event()

            async def commit():
                with pytest.raises(KafkaError, match=r"offsets were not committed \(ILLEGAL_GENERATION"):
                    await consumer.commit()
                refused.set()

            cluster.fail_next(ApiKey.OFFSET_COMMIT, GONE)
            nursery.start_soon(commit)
            await trio.sleep(0.5)
            consumer.subscribe(["t", "another"])
            with trio.fail_after(6):
                while consumer.group_generation == before:
                    await consumer.poll(100, max_records=0)
            assert not refused.is_set(), "the story needs a group that is faster than the commit"
            with trio.fail_after(20):
                await refused.wait()
            await consumer.poll(100)
            assert (consumer.group_generation, consumer.assignment) == (before + 1, [T0])
            await consumer.commit()
            assert [generation for generation, _ in commits(cluster)] == [before, before + 1]

    simulate(scenario)


def test_refused_old_generation_keeps_the_present_one():
    """The answer to a commit arrived after the member had joined the next generation, and the member left it."""

    async def scenario(cluster, open_consumer):
        async with open_consumer(**MANUAL, partition_assignment_strategy="cooperative-sticky") as consumer:
            await begun(cluster, consumer)
            before = consumer.group_generation
            joined = trio.Event()

            def answer_later(broker, request):
                async def wait():
                    await joined.wait()
                    return cluster.on_offset_commit(broker, request)

                return wait

            async def commit():
                with pytest.raises(KafkaError, match=r"offsets were not committed \(ILLEGAL_GENERATION"):
                    await consumer.commit()

            cluster.handlers[ApiKey.OFFSET_COMMIT] = answer_later
            async with trio.open_nursery() as nursery:
                nursery.start_soon(commit)
                await trio.sleep(0.5)
                consumer.subscribe(["t", "another"])
                with trio.fail_after(20):
                    while consumer.group_generation == before or not consumer.assignment_generation > before:
                        await consumer.poll(100, max_records=0)
                joined.set()
            assert consumer.group_generation == before + 1

    simulate(scenario)


def test_commits_of_two_tasks_keep_the_order_of_calls():
    """Commits of two tasks are carried out in the order of the calls."""

    async def scenario(cluster, open_consumer):
        async with open_consumer(**MANUAL) as consumer:
            await begun(cluster, consumer)
            cluster.fail_next(ApiKey.OFFSET_COMMIT, GONE, GONE)
            async with trio.open_nursery() as nursery:
                for offset in (10, 20, 30):
                    nursery.start_soon(consumer.commit, {T0: offset})
                    await trio.sleep(0.1)
            assert [offset for _, offset in commits(cluster)] == [10, 10, 10, 20, 30]
            assert cluster.offsets["g", "t", 0][0] == 30

    simulate(scenario)


def test_a_commit_that_is_given_up_lets_the_next_one_go():
    async def scenario(cluster, open_consumer):
        async with open_consumer(**MANUAL, default_api_timeout_ms=5000) as consumer:
            await begun(cluster, consumer)
            cluster.fail_next(ApiKey.OFFSET_COMMIT, *[GONE] * 4)
            with trio.move_on_after(1.5) as scope:
                await consumer.commit({T0: 10})
            assert scope.cancelled_caught
            await consumer.commit({T0: 20})
            assert cluster.offsets["g", "t", 0][0] == 20
            cluster.fail_next(ApiKey.OFFSET_COMMIT, *[GONE] * 20)
            late = []

            async def commit(offset):
                with pytest.raises(trio.TooSlowError, match="offsets were not committed in time"):
                    await consumer.commit({T0: offset})
                late.append((offset, trio.current_time() - started))

            started = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(commit, 30)
                await trio.sleep(0.1)
                nursery.start_soon(commit, 40)
            assert sorted(offset for offset, _ in late) == [30, 40]
            assert all(seconds < 8 for _, seconds in late), "the wait for the turn counts"
            cluster.errors.clear()
            await consumer.commit({T0: 50})
            assert cluster.offsets["g", "t", 0][0] == 50

    simulate(scenario)


@pytest.mark.parametrize(
    "failure",
    [None, CommitFailedError(ErrorCode.ILLEGAL_GENERATION, ""), ConnectionError("lost"), trio.TooSlowError("late")],
)
@pytest.mark.parametrize("has_positions", [True, False])
def test_automatic_commits_go_on_after_any_outcome(failure, has_positions):
    """A consumer may be in no group yet at its first commit, and none may be the last."""
    committed, client = [], SimpleNamespace(now_ms=0.0, request_timeout_ms=30_000, logger=EventLogger("test"))

    async def carry_out(asked, deadline_ms, *, gives_way):
        await trio.lowlevel.checkpoint()
        committed.append(asked)
        if failure is not None and len(committed) == 1:
            raise failure

    group = SimpleNamespace(ask_commit=lambda offsets, *, is_automatic: offsets, carry_out=carry_out)
    config = CONSUMER_CONFIG.parse({"bootstrap.servers": "b:1", "group.id": "g", "auto.commit.interval.ms": "1000"})

    async def main():
        positions = {}
        commits = AutoCommit(client, group, lambda: positions, config)
        async with trio.open_nursery() as nursery:
            for number in range(4):
                positions = {T0: number} if has_positions or number > 1 else {}
                assert commits.commit_when_due(nursery) == 1_000 * (number + 1)
                await trio.testing.wait_all_tasks_blocked()
                client.now_ms += 1_000

    trio.run(main)
    assert committed == [{T0: offset} for offset in range(1 if has_positions else 2, 4)]
