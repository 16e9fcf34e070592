"""Stands in for the source where PySpark is too old for it, so that the user learns the remedy.

An exception during Spark's search for data sources would take away all other Python sources too.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

from pyspark_moldau.errors import message_first
from pyspark_moldau.versions import UnsupportedSparkError, remedy


class DefaultSource(DataSource):
    """Fails at its first use."""

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return "moldau"

    @message_first
    def schema(self) -> str:
        """Always fails.

        Raises:
            UnsupportedSparkError: PySpark is too old.
        """
        raise UnsupportedSparkError(remedy())
