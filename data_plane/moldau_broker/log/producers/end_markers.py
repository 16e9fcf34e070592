"""Decoding of the end-transaction markers that lie in a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.records import ControlRecordType, CorruptRecordError, control_record_type, decode_records
from moldau.records import parse_end_txn_marker as parse_marker
from moldau_broker.log.files.batches import CONTROL_BIT
from moldau_broker.log.producers.producer_state import EndMarker
from moldau_broker.log.values import NO_EPOCH

if TYPE_CHECKING:
    from moldau.records import BatchHeader
    from moldau.values import Buffer
    from moldau_broker.log.files.segment import LogSegment

_MARKER_BYTES_MAX = 64 * 1024
"""Size limit of a decompressed control batch: a marker has about twenty bytes, and brokers do not compress it."""


def marker_of(header: BatchHeader, segment: LogSegment, position: int) -> EndMarker | None:
    """Returns the end-transaction marker of a control batch in a segment; None for other batches.

    The control batches of producers are markers. So one that is damaged ends a transaction, too, though the log no
    longer knows how; readers of it are refused by its checksum.
    """
    if not header.attributes & CONTROL_BIT:
        return None
    try:
        return decode_marker(header, segment.file.read(position, header.size_bytes))
    except CorruptRecordError:
        return EndMarker(commit=False, coordinator_epoch=NO_EPOCH)


def decode_marker(header: BatchHeader, data: Buffer) -> EndMarker | None:
    """Returns the end-transaction marker in the control batch ``data``; None for other control records."""
    for record in decode_records(data, 0, header, max_decompressed_bytes=_MARKER_BYTES_MAX):
        if control_record_type(record) in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            marker = parse_marker(record)
            return EndMarker(marker.is_commit, marker.coordinator_epoch)
    return None
