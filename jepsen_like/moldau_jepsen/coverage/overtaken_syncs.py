"""Counts the syncs of logs during which the log changed: what they make durable is not what the log holds then.

A sync of a partition's log is under way from the collection of its work until its result is taken, or for ever if its
process dies. Writes of the quorum's log are under way until a sync that covers them has returned.
"""

from __future__ import annotations

import enum
import weakref
from typing import TYPE_CHECKING

from moldau_broker.log.partition.recovery_point import Flush
from moldau_broker.log.partition.segmented_log import SegmentedLog
from moldau_quorum.log.raft.core.writes import Writes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau_broker.log.files.segment import LogSegment


class OvertakenSync(enum.Enum):
    """The ways in which a log changes while it is synced."""

    CUT = "cut"
    REPLACED = "replaced"
    ROLLED = "rolled"
    DELETED = "deleted"
    QUORUM_CUT = "quorum cut"


def sync_watchers(
    on_overtaken: Callable[[OvertakenSync], None],
) -> tuple[tuple[type, str, Callable[..., object]], ...]:
    """Returns what to replace, in which class and with what, to call ``on_overtaken`` for each such sync."""
    under_way: weakref.WeakKeyDictionary[SegmentedLog, Flush] = weakref.WeakKeyDictionary()
    begin, complete, failed = Flush.__init__, Flush.complete, Flush.failed
    cut, add, drop = SegmentedLog._cut, SegmentedLog._add_segment, SegmentedLog.drop_oldest
    replace, cut_quorum = SegmentedLog.replace_segments, Writes.truncated

    def watching_begin(self: Flush, log: SegmentedLog, offset: int, *, up_to_closed_only: bool) -> None:
        begin(self, log, offset, up_to_closed_only=up_to_closed_only)
        under_way[log] = self

    def watching_complete(self: Flush) -> bool:
        under_way.pop(self._log, None)
        return complete(self)

    def watching_failed(self: Flush, error: BaseException) -> None:
        under_way.pop(self._log, None)
        failed(self, error)

    def watching_cut(self: SegmentedLog, offset: int, held: object) -> int:
        sync = under_way.get(self)
        end = cut(self, offset, held)  # type: ignore[arg-type]
        if sync is not None and end < sync._offset:
            on_overtaken(OvertakenSync.CUT)
        return end

    def watching_add(self: SegmentedLog, segment: LogSegment) -> None:
        if self in under_way:
            on_overtaken(OvertakenSync.ROLLED)
        add(self, segment)

    def watching_drop(self: SegmentedLog, count: int, *, keeps_start: bool = False) -> None:
        if self in under_way:
            on_overtaken(OvertakenSync.DELETED)
        drop(self, count, keeps_start=keeps_start)

    def watching_replace(self: SegmentedLog, old: Sequence[LogSegment], new: LogSegment) -> None:
        if self in under_way:
            on_overtaken(OvertakenSync.REPLACED)
        replace(self, old, new)

    def watching_quorum(self: Writes, last_index: int) -> None:
        if any(index > last_index for _, index in self._handed_out):
            on_overtaken(OvertakenSync.QUORUM_CUT)
        cut_quorum(self, last_index)

    return (
        (Flush, "__init__", watching_begin),
        (Flush, "complete", watching_complete),
        (Flush, "failed", watching_failed),
        (SegmentedLog, "_cut", watching_cut),
        (SegmentedLog, "_add_segment", watching_add),
        (SegmentedLog, "drop_oldest", watching_drop),
        (SegmentedLog, "replace_segments", watching_replace),
        (Writes, "truncated", watching_quorum),
    )
