"""Goal: a query that ended in its first micro-batch goes on, although its options do not fit its topics any more.

Method: a log in memory, and the calls that Spark makes.
"""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_moldau.source import data_source as source
from pyspark_moldau.source.core.options import OptionError, parse_options
from support.spark.memory_log import MemoryLog

OFFSETS = {"startingOffsets": '{"t": {"0": 1}}'}
TIMES = {"startingTimestamp": "1001"}


@pytest.fixture
def log():
    made = MemoryLog([("t", 0)])
    made.append(("t", 0), *[(1000 + n, None, b"v", ()) for n in range(3)])
    return made


def stream(log, options):
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"} | options
    return source.MoldauStreamReader(parse_options(given, streaming=True), connect=lambda client: log)


def read(reader, start, end):
    return [
        (row["partition"], row["offset"])
        for one in reader.partitions(start, end)
        for part in reader.read(one)
        for row in part.to_pylist()
    ]


def grow(log):
    """Adds a partition that the starting offsets do not name, and that has no record as late as the timestamp."""
    topic_id = log.topic_ids(["t"])["t"]
    log.create("t", 2, topic_id)
    log.append(("t", 0), *[(1000 + n, None, b"v", ()) for n in range(3)])
    log.append(("t", 1), (1, None, b"new", ()))


@pytest.mark.parametrize("options", [OFFSETS, TIMES], ids=["offsets", "times"])
def test_a_first_micro_batch_runs_again_after_growth(log, options):
    """The checkpoint knows the start, so the query must not ask the options for it."""
    reader = stream(log, options)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    grow(log)
    restarted = stream(log, options)
    assert read(restarted, restarted.initialOffset(), end) == [(0, 1), (0, 2)]
    following = restarted.latestOffset(end, ReadAllAvailable())
    assert read(restarted, end, following) == [(1, 0)]


@pytest.mark.parametrize("options", [OFFSETS, TIMES], ids=["offsets", "times"])
def test_a_checkpoint_without_a_start_needs_the_options(log, options):
    """That of another connector says no start, and one from the first record would repeat others."""
    grow(log)
    reader = stream(log, options)
    start = reader.initialOffset()
    with pytest.raises(OptionError, match="t-1"):
        reader.partitions(start, {"t": {"0": 3, "1": 1}})
    with pytest.raises(OptionError, match="t-1"):
        reader.latestOffset(start, ReadAllAvailable())
