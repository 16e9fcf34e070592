"""The receive buffer of one connection, and its part of the byte budget that all connections share.

A buffer starts small and free of charge. It grows to the frame that was announced, step by step as bytes arrive, and
each growth beyond the first size is reserved in the budget before the memory is taken. The owner receives into ``view``
from ``end`` on, handles frames from ``start`` on, and calls ``make_room`` after each drain.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moldau.runtime.net.serving.held import HeldBytes
    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.tasks.sync import ByteBudget

unpack_size = struct.Struct(">i").unpack_from

SIZE_BYTES = 4
"""The size prefix of a frame."""

GROWTH_FACTOR = 4
"""By how much a receive buffer grows at a time towards the frame that was announced."""

STEPWISE_BYTES_MAX = 1024 * 1024
"""Up to this size a frame's memory is reserved step by step, beyond it at once.

So two begun frames cannot wait for each other, and a peer that announces a large frame but sends it slowly does not
block the budget for others.
"""


SPARE_BYTES = 1
"""Room behind the largest frame: a receive that leaves it free has taken all bytes that had arrived."""


class ReceiveLimits(Protocol):
    """The limits of a server that concern received bytes; ``ServerLimits`` documents them."""

    @property
    def buffer_bytes(self) -> int:
        """Size of a first buffer."""

    @property
    def frame_ms(self) -> float:
        """Time for a frame that has begun."""

    @property
    def overdraft_ms(self) -> float:
        """Time without progress above the fair share of the budget."""

    @property
    def held_ms(self) -> float:
        """Time in which a frame above the fair share must be complete."""


class ReceiveBuffer:
    """Invariant: the bytes ``start..end`` of ``buffer`` are received and not yet handled."""

    __slots__ = (
        "_budget",
        "_clock",
        "_held",
        "_limits",
        "_noted_ms",
        "_noted_pending",
        "arrived_ms",
        "buffer",
        "end",
        "frame_deadline_ms",
        "reserved",
        "start",
        "view",
    )

    def __init__(self, budget: ByteBudget, held: HeldBytes, clock: Clock, limits: ReceiveLimits) -> None:
        """``held`` is the connection's account of the budget."""
        self._budget = budget
        self._held = held
        self._clock = clock
        self._limits = limits
        self.buffer = bytearray(limits.buffer_bytes)
        self.view = memoryview(self.buffer)
        self.start = self.end = 0
        self.arrived_ms = clock.monotonic_ms()
        """When the last bytes came; the owner notes it."""
        self.reserved = 0
        """Bytes of the shared budget: the size of the buffer when it is larger than the first."""
        self.frame_deadline_ms = math.inf
        """By when the frame that has begun must be complete; infinite while none has begun or the connection waits."""
        self._noted_pending = -1  # bytes of the frame that has begun, when it had last come quickly enough; -1: none
        self._noted_ms = 0.0  # and when that was

    @property
    def pending(self) -> int:
        """Bytes that are received and not yet handled."""
        return self.end - self.start

    def make_room(self) -> int:
        """Moves the unhandled bytes to the front and grows the buffer to the frame that has begun, or shrinks it.

        Returns 0, or how many bytes to ``reserve`` before the next call, which then grows the buffer.
        """
        pending = self.end - self.start
        if pending == 0:
            self.start = self.end = 0
            self.frame_deadline_ms = math.inf
            if self.reserved and self._budget.waiting:
                self.release()
            return 0
        if self.frame_deadline_ms == math.inf:
            self.frame_deadline_ms = self._clock.monotonic_ms() + self._limits.frame_ms
        needed = SIZE_BYTES
        if pending >= SIZE_BYTES:
            needed += unpack_size(self.buffer, self.start)[0]
        if needed > len(self.buffer):
            if self.start:
                self.move_to_front()
            if self.end == len(self.buffer):
                size = min(needed, GROWTH_FACTOR * len(self.buffer))
                reserved = size if size <= STEPWISE_BYTES_MAX else needed
                if self.reserved < reserved:
                    return reserved
                self._enlarge(size)
        elif self.start + needed > len(self.buffer) or self.start > len(self.buffer) // 2:
            self.move_to_front()
        return 0

    def move_to_front(self) -> None:
        """Moves the unhandled bytes to the front."""
        pending = self.end - self.start
        self.buffer[:pending] = self.view[self.start : self.end].tobytes()
        self.start, self.end = 0, pending

    async def reserve(self, needed: int) -> None:
        """Waits for ``needed`` bytes of the shared budget, in place of what this connection had reserved.

        The bytes it holds while it waits (at most ``STEPWISE_BYTES_MAX``) do not count, so no task waits with bytes
        reserved.
        """
        budget = self._budget
        if self.reserved:
            budget.release(self.reserved)
            self.reserved = 0
        if not budget.acquire_nowait(needed):
            self.frame_deadline_ms = math.inf
            self._held.in_line = True
            try:
                await budget.acquire(needed)
            finally:
                self._held.in_line = False
            self.frame_deadline_ms = self._clock.monotonic_ms() + self._limits.frame_ms
            self._noted_pending = -1
        self.reserved = needed

    def _enlarge(self, size: int) -> None:
        """Replaces the full buffer by one of ``size`` bytes.

        In steps, as bytes arrive: a fresh ``bytearray`` is filled with zeros, and a peer that announces a large frame
        without sending it must cost neither that memory nor that time.
        """
        pending = self.end
        assert self.start == 0, "a buffer is enlarged when it is full"
        assert self.reserved >= size, "a large buffer is paid for"
        buffer = bytearray(size + SPARE_BYTES)
        buffer[:pending] = self.view[:pending]
        self.buffer = buffer
        self.view = memoryview(buffer)

    def drop(self) -> None:
        """Drops the unhandled bytes and gives a large buffer back."""
        self.end = self.start
        self.release()

    def release(self) -> None:
        """Gives a large buffer and its bytes of the budget back."""
        if self.reserved:
            self.start = self.end = 0
            self.buffer = bytearray(self._limits.buffer_bytes)
            self.view = memoryview(self.buffer)
            reserved, self.reserved = self.reserved, 0
            self._budget.release(reserved)

    def note_progress(self, now_ms: float) -> float:
        """Returns for how many milliseconds the present frame has arrived too slowly.

        Too slowly means: at the present rate the frame is not complete within ``held_ms``.
        """
        if self.frame_deadline_ms == math.inf:
            self._noted_pending = -1
            return 0.0
        pending = self.end - self.start
        limits = self._limits
        expected = self.reserved * limits.overdraft_ms / limits.held_ms
        if not 0 <= self._noted_pending <= pending <= self._noted_pending + expected:
            self._noted_pending, self._noted_ms = pending, now_ms
        return now_ms - self._noted_ms
