"""Which segments retention deletes.

The segments of a tiered topic leave this disk by ``local.retention.ms`` and ``local.retention.bytes``, and only if they
are in the object store and durable here; the log start offset stays. ``retention.ms`` and ``retention.bytes`` hold for
the whole log then, and a broker obeys them by moving the log start offset. The active segment is closed when it is due,
because only closed segments are copied. Without copies (``remote.log.copy.disable``, KIP-950), segments expire as those
of other topics.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.names import LOG_SUFFIX
from moldau_broker.log.values import NO_TIMESTAMP

if TYPE_CHECKING:
    from moldau_broker.log.files.segment import LogSegment
    from moldau_broker.log.partition.segmented_log import SegmentedLog


def expired_count(log: SegmentedLog, high_watermark: int, now_ms: int, *, has_staged: bool) -> int:
    """Returns how many of the oldest segments expired by ``retention.ms``, ``retention.bytes`` or log start offset.

    Only segments below the high watermark expire, and the active one only while nothing is staged for it. Where
    segments are copied, only copied ones expire, and the others leave by the log start offset.

    Raises:
        OSError: A file could not be read.
        CorruptLogFileError: The oldest segment is too damaged to determine its age.
    """
    config, segments = log.config, log.segments
    retention_ms, retention_bytes = config.disk_retention_ms, config.disk_retention_bytes
    surplus = segments.size_bytes - retention_bytes if config.delete and retention_bytes >= 0 else -1
    expires_to = _expires_to(log, high_watermark)
    count = 0
    for index, segment in enumerate(segments.all):
        end = log.next_base_offset(index)
        is_active = segment is segments.active
        if segment.size == 0 or end > high_watermark or (is_active and has_staged):
            break
        too_much = surplus - segment.size >= 0
        is_hidden = end <= log.log_start_offset and not is_active
        if end > expires_to and not is_hidden:
            break
        if not (too_much or is_hidden):
            if not (config.delete and retention_ms >= 0):
                break
            if now_ms - _written_ms(log, segment) <= retention_ms:
                if segment.unreadable_from is not None and count == 0:
                    raise CorruptLogFileError(segment.file.path, segment.unreadable_from, "no batch header")
                break
        surplus -= segment.size
        count += 1
    return count


def closes_active(log: SegmentedLog, high_watermark: int, now_ms: int, *, expired: int, has_staged: bool) -> bool:
    """Returns whether the active segment of a log whose segments are copied is closed, so that it can be copied and go.

    It is if retention demands that it goes, and all others do (Kafka rolls it alike). Else the records of a quiet
    partition would stay for ``segment.ms``, however short its retention is. ``expired`` is the ``expired_count``.

    Raises:
        OSError: A file could not be read.
    """
    config, active = log.config, log.segments.active
    if not (config.copies_segments and config.delete) or expired < len(log.segments.all) - 1:
        return False
    if active.size == 0 or log.log_end_offset > high_watermark or has_staged:
        return False
    if config.disk_retention_bytes == 0:
        return True
    return config.disk_retention_ms >= 0 and now_ms - _written_ms(log, active) > config.disk_retention_ms


def _expires_to(log: SegmentedLog, high_watermark: int) -> int:
    """Returns the offset (exclusive) up to which segments may expire by time or size.

    A copied segment must be durable here before it goes: the loader takes the epochs below the local log start offset
    for complete, and a flush makes them durable. The active segment is never copied.
    """
    if not log.config.copies_segments:
        return high_watermark
    return min(high_watermark, log.copied_end_offset, log.recovery.offset, log.segments.active.base_offset)


def next_look_ms(log: SegmentedLog, high_watermark: int) -> int | None:
    """Returns from when on ``expired_count`` or ``SegmentedLog.maybe_roll`` may find work in an unchanged log.

    None if time alone cannot change their answers. Call it after they have found none.

    Raises:
        OSError: A file could not be read.
    """
    config, oldest, times = log.config, log.segments.all[0], []
    roll_ms = log.next_roll_ms()
    if roll_ms is not None:
        times.append(roll_ms)
    # Segments expire in order, so only the oldest one counts.
    retention_ms, expires_to = config.disk_retention_ms, _expires_to(log, high_watermark)
    if config.copies_segments and oldest is log.segments.active:
        expires_to = high_watermark  # then it is closed
    if config.delete and retention_ms >= 0 and oldest.size > 0 and log.next_base_offset(0) <= expires_to:
        times.append(_written_ms(log, oldest) + retention_ms + 1)
    return min(times, default=None)


def _written_ms(log: SegmentedLog, segment: LogSegment) -> int:
    """Returns when the newest record of a segment was written, by its timestamp.

    If there is none, or part of the segment is unreadable, the last write to the file counts too: unreadable records
    may be newer than the others.
    """
    largest = NO_TIMESTAMP
    with suppress(CorruptLogFileError):  # ``unreadable_from`` is set
        largest = segment.max_entry().timestamp_ms
    if largest >= 0 and segment.unreadable_from is None:
        return largest
    return max(largest, log.disk.modified_ms(segment.path(LOG_SUFFIX)))
