"""A Python source that hands out one prepared Arrow batch again and again: the limit of what any Python source reaches.

Its rows have the columns and sizes of the topic's, and its batches the size of a decoded fetch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

BATCH_ROWS = 30_000
SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"


class PreparedSource(DataSource):
    """The source; options: ``rows`` in all, ``tasks``, ``valuebytes``."""

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return "prepared"

    def schema(self) -> str:
        """Returns the columns of a topic."""
        return SCHEMA

    def reader(self, schema: object) -> DataSourceReader:
        """Returns the reader of a batch query."""
        options = {name.lower(): int(value) for name, value in self.options.items()}
        return PreparedReader(options["rows"], options["tasks"], options["valuebytes"])


class PreparedReader(DataSourceReader):
    """Divides the rows among the tasks."""

    def __init__(self, rows: int, tasks: int, value_bytes: int) -> None:
        self._rows, self._tasks, self._value_bytes = rows, tasks, value_bytes

    def partitions(self) -> Sequence[InputPartition]:
        """Returns one for each task."""
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a task."""
        left = self._rows // self._tasks
        batch = prepared_batch(min(BATCH_ROWS, left), self._value_bytes)
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


def prepared_batch(rows: int, value_bytes: int) -> pa.RecordBatch:
    """Returns rows like those of a topic."""
    import datetime
    import os

    import pyarrow as pa

    random = os.urandom(64)
    value = (random * (value_bytes // len(random) + 1))[:value_bytes]
    now = datetime.datetime.now(datetime.UTC)
    columns = {
        "key": pa.array([b"%08d" % number for number in range(rows)], pa.binary()),
        "value": pa.array([value] * rows, pa.binary()),
        "topic": pa.array(["bench"] * rows, pa.string()),
        "partition": pa.array([0] * rows, pa.int32()),
        "offset": pa.array(range(rows), pa.int64()),
        "timestamp": pa.array([now] * rows, pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([0] * rows, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)
