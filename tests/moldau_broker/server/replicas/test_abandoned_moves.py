"""Goal: the copy of a move is used when its source is gone.

Method: one broker with two log directories in virtual time is killed after the controller has recorded the move; the
source directory is emptied, or removed from ``log.dirs``.
"""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_jepsen.world.disk.disk import NodeDisk
from support.cluster.broker_cluster import batch, run_cluster
from support.cluster.directory_stories import TWO, all_assigned, directory_id, move, place, read_all

VALUES = [b"value %d" % number for number in range(20)]


@pytest.mark.parametrize("how", ["emptied", "removed"])
def test_the_copy_of_a_confirmed_move_replaces_a_lost_source(how: str) -> None:
    """The copy of a confirmed move is used when its source is gone.

    The replica started over, empty, and the copy with all records was deleted.
    """

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=1, replicas=1)
        await cluster.until(lambda: all_assigned(cluster, "t", 1))
        for value in VALUES:
            answer = await client.produce("t", batch(value))
            assert answer.error_code == ErrorCode.NONE
        client.close()
        source = place(cluster, 1, "t", 0)
        target = "/d2" if source == "/d1" else "/d1"
        target_id = directory_id(cluster, 1, target)
        assert await move(cluster, 1, "t", 0, target) == ErrorCode.NONE
        await cluster.until(lambda: cluster.partition_image("t").directory(1) == target_id)
        assert cluster.running[1].context.logs.future_logs, "the story needs a move that is not over"
        cluster.kill(1)
        if how == "emptied":
            NodeDisk(cluster.world.node("b1").disk).remove_tree(source)
            cluster.start_broker(1)
        else:
            cluster.start_broker(1, log_dirs=target)
        await cluster.until(lambda: 1 in cluster.running)
        assert await cluster.leader("t") == 1
        assert list(await read_all(cluster, "t", 0)) == VALUES
        assert place(cluster, 1, "t", 0) == target
        assert not cluster.running[1].context.logs.future_logs
        await cluster.until(lambda: all_assigned(cluster, "t", 1))

    run_cluster(scenario, **TWO)
