"""Long checks of the records of a Produce request, which do not hold up other requests.

Checks that take a fraction of a millisecond run where the request is handled. Longer ones run before that, in slices
between which the event loop serves other connections. The sending connection is not read meanwhile, so its requests
keep their order; other connections wait for a slice and not for a request. At most ``CHECKS_MAX`` requests are checked
in slices at a time, which bounds the memory of decompression. Data that cannot be decompressed piece by piece goes to a
thread, one batch at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.records.decompression import WHOLE_BYTES_MAX, LongStep
from moldau_broker.log.partition.validator import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from moldau_broker.log.partition.validator import BatchValidation

INLINE_COST = 2 * PIECE_BYTES
"""Cost of checks that one drain of a connection may run without slices; about the decompressed bytes of records."""
SLICE_COST = 4 * PIECE_BYTES
"""Cost of a slice, after which other tasks run."""
CHECKS_MAX = 4
"""Requests that are checked in slices at a time."""


class CheckLanes:
    """Limits how many long checks of one broker run at a time."""

    __slots__ = ("slots", "whole")

    def __init__(self) -> None:
        self.slots = trio.Semaphore(CHECKS_MAX)
        self.whole = trio.Lock()
        """Held while a check keeps the whole decompressed records of a large batch in memory."""


class InlineBudget:
    """The cost that one drain of a connection may still spend on checks without slices."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = INLINE_COST

    def renew(self) -> None:
        """Restores the full budget when a new drain begins."""
        self.left = INLINE_COST


class RequestChecks:
    """The checks of one request's batches, by the number of the batch in the request."""

    __slots__ = ("_bytes_max", "_spent", "topics", "validations")

    def __init__(self, validations: dict[int, BatchValidation], bytes_max: int, topics: Sequence[bytes] = ()) -> None:
        """``bytes_max`` bounds the decompressed bytes of the records of all batches together.

        ``topics`` are those among which the batches were numbered: the request without what its client may not write.
        """
        self.topics = list(topics)
        self.validations = validations
        self._bytes_max = bytes_max
        self._spent = 0  # since the last slice ended

    def run_now(self, budget: InlineBudget) -> bool:
        """Runs all checks if ``budget`` suffices; else returns False, and ``run`` starts them from the beginning."""
        left, bytes_left = budget.left, self._bytes_max
        if sum(validation.size for validation in self.validations.values()) > left:
            return False
        for validation in self.validations.values():
            steps = validation.steps(bytes_left=bytes_left, whole_bytes_max=left)
            for step in steps:
                if isinstance(step, LongStep) or validation.cost > left:
                    steps.close()
                    return False
            left -= validation.cost
            bytes_left -= validation.unpacked_bytes
        budget.left = left
        return True

    async def run(self, lanes: CheckLanes, offload: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """Runs all checks in slices; ``offload`` is ``Disk.offload``."""
        bytes_left = self._bytes_max
        async with lanes.slots:
            for validation in self.validations.values():
                await self._run_one(validation, bytes_left, lanes.whole, offload)
                bytes_left -= validation.unpacked_bytes

    async def _run_one(
        self,
        validation: BatchValidation,
        bytes_left: int,
        whole: trio.Lock,
        offload: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        cost, is_whole = 0, False
        try:
            for step in validation.steps(bytes_left=bytes_left, whole_bytes_max=WHOLE_BYTES_MAX):
                self._spent += validation.cost - cost
                cost = validation.cost
                if isinstance(step, LongStep):
                    if not is_whole:
                        await whole.acquire()
                        is_whole = True
                    await offload(step.run)
                    self._spent = 0
                elif self._spent >= SLICE_COST:
                    self._spent = 0
                    await trio.lowlevel.checkpoint()
        finally:
            if is_whole:
                whole.release()
