"""Goal: a failed append is never acknowledged, whatever acks and however many requests arrived together.

Method: one broker with two log directories on virtual disks, one of which fails or is full when requests arrive that
were already sent. The successes that a client saw are compared with the log after a restart with a working disk.
"""

from __future__ import annotations

import contextlib

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.runtime.net.rpc import RpcConnection
from support.cluster.broker_cluster import BROKER_PORT, batch, run_cluster
from support.cluster.directory_stories import TWO, place, profile, read_all


def produce(index: int, value: bytes, acks: int) -> ProduceRequest:
    partition = PartitionProduceData(index=index, records=batch(value))
    topics = [TopicProduceData(name="t", partition_data=[partition])]
    return ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=topics)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("kind", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("count", [1, 7], ids=["single", "pipelined"])
def test_a_failed_append_is_never_acknowledged(kind: str, count: int, acks: int) -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=2)
        (bad,) = [index for index in range(2) if place(cluster, 1, "t", index) == "/d1"]
        acknowledged: dict[int, list[bytes]] = {0: [], 1: []}
        for index in range(2):
            assert (await client.produce("t", batch(b"before"), partition=index)).error_code == ErrorCode.NONE
            acknowledged[index].append(b"before")
        connection = await RpcConnection.open(cluster.client_environment, "b1", BROKER_PORT, "test")
        if kind == "EIO":
            profile(cluster, 1).failing_paths = ("/d1",)
        else:
            profile(cluster, 1).full_paths = ("/d1",)
        # Submitted without a checkpoint between them: they arrive together and are one drain of the broker.
        sent = [(bad if number != 3 else 1 - bad, b"value-%d" % number) for number in range(count)]
        pending = [connection.submit(produce(index, value, acks), 12) for index, value in sent]
        beside = connection.submit(MetadataRequest(topics=[]), 12)
        for (index, value), waiting in zip(sent, pending, strict=True):
            with contextlib.suppress(ConnectionError, EOFError):
                answer = (await waiting.wait(60_000)).responses[0].partition_responses[0]
                if answer.error_code == ErrorCode.NONE:
                    acknowledged[index].append(value)
        with contextlib.suppress(ConnectionError, EOFError):
            await beside.wait(60_000)
        connection.close()
        again = await client.produce("t", batch(b"again"), partition=bad, acks=acks)
        assert again.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        other = await client.produce("t", batch(b"other"), partition=1 - bad, acks=acks)
        assert other.error_code == ErrorCode.NONE
        acknowledged[1 - bad].append(b"other")
        client.close()
        profile(cluster, 1).failing_paths = profile(cluster, 1).full_paths = ()
        await cluster.stop(1)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        for index in range(2):
            found = await read_all(cluster, "t", index)
            lost = [value for value in acknowledged[index] if value not in found]
            assert not lost, f"acknowledged and not in the log of t-{index}: {lost}"

    run_cluster(scenario, **TWO)


LATER_MS = 8 * 86_400_000
"""Beyond ``segment.ms``: a batch that is so much younger than the first one needs a new segment."""


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("rolls_last", [True, False])
@pytest.mark.parametrize("requests", [1, 2])
def test_a_failed_roll_acknowledges_none_of_its_neighbours(requests: int, rolls_last: bool, acks: int) -> None:
    """The disk fails while a batch is staged, because the roll before it writes.

    Batches that were staged for other partitions of the directory are lost with it, and no write of theirs fails.
    """

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=4)
        first, second = [index for index in range(4) if place(cluster, 1, "t", index) == "/d1"]
        rolling, other = (second, first) if rolls_last else (first, second)
        for index in (first, second):
            assert (await client.produce("t", batch(b"before"), partition=index)).error_code == ErrorCode.NONE
        records = {rolling: batch(b"after", timestamp=1_000 + LATER_MS), other: batch(b"after")}
        parts = [PartitionProduceData(index=index, records=records[index]) for index in (first, second)]
        connection = await RpcConnection.open(cluster.client_environment, "b1", BROKER_PORT, "test")
        profile(cluster, 1).failing_paths = ("/d1",)
        pending = [
            connection.submit(
                ProduceRequest(
                    acks=acks, timeout_ms=5_000, topic_data=[TopicProduceData(name="t", partition_data=each)]
                ),
                12,
            )
            for each in ([parts] if requests == 1 else [[part] for part in parts])
        ]
        acknowledged: list[int] = []
        for waiting in pending:
            with contextlib.suppress(ConnectionError, EOFError):
                answers = (await waiting.wait(60_000)).responses[0].partition_responses
                acknowledged += [each.index for each in answers if each.error_code == ErrorCode.NONE]
        connection.close()
        client.close()
        profile(cluster, 1).failing_paths = ()
        await cluster.stop(1)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        for index in acknowledged:
            assert b"after" in await read_all(cluster, "t", index), f"acknowledged and not in the log of t-{index}"

    run_cluster(scenario, **TWO)
