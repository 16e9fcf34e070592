"""Goal: a record with a timestamp that Spark cannot hold is named, and does not stop a query without that column."""

import pytest

from moldau.records import ColumnBuilder, decode_columns, encode_batch, iterate_batches
from pyspark_moldau.errors import DamagedBatchError
from pyspark_moldau.source.arrow import to_record_batch

NANOSECONDS = 1_357_017_300_000_000_000
LIMIT = (2**63 - 1) // 1000


def batch_of(*timestamps, names):
    data = encode_batch([(each, None, b"v", ()) for each in timestamps], base_offset=40)
    builder = ColumnBuilder()
    for position, header in iterate_batches(data):
        decode_columns(builder, data, position, header, first_offset=0, end_offset=100)
    return to_record_batch(builder.finish(), "t", 3, 0, names=names)


def test_a_timestamp_beyond_those_of_spark_is_named():
    with pytest.raises(DamagedBatchError, match=f"t-3: the record at offset 41 has the timestamp {NANOSECONDS}, "):
        batch_of(1, NANOSECONDS, names=["timestamp", "offset"])
    assert batch_of(1, NANOSECONDS, names=["offset"]).num_rows == 2


def test_the_last_timestamps_of_spark_are_read():
    found = batch_of(-1, 0, LIMIT, names=["timestamp"]).column(0).cast("int64").to_pylist()
    assert found == [-1000, 0, LIMIT * 1000]
