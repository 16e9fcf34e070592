"""The pytest plugin.

``moldau_cluster`` is a cluster with faults (kill, pause, cut, heal, power loss), a ``history`` to which the test adds
what its pipeline did, and ``check()``. An ordinary test function gets processes on this machine; the session shares
them, and they are restored after every test. A test that is a coroutine function gets a ``testing.scenario.Cluster``:
the same test runs on processes, or in the deterministic simulation if its marker or ``--moldau-simulated`` says so.

    @pytest.mark.moldau(simulated=True, seeds=range(20))
    async def test_it(moldau_cluster): ...

``moldau_cluster_factory`` starts further clusters, and ``moldau_history`` is a history without a cluster.

The report of a test that fails on processes shows the ends of its nodes' logs; the report of a test that fails in the
simulation shows its seed and the last events. ``--moldau-keep`` keeps the folders of clusters.

Every pytest run of an environment with Moldau loads this module. So until a fixture is used it imports only the module
that reads the marker, which imports nothing of Moldau.
"""

from __future__ import annotations

import argparse
import inspect
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from moldau_jepsen.testing.factory import ClusterFactory as ClusterFactory  # noqa: TC001  # projects import it from here
from moldau_jepsen.testing.imports import end_plain_imports, use_plain_imports
from moldau_jepsen.testing.wanted import (
    VIRTUAL_SECONDS_MAX,
    Repeat,
    Wanted,
    hint_of_asyncio,
    parse_limit,
    parse_seeds,
    read_marker,
)

if TYPE_CHECKING:
    import pdb
    from collections.abc import Callable, Collection, Coroutine, Generator, Iterator, Mapping

    from moldau_jepsen.testing import scenario
    from moldau_jepsen.testing.local import TestCluster
    from moldau_jepsen.testing.pipeline import PipelineHistory

MARKER = "moldau"
OPTION = "--moldau-simulated"
SEEDS_OPTION = "--moldau-seeds"
KEEP_OPTION, KEEP_INI = "--moldau-keep", "moldau_keep"
REPEAT_OPTION, REPEAT_INI = "--moldau-repeat", "moldau_repeat"
LIMIT_INI = "moldau_virtual_seconds_max"
FOLDER = "moldau_folder"
"""Name of the report property that holds the kept folder of a cluster."""
LOOPS = ("asyncio", "anyio")
"""Markers of tests that the plugins of these names run on their own event loops."""
ON_HYPOTHESIS = (
    "hypothesis calls a test once for each example, as an ordinary function: write one without moldau_cluster, which "
    "calls moldau_jepsen.testing.simulate(scenario, seed=...)"
)
MARKER_TEXT = (
    "moldau(simulated, seeds, brokers, controllers, settings, links, hostile, fresh, virtual_seconds_max): the cluster "
    "of moldau_cluster. simulated: run the coroutine test in the deterministic simulation, once per seed, each for "
    "virtual_seconds_max at most; fresh: a cluster of the test's own; hostile: disks that power_loss can take unsynced "
    "data from; any of the others makes it fresh too"
)


class SimulatedTest:
    """A placeholder for the cluster until the test's coroutine runs in the simulation."""

    def __init__(self, wanted: Wanted) -> None:
        """Keeps the marker's values; starts nothing."""
        self.wanted = wanted

    def __getattr__(self, name: str) -> object:
        """Refuses every attribute with an error that explains why the cluster does not exist yet."""
        raise AttributeError(
            f"no {name!r}: the cluster of a simulated test exists only while the test's coroutine runs; use it in the "
            "test or in a function that the test calls, not in a fixture"
        )


