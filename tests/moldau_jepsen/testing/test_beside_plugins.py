"""Goal: the plugin works beside what else runs or makes the tests of a project: unittest, asyncio, pytest-trio, and
fixtures of the project that replace the plugin's.

Method: small tests in files, run by a pytest of their own. A file stands for pytest-trio: it has that plugin's
placeholders, and runs what they stand for together with the test.
"""

from pathlib import Path

import pytest

from moldau_jepsen import testing
from support.kit.own_pytest import run_pytest

TRIO_PLUGIN = """
import pytest
import trio


class TrioFixture:
    def __init__(self, value):
        self.value = value


async def _run(test, given):
    given = {name: value.value if isinstance(value, TrioFixture) else value for name, value in given.items()}
    await test(**given)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    if item.get_closest_marker("trio") is not None and item.obj.__name__ != "runner":
        test = item.obj

        def runner(**given):
            trio.run(_run, test, given)

        item.obj = runner
    yield
"""

CONFTEST = """
import pytest
import pytest_trio

from moldau_jepsen.testing import cluster


@pytest.fixture(scope="session")
def moldau_shared_cluster():
    with cluster(brokers=1, controllers=1) as running:
        yield running


@pytest.fixture
def things():
    return pytest_trio.TrioFixture([1])


def pytest_configure(config):
    config.addinivalue_line("markers", "trio: of pytest-trio")
    config.pluginmanager.register(pytest_trio)
"""

PROCESSES = """
import asyncio
import unittest

import pytest
import trio


def states(cluster):
    return {one.state.value for one in cluster.status()}


def test_kills_a_node_of_the_projects_own_cluster(moldau_cluster):
    moldau_cluster.kill(1)
    moldau_cluster.history.took_effect("never sent")


def test_inherits_neither_fault_nor_history(moldau_cluster):
    assert len(moldau_cluster.nodes) == 2
    assert states(moldau_cluster) == {"running"}
    moldau_cluster.check()


class TestUnit(unittest.IsolatedAsyncioTestCase):
    @pytest.fixture(autouse=True)
    def take(self, moldau_cluster):
        self.cluster = moldau_cluster

    async def test_passes_on_asyncio(self):
        await asyncio.sleep(0)
        assert states(self.cluster) == {"running"}


@pytest.mark.trio
async def test_passes_with_a_fixture_of_pytest_trio(things, moldau_cluster):
    assert things == [1]
    await moldau_cluster.kill(1)
    await moldau_cluster.wait_healthy()


@pytest.mark.trio
async def test_forgets_to_await(things, moldau_cluster):
    moldau_cluster.kill(1)


@pytest.mark.trio
async def test_passes_without_a_fixture_of_pytest_trio(moldau_cluster):
    await moldau_cluster.kill(1)


async def test_uses_asyncio(moldau_cluster):
    await asyncio.sleep(1)


class TestPlain(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def take(self, moldau_cluster):
        self.cluster = moldau_cluster

    async def test_is_refused(self):
        pass
"""

SIMULATED = """
import pytest

pytestmark = pytest.mark.moldau(simulated=True, seeds=[7], brokers=1, controllers=1)
SEEN = []


@pytest.mark.trio
async def test_is_refused_in_the_simulation(things, moldau_cluster):
    pass


async def test_fails_with_the_last_seed(moldau_cluster):
    SEEN.append(1)
    assert len(SEEN) < 3


def test_ran_with_each():
    assert len(SEEN) == 3
"""


def write_project(folder: Path, tests: str) -> None:
    (folder / "pytest_trio.py").write_text(TRIO_PLUGIN)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(tests)


@pytest.mark.processes
def test_processes_beside_other_plugins(tmp_path: Path) -> None:
    write_project(tmp_path, PROCESSES)
    done = run_pytest(tmp_path)
    assert "2 failed, 5 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    assert "await is missing, so nothing was done: kill() at" in done.stdout
    assert "this test runs under trio, where asyncio has no event loop" in done.stdout
    assert "write it as a function, or in a unittest.IsolatedAsyncioTestCase" in done.stdout


def test_seeds_of_the_command_line(tmp_path: Path) -> None:
    write_project(tmp_path, SIMULATED)
    done = run_pytest(tmp_path, "--moldau-seeds", "2,4-5", "--moldau-repeat", "never")
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "pytest-trio runs things, and cannot do so in the simulation" in done.stdout
    again = "pytest test_some.py::test_fails_with_the_last_seed --moldau-seeds 5\n"
    assert f"in the simulation, with seed 5: {again}" in done.stdout
    refused = run_pytest(tmp_path, "--moldau-seeds", "5-4")
    assert refused.returncode == 4
    assert "argument --moldau-seeds: '5-4' has no seed: a range ends at its greater number" in refused.stderr


def test_a_wrong_value_in_the_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n\n@pytest.mark.moldau(fresh=True)\ndef test_some(moldau_cluster):\n    pass\n"
    )
    done = run_pytest(tmp_path, "-o", "moldau_keep=maybe")
    assert "UsageError: moldau_keep in pytest's configuration: invalid truth value 'maybe'" in done.stdout, done.stdout


def test_the_names_for_annotations_exist() -> None:
    for name in testing.__all__:
        assert getattr(testing, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Clusters'"):
        testing.Clusters  # noqa: B018


GIVEN = """
import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers

from moldau_jepsen.testing import simulate


@given(integers(0, 9))
@pytest.mark.moldau(simulated=True)
async def test_with_a_coroutine(moldau_cluster, number): ...


@settings(max_examples=2, deadline=None, database=None)
@given(integers(0, 9))
def test_with_a_function(seed):
    async def scenario(sim):
        await sim.wait_healthy(60)

    simulate(scenario, seed=seed, brokers=1, controllers=1)
"""


def test_hypothesis_is_explained(tmp_path: Path) -> None:
    (tmp_path / "test_given.py").write_text(GIVEN)
    done = run_pytest(tmp_path, in_fork=False)  # hypothesis warns of objects that a fork has frozen
    assert "1 passed, 1 error" in done.stdout, done.stdout
    assert "write one without moldau_cluster, which calls moldau_jepsen.testing.simulate" in done.stdout, done.stdout
