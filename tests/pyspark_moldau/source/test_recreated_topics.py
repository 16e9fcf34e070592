"""Goal: a query goes on with a topic that was deleted and created again as with one that has just come.

Method: a log in memory, and the calls that Spark makes.
"""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_moldau.source import data_source as source
from pyspark_moldau.source import planning
from pyspark_moldau.source.core.options import parse_options
from support.spark.memory_log import MemoryLog


def stream(log, **options):
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "startingOffsets": "earliest"} | options
    return source.MoldauStreamReader(parse_options(given, streaming=True), connect=lambda client: log)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_a_limit_counts_only_the_records_that_are_left(monkeypatch, name):
    """Retention had deleted the first records of the new topic, and a limited batch ended before what is left."""
    monkeypatch.setattr(planning, "SETTLE_S", 0.0)
    log = MemoryLog([("t", 0)])
    log.append(("t", 0), *[(1000 + n, None, b"v", ()) for n in range(3)])
    reader = stream(log, failOnDataLoss="false", **{name: "2" if name == "maxOffsetsPerTrigger" else "200"})
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    log.delete("t")
    log.create("t", 1, "id-2")
    log.drop_before(("t", 0), 100)
    log.append(("t", 0), *[(5000 + n, None, b"new", ()) for n in range(5)])
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    found = [
        row["offset"] for one in reader.partitions(start, end) for part in reader.read(one) for row in part.to_pylist()
    ]
    assert found == [100, 101]
