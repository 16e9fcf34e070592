"""A local cluster as tests use it: processes that are killed and paused, links that are cut, disks that lose power."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.chaos.fabric import LinkFabric
from moldau_jepsen.launcher import ClusterSpec, LauncherUsageError, LocalCluster, start_cluster
from moldau_jepsen.launcher.cluster import STOP_TIMEOUT_MS
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.spec import CONTROLLER_ID_FIRST
from moldau_jepsen.testing.pipeline import PipelineHistory

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path


class TestCluster(LocalCluster):
    """A ``LocalCluster`` with faults on its links. Not for use by several threads at once."""

    __test__ = False  # its name begins as pytest's classes do

    _fabric: LinkFabric | None = None
    _history: PipelineHistory | None = None
    _power_losses = 0
    touched = False
    """Whether a fault struck since ``restore``."""

    @property
    def history(self) -> PipelineHistory:
        """What the pipeline under test did, as far as the test tells it; empty at first and after ``restore``."""
        if self._history is None:
            self._history = PipelineHistory()
        return self._history

    def check(self, *, idempotent: bool = True, at_least_once: bool = False, at_most_once: bool = False) -> None:
        """Raises ``PipelineError`` unless the history is that of an exactly-once pipeline (or of what is allowed)."""
        verdict = self.history.check(idempotent=idempotent)
        verdict.raise_if_wrong(at_least_once=at_least_once, at_most_once=at_most_once)

    def kill(self, node_id: int) -> None:
        """SIGKILL; what the process wrote stays in the page cache."""
        self.touched = True
        super().kill(node_id)

    def pause(self, node_id: int) -> None:
        """SIGSTOP: nothing of the process runs, its connections stay open."""
        self.touched = True
        super().pause(node_id)

    def stop_node(self, node_id: int, *, timeout_ms: float = STOP_TIMEOUT_MS) -> bool:
        """See ``LocalCluster.stop_node``."""
        self.touched = True
        return super().stop_node(node_id, timeout_ms=timeout_ms)

    def power_loss(self, *node_ids: int) -> None:
        """The nodes (all when none are given) are killed, and then their disks lose what was not synced.

        ``start_all`` brings them back. Raises ``LauncherUsageError`` when the cluster was not started ``hostile``.
        """
        self.touched = True
        chosen = node_ids or tuple(node.node_id for node in self.nodes)
        if not all(self.node(node_id).hostile for node_id in chosen):
            raise LauncherUsageError("these nodes run on the machine's own disk: start the cluster with hostile=True")
        for node_id in chosen:  # all are dead before the first disk forgets
            if self.state(node_id) is not ProcessState.STOPPED:
                super().kill(node_id)
        for node_id in chosen:
            self._power_losses += 1
            self.lose_power(node_id, self._power_losses)

    def restore(self) -> None:
        """Puts right what faults did: heals links, lets paused nodes go on, starts what does not run."""
        self._history = None
        if not self.touched:
            return
        if self._fabric is not None:
            self.heal()
        for node in self.nodes:
            if self.state(node.node_id) is ProcessState.PAUSED:
                self.resume(node.node_id)
        self.start_all()
        self.touched = False

    @property
    def links(self) -> LinkFabric:
        """The proxies. Raises ``LauncherUsageError`` when the cluster was started without them."""
        if self._fabric is None:
            raise LauncherUsageError("this cluster has no proxies: start it with cluster(links=True)")
        return self._fabric

    def cut(self, node_id: int, *others: int, one_way: bool = False, clients: bool = False) -> None:
        """Cuts a node from ``others`` (from all other members when none are given); bytes wait until ``heal``."""
        self.touched = True
        self.links.cut(node_id, *others, one_way=one_way, clients=clients)

    def slow(self, node_id: int, delay_ms: float) -> None:
        """Delays every byte that a node sends."""
        self.touched = True
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
    hostile: bool,
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
        hostile=hostile,
    )
    started = start_cluster(directory, spec, ready_timeout_ms=ready_timeout_ms)
    running = TestCluster(started.directory, started.nodes)
    running._fabric = fabric
    stack.callback(running.shut_down)
    return running
