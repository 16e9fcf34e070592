"""Goal: every planned fault strikes and is undone, faults do not disturb each other, and recovery leaves nothing
broken.

Method: a cluster of values (its calls block nothing) under a virtual clock; link rules are looked at while the fault
holds.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from moldau_jepsen.chaos.links import CLIENT, Link, LinkRule, Links
from moldau_jepsen.chaos.nemesis import FaultEvent, Nemesis
from moldau_jepsen.chaos.schedule import FaultKind, PlannedFault, Target, plan_faults
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.spec import LauncherError, Node


def node(node_id: int, role: str) -> Node:
    return Node(node_id=node_id, role=role, port=node_id, directory="", config="", log="")


@dataclass
class ValueCluster:
    brokers: list[Node] = field(default_factory=lambda: [node(number, "broker") for number in (1, 2, 3)])
    controllers: list[Node] = field(default_factory=lambda: [node(number, "controller") for number in (101, 102, 103)])
    states: dict[int, ProcessState] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)

    def state(self, node_id: int) -> ProcessState:
        return self.states.get(node_id, ProcessState.RUNNING)

    def _move(self, call: str, node_id: int, before: ProcessState, after: ProcessState) -> None:
        assert self.state(node_id) is before, f"{call} of node {node_id}, which is {self.state(node_id)}"
        self.states[node_id] = after
        self.calls.append((call, node_id))

    def kill(self, node_id: int) -> None:
        self._move("kill", node_id, ProcessState.RUNNING, ProcessState.STOPPED)

    def pause(self, node_id: int) -> None:
        self._move("pause", node_id, ProcessState.RUNNING, ProcessState.PAUSED)

    def resume(self, node_id: int) -> None:
        self._move("resume", node_id, ProcessState.PAUSED, ProcessState.RUNNING)

    def stop_node(self, node_id: int) -> bool:
        self._move("stop", node_id, ProcessState.RUNNING, ProcessState.STOPPED)
        return True

    def launch(self, node_id: int) -> None:
        self._move("launch", node_id, ProcessState.STOPPED, ProcessState.RUNNING)


class ValueOperations:
    async def broker_leaders(self) -> list[int]:
        return [2]

    async def active_controller(self) -> list[int]:
        return [103]

    async def reassign(self, draw: random.Random) -> str:
        return f"partition {draw.randrange(3)}"

    async def elect_preferred(self) -> str:
        return "all"


async def inline(function: Callable[[int], object], node_id: int) -> object:
    await trio.lowlevel.checkpoint()
    return function(node_id)


def fault(kind: FaultKind, target: Target, begin_ms: float = 0, end_ms: float = 1000, seed: int = 1) -> PlannedFault:
    return PlannedFault(kind=kind, target=target, begin_ms=begin_ms, end_ms=end_ms, seed=seed)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_each_kind_strikes_is_undone_and_is_reported(kind: FaultKind) -> None:
    events: list[FaultEvent] = []
    cluster, links = ValueCluster(), Links({})

    async def main() -> None:
        nemesis = Nemesis(cluster, links, ValueOperations(), events.append, in_thread=inline)
        await nemesis.run([fault(kind, Target.LEADERS if kind is not FaultKind.ELECT else Target.ALL)])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert all(state is ProcessState.RUNNING for state in cluster.states.values())
    assert links.rule(Link(1, 2)) == LinkRule()
    assert [event.kind for event in events] == [kind.value]
    if kind in (FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART):
        assert len(cluster.calls) == 2
        assert events[0].nodes[0] in (2, 103)


def test_the_ring_cuts_pairs_and_isolation_cuts_clients_too() -> None:
    links = Links({})
    seen: dict[str, list[Link]] = {}
    members = (1, 2, 3, 101, 102, 103, CLIENT)

    def cut_links() -> list[Link]:
        return [Link(a, b) for a in members for b in members if links.rule(Link(a, b)).cut]

    async def main() -> None:
        nemesis = Nemesis(ValueCluster(), links, ValueOperations(), lambda event: None, in_thread=inline)
        for name, planned in (
            ("ring", fault(FaultKind.CUT, Target.RING)),
            ("isolate", fault(FaultKind.ISOLATE, Target.LEADERS)),
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(nemesis.run, [planned])
                await trio.sleep(0.5)
                seen[name] = cut_links()
        assert cut_links() == []

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(seen["ring"]) == 2
    struck = {link.source for link in seen["isolate"] if link.target == CLIENT}
    assert len(struck) == 1
    assert len(seen["isolate"]) == 12


def test_overlapping_faults_on_one_node_and_one_link_do_not_undo_each_other() -> None:
    cluster, links = ValueCluster(), Links({})

    async def main() -> None:
        nemesis = Nemesis(cluster, links, ValueOperations(), lambda event: None, in_thread=inline)
        plan = [
            fault(FaultKind.KILL, Target.ALL, 0, 900, seed=1),
            fault(FaultKind.PAUSE, Target.ALL, 100, 500, seed=1),
            fault(FaultKind.CUT, Target.LEADERS, 0, 400, seed=5),
            fault(FaultKind.ISOLATE, Target.LEADERS, 100, 800, seed=5),
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nemesis.run, plan)
            await trio.sleep(0.6)
            assert any(links.rule(Link(a, b)).cut for a in (2, 103) for b in (1, 3, 101, 102))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert {call for call, _ in cluster.calls} == {"kill", "launch"}
    assert all(state is ProcessState.RUNNING for state in cluster.states.values())


def test_after_any_plan_recovery_leaves_all_running_and_all_links_open() -> None:
    for seed in range(5):
        cluster, links = ValueCluster(), Links({})
        plan = plan_faults(random.Random(seed), duration_ms=400, kinds=list(FaultKind), window_ms=100, calm_share=0)

        async def main(
            cluster: ValueCluster = cluster, links: Links = links, plan: tuple[PlannedFault, ...] = plan
        ) -> None:
            nemesis = Nemesis(cluster, links, ValueOperations(), lambda event: None, in_thread=inline)
            with trio.move_on_after(0.25):
                await nemesis.run(plan)
            await nemesis.recover()
            assert all(not links.rule(Link(a, b)).cut for a in range(4) for b in range(4))

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        assert all(state is ProcessState.RUNNING for state in cluster.states.values())


def test_link_faults_without_proxies_are_refused() -> None:
    async def main() -> None:
        nemesis = Nemesis(ValueCluster(), None, ValueOperations(), lambda event: None, in_thread=inline)
        with pytest.RaisesGroup(pytest.RaisesExc(LauncherError, match="pass proxies")):
            await nemesis.run([fault(FaultKind.CUT, Target.ONE)])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
