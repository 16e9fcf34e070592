"""Spark's own Kafka connector, brought by Maven: the oracle that the source is compared with."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from benchmarks.maven import bring_jars
from pyspark import __version__ as pyspark_version

from support.interop.maven import CACHE

if TYPE_CHECKING:
    from pathlib import Path

COORDINATES = "org.apache.spark:spark-sql-kafka-0-10_2.13"
LAST_RELEASE = "4.2.0"
"""Tried where there is no connector of PySpark's own version; it runs on the next versions too."""
ARTIFACTS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")


@functools.cache
def connector_jars() -> tuple[list[Path], str]:
    """Returns the jars, or an empty list and the reason why there are none. Jars are kept for the next run."""
    failure = ""
    for version in dict.fromkeys((pyspark_version, LAST_RELEASE)):
        home = CACHE / f"spark-kafka-{version}"
        failure = bring_jars(home, [f"{COORDINATES}:{version}"], only=ARTIFACTS)
        if not failure:
            return sorted(home.glob("*.jar")), ""
    return [], f"Spark's Kafka connector cannot be compared with: {failure}"