SHARED: pytest.StashKey[TestCluster] = pytest.StashKey()
"""The session's cluster; set once it has started."""
USED: pytest.StashKey[list[TestCluster]] = pytest.StashKey()
"""The process clusters that a test uses."""
TEST: pytest.StashKey[Callable[..., Coroutine[object, object, None]]] = pytest.StashKey()
"""The coroutine function of a test, as it is before a plugin such as pytest-asyncio puts another function around it."""
TIMELINE: pytest.StashKey[str] = pytest.StashKey()
"""The last events of a simulated test that failed."""
DEBUGGER: pytest.StashKey[pdb.Pdb] = pytest.StashKey()
"""The debugger that the session has entered last."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("moldau", "clusters of Moldau")
    group.addoption(OPTION, action="store_true", help="run coroutine tests of moldau_cluster in the simulation")
    group.addoption(
        SEEDS_OPTION,
        type=seeds_of_option,
        metavar="SEEDS",
        help="seeds of simulated tests, in place of those of their markers: 7, or 1-20, or 3,7,40-60",
    )
    group.addoption(
        KEEP_OPTION, action="store_true", help="keep the folders of clusters: configurations, data and logs"
    )
    parser.addini(KEEP_INI, f"as {KEEP_OPTION}", type="bool", default=False)
    group.addoption(
        REPEAT_OPTION,
        choices=[one.value for one in Repeat],
        help="which seeds of simulated tests are run a second time, to notice a test whose runs of one seed differ: "
        "those that have failed (the default), always, or never",
    )
    parser.addini(REPEAT_INI, f"as {REPEAT_OPTION}", default=Repeat.FAILED.value)
    parser.addini(
        LIMIT_INI,
        f"virtual seconds after which a simulated test is ended ({VIRTUAL_SECONDS_MAX:g}, or inf for no limit)",
        default=f"{VIRTUAL_SECONDS_MAX:g}",
    )


def seeds_of_option(text: str) -> Collection[int]:
    """Reads the option's value as argparse demands."""
    try:
        return parse_seeds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Makes imports of Moldau plain ones, before a test or its conftest.py imports anything of it."""
    use_plain_imports()


def pytest_unconfigure() -> None:
    """Takes back the way of imports: the process may go on after pytest."""
    end_plain_imports()


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", MARKER_TEXT)


def wanted_by(request: pytest.FixtureRequest) -> Wanted:
    """Returns the request of the test's marker and the command line. An invalid marker fails the test."""
    import unittest

    if TEST in request.node.stash and issubclass(request.cls or object, unittest.TestCase):
        # unittest runs its methods itself, and a coroutine that is not awaited passes.
        raise pytest.UsageError(
            f"{request.node.nodeid}: a coroutine test cannot be a method of unittest.TestCase: write it as a function, "
            "or in a unittest.IsolatedAsyncioTestCase, which runs it on asyncio against processes"
        )
    try:
        wanted = read_marker(
            request.node.get_closest_marker(MARKER),
            is_coroutine=TEST in request.node.stash,
            simulate=request.config.getoption(OPTION),
        )
    except ValueError as error:
        of_hypothesis = hasattr(getattr(request.node, "obj", None), "hypothesis") and TEST not in request.node.stash
        text = f"{error}; {ON_HYPOTHESIS}" if of_hypothesis else error
        raise pytest.UsageError(f"{request.node.nodeid}: {text}") from error
    if not wanted.simulated:
        return wanted
    seeds = request.config.getoption(SEEDS_OPTION)
    limit = wanted.virtual_seconds_max
    return replace(
        wanted,
        seeds=wanted.seeds if seeds is None else seeds,
        virtual_seconds_max=limit_of(request.config) if limit is None else limit,
    )


def limit_of(config: pytest.Config) -> float:
    """Returns after how many virtual seconds a simulated test is ended."""
    try:
        return parse_limit(config.getini(LIMIT_INI))
    except ValueError as error:
        raise pytest.UsageError(f"{LIMIT_INI} in pytest's configuration: {error}") from error


def is_kept(config: pytest.Config) -> bool:
    """Returns whether the folders of clusters are kept."""
    try:
        return bool(config.getoption(KEEP_OPTION) or config.getini(KEEP_INI))
    except (TypeError, ValueError, pytest.UsageError) as error:
        raise pytest.UsageError(f"{KEEP_INI} in pytest's configuration: {error}; it is true or false") from error


def repeat_of(config: pytest.Config) -> Repeat:
    """Returns which seeds are run a second time; none once the session has used a debugger, which would stop again."""
    word = config.getoption(REPEAT_OPTION) or config.getini(REPEAT_INI)
    if word not in list(Repeat):
        raise pytest.UsageError(f"{REPEAT_INI} in pytest's configuration is never, failed or always, and not {word!r}")
    return Repeat.NEVER if config.getoption("usepdb", False) or DEBUGGER in config.stash else Repeat(word)


def pytest_enter_pdb(config: pytest.Config, pdb: pdb.Pdb) -> None:
    """Keeps the debugger: that of ``--trace`` is for the test's coroutine."""
    config.stash[DEBUGGER] = pdb


