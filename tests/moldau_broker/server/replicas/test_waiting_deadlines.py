"""Goal: a waiting request is answered at its own deadline, or as soon as what it waits for has come or has ended.

Method: the waits of a broker alone, and two brokers of which one stops, on virtual time.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.values import LeaderEpoch, Offset
from moldau_broker.server.replicas.delayed import Operation, Waiters
from moldau_broker.server.replicas.replica_waits import ReplicaWaits
from moldau_jepsen.world.world import run_world
from support.cluster.broker_cluster import batch, run_cluster

if TYPE_CHECKING:
    from moldau_jepsen.world.world import World


@pytest.mark.parametrize("delays", [(10, 1), (1, 10), (10, 5, 1, 7)])
def test_a_shorter_deadline_is_kept_behind_a_longer_one(delays: tuple[int, ...]) -> None:
    """The task that expires operations sleeps until the earliest deadline, also if that operation came last."""

    async def main(world: World) -> dict[int, float]:
        clock = world.node("broker").environment.clock
        waiters: Waiters[str, Operation] = Waiters(clock, 10)
        ended: dict[int, float] = {}
        begun = trio.current_time()

        async def wait(delay: int, operation: Operation) -> None:
            await operation.wait_finished()
            ended[delay] = trio.current_time() - begun

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiters.run)
            async with trio.open_nursery() as waiting:
                for delay in delays:
                    operation = Operation()
                    waiters.watch(operation, ("partition",), clock.monotonic_ms() + delay * 1_000)
                    waiting.start_soon(wait, delay, operation)
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        return ended

    ended = run_world(main, 1)
    assert {delay: round(seconds) for delay, seconds in ended.items()} == {delay: delay for delay in delays}


def test_a_deadline_is_kept_when_none_was_left_before() -> None:
    """The task that expires operations sleeps without a deadline then, and each operation wakes it."""

    async def main(world: World) -> list[float]:
        clock = world.node("broker").environment.clock
        waiters: Waiters[str, Operation] = Waiters(clock, 10)
        took: list[float] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiters.run)
            for delay in (2, 1, 3):
                begun = trio.current_time()
                operation = Operation()
                waiters.watch(operation, ("partition",), clock.monotonic_ms() + delay * 1_000)
                with trio.move_on_after(60):
                    await operation.wait_finished()
                took.append(round(trio.current_time() - begun))
            nursery.cancel_scope.cancel()
        return took

    assert run_world(main, 1) == [2, 1, 3]


def test_a_coordinator_that_gives_up_leaves_nothing_that_waits() -> None:
    """It may ask again each second, as long as its records are not committed."""

    async def main(world: World) -> tuple[int, int]:
        waits = ReplicaWaits(world.node("broker").environment.clock, 10, lambda _: 0)
        partition: Any = MagicMock(acknowledgement=lambda *_: None)
        before = 0
        for _ in range(3):
            with trio.move_on_after(1):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(waits.wait_committed, partition, LeaderEpoch(1), Offset(5))
                    await trio.sleep(0.5)
                    before = len(waits.produces.purgatory)
        return before, len(waits.produces.purgatory)

    assert run_world(main, 1) == (1, 0)


@pytest.mark.parametrize("arrivals", [(0, 0, 2), (0, 2, 3)])
def test_each_deadline_is_kept_however_they_follow_one_another(arrivals: tuple[int, ...]) -> None:
    """The task may sleep until a late deadline, after an earlier one was kept, when an operation comes between them."""
    schedules = list(product((1, 4, 20), repeat=3))

    async def main(world: World) -> dict[tuple[int, ...], list[float]]:
        clock = world.node("broker").environment.clock
        ended: dict[tuple[int, ...], list[float]] = {}

        async def wait(waiters: Waiters[str, Operation], schedule: tuple[int, ...], number: int) -> None:
            await trio.sleep(arrivals[number])
            operation = Operation()
            waiters.watch(operation, ("partition",), clock.monotonic_ms() + schedule[number] * 1_000)
            await operation.wait_finished()
            ended[schedule][number] = round(trio.current_time(), 1)

        async with trio.open_nursery() as nursery:
            for schedule in schedules:
                ended[schedule] = [0, 0, 0]
                waiters: Waiters[str, Operation] = Waiters(clock, 10)
                nursery.start_soon(waiters.run)
                for number in range(3):
                    nursery.start_soon(wait, waiters, schedule, number)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        return ended

    ended = run_world(main, 1)
    assert ended == {each: [sum(pair) for pair in zip(arrivals, each, strict=True)] for each in schedules}


class Led:
    """A partition, as far as waits know it."""

    is_leader = True
    wire_key, name_key = (b"id", 0), (b"t", 0)
    end, committed = object(), object()


def test_the_wait_for_a_low_watermark_ends_with_the_leadership() -> None:
    """DeleteRecords then answers at once that the leader has moved, and does not wait for its time to be over."""
    partition: Any = Led()

    async def main(world: World) -> float:
        waits = ReplicaWaits(world.node("broker").environment.clock, 10, lambda _: 0)

        async def lose_leadership() -> None:
            await trio.sleep(1)
            partition.is_leader = False
            waits.end(partition)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose_leadership)
            with trio.move_on_after(30):
                await waits.wait_low_watermark(partition, Offset(5))
        return trio.current_time()

    assert run_world(main, 1) == pytest.approx(1)


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        (ErrorCode.NONE, None),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, None),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_what_is_committed_is_so_with_few_replicas(code: ErrorCode, refused: ErrorCode | None) -> None:
    """The high watermark has passed it. A coordinator would give its partition up for good otherwise."""
    partition: Any = SimpleNamespace(acknowledgement=lambda leader_epoch, end_offset: code)

    async def main(world: World) -> ErrorCode | None:
        waits = ReplicaWaits(world.node("broker").environment.clock, 10, lambda _: 0)
        try:
            await waits.wait_committed(partition, LeaderEpoch(1), Offset(5))
        except KafkaError as error:
            return error.code
        return None

    assert run_world(main, 1) == refused


def test_deleted_records_do_not_wait_for_a_silent_follower() -> None:
    """A bug noticed only with the next fetch of a follower, or at the deadline, that the fenced one counts no more."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=2)
        leader = await cluster.leader("t")
        follower = 3 - leader
        client = cluster.client(leader)
        await client.produce("t", *(batch(b"%d" % number) for number in range(5)))
        cluster.world.node(f"b{follower}").pause()  # the controller would fence a dead process at once
        begun_s = trio.current_time()
        wanted = [DeleteRecordsPartition(partition_index=0, offset=3)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=wanted)], timeout_ms=60_000)
        done = (await client.request(request)).topics[0].partitions[0]
        assert (done.error_code, done.low_watermark) == (ErrorCode.NONE, 3)
        assert trio.current_time() - begun_s < 20, "the follower was fenced long before"
        cluster.kill(follower)

    run_cluster(scenario, brokers=2)


@pytest.mark.parametrize("offset", [3, -1], ids=["some", "all"])
def test_a_follower_takes_over_each_log_start(offset: int) -> None:
    """DeleteRecords waits for it, also where the log start reaches the high watermark (-1)."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=2)
        client = cluster.client(await cluster.leader("t"))
        await client.produce("t", *(batch(b"%d" % number) for number in range(5)))
        wanted = [DeleteRecordsPartition(partition_index=0, offset=offset)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=wanted)], timeout_ms=10_000)
        done = (await client.request(request)).topics[0].partitions[0]
        assert (done.error_code, done.low_watermark) == (ErrorCode.NONE, 5 if offset < 0 else offset)

    run_cluster(scenario, brokers=2)
