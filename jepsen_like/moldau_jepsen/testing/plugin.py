"""The pytest plugin: fixtures ``moldau_cluster`` (one shared cluster), ``moldau_cluster_factory`` (clusters of one's
own, with faults) and ``moldau_history`` (what a pipeline did, and its judgement).

Loaded by every pytest run of an environment that has Moldau installed: it imports nothing of Moldau until a fixture
is used.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moldau_jepsen.testing.local import TestCluster
    from moldau_jepsen.testing.pipeline import PipelineHistory


class ClusterFactory(Protocol):
    """Starts a cluster that lives until the end of the test."""

    def __call__(
        self, *, brokers: int = 3, controllers: int = 3, settings: Mapping[str, str] | None = None
    ) -> TestCluster:
        """Returns the running cluster; see ``moldau_jepsen.testing.cluster`` for arguments and errors."""
        ...


@pytest.fixture(scope="session")
def moldau_cluster() -> Iterator[TestCluster]:
    """Three brokers under three controllers, shared by the whole session: use own topic names and leave the nodes
    alone.
    """
    from moldau_jepsen.testing import cluster

    with cluster(links=False) as running:
        yield running


@pytest.fixture
def moldau_cluster_factory() -> Iterator[ClusterFactory]:
    """A function that starts clusters; they are stopped and removed when the test ends."""
    from moldau_jepsen.testing import cluster

    with ExitStack() as stack:

        def start(*, brokers: int = 3, controllers: int = 3, settings: Mapping[str, str] | None = None) -> TestCluster:
            return stack.enter_context(cluster(brokers=brokers, controllers=controllers, settings=settings))

        yield start


@pytest.fixture
def moldau_history() -> PipelineHistory:
    """An empty history: tell it what was sent, read and done, and ``check`` it."""
    from moldau_jepsen.testing import new_history

    return new_history()
