"""Control records: the markers that end transactions (KIP-98), and those of the metadata quorum (KIP-595).

A control batch holds them, one in the case of transaction markers. The key is version int16 and type int16; the value
of an end-transaction marker is version int16 and coordinator epoch int32.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.records.batch import BatchBuilder
from moldau.records.errors import CorruptRecordError

if TYPE_CHECKING:
    from moldau.records.codec import Record

_KEY = struct.Struct(">hh")
_END_TXN_VALUE = struct.Struct(">hi")


class ControlRecordType(enum.IntEnum):
    """Type of a control record; unknown ones are skipped by readers."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnMarker:
    """The end of a transaction, as a record."""

    type: ControlRecordType  # ABORT or COMMIT
    coordinator_epoch: int

    @property
    def is_commit(self) -> bool:
        """Whether the transaction was committed."""
        return self.type is ControlRecordType.COMMIT


def control_record_type(record: Record) -> ControlRecordType | None:
    """Returns the type of a control record, None for one that is not known.

    Raises:
        CorruptRecordError: the bytes are damaged.
    """
    key = record.key
    if key is None or len(key) < _KEY.size:
        raise CorruptRecordError(f"the key of the control record at offset {record.offset} is too short")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecordError(f"control record at offset {record.offset} has version {version}")
    return ControlRecordType(number) if 0 <= number <= max(ControlRecordType) else None


def parse_end_txn_marker(record: Record) -> EndTxnMarker:
    """Parses an end-transaction marker.

    Raises:
        CorruptRecordError: the record is no such marker.
    """
    kind = control_record_type(record)
    if kind is not ControlRecordType.ABORT and kind is not ControlRecordType.COMMIT:
        raise CorruptRecordError(f"control record at offset {record.offset} does not end a transaction")
    value = record.value
    if value is None or len(value) < _END_TXN_VALUE.size:
        raise CorruptRecordError(f"the end-transaction marker at offset {record.offset} is too short")
    version, epoch = _END_TXN_VALUE.unpack_from(value)
    if version < 0:
        raise CorruptRecordError(f"the end-transaction marker at offset {record.offset} has version {version}")
    return EndTxnMarker(type=kind, coordinator_epoch=epoch)


def encode_end_txn_marker(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
) -> bytearray:
    """Returns a control batch with one marker that ends the transaction of the producer."""
    builder = BatchBuilder(2**31 - 1, is_transactional=True, is_control=True, initial_capacity=128)
    kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
    builder.append(timestamp, _KEY.pack(0, kind), _END_TXN_VALUE.pack(0, coordinator_epoch))
    return builder.build(
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
