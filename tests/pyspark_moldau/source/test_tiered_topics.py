"""Goal: Spark reads records that only an object store has, in batches and streams, also from a time on.

Method: transactions, some of them aborted, fill segments that leave the disk of a broker with tiered storage. The local
Spark session is that of all Spark tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from moldau_jepsen.testing import cluster
from pyspark_moldau.session.java import find_java
from support.interop.tiered_topic import RECORDS, Filled, fill, settings_of
from support.spark.shared import patiently, shared_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.spark,
    pytest.mark.proof,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]
TOPIC = "tiered-spark"
NUMBER = 3 * RECORDS - 5
"""A record of the third transaction; the second one is aborted."""
COLUMNS = ("offset", "cast(substring(value, 1, 6) as string) value")


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[tuple[dict[str, str], Filled]]:
    """Options of the source, and the records of the topic."""
    with cluster(brokers=1, controllers=1, links=False, settings=settings_of(tmp_path / "store")) as running:
        filled = fill(running.bootstrap, TOPIC, 1)
        options = {"kafka.bootstrap.servers": running.bootstrap, "subscribe": TOPIC}
        yield {**options, "kafka.isolation.level": "read_committed"}, filled


def pairs(rows: list[Any]) -> list[tuple[int, str]]:
    return sorted((row["offset"], row["value"]) for row in rows)


def test_spark_reads_what_only_the_store_has(tiered: tuple[dict[str, str], Filled], tmp_path: Path) -> None:
    options, filled = tiered
    spark = shared_session()
    since = {"startingTimestamp": str(filled.time_of(NUMBER))}
    for more, expected in (({}, filled.committed), (since, filled.committed[filled.place_of(NUMBER) :])):
        batch = spark.read.format("moldau").options(**options, **more).load()
        assert pairs(batch.selectExpr(*COLUMNS).collect()) == expected

    def stream() -> None:
        source = spark.readStream.format("moldau").options(**options, **since, maxOffsetsPerTrigger="150")
        sink = source.load().selectExpr(*COLUMNS).writeStream.format("parquet").trigger(availableNow=True)
        checkpoint, data = str(tmp_path / "checkpoint"), str(tmp_path / "data")
        sink.option("checkpointLocation", checkpoint).option("path", data).start().awaitTermination()

    patiently(stream)
    assert pairs(spark.read.parquet(str(tmp_path / "data")).collect()) == filled.committed[filled.place_of(NUMBER) :]