def folder_to_keep(config: pytest.Config) -> Path | None:
    """Returns a new folder for a cluster whose folder is kept; None if it is removed with its cluster."""
    return Path(tempfile.mkdtemp(prefix="moldau-")) if is_kept(config) else None


@pytest.fixture(scope="session")
def moldau_shared_cluster(request: pytest.FixtureRequest) -> Iterator[TestCluster]:
    """Provides three brokers and three controllers that the session shares; they are restored after each test."""
    from moldau_jepsen.testing import cluster

    with cluster(directory=folder_to_keep(request.config)) as running:
        request.config.stash[SHARED] = running
        yield running
        del request.config.stash[SHARED]


@pytest.fixture
def moldau_cluster(request: pytest.FixtureRequest) -> Iterator[TestCluster | SimulatedTest]:
    """Provides a cluster with faults. Choose unique topic names, because tests may share the cluster."""
    wanted = wanted_by(request)
    if wanted.simulated:
        repeat_of(request.config)  # a wrong value fails the test before it runs
        yield SimulatedTest(wanted)
        return
    if wanted.shared:
        shared: TestCluster = request.getfixturevalue("moldau_shared_cluster")
        shared.make_whole()
        request.node.stash.setdefault(USED, []).append(shared)
        yield shared
        if request.config.stash.get(SHARED, None) is not shared:
            shared.restore()  # a fixture of the user's with this name, of which the hook below knows nothing
        return
    from moldau_jepsen.testing import cluster

    with cluster(
        brokers=wanted.brokers,
        controllers=wanted.controllers,
        settings=wanted.settings,
        links=wanted.links,
        hostile=wanted.hostile,
        directory=folder_to_keep(request.config),
    ) as running:
        request.node.stash.setdefault(USED, []).append(running)
        yield running


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Replaces a shared cluster that could not be restored after an earlier test; keeps the test's coroutine."""
    test = getattr(item, "obj", None)
    if inspect.iscoroutinefunction(test) and not _is_of_another_plugin(item):
        item.stash[TEST] = test
    shared = item.config.stash.get(SHARED, None)
    if shared is not None and "moldau_shared_cluster" in getattr(item, "fixturenames", ()):
        shared.make_whole()
    yield


