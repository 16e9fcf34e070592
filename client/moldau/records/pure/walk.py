"""The check of a batch's records, piece by piece, in plain Python: the twin of ``_codec_walk.pxi``."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from moldau.records.errors import corrupt_record
from moldau.records.pure.wire import (
    COUNT,
    END,
    HEADER_COUNT,
    HEADER_KEY,
    HEADER_VALUE,
    INT64_MAX,
    INT64_MIN,
    KEY,
    LENGTH,
    RANGE,
    SEQUENCE,
    TRAILING,
    VALUE,
    VARINT,
    Broken,
    fits,
    parse_record,
    read_varint,
)

if TYPE_CHECKING:
    from moldau.records.pure.wire import Buffer

(
    _AT_LENGTH,
    _AT_ATTRIBUTES,
    _AT_TIMESTAMP,
    _AT_OFFSET,
    _AT_KEY,
    _AT_VALUE,
    _AT_HEADERS,
    _AT_HEADER_KEY,
    _AT_HEADER_VALUE,
    _AT_END,
) = range(10)


@final
class RecordWalker:
    """Checks the records of a batch, piece by piece; see ``_codec.pyi``."""

    __slots__ = (
        "_base_timestamp",
        "_earliest",
        "_expected",
        "_faults_max",
        "_headers_left",
        "_key_size",
        "_latest",
        "_left",
        "_needs_keys",
        "_offset_delta",
        "_phase",
        "_raw",
        "_reason",
        "_shift",
        "_skip",
        "_timestamp_delta",
        "count",
        "faults",
        "keyless_count",
        "max_timestamp",
        "mistimed_count",
    )

    def __init__(
        self,
        count: int,
        base_timestamp: int = 0,
        earliest: int = INT64_MIN,
        latest: int = INT64_MAX,
        needs_keys: bool = False,
        faults_max: int = 0,
    ) -> None:
        self._expected = count
        self._base_timestamp = base_timestamp
        self._earliest = earliest
        self._latest = latest
        self._needs_keys = needs_keys
        self._faults_max = faults_max
        self.count = 0
        self.max_timestamp = -1
        self.keyless_count = 0
        self.mistimed_count = 0
        self.faults: list[tuple[int, bool, int | None]] = []
        self._reason = 0
        self._phase = _AT_LENGTH
        self._shift = self._raw = self._left = self._skip = self._headers_left = 0
        self._timestamp_delta = self._offset_delta = self._key_size = 0

    def feed(self, piece: Buffer) -> None:
        """Walks the next piece of the records.

        Raises:
            CorruptRecordError: a record is damaged.
        """
        if not self._reason:
            try:
                self._walk(memoryview(piece).cast("B"))
            except Broken as broken:
                self._reason = broken.reason
        if self._reason:
            raise corrupt_record(self._reason, self.count)

    def finish(self) -> None:
        """Checks that the records ended where they should.

        Raises:
            CorruptRecordError: bytes or records are missing.
        """
        if not self._reason:
            if self._phase != _AT_LENGTH:
                self._reason = LENGTH
            elif self._shift:
                self._reason = VARINT
            elif self.count < self._expected:
                self._reason = COUNT
        if self._reason:
            raise corrupt_record(self._reason, self.count)

    def _walk(self, data: memoryview) -> None:
        at, end = 0, len(data)
        while at < end:
            if self._phase == _AT_LENGTH and not self._shift:
                if self.count >= self._expected:
                    raise Broken(TRAILING)
                if _lies_whole(data, at, end):
                    timestamp_delta, offset_delta, _, key_size, _, _, _, _, at = parse_record(data, at, end)
                    self._take(timestamp_delta, offset_delta, key_size)
                    continue
            at = self._resume(data, at, end)
            if self._phase == _AT_END and not self._skip:
                self._phase = _AT_LENGTH
                self._take(self._timestamp_delta, self._offset_delta, self._key_size)

    def _take(self, timestamp_delta: int, offset_delta: int, key_size: int) -> None:
        """Counts one record.

        Raises:
            Broken: it does not fit the batch.
        """
        if offset_delta != self.count:
            raise Broken(SEQUENCE)
        timestamp = self._base_timestamp + timestamp_delta
        if not fits(timestamp):
            raise Broken(RANGE)
        if self.count == 0 or timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        is_keyless = key_size < 0
        is_mistimed = timestamp != -1 and not self._earliest <= timestamp <= self._latest
        self.keyless_count += is_keyless
        self.mistimed_count += is_mistimed
        if (is_mistimed or (is_keyless and self._needs_keys)) and len(self.faults) < self._faults_max:
            self.faults.append((self.count, is_keyless, timestamp if is_mistimed else None))
        self.count += 1

    def _resume(self, data: memoryview, at: int, end: int) -> int:
        """Takes bytes of a record that does not lie whole in the piece, up to its end or that of the piece.

        Returns where it stopped.

        Raises:
            Broken: the record is damaged.
        """
        while at < end:
            if self._skip > 0:
                taken = min(self._skip, end - at)
                at += taken
                self._skip -= taken
                self._left -= taken
            else:
                byte = data[at]
                at += 1
                if self._phase != _AT_LENGTH:
                    self._left -= 1
                if self._phase == _AT_ATTRIBUTES:
                    self._phase = _AT_TIMESTAMP
                else:
                    last_shift, last_byte = (63, 1) if self._phase == _AT_TIMESTAMP else (28, 0x0F)
                    if self._shift == last_shift and byte > last_byte:
                        raise Broken(VARINT)
                    self._raw |= (byte & 0x7F) << self._shift
                    if byte >= 0x80:
                        self._shift += 7
                    else:
                        number = (self._raw >> 1) ^ -(self._raw & 1)
                        self._raw = self._shift = 0
                        self._number_read(number)
            if not self._skip:
                if self._phase == _AT_END:
                    break
                if not self._left and self._phase != _AT_LENGTH:
                    raise Broken(VARINT)
        return at

    def _number_read(self, number: int) -> None:
        """Takes the next number of the record in progress, in the order of ``parse_record``."""
        match self._phase:
            case 0:  # _AT_LENGTH
                if number <= 0:
                    raise Broken(LENGTH if number < 0 else END)
                self._left = number
                self._phase = _AT_ATTRIBUTES
            case 2:  # _AT_TIMESTAMP
                self._timestamp_delta = number
                self._phase = _AT_OFFSET
            case 3:  # _AT_OFFSET
                self._offset_delta = number
                self._phase = _AT_KEY
            case 4:  # _AT_KEY
                self._key_size = number
                self._skip = self._nullable(number, KEY)
                self._phase = _AT_VALUE
            case 5:  # _AT_VALUE
                self._skip = self._nullable(number, VALUE)
                self._phase = _AT_HEADERS
            case 6:  # _AT_HEADERS
                if not 0 <= number <= self._left // 2:
                    raise Broken(HEADER_COUNT)
                if number == 0 and self._left != 0:
                    raise Broken(END)
                self._headers_left = number
                self._phase = _AT_HEADER_KEY if number else _AT_END
            case 7:  # _AT_HEADER_KEY
                if not 0 <= number <= self._left:
                    raise Broken(HEADER_KEY)
                self._skip = number
                self._phase = _AT_HEADER_VALUE
            case _:
                self._skip = self._nullable(number, HEADER_VALUE)
                self._headers_left -= 1
                if self._headers_left > 0:
                    self._phase = _AT_HEADER_KEY
                elif self._left != self._skip:
                    raise Broken(END)
                else:
                    self._phase = _AT_END

    def _nullable(self, size: int, reason: int) -> int:
        """Returns the bytes of a field whose length is ``size``, -1 for null."""
        if not -1 <= size <= self._left:
            raise Broken(reason)
        return max(size, 0)


def _lies_whole(data: memoryview, at: int, end: int) -> bool:
    """Returns whether the record that begins at ``at`` ends at or before ``end``."""
    try:
        size, body = read_varint(data, at, end)
    except Broken:
        return False
    return 0 <= size <= end - body
