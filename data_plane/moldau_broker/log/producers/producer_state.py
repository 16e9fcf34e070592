"""The state of a log's producers: sequence numbers for idempotence, and open transactions.

The last five batches of each producer id are kept (five may be in flight), so a batch that is sent again is recognised
and answered with the offsets of the original. Open transactions bound the last stable offset. The state is a function
of the log, saved in a ``<offset>.snapshot`` at each roll and at a clean stop; a start loads the newest good snapshot
and replays the batches after it.

A producer is forgotten when this broker has not seen it write for ``producer.id.expiration.ms``, by the broker's own
clock; producers that a start loads count as seen then. Kafka uses the timestamps of records instead. A producer of old
records is then forgotten while it writes, and a batch that it sends again is written twice.

Changes are staged: ``check`` of a leader's append works on a copy of the producer's entry, held in an overlay until
the bytes are in the file (``commit_staged``) or the write failed (``discard_staged``).

A snapshot is, big-endian: version 2 (1) | CRC-32C of all that follows 4 | count 4 | count times:
    producer id 8 | epoch 2 | last sequence 4 | last offset 8 | offset delta 4 | timestamp 8 | coordinator epoch 4 |
    first offset of the open transaction 8 (-1: none)
A producer has a row for each of its remembered batches, the newest last. Without the older ones, a batch whose answer
was lost would not be recognised after a restart: the producer would get OUT_OF_ORDER_SEQUENCE_NUMBER and write it again
under its next epoch. Kafka writes only the newest row; when it reads several, the last row counts.
A row without a batch (last offset -1) has offset delta 1 if the producer must begin its epoch with sequence 0, else 0.
Kafka ignores the delta there, and expects sequence 0 always.
A row of producer id -1 is a mark: the state contains every producer of the log (``knows_all``). Kafka reads it as a
producer that never writes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from moldau.protocol.errors import ErrorCode
from moldau.records.checksum import crc32c
from moldau_broker.log.errors import CorruptLogFileError, LogError
from moldau_broker.log.files.batches import CONTROL_BIT, TRANSACTIONAL_BIT
from moldau_broker.log.files.transaction_index import AbortedEntry
from moldau_broker.log.values import NO_PRODUCER_ID, NO_SEQUENCE, AppendOrigin, ProducerDescription

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.records import BatchHeader

BATCHES_KEPT = 5
_SEQUENCE_MASK = 0x7FFFFFFF
_SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">hIi")
_ROW = struct.Struct(">qhiqiqiq")
_CRC_END = 6
_BEGINS_EPOCH = 1
"""Offset delta of a row without a batch."""


class BatchMetadata(NamedTuple):
    """The remembered fields of one batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """Sequence number of its first record."""
        return (self.last_sequence - self.offset_delta) & _SEQUENCE_MASK

    @property
    def first_offset(self) -> int:
        """Offset of its first record."""
        return self.last_offset - self.offset_delta


class EndMarker(NamedTuple):
    """Content of a control record that ends a transaction."""

    commit: bool
    coordinator_epoch: int


_CLEANED_MARKER = EndMarker(commit=False, coordinator_epoch=-1)
"""No transaction that it could end has any data left."""


