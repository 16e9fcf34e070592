"""Fetched record batches of one partition, decoded piece by piece when the application asks. Pure.

The application never sees control batches. With read_committed it does not see records of aborted transactions: the
answer lists aborted transactions with their first offsets, and a transaction ends at its ABORT marker (KIP-98). The
bytes stay encoded until the application takes them; decompression is bounded.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from moldau.consumer.core.values import EncodedBatch
from moldau.records import (
    DECOMPRESSED_BYTES_MAX,
    BatchHeader,
    ColumnBuilder,
    ControlRecordType,
    CorruptRecordError,
    Record,
    check_batch_crc,
    control_record_type,
    decode_columns,
    decode_records,
    iterate_batches,
)
from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID


class FetchedChunk:
    """The answer of one fetch for one partition.

    Invariant: all records below ``offset`` were returned or skipped.
    """

    __slots__ = (
        "_aborted",
        "_aborting",
        "_batches",
        "_checks_crc",
        "_data",
        "_decoded",
        "_decoded_next",
        "_failure",
        "_header",
        "_unpacked_bytes_max",
        "end_offset",
        "epoch",
        "last_epoch",
        "offset",
        "record_count",
        "size_bytes",
        "topic_id",
    )

    def __init__(
        self,
        data: memoryview,
        offset: int,
        *,
        aborted: Sequence[tuple[int, int]] = (),
        checks_crc: bool = True,
        unpacked_bytes_max: int = DECOMPRESSED_BYTES_MAX,
        topic_id: UUID = ZERO_UUID,
    ) -> None:
        """Indexes the batches of one fetch.

        ``offset`` is the position of the fetch; ``aborted`` are (producer id, first offset) of aborted transactions.
        The records of one batch may have ``unpacked_bytes_max`` bytes when they are decompressed. ``topic_id`` is that
        of the fetch, zero where it named none.

        Raises:
            CorruptRecordError: the headers are damaged.
        """
        self._data = data
        self.topic_id = topic_id
        self.offset = offset
        self.size_bytes = len(data)
        self._checks_crc = checks_crc
        self._unpacked_bytes_max = unpacked_bytes_max
        self._aborted = [(first, producer_id) for producer_id, first in aborted]
        heapq.heapify(self._aborted)
        self._aborting: dict[int, None] = {}
        self.end_offset = offset
        self.last_epoch = -1
        self.epoch = -1  # leader epoch of the batch that was handed out last
        self.record_count = 0
        """Records of the batches, without markers. Those before ``offset`` and of aborted transactions count too."""
        for _, header in iterate_batches(data):
            self.record_count += 0 if header.is_control else header.record_count
            self.end_offset = max(self.end_offset, header.next_offset)
            self.last_epoch = header.partition_leader_epoch
        self._batches: Iterator[tuple[int, BatchHeader]] = iterate_batches(data)
        self._header: BatchHeader | None = None
        self._decoded: list[Record] = []  # of the batch in progress
        self._decoded_next = 0  # counts only while ``_decoded`` has records
        self._failure: CorruptRecordError | None = None  # found behind records that were handed out first

    @property
    def is_empty(self) -> bool:
        """Whether the chunk holds no whole batch at or after its offset."""
        return self.end_offset == self.offset

    def _next_batch(self) -> tuple[int, BatchHeader] | None:
        """Returns the next batch that holds records for the application, None at the end.

        Raises:
            CorruptRecordError: the bytes are damaged.
        """
        if self._failure is not None:
            raise self._failure
        for at, header in self._batches:
            if header.next_offset <= self.offset:
                continue
            if self._checks_crc:
                check_batch_crc(self._data, at, header)
            if self._is_skipped(at, header):
                self.offset = header.next_offset
                self.epoch = header.partition_leader_epoch
                continue
            return at, header
        return None

    def _is_skipped(self, at: int, header: BatchHeader) -> bool:
        while self._aborted and self._aborted[0][0] <= header.last_offset:
            self._aborting[heapq.heappop(self._aborted)[1]] = None
        if header.is_control:
            if header.producer_id in self._aborting:
                for record in decode_records(self._data, at, header):
                    if control_record_type(record) is ControlRecordType.ABORT:
                        self._aborting.pop(header.producer_id, None)
            return True
        return header.is_transactional and header.producer_id in self._aborting

    def take(self, count: int) -> list[Record]:
        """Returns up to ``count`` records and moves ``offset`` behind them; empty at the end.

        Raises:
            CorruptRecordError: the bytes are damaged.
        """
        taken: list[Record] = []
        while len(taken) < count:
            if self._decoded_next >= len(self._decoded):
                try:
                    found = self._next_batch()
                    if found is not None:
                        at, self._header = found
                        self._decoded = decode_records(
                            self._data,
                            at,
                            self._header,
                            first_offset=self.offset,
                            max_decompressed_bytes=self._unpacked_bytes_max,
                        )
                        self._decoded_next = 0
                except CorruptRecordError as error:
                    self._failure = error
                    if taken:
                        break
                    raise
                if found is None:
                    break
            header = self._header
            assert header is not None
            self.epoch = header.partition_leader_epoch
            wanted = count - len(taken)
            if self._decoded_next == 0 and wanted >= len(self._decoded):
                taken += self._decoded
                self._decoded_next = len(self._decoded)
            else:
                part = self._decoded[self._decoded_next : self._decoded_next + wanted]
                taken += part
                self._decoded_next += len(part)
            if self._decoded_next < len(self._decoded):
                self.offset = self._decoded[self._decoded_next].offset
            else:
                self.offset = header.next_offset
                self._decoded = []
        return taken

    def take_columns(self, builder: ColumnBuilder, bytes_max: int) -> int:
        """Adds whole batches to ``builder`` until it holds ``bytes_max``; returns the number of records added."""
        count = 0
        if self._decoded:
            # Records of a batch that ``take`` began are decoded again, from where it stopped.
            header = self._header
            assert header is not None
            self._batches = iterate_batches(self._data)
            self._decoded = []
        while builder.size_bytes < bytes_max:
            try:
                found = self._next_batch()
                if found is None:
                    break
                at, header = found
                count += decode_columns(
                    builder,
                    self._data,
                    at,
                    header,
                    first_offset=self.offset,
                    max_decompressed_bytes=self._unpacked_bytes_max,
                )
            except CorruptRecordError as error:
                self._failure = error
                if count:
                    break
                raise
            self.offset = header.next_offset
            self.epoch = header.partition_leader_epoch
        return count

    def take_encoded(self, taken: list[EncodedBatch], bytes_max: int) -> int:
        """Adds whole batches, as they were fetched, until they have ``bytes_max``; returns their bytes.

        A batch of which ``take`` returned a part is added again, with the first offset that was not returned. The bytes
        are borrowed from the fetch's answer.
        """
        size = 0
        if self._decoded:
            self._batches = iterate_batches(self._data)
            self._decoded = []
        while size < bytes_max:
            try:
                found = self._next_batch()
            except CorruptRecordError as error:
                self._failure = error
                if taken:
                    break
                raise
            if found is None:
                break
            at, header = found
            data = self._data[at : at + header.size_bytes]
            taken.append(EncodedBatch(header, data, max(self.offset, header.base_offset)))
            size += header.size_bytes
            self.offset = header.next_offset
            self.epoch = header.partition_leader_epoch
        return size
