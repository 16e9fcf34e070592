"""A local cluster as tests use it: processes that can be killed and paused, links that can be cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.chaos.fabric import LinkFabric
from moldau_jepsen.launcher import ClusterSpec, LauncherUsageError, LocalCluster, start_cluster
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.launcher.spec import CONTROLLER_ID_FIRST

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path


class TestCluster(LocalCluster):
    """A ``LocalCluster`` with faults on its links. Not for use by several threads at once."""

    __test__ = False  # its name begins as pytest's classes do

    _fabric: LinkFabric | None = None

    @property
    def links(self) -> LinkFabric:
        """The proxies. Raises ``LauncherUsageError`` when the cluster was started without them."""
        if self._fabric is None:
            raise LauncherUsageError("this cluster has no proxies: start it with cluster(links=True)")
        return self._fabric

    def cut(self, node_id: int, *others: int, one_way: bool = False, clients: bool = False) -> None:
        """Cuts a node from ``others`` (from all other members when none are given); bytes wait until ``heal``."""
        self.links.cut(node_id, *others, one_way=one_way, clients=clients)

    def slow(self, node_id: int, delay_ms: float) -> None:
        """Delays every byte that a node sends."""
        self.links.slow(node_id, delay_ms)

    def reset(self, *node_ids: int) -> int:
        """Ends all connections of these nodes (of all when none are given) with RST; returns how many."""
        return self.links.reset(*node_ids)

    def heal(self) -> None:
        """Lifts every cut and delay."""
        self.links.heal()


def start_test_cluster(
    stack: ExitStack,
    directory: Path,
    *,
    brokers: int,
    controllers: int,
    settings: dict[str, str],
    ready_timeout_ms: int,
    links: bool,
) -> TestCluster:
    """Starts a cluster that ends with ``stack``; see ``moldau_jepsen.testing.cluster``."""
    fabric: LinkFabric | None = None
    ports: list[int] = []
    advertised: list[int] = []
    if links:
        count = brokers + controllers
        free = take_free_ports(2 * count)
        ports, advertised = free[:count], free[count:]
        ids = [*range(1, brokers + 1), *range(CONTROLLER_ID_FIRST, CONTROLLER_ID_FIRST + controllers)]
        fabric = stack.enter_context(
            LinkFabric(dict(zip(ids, ports, strict=True)), dict(zip(ids, advertised, strict=True)))
        )
    spec = ClusterSpec(
        brokers=brokers,
        controllers=controllers,
        settings=settings,
        ports=tuple(ports),
        advertised_ports=tuple(advertised),
    )
    started = start_cluster(directory, spec, ready_timeout_ms=ready_timeout_ms)
    running = TestCluster(started.directory, started.nodes)
    running._fabric = fabric
    stack.callback(running.shut_down)
    return running
