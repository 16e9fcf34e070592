"""Goal: each result of a waiting produce has the outcome of its own partition, and comes when that is known.

Method: operations alone, whose partitions are committed, refused or too late in any order, and three brokers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.values import LeaderEpoch, Offset
from moldau_broker.server.replicas.delayed import ProduceOperation, ProduceWait, ProduceWaiters
from support.cluster.broker_cluster import batch, run_cluster

TWICE: Any = "a partition that the request names twice, with another one between"
ONCE: Any = "the other partition"


def waiting() -> ProduceOperation:
    twice = ProduceWait(LeaderEpoch(1), Offset(5), 0)
    twice.indexes.append(2)
    return ProduceOperation({TWICE: twice, ONCE: ProduceWait(LeaderEpoch(1), Offset(9), 1)}, lambda _: ())


def test_a_refusal_counts_for_all_results_of_its_partition() -> None:
    """A request may name a partition twice; a batch whose leader was deposed must not look like a committed one."""
    operation = waiting()
    operation.resolve(TWICE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert set(operation.waiting) == {ONCE}
    operation.resolve(ONCE, ErrorCode.NONE)
    assert operation.errors == dict.fromkeys((0, 2), ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_timeout_counts_for_all_that_still_waits() -> None:
    for committed in ((), (ONCE,), (TWICE,)):
        operation = waiting()
        for partition in committed:
            operation.resolve(partition, ErrorCode.NONE)
        operation.expired()
        late = [*(() if TWICE in committed else (0, 2)), *(() if ONCE in committed else (1,))]
        assert operation.errors == dict.fromkeys(late, ErrorCode.REQUEST_TIMED_OUT)
        assert not operation.waiting


@pytest.mark.parametrize("offsets", [(5, 7, 9), (7, 5, 9), (9, 7, 5), (9, 5, 5, 8), (6, 9, 6, 9)])
def test_a_produce_waits_for_its_own_offset_only(offsets: tuple[int, ...]) -> None:
    """A repeated batch waits for a lower offset than newer ones that came before it."""
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 0)
    waiters = ProduceWaiters(clock, 10)
    operations = []
    for offset in offsets:
        operation = ProduceOperation({ONCE: ProduceWait(LeaderEpoch(1), Offset(offset), 0)}, lambda _: ())
        operation.delayed = waiters.watch(operation, (ONCE,), 30_000)
        operations.append(operation)
    for watermark in range(4, 10):
        if ONCE in waiters.purgatory.watched:
            waiters.complete_ready(ONCE, lambda _, offset: ErrorCode.NONE if offset <= watermark else None)  # noqa: B023
        assert [not operation.waiting for operation in operations] == [offset <= watermark for offset in offsets]
    assert not waiters._unordered


def test_a_repeated_batch_does_not_wait_for_newer_ones() -> None:
    """The newer batch cannot be committed; the repeated one was long ago, and its producer must learn that."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        leader = await cluster.leader("t")
        first, second, again = (cluster.client(leader) for _ in range(3))
        same = {"producer_id": 7, "producer_epoch": 0}
        known = batch(b"a", **same, base_sequence=0)
        assert (await first.produce("t", known)).error_code == ErrorCode.NONE
        for follower in {1, 2, 3} - {leader}:
            cluster.world.network.cut(f"b{leader}", f"b{follower}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.produce, "t", batch(b"b", **same, base_sequence=1))
            await cluster.until(lambda: cluster.replica(leader, "t").log.log_end_offset == 2)
            with trio.fail_after(1):
                repeated = await again.produce("t", known)
            assert (repeated.error_code, repeated.base_offset) == (ErrorCode.NONE, 0)
            assert cluster.replica(leader, "t").log.high_watermark == 1, "the newer batch waits"
            nursery.cancel_scope.cancel()

    run_cluster(scenario, brokers=3)


def test_a_repeated_batch_is_counted_once() -> None:
    """Operators see the counts as MessagesInPerSec and BytesInPerSec; a repetition appends nothing."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        await cluster.leader("t")
        traffic = cluster.replica(1, "t").traffic
        sequence = 0
        for values in ((b"a", b"b"), (b"c",), (b"d", b"e", b"f")):
            known = batch(*values, producer_id=7, producer_epoch=0, base_sequence=sequence)
            sequence += len(values)
            for _ in range(3):
                assert (await client.produce("t", known)).error_code == ErrorCode.NONE
                assert traffic.messages_in == cluster.replica(1, "t").log.log_end_offset == sequence
                assert traffic.bytes_in == cluster.replica(1, "t").log.size_bytes

    run_cluster(scenario)
