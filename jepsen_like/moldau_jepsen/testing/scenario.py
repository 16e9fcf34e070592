"""One test for both worlds: a cluster with faults as an asynchronous test sees it.

The test is a coroutine function that takes a ``Cluster``. It makes its clients with ``cluster.environment`` and
``cluster.bootstrap``; whether the nodes are processes on this machine or the same code in the deterministic simulation
is decided by who runs it (the marker ``moldau`` or the option ``--moldau-simulated``).
"""

from __future__ import annotations

import abc
from functools import partial
from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin, NewTopic
from moldau.runtime.real import real_environment
from moldau_jepsen.chaos.fabric import check_others, cut_text
from moldau_jepsen.launcher import LauncherError
from moldau_jepsen.launcher.spec import no_such_node
from moldau_jepsen.simulation.cluster import ClusterNotReadyError
from moldau_jepsen.testing.local import in_force
from moldau_jepsen.testing.pipeline import PipelineHistory
from moldau_jepsen.testing.simulated import run_told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from moldau.runtime.environment import Environment
    from moldau_jepsen.simulation.cluster import SimulatedCluster
    from moldau_jepsen.simulation.world import SimulatedNode
    from moldau_jepsen.testing.local import TestCluster
    from moldau_jepsen.testing.simulated import Acknowledged

    Scenario = Callable[["Cluster"], Awaitable[None]]

HEALTHY_SECONDS = 60.0
APPLICATION = "app"
"""The machine of the test's own clients in the simulation."""


class Cluster(abc.ABC):
    """A running cluster, and what the test's pipeline did with it. Brokers are 1, 2 ..., controllers 101, 102 ...

    Faults raise ``LauncherUsageError`` for a node that there is not, and ``LauncherError`` where a node is not in the
    state that they need: the same in both worlds.
    """

    def __init__(self, bootstrap: str, environment: Environment, history: PipelineHistory | None = None) -> None:
        """The cluster is ready."""
        self.bootstrap = bootstrap
        """``bootstrap.servers`` of clients."""
        self.environment = environment
        """Clock, random numbers, network and disk: give it to every ``Producer``, ``Consumer`` and ``Admin``."""
        self.history = history if history is not None else PipelineHistory()
        """Tell it what was sent, read and done."""

    def check(self, *, idempotent: bool = True, at_least_once: bool = False, at_most_once: bool = False) -> None:
        """Raises ``PipelineError`` unless the history is that of an exactly-once pipeline (or of what is allowed)."""
        verdict = self.history.check(idempotent=idempotent)
        verdict.raise_if_wrong(at_least_once=at_least_once, at_most_once=at_most_once)

    async def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, replicas: int | None = None
    ) -> None:
        """Creates a topic, with as many replicas as there are brokers (3 at most) if not said otherwise.

        Raises ``AdminError``.
        """
        wanted = NewTopic(
            name=name,
            partitions=partitions,
            replication_factor=replicas if replicas is not None else -1,
            configs=dict(configs or {}),
        )
        async with Admin({"bootstrap.servers": self.bootstrap}, environment=self.environment) as admin:
            await admin.create_topics([wanted])

    @abc.abstractmethod
    async def kill(self, node_id: int) -> None:
        """SIGKILL. What the process wrote stays in the page cache. The node must run, or be paused."""

    @abc.abstractmethod
    async def start(self, node_id: int) -> None:
        """Starts a node that does not run (killed, no power); returns at once, see ``wait_healthy``."""

    @abc.abstractmethod
    async def pause(self, node_id: int) -> None:
        """SIGSTOP: nothing of the process runs, its connections stay open. The node must run."""

    @abc.abstractmethod
    async def resume(self, node_id: int) -> None:
        """SIGCONT. The node must be paused."""

    @abc.abstractmethod
    async def power_loss(self, *node_ids: int) -> None:
        """The nodes end, and their disks lose what was not synced (all nodes when none are given)."""

    @abc.abstractmethod
    async def cut(self, node_id: int, *others: int) -> None:
        """Nothing gets through between a node and ``others`` (all other nodes when none are given); clients do."""

    @abc.abstractmethod
    async def heal(self) -> None:
        """Lifts every cut."""

    @abc.abstractmethod
    async def wait_healthy(self, seconds: float = HEALTHY_SECONDS) -> None:
        """Starts what does not run and waits until every broker serves; a paused one does not.

        Raises ``LauncherError``, which names the cuts and pauses that still hold.
        """


