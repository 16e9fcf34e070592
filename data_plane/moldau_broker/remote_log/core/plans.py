"""The next actions of a partition's leader on its remote log, as values.

The order of a round: list if it is time (``must_list``), move the log start offset behind deleted segments
(``start_behind_deleted``), copy (``to_copy``), note ``copied_end``, move the log start offset by retention
(``start_by_retention``), and delete (``to_delete``). A deletion never comes before the log start offset that allows it
is durable.

A former leader may do all of this for a while beside its successor. So a segment is deleted only if the successor can
do without it, too:

- Below the log start offset: retention and DeleteRecords decide alike on all brokers, and a new leader moves its log
  start offset behind segments whose deletion is proved.
- Contained in another segment: see ``remote_log``.
- Foreign segments of a newer leader epoch are left alone, because they are the successor's. Others hold records that an
  unclean election dropped. They may be the last copy of these, so they go when the log's own records of their offsets
  or of their time go.
- Unfinished objects go if they were so old when they were listed that no copy of them was in progress. So a copy that
  fails may use its id again only for half of that time (``may_reuse_id``). The age today would not do: the copy may
  have succeeded since the listing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau_broker.remote_log.core.names import DeletionProof

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.ports.objects import StoredObject
    from moldau_broker.remote_log.core.names import RemoteSegment
    from moldau_broker.remote_log.core.remote_log import RemoteLog

NO_LIMIT = -1
"""``retention.ms`` or ``retention.bytes`` without a limit."""
PROOFS_KEPT = 4
"""Proofs below the log start offset that stay. A new leader needs the last one of its log, and those of logs that an
unclean election has ended may stand behind it."""


class Retention(NamedTuple):
    """How long a log keeps its records, wherever they are."""

    retention_ms: int
    """``retention.ms``; ``NO_LIMIT``: for ever."""
    retention_bytes: int
    """``retention.bytes``; ``NO_LIMIT``: any size."""


class Deletions(NamedTuple):
    """Objects that may be deleted now, in this order; of a segment first ``.log``, then ``.aux``."""

    segments: list[RemoteSegment]
    objects: list[StoredObject]
    """Unfinished objects."""
    proofs: list[DeletionProof]
    """To be durable before the first segment goes; without those that the store has."""
    needless: list[DeletionProof]
    """Proofs that later ones have made needless."""


class ClosedRange(NamedTuple):
    """The range of a closed local segment."""

    base_offset: int
    last_offset: int


def to_copy(remote: RemoteLog, closed: Sequence[ClosedRange], log_start_offset: int) -> list[int]:
    """Returns the indexes of the closed local segments that are to be copied, in order.

    Those that hold an offset at or above the log start offset that no remote segment of the log holds.
    """
    return [
        index
        for index, (base_offset, last_offset) in enumerate(closed)
        if not remote.covers(max(base_offset, log_start_offset), last_offset + 1)
    ]


def may_reuse_id(first_attempt_ms: int, now_ms: int, unfinished_delete_delay_ms: int) -> bool:
    """Returns whether a failed copy may be tried again under its id.

    Later another broker may take the copy's ``.aux`` for a leftover and delete it at any moment; then ``.log`` alone
    would be no segment, though the copy succeeded. Under a new id the old objects are leftovers, or a contained copy.
    """
    return now_ms - first_attempt_ms < unfinished_delete_delay_ms // 2


def must_list(listed_ms: int | None, now_ms: int, unfinished_delete_delay_ms: int) -> bool:
    """Returns whether the leader lists the store (again); ``listed_ms`` is when it did last, None: not as this leader.

    A listing of a former leader's last minutes shows objects that are too young to delete, and misses copies that are
    still in progress. Only a later listing finds them.
    """
    return listed_ms is None or now_ms - listed_ms >= unfinished_delete_delay_ms


def is_superseded(remote: RemoteLog, leader_epoch: int) -> bool:
    """Returns whether the store shows that a newer leader than that of ``leader_epoch`` has copied segments.

    A broker that believes to lead can stop then. It does not know the newer epochs, so it cannot know whether the new
    leader's segments hold records of its log.
    """
    return any(segment.last_epoch > leader_epoch for segment in remote.foreign)


def lacks_all(remote: RemoteLog, *, log_start_offset: int, local_log_start_offset: int) -> bool:
    """Returns whether a store that must have records of this log, because the disk has deleted them, has none of them.

    It is more likely the wrong store, an empty mount point, or one that has lost its data, than a store from which a
    former leader has deleted all. Then the leader copies nothing: its disk would delete what it has copied, and the
    right store would lack these records when it comes back.
    """
    missing = [(log_start_offset, local_log_start_offset)]
    return remote.holes(*missing[0]) == missing


def start_behind_deleted(remote: RemoteLog, leader_epoch: int, *, log_start_offset: int) -> int:
    """Returns the log start offset of a log whose oldest remote segments a former leader has deleted.

    Only a proof moves it (``names.DeletionProof``). Other records that are missing are holes (``RemoteLog.holes``): the
    store has lost them, or is not the one that had them. A leader that is superseded moves nothing; its successor does.
    """
    return log_start_offset if is_superseded(remote, leader_epoch) else max(log_start_offset, remote.deleted_end)


def start_behind_expired(
    retention: Retention,
    *,
    log_start_offset: int,
    local_log_start_offset: int,
    local_bytes: int,
    first_timestamp_ms: int,
    now_ms: int,
) -> int:
    """Returns the log start offset of a log for which ``lacks_all`` holds: retention may delete what is missing.

    ``local_bytes`` are those of the local log below the high watermark, ``first_timestamp_ms`` is the largest timestamp
    of its first segment, -1 if it has none. A former leader may have deleted all remote records by retention. Then that
    of this log demands the same after some time, for as long as nothing is copied.
    """
    by_bytes = 0 <= retention.retention_bytes <= local_bytes
    by_time = retention.retention_ms >= 0 and 0 <= first_timestamp_ms < now_ms - retention.retention_ms
    return max(log_start_offset, local_log_start_offset) if by_bytes or by_time else log_start_offset


def start_by_retention(
    remote: RemoteLog, retention: Retention, *, log_start_offset: int, uncopied_bytes: int, now_ms: int
) -> int:
    """Returns the log start offset that ``retention.ms`` and ``retention.bytes`` demand, at least the present one.

    ``uncopied_bytes`` are those of the local log at or above the copied end offset and below the high watermark.
    Records above it may never be committed, and must not push committed ones out of a log. A segment without timestamps
    goes by the time at which the store got it, and at the latest with the first one after it that has timestamps.
    """
    start = log_start_offset
    surplus = remote.size_bytes + uncopied_bytes - retention.retention_bytes
    by_bytes = retention.retention_bytes >= 0
    for segment, size in zip(remote.segments, remote.sizes(), strict=True):
        expired = 0 <= remote.written_ms(segment) < now_ms - retention.retention_ms and retention.retention_ms >= 0
        surplus -= size
        if expired or (by_bytes and surplus >= 0) or segment.end_offset <= start:
            start = max(start, segment.end_offset)
        elif segment.max_timestamp_ms >= 0:
            break
    return start


def to_delete(
    remote: RemoteLog,
    retention: Retention,
    *,
    log_start_offset: int,
    leader_epoch: int,
    now_ms: int,
    unfinished_delete_delay_ms: int,
) -> Deletions:
    """Returns what the leader of ``leader_epoch`` deletes; ``log_start_offset`` is durable.

    Call ``RemoteLog.deleted``, ``removed`` or ``superseded`` before each deletion.
    """

    def is_past(segment: RemoteSegment) -> bool:
        by_time = 0 <= remote.written_ms(segment) < now_ms - retention.retention_ms and retention.retention_ms >= 0
        return segment.last_epoch <= leader_epoch and (segment.end_offset <= log_start_offset or by_time)

    own = [segment for segment in remote.segments if segment.end_offset <= log_start_offset]
    foreign = [segment for segment in remote.foreign if is_past(segment)]
    old = [item for item in remote.unfinished if remote.listed_ms - item.modified_ms >= unfinished_delete_delay_ms]
    # Which of the segments below the log start offset are of this log is not known any more after a new listing.
    ends: dict[int, int] = {}
    for segment in (*own, *foreign):
        if segment.end_offset <= log_start_offset:
            ends[segment.last_epoch] = max(segment.end_offset, ends.get(segment.last_epoch, 0))
    proofs = {DeletionProof(end_offset, epoch) for epoch, end_offset in ends.items()}
    past = sorted(each for each in proofs.union(remote.proofs) if each.end_offset <= log_start_offset)
    return Deletions(
        segments=[*own, *remote.contained, *foreign],
        objects=old,
        proofs=sorted(proofs.difference(remote.proofs)),
        needless=[each for each in past[:-PROOFS_KEPT] if each in remote.proofs],
    )
