"""A local cluster as tests use it: processes that are killed and paused, links that are cut, disks that lose power."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moldau_jepsen.chaos.fabric import LinkFabric
from moldau_jepsen.launcher import ClusterSpec, LauncherError, LauncherUsageError, LocalCluster, start_cluster
from moldau_jepsen.launcher.cluster import READY_TIMEOUT_MS, STOP_TIMEOUT_MS
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.launcher.process import ProcessState, log_end
from moldau_jepsen.launcher.spec import CONTROLLER_ID_FIRST
from moldau_jepsen.testing.pipeline import PipelineHistory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from moldau_jepsen.launcher import Node


LOG_LINES_SHOWN = 20


def in_force(links: Sequence[str], paused: Sequence[int]) -> str:
    """What may keep a cluster from becoming well, for the end of a message; empty where there is nothing."""
    held = [*links, *(f"pause({node_id})" for node_id in paused)]
    return f"; still in force: {', '.join(held)}" if held else ""


def settings_text(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as a configuration file has them. Raises ``LauncherUsageError`` for what is no text, number or truth."""
    texts: dict[str, str] = {}
    for key, value in settings.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise LauncherUsageError(f"settings are texts, numbers, True and False by name, not {key!r}: {value!r}")
        texts[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


class TestCluster(LocalCluster):
    """A ``LocalCluster`` with faults on its links. Not for use by several threads at once."""

    __test__ = False  # its name begins as pytest's classes do

    _fabric: LinkFabric | None = None
    _history: PipelineHistory | None = None
    _power_losses = 0
    _is_broken = False
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

    def wait_ready(self, nodes: Sequence[Node], *, timeout_ms: float = READY_TIMEOUT_MS) -> None:
        """See ``LocalCluster.wait_ready``; the error also names the faults that still hold."""
        try:
            super().wait_ready(nodes, timeout_ms=timeout_ms)
        except LauncherError as error:
            paused = [node.node_id for node in self.nodes if self.state(node.node_id) is ProcessState.PAUSED]
            links = self._fabric.in_force if self._fabric is not None else []
            raise LauncherError(f"{error}{in_force(links, paused)}") from error

    def restore(self) -> None:
        """Puts right what faults did: heals links, lets paused nodes go on, starts what does not run.

        Raises ``LauncherError`` where that does not help; then ``make_whole`` does.
        """
        self._history = None
        if not self.touched:
            return
        self._is_broken = True  # until it is right again
        if self._fabric is not None:
            self.heal()
        for node in self.nodes:
            if self.state(node.node_id) is ProcessState.PAUSED:
                self.resume(node.node_id)
        self.start_all()
        self.touched = self._is_broken = False

    def make_whole(self) -> None:
        """Begins anew where ``restore`` failed: with empty disks, at the same addresses. Raises ``LauncherError``."""
        if not self._is_broken:
            return
        if self._fabric is not None:
            self.heal()
        self.shut_down()
        for node in self.nodes:
            self.wipe(node.node_id)
        self.start_all()
        self.touched = self._is_broken = False

    def last_words(self) -> list[tuple[str, str]]:
        """The ends of the nodes' logs, each with a heading that names the node and what its process does now."""
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
