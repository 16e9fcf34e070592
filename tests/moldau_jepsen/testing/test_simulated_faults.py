"""Goal: a fault in the simulation strikes the nodes that a test names, and is refused where processes refuse it.

Method: the cluster of a test in front of machines that only note what is done to them, in every state.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import chain, combinations
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau_jepsen.cluster.simulated import ClusterNotReadyError
from moldau_jepsen.launcher import LauncherError, LauncherUsageError
from moldau_jepsen.testing.scenario import SimulatedProcesses

NODES = (1, 2, 101)


class Machine:
    def __init__(self, state: str) -> None:
        self.is_running, self.is_paused = state != "stopped", state == "paused"
        self.did: list[str] = []

    def pause(self) -> None:
        self.did.append("pause")

    def resume(self) -> None:
        self.did.append("resume")


class Simulated:
    """A simulated cluster without a simulation."""

    bootstrap = "broker-1:9092"

    def __init__(self, **states: str) -> None:
        self.machines = {node: Machine(states.get(f"n{node}", "running")) for node in NODES}
        self.did: list[Any] = []
        self.is_ready = True
        self.network = SimpleNamespace(
            cut_between=lambda some, others: self.did.append(("cut", some, others)),
            heal_all=lambda: self.did.append("heal"),
        )
        self.world: Any = SimpleNamespace(node=lambda name: SimpleNamespace(environment=name), network=self.network)

    def host(self, node: int) -> str:
        return f"h{node}"

    def kill(self, node: int) -> None:
        self.did.append(("kill", node))

    def start(self, node: int) -> None:
        self.did.append(("start", node))

    def start_all(self) -> None:
        self.did.append("start all")

    def lose_power(self, node: int) -> None:
        self.did.append(("lose power", node))

    async def wait_healthy(self, seconds: float) -> None:
        await trio.lowlevel.checkpoint()
        if not self.is_ready:
            raise ClusterNotReadyError(f"not ready after {seconds:g} s")


def called(simulated: Any, name: str, *arguments: Any) -> SimulatedProcesses:
    cluster = SimulatedProcesses(simulated)

    async def main() -> None:
        await getattr(cluster, name)(*arguments)

    trio.run(main, strict_exception_groups=True)
    return cluster


FITTING = {"kill": ("running", "paused"), "pause": ("running", "paused"), "start": ("stopped",), "resume": ("paused",)}


@pytest.mark.parametrize("state", ["running", "paused", "stopped"])
@pytest.mark.parametrize("name", list(FITTING))
def test_each_fault_strikes_one_node_in_a_fitting_state(name: str, state: str) -> None:
    simulated = Simulated(n2=state)
    is_right = state in FITTING[name]
    with nullcontext() if is_right else pytest.raises(LauncherError, match=r"^node 2 (does not run|is not|runs)"):
        called(simulated, name, 2)
    done = [(fault, node) for node, machine in simulated.machines.items() for fault in machine.did]
    assert simulated.did + done == [(name, 2)] * is_right


@pytest.mark.parametrize("name", [*FITTING, "power_loss", "cut", "fill_disk", "free_disk"])
@pytest.mark.parametrize("node", [0, 3, "1", None])
def test_an_unknown_node_is_refused(name: str, node: Any) -> None:
    simulated = Simulated()
    for arguments in ([node], *([[1, node]] if name in ("power_loss", "cut") else [])):
        with pytest.raises(LauncherUsageError, match=r"^no node .* in this cluster; its nodes are 1, 2, 101"):
            called(simulated, name, *arguments)
    assert simulated.did == []


@pytest.mark.parametrize("nodes", list(chain.from_iterable(combinations(NODES, count) for count in range(4))))
def test_all_named_nodes_lose_power_or_else_all(nodes: tuple[int, ...]) -> None:
    simulated = Simulated(n2="stopped", n101="paused")
    called(simulated, "power_loss", *nodes)
    assert simulated.did == [("lose power", node) for node in nodes or NODES]


@pytest.mark.parametrize("node", NODES)
def test_a_node_is_cut_from_the_named_ones_or_from_all(node: int) -> None:
    rest = [one for one in NODES if one != node]
    for others in chain.from_iterable(combinations(rest, count) for count in range(3)):
        simulated = Simulated()
        called(simulated, "cut", node, *others)
        assert simulated.did == [("cut", [f"h{node}"], [f"h{other}" for other in others or rest])]
        with pytest.raises(LauncherUsageError, match=f"node {node} cannot be cut from itself"):
            called(simulated, "cut", node, *others, node)
        assert len(simulated.did) == 1


def test_a_wait_that_fails_names_what_still_holds() -> None:
    simulated: Any = Simulated(n1="paused", n101="paused", n2="stopped")
    simulated.is_ready = False
    cluster = SimulatedProcesses(simulated)

    async def main() -> None:
        await cluster.cut(1)
        await cluster.cut(2, 101)
        with pytest.raises(LauncherError) as first:
            await cluster.wait_healthy(7)
        await cluster.heal()
        with pytest.raises(LauncherError) as second:
            await cluster.wait_healthy(8)
        held = "; still in force: "
        assert str(first.value) == f"not ready after 7 s{held}cut(1), cut(2, 101), pause(1), pause(101)"
        assert str(second.value) == f"not ready after 8 s{held}pause(1), pause(101)"

    trio.run(main, strict_exception_groups=True)
    assert [each for each in simulated.did if isinstance(each, str)] == ["start all", "heal", "start all"]
