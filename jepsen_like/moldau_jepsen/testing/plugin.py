"""The pytest plugin.

``moldau_cluster`` is a cluster with faults (kill, pause, cut, heal, power loss), a ``history`` of what the pipeline
under test did, and ``check()``. An ordinary test function gets processes on this machine, shared by the session and put
right after every test. A test that is a coroutine function gets a ``testing.scenario.Cluster``: the same test runs
against processes, or inside the deterministic simulation when its marker or ``--moldau-simulated`` says so.

    @pytest.mark.moldau(simulated=True, seeds=range(20))
    async def test_it(moldau_cluster): ...

``moldau_cluster_factory`` starts clusters of one's own, and ``moldau_history`` is a history without a cluster.

Loaded by every pytest run of an environment that has Moldau installed: it imports nothing of Moldau until a fixture
is used.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from moldau_jepsen.testing.local import TestCluster
    from moldau_jepsen.testing.pipeline import PipelineHistory
    from moldau_jepsen.testing.scenario import Scenario

MARKER = "moldau"
OPTION = "--moldau-simulated"
MARKER_TEXT = (
    "moldau(simulated, seeds, brokers, controllers, settings, links, hostile, fresh): the cluster of moldau_cluster. "
    "simulated: run the coroutine test in the deterministic simulation, once per seed; fresh: a cluster of the test's "
    "own; hostile: disks that power_loss can take unsynced data from; any of the others makes it fresh too"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a test's marker asks for."""

    simulated: bool = False
    seeds: Iterable[int] = (1,)
    brokers: int = 3
    controllers: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)
    links: bool = True
    hostile: bool = False
    fresh: bool = False

    @property
    def shared(self) -> bool:
        """Whether the session's cluster will do."""
        return self == Wanted(simulated=self.simulated, seeds=self.seeds)


class ClusterFactory(Protocol):
    """Starts a cluster that lives until the end of the test."""

    def __call__(
        self,
        *,
        brokers: int = 3,
        controllers: int = 3,
        settings: Mapping[str, str] | None = None,
        links: bool = True,
        hostile: bool = False,
    ) -> TestCluster:
        """Returns the running cluster; see ``moldau_jepsen.testing.cluster`` for arguments and errors."""
        ...


class SimulatedTest:
    """Stands for the cluster until the test's coroutine runs in the simulation."""

    def __init__(self, wanted: Wanted) -> None:
        """Nothing runs yet."""
        self.wanted = wanted


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    group = parser.getgroup("moldau", "clusters of Moldau")
    group.addoption(OPTION, action="store_true", help="run coroutine tests of moldau_cluster in the simulation")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", MARKER_TEXT)


def wanted_by(request: pytest.FixtureRequest) -> Wanted:
    """What the test's marker and the command line ask for. A wrong marker is the test's failure."""
    marker = request.node.get_closest_marker(MARKER)
    try:
        wanted = Wanted(**(marker.kwargs if marker is not None else {}))
    except TypeError as error:
        raise pytest.UsageError(f"{request.node.nodeid}: {error}; the marker is {MARKER_TEXT}") from error
    is_coroutine = inspect.iscoroutinefunction(request.function)
    if wanted.simulated and not is_coroutine:
        raise pytest.UsageError(f"{request.node.nodeid}: only a test that is a coroutine function can be simulated")
    if is_coroutine and request.config.getoption(OPTION):
        return Wanted(**{**(marker.kwargs if marker is not None else {}), "simulated": True})
    return wanted


@pytest.fixture(scope="session")
def moldau_shared_cluster() -> Iterator[TestCluster]:
    """Three brokers under three controllers, of which ``moldau_cluster`` puts right what tests do to them."""
    from moldau_jepsen.testing import cluster

    with cluster() as running:
        yield running


@pytest.fixture
def moldau_cluster(request: pytest.FixtureRequest) -> Iterator[TestCluster | SimulatedTest]:
    """A cluster with faults. Use topic names of your own: the cluster may be shared by the session; see the module."""
    wanted = wanted_by(request)
    if wanted.simulated:
        yield SimulatedTest(wanted)
        return
    if wanted.shared:
        shared: TestCluster = request.getfixturevalue("moldau_shared_cluster")
        yield shared
        shared.restore()
        return
    from moldau_jepsen.testing import cluster

    with cluster(
        brokers=wanted.brokers,
        controllers=wanted.controllers,
        settings=wanted.settings,
        links=wanted.links,
        hostile=wanted.hostile,
    ) as running:
        yield running


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs the coroutine of a test that uses ``moldau_cluster``; leaves all other tests to others."""
    held = cast("TestCluster | SimulatedTest | None", pyfuncitem.funcargs.get("moldau_cluster"))
    if held is None or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    from moldau_jepsen.testing import scenario

    names = pyfuncitem._fixtureinfo.argnames
    others = {name: pyfuncitem.funcargs[name] for name in names if name != "moldau_cluster"}
    test = pyfuncitem.obj

    def run(cluster: scenario.Cluster) -> object:
        return test(moldau_cluster=cluster, **others)

    chosen: Scenario = run  # type: ignore[assignment]
    if not isinstance(held, SimulatedTest):
        scenario.run_on_processes(chosen, held)
        return True
    wanted = held.wanted
    for seed in wanted.seeds:
        attempt = partial(
            scenario.run_simulated,
            chosen,
            seed=seed,
            brokers=wanted.brokers,
            controllers=wanted.controllers,
            settings=wanted.settings,
        )
        try:
            attempt()
        except Exception as error:
            error.add_note(f"in the simulation, with seed {seed}")
            raise
    return True


@pytest.fixture
def moldau_cluster_factory() -> Iterator[ClusterFactory]:
    """A function that starts clusters; they are stopped and removed when the test ends."""
    from moldau_jepsen.testing import cluster

    with ExitStack() as stack:

        def start(
            *,
            brokers: int = 3,
            controllers: int = 3,
            settings: Mapping[str, str] | None = None,
            links: bool = True,
            hostile: bool = False,
        ) -> TestCluster:
            return stack.enter_context(
                cluster(brokers=brokers, controllers=controllers, settings=settings, links=links, hostile=hostile)
            )

        yield start


@pytest.fixture
def moldau_history() -> PipelineHistory:
    """An empty history: tell it what was sent, read and done, and ``check`` it."""
    from moldau_jepsen.testing import new_history

    return new_history()
