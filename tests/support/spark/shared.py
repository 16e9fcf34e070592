"""The Spark session and the clusters that all Spark tests of a pytest process share.

A JVM, its first queries, and a cluster cost far more processor time than the tests themselves.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau_jepsen.testing import cluster
from pyspark_moldau.session.sessions import DEFAULTS
from support.shared import SHARED
from support.spark.forked_python import forked_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_jepsen.testing.local import TestCluster

UNVERIFIED = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
SETTINGS = {
    # Java checks the bytecode of each class that it loads, which takes a tenth of the start.
    "spark.driver.extraJavaOptions": f"{DEFAULTS['spark.driver.extraJavaOptions']} {UNVERIFIED}",
    "spark.sql.streaming.stopTimeout": "120000",
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "moldau-tests-warehouse"),  # stays empty
    # The tables of the tests have a few rows: one task for each, and no compiled query plans.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}

STARTS_S = 600.0
"""How long slow starts are repeated; on a machine that is very busy many in a row are slow."""
SLOW_START = "connect back"
"""Part of the message of a query whose Python process did not start within the ten seconds that Spark grants."""


def patiently(run: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what ``run(*arguments)`` returns; runs it again after a slow start of one of Spark's Python processes."""
    deadline = time.monotonic() + STARTS_S
    while True:
        try:
            return run(*arguments)
        except Exception as error:
            if SLOW_START not in str(error) or time.monotonic() >= deadline:
                raise


def shared_session() -> Any:
    """Returns the session; its settings are those of ``local_session`` and ``SETTINGS``."""
    return SHARED.get("spark session", _session)


def shared_brokers() -> TestCluster:
    """Returns the cluster of three brokers; a test that kills a broker starts it again."""
    return SHARED.get("spark brokers", _brokers)


def shared_broker() -> TestCluster:
    """Returns the cluster of a single broker, for tests that must not ask a broker that knows of a change later."""
    return SHARED.get("spark broker", _broker)


@contextmanager
def _session() -> Iterator[Any]:
    from pyspark_moldau.session import local_session

    with forked_python():
        session = local_session("moldau-tests", cores=1, settings=SETTINGS)
        yield session
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pyspark and py4j leave sockets to the garbage collector
            session.stop()


@contextmanager
def _broker() -> Iterator[TestCluster]:
    with cluster(brokers=1, controllers=1, links=False) as running:
        yield running


@contextmanager
def _brokers() -> Iterator[TestCluster]:
    with cluster(brokers=3, controllers=1, links=False) as running:
        yield running
