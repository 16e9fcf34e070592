"""The data source: what Spark creates for format ``moldau``, and its reader for batch queries.

Spark creates it in a Python process of its own for each step of a query; ``stream`` reads in micro-batches.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from pyspark_moldau.errors import message_first, message_first_while_read
from pyspark_moldau.source.core.columns import check_schema, ddl
from pyspark_moldau.source.core.filters import Narrowing, narrow
from pyspark_moldau.source.core.options import (
    LATEST,
    OptionError,
    SourceOptions,
    check_names,
    columns_of,
    parse_options,
    refuse_catalog_table,
)
from pyspark_moldau.source.planning import Connect, InputRanges, connect_cluster, plan, read_chunks, resolve
from pyspark_moldau.source.stream import MoldauStreamReader, RefusedStreamReader
from pyspark_moldau.wire.reach import REACH_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from pyspark_moldau.source.core.offsets import Offsets
    from pyspark_moldau.source.reader import LogReader

__all__ = ["DefaultSource", "InputRanges", "MoldauBatchReader", "MoldauStreamReader"]

logger = logging.getLogger(__name__)

PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module of the process in which Spark pushes filters down, if ``spark.sql.python.filterPushdown.enabled``."""


class MoldauBatchReader(DataSourceReader):
    """Reads a log, or a part of it, as a table."""

    def __init__(self, options: SourceOptions, connect: Connect = connect_cluster) -> None:
        self._options = options
        self._connect = connect
        self._narrowing = Narrowing()

    @message_first
    def partitions(self) -> Sequence[InputPartition]:
        """Returns the tasks of the query, from the starting to the ending offsets."""
        options = self._options
        reader = self._connect(options.client)
        reader.reach(REACH_MS)
        partitions = reader.partitions(options.subscription)
        start = resolve(reader, partitions, options.starting, options.starting.option("starting"))
        end = resolve(reader, partitions, options.ending, options.ending.option("ending"))
        for topic, number in partitions:
            if options.ending.offsets is not None and end[topic, number] < start[topic, number]:
                raise OptionError(
                    f"endingOffsets: {topic}-{number} ends at {end[topic, number]}, "
                    f"before its start {start[topic, number]}"
                )
        start, end = self._existing(reader, start, end)
        return plan(reader, options, *self._narrowed(reader, start, end))

    @message_first_while_read
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        yield from read_chunks(self._connect, self._options, partition)

    def _existing(self, reader: LogReader, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Checks that the log reaches the offsets that are to be read.

        Raises:
            OptionError: an offset is past the end of the log.
        """
        options = self._options
        if options.starting.offsets is None and options.ending.offsets is None:
            return start, {key: max(at, start[key]) for key, at in end.items()}
        latest = reader.offsets(dict.fromkeys(end, LATEST))
        for partition in sorted(end):
            topic, number = partition
            last = latest[partition] or 0
            if start[partition] > last and options.ending.offsets is None:
                raise OptionError(
                    f"startingOffsets: {topic}-{number} ends at {last}, before its start {start[partition]}; "
                    "start at or before the end"
                )
            if end[partition] > last and end[partition] > start[partition]:
                text = f"endingOffsets: {topic}-{number} ends at {last}, and {end[partition]} was asked for"
                if options.fail_on_data_loss:
                    raise OptionError(f"{text}; -1 means the end, and failOnDataLoss false reads what is there")
                logger.warning("data-loss %s", text)
                end[partition] = max(last, start[partition])
        return start, end

    def _narrowed(self, reader: LogReader, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Returns the parts of the ranges that pass the filters that Spark pushed down."""
        narrowing = self._narrowing
        left = sorted(partition for partition in end if narrowing.admits(partition))
        if narrowing.since_ms is not None and left:
            since = reader.offsets(dict.fromkeys(left, narrowing.since_ms))
            # A partition without a record that is late enough has nothing for this query.
            start = start | {key: end[key] if at is None else max(at, start[key]) for key, at in since.items()}
        clipped = {key: narrowing.clip(start[key], end[key]) for key in left}
        return {key: low for key, (low, _) in clipped.items()}, {key: high for key, (_, high) in clipped.items()}


class FilteringBatchReader(MoldauBatchReader):
    """A batch reader that takes filters, for queries with the option ``filterPushdown``.

    Spark refuses a reader with ``pushFilters`` unless push-down is enabled. It keeps the tasks of the last query that
    pushed filters for all queries of the same ``load()``, and for each of its uses in one query, whatever their filters
    are. So without the option each query reads all records, and Spark filters them.
    """

    @message_first
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes the filters; returns those that Spark must still apply to each row."""
        self._narrowing, unsupported = narrow(filters)
        return unsupported


class DefaultSource(DataSource):
    """The data source of format ``moldau``."""

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return "moldau"

    @message_first
    def schema(self) -> str:
        """Returns the columns of Spark's Kafka source; ``headers`` only with ``includeHeaders``.

        Spark calls this method first, so it also checks the options.
        """
        check_names(self._given())
        return ddl(columns_of(self._given()))

    @message_first
    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader for ``spark.read``."""
        options = self._options(schema, streaming=False)
        is_narrowed = options.filter_pushdown and PUSHDOWN_WORKER in _worker_modules()
        return FilteringBatchReader(options) if is_narrowed else MoldauBatchReader(options)

    @message_first
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Returns the reader for ``spark.readStream``; wrong options come to light at its first use."""
        try:
            return MoldauStreamReader(self._options(schema, streaming=True))
        except OptionError as error:
            return RefusedStreamReader(str(error))

    @message_first
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Returns the writer for ``df.write``.

        Raises:
            OptionError: an option or a column is wrong, or the mode is not append.
            SinkError: no broker answers, or the topic does not exist.
        """
        from pyspark_moldau.sink.core.sink_options import parse_sink_options
        from pyspark_moldau.sink.reach import check_reachable
        from pyspark_moldau.sink.rows import check_schema
        from pyspark_moldau.sink.writer import MoldauBatchWriter

        if overwrite:
            raise OptionError("mode overwrite: a log is only appended to; use mode append")
        options = parse_sink_options(self._given(), streaming=False)
        check_schema(schema, options.topic)
        check_reachable(options, streaming=False)
        return MoldauBatchWriter(options)

    @message_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Returns the writer for ``df.writeStream``.

        Raises:
            OptionError: an option or a column is wrong.
            SinkError: no broker answers, or the topic does not exist.
        """
        from pyspark_moldau.sink.core.sink_options import parse_sink_options
        from pyspark_moldau.sink.reach import check_reachable
        from pyspark_moldau.sink.rows import check_schema
        from pyspark_moldau.sink.writer import MoldauStreamWriter

        options = parse_sink_options(self._given(), streaming=True)
        check_schema(schema, options.topic)
        check_reachable(options, streaming=True)
        return MoldauStreamWriter(options)

    def _options(self, schema: StructType, *, streaming: bool) -> SourceOptions:
        given = dict(self._given())
        # A schema that the query has set says which columns it wants.
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        return parse_options(given | {"columns": ",".join(check_schema(fields))}, streaming=streaming)

    def _given(self) -> Mapping[str, str]:
        given = dict(self.options)
        refuse_catalog_table(given)
        return given


def _worker_modules() -> tuple[str, ...]:
    """Returns the names of the modules that may be the main program of this Spark worker process."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return tuple(filter(None, (getattr(main, "name", None), *sys.argv[1:2])))
