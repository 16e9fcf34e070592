"""Goal: a simulated test that waits for ever is ended after its virtual time, and its error names where it waits.

Method: small tests in a file, run by a pytest of their own; scenarios of ``simulate``; the parts by themselves.
"""

import math
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from moldau_jepsen.cluster.simulated import SimulatedCluster
from moldau_jepsen.launcher import LauncherUsageError
from moldau_jepsen.testing import SimulationError, simulate, simulated
from moldau_jepsen.testing.limit import CLEANUP_SECONDS, PLACES_SHOWN
from moldau_jepsen.testing.wanted import VIRTUAL_SECONDS_MAX, Wanted, parse_limit, read_marker
from support.kit.own_pytest import GUIDE, run_pytest

USUAL = 40.0
TESTS = """
import pytest
import trio

from moldau import Consumer

pytestmark = pytest.mark.moldau(simulated=True, seeds=[5], brokers=1, controllers=1)


async def take(cluster):
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": "readers"}
    async with Consumer(config, environment=cluster.environment) as consumer:
        consumer.subscribe(["orders"])
        while not await consumer.poll(1000):
            pass


async def test_waits_for_a_record(moldau_cluster):
    await moldau_cluster.create_topic("orders")
    await take(moldau_cluster)


async def test_waits_for_a_task(moldau_cluster):
    await moldau_cluster.create_topic("orders")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, moldau_cluster)
        nursery.start_soon(trio.sleep_forever)


@pytest.mark.moldau(simulated=True, brokers=1, controllers=1, virtual_seconds_max=45)
async def test_has_its_own_limit(moldau_cluster):
    await trio.sleep(40)
    with trio.CancelScope(shield=True):
        await trio.Event().wait()


async def test_ends_in_time(moldau_cluster):
    await trio.sleep(20)
"""


def limits_of(text: str) -> list[str]:
    """Returns what the report says of tests that have not ended."""
    return re.findall(r"TestNeverEndedError: (seed .*)", text)


def test_each_limit_ends_its_test(tmp_path: Path) -> None:
    path = tmp_path / "test_ever.py"
    path.write_text(TESTS)
    lines = {text: number for number, text in enumerate(TESTS.splitlines(), start=1)}
    polls = f"Consumer.poll at {path}:{lines['        while not await consumer.poll(1000):']} (take)"
    nursery = lines["    async with trio.open_nursery() as nursery:"]
    shield = lines["        await trio.Event().wait()"]
    done = run_pytest(tmp_path, "-o", "moldau_virtual_seconds_max=30")
    assert limits_of(done.stdout) == [
        "seed 5: the test has not ended after 30 s of virtual time (virtual_seconds_max); it waits in " + polls,
        "seed 5: the test has not ended after 30 s of virtual time (virtual_seconds_max); it waits in "
        f"NurseryManager.__aexit__ at {path}:{nursery} (test_waits_for_a_task); {polls}",
        "seed 1: the test has not ended after 45 s of virtual time (virtual_seconds_max); it waits in "
        f"Event.wait at {path}:{shield} (test_has_its_own_limit)",
    ]
    assert "3 failed, 1 passed" in done.stdout
    assert "not deterministic" not in done.stdout
    assert "pytest test_ever.py::test_waits_for_a_record --moldau-seeds 5" in done.stdout


@pytest.mark.parametrize("text", ["0", "ten", "nan"])
def test_a_wrong_limit_in_the_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "test_ever.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-o", f"moldau_virtual_seconds_max={text}", "-k", "in_time")
    key = "moldau_virtual_seconds_max in pytest's configuration"
    assert f"{key}: it is a number of seconds above 0, or inf, and not {text!r}" in done.stdout + done.stderr
    assert done.returncode != 0


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), (" 0.5 ", 0.5), ("inf", math.inf), ("1e3", 1000.0)])
def test_limits_of_the_configuration(text: str, seconds: float) -> None:
    assert parse_limit(text) == seconds


