"""Several log directories that fail one by one (KIP-112, KIP-858): whole brokers on virtual disks under load.

Each story fails a directory while producers with acks=all write to every partition, and then reads everything back:
what was acknowledged is there, what lives in other directories was never interrupted, and the metadata is right.
"""

from __future__ import annotations

import uuid

import pytest
import trio

from broker_cluster import batch, run_cluster, values_of
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau_quorum.directory_ids import is_reserved

TWO = {"log_dirs": "/d1,/d2"}


def directory_id(cluster, broker_id: int, path: str) -> uuid.UUID:
    (found,) = [d for d in cluster.running[broker_id].context.logs.directories if d.path == path]
    assert found.directory_id is not None
    return found.directory_id


def place(cluster, broker_id: int, topic: str, partition: int) -> str:
    """Path of the directory that holds a replica."""
    return cluster.running[broker_id].context.logs.logs[topic, partition].parent_directory


def profile(cluster, broker_id: int):
    return cluster.world.node(f"b{broker_id}").disk.profile


def all_assigned(cluster, topic: str, partitions: int) -> bool:
    """Whether the metadata names the directory of each replica, and names the right one."""
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


class Load:
    """One producer for each partition; each writes the next number when the last one was acknowledged."""

    def __init__(self, cluster, topic: str, partitions: int) -> None:
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
                await trio.sleep(0.02)
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
                await trio.sleep(0.02)
                continue
            if answer.error_code == ErrorCode.NONE:
                self.acknowledged[index].append((trio.current_time(), value))
                number += 1
            else:
                self.errors[answer.error_code] = None
                await trio.sleep(0.02)
        if client is not None:
            client.close()

    def gap(self, index: int, since: float, until: float) -> float:
        """The longest time between two acknowledgements of a partition."""
        times = [since, *[at for at, _ in self.acknowledged[index] if since <= at <= until], until]
        return max(later - earlier for earlier, later in zip(times, times[1:], strict=False))

    async def check(self) -> None:
        """Everything that was acknowledged can be read."""
        for index, acknowledged in enumerate(self.acknowledged):
            found = await read_all(self.cluster, self.topic, index)
            missing = [value for _, value in acknowledged if value not in found]
            assert not missing, f"{self.topic}-{index} lost {missing[:5]} of {len(acknowledged)}"
            assert len(acknowledged) > 20, f"partition {index} was hardly written to"


async def read_all(cluster, topic: str, index: int, broker_id: int | None = None) -> dict[bytes, None]:
    client = cluster.client(await cluster.leader(topic, index) if broker_id is None else broker_id)
    offset, found = 0, {}
    while True:
        answer = await client.fetch(topic, offset, partition=index)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        values = values_of(answer.records)
        if not values:
            assert offset >= answer.high_watermark
            client.close()
            return found
        found.update(dict.fromkeys(values))
        offset += len(values)


async def prepared(cluster, *, partitions: int = 6, replicas: int = 3, **configs) -> Load:
    client = cluster.client(1)
    await client.create_topic("t", partitions=partitions, replicas=replicas, min_insync_replicas="2", **configs)
    client.close()
    for index in range(partitions):
        await cluster.leader("t", index)
    await cluster.until(lambda: all_assigned(cluster, "t", partitions))
    return Load(cluster, "t", partitions)


async def log_dirs_of(cluster, broker_id: int):
    client = cluster.client(broker_id)
    answer = await client.request(DescribeLogDirsRequest(topics=None), 4)
    client.close()
    return {result.log_dir: result for result in answer.results}


def test_new_replicas_are_spread_over_directories_and_the_controller_is_told() -> None:
    async def scenario(cluster) -> None:
        await prepared(cluster, partitions=8)
        for broker_id in cluster.broker_ids:
            places = [place(cluster, broker_id, "t", index) for index in range(8)]
            assert sorted(places.count(path) for path in ("/d1", "/d2")) == [4, 4]
            registered = cluster.image().brokers[broker_id].log_dirs
            assert registered == tuple(directory_id(cluster, broker_id, path) for path in ("/d1", "/d2"))

    run_cluster(scenario, brokers=3, **TWO)


def test_with_one_directory_nothing_has_to_be_told() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=2, replicas=2)
        partition = cluster.partition_image("t")
        assert [partition.directory(b) for b in partition.replicas] == [
            directory_id(cluster, broker_id, "/data") for broker_id in partition.replicas
        ]
        assert partition.partition_epoch == 0
        client.close()

    run_cluster(scenario, brokers=2)


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_directory_fails_alone_under_load_and_comes_back_after_a_restart(seed: int, kind: str) -> None:
    async def scenario(cluster) -> None:
        load = await prepared(cluster)
        victim = 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await trio.sleep(2)
            lost = [index for index in range(6) if place(cluster, victim, "t", index) == "/d1"]
            led = [index for index in range(6) if cluster.partition_image("t", index).leader == victim]
            epochs = {index: cluster.partition_image("t", index).leader_epoch for index in range(6)}
            assert [index for index in led if index in lost], "the story needs a leader in the directory that fails"
            assert [index for index in led if index not in lost], "and one outside"
            failed_at = trio.current_time()
            failed_id = directory_id(cluster, victim, "/d1")
            if kind == "EIO":
                profile(cluster, victim).failing_paths = ("/d1",)
            else:
                profile(cluster, victim).full_paths = ("/d1",)

            def moved() -> bool:
                return all(
                    victim not in cluster.partition_image("t", index).isr
                    and cluster.partition_image("t", index).leader not in (victim, -1)
                    for index in lost
                )

            await cluster.until(moved, timeout_ms=10_000)
            assert failed_id not in cluster.image().brokers[victim].log_dirs
            assert not cluster.image().brokers[victim].fenced
            await trio.sleep(3)
            for index in led:
                if index not in lost:
                    partition = cluster.partition_image("t", index)
                    assert (partition.leader, partition.leader_epoch) == (victim, epochs[index])
                    assert load.gap(index, failed_at, failed_at + 3) < 0.5, "another directory's partition stood still"
            for index in lost:
                assert load.gap(index, failed_at, failed_at + 3) < 2.5
            described = await log_dirs_of(cluster, victim)
            assert described["/d1"].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert not described["/d1"].topics
            assert described["/d2"].error_code == ErrorCode.NONE
            assert sorted(p.partition_index for t in described["/d2"].topics if t.name == "t" for p in t.partitions) == [
                index for index in range(6) if index not in lost
            ]
            client = cluster.client(victim)
            answer = await client.fetch("t", partition=lost[0])
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            answer = await client.produce("t", batch(b"x"), partition=lost[0])
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            metadata = await client.metadata("t")
            for told in metadata.topics[0].partitions:
                assert (victim in told.offline_replicas) == (told.partition_index in lost)
            client.close()

            profile(cluster, victim).failing_paths = profile(cluster, victim).full_paths = ()
            await cluster.stop(victim)
            cluster.start_broker(victim)
            await cluster.until(lambda: victim in cluster.running)
            await cluster.until(
                lambda: all(victim in cluster.partition_image("t", index).isr for index in range(6)), timeout_ms=60_000
            )
            assert all(place(cluster, victim, "t", index) == "/d1" for index in lost)
            assert failed_id in cluster.image().brokers[victim].log_dirs
            load.stopped = True
        await load.check()
        for index in lost:
            profile(cluster, 1).failing_paths = ()
            assert all_assigned(cluster, "t", 6)
        described = await log_dirs_of(cluster, victim)
        assert described["/d1"].error_code == ErrorCode.NONE

    run_cluster(scenario, seed=seed, brokers=3, **TWO)
