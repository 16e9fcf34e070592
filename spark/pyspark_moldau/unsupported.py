"""Stands in for the source where PySpark is too old for it, so that the user learns the remedy.

An exception during Spark's search for data sources would take away all other Python sources too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from pyspark_moldau.errors import message_first
from pyspark_moldau.versions import UnsupportedSparkError, remedy

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Fails at its first use.

    Spark asks for the schema first, except where the query gives one (``.schema(...)``) or writes.
    """

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return "moldau"

    def schema(self) -> NoReturn:
        """Always fails, as all methods do.

        Raises:
            UnsupportedSparkError: PySpark is too old.
        """
        _fail()

    def reader(self, schema: StructType) -> NoReturn:
        """Always fails."""
        _fail()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Returns a reader that fails: where this method fails, Spark shows an error of its own clean-up instead."""
        return _StreamReader()

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Always fails."""
        _fail()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Always fails."""
        _fail()


class _StreamReader(DataSourceStreamReader):
    """Fails at the first call that a query makes: for its start, for its end, or for a batch that it repeats."""

    def initialOffset(self) -> NoReturn:
        """Always fails."""
        _fail()

    def latestOffset(self, *_: object, **__: object) -> NoReturn:
        """Always fails; releases before 4.2 give no arguments."""
        _fail()

    def partitions(self, start: object, end: object) -> NoReturn:
        """Always fails."""
        _fail()

    def read(self, partition: object) -> NoReturn:
        """Always fails."""
        _fail()


@message_first
def _fail() -> NoReturn:
    raise UnsupportedSparkError(remedy())
