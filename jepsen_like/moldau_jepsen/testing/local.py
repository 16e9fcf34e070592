"""Provides the local cluster of tests, with faults on its processes, links and disks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moldau_jepsen.chaos.network.fabric import LinkFabric
from moldau_jepsen.launcher import ClusterSpec, LauncherError, LauncherUsageError, LocalCluster, start_cluster
from moldau_jepsen.launcher.cluster import READY_TIMEOUT_MS, STOP_TIMEOUT_MS
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.launcher.process import ProcessState, log_end
from moldau_jepsen.launcher.spec import CONTROLLER_ID_FIRST
from moldau_jepsen.testing.pipeline import PipelineHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack

    from moldau_jepsen.launcher import Node


LOG_LINES_SHOWN = 20


def in_force(links: Sequence[str], paused: Sequence[int]) -> str:
    """Returns the end of an error message that names the cuts and pauses still in force; empty if there are none."""
    held = [*links, *(f"pause({node_id})" for node_id in paused)]
    return f"; still in force: {', '.join(held)}" if held else ""


def settings_text(settings: Mapping[str, object]) -> dict[str, str]:
    """Returns settings in the form of a configuration file.

    Raises:
        LauncherUsageError: A key is not a string, or a value is not a string, a number or a boolean.
    """
    texts: dict[str, str] = {}
    for key, value in settings.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise LauncherUsageError(f"settings map names to strings, numbers or booleans, not {key!r}: {value!r}")
        texts[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


class TestCluster(LocalCluster):
    """A ``LocalCluster`` with faults on its links. Not for use by several threads at once."""

    __test__ = False  # Pytest would collect the class for its name.

    _fabric: LinkFabric | None = None
    _history: PipelineHistory | None = None
    _power_losses = 0
    _is_broken = False
    touched = False
    """Whether a fault was injected since ``restore``."""

    @property
    def history(self) -> PipelineHistory:
        """Returns the history to which the test adds what its pipeline did; ``restore`` empties it."""
        if self._history is None:
            self._history = PipelineHistory()
        return self._history

    def check(self, *, idempotent: bool = True, at_least_once: bool = False, at_most_once: bool = False) -> None:
        """Judges the history against the guarantees of an exactly-once pipeline.

        ``PipelineHistory.check`` explains ``idempotent``; ``at_least_once`` allows repeated effects and
        ``at_most_once`` allows lost ones.

        Raises:
            PipelineError: The history violates a guarantee.
        """
        verdict = self.history.check(idempotent=idempotent)
        verdict.raise_if_wrong(at_least_once=at_least_once, at_most_once=at_most_once)

    def kill(self, node_id: int) -> None:
        """Sends SIGKILL; the process's writes stay in the page cache."""
        self.touched = True
        super().kill(node_id)

    def pause(self, node_id: int) -> None:
        """Sends SIGSTOP: the process stands still, its connections stay open."""
        self.touched = True
        super().pause(node_id)

    def stop_node(self, node_id: int, *, timeout_ms: float = STOP_TIMEOUT_MS) -> bool:
        """See ``LocalCluster.stop_node``."""
        self.touched = True
        return super().stop_node(node_id, timeout_ms=timeout_ms)

    def power_loss(self, *node_ids: int) -> None:
        """Kills the nodes (all when none are given), and then takes unsynced data from their disks.

        ``start_all`` brings them back.

        Raises:
            LauncherUsageError: The cluster was not started ``hostile``.
        """
        self.touched = True
        chosen = node_ids or tuple(node.node_id for node in self.nodes)
        if not all(self.node(node_id).hostile for node_id in chosen):
            raise LauncherUsageError("these nodes run on the machine's own disk: start the cluster with hostile=True")
        for node_id in chosen:  # All processes must be gone before the first disk loses data.
            if self.state(node_id) is not ProcessState.STOPPED:
                super().kill(node_id)
        for node_id in chosen:
            self._power_losses += 1
            self.lose_power(node_id, self._power_losses)

    def fill_disk(self, node_id: int) -> None:
        """Leaves no room on the node's disk. A broker ends at its next write, because its log directory has failed.

        Raises:
            LauncherUsageError: The cluster was not started ``hostile``.
        """
        self.touched = True
        self.control(node_id, lambda control: replace(control, disk_full=1.0))

    def free_disk(self, node_id: int) -> None:
        """Ends ``fill_disk``. A node that ended because of it stays down until it is started."""
        self.control(node_id, lambda control: replace(control, disk_full=0.0))

    def wait_ready(
        self,
        nodes: Sequence[Node],
        *,
        timeout_ms: float = READY_TIMEOUT_MS,
        check_cancelled: Callable[[], None] | None = None,
    ) -> None:
        """See ``LocalCluster.wait_ready``; the error also names the faults that still hold."""
        try:
            super().wait_ready(nodes, timeout_ms=timeout_ms, check_cancelled=check_cancelled)
        except LauncherError as error:
            paused = [node.node_id for node in self.nodes if self.state(node.node_id) is ProcessState.PAUSED]
            links = self._fabric.in_force if self._fabric is not None else []
            raise LauncherError(f"{error}{in_force(links, paused)}") from error

    def restore(self) -> None:
        """Heals links, frees disks, resumes paused nodes and starts stopped ones, also those that ended by themselves.

        Raises:
            LauncherError: The cluster did not become ready; call ``make_whole``.
        """
        self._history = None
        is_cut = self._fabric is not None and bool(self._fabric.in_force)  # also by a call of ``links``
        are_running = all(self.state(node.node_id) is ProcessState.RUNNING for node in self.nodes)
        if not self.touched and not is_cut and are_running:
            return
        self._is_broken = True  # It stays set if a step below raises.
        self._lift_faults()
        for node in self.nodes:
            if self.state(node.node_id) is ProcessState.PAUSED:
                self.resume(node.node_id)
        self.start_all()
        self.touched = self._is_broken = False

    def make_whole(self) -> None:
        """Starts the cluster again with empty disks, at the same addresses, after ``restore`` failed.

        Raises:
            LauncherError: The cluster did not become ready.
        """
        if not self._is_broken:
            return
        self._lift_faults()
        self.shut_down()
        for node in self.nodes:
            self.wipe(node.node_id)
        self.start_all()
        self.touched = self._is_broken = False

    def _lift_faults(self) -> None:
        """Lifts what would keep nodes from serving although they run."""
        if self._fabric is not None:
            self.heal()
        for node in self.nodes:
            if node.hostile:
                self.free_disk(node.node_id)

    def last_words(self) -> list[tuple[str, str]]:
        """Returns the ends of the nodes' logs, each with a heading that names the node and its process's state."""
        return [
            (
                f"moldau: {node.role} {node.node_id} ({self.state(node.node_id).value})",
                "\n".join(log_end(node)[-LOG_LINES_SHOWN:]),
            )
            for node in self.nodes
            if Path(node.log).exists()
        ]

    @property
    def links(self) -> LinkFabric:
        """Returns the proxies in front of the nodes.

        Raises:
            LauncherUsageError: The cluster was started without proxies.
        """
        if self._fabric is None:
            raise LauncherUsageError("this cluster has no proxies: start it with cluster(links=True)")
        return self._fabric

    def cut(self, node_id: int, *others: int, one_way: bool = False, clients: bool = False) -> None:
        """Cuts a node from ``others`` (from all other nodes when none are given); bytes are held until ``heal``."""
        self.touched = True
        self.links.cut(node_id, *others, one_way=one_way, clients=clients)

    def slow(self, node_id: int, delay_ms: float) -> None:
        """Delays every byte that a node sends."""
        self.touched = True
        self.links.slow(node_id, delay_ms)

    def reset(self, *node_ids: int) -> int:
        """Resets all connections of these nodes (of all when none are given) with RST; returns their number."""
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
    settings: Mapping[str, object],
    ready_timeout_ms: int,
    links: bool,
    hostile: bool,
) -> TestCluster:
    """Starts a cluster that ends with ``stack``; see ``moldau_jepsen.testing.cluster``."""
    fabric: LinkFabric | None = None
    spec = ClusterSpec(brokers=brokers, controllers=controllers, settings=settings_text(settings), hostile=hostile)
    if links:
        count = spec.nodes
        free = take_free_ports(2 * count)
        ports, advertised = free[:count], free[count:]
        spec = replace(spec, ports=tuple(ports), advertised_ports=tuple(advertised))
        ids = [*range(1, brokers + 1), *range(CONTROLLER_ID_FIRST, CONTROLLER_ID_FIRST + controllers)]
        fabric = stack.enter_context(
            LinkFabric(dict(zip(ids, ports, strict=True)), dict(zip(ids, advertised, strict=True)))
        )
    started = start_cluster(directory, spec, ready_timeout_ms=ready_timeout_ms)
    running = TestCluster(started.directory, started.nodes)
    running._fabric = fabric
    stack.callback(running.shut_down)
    return running
