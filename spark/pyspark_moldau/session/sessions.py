"""Spark sessions for Moldau: a local one with Java and settings, or the user's own.

``local_session`` starts a session: it finds Java, sets what Spark reads before its JVM starts, and registers the data
source. ``cluster_session`` does the same with the workers of a Spark cluster. ``prepare`` makes a session that exists
already ready for ``format("moldau")``.
"""

from __future__ import annotations

import locale
import os
import re
import subprocess
import sys
import traceback
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final

from pyspark_moldau.session.java import java_home
from pyspark_moldau.session.programs import own_directory, python_for_workers
from pyspark_moldau.versions import UnsupportedSparkError, is_supported, remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

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
    "spark.python.authenticate.socketTimeout": "120s",  # for a machine that is busy; Spark's default is 15 s
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings for one machine: a quick start, little memory, no console output. The checkpoint manager is for local file
systems."""


CLUSTER_DEFAULTS = {
    name: DEFAULTS[name]
    for name in (
        "spark.sql.session.timeZone",
        "spark.python.authenticate.socketTimeout",
        "spark.ui.showConsoleProgress",
    )
}
"""Settings for a Spark cluster: none of those that are for one machine."""

REDACTED = "spark.sql.redaction.options.regex"
SECRET_OPTIONS = "sasl[.]jaas[.]config|ssl[.]keystore[.]key"
"""Options that Spark's own patterns (secret, password, token) do not name."""
SECRET: Final = re.compile("secret|password|token|credential|access[._-]?key", re.IGNORECASE)
"""Names of settings whose values are secret."""


def local_session(
    name: str = "moldau",
    *,
    cores: int = 2,
    settings: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
) -> SparkSession:
    """Starts (or returns) the local session of this process.

    Args:
        name: Application name.
        cores: Number of concurrent tasks; Spark retries a failed task three times.
        settings: Spark settings that override ``DEFAULTS``.
        log_level: Level of Spark's own log.

    Raises:
        NoJavaError: no suitable Java was found; the text says how to install one.
        UnsupportedSparkError: PySpark is too old.
    """
    _use_this_machine()
    return _started(name, {"spark.master": f"local[{cores},4]"} | DEFAULTS | dict(settings or {}), log_level)


def start_jvm(log: Path, settings: Mapping[str, str] | None = None) -> None:
    """Starts the JVM of a later ``local_session``, so that a program can do something else meanwhile.

    It may run in a thread of its own; the session must be started by the thread that uses it. What the JVM and its
    Python processes write to stderr goes to ``log``. A JVM that runs already stays as it is. ``settings`` are those of
    the session, some of which count only at the start of the JVM, such as its memory.

    Raises:
        NoJavaError: no suitable Java was found; the text says how to install one.
        OSError: ``log`` cannot be written.
    """
    _use_this_machine()
    _use_java()
    with log.open("ab") as stream:
        _start_gateway(DEFAULTS | dict(settings or {}), stream)


def _start_gateway(settings: Mapping[str, str], stderr: IO[bytes] | None = None) -> None:
    """Starts the JVM, unless it runs, without secret settings; ``stderr`` is the process's own by default.

    PySpark gives all settings to the JVM on its command line, which other users of the machine see. The session sets
    the secret ones later.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        shown = [(name, value) for name, value in settings.items() if not SECRET.search(name)]
        conf = SparkConf(loadDefaults=False).setAll(shown)
        # There is no public way to start the JVM with other settings, or another stderr.
        try:
            with _utf8_names():
                gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    conf, None if stderr is None else {"stderr": stderr}
                )
        except BaseException as error:
            _end_processes(error)
            raise
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)


@contextmanager
def _utf8_names() -> Iterator[None]:
    """Lets a JVM that starts in the block write any name of a file: Java encodes names by the locale, Python does not.

    In a locale such as ``LC_ALL=C`` Java would write ``?`` for each letter that ASCII lacks, or refuse the name.
    """
    if locale.getencoding().lower() in ("utf-8", "utf8"):
        yield
        return
    former = os.environ.get("LC_ALL")
    os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        if former is None:
            del os.environ["LC_ALL"]
        else:
            os.environ["LC_ALL"] = former


def _end_processes(error: BaseException) -> None:
    """Ends the processes that the interrupted functions have started.

    Ctrl-C makes PySpark remove the folder in which its JVM tells the address; a JVM that does not find it stays for
    ever, and only PySpark knows its process.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in list(frame.f_locals.values()):
            if isinstance(value, subprocess.Popen) and getattr(value, "pid", None) is not None:
                value.kill()
                value.wait()
                if value.stdin is not None:
                    value.stdin.close()


def cluster_session(
    name: str = "moldau", *, settings: Mapping[str, str] | None = None, log_level: str = "ERROR"
) -> SparkSession:
    """Starts (or returns) a session whose tasks run on a Spark cluster; this process is the driver.

    Workers use the Python of ``PYSPARK_PYTHON``, or ``python3`` on their PATH. They need Moldau: installed, or as the
    archive of ``pyspark_moldau.session.packaging``.

    Args:
        name: Application name.
        settings: Spark settings; ``spark.master`` names the cluster unless ``spark-submit`` does.
        log_level: Level of Spark's own log.

    Raises:
        NoJavaError: no suitable Java was found for the driver.
        UnsupportedSparkError: PySpark is too old.
    """
    return _started(name, CLUSTER_DEFAULTS | dict(settings or {}), log_level)


def _use_this_machine() -> None:
    python = python_for_workers(own_directory())
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):  # Spark looks for data sources by the second one
        os.environ.setdefault(name, python)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _use_java() -> None:
    os.environ["JAVA_HOME"] = str(java_home(own_directory()))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _started(name: str, settings: Mapping[str, str], log_level: str) -> SparkSession:
    _use_java()
    _start_gateway(settings)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return prepare(session)


def prepare(session: SparkSession) -> SparkSession:
    """Makes a session that exists already ready for ``format("moldau")``, and returns it.

    It registers the data source, which Spark does not find in editable installations, and has Spark redact login texts
    and private keys where it shows options.
    Each further thread that writes batches calls it too, because Spark looks for Python data sources in the active
    session of the thread, and another thread than the one that started the session has none.

    Raises:
        UnsupportedSparkError: PySpark is too old.
    """
    if not is_supported():
        raise UnsupportedSparkError(remedy())
    from pyspark_moldau.source.data_source import DefaultSource

    pattern = session.conf.get(REDACTED)
    if SECRET_OPTIONS not in (pattern or ""):
        session.conf.set(REDACTED, f"{pattern}|{SECRET_OPTIONS}" if pattern else f"(?i){SECRET_OPTIONS}")
    session.dataSource.register(DefaultSource)
    jvm = getattr(session, "_jvm", None)  # a session of Spark Connect has none
    if jvm is not None and jvm.SparkSession.getActiveSession().isEmpty():
        jvm.SparkSession.setActiveSession(session._jsparkSession)
    return session
