"""A Spark session that is ready for Moldau: Java found, flags set, the data source registered.

Everything that Spark wants to know before its JVM starts is set here, and only what the caller did not set.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_moldau.java import java_home

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

CHECKPOINT_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

DEFAULTS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
    "spark.python.authenticate.socketTimeout": "120s",  # for a machine that is busy elsewhere; Spark's default is 15
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""For one machine: quick to start, small, silent. The checkpoint manager is right for local file systems."""


def local_session(
    name: str = "moldau", *, cores: int = 2, settings: Mapping[str, str] | None = None, log_level: str = "ERROR"
) -> SparkSession:
    """Starts (or returns) the local session of this process.

    Args:
        name: Application name.
        cores: Tasks at a time; a task may fail and is tried again three times.
        settings: Spark settings that win over ``DEFAULTS``.
        log_level: Level of Spark's own log.

    Raises:
        NoJavaError: no Java that fits; the text says what to do.
    """
    os.environ["JAVA_HOME"] = str(java_home(Path(tempfile.gettempdir()) / f"moldau-java-{os.getuid()}"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    from pyspark.sql import SparkSession

    from pyspark_moldau.source import DefaultSource

    builder = SparkSession.builder.appName(name).master(f"local[{cores},4]")
    for key, value in (DEFAULTS | dict(settings or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    # Spark finds the source by itself where it is installed as a package; an editable installation is not walked.
    session.dataSource.register(DefaultSource)
    return session
