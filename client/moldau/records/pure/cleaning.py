"""The log cleaner's loops over the records of a batch in plain Python: the twin of ``_cleaning.pyx``.

It serves where the extension was not built, and tests hold both equal on any input. Signatures and documentation are in
``_cleaning.pyi``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from xxhash import xxh3_128_digest

from moldau.records.errors import corrupt_record
from moldau.records.pure.wire import OFFSET, RANGE, TRAILING, Broken, fits, parse_record, view_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from mmap import mmap

    from moldau.records.pure.wire import Buffer, Parsed

_ENTRY_BYTES = 24
_HASH_BYTES = 16
_JUMPS = 32
_halves = struct.Struct(">QQ").unpack
_get_offset = struct.Struct(">Q").unpack_from
_put_offset = struct.Struct(">Q").pack_into


def _find(table: bytearray | mmap, digest: bytes) -> tuple[int, int, int]:
    """Returns the position of the key's entry or of the empty one where it belongs, its offset, and the probes."""
    slots = len(table) // _ENTRY_BYTES
    first, second = _halves(digest)
    slot = first % slots
    step = 1 + second % (slots - 1)
    probes = 0
    while True:
        position = slot * _ENTRY_BYTES
        used = _get_offset(table, position + _HASH_BYTES)[0]
        if not used or table[position : position + _HASH_BYTES] == digest:
            return position, used, probes
        probes += 1
        slot = (slot + (step if probes <= _JUMPS else 1)) % slots


def _check_table(table: bytearray | mmap) -> None:
    if len(table) < 2 * _ENTRY_BYTES or len(table) % _ENTRY_BYTES:
        raise ValueError(f"a table of {len(table)} bytes")


def _records(
    data: memoryview, start: int, end: int, count: int, base_offset: int, last_offset_delta: int
) -> Iterator[Parsed]:
    at, previous = start, -1
    for index in range(count):
        try:
            record = parse_record(data, at, end)
        except Broken as broken:
            raise corrupt_record(broken.reason, index) from None
        if record[1] <= previous or record[1] > last_offset_delta:
            raise corrupt_record(OFFSET, index)
        if not fits(base_offset + record[1]):
            raise corrupt_record(RANGE, index)
        previous, at = record[1], record[8]
        yield record
    if at != end:
        raise corrupt_record(TRAILING, count)


def map_keys(
    buffer: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    first_offset: int,
    table: bytearray | mmap,
    used: int,
    used_max: int,
) -> tuple[int, int, bool]:
    """See ``_cleaning.pyi``."""
    data = view_of(buffer, start, end)
    _check_table(table)
    probes = 0
    for record in _records(data, start, end, count, base_offset, last_offset_delta):
        offset, key_at, key_size = base_offset + record[1], record[2], record[3]
        if key_size < 0 or offset < first_offset:
            continue
        digest = xxh3_128_digest(data[key_at : key_at + key_size])
        position, known, more = _find(table, digest)
        probes += more
        if not known:
            if used >= used_max:
                return used, probes, False
            table[position : position + _HASH_BYTES] = digest
            used += 1
        _put_offset(table, position + _HASH_BYTES, offset + 1)
    return used, probes, True


def select_records(
    buffer: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    latest_offset: int,
    keeps_tombstones: bool,
    table: bytearray | mmap,
) -> tuple[bytes, int, bool, int]:
    """See ``_cleaning.pyi``."""
    data = view_of(buffer, start, end)
    _check_table(table)
    if count < 0 or count > end - start:
        raise corrupt_record(TRAILING, count)
    keep = bytearray()
    has_tombstone = False
    probes = 0
    for record in _records(data, start, end, count, base_offset, last_offset_delta):
        offset, key_at, key_size, is_tombstone = base_offset + record[1], record[2], record[3], record[5] < 0
        if offset > latest_offset:
            stays = True
        elif key_size < 0 or (is_tombstone and not keeps_tombstones):
            stays = False
        else:
            _, known, more = _find(table, xxh3_128_digest(data[key_at : key_at + key_size]))
            probes += more
            stays = known <= offset + 1
        keep.append(stays)
        has_tombstone = has_tombstone or (stays and is_tombstone)
    return bytes(keep), sum(keep), has_tombstone, probes
