"""Deadlines in constant time: a hierarchical hashed timing wheel.

Six levels of 64 slots. A slot of level ``n`` spans ``64**n`` ticks of one millisecond, and a timer lives in the level
of the highest bit in which its deadline differs from the present tick, so each timer moves down at most five times.
Each level keeps a 64-bit map of its occupied slots. One rotation and one bit scan find the next occupied slot, so there
is neither a heap nor a scan over empty slots, and an idle wheel costs nothing.

Insert and cancel are O(1); ``advance`` is O(timers that expire or cascade). Source: Varghese and Lauck, "Hashed and
Hierarchical Timing Wheels", 1987, scheme 7.
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

T = TypeVar("T")

_LEVELS = 6
_SLOT_BITS = 6
_SLOTS = 1 << _SLOT_BITS
_SLOT_MASK = _SLOTS - 1
_ALL_SLOTS = (1 << _SLOTS) - 1
_EXACT_TIMERS_MAX = 8
DELAY_MS_MAX = (1 << (_LEVELS * _SLOT_BITS)) - 1
"""The longest delay of a wheel, about two years; longer delays are shortened to it."""


class Timer(Generic[T]):
    """One pending deadline, created by ``TimerWheel.insert``. Only the wheel changes its fields."""

    __slots__ = ("_level", "_slot", "deadline_tick", "payload")

    def __init__(self, deadline_tick: int, payload: T) -> None:
        self.deadline_tick = deadline_tick
        self.payload = payload
        self._level = -1
        self._slot = -1


class TimerWheel(Generic[T]):
    """The pending timers of one node.

    Invariants: every pending timer's ``deadline_tick`` is greater than ``_tick``; bit ``s`` of ``_occupied[l]`` is set
    exactly when ``_slots[l][s]`` holds a timer.
    """

    __slots__ = ("_count", "_occupied", "_slots", "_tick")

    def __init__(self, now_ms: float) -> None:
        self._tick = math.floor(now_ms)
        self._slots: list[list[dict[Timer[T], None]]] = [[{} for _ in range(_SLOTS)] for _ in range(_LEVELS)]
        self._occupied = [0] * _LEVELS
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def insert(self, deadline_ms: float, payload: T) -> Timer[T]:
        """Adds a timer that expires at the first ``advance`` whose time is at least ``deadline_ms``.

        A deadline in the past expires at the next tick: nothing expires inside ``insert``.
        """
        tick = min(max(math.ceil(deadline_ms), self._tick + 1), self._tick + DELAY_MS_MAX)
        timer = Timer(tick, payload)
        self._place(timer)
        self._count += 1
        return timer

    def cancel(self, timer: Timer[T]) -> bool:
        """Removes the timer; returns False if it has expired or was cancelled before."""
        level = timer._level
        if level < 0:
            return False
        bucket = self._slots[level][timer._slot]
        del bucket[timer]
        if not bucket:
            self._occupied[level] &= ~(1 << timer._slot)
        timer._level = -1
        self._count -= 1
        return True

    def next_deadline_ms(self) -> int | None:
        """Returns when to call ``advance`` next, for an expiry or a cascade; None for an empty wheel.

        The result is at most the earliest deadline, exactly that while few timers share its slot, and never before the
        present tick.
        """
        found = self._next_slot()
        if found is None:
            return None
        level, slot, start = found
        bucket = self._slots[level][slot]
        # All timers of the first occupied slot expire before those of any other slot. Reading a few of them saves a
        # wake-up that only moves them down; reading many would make the cost grow with their number.
        if level == 0 or len(bucket) > _EXACT_TIMERS_MAX:
            return start
        return min(timer.deadline_tick for timer in bucket)

    def advance(self, now_ms: float) -> list[T]:
        """Moves the wheel to ``now_ms`` and returns the payloads that expired, by deadline.

        A time before the present tick is ignored.
        """
        target = math.floor(now_ms)
        expired: list[T] = []
        while (found := self._next_slot()) is not None:
            level, slot, start = found
            if start > target:
                break
            bucket = self._slots[level][slot]
            self._slots[level][slot] = {}
            self._occupied[level] &= ~(1 << slot)
            assert start >= self._tick
            self._tick = start
            for timer in bucket:
                if timer.deadline_tick <= start:
                    timer._level = -1
                    self._count -= 1
                    expired.append(timer.payload)
                else:
                    self._place(timer)
        self._tick = max(self._tick, target)
        return expired

    def _place(self, timer: Timer[T]) -> None:
        differing = (self._tick ^ timer.deadline_tick).bit_length() - 1
        level = min(differing // _SLOT_BITS, _LEVELS - 1)
        slot = (timer.deadline_tick >> (level * _SLOT_BITS)) & _SLOT_MASK
        self._slots[level][slot][timer] = None
        self._occupied[level] |= 1 << slot
        timer._level = level
        timer._slot = slot

    def _next_slot(self) -> tuple[int, int, int] | None:
        """Returns level, slot and start tick of the earliest occupied slot.

        A timer of a level lies in a later slot of the present turn of that level; the highest level may reach into its
        next turn. All timers of a lower level expire before those of a higher one.
        """
        for level in range(_LEVELS):
            occupied = self._occupied[level]
            if not occupied:
                continue
            shift = level * _SLOT_BITS
            position = (self._tick >> shift) & _SLOT_MASK
            rotated = ((occupied >> position) | (occupied << (_SLOTS - position))) & _ALL_SLOTS
            distance = (rotated & -rotated).bit_length() - 1
            slot = (position + distance) & _SLOT_MASK
            start = ((self._tick >> shift) + distance) << shift
            if distance == 0:
                # Only the highest level can hold a timer of its own present slot: one whole turn away.
                assert level == _LEVELS - 1
                later = rotated & ~1
                if later:
                    distance = (later & -later).bit_length() - 1
                    slot = (position + distance) & _SLOT_MASK
                else:
                    distance = _SLOTS
                start = ((self._tick >> shift) + distance) << shift
            return level, slot, start
        return None
