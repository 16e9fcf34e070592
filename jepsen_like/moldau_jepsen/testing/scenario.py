"""Defines the cluster of an asynchronous test, which runs on processes as well as in the simulation.

The test is a coroutine function that takes a ``Cluster``. It makes its clients with ``cluster.environment`` and
``cluster.bootstrap``. The marker ``moldau`` or the option ``--moldau-simulated`` decides whether the nodes are
processes on this machine or the same code in the deterministic simulation.
"""

from __future__ import annotations

import abc
from functools import partial
from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin, NewTopic
from moldau.runtime.ports.real import real_environment
from moldau_jepsen.chaos.network.fabric import check_others, cut_text
from moldau_jepsen.cluster.simulated import ClusterNotReadyError
from moldau_jepsen.launcher import LauncherError
from moldau_jepsen.launcher.spec import no_such_node
from moldau_jepsen.testing.awaited import Calls, noted
from moldau_jepsen.testing.local import in_force
from moldau_jepsen.testing.pipeline import PipelineHistory
from moldau_jepsen.testing.simulated import run_reported
from moldau_jepsen.world.disk.disk_profile import Trouble

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.cluster.simulated import SimulatedCluster
    from moldau_jepsen.testing.local import TestCluster
    from moldau_jepsen.testing.recording import Recording
    from moldau_jepsen.testing.simulated import Acknowledged
    from moldau_jepsen.world.world import SimulatedNode

    Scenario = Callable[["Cluster"], Awaitable[None]]

HEALTHY_SECONDS = 60.0
APPLICATION = "app"
"""Name of the simulated machine on which the test's clients run."""


class Cluster(abc.ABC):
    """A running cluster and the history of the test's pipeline. Brokers are 1, 2 ..., controllers 101, 102 ...

    On processes and in the simulation alike, a fault raises ``LauncherUsageError`` for an unknown node and
    ``LauncherError`` for a node that is not in the required state.

    A test that calls one of the coroutine methods without ``await`` fails at its end.
    """

    def __init_subclass__(cls) -> None:
        """Notes the calls of all coroutine methods that this class declares."""
        for name in Cluster.__abstractmethods__:
            if name in vars(cls):
                setattr(cls, name, noted(vars(cls)[name]))

    def __init__(self, bootstrap: str, environment: Environment, history: PipelineHistory | None = None) -> None:
        """Takes the address and the environment of a cluster that is ready."""
        self.bootstrap = bootstrap
        """Value of ``bootstrap.servers`` for clients."""
        self.environment = environment
        """Clock, random numbers, network and disk: give it to every ``Producer``, ``Consumer`` and ``Admin``."""
        self.history = history if history is not None else PipelineHistory()
        """History of the pipeline under test: the test adds what was sent, read and done."""
        self.calls = Calls()

    def check(self, *, idempotent: bool = True, at_least_once: bool = False, at_most_once: bool = False) -> None:
        """Judges the history against the guarantees of an exactly-once pipeline.

        ``PipelineHistory.check`` explains ``idempotent``; ``at_least_once`` allows repeated effects and
        ``at_most_once`` allows lost ones.

        Raises:
            PipelineError: The history violates a guarantee.
        """
        verdict = self.history.check(idempotent=idempotent)
        verdict.raise_if_wrong(at_least_once=at_least_once, at_most_once=at_most_once)

    @noted
    async def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, replicas: int | None = None
    ) -> None:
        """Creates a topic. The default replication factor is the number of brokers, 3 at most.

        Raises:
            AdminError: The cluster refused to create the topic.
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
        """Sends SIGKILL. The process's writes stay in the page cache. The node must run, or be paused."""

    @abc.abstractmethod
    async def start(self, node_id: int) -> None:
        """Starts a node that was killed or lost power; returns at once, see ``wait_healthy``."""

    @abc.abstractmethod
    async def pause(self, node_id: int) -> None:
        """Sends SIGSTOP: the process stands still, its connections stay open. The node must run."""

    @abc.abstractmethod
    async def resume(self, node_id: int) -> None:
        """Sends SIGCONT. The node must be paused."""

    @abc.abstractmethod
    async def power_loss(self, *node_ids: int) -> None:
        """Kills the nodes (all when none are given) and takes unsynced data from their disks."""

    @abc.abstractmethod
    async def cut(self, node_id: int, *others: int) -> None:
        """Cuts a node from ``others`` (from all other nodes when none are given); clients still reach it."""

    @abc.abstractmethod
    async def heal(self) -> None:
        """Lifts every cut."""

    @abc.abstractmethod
    async def fill_disk(self, node_id: int) -> None:
        """Leaves no room on the node's disk. A broker ends at its next write, because its log directory has failed."""

    @abc.abstractmethod
    async def free_disk(self, node_id: int) -> None:
        """Ends ``fill_disk``. A node that ended because of it stays down until it is started."""

    @abc.abstractmethod
    async def wait_healthy(self, seconds: float = HEALTHY_SECONDS) -> None:
        """Starts stopped nodes and waits until every broker serves; it does not resume paused nodes.

        Raises:
            LauncherError: Time ran out; the message names the cuts and pauses that still hold.
        """


