"""Goal: a broker that returns, or whose directory returns, catches up with changes of topics in between.

A recreated topic keeps its records, and the log of a deleted topic is set aside. Method: whole brokers on virtual
disks, in virtual time.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.server.cluster_metadata.applied_position import known_position
from moldau_jepsen.world.disk.disk import NodeDisk
from support.cluster.broker_cluster import batch, run_cluster
from support.cluster.directory_stories import TWO, all_assigned, place, profile, read_all


async def delete(client, topic: str) -> None:
    answer = await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=5000))
    assert answer.responses[0].error_code == ErrorCode.NONE


async def written(client, topic: str, index: int, *values: bytes) -> None:
    for value in values:
        answer = await client.produce(topic, batch(value), partition=index)
        assert answer.error_code == ErrorCode.NONE


def test_a_recreated_topic_keeps_its_records_when_a_disk_returns() -> None:
    """A topic that was recreated while a directory was away keeps the records acknowledged since then.

    The former topic's longer log was kept when its directory came back, and then found to be of another topic.
    """

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=2)
        await cluster.until(lambda: all_assigned(cluster, "t", 2))
        (index,) = [index for index in range(2) if place(cluster, 1, "t", index) == "/d1"]
        await written(client, "t", index, b"former 1", b"former 2", b"former 3")
        profile(cluster, 1).failing_paths = ("/d1",)
        with pytest.raises(ConnectionAbortedError):  # the broker does not answer when a write has failed
            await client.produce("t", batch(b"fails"), partition=index)
        client.close()
        client = cluster.client(1)
        await delete(client, "t")
        await client.create_topic("t", partitions=2)
        assert await cluster.leader("t", index) == 1
        await cluster.until(lambda: cluster.replica(1, "t", index) is not None)
        await written(client, "t", index, b"new")
        client.close()
        profile(cluster, 1).failing_paths = ()
        cluster.kill(1)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        assert list(await read_all(cluster, "t", index)) == [b"new"]

    run_cluster(scenario, **TWO)


def test_logs_of_a_topic_deleted_meanwhile_are_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of a topic that was deleted while the broker was down are set aside.

    Before that, the position of these metadata is durable: with older ones the next start would miss the logs.
    """
    durable: list[int] = []
    set_aside = LogManager.set_aside_unclaimed

    async def scenario(cluster) -> None:
        def noted(self: LogManager, is_claimed: Any) -> Any:
            disk = NodeDisk(cluster.world.node("b2").disk)
            position = known_position(disk, ["/data"], cluster.image().cluster_id, EventLogger("test"))
            durable.append(-1 if position is None else position.offset)
            return set_aside(self, is_claimed)

        client = cluster.client(1)
        await client.create_topic("gone", partitions=2, replicas=2)
        await client.create_topic("kept", replicas=2)
        for topic in ("gone", "kept"):
            leader = cluster.client(await cluster.leader(topic))
            await written(leader, topic, 0, b"value")
            leader.close()
        await cluster.stop(2)
        await delete(client, "gone")
        deleted_at = cluster.image().offset
        client.close()
        monkeypatch.setattr(LogManager, "set_aside_unclaimed", noted)
        cluster.start_broker(2)
        await cluster.until(lambda: 2 in cluster.running)
        assert durable
        assert durable[-1] >= deleted_at
        logs = cluster.running[2].context.logs
        await cluster.until(lambda: set(logs.logs) == {("kept", 0)})
        names = NodeDisk(cluster.world.node("b2").disk).list_directory("/data")
        assert sorted(name.partition(".")[0] for name in names if name.endswith("-stray")) == ["gone-0", "gone-1"]
        again = cluster.client(2)
        await again.create_topic("gone", replicas=2)
        await cluster.leader("gone")
        assert list(await read_all(cluster, "gone", 0)) == [], "a new topic of the name begins empty"
        again.close()

    run_cluster(scenario, brokers=2)


def test_a_replica_whose_directory_is_away_is_no_stray() -> None:
    """Its log is used again when the directory is back."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=2)
        await cluster.until(lambda: all_assigned(cluster, "t", 2))
        for index in range(2):
            await written(client, "t", index, b"precious")
        client.close()
        for failing in ("/d1", "/d2"):
            profile(cluster, 1).failing_paths = (failing,)
            cluster.kill(1)
            cluster.start_broker(1)
            await cluster.until(lambda: 1 in cluster.running)
            await trio.sleep(1)
            profile(cluster, 1).failing_paths = ()
        cluster.kill(1)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        for index in range(2):
            assert b"precious" in await read_all(cluster, "t", index)

    run_cluster(scenario, **TWO)
