"""Limits how often the same line may appear in a log, and counts the lines that it left out. Pure.

Each key has windows of a fixed length, which begin with its first line. The first ``lines_max`` lines of a window
pass; the others are counted. The count is due when the window has ended. The table of keys is bounded: a new key
above the bound ends the oldest window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

K = TypeVar("K")

KEYS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut(Generic[K]):
    """Lines of one key that one window left out; ``count`` is at least 1."""

    key: K
    count: int
    window_ms: float
    """From the first line of the window to its end."""


class _Window:
    __slots__ = ("began_ms", "left_out", "passed")

    def __init__(self, began_ms: float) -> None:
        self.began_ms = began_ms
        self.passed = 0
        self.left_out = 0


class RepeatLimiter(Generic[K]):
    """The windows of all keys. Times never go back."""

    def __init__(self, *, lines_max: int, window_ms: float, keys_max: int = KEYS_MAX) -> None:
        """``lines_max`` and ``keys_max`` are at least 1."""
        assert lines_max >= 1, "a limit of 0 lines would hide everything"
        assert keys_max >= 1, "the line that is judged needs a place"
        self._lines_max = lines_max
        self._window_ms = window_ms
        self._keys_max = keys_max
        self._windows: dict[K, _Window] = {}
        """In the order of their beginnings. Invariant: at most ``keys_max``, and none has ended at the last call."""

    def ended(self, now_ms: float) -> list[LeftOut[K]]:
        """Removes the windows that have ended, and returns what they left out, the oldest first."""
        found = []
        while self._windows:
            key, window = next(iter(self._windows.items()))
            if now_ms - window.began_ms < self._window_ms:
                break
            found += self._end(key, self._window_ms)
        return found

    def admit(self, key: K, now_ms: float) -> tuple[bool, list[LeftOut[K]]]:
        """Judges one line.

        Returns:
            Whether the line passes, and what windows left out that end with this call.
        """
        due = self.ended(now_ms)
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) == self._keys_max:
                oldest = next(iter(self._windows))
                due += self._end(oldest, now_ms - self._windows[oldest].began_ms)
            window = self._windows[key] = _Window(now_ms)
        if window.passed == self._lines_max:
            window.left_out += 1
            return False, due
        window.passed += 1
        return True, due

    def finish(self, now_ms: float) -> list[LeftOut[K]]:
        """Ends all windows early, and returns what they left out."""
        found: list[LeftOut[K]] = []
        for key in list(self._windows):
            found += self._end(key, min(self._window_ms, now_ms - self._windows[key].began_ms))
        return found

    def _end(self, key: K, lasted_ms: float) -> list[LeftOut[K]]:
        window = self._windows.pop(key)
        return [LeftOut(key=key, count=window.left_out, window_ms=lasted_ms)] if window.left_out else []
