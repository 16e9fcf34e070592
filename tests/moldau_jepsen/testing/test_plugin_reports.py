"""Goal: tests come to their cluster by fixtures of their own, a failure leaves what is needed to look at it, and no
test inherits the cluster that another one broke.

Method: small tests in files, run by a pytest of their own. Those for the simulation and the documented example for it
share one session, because another interpreter imports for longer than a small test runs.
"""

import re
from pathlib import Path

import pytest

from support.commands import Finished
from support.kit.own_pytest import examples, run_pytest

SIMULATED = """
import sys
import unittest

import pytest
import trio

pytestmark = pytest.mark.moldau(simulated=True, seeds=[7], brokers=1, controllers=1)


@pytest.fixture
def around(moldau_cluster):
    yield "around"


@pytest.fixture
def early(moldau_cluster):
    return moldau_cluster.bootstrap


@pytest.mark.usefixtures("moldau_cluster")
async def test_passes_by_usefixtures():
    assert trio.current_time() > 0


async def test_passes_through_a_fixture(around):
    assert around == "around"
    assert trio.current_time() > 0


async def test_passes_with_both(around, moldau_cluster):
    await moldau_cluster.kill(1)


async def test_loads_no_campaign_and_no_planted_bug(moldau_cluster):
    assert "moldau_jepsen.simulation.judge.invariants" in sys.modules
    assert not {"moldau_jepsen.simulation.campaign", "moldau_jepsen.simulation.mutants"} & set(sys.modules)


async def test_passes_without_compilation_by_pytest(moldau_cluster):
    assert type(sys.modules["moldau_jepsen.simulation.judge.invariants"].__loader__).__name__ == "SourceFileLoader"


async def test_passes_beside_asyncio_in_mode_auto(moldau_cluster):
    assert trio.current_time() > 0


async def test_is_too_early(early): ...


@pytest.mark.filterwarnings("ignore:coroutine 'SimulatedProcesses.kill' was never awaited:RuntimeWarning")
async def test_forgets_an_await(moldau_cluster):
    moldau_cluster.kill(1)
    await moldau_cluster.wait_healthy()


async def test_fails_by_outcome(moldau_cluster):
    await moldau_cluster.kill(1)
    pytest.fail("mine")


async def test_fails_in_a_group(moldau_cluster):
    async def wrong():
        assert "this" == "that"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wrong)
        nursery.start_soon(wrong)


@pytest.mark.moldau(simulated=True, seed=3)
async def test_has_a_wrong_marker(moldau_cluster): ...


@pytest.mark.usefixtures("moldau_cluster")
@pytest.mark.moldau(simulated=True)
class TestOfUnittest(unittest.TestCase):
    async def test_is_not_awaited(self):
        raise AssertionError
"""


ANYIO = """
import asyncio

import pytest


@pytest.mark.anyio
@pytest.mark.moldau(brokers=1, controllers=1, links=False)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_stays_with_anyio(moldau_cluster, anyio_backend):
    asyncio.get_running_loop()
    moldau_cluster.kill(1)


@pytest.mark.anyio
@pytest.mark.moldau(simulated=True)
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_is_not_simulated(moldau_cluster, anyio_backend): ...
"""


AUTO = """
import pytest

pytest.register_assert_rewrite("moldau_jepsen.simulation")  # as pytest does for installed distributions


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if "in_mode_auto" in item.name:
        item.obj = lambda **given: pytest.fail("under asyncio")
"""
"""A plugin that puts a function of its own around tests, as pytest-asyncio does with ``asyncio_mode = auto``."""


INTERRUPTED = """
import signal

import pytest


@pytest.mark.moldau(simulated=True, brokers=1, controllers=1)
async def test_first(moldau_cluster):
    async def node(_):
        signal.raise_signal(signal.SIGINT)

    moldau_cluster.simulated.world.node("broker-9").start(node)
    await moldau_cluster.simulated.world.node("broker-9").wait_ended()


def test_second():
    raise AssertionError("nothing is run after an interrupt")
"""


def section(text: str, heading: str) -> str:
    """The part of pytest's output on one failed test."""
    return re.split(r"^_{3,} ", text.split(f" {heading} ___")[1], flags=re.MULTILINE)[0]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory, interruptible: None) -> Finished:
    """The session of all files for the simulation; the last one interrupts it."""
    directory = tmp_path_factory.mktemp("simulated")
    (directory / "conftest.py").write_text(AUTO)
    (directory / "test_1_payments.py").write_text(examples()[0])
    (directory / "test_2_some.py").write_text(SIMULATED)
    (directory / "test_2_with_anyio.py").write_text(ANYIO)
    (directory / "test_3_interrupted.py").write_text(INTERRUPTED)
    return run_pytest(directory, "-rfEp", in_fork=False)  # what is loaded there is looked at


