"""Dead letters as records: what they say, and the record batches that hold them (KIP-1191). Pure.

A dead letter is a record without key and value whose headers name the record that was given up. If the group copies
records it has their key, their value and their headers as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.records import BatchBuilder, CorruptRecordError, decode_records, iterate_batches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.records import Record
    from moldau_broker.server.share.core.values import DeadLetters

HEADER_PREFIX: Final = "__dlq.errors."
"""Headers of the record that begin with it are left out: such a record is a dead letter itself."""
LETTERS_MAX: Final = 500
"""Dead letters of one batch: they are built in one turn of the event loop."""


@dataclass(frozen=True, slots=True)
class Source:
    """The partition and the group whose records were given up."""

    group_id: str
    topic: str
    partition: int


class Found(NamedTuple):
    """The records of a read, by offset, and the offset (exclusive) up to which no others are there."""

    records: Mapping[int, Record]
    end: int


def find_records(data: bytes, first: int, end: int, bytes_max: int) -> Found:
    """Returns the records from ``first`` to ``end`` that whole batches hold, up to about ``bytes_max`` of them.

    A damaged batch, and what follows it, counts as not there: the dead letters still say where the records are.
    """
    records: dict[int, Record] = {}
    size, reached = 0, first
    try:
        for position, header in iterate_batches(data):
            if header.base_offset >= end or size >= bytes_max:
                break
            if not header.is_control and header.next_offset > first:
                for record in decode_records(data, position, header, first_offset=first):
                    if record.offset >= end:
                        break
                    records[record.offset] = record
                    size += len(record.key or b"") + len(record.value or b"")
            reached = header.next_offset
    except CorruptRecordError:
        return Found(records, end)
    return Found(records, min(reached, end) if reached > first else end)


def build_letters(
    source: Source,
    letters: DeadLetters,
    first: int,
    found: Found,
    *,
    now_ms: int,
    bytes_max: int,
    is_compacted: bool = False,
) -> tuple[bytes, int]:
    """Returns a record batch with the dead letters from ``first`` on, and the offset of the first that it lacks.

    The batch has at most ``bytes_max`` bytes. A copy that alone would have more is left out of its dead letter. In a
    queue that is compacted, a dead letter without a key gets one that no other has: such a topic takes none without.
    """
    builder, offset = BatchBuilder(bytes_max), first
    while offset < found.end and builder.record_count < LETTERS_MAX:
        record = found.records.get(offset)
        context = _context(source, letters, offset)
        given_key = f"{source.topic}-{source.partition}-{offset}".encode() if is_compacted else None
        if record is None:
            delta = builder.append(now_ms, given_key, None, context)
        else:
            own = [header for header in record.headers if not header[0].startswith(HEADER_PREFIX)]
            key = given_key if record.key is None else record.key
            delta = builder.append(now_ms, key, record.value, [*own, *context])
        if delta is None:
            break
        if builder.record_count == 1 and builder.size_bytes > bytes_max and record is not None:
            builder = BatchBuilder(bytes_max)
            builder.append(now_ms, given_key, None, context)
        offset += 1
    return bytes(builder.build()), offset


def _context(source: Source, letters: DeadLetters, offset: int) -> list[tuple[str, bytes | None]]:
    facts = {
        "topic": source.topic,
        "partition": source.partition,
        "offset": offset,
        "group": source.group_id,
        "delivery.count": letters.delivery_count,
        "message": letters.cause.value,
    }
    return [(HEADER_PREFIX + name, str(fact).encode()) for name, fact in facts.items()]
