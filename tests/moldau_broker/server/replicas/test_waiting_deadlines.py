"""Goal: a waiting request is answered at its own deadline, or when the leadership that it waits for ends.

Method: the waits of a broker alone, on virtual time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.values import Offset
from moldau_broker.server.replicas.delayed import Operation, Waiters
from moldau_broker.server.replicas.replica_waits import ReplicaWaits
from moldau_jepsen.world.world import run_world

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
