"""Goal: moves between log directories (KIP-113) around reassignments, deletions and failures of a directory.

Method: whole brokers with two directories each in virtual time.
"""

from __future__ import annotations

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau_broker.log.values import TopicPartition
from support.cluster.broker_cluster import batch, run_cluster
from support.cluster.directory_stories import TWO, all_assigned, move, place, profile

KEY = TopicPartition("t", 0)
SLOW = {"replica_alter_log_dirs_io_max_bytes_per_second": "100"}


async def reassign(cluster, topic: str, replicas: list[int]) -> int:
    client = cluster.client(1)
    wanted = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[wanted])])
    answer = await client.request(request)
    client.close()
    return int(answer.responses[0].partitions[0].error_code)


def test_a_replica_begins_in_the_directory_of_its_plan() -> None:
    """kafka-reassign-partitions gives up at any other answer than REPLICA_NOT_AVAILABLE before the replica is there."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=1, replicas=1)
        client.close()
        source = await cluster.leader("t", 0)
        target = 3 - source
        assert await move(cluster, target, "gone", 0, "/d2") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await move(cluster, target, "t", 7, "/d2") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await move(cluster, target, "t", 0, "/d3") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await move(cluster, target, "t", 0, "/d2") == ErrorCode.REPLICA_NOT_AVAILABLE
        assert await reassign(cluster, "t", [target]) == ErrorCode.NONE
        await cluster.until(lambda: cluster.replica(target, "t", 0) is not None)
        assert place(cluster, target, "t", 0) == "/d2", "an empty broker begins with its first directory"
        assert not cluster.running[target].context.logs.future_logs
        await cluster.until(lambda: cluster.partition_image("t").replicas == (target,))
        await cluster.until(lambda: all_assigned(cluster, "t", 1))
        assert await move(cluster, target, "t", 0, "/d1") == ErrorCode.NONE

    run_cluster(scenario, brokers=2, **TWO)


async def delete(cluster, topic: str) -> None:
    client = cluster.client(1)
    answer = await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=1000))
    client.close()
    assert answer.responses[0].error_code == ErrorCode.NONE


async def begin_slow_move(cluster, broker_id: int) -> tuple[str, str]:
    """Creates a partition and begins to move its replica so slowly that it does not end; returns both directories."""
    client = cluster.client(1)
    await client.create_topic("t", partitions=1, replicas=len(cluster.broker_ids))
    client.close()
    client = cluster.client(await cluster.leader("t", 0))
    assert (await client.produce("t", batch(b"x" * 2000))).error_code == ErrorCode.NONE
    assert (await client.produce("t", batch(b"x" * 2000))).error_code == ErrorCode.NONE
    client.close()
    await cluster.until(lambda: all_assigned(cluster, "t", 1))
    source = place(cluster, broker_id, "t", 0)
    target = "/d2" if source == "/d1" else "/d1"
    assert await move(cluster, broker_id, "t", 0, target) == ErrorCode.NONE
    return source, target


def test_a_move_reports_no_directory_of_the_next_topic() -> None:
    """The log that moves belongs to a topic that was deleted; another one has its name, and is applied next.

    The controller was asked to record the target of the former move for the new replica, which is elsewhere. Nothing
    corrected that before the next start of the broker.
    """

    async def scenario(cluster) -> None:
        _, target = await begin_slow_move(cluster, 1)
        context = cluster.running[1].context
        changes = context.replicas.log_changes
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(changes, "perform", lambda key: None)  # the disk is slow
            former = cluster.image().topics_by_name["t"].topic_id
            await delete(cluster, "t")
            client = cluster.client(1)
            with trio.move_on_after(1):  # the answer comes when the logs are there
                await client.create_topic("t", partitions=1, replicas=1)
            client.close()
            await cluster.until(lambda: context.metadata.image.topics_by_name["t"].topic_id != former)
            assert context.logs.future_logs[KEY].topic_id == former
            assert not context.directories.may_take_over(KEY)
            assert await move(cluster, 1, "t", 0, target) == ErrorCode.REPLICA_NOT_AVAILABLE
        changes.perform(KEY)
        assert not context.logs.future_logs
        assert place(cluster, 1, "t", 0) == "/d1"
        await trio.sleep(1)
        assert all_assigned(cluster, "t", 1)

    run_cluster(scenario, brokers=1, **TWO, **SLOW)


def test_a_replica_that_returns_has_no_part_in_its_former_move() -> None:
    """A replica leaves the broker during a move between directories, and comes back before its log is deleted."""

    async def scenario(cluster) -> None:
        await begin_slow_move(cluster, 1)
        context = cluster.running[1].context
        changes = context.replicas.log_changes
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(changes, "perform", lambda key: None)  # the disk is slow
            assert await reassign(cluster, "t", [2]) == ErrorCode.NONE
            await cluster.until(lambda: context.metadata.image.topics_by_name["t"].partitions[0].replicas == (2,))
            assert not context.directories.may_take_over(KEY)
            assert await reassign(cluster, "t", [2, 1]) == ErrorCode.NONE
            await cluster.until(lambda: len(context.metadata.image.topics_by_name["t"].partitions[0].replicas) == 2)
        changes.perform(KEY)
        assert not context.logs.future_logs
        await cluster.until(lambda: len(cluster.partition_image("t").isr) == 2)
        await trio.sleep(1)
        assert all_assigned(cluster, "t", 1)

    run_cluster(scenario, brokers=2, **TWO, **SLOW)


@pytest.mark.parametrize("ends", ["deleted", "moved away"])
def test_the_copy_of_a_replica_that_ends_offline_is_deleted(ends: str) -> None:
    """The source of a move fails; then the replica ends, and the rest of the copy is of no use.

    It stayed until the next start, and then as a stray log for ever.
    """

    async def scenario(cluster) -> None:
        source, target = await begin_slow_move(cluster, 1)
        context = cluster.running[1].context
        profile(cluster, 1).failing_paths = (source,)
        context.logs.fail_directory(source, OSError("gone"))
        await cluster.until(lambda: cluster.partition_image("t").isr == (2,))
        assert list(context.logs.future_logs) == [KEY]
        if ends == "deleted":
            await delete(cluster, "t")
        else:
            assert await reassign(cluster, "t", [2]) == ErrorCode.NONE
        await cluster.until(lambda: not context.logs.future_logs)
        assert context.logs.online_directories == [target]

    run_cluster(scenario, brokers=2, **TWO, **SLOW)
