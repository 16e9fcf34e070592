"""Arrow record batches of the source's rows, made from decoded columns without handling single records.

The schema must equal the one that Spark derives from the source's DDL; Spark compares the two exactly, including field
names and units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_moldau.errors import DamagedBatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.records import BinaryColumn, Columns

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))
_FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
]
SCHEMA_HEADERS = pa.schema([*_FIELDS, pa.field("headers", _HEADERS)])
SCHEMA = pa.schema(_FIELDS)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Returns the schema of rows with these columns."""
    return pa.schema([SCHEMA_HEADERS.field(name) for name in columns])


def to_record_batch(
    columns: Columns, topic: str, partition: int, timestamp_type: int, *, names: Sequence[str]
) -> pa.RecordBatch:
    """Wraps the columns ``names`` of one partition's records.

    It shares all buffers, except timestamps, which are converted from ms to us.
    """
    length = columns.length
    makers: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: _variable(pa.binary(), columns.keys),
        "value": lambda: _variable(pa.binary(), columns.values),
        "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), length),
        "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), length),
        "offset": lambda: _fixed(pa.int64(), length, columns.offsets),
        "timestamp": lambda: _moments(columns, f"{topic}-{partition}"),
        "timestampType": lambda: pa.repeat(pa.scalar(timestamp_type, pa.int32()), length),
        "headers": lambda: _headers(columns),
    }
    return pa.RecordBatch.from_arrays([makers[name]() for name in names], schema=schema_of(names))


def _moments(columns: Columns, place: str) -> pa.Array:
    """Returns timestamps in microseconds.

    Raises:
        DamagedBatchError: a record has a time that Spark has no timestamp for; the text names its offset.
    """
    found = _fixed(pa.timestamp("ms", tz="UTC"), columns.length, columns.timestamps)
    try:
        return found.cast(pa.timestamp("us", tz="UTC"))
    except pa.ArrowInvalid as error:
        whole = found.cast(pa.int64())
        limit = (2**63 - 1) // 1000
        row = pc.index(pc.or_(pc.less(whole, -limit), pc.greater(whole, limit)), value=True).as_py()
        offset = _fixed(pa.int64(), columns.length, columns.offsets)[row]
        raise DamagedBatchError(
            f"{place}: the record at offset {offset} has the timestamp {whole[row]}, and no timestamp of Spark holds "
            "so many milliseconds; was it sent with another unit? The option columns can leave out the column timestamp"
        ) from error


def _fixed(kind: pa.DataType, length: int, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(data)])


def _variable(kind: pa.DataType, column: BinaryColumn) -> pa.Array:
    validity = pa.py_buffer(column.validity) if column.null_count else None
    return pa.Array.from_buffers(
        kind, column.length, [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)], column.null_count
    )


def _headers(columns: Columns) -> pa.Array:
    """Returns headers as lists; a record without headers has null, as in Spark's Kafka source."""
    pairs = pa.StructArray.from_arrays(
        [_variable(pa.string(), columns.header_keys), _variable(pa.binary(), columns.header_values)],
        fields=list(_HEADER),
    )
    bounds = _fixed(pa.int32(), columns.length + 1, columns.header_offsets)
    without = pc.equal(pc.subtract(bounds.slice(1), bounds.slice(0, columns.length)), 0)
    return pa.ListArray.from_arrays(bounds, pairs, type=_HEADERS, mask=without)
