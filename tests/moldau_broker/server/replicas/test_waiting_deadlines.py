"""Goal: each waiting request is answered at its own deadline, in whatever order the deadlines come.

Method: the purgatory of waiting produces alone, on virtual time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from moldau_broker.server.replicas.delayed import Operation, Waiters
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