def _is_of_another_plugin(item: pytest.Item) -> bool:
    """Returns whether the test, its class or its module has the marker of pytest-asyncio or anyio.

    A ``unittest.IsolatedAsyncioTestCase`` runs its tests on asyncio itself.
    In its mode ``auto`` pytest-asyncio marks all coroutine tests itself, which does not count; anyio marks none.
    """
    bases = getattr(getattr(item, "cls", None), "__mro__", ())
    if any(base.__module__ == "unittest.async_case" for base in bases):
        return True
    own = getattr(getattr(item, "obj", None), "pytestmark", ())
    above = item.parent is not None and any(item.parent.get_closest_marker(name) is not None for name in LOOPS)
    return above or any(mark.name in LOOPS for mark in own)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Restores the shared cluster after every test that injected a fault, whichever fixture the test used."""
    try:
        yield
    finally:
        shared = item.config.stash.get(SHARED, None)
        if shared is not None:
            shared.restore()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the ends of the nodes' logs, and their kept folders, to the report of a test that failed."""
    report = yield
    if report.failed and report.when == "call" and TIMELINE in item.stash:
        report.sections.append(("moldau: the last events", item.stash[TIMELINE]))
    clusters = list(item.stash.get(USED, ()))
    shared = item.config.stash.get(SHARED, None)
    if shared is not None and shared not in clusters and "moldau_shared_cluster" in getattr(item, "fixturenames", ()):
        clusters.append(shared)
    for cluster in clusters:
        if report.failed:
            report.sections += cluster.last_words()
        if is_kept(item.config):
            report.user_properties.append((FOLDER, str(cluster.directory)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the paths of kept folders, including those of pytest-xdist's workers."""
    reports = [report for group in terminalreporter.stats.values() for report in group]
    reported = [each for report in reports for each in getattr(report, "user_properties", ())]
    for folder in sorted({value for name, value in reported if name == FOLDER}):
        terminalreporter.write_line(f"moldau: a cluster's folder is kept: {folder}")


def _arguments_of_trio(item: pytest.Function) -> list[str]:
    """Returns the arguments that pytest-trio makes when it runs the test itself; until then they are placeholders."""
    given = ((name, item.funcargs.get(name)) for name in item._fixtureinfo.argnames)
    return [name for name, value in given if type(value).__module__.partition(".")[0] == "pytest_trio"]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Leaves a test on processes to pytest-trio if that has fixtures for it, which run in the same event loop.

    Raises:
        UsageError: The test is simulated: the simulation has an event loop of its own.
    """
    test = item.stash.get(TEST, None)
    held = item.funcargs.get("moldau_cluster") if isinstance(item, pytest.Function) else None
    if isinstance(item, pytest.Function) and test and held is not None and (names := _arguments_of_trio(item)):
        if isinstance(held, SimulatedTest):
            raise pytest.UsageError(
                f"{item.nodeid}: pytest-trio runs {', '.join(names)}, and cannot do so in the simulation; write each "
                "as an asynchronous context manager that the test opens"
            )
        item.obj = _beside_fixtures(item, test)
        del item.stash[TEST]
    yield


def _beside_fixtures(
    item: pytest.Function, test: Callable[..., Coroutine[object, object, None]]
) -> Callable[..., Coroutine[object, object, None]]:
    """Returns a function that runs a test with a cluster of processes in the event loop that calls it."""

    @wraps(test)
    async def run(**given: object) -> None:
        from moldau_jepsen.testing import scenario

        local = cast("TestCluster", item.funcargs["moldau_cluster"])  # another one each time the test is repeated
        await scenario.run_beside_fixtures(lambda cluster: test(**_with_cluster(given, cluster)), local)

    return run


def _with_cluster(given: Mapping[str, object], cluster: scenario.Cluster) -> dict[str, object]:
    """Returns the arguments of a test, with the cluster that a coroutine gets if the test asks for it."""
    return {**given, "moldau_cluster": cluster} if "moldau_cluster" in given else dict(given)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs the coroutine of a test that uses ``moldau_cluster``; leaves all other tests to others.

    A test may use the cluster without an argument: by ``usefixtures``, or through another fixture.
    """
    held = cast("TestCluster | SimulatedTest | None", pyfuncitem.funcargs.get("moldau_cluster"))
    test = pyfuncitem.stash.get(TEST, None)
    if held is None or test is None:
        return None
    from moldau_jepsen.testing import scenario
    from moldau_jepsen.testing.debugged import stepped
    from moldau_jepsen.testing.seeds import Seeds

    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    debuggers = [pyfuncitem.config.stash[DEBUGGER]] if pyfuncitem.config.getoption("trace", False) else []

    def run(cluster: scenario.Cluster) -> Coroutine[object, object, None]:
        coroutine = test(**_with_cluster(given, cluster))
        return stepped(coroutine, debuggers.pop()) if debuggers else coroutine  # the first seed only

    try:
        if isinstance(held, SimulatedTest):
            options = [OPTION] if pyfuncitem.config.getoption(OPTION) else []
            repeat = partial(repeat_of, pyfuncitem.config)
            seeds = Seeds(pyfuncitem, run, held.wanted, options=options, repeat=repeat)
            try:
                seeds.run_all()
            finally:
                if seeds.timeline:
                    pyfuncitem.stash[TIMELINE] = "\n".join(seeds.timeline)
        else:
            scenario.run_on_processes(run, held)
    except Exception as error:
        if (hint := hint_of_asyncio(error)) is not None:
            error.add_note(hint)
        raise
    return True


@pytest.fixture
def moldau_cluster_factory(request: pytest.FixtureRequest) -> Iterator[ClusterFactory]:
    """Provides a function that starts clusters; they are stopped and removed when the test ends."""
    from moldau_jepsen.testing import cluster

    with ExitStack() as stack:

        def start(
            *,
            brokers: int = 3,
            controllers: int = 3,
            settings: Mapping[str, object] | None = None,
            links: bool = True,
            hostile: bool = False,
        ) -> TestCluster:
            running = stack.enter_context(
                cluster(
                    brokers=brokers,
                    controllers=controllers,
                    settings=settings,
                    links=links,
                    hostile=hostile,
                    directory=folder_to_keep(request.config),
                )
            )
            request.node.stash.setdefault(USED, []).append(running)
            return running

        yield start


@pytest.fixture
def moldau_history() -> PipelineHistory:
    """Provides an empty history: add what was sent, read and done, then call ``check``."""
    from moldau_jepsen.testing import new_history

    return new_history()
