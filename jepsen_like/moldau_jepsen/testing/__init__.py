"""Real Moldau clusters for tests: a context manager for any test framework and a fixture for pytest.

    from moldau_jepsen.testing import cluster

    with cluster(brokers=3) as local:
        print(local.bootstrap)
        local.kill(1)

The package is imported by every pytest run of a project that has Moldau installed (``plugin`` is an entry point), so it
imports nothing but the standard library until a cluster is asked for.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moldau_jepsen.launcher import LocalCluster

__all__ = ["cluster"]


@contextmanager
def cluster(
    *,
    brokers: int = 3,
    controllers: int = 3,
    settings: Mapping[str, str] | None = None,
    directory: Path | None = None,
    ready_timeout_ms: int = 30_000,
) -> Iterator[LocalCluster]:
    """Runs a cluster of separate processes on free ports of 127.0.0.1 for the length of the block.

    Args:
        brokers: Number of brokers (1 or more); their ids are 1..brokers.
        controllers: Number of controllers (1 or more); their ids are 101...
        settings: Configuration keys added to every node's file (Kafka's names).
        directory: Where data, logs and ``cluster.json`` go, and stay. A temporary directory, removed afterwards, if
            not given.
        ready_timeout_ms: How long the cluster may take until every broker is unfenced.

    Yields:
        The running cluster with its faults: ``kill`` (SIGKILL), ``pause``, ``resume``, ``restart``, ``stop_node``.

    Raises:
        LauncherError: when a node does not come up; the text holds the end of its log.
    """
    from moldau_jepsen.launcher import ClusterSpec, start_cluster

    spec = ClusterSpec(brokers=brokers, controllers=controllers, settings=dict(settings or {}))
    with tempfile.TemporaryDirectory(prefix="moldau-", ignore_cleanup_errors=True) as temporary:
        running = start_cluster(directory or Path(temporary), spec, ready_timeout_ms=ready_timeout_ms)
        try:
            yield running
        finally:
            running.shut_down()
