"""A member's own sequence of random numbers, which depends on nothing but its seed (splitmix64). Pure."""

from __future__ import annotations

from typing import Final

_MASK: Final = (1 << 64) - 1


class Draws:
    """Numbers for election timeouts."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        """The lower 64 bits of ``seed`` count."""
        self._state = seed & _MASK

    def next(self) -> float:
        """Returns the next number in [0, 1)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        value = self._state
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
        return (value ^ value >> 31) / (1 << 64)
