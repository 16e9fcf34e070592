"""Judges the results of cleaning and deletion, and the fencing of silent brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

FORGIVEN_SECONDS = 2.0
GAP_SECONDS = 3.5
CLOCK_RATE_MIN = 0.5
"""The slowest clock of a node that faults make."""


class CompactionRules:
    """Judges compacted logs: of each key, what was written last stays."""

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._violated = violated
        self._last: dict[Hashable, dict[bytes, tuple[int, bool]]] = {}

    def committed(self, key: Hashable, offset: int, record_key: bytes | None, *, is_tombstone: bool) -> None:
        """The next committed record of partition ``key``; records of aborted transactions are left out."""
        if record_key is None:
            return
        last = self._last.setdefault(key, {})
        known = last.get(record_key)
        if (
            known is None or known[0] < offset
        ):  # a transaction's records are reported when it is committed, later than others
            last[record_key] = (offset, is_tombstone)

    def cleaned(self, key: Hashable, broker: int, log_start: int, log_end: int, offsets: Iterable[int]) -> None:
        """A replica of ``key`` was changed by the cleaner, and holds records at ``offsets`` from ``log_start`` on."""
        present = set(offsets)
        for offset, is_tombstone in self._last.get(key, {}).values():
            if not is_tombstone and log_start <= offset < log_end and offset not in present:
                self._violated(
                    "compaction-keeps", f"{key}: broker {broker} cleaned away offset {offset}, the last of its key"
                )
                return


class RetentionRules:
    """Judges deletion by size."""

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._violated = violated

    def deleted(
        self, key: Hashable, broker: int, *, log_start: int, watermark: int, size_bytes: int, retention_bytes: int
    ) -> None:
        """The log of a replica begins later than before.

        ``size_bytes`` is what it holds now (-1: unknown), ``retention_bytes`` what it must keep (-1: says nothing).
        """
        if log_start > watermark:
            self._violated(
                "retention-keeps", f"{key}: the log of broker {broker} begins at {log_start}, committed is {watermark}"
            )
        if 0 <= size_bytes < retention_bytes:
            self._violated(
                "retention-keeps",
                f"{key}: broker {broker} holds {size_bytes} bytes after a deletion, {retention_bytes} are to be kept",
            )


class SessionRules:
    """Judges whether brokers that no controller hears are given up.

    The bound is generous: it must hold for the slowest clock, and only while one controller is active and gets on
    without a pause, which shows that it is able to. A broker counts as silent from the moment on at which it was first
    seen silent, or since a controller last answered it: what is on its way when it falls silent may arrive much later.
    A heartbeat that does so may bring it back into service, for the length of a session again.
    """

    def __init__(self, violated: Callable[[str, str], None], session_seconds: float) -> None:
        """``session_seconds`` as configured."""
        self._violated = violated
        self._bound = session_seconds / CLOCK_RATE_MIN + FORGIVEN_SECONDS + GAP_SECONDS
        self._controller: tuple[int, int] = (-1, -1)
        self._since = 0.0
        self._last_seen = 0.0
        self._heard: dict[int, float] = {}
        self._silent: dict[int, float] = {}
        self._fenced: dict[int, float] = {}  # when it was last seen fenced

    def broker_heard(self, now: float, broker: int) -> None:
        """A controller answers a heartbeat or a registration of the broker."""
        self._heard[broker] = now

    def controller_paused(self, now: float, node: int) -> None:
        """The process of a controller stands still: that is no fault of the brokers, and their sessions wait for it."""
        if self._controller[0] == node:
            self._since = now

    def controller_gets_on(
        self, now: float, node: int, epoch: int, silent: Mapping[int, str], unfenced: Iterable[int]
    ) -> None:
        """The active controller has applied something, or works and nothing waits to be committed.

        ``silent``: brokers that it cannot hear, and why. ``unfenced``: brokers that are not fenced now.
        """
        if self._controller != (node, epoch) or now - self._last_seen > GAP_SECONDS:
            self._controller, self._since = (node, epoch), now
            self._fenced.clear()
        self._last_seen = now
        self._silent = {broker: self._silent.get(broker, now) for broker in silent}
        in_service = frozenset(unfenced)
        self._fenced.update(dict.fromkeys(self._silent.keys() - in_service, now))
        for broker in sorted(in_service):
            since = self._silent.get(broker)
            if since is None:
                continue
            since = max(since, self._heard.get(broker, since), self._fenced.get(broker, since))
            if now - max(since, self._since) > self._bound:
                self._violated(
                    "session-timeout-enforced",
                    f"broker {broker} {silent[broker]}, nothing was heard of it since {since:.3f} s, "
                    f"and controller {node} has not fenced it",
                )
                return