class CompletedTransaction(NamedTuple):
    """A transaction whose marker is in the log."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


@dataclass(slots=True, kw_only=True)
class ProducerEntry:
    """State of one producer id. Invariant: at most ``BATCHES_KEPT`` batches, oldest first, all of ``epoch``."""

    producer_id: int
    epoch: int = -1
    coordinator_epoch: int = -1
    last_timestamp_ms: int = -1
    seen_ms: int = 0
    """When this broker last saw it write, or loaded it, by the broker's clock. Not in the snapshot."""
    transaction_first_offset: int = -1
    batches: list[BatchMetadata] = field(default_factory=list)
    has_epoch_to_begin: bool = False
    """Whether a marker began ``epoch`` and the producer certainly wrote nothing here in it.

    Else any sequence number may be next for a producer without known batches.
    """

    def copy(self) -> ProducerEntry:
        """Returns an independent copy."""
        return ProducerEntry(
            producer_id=self.producer_id,
            epoch=self.epoch,
            coordinator_epoch=self.coordinator_epoch,
            last_timestamp_ms=self.last_timestamp_ms,
            seen_ms=self.seen_ms,
            transaction_first_offset=self.transaction_first_offset,
            batches=self.batches.copy(),
            has_epoch_to_begin=self.has_epoch_to_begin,
        )

    def describe(self) -> ProducerDescription:
        """Returns the producer's row for DescribeProducers."""
        return ProducerDescription(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            last_sequence=self.last_sequence,
            last_timestamp_ms=self.last_timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            current_transaction_start_offset=self.transaction_first_offset,
        )

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 if no batch is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Offset of the last record, -1 if no batch is known."""
        return self.batches[-1].last_offset if self.batches else -1

    def find_duplicate(self, epoch: int, first_sequence: int, last_sequence: int) -> BatchMetadata | None:
        """Returns the remembered batch with exactly these sequence numbers, or None."""
        if epoch == self.epoch:
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                    return batch
        return None

    def add(self, header: BatchHeader) -> None:
        """Applies a data batch that is in the log."""
        if header.producer_epoch != self.epoch:
            self.batches.clear()
            self.epoch = header.producer_epoch
        self.has_epoch_to_begin = False
        if header.base_sequence >= 0:
            if len(self.batches) == BATCHES_KEPT:
                del self.batches[0]
            delta = header.last_offset_delta
            self.batches.append(
                BatchMetadata(
                    (header.base_sequence + delta) & _SEQUENCE_MASK,
                    header.base_offset + delta,
                    delta,
                    header.max_timestamp,
                )
            )
        self.last_timestamp_ms = header.max_timestamp
        if header.attributes & TRANSACTIONAL_BIT and self.transaction_first_offset < 0:
            self.transaction_first_offset = header.base_offset


class ProducerStateManager:
    """All producers of one log.

    Invariants: ``_ongoing`` maps the producer ids with ``transaction_first_offset >= 0`` to it; ``map_end_offset`` is
    the offset up to which the log is reflected (staged batches excluded).
    """

    __slots__ = (
        "_completed",
        "_entries",
        "_ongoing",
        "_staged",
        "expiration_ms",
        "knows_all",
        "map_end_offset",
        "now_ms",
    )

    def __init__(self, expiration_ms: int, now_ms: int) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._staged: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, int] = {}
        self._completed: dict[int, int] = {}  # first offset -> last offset of those not yet below the high watermark
        self.expiration_ms = expiration_ms
        """After so long a silence a producer is forgotten; it may change at any time."""
        self.now_ms = now_ms
        """The broker's wall clock, set by the caller of each append."""
        self.map_end_offset = 0
        self.knows_all = False
        """Whether the state contains every producer that ever wrote to the log, from offset 0 on."""

    # Checks of a leader's append ------------------------------------------------------------------------------------

    def check(self, header: BatchHeader, origin: AppendOrigin) -> BatchMetadata | None:
        """Checks a data batch of a producer id before it is appended.

        Returns the original if the batch is a duplicate.

        Kafka accepts any first sequence number from an unknown producer, because it may have forgotten the producer. If
        a producer's first batch was lost with its leader, Kafka would write the second one before the first. Here an
        unknown producer must begin with 0 unless the log has forgotten producers.

        Raises:
            LogError: OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH or INVALID_TXN_STATE.
        """
        entry = self._staged.get(header.producer_id) or self._entries.get(header.producer_id)
        if entry is None:
            if self.knows_all and header.base_sequence > 0 and origin is AppendOrigin.CLIENT:
                raise LogError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} has written nothing here and sent sequence {header.base_sequence}, "
                    "expected 0",
                )
            return None
        epoch, first = header.producer_epoch, header.base_sequence
        if origin is AppendOrigin.CLIENT:
            batches = entry.batches
            if batches and epoch == entry.epoch:
                last = batches[-1].last_sequence
                if first == last + 1 or (first == 0 and last == _SEQUENCE_MASK):
                    self._check_transaction(entry, header)
                    return None
                duplicate = entry.find_duplicate(epoch, first, header.last_sequence)
                if duplicate is not None:
                    return duplicate
        if epoch < entry.epoch:
            raise LogError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {entry.epoch}, the batch comes from epoch {epoch}",
            )
        if origin is AppendOrigin.CLIENT:
            self._check_sequence(entry, header)
        self._check_transaction(entry, header)
        return None

    def _check_sequence(self, entry: ProducerEntry, header: BatchHeader) -> None:
        first = header.base_sequence
        if header.producer_epoch != entry.epoch or entry.has_epoch_to_begin:
            if first != 0 and entry.epoch >= 0:
                raise LogError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence {first}, not 0",
                )
        elif entry.batches:
            expected = (entry.last_sequence + 1) & _SEQUENCE_MASK
            if first != expected:
                raise LogError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} sent sequence {first}, expected {expected}",
                )

    def _check_transaction(self, entry: ProducerEntry, header: BatchHeader) -> None:
        if entry.transaction_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            raise LogError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction since offset {entry.transaction_first_offset}, "
                "the batch is not transactional",
            )

    def check_marker(self, header: BatchHeader, marker: EndMarker) -> None:
        """Checks a control batch before it is appended.

        Raises:
            LogError: INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self._staged.get(header.producer_id) or self._entries.get(header.producer_id)
        if entry is None:
            return
        if header.producer_epoch < entry.epoch:
            raise LogError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {entry.epoch}, the marker has {header.producer_epoch}",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise LogError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"producer {header.producer_id}: coordinator epoch {marker.coordinator_epoch} is older than "
                f"{entry.coordinator_epoch}",
            )

    # Changes ---------------------------------------------------------------------------------------------------------

    def stage(self, header: BatchHeader) -> None:
        """Stages a checked data batch (with its final offsets) until it is committed or discarded."""
        entry = self._staged.get(header.producer_id)
        if entry is None:
            known = self._entries.get(header.producer_id)
            entry = known.copy() if known is not None else ProducerEntry(producer_id=header.producer_id)
            self._staged[header.producer_id] = entry
        entry.add(header)
        entry.seen_ms = self.now_ms

    def commit_staged(self, end_offset: int) -> None:
        """Commits the staged batches, which are in the log now; it ends at ``end_offset``."""
        if self._staged:
            self._entries.update(self._staged)
            for producer_id, entry in self._staged.items():
                if entry.transaction_first_offset >= 0:
                    self._ongoing[producer_id] = entry.transaction_first_offset
            self._staged.clear()
        self.map_end_offset = end_offset

    def discard_staged(self) -> None:
        """Drops the staged batches, which were not written to the log."""
        self._staged.clear()

    def apply(self, header: BatchHeader) -> None:
        """Applies a batch of the log that holds no marker without checks, in replication and recovery.

        A control batch without records is what the cleaner leaves of a producer's last marker, because of its epoch.
        """
        if header.producer_id != NO_PRODUCER_ID and header.attributes & CONTROL_BIT and not header.record_count:
            self.replay(header, _CLEANED_MARKER)
        elif header.producer_id != NO_PRODUCER_ID and not header.attributes & CONTROL_BIT:
            entry = self._entries.get(header.producer_id)
            if entry is None:
                entry = self._entries[header.producer_id] = ProducerEntry(producer_id=header.producer_id)
            entry.add(header)
            entry.seen_ms = self.now_ms
            if entry.transaction_first_offset >= 0:
                self._ongoing[header.producer_id] = entry.transaction_first_offset
        self.map_end_offset = header.base_offset + header.last_offset_delta + 1

    def apply_marker(self, header: BatchHeader, marker: EndMarker) -> CompletedTransaction | None:
        """Applies a control batch of the log; returns the transaction that it ended, None if none was open.

        The last stable offset does not move before ``complete``.
        """
        producer_id = header.producer_id
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id=producer_id)
            entry.has_epoch_to_begin = self.knows_all
        elif entry.epoch != header.producer_epoch:
            entry.has_epoch_to_begin = True
        if entry.epoch != header.producer_epoch:
            entry.batches.clear()
            entry.epoch = header.producer_epoch
        entry.coordinator_epoch = max(entry.coordinator_epoch, marker.coordinator_epoch)  # -1: of a damaged marker
        entry.last_timestamp_ms = header.max_timestamp
        entry.seen_ms = self.now_ms
        first = entry.transaction_first_offset
        entry.transaction_first_offset = -1
        self.map_end_offset = header.base_offset + header.last_offset_delta + 1
        if first < 0:
            return None
        return CompletedTransaction(producer_id, first, header.base_offset, not marker.commit)

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """Returns the bound of the last stable offset once ``completed`` is complete."""
        others = [first for producer_id, first in self._ongoing.items() if producer_id != completed.producer_id]
        return min(others, default=completed.last_offset + 1)

    def complete(self, completed: CompletedTransaction) -> AbortedEntry | None:
        """Ends the transaction; returns its entry of the transaction index if it was aborted."""
        stable = self.last_stable_offset_after(completed)
        self._ongoing.pop(completed.producer_id, None)
        self._completed[completed.first_offset] = completed.last_offset
        if not completed.is_aborted:
            return None
        return AbortedEntry(completed.producer_id, completed.first_offset, completed.last_offset, stable)

    def replay(self, header: BatchHeader, marker: EndMarker | None) -> AbortedEntry | None:
        """Applies one batch that was read from the log: ``apply``, or ``apply_marker`` with ``complete``."""
        if marker is None:
            self.apply(header)
            return None
        completed = self.apply_marker(header, marker)
        return self.complete(completed) if completed is not None else None

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Forgets ended transactions whose marker is replicated now."""
        if self._completed:
            for first in [first for first, last in self._completed.items() if last < high_watermark]:
                del self._completed[first]

    def first_unstable_offset(self) -> int | None:
        """Returns the first offset of the oldest transaction that is open or whose marker is not replicated."""
        if not self._ongoing and not self._completed:
            return None
        return min(min(self._ongoing.values(), default=1 << 63), min(self._completed, default=1 << 63))

    def oldest_open_ms(self) -> int | None:
        """Returns when this broker last saw the most silent producer with an open transaction write; None without one.

        Kafka takes the timestamp of the producer's last record, which may lie years back.
        """
        return min((self._entries[producer_id].seen_ms for producer_id in self._ongoing), default=None)

    # Queries ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Returns the number of producer ids."""
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Returns the entry of a producer id; treat it as read-only."""
        return self._entries.get(producer_id)

    def last_entries(self) -> dict[int, tuple[int, int, int]]:
        """Returns last data offset (-1 if unknown), epoch and open transaction's first offset by producer id."""
        return {
            key: (entry.last_offset, entry.epoch, entry.transaction_first_offset)
            for key, entry in self._entries.items()
        }

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Returns whether the producer has an open transaction of that epoch here (KIP-890)."""
        entry = self._staged.get(producer_id) or self._entries.get(producer_id)
        return entry is not None and entry.transaction_first_offset >= 0 and entry.epoch == producer_epoch

    def describe(self) -> list[ProducerDescription]:
        """Returns the rows of DescribeProducers, sorted by producer id."""
        return [entry.describe() for _, entry in sorted(self._entries.items())]

    def describe_producer(self, producer_id: int) -> ProducerDescription | None:
        """Returns the state of one producer with its staged batches; None if it is unknown here."""
        entry = self._staged.get(producer_id) or self._entries.get(producer_id)
        return None if entry is None else entry.describe()

    def remove_expired(self, now_ms: int) -> int:
        """Forgets producers that were silent for ``producer.id.expiration.ms`` and have no open transaction."""
        self.now_ms = now_ms
        expired: list[int] = []
        for key, entry in self._entries.items():
            entry.seen_ms = min(entry.seen_ms, now_ms)  # if the clock was set back, the expiration counts from now
            if entry.transaction_first_offset < 0 and now_ms - entry.seen_ms >= self.expiration_ms:
                expired.append(key)
        for key in expired:
            del self._entries[key]
            self.knows_all = False
        return len(expired)

    # Snapshots -------------------------------------------------------------------------------------------------------

    def encode_snapshot(self) -> bytes:
        """Returns the committed state in Kafka's snapshot format."""
        assert not self._staged, "a snapshot is taken between appends"
        rows = bytearray()
        if self.knows_all:
            rows += _ROW.pack(NO_PRODUCER_ID, -1, NO_SEQUENCE, -1, 0, -1, -1, -1)
        for key, entry in sorted(self._entries.items()):
            for older in entry.batches[:-1]:
                rows += _ROW.pack(key, entry.epoch, *older, entry.coordinator_epoch, -1)
            delta = entry.batches[-1].offset_delta if entry.batches else _BEGINS_EPOCH * entry.has_epoch_to_begin
            rows += _ROW.pack(
                key,
                entry.epoch,
                entry.last_sequence,
                entry.last_offset,
                delta,
                entry.last_timestamp_ms,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        body = (len(rows) // _ROW.size).to_bytes(4, "big", signed=True) + rows
        return _SNAPSHOT_VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body

    def load_snapshot(self, entries: Iterable[ProducerEntry], end_offset: int) -> None:
        """Replaces the state by a snapshot's, which reflects the log up to ``end_offset``."""
        self.reset(end_offset)
        self.knows_all = False
        for entry in entries:
            if entry.producer_id == NO_PRODUCER_ID:
                self.knows_all = True
                continue
            entry.seen_ms = self.now_ms
            self._entries[entry.producer_id] = entry
            if entry.transaction_first_offset >= 0:
                self._ongoing[entry.producer_id] = entry.transaction_first_offset

    def take_over(self, other: ProducerStateManager) -> None:
        """Replaces the state by that of another log with the same records, which may know more than these show."""
        assert not other._staged, "batches that are staged belong to the other log alone"
        self._entries = {key: entry.copy() for key, entry in other._entries.items()}
        self._ongoing = dict(other._ongoing)
        self._completed = dict(other._completed)
        self.knows_all = other.knows_all

    def reset(self, end_offset: int) -> None:
        """Removes all producers of a log that begins, empty, at ``end_offset``."""
        self.knows_all = end_offset == 0
        self._entries.clear()
        self._staged.clear()
        self._ongoing.clear()
        self._completed.clear()
        self.map_end_offset = end_offset


def decode_snapshot(path: str, data: bytes) -> list[ProducerEntry]:
    """Reads a snapshot; the entries include the row of producer id -1.

    Raises:
        CorruptLogFileError: The snapshot is damaged, if only in a single bit.
    """
    if len(data) < _HEAD.size:
        raise CorruptLogFileError(path, len(data), f"{len(data)} bytes are too few for a snapshot")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptLogFileError(path, 0, f"version {version}, expected {_SNAPSHOT_VERSION}")
    if crc32c(data[_CRC_END:]) != crc:
        raise CorruptLogFileError(path, 2, f"CRC-32C {crc32c(data[_CRC_END:]):#010x}, header says {crc:#010x}")
    if len(data) != _HEAD.size + count * _ROW.size:
        raise CorruptLogFileError(path, _HEAD.size, f"{count} entries do not make {len(data)} bytes")
    entries: list[ProducerEntry] = []
    for row in _ROW.iter_unpack(data[_HEAD.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first = row
        batches = [BatchMetadata(sequence, offset, delta, timestamp)] if offset >= 0 else []
        if entries and entries[-1].producer_id == producer_id:
            batches = entries.pop().batches + batches
        entries.append(
            ProducerEntry(
                producer_id=producer_id,
                epoch=epoch,
                coordinator_epoch=coordinator_epoch,
                last_timestamp_ms=timestamp,
                transaction_first_offset=first,
                batches=batches,
                has_epoch_to_begin=not batches and delta == _BEGINS_EPOCH,
            )
        )
    return entries
