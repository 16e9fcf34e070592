"""Decides when the disk of a log directory hangs. Pure.

A disk can fail without an error: a sync is called and never returns (a lost device, a network file system without its
server). Long work alone proves nothing: a sync of gigabytes on a busy disk takes its time, and so does a cleaner. When
some work in a directory has not returned for half of the limit, the shell therefore syncs one byte in a file of its own
there, as a probe. If the probe has no result for the other half of the limit either, the directory hangs. If it
returns, the disk works, and the next probe starts when the work has taken another half of the limit.

Work that no client waits for (flushes in the background, a cleaner, recovery) has ten times as long, because giving up
a directory costs more than its delay: where a journal orders all syncs, even a probe can wait behind a large one.

Time counts from the moment when a thread begins, so that work that waits for a thread proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

BACKGROUND_FACTOR: Final = 10
"""How many times as long work may take that no client waits for."""


@dataclass(slots=True, eq=False)
class Outstanding:
    """Work or a probe that has not returned. ``eq=False``: each is itself alone."""

    directory: str
    is_awaited: bool
    """Whether clients wait for it."""
    begun_ms: float | None = None
    """When a thread began it; None while it waits for one. The thread sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The decisions at one time."""

    probe: Sequence[str]
    """Directories to probe now; tell ``probe_began``."""
    hung: Sequence[str]
    """Directories that hang."""


class DiskPatience:
    """The outstanding work of all log directories of a broker.

    Invariant: at most one probe of a directory is outstanding.
    """

    def __init__(self, limit_ms: float) -> None:
        """``limit_ms`` is ``log.dir.sync.timeout.ms``; 0: no directory ever hangs."""
        self._half_ms = limit_ms / 2
        self._background_half_ms = self._half_ms * BACKGROUND_FACTOR
        self._works: dict[Outstanding, None] = {}
        self._probes: dict[str, Outstanding] = {}
        self._probed_ms: dict[str, float] = {}

    @property
    def has_work(self) -> bool:
        """Whether any work is outstanding."""
        return bool(self._works)

    def began(self, directory: str, *, is_awaited: bool) -> Outstanding:
        """Adds work in a directory, and returns its entry."""
        entry = Outstanding(directory, is_awaited)
        self._works[entry] = None
        return entry

    def ended(self, entry: Outstanding) -> None:
        """Removes work that has returned or failed."""
        self._works.pop(entry, None)

    def probe_began(self, directory: str) -> Outstanding:
        """Adds a probe, and returns its entry."""
        entry = self._probes[directory] = Outstanding(directory, is_awaited=False)
        return entry

    def probe_ended(self, directory: str, now_ms: float) -> None:
        """Removes a probe that has returned or failed: the disk answers."""
        self._probes.pop(directory, None)
        self._probed_ms[directory] = now_ms

    def look(self, now_ms: float) -> Verdicts:
        """Decides; a directory that hangs is reported at each look until its probe ends."""
        if not self._half_ms:
            return Verdicts(probe=(), hung=())
        late: dict[str, float] = {}  # the half of the limit that applies, by directory
        for entry in self._works:
            half_ms = self._half_ms if entry.is_awaited else self._background_half_ms
            if _is_late(entry, now_ms, half_ms):
                late[entry.directory] = min(half_ms, late.get(entry.directory, half_ms))
        hung = [
            path
            for path, half_ms in late.items()
            if path in self._probes and _is_late(self._probes[path], now_ms, half_ms)
        ]
        probe = [
            path
            for path, half_ms in late.items()
            if path not in self._probes and now_ms - self._probed_ms.get(path, float("-inf")) >= half_ms
        ]
        return Verdicts(probe=probe, hung=hung)


def _is_late(entry: Outstanding, now_ms: float, patience_ms: float) -> bool:
    return entry.begun_ms is not None and now_ms - entry.begun_ms >= patience_ms
