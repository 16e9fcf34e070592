"""Goal: waiting requests keep no more memory than ``queued.max.request.bytes`` allows, and other clients are served.

Method: one broker on virtual time with a small budget. Hostile clients send a fetch that would wait for ever, and
behind it requests that the broker must keep. The test counts the kept objects, while a well-behaved producer, whose
batches need bytes of the same budget, continues.
"""

from __future__ import annotations

import gc
import itertools
import random

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau_broker.replication import fetch_session
from moldau_broker.server.data_path.fetch import PARTITION_BYTES, WAIT_MS_MAX
from moldau_broker.server.data_path.produce import VerifiedProduce
from support.cluster.broker_cluster import batch, frame, run_cluster, values_of
from support.proof import proof_beyond

BUDGET = 4 * 1024 * 1024
LARGE = 1_500_000
FOREVER = (1 << 31) - 1


def endless_fetch(entries: int = 1) -> bytes:
    """A fetch that names one empty partition many times, and asks to wait 24 days for 2 GB of it."""
    wanted = [FetchPartition(partition=0, partition_max_bytes=FOREVER)] * entries
    topics = [FetchTopic(topic="empty", partitions=wanted)]
    return frame(FetchRequest(max_wait_ms=FOREVER, min_bytes=FOREVER, max_bytes=FOREVER, topics=topics), 11)


def transactional_produce(size: int) -> bytes:
    """The first batch of a transaction that no coordinator knows."""
    records = batch(bytes(size), producer_id=4000, producer_epoch=0, base_sequence=0, is_transactional=True)
    partition = PartitionProduceData(index=0, records=records)
    topics = [TopicProduceData(name="t", partition_data=[partition])]
    return frame(ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1_000, topic_data=topics), 11)


def kept_bytes() -> int:
    """Returns the bytes that waiting requests keep in memory."""
    found = gc.get_objects()
    return sum(len(entry._frame) for entry in found if type(entry) is VerifiedProduce) + PARTITION_BYTES * sum(
        type(entry) is fetch_session.FetchPartition for entry in found
    )


async def attack(cluster, frames: list[bytes], answers: list[int]) -> None:
    """Sends as much as the broker accepts and reads all answers, until the broker closes the connection."""
    connection = await cluster.client(1).raw()

    async def send() -> None:
        try:
            await connection.send_all(frames)
        except (ConnectionError, trio.ClosedResourceError, trio.BrokenResourceError):
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        received = bytearray()
        buffer = bytearray(65536)
        while True:
            try:
                count = connection.receive_into_nowait(memoryview(buffer))
            except BlockingIOError:
                await connection.wait_readable()
                continue
            except ConnectionError:
                break
            if count == 0:
                break
            received += buffer[:count]
            while len(received) >= 4 and len(received) >= 4 + int.from_bytes(received[:4]):
                answers.append(int.from_bytes(received[:4]))
                del received[: 4 + answers[-1]]
        nursery.cancel_scope.cancel()
    connection.close()


def begun_frame(announced: int, sent: int) -> bytes:
    """The first bytes of a frame that never ends."""
    return announced.to_bytes(4) + bytes(sent)


ATTACKS = {
    "begun frames": lambda: [begun_frame(BUDGET // 2, 1_200_000)],
    "frames as large as the budget": lambda: [begun_frame(BUDGET, 1_200_000)],
    "small begun frames": lambda: [begun_frame(400_000, 300_000)],
    "produces": lambda: [endless_fetch(), *[transactional_produce(LARGE)] * 15],
    "fetches": lambda: [endless_fetch(900)] * 40,
    "both": lambda: [endless_fetch(900), transactional_produce(LARGE), *[endless_fetch(800)] * 40],
}


WORST_S = 2.7
"""The longest time of a write beside them: twice the time after which stalled connections lose their excess memory."""
LATE_MAX = 2
"""Writes of ten that may take half as long again: one grant of sixteen goes to the oldest request, which is stalled."""


@pytest.mark.parametrize(
    ("kind", "attackers"),
    proof_beyond(
        len(ATTACKS),
        [
            *zip(ATTACKS, itertools.cycle((1, 4)), strict=False),
            *zip(ATTACKS, itertools.cycle((4, 1)), strict=False),
            *((kind, 50) for kind in ATTACKS),
        ],
    ),
)
def test_waiting_requests_are_bounded_and_others_are_served(kind: str, attackers: int) -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        await client.create_topic("empty")
        value = random.Random(1).randbytes(200_000)
        assert (await client.produce("t", batch(value))).error_code == ErrorCode.NONE
        before, most = kept_bytes(), 0
        frames = ATTACKS[kind]()[: 40 if attackers < 50 else 4]  # each kind exceeds the budget
        answers: list[list[int]] = [[] for _ in range(attackers)]
        latencies: list[float] = []
        async with trio.open_nursery() as nursery:
            for number in range(attackers):
                nursery.start_soon(attack, cluster, frames, answers[number])
            await trio.sleep(5)
            for number in range(10):
                client = cluster.client(1)
                begin = trio.current_time()
                with trio.fail_after(60):
                    assert (await client.produce("t", batch(value))).base_offset == number + 1
                latencies.append(trio.current_time() - begin)
                client.close()
                most = max(most, kept_bytes() - before)
            nursery.cancel_scope.cancel()
        late = [seconds for seconds in latencies if seconds >= WORST_S]
        assert len(late) <= LATE_MAX, f"{kind}, {attackers}: a producer beside them waited: {latencies}"
        assert max(latencies) < 1.5 * WORST_S, f"{kind}, {attackers}: a producer beside them waited: {latencies}"
        # The accounted bytes, and for each granted receive buffer (LARGE at most) a copy that is not accounted yet.
        assert most <= 2 * BUDGET + attackers * LARGE, f"{most} bytes were kept"

    run_cluster(scenario, queued_max_request_bytes=str(BUDGET))


def test_an_endless_fetch_ends_and_held_requests_are_answered() -> None:
    """An endless fetch ends, and the requests that were held behind it are answered.

    A single client is not disconnected: the broker serves more than the budget, one part at a time.
    """

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        await client.create_topic("empty")
        answers: list[int] = []
        begin = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attack, cluster, [endless_fetch(), *[transactional_produce(2 * BUDGET)] * 3], answers)
            with trio.fail_after(2 * WAIT_MS_MAX / 1000):
                while len(answers) < 4:  # noqa: ASYNC110 - the peer's answers notify no task
                    await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert WAIT_MS_MAX <= 1000 * (trio.current_time() - begin) < WAIT_MS_MAX + 60_000
        assert (await client.produce("t", batch(bytes(100_000)))).error_code == ErrorCode.NONE
        assert len(values_of((await client.fetch("t")).records)) == 1, "no batch of an unverified transaction"

    run_cluster(scenario, queued_max_request_bytes=str(BUDGET))