def test_a_limit_does_not_change_processes() -> None:
    """The command line may leave a test with a limit on processes, which are the session's then."""
    marker = pytest.mark.moldau(simulated=False, virtual_seconds_max=30).mark
    assert read_marker(marker, is_coroutine=True, simulate=False).shared
    assert read_marker(marker, is_coroutine=True, simulate=True).virtual_seconds_max == 30
    assert not Wanted(virtual_seconds_max=30, brokers=1).shared


def run_with(scenario: Callable[[SimulatedCluster], Awaitable[float]], limit: float | None) -> float:
    """Runs a scenario on the smallest cluster."""
    return simulate(scenario, seed=3, brokers=1, controllers=1, virtual_seconds_max=limit)


async def sleeps(sim: SimulatedCluster) -> float:
    """Returns the virtual time a little later than ``USUAL``."""
    await trio.sleep(USUAL + 5)
    return trio.current_time()


@pytest.fixture
def short_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the usual limit one that real time does not notice."""
    monkeypatch.setattr(simulated, "VIRTUAL_SECONDS_MAX", USUAL)


@pytest.mark.usefixtures("short_usual")
def test_the_usual_limit_ends_a_scenario() -> None:
    with pytest.raises(SimulationError, match=rf"after {USUAL:g} s of virtual time .*sleep at .*\(sleeps\)"):
        run_with(sleeps, None)


@pytest.mark.usefixtures("short_usual")
def test_no_limit_lets_a_scenario_end() -> None:
    assert run_with(sleeps, math.inf) >= USUAL + 5


@pytest.mark.parametrize("limit", [0, -1.0, math.nan, True])
def test_a_wrong_limit_of_a_scenario_is_refused(limit: float) -> None:
    with pytest.raises(LauncherUsageError, match=f"virtual_seconds_max is a number of seconds above 0.*not {limit!r}"):
        run_with(sleeps, limit)


def test_shielded_cleanup_has_its_time() -> None:
    """Code that runs after the cancellation may take a while, and not for ever."""
    cleaned: list[float] = []

    async def scenario(sim: SimulatedCluster) -> float:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(CLEANUP_SECONDS / 2)
                cleaned.append(trio.current_time())
                await trio.sleep_forever()

    with pytest.raises(SimulationError, match="after 20 s of virtual time"):
        run_with(scenario, 20)
    assert len(cleaned) == 1


def test_the_cause_is_what_the_cancelled_scenario_raised() -> None:
    async def scenario(sim: SimulatedCluster) -> float:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("orders")

    with pytest.raises(SimulationError, match="after 20 s of virtual time") as caught:
        run_with(scenario, 20)
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_places_of_many_tasks_are_counted() -> None:
    """Each wait has a line of its own here; equal ones are named once."""
    waits = "\n".join(f"async def wait_{number}(): await trio.sleep_forever()" for number in range(PLACES_SHOWN + 3))
    module: dict[str, object] = {"trio": trio, "__name__": "shop"}
    exec(compile(waits, str(Path(__file__).with_name("shop.py")), "exec"), module)

    async def scenario(sim: SimulatedCluster) -> float:
        async with trio.open_nursery() as nursery:
            for number in range(PLACES_SHOWN + 3):
                for _ in range(2):
                    nursery.start_soon(module[f"wait_{number}"])  # type: ignore[arg-type]
        raise AssertionError("the tasks wait for ever")

    with pytest.raises(SimulationError) as caught:
        run_with(scenario, 20)
    text = str(caught.value)
    assert text.count("sleep_forever at ") == PLACES_SHOWN - 1  # The first place is the nursery's.
    assert text.endswith("; 4 more places")


def test_the_guide_names_the_limit() -> None:
    text = GUIDE.read_text()
    assert f"ended after {VIRTUAL_SECONDS_MAX / 60:g} virtual minutes" in text
    assert "virtual_seconds_max" in text
