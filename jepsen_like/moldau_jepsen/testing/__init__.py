"""Clusters for tests: real processes with faults, or the same code as a deterministic simulation.

    from moldau_jepsen.testing import cluster

    with cluster(brokers=3) as local:
        print(local.bootstrap)
        local.kill(1)
        local.cut(2)
        local.heal()

    from moldau_jepsen.testing import simulate

    async def scenario(sim):
        await sim.wait_healthy(60)
        await sim.create_topic(sim.world.node("app").environment, "orders", 3, {})
        sim.lose_power(1)

    simulate(scenario, seed=7)

The package is imported by every pytest run of a project that has Moldau installed (``plugin`` is an entry point), so it
imports nothing but the standard library until a test asks for a cluster.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from moldau_jepsen.testing.imports import require_kit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from moldau_jepsen.cluster.simulated import SimulatedCluster
    from moldau_jepsen.testing.factory import ClusterFactory
    from moldau_jepsen.testing.local import TestCluster
    from moldau_jepsen.testing.pipeline import PipelineError, PipelineHistory
    from moldau_jepsen.testing.scenario import Cluster
    from moldau_jepsen.testing.simulated import SimulationError

__all__ = [
    "Cluster",
    "ClusterFactory",
    "PipelineError",
    "PipelineHistory",
    "SimulationError",
    "TestCluster",
    "cluster",
    "new_history",
    "simulate",
]

T = TypeVar("T")

MODULES: Final = {
    "Cluster": "scenario",
    "ClusterFactory": "factory",
    "PipelineError": "pipeline",
    "PipelineHistory": "pipeline",
    "SimulationError": "simulated",
    "TestCluster": "local",
}
"""Modules of the classes, which are imported at the first use of a name."""


def __getattr__(name: str) -> object:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_kit()
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)


@contextmanager
def cluster(
    *,
    brokers: int = 3,
    controllers: int = 3,
    settings: Mapping[str, object] | None = None,
    directory: Path | str | None = None,
    ready_timeout_ms: int = 120_000,
    links: bool = True,
    hostile: bool = False,
) -> Iterator[TestCluster]:
    """Runs a cluster of separate processes on free ports of 127.0.0.1 for the length of the block.

    Args:
        brokers: Number of brokers (1 or more); their ids are 1..brokers.
        controllers: Number of controllers (1 or more); their ids are 101...
        settings: Configuration keys added to every node's file (Kafka's names); strings, numbers, True and False. They
            override the one default that a test cluster changes: ``group.initial.rebalance.delay.ms`` is 0, so that
            the first read of a group does not wait 3 s.
        directory: Directory for data, logs and ``cluster.json``; its contents stay. None uses a temporary directory,
            which is removed afterwards: by the next cluster if this process is killed.
        ready_timeout_ms: How long the cluster may take until every broker is unfenced.
        links: Puts a proxy in front of every node, so that links can be cut, slowed and reset. Proxies cost
            throughput. Without them clients connect to the nodes directly, and link faults are refused.
        hostile: Makes nodes keep an undo journal of unsynced writes, so that ``power_loss`` can take them back. The
            journal costs throughput.

    Yields:
        The running cluster with its faults: ``kill`` (SIGKILL), ``pause``, ``resume``, ``restart``, ``stop_node``,
        ``power_loss``, and ``cut``, ``slow``, ``reset``, ``heal``; ``check`` judges what the test adds to ``history``.

    Raises:
        LauncherError: A node did not start; the message holds the end of its log.
        ImportError: The extra ``kit`` is not installed.
    """
    require_kit()
    from moldau_jepsen.testing.folders import temporary_folder
    from moldau_jepsen.testing.local import start_test_cluster

    with ExitStack() as stack:
        yield start_test_cluster(
            stack,
            Path(directory) if directory else stack.enter_context(temporary_folder()),
            brokers=brokers,
            controllers=controllers,
            settings=dict(settings or {}),
            ready_timeout_ms=ready_timeout_ms,
            links=links,
            hostile=hostile,
        )


def simulate(
    scenario: Callable[[SimulatedCluster], Awaitable[T]],
    *,
    seed: int,
    brokers: int = 3,
    controllers: int = 3,
    settings: Mapping[str, object] | None = None,
    virtual_seconds_max: float | None = None,
) -> T:
    """Runs ``scenario`` against a simulated cluster, in this process and on virtual time, and returns its result.

    The nodes run the production code on virtual disks and a virtual network; the same seed gives the same run. Unless
    ``settings`` say otherwise, brokers sync before they acknowledge (``log.flush.interval.messages``) and new groups do
    not wait for more members (``group.initial.rebalance.delay.ms``). The scenario gets the started cluster:
    ``await sim.wait_healthy(seconds)``, ``sim.kill(id)``, ``sim.lose_power(id)``, ``sim.start(id)``,
    ``sim.world.network`` for cuts. Clients take the environment of a machine of their own,
    ``sim.world.node("app").environment``, and ``sim.bootstrap``. A scenario that has not ended after
    ``virtual_seconds_max`` (ten minutes of virtual time by default, ``math.inf`` for no limit) is ended, because its
    cluster would go on for ever.

    Exceptions of the scenario pass through.

    Raises:
        SimulationError: An invariant of the cluster did not hold, a request failed inside a node, a process of the
            cluster ended with an exception, tasks kept running without time advancing, or the scenario has not ended in
            time. Its cause is the exception that the scenario raised, if any.
    """
    require_kit()
    from moldau_jepsen.testing.simulated import run_scenario

    return run_scenario(
        scenario,
        seed=seed,
        brokers=brokers,
        controllers=controllers,
        settings=dict(settings or {}),
        virtual_seconds_max=virtual_seconds_max,
    )


def new_history() -> PipelineHistory:
    """Returns an empty history of a pipeline under test; see ``moldau_jepsen.testing.pipeline``."""
    require_kit()
    from moldau_jepsen.testing.pipeline import PipelineHistory

    return PipelineHistory()
