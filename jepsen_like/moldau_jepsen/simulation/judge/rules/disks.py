"""Judges that a broker gives up a log directory whose disk answers no sync (ADR 0043)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moldau_broker.server.replicas.partition import Partition

LOOKS_PER_TIMEOUT = 12
"""How often the broker looks at outstanding work within ``log.dir.sync.timeout.ms``."""
CLOCK_RATE_MAX = 2.0
"""The fastest clock of a node that faults make."""
FORGIVEN_MS = 500.0
GAP_MS = 1_000.0
"""A broker that did nothing for so long was paused."""


class DiskRules:
    """Judges replicas whose records wait for a sync on a disk that hangs.

    Such records can neither be acknowledged nor reported to a leader. The broker has ``log.dir.sync.timeout.ms`` for
    its verdict, and each of the two halves (before the probe, and for the probe) may end just after one of its looks,
    which a fast clock moves apart. After that, and half a second for threads to begin, the replica must be gone. The
    time is that of the broker's own clock; it begins again after a pause of the broker. It is judged from the log
    alone, not from what the guard has noted. State per replica of a hanging disk: up to where its records are settled,
    and since when.
    """

    def __init__(self, violated: Callable[[str, str], None], timeout_ms: float) -> None:
        """``violated`` is called with the rule and a text; ``timeout_ms`` as configured, 0 if there is no limit."""
        self._violated = violated
        self._bound_ms = (
            timeout_ms * (1 + 2 * CLOCK_RATE_MAX / LOOKS_PER_TIMEOUT) + FORGIVEN_MS if timeout_ms else float("inf")
        )
        self._waiting: dict[int, dict[Partition, tuple[int, float]]] = {}
        self._looked_ms: dict[int, float] = {}

    def look(
        self, broker_id: int, now_ms: float, partitions: Iterable[Partition], is_hanging: Callable[[str], bool]
    ) -> None:
        """Tasks of a broker have run, of whose disk a part hangs; ``is_hanging`` is asked with a log's directory."""
        paused = now_ms - self._looked_ms.get(broker_id, now_ms) > GAP_MS
        self._looked_ms[broker_id] = now_ms
        before = self._waiting.get(broker_id, {}) if not paused else {}
        found: dict[Partition, tuple[int, float]] = {}
        for partition in partitions:
            log = partition.log
            settled = log.watermarks.settled_end_offset
            if settled == log.log_end_offset or log.failed or not is_hanging(log.directory):
                continue
            known, since_ms = before.get(partition, (settled, now_ms))
            since_ms = since_ms if known == settled else now_ms
            found[partition] = settled, since_ms
            if now_ms - since_ms > self._bound_ms:
                self._violated(
                    "hanging-disk-given-up",
                    f"broker {broker_id} keeps {log.directory}, where offset {settled} of {partition.key} has waited "
                    f"for a sync for {(now_ms - since_ms) / 1000:.1f} s by its clock, and the disk answers none",
                )
        self._waiting[broker_id] = found

    def calm(self, broker_id: int) -> None:
        """No disk of the broker hangs, or it need not give one up now."""
        self._waiting.pop(broker_id, None)
        self._looked_ms.pop(broker_id, None)