def test_the_documented_consumer_is_tested_in_the_simulation(simulated: Finished) -> None:
    assert re.findall(r"^(\w+) test_1_payments.py::(\w+)$", simulated.stdout, re.MULTILINE) == [
        ("PASSED", "test_payments_are_made_once"),
        ("PASSED", "test_without_the_number_orders_are_paid_twice"),
    ], simulated.stdout


def test_fixtures_and_failures_in_the_simulation(simulated: Finished) -> None:
    said = simulated.stdout
    outcomes = re.findall(r"^(\w+) test_2_some.py::", said, re.MULTILINE)
    assert (outcomes.count("FAILED"), outcomes.count("PASSED"), outcomes.count("ERROR")) == (3, 6, 3), said
    forgotten = section(said, "test_forgets_an_await")
    assert re.search(r"await is missing, so nothing was done: kill\(\) at \S+test_2_some.py:\d+\n", forgotten), (
        forgotten
    )
    early = section(said, "ERROR at setup of test_is_too_early")
    assert "no 'bootstrap': the cluster of a simulated test exists only while the test's coroutine runs" in early
    for name in ("test_fails_by_outcome", "test_fails_in_a_group"):
        reported = section(said, name)
        assert "in the simulation, with seed 7" in reported.split("- moldau: the last events -")[0], reported
        assert "in the simulation, with seed 7" in reported.split("- moldau: the last events -")[1], reported
    assert re.search(r"\d\.\d{6}  kill +broker-1 1\n", section(said, "test_fails_by_outcome"))
    assert "cannot be a method of unittest" in section(said, "ERROR at setup of TestOfUnittest.test_is_not_awaited")
    assert "the marker takes simulated, seeds, " in section(said, "ERROR at setup of test_has_a_wrong_marker")


def test_anyio_keeps_its_tests(simulated: Finished) -> None:
    assert "PASSED test_2_with_anyio.py::test_stays_with_anyio[asyncio]" in simulated.stdout, simulated.stdout
    refused = section(simulated.stdout, r"ERROR at setup of test_is_not_simulated[trio]")
    assert "none with the marker asyncio or anyio" in refused


def test_an_interrupt_in_the_simulation_ends_the_session(simulated: Finished) -> None:
    assert simulated.returncode == 2, simulated.stdout
    assert "! KeyboardInterrupt !" in simulated.stdout
    assert not re.search(r"^\w+ test_3_interrupted.py::", simulated.stdout, re.MULTILINE), simulated.stdout


PROCESSES = """
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def mine(moldau_shared_cluster):
    return moldau_shared_cluster


def states(cluster):
    return {one.state.value for one in cluster.status()}


def test_kills_through_a_fixture(mine):
    mine.history.sent("t", 0, 0, "a")
    mine.kill(1)


def test_inherits_nothing(mine):
    assert states(mine) == {"running"}
    mine.check()


def test_breaks_a_disk(moldau_cluster):
    moldau_cluster.kill(1)
    for path in Path(moldau_cluster.node(1).directory).glob("**/meta.properties"):
        path.write_text("version=none")


def test_gets_a_new_cluster(moldau_cluster):
    assert states(moldau_cluster) == {"running"}


def test_breaks_it_again(mine):
    test_breaks_a_disk(mine)


def test_gets_a_new_cluster_through_a_fixture(mine):
    assert states(mine) == {"running"}
    raise AssertionError("look at the logs")
"""


@pytest.mark.processes
def test_the_shared_cluster_is_put_right_or_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # what is kept goes with this test's own folder
    (tmp_path / "test_some.py").write_text(PROCESSES)
    done = run_pytest(tmp_path, "--moldau-keep")
    assert "1 failed, 5 passed, 2 errors" in done.stdout, done.stdout
    for name in ("test_breaks_a_disk", "test_breaks_it_again"):
        assert "broker 1 ended while starting" in section(done.stdout, f"ERROR at teardown of {name}")
    reported = section(done.stdout, "test_gets_a_new_cluster_through_a_fixture")
    for node in ("broker 1", "broker 2", "broker 3", "controller 101", "controller 102", "controller 103"):
        (end,) = re.findall(rf"- moldau: {node} \(running\) -+\n((?:[^-].*\n)+)", reported)
        assert "version=none" not in end
    (folder,) = set(re.findall(r"a cluster's folder is kept: (\S+)", done.stdout))
    assert Path(folder).parent == tmp_path
    assert (Path(folder) / "broker-1" / "server.log").stat().st_size > 0
