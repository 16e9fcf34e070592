"""The type of the fixture ``moldau_cluster_factory``. Imports nothing of Moldau, as ``plugin`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_jepsen.testing.local import TestCluster


class ClusterFactory(Protocol):
    """Starts a cluster that lives until the end of the test."""

    def __call__(
        self,
        *,
        brokers: int = 3,
        controllers: int = 3,
        settings: Mapping[str, object] | None = None,
        links: bool = True,
        hostile: bool = False,
    ) -> TestCluster:
        """Returns the running cluster; see ``moldau_jepsen.testing.cluster`` for arguments and errors."""
        ...
