"""Goal: what cannot be done to a cluster is refused, in the same words in the simulation and on processes.

Method: one table of misuse, run in both worlds (``tests/support/kit/misuse.py``); wrong numbers of nodes and wrong
settings.
"""

import math
from pathlib import Path

import pytest

from moldau_jepsen.chaos.network.fabric import LinkFabric
from moldau_jepsen.launcher import LauncherUsageError
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.testing import cluster
from moldau_jepsen.testing.scenario import Cluster, run_on_processes, run_simulated
from support.kit import misuse


def test_misuse_is_refused_in_the_simulation() -> None:
    run_simulated(misuse.test_misuse, seed=1, brokers=1, controllers=1, settings={})


def test_what_heal_has_lifted_is_not_named() -> None:
    """The error of a cluster that is not healthy names the faults still in force, and only those."""

    async def scenario(running: Cluster) -> None:
        await running.pause(1)
        for _ in range(2):
            await running.cut(101, 1)
            await misuse.refused("; still in force: cut(101, 1), pause(1)", running.wait_healthy, 1)
            await running.heal()
            await misuse.refused("; still in force: pause(1)", running.wait_healthy, 1)

    run_simulated(scenario, seed=1, brokers=1, controllers=1, settings={})


@pytest.mark.processes
def test_misuse_is_refused_on_processes(tmp_path: Path) -> None:
    with cluster(brokers=1, controllers=1, hostile=True, directory=tmp_path) as local:
        run_on_processes(misuse.test_misuse, local)


async def nothing(_: Cluster) -> None:
    raise AssertionError("no test runs on such a cluster")


def in_the_simulation(**wanted: object) -> None:
    run_simulated(nothing, seed=1, **{"brokers": 1, "controllers": 1, "settings": {}, **wanted})  # type: ignore[arg-type]


def on_processes(**wanted: object) -> None:
    with cluster(**{"brokers": 1, "controllers": 1, **wanted}):  # type: ignore[arg-type]
        raise AssertionError("such a cluster starts")


@pytest.mark.parametrize("start", [in_the_simulation, on_processes])
@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"brokers": 0}, "number of brokers must be 1..99, not 0"),
        ({"brokers": "3"}, "number of brokers must be 1..99, not '3'"),
        ({"controllers": 100}, "number of controllers must be 1..99, not 100"),
        ({"settings": {"log.retention.ms": "soon"}}, "log.retention.ms"),
        ({"settings": {"log.retention.ms": None}}, "not 'log.retention.ms': None"),
        ({"settings": {1: "x"}}, "not 1: 'x'"),
    ],
    ids=str,
)
def test_wrong_clusters_are_refused(start, wanted, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(LauncherUsageError) as caught:
        start(**wanted)
    assert text in str(caught.value)


SETTINGS = {"log.retention.ms": 1000, "auto.create.topics.enable": False}


def test_numbers_and_truths_are_settings_in_the_simulation() -> None:
    async def looks(running: Cluster) -> None:
        given = running.simulated.settings(1)  # type: ignore[attr-defined]
        assert given["log.retention.ms"] == "1000"
        assert given["auto.create.topics.enable"] == "false"

    run_simulated(looks, seed=1, brokers=1, controllers=1, settings=SETTINGS)


@pytest.mark.processes
def test_numbers_and_truths_are_settings_of_processes(tmp_path: Path) -> None:
    with cluster(brokers=1, controllers=1, settings=SETTINGS, directory=tmp_path, links=False) as local:
        lines = Path(local.node(1).config).read_text().splitlines()
    assert lines[-2:] == ["log.retention.ms=1000", "auto.create.topics.enable=false"]


def test_wrong_delays_and_cuts_are_refused() -> None:
    ports = take_free_ports(4)
    with LinkFabric({1: ports[0], 2: ports[1]}, {1: ports[2], 2: ports[3]}) as links:
        for delay in (-100, math.nan, math.inf, "x", None):
            with pytest.raises(LauncherUsageError, match="a delay is a number of milliseconds, 0 or more, not"):
                links.slow(1, delay)  # type: ignore[arg-type]
        with pytest.raises(LauncherUsageError, match="node 1 cannot be cut from itself"):
            links.cut(1, 1)
        assert links.in_force == []
        links.cut(1, 2, one_way=True)
        links.slow(2, 0.5)
        assert links.in_force == ["cut(1, 2, one_way=True)", "slow(2, 0.5)"]
        links.heal()
        assert links.in_force == []


@pytest.mark.parametrize("given", ["cluster", Path("cluster")])
def test_a_directory_may_be_a_string(monkeypatch: pytest.MonkeyPatch, given: Path | str) -> None:
    started: list[Path] = []

    def start(_: object, directory: Path, **more: object) -> None:
        started.append(directory)

    monkeypatch.setattr("moldau_jepsen.testing.local.start_test_cluster", start)
    with cluster(directory=given):
        assert started == [Path("cluster")]
