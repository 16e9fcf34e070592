"""Allocates producer ids one by one from blocks of the controller (KIP-730).

The broker asks for the next block when the present one is used up; callers meanwhile wait for the same answer, and fail
with it. The rest of a block is lost when the broker stops, which does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from moldau_quorum.broker_side.controller_client import ControllerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.values import BrokerId
    from moldau_quorum.broker_side.controller_client import ControllerClient

ALLOCATION_TIMEOUT_MS = 10_000.0


class ProducerIds:
    """The present block of producer ids of this broker."""

    def __init__(self, broker_id: BrokerId, controller: ControllerClient, broker_epoch: Callable[[], int]) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._next = 0
        self._end = 0  # exclusive
        self._asking = trio.Lock()
        self._failed = 0  # attempts
        self._why = ""  # the last of them failed
        self._broker_epoch = broker_epoch

    async def take(self) -> int:
        """Returns an unused producer id.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS, which the client retries.
        """
        failed = self._failed
        async with self._asking:
            if self._next >= self._end:
                if self._failed != failed:  # one attempt after the other would take minutes for many callers
                    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, self._why)
                await self._allocate()
            taken = self._next
            self._next += 1
            return taken

    async def _allocate(self) -> None:
        try:
            await self._ask_for_block()
        except KafkaError as error:
            self._failed += 1
            self._why = error.message
            raise

    async def _ask_for_block(self) -> None:
        request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        try:
            response = await self._controller.request(
                request, AllocateProducerIdsResponse, timeout_ms=ALLOCATION_TIMEOUT_MS
            )
        except ControllerUnavailableError as error:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        if response.error_code != ErrorCode.NONE or response.producer_id_len <= 0:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"the controller refused a block of producer ids: {ErrorCode.of(response.error_code).name}",
            )
        self._next = response.producer_id_start
        self._end = response.producer_id_start + response.producer_id_len
