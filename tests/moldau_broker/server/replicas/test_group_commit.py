"""Goal: many partitions that wait for a sync before they acknowledge share passes over the disk, and lose nothing.

Method: one broker on virtual time, and requests that name many partitions with ``flush.messages=1``. The tests count
hand-overs to threads and syncs of files for the acknowledged appends; one cuts the power right after the answers.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau_broker.log.values import TopicPartition
from moldau_broker.server.lifecycle.log_tasks import SYNCED_TOGETHER_MAX, LogSyncs
from moldau_jepsen.world.disk.disk import NodeDisk, VirtualFile
from support.cluster.broker_cluster import Cluster, batch, run_cluster, values_of

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITIONS = 40
ROUNDS = 5
PASSES = math.ceil(PARTITIONS / SYNCED_TOGETHER_MAX)


def produce_to_all(value: bytes, acks: int) -> ProduceRequest:
    partitions = [PartitionProduceData(index=index, records=batch(value)) for index in range(PARTITIONS)]
    return ProduceRequest(
        acks=acks, timeout_ms=60_000, topic_data=[TopicProduceData(name="synced", partition_data=partitions)]
    )


async def acknowledged(pending: Any) -> int:
    """Returns the number of acknowledged appends of a request."""
    answer = await pending.wait(120_000)
    codes = [each.error_code for each in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.NONE] * PARTITIONS
    return len(codes)


async def start(cluster: Cluster) -> None:
    await cluster.client(1).create_topic("synced", partitions=PARTITIONS, flush_messages="1")
    for number in range(PARTITIONS):
        await cluster.leader("synced", number)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("requests", [1, 8])
def test_many_partitions_share_a_pass(acks: int, requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sync for each partition that has something new, and one thread for many partitions.

    With several requests in flight a partition has a sync for the first, and one or two for all others, which arrive in
    pieces.
    """
    work: Counter[str] = Counter()
    sync, offload = VirtualFile.sync, NodeDisk.offload

    def counted_sync(self: VirtualFile) -> None:
        work["sync"] += "/synced-" in self.path and self.path.endswith(".log")
        sync(self)

    async def counted_offload(self: NodeDisk, run: Callable[[], Any], **options: Any) -> Any:
        work["offload"] += 1
        return await offload(self, run, **options)

    async def scenario(cluster: Cluster) -> None:
        await start(cluster)
        connection = await cluster.client(1).connection()
        await acknowledged(connection.submit(produce_to_all(b"first", acks), 12))
        monkeypatch.setattr(VirtualFile, "sync", counted_sync)
        monkeypatch.setattr(NodeDisk, "offload", counted_offload)
        appends = 0
        for number in range(ROUNDS):
            pending = [connection.submit(produce_to_all(b"%d" % number, acks), 12) for _ in range(requests)]
            for each in pending:
                appends += await acknowledged(each)
        monkeypatch.undo()
        assert appends == ROUNDS * PARTITIONS * requests
        syncs_max = min(requests, 3) * PARTITIONS * ROUNDS
        assert work["sync"] <= syncs_max, f"{work['sync']} syncs for {appends} appends"
        # A second of virtual time may pass: the log manager's own work is a handful of offloads.
        assert work["offload"] <= 2 * min(requests, 3) * PASSES * ROUNDS, f"{work['offload']} threads for {appends}"

    run_cluster(scenario)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_power_loss_takes_nothing_acknowledged(seed: int) -> None:
    """The power is cut as soon as a part of the appends is acknowledged, while further passes are under way."""

    async def scenario(cluster: Cluster) -> None:
        await start(cluster)
        answered: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}

        async def produce(partition: int) -> None:
            client = cluster.client(1)
            for number in range(100):
                value = b"%d" % number
                try:
                    result = await client.produce("synced", batch(value), partition=partition, acks=1)
                except (ConnectionError, EOFError):
                    return
                assert result.error_code == ErrorCode.NONE
                answered[partition].append(value)

        async with trio.open_nursery() as nursery:
            for number in range(PARTITIONS):
                nursery.start_soon(produce, number)
            await cluster.until(lambda: sum(map(len, answered.values())) >= 3 * PARTITIONS)
            cluster.world.node("b1").lose_power()
            nursery.cancel_scope.cancel()
        await trio.sleep(1)
        cluster.start_broker(1)
        client = cluster.client(1)
        for number in range(PARTITIONS):
            await cluster.leader("synced", number)
            found = values_of((await client.fetch("synced", partition=number)).records)
            assert found[: len(answered[number])] == answered[number], number

    run_cluster(scenario, seed=seed)


@pytest.mark.parametrize("released", [True, False])
def test_waits_for_a_replaced_log_look_again(released: bool) -> None:
    """A moved log was synced with its records already; no sync of the former one will come."""
    key = TopicPartition("t", 0)
    log = Mock(parent_directory="/logs", topic_partition=key, storage=Mock(released=released))
    woken: list[TopicPartition] = []
    logs = Mock(flush_work=lambda _: None, flush_listener=woken.append)

    async def main() -> None:
        syncs = LogSyncs(Mock(), logs)
        async with trio.open_nursery() as nursery:
            await nursery.start(syncs.run)
            syncs.request(log)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert woken == [key] * released
