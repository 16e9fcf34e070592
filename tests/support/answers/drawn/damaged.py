"""Batches as no right client writes them, each with a right checksum unless that is what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.records.batch import renew_crc

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH, _LEADER_EPOCH, _MAGIC, _CRC, _ATTRIBUTES = 8, 12, 16, 17, 21
_LAST_DELTA, _FIRST_TIME, _MAX_TIME, _COUNT, _RECORDS = 23, 27, 35, 57, 61
_RECORD_ATTRIBUTES, _TIME_DELTA, _OFFSET_DELTA, _KEY_LENGTH = 1, 2, 3, 4
"""Places in a record whose length and deltas take one byte each."""


def _added(place: int, size: int, number: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        value = int.from_bytes(data[place : place + size], "big", signed=True) + number
        data[place : place + size] = value.to_bytes(size, "big", signed=True)

    return change


def _put(place: int, size: int, value: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[place : place + size] = value.to_bytes(size, "big", signed=True)

    return change


def _flipped(place: int, bits: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[place] ^= bits

    return change


_FIELDS: Final[dict[str, Callable[[bytearray], None]]] = {
    "a record more": _added(_COUNT, 4, 1),
    "a record less": _added(_COUNT, 4, -1),
    "no record": _put(_COUNT, 4, 0),
    "-1 records": _put(_COUNT, 4, -1),
    "a later last offset": _added(_LAST_DELTA, 4, 1),
    "an earlier last offset": _added(_LAST_DELTA, 4, -1),
    "last offset -1": _put(_LAST_DELTA, 4, -1),
    "a later newest time": _added(_MAX_TIME, 8, 5),
    "newest time -1": _put(_MAX_TIME, 8, -1),
    "codec 5": _flipped(_ATTRIBUTES + 1, 5),
    "codec 7": _flipped(_ATTRIBUTES + 1, 7),
    "codec gzip": _flipped(_ATTRIBUTES + 1, 1),
    "a time of the broker": _flipped(_ATTRIBUTES + 1, 8),
    "a control batch": _flipped(_ATTRIBUTES + 1, 32),
    "a transaction": _flipped(_ATTRIBUTES + 1, 16),
    "a delete horizon": _flipped(_ATTRIBUTES + 1, 64),
    "a leader epoch": _put(_LEADER_EPOCH, 4, 7),
    "base offset 9": _put(0, 8, 9),
    "attributes of a record": _flipped(_RECORDS + _RECORD_ATTRIBUTES, 1),
    "another offset of the first record": _put(_RECORDS + _OFFSET_DELTA, 1, 2),
    "a negative offset of the first record": _put(_RECORDS + _OFFSET_DELTA, 1, 1),
    "a negative time of the first record": _put(_RECORDS + _TIME_DELTA, 1, 1),
    "key length -2": _put(_RECORDS + _KEY_LENGTH, 1, 3),
    "key length 60": _put(_RECORDS + _KEY_LENGTH, 1, 120),
    "record length 0": _put(_RECORDS, 1, 0),
    "record length -1": _put(_RECORDS, 1, 1),
    "record length 1 more": _added(_RECORDS, 1, 2),
}
_FRAMES: Final[dict[str, Callable[[bytearray], None]]] = {
    "another checksum": _flipped(_CRC, 1),
    "magic 0": _put(_MAGIC, 1, 0),
    "magic 1": _put(_MAGIC, 1, 1),
    "magic 3": _put(_MAGIC, 1, 3),
    "magic -1": _put(_MAGIC, 1, -1),
    "a byte more": _added(_LENGTH, 4, 1),
    "a byte less": _added(_LENGTH, 4, -1),
    "length 0": _put(_LENGTH, 4, 0),
    "length -1": _put(_LENGTH, 4, -1),
    "length 2^31-1": _put(_LENGTH, 4, 2**31 - 1),
}
DAMAGES: Final = (
    *_FIELDS,
    *_FRAMES,
    "cut",
    "cut to the header",
    "cut to 16 bytes",
    "cut to 3 bytes",
    "nothing",
)


def damaged(batch: bytes, how: str) -> bytes:
    """Returns a batch with one fault."""
    data = bytearray(batch)
    if how in _FIELDS:
        _FIELDS[how](data)
        renew_crc(data, 0)
    elif how in _FRAMES:
        _FRAMES[how](data)
    else:
        ends = {"cut": -1, "cut to the header": _RECORDS, "cut to 16 bytes": 16, "cut to 3 bytes": 3, "nothing": 0}
        return bytes(data[: ends[how]])
    return bytes(data)
