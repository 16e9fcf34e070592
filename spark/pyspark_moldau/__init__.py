"""A Python data source with which Spark reads Moldau; Spark discovers it by itself as format ``moldau``.

    spark.readStream.format("moldau").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe",
    "flights").load()

Options and schema are those of Spark's own Kafka source. Spark imports every top-level module named ``pyspark_*`` in
each of its Python planners and looks for ``DefaultSource``; this package imports its other modules only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_moldau.source.data_source import DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        from pyspark_moldau.versions import is_supported

        if not is_supported():
            from pyspark_moldau.unsupported import DefaultSource as Unsupported

            return Unsupported
        from pyspark_moldau.source.data_source import DefaultSource

        return DefaultSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
