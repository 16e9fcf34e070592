"""Load, placement, moves and ends of brokers, for stories with several log directories."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.runtime.tasks.exceptions import leaves
from moldau_quorum.metadata.directory_ids import is_reserved
from support.cluster.broker_cluster import batch, values_of

if TYPE_CHECKING:
    import uuid

    from moldau_jepsen.world.disk.disk_profile import DiskProfile
    from support.cluster.broker_cluster import Cluster

TWO = {"log_dirs": "/d1,/d2"}


def directory_id(cluster: Cluster, broker_id: int, path: str) -> uuid.UUID:
    (found,) = [d for d in cluster.running[broker_id].context.logs.directories if d.path == path]
    directory: uuid.UUID | None = found.directory_id
    assert directory is not None
    return directory


def place(cluster: Cluster, broker_id: int, topic: str, partition: int) -> str:
    """Returns the path of the directory that holds a replica."""
    return str(cluster.running[broker_id].context.logs.logs[topic, partition].parent_directory)


def profile(cluster: Cluster, broker_id: int) -> DiskProfile:
    return cluster.world.node(f"b{broker_id}").disk.profile


def all_assigned(cluster: Cluster, topic: str, partitions: int) -> bool:
    """Whether the metadata names the correct directory of each replica."""
    for index in range(partitions):
        partition = cluster.partition_image(topic, index)
        for broker_id in partition.replicas:
            assigned = partition.directory(broker_id)
            if is_reserved(assigned):
                return False
            if broker_id in cluster.running and assigned != directory_id(
                cluster, broker_id, place(cluster, broker_id, topic, index)
            ):
                return False
    return True


PAUSE_S = 0.05
"""How long a producer of a load rests after each record."""


class Load:
    """One producer for each partition, which writes the next number after the acknowledgement of the last."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        self.cluster = cluster
        self.topic = topic
        self.acknowledged: list[list[tuple[float, bytes]]] = [[] for _ in range(partitions)]
        self.stopped = False
        self.errors: dict[int, None] = {}

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for index in range(len(self.acknowledged)):
                nursery.start_soon(self._produce, index)

    async def _produce(self, index: int) -> None:
        number = 0
        client = None
        while not self.stopped:
            value = b"%d-%d" % (index, number)
            leader = self.cluster._leader(self.topic, index, -1)
            if leader is None:
                await trio.sleep(PAUSE_S)
                continue
            if client is None or client.broker_id != leader:
                if client is not None:
                    client.close()
                client = self.cluster.client(leader)
            try:
                with trio.fail_after(5):
                    answer = await client.produce(self.topic, batch(value), partition=index, timeout_ms=2000)
            except (OSError, EOFError, trio.TooSlowError):
                client.close()
                await trio.sleep(PAUSE_S)
                continue
            if answer.error_code == ErrorCode.NONE:
                self.acknowledged[index].append((trio.current_time(), value))
                number += 1
            else:
                self.errors[answer.error_code] = None
            await trio.sleep(PAUSE_S)
        if client is not None:
            client.close()

    def gap(self, index: int, since: float, until: float) -> float:
        """Returns the longest time between two acknowledgements of a partition."""
        times = [since, *[at for at, _ in self.acknowledged[index] if since <= at <= until], until]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def _all_committed(self, index: int) -> bool:
        leader = self.cluster._leader(self.topic, index, -1)
        if leader is None:
            return False
        replica = self.cluster.replica(leader, self.topic, index).replica
        return bool(replica.high_watermark == replica.log_end_offset)

    async def check(self) -> None:
        """Checks that all acknowledged records can be read, once the leader has committed its whole log."""
        for index, acknowledged in enumerate(self.acknowledged):
            await self.cluster.until(partial(self._all_committed, index))
            found = await read_all(self.cluster, self.topic, index)
            missing = [value for _, value in acknowledged if value not in found]
            assert not missing, f"{self.topic}-{index} lost {missing[:5]} of {len(acknowledged)}"
            assert len(acknowledged) > 5, f"partition {index} was hardly written to: {len(acknowledged)} records"


async def read_all(cluster: Cluster, topic: str, index: int, broker_id: int | None = None) -> dict[bytes, None]:
    client = cluster.client(await cluster.leader(topic, index) if broker_id is None else broker_id)
    offset = 0
    found: dict[bytes, None] = {}
    while True:
        answer = await client.fetch(topic, offset, partition=index)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
        values = values_of(answer.records)
        if not values:
            assert offset >= answer.high_watermark
            client.close()
            return found
        found.update(dict.fromkeys(values))
        offset += len(values)


async def prepared(cluster: Cluster, *, partitions: int = 6, replicas: int = 3, **configs: str) -> Load:
    client = cluster.client(1)
    await client.create_topic("t", partitions=partitions, replicas=replicas, min_insync_replicas="2", **configs)
    client.close()
    for index in range(partitions):
        await cluster.leader("t", index)
    await cluster.until(lambda: all_assigned(cluster, "t", partitions))
    return Load(cluster, "t", partitions)


async def log_dirs_of(cluster: Cluster, broker_id: int) -> dict[str, Any]:
    client = cluster.client(broker_id)
    answer = await client.request(DescribeLogDirsRequest(topics=None))
    client.close()
    return {result.log_dir: result for result in answer.results}


async def ended(cluster: Cluster, node_id: int, kind: str = "b") -> str:
    """Waits until a node has ended by itself, and returns the reason; the run does not count it as a failure."""
    name = f"{kind}{node_id}"
    cluster.running.pop(node_id, None)
    with trio.fail_after(60):
        await cluster.world.node(name).wait_ended()
    (failure,) = [found for found in cluster.world.failures if found[0] == name]
    cluster.world.failures.remove(failure)
    return ";".join(str(leaf) for leaf in leaves(failure[1]))


async def move(cluster: Cluster, broker_id: int, topic: str, index: int, path: str) -> int:
    client = cluster.client(broker_id)
    answer = await client.request(
        AlterReplicaLogDirsRequest(
            dirs=[AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=[index])])]
        )
    )
    client.close()
    return int(answer.results[0].partitions[0].error_code)