class ProcessCluster(Cluster):
    """Processes on this machine. Every fault blocks a thread, not the event loop."""

    def __init__(self, local: TestCluster) -> None:
        """Takes a running cluster; whoever started it ends it."""
        super().__init__(local.bootstrap, real_environment())
        self._local = local

    async def kill(self, node_id: int) -> None:
        """See ``Cluster``."""
        await trio.to_thread.run_sync(self._local.kill, node_id)

    async def start(self, node_id: int) -> None:
        """See ``Cluster``."""
        await trio.to_thread.run_sync(self._local.launch, node_id)

    async def pause(self, node_id: int) -> None:
        """See ``Cluster``."""
        await trio.to_thread.run_sync(self._local.pause, node_id)

    async def resume(self, node_id: int) -> None:
        """See ``Cluster``."""
        await trio.to_thread.run_sync(self._local.resume, node_id)

    async def power_loss(self, *node_ids: int) -> None:
        """See ``Cluster``. Raises ``LauncherUsageError`` unless the cluster was started ``hostile``."""
        await trio.to_thread.run_sync(partial(self._local.power_loss, *node_ids))

    async def cut(self, node_id: int, *others: int) -> None:
        """See ``Cluster``."""
        await trio.to_thread.run_sync(partial(self._local.cut, node_id, *others))

    async def heal(self) -> None:
        """See ``Cluster``."""
        await trio.to_thread.run_sync(self._local.heal)

    async def wait_healthy(self, seconds: float = HEALTHY_SECONDS) -> None:
        """See ``Cluster``. Raises ``LauncherError``."""
        await trio.to_thread.run_sync(partial(self._local.start_all, ready_timeout_ms=int(seconds * 1000)))


class SimulatedProcesses(Cluster):
    """The same nodes in the deterministic simulation. Faults take no time."""

    def __init__(self, simulated: SimulatedCluster, acknowledged: Acknowledged | None = None) -> None:
        """Takes a cluster of a world; ``acknowledged`` hears of the acknowledged records in the history."""
        environment = simulated.world.node(APPLICATION).environment
        super().__init__(simulated.bootstrap, environment, PipelineHistory(acknowledged))
        self.simulated = simulated
        self._cuts: list[str] = []

    def _machine(self, node_id: int) -> SimulatedNode:
        machine = self.simulated.machines.get(node_id)
        if machine is None:
            raise no_such_node(node_id, sorted(self.simulated.machines))
        return machine

    def _running(self, node_id: int) -> SimulatedNode:
        machine = self._machine(node_id)
        if not machine.is_running:
            raise LauncherError(f"node {node_id} does not run")
        return machine

    async def kill(self, node_id: int) -> None:
        """See ``Cluster``."""
        self._running(node_id)
        self.simulated.kill(node_id)

    async def start(self, node_id: int) -> None:
        """See ``Cluster``."""
        if self._machine(node_id).is_running:
            raise LauncherError(f"node {node_id} runs already; stop, kill or restart it")
        self.simulated.start(node_id)

    async def pause(self, node_id: int) -> None:
        """See ``Cluster``."""
        self._running(node_id).pause()

    async def resume(self, node_id: int) -> None:
        """See ``Cluster``."""
        machine = self._machine(node_id)
        if not machine.is_paused:
            raise LauncherError(f"node {node_id} is not paused")
        machine.resume()

    async def power_loss(self, *node_ids: int) -> None:
        """See ``Cluster``."""
        chosen = node_ids or tuple(self.simulated.machines)
        for node_id in chosen:
            self._machine(node_id)
        for node_id in chosen:
            self.simulated.lose_power(node_id)

    async def cut(self, node_id: int, *others: int) -> None:
        """See ``Cluster``."""
        for one in (node_id, *others):
            self._machine(one)
        check_others(node_id, others)
        chosen = others or tuple(other for other in self.simulated.machines if other != node_id)
        host = self.simulated.host
        self.simulated.world.network.cut_between([host(node_id)], [host(other) for other in chosen])
        self._cuts.append(cut_text(node_id, *others))

    async def heal(self) -> None:
        """See ``Cluster``."""
        self.simulated.world.network.heal_all()
        self._cuts.clear()

    async def wait_healthy(self, seconds: float = HEALTHY_SECONDS) -> None:
        """See ``Cluster``. Raises ``ClusterNotReadyError``, a ``LauncherError``; the seconds are virtual."""
        try:
            await self.simulated.wait_healthy(seconds)
        except ClusterNotReadyError as error:
            paused = [node_id for node_id, machine in sorted(self.simulated.machines.items()) if machine.is_paused]
            raise ClusterNotReadyError(f"{error}{in_force(self._cuts, paused)}") from error


def run_on_processes(scenario: Scenario, local: TestCluster) -> None:
    """Runs a test against processes; raises what it raises."""

    async def main() -> None:
        await scenario(ProcessCluster(local))

    trio.run(main, strict_exception_groups=True)


def run_simulated(
    scenario: Scenario,
    *,
    seed: int,
    brokers: int,
    controllers: int,
    settings: Mapping[str, object],
    timeline: list[str] | None = None,
) -> None:
    """Runs a test in the simulation; raises what it raises, and ``SimulationError`` for a broken invariant.

    ``timeline`` is given what happened, line by line, when it has ended.
    """

    async def main(simulated: SimulatedCluster, acknowledged: Acknowledged) -> None:
        await simulated.wait_healthy(HEALTHY_SECONDS)
        await scenario(SimulatedProcesses(simulated, acknowledged))

    run_told(main, seed=seed, brokers=brokers, controllers=controllers, settings=settings, timeline=timeline)
