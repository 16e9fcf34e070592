"""Rows of a query as columns for the producer: checks of the schema, and Arrow buffers handed over without a copy.

The columns are those of Spark's Kafka sink (key, value, topic, partition, headers), and timestamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from moldau.records import BinaryColumn, RowColumns
from pyspark_moldau.errors import SinkError
from pyspark_moldau.source.core.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

_TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
_REMEDIES = {
    "key": "cast it, or encode it with to_json, to_avro or your own function",
    "value": "cast it, or encode it with to_json, to_avro or your own function",
    "topic": "cast it to string",
    "partition": "cast it to int",
    "headers": "build it with array(struct(name as key, content as value))",
    "timestamp": "cast it to timestamp_ltz",
}


NO_TIMESTAMP: Final = -1
"""In milliseconds: the record has no timestamp. A reader that does not know it sees the last moment before 1970."""


class RowError(SinkError):
    """A row cannot be written: its topic is null, its partition does not exist, or its timestamp is before 1970."""


def check_schema(schema: StructType, topic: str | None) -> None:
    """Checks the columns of a query.

    Raises:
        OptionError: a column is missing, unknown or there twice, or has a type that cannot be written.
    """
    found: dict[str, str] = {}
    for field in schema.fields:
        name, kind = field.name.lower(), field.dataType.simpleString()
        if name in found:
            raise OptionError(f"column {name}: comes twice, and upper and lower case are the same; select one of them")
        found[name] = kind
        if name not in _TYPES:
            raise OptionError(
                f"column {name}: the sink has no such column; it takes {', '.join(_TYPES)}; select only these"
            )
        if kind not in _TYPES[name]:
            raise OptionError(f"column {name}: expected {' or '.join(_TYPES[name])}, got {kind}; {_REMEDIES[name]}")
    if "value" not in found:
        raise OptionError(f"column value is missing: the query has {', '.join(found) or 'no column'}; name one value")
    if topic is None and "topic" not in found:
        raise OptionError("topic: neither the option topic nor a column topic is given; set one of them")


def split_topics(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields the rows of each topic; the option wins over the column, as in Spark's Kafka sink.

    Raises:
        RowError: a topic is null or empty.
    """
    if topic is not None:
        yield topic, batch
        return
    column = batch.column(_index(batch, "topic"))
    if column.null_count:
        row = pc.index(pc.is_null(column), value=True).as_py()
        raise RowError(f"column topic: null in row {row} of a block; set the option topic, or filter such rows out")
    names = pc.unique(column).to_pylist()
    if "" in names:
        raise RowError("column topic: a row has an empty text; set the option topic, or filter such rows out")
    if len(names) == 1:
        yield names[0], batch
        return
    for name in sorted(names):
        yield name, batch.filter(pc.equal(column, name))


def to_columns(batch: pa.RecordBatch) -> tuple[RowColumns, bytes | memoryview | None]:
    """Returns rows to encode, and the partition of each (int32, -1 for none) or None without such a column.

    Raises:
        RowError: a partition is negative, or a timestamp before 1970.
    """
    timestamps = None
    at = _index(batch, "timestamp")
    if at >= 0:
        kind = pa.timestamp("ms", tz=batch.column(at).type.tz)
        micros = batch.column(at).cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64())
        # Before milliseconds are made of them: that would round a time to one that means something else.
        is_early = pc.and_(pc.less(micros, 0), pc.not_equal(micros, 1000 * NO_TIMESTAMP))
        earliest = pc.min(micros.filter(is_early)).as_py()
        if earliest is not None:
            raise RowError(
                f"column timestamp: {earliest / 1000:.15g} ms is before 1970, and records have no such time; null "
                "means the time of writing"
            )
        whole = pc.fill_null(batch.column(at).cast(kind, safe=False).cast(pa.int64()), NO_TIMESTAMP)
        timestamps = _fixed(whole, 8)
    headers = _headers(batch)
    columns = RowColumns(
        batch.num_rows, _binary(batch, "key"), _binary(batch, "value"), timestamps, *(headers or (None, None, None))
    )
    at = _index(batch, "partition")
    if at < 0:
        return columns, None
    given = batch.column(at)
    smallest = pc.min(given).as_py()
    if smallest is not None and smallest < 0:
        raise RowError(f"column partition: {smallest} is negative; null leaves the choice to the partitioner")
    return columns, _fixed(pc.fill_null(given, -1), 4)


def _index(batch: pa.RecordBatch, name: str) -> int:
    """Returns the position of a column, whatever its case; -1 if there is none."""
    for position, found in enumerate(batch.schema.names):
        if found.lower() == name:
            return position
    return -1


def _plain(array: pa.Array) -> pa.Array:
    """Returns the array without an offset into its buffers."""
    return array if array.offset == 0 else pa.concat_arrays([array, array.slice(0, 0)])


def _fixed(array: pa.Array, width: int) -> memoryview:
    plain = _plain(array)
    return memoryview(plain.buffers()[1])[: width * len(plain)] if len(plain) else memoryview(b"")


def _binary(batch: pa.RecordBatch, name: str) -> BinaryColumn | None:
    position = _index(batch, name)
    return None if position < 0 else _column(batch.column(position))


def _column(array: pa.Array) -> BinaryColumn:
    if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        array = array.cast(pa.binary())
    plain = _plain(array)
    validity, offsets, data = plain.buffers()
    return BinaryColumn(
        length=len(plain),
        null_count=plain.null_count,
        validity=memoryview(validity or b""),
        offsets=memoryview(offsets) if offsets is not None and offsets.size else memoryview(bytes(4)),
        data=memoryview(data or b""),
    )


def _headers(batch: pa.RecordBatch) -> tuple[memoryview, BinaryColumn, BinaryColumn] | None:
    position = _index(batch, "headers")
    if position < 0:
        return None
    lists = batch.column(position)
    if lists.offset or lists.null_count:  # a null list may cover rows of its children, so the lists are made again
        counts = pc.fill_null(pc.list_value_length(lists), 0)
        bounds = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(counts.cast(pa.int64()))])
        pairs, offsets = lists.flatten(), bounds.cast(pa.int32())
    else:
        pairs, offsets = lists.values, lists.offsets
    if pairs.null_count:
        raise RowError("column headers: a header is null; leave it out")
    names, values = pairs.field(0), pairs.field(1)
    if pairs.offset:
        names, values = pairs.flatten()
    if names.null_count:
        raise RowError("column headers: the key of a header is null; every header has a key")
    return _fixed(offsets, 4), _column(names), _column(values)
