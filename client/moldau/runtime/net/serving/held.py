"""The memory that one connection's pending answers keep, and its charge to the shared budget.

A request that is answered at once keeps no memory. A waiting request may keep its bytes or its decoded values, and
ready answers queued behind it keep theirs. Memory up to an allowance (the size of a first receive buffer) is free.
Memory beyond it is charged to the budget that the receive buffers of all connections share. It is in use already when
it is counted, so a connection that cannot pay is not read until it can, or until its own answers have left. Therefore
no request waits for the budget before it is answered, and every charge ends by the deadline of an answer.

At most one drain of each connection is unpaid, and its receive buffer stays reserved meanwhile. The memory of requests
is bounded by the budget plus the decoded size of the reserved receive buffers.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from moldau.runtime.tasks.sync import ByteBudget


class HeldBytes:
    """The account of one connection. Invariant: ``charged`` bytes of the budget are taken for it."""

    __slots__ = ("_allowance", "_budget", "_paying", "_waiting", "charged", "held", "in_line")

    def __init__(self, budget: ByteBudget, allowance: int) -> None:
        """``allowance`` in bytes is free."""
        self._budget = budget
        self._allowance = allowance
        self._waiting: deque[int] = deque()  # what each request that waits keeps, oldest first
        self._paying: trio.CancelScope | None = None
        self.in_line = False  # the connection waits for bytes of the budget to receive more
        self.held = 0
        self.charged = 0

    @property
    def unpaid(self) -> int:
        """Bytes that must be paid before more is read; not positive if there are none."""
        return self.held - self.charged - self._allowance

    @property
    def is_paying(self) -> bool:
        """Whether the connection waits for bytes of the budget."""
        return self._paying is not None

    @property
    def others_wait(self) -> bool:
        """Whether another connection waits for bytes of the budget."""
        return self._budget.waiters > (self.in_line or self._paying is not None)

    def fits(self, count: int) -> bool:
        """Returns whether ``count`` more bytes are free or could be paid at once."""
        missing = self.unpaid + count
        return missing <= 0 or self._budget.has_room(missing)

    def request_waits(self, count: int) -> None:
        """Adds a request without an answer that keeps ``count`` bytes."""
        self._waiting.append(count)
        self.held += count

    def request_answered(self) -> None:
        """Removes the oldest request, which was answered."""
        self._left(self._waiting.popleft())

    def answer_queued(self, count: int) -> None:
        """Adds a ready answer of ``count`` bytes that is queued behind one that is not ready."""
        self.held += count

    def answer_sent(self, count: int) -> None:
        """Removes the answer, which was sent."""
        self._left(count)

    def _left(self, count: int) -> None:
        self.held -= count
        if self.charged or self._paying is not None:
            self._give_back()

    def _give_back(self) -> None:
        surplus = self.charged - max(0, self.held - self._allowance)
        if surplus > 0:
            self.charged -= surplus
            self._budget.release(surplus)
        if self._paying is not None and self.unpaid <= 0:
            self._paying.cancel()

    async def pay(self) -> None:
        """Charges the unpaid bytes to the budget; waits in line until enough answers have left.

        A checkpoint only when it waits. A cancelled call charges nothing.
        """
        missing = self.unpaid
        if missing <= 0:
            return
        if not self._budget.acquire_nowait(missing):
            with trio.CancelScope() as scope:
                self._paying = scope
                try:
                    await self._budget.acquire(missing)
                finally:
                    self._paying = None
            if scope.cancelled_caught:
                return  # the answers have left, so their memory is free
        self.charged += missing
        self._give_back()

    def close(self) -> None:
        """Gives everything back: the connection has ended."""
        charged, self.charged = self.charged, 0
        self.held = 0
        if charged:
            self._budget.release(charged)
