"""Goal: a dead letter is never longer than the sink takes, and says what of the record it does not have.

Method: the function that runs in tasks, on Arrow batches; its producer's own bound of sizes is the oracle.
"""

import json

import pyarrow as pa
import pytest

from moldau.producer.core.limits import record_size_bound
from pyspark_moldau.jobs.config.job_config import PayloadConfig
from pyspark_moldau.jobs.queries import reading

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
PAYLOAD = PayloadConfig(format="json", schema=json.dumps(SCHEMA).encode())
BYTES_MAX = 100


def letter(key, value):
    """Returns key, value, and the lengths of what is missing."""
    batch = pa.RecordBatch.from_pydict({"key": pa.array([key], pa.binary()), "value": pa.array([value], pa.binary())})
    (found,) = reading._decode_batches(PAYLOAD, BYTES_MAX, [batch])
    row = found.to_pylist()[0]
    return row["key"], row[reading.RAW], row[reading.VALUE_BYTES], row[reading.KEY_BYTES]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (b"k" * 40, b"x" * 60, (b"k" * 40, b"x" * 60, None, None)),
        (b"k" * 40, b"x" * 61, (b"k" * 40, b"x" * 60, "61", None)),
        (None, b"x" * 101, (None, b"x" * 100, "101", None)),
        (b"k" * 100, b"x", (b"k" * 100, b"", "1", None)),
        (b"k" * 101, b"x" * 100, (None, b"x" * 100, None, "101")),
        (b"k" * 101, b"x" * 101, (None, b"x" * 100, "101", "101")),
        (b"k" * 101, b"{}", (b"k" * 101, None, None, None)),
        (b"k" * 101, None, (b"k" * 101, None, None, None)),
    ],
)
def test_only_what_is_too_long_is_cut(key, value, expected):
    assert letter(key, value) == expected


def test_the_longest_headers_fit():
    names = [f"__connect.errors.{name}" for name in ("topic", "partition", "offset", "exception.message")]
    names += [f"__moldau.errors.{name}.bytes" for name in ("value", "key")]
    texts = [b"t" * 249, b"9" * 10, b"9" * 19, "\U0001f642".encode() * 500, b"9" * 10, b"9" * 10]
    assert record_size_bound(None, b"", zip(names, texts, strict=True)) < reading.LETTER_ROOM
