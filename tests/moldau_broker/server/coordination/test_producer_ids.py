"""Goal: producers that need ids while no controller answers are refused after one attempt, however many they are.

Method: the broker's producer ids alone, with a controller that does not answer at first; virtual time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.allocate_producer_ids import AllocateProducerIdsResponse
from moldau.values import BrokerId
from moldau_broker.server.coordination.producer_ids import ALLOCATION_TIMEOUT_MS, ProducerIds
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerUnavailableError

if TYPE_CHECKING:
    from moldau_jepsen.world.world import World

CALLERS = 20


def test_all_that_wait_fail_with_one_attempt() -> None:
    """One attempt each, in turn, kept the last of twenty producers waiting for minutes."""
    taken: list[int] = []
    refused: list[ErrorCode] = []

    async def main(world: World) -> float:
        asked = 0

        async def request(*_: object, timeout_ms: float) -> AllocateProducerIdsResponse:
            nonlocal asked
            asked += 1
            if asked == 1:
                await trio.sleep(timeout_ms / 1000)
                raise ControllerUnavailableError
            await trio.lowlevel.checkpoint()
            return AllocateProducerIdsResponse(producer_id_start=700, producer_id_len=1000)

        controller: Any = SimpleNamespace(request=request)
        ids = ProducerIds(BrokerId(1), controller, lambda: 5)

        async def take() -> None:
            try:
                taken.append(await ids.take())
            except KafkaError as error:
                refused.append(error.code)

        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(take)
        took_s = trio.current_time()
        await take()
        await take()
        return took_s

    took_s = run_world(main, 1)
    assert refused == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * CALLERS
    assert took_s < 2 * ALLOCATION_TIMEOUT_MS / 1000
    assert taken == [700, 701], "a later call asks again"


def test_each_id_of_a_block_is_given_out_once() -> None:
    """And none beside it: another broker has that."""

    async def main(world: World) -> None:
        starts = [700, 1_700, 2_701]

        async def request(*_: object, timeout_ms: float) -> AllocateProducerIdsResponse:
            await trio.lowlevel.checkpoint()
            return AllocateProducerIdsResponse(producer_id_start=starts.pop(0), producer_id_len=4)

        controller: Any = SimpleNamespace(request=request)
        ids = ProducerIds(BrokerId(1), controller, lambda: 5)
        found = [await ids.take() for _ in range(10)]
        assert found == [700, 701, 702, 703, 1_700, 1_701, 1_702, 1_703, 2_701, 2_702]

    run_world(main, 2)