class ProcessCluster(Cluster):
    """Processes on this machine. Every fault blocks a thread, not the event loop."""

    def __init__(self, local: TestCluster) -> None:
        """Takes a running cluster; the caller stops it. Its history goes on: a fixture may have added to it."""
        super().__init__(local.bootstrap, real_environment(), local.history)
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
        """See ``Cluster``.

        Raises:
            LauncherUsageError: The cluster was not started ``hostile``.
        """
        await trio.to_thread.run_sync(partial(self._local.power_loss, *node_ids))

    async def cut(self, node_id: int, *others: int) -> None:
        """See ``Cluster``."""
        await trio.to_thread.run_sync(partial(self._local.cut, node_id, *others))

    async def heal(self) -> None:
        """See ``Cluster``."""
        await trio.to_thread.run_sync(self._local.heal)

    async def fill_disk(self, node_id: int) -> None:
        """See ``Cluster``.

        Raises:
            LauncherUsageError: The cluster was not started ``hostile``.
        """
        await trio.to_thread.run_sync(self._local.fill_disk, node_id)

    async def free_disk(self, node_id: int) -> None:
        """See ``Cluster``."""
        await trio.to_thread.run_sync(self._local.free_disk, node_id)

    async def wait_healthy(self, seconds: float = HEALTHY_SECONDS) -> None:
        """See ``Cluster``."""
        start = partial(self._local.start_all, check_cancelled=trio.from_thread.check_cancelled)
        await trio.to_thread.run_sync(partial(start, ready_timeout_ms=int(seconds * 1000)))


class SimulatedProcesses(Cluster):
    """The same nodes in the deterministic simulation. Faults take no time."""

    def __init__(self, simulated: SimulatedCluster, acknowledged: Acknowledged | None = None) -> None:
        """Takes a cluster of a world; ``acknowledged`` is called for each acknowledged record of the history."""
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

    async def fill_disk(self, node_id: int) -> None:
        """See ``Cluster``."""
        machine = self._machine(node_id)
        self.simulated.full_disks.filled(node_id, len(self.simulated.world.failures))
        machine.disk.profile.begin(Trouble(on_effect=_nothing, capacity_bytes=machine.disk.used_bytes()))

    async def free_disk(self, node_id: int) -> None:
        """See ``Cluster``."""
        self._machine(node_id).disk.profile.end_all()
        self.simulated.full_disks.freed(node_id)

    async def wait_healthy(self, seconds: float = HEALTHY_SECONDS) -> None:
        """See ``Cluster``; the seconds are virtual.

        Raises:
            ClusterNotReadyError: A ``LauncherError``; time ran out.
        """
        self.simulated.start_all()  # controllers too, of which a majority is enough for the health of the cluster
        try:
            await self.simulated.wait_healthy(seconds)
        except ClusterNotReadyError as error:
            paused = [node_id for node_id, machine in sorted(self.simulated.machines.items()) if machine.is_paused]
            raise ClusterNotReadyError(f"{error}{in_force(self._cuts, paused)}") from error


def _nothing() -> None:
    """Takes note of no effect of a fault: the test knows which disk it filled."""


async def _run(scenario: Scenario, cluster: Cluster) -> None:
    """Runs a test.

    Raises:
        ForgottenAwaitError: A call of the cluster was not awaited. If the test fails otherwise, a note says so.
    """
    try:
        await scenario(cluster)
    except BaseException as error:
        if (forgotten := cluster.calls.error()) is not None:
            error.add_note(str(forgotten))
        raise
    if (forgotten := cluster.calls.error()) is not None:
        raise forgotten


def run_on_processes(scenario: Scenario, local: TestCluster) -> None:
    """Runs a test against processes; its exceptions pass through.

    Raises:
        ForgottenAwaitError: A call of the cluster was not awaited.
    """

    trio.run(run_beside_fixtures, scenario, local, strict_exception_groups=True)


async def run_beside_fixtures(scenario: Scenario, local: TestCluster) -> None:
    """Runs a test against processes in the event loop of the caller, where fixtures may run too.

    Raises:
        ForgottenAwaitError: A call of the cluster was not awaited.
    """
    await _run(scenario, ProcessCluster(local))


def run_simulated(
    scenario: Scenario,
    *,
    seed: int,
    brokers: int,
    controllers: int,
    settings: Mapping[str, object],
    virtual_seconds_max: float | None = None,
    timeline: list[str] | None = None,
    recording: Recording | None = None,
) -> None:
    """Runs a test in the simulation; its exceptions pass through.

    When the test has ended, its events are added to ``timeline``, line by line; ``recording`` gets those of the whole
    world.

    Raises:
        SimulationError: An invariant of the cluster did not hold, or the test has not ended in time.
        ForgottenAwaitError: A call of the cluster was not awaited.
    """

    async def main(simulated: SimulatedCluster, acknowledged: Acknowledged) -> None:
        await simulated.wait_healthy(HEALTHY_SECONDS)
        await _run(scenario, SimulatedProcesses(simulated, acknowledged))

    run_reported(
        main,
        seed=seed,
        brokers=brokers,
        controllers=controllers,
        settings=settings,
        virtual_seconds_max=virtual_seconds_max,
        timeline=timeline,
        recording=recording,
    )
