"""Values that stand for nodes, links and operators in tests of the nemesis."""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import trio
import trio.testing

from moldau_jepsen.chaos.nemesis.nemesis import FaultEvent, Nemesis
from moldau_jepsen.chaos.network.links import Links
from moldau_jepsen.chaos.network.rules import Link, LinkRule, LinkRules
from moldau_jepsen.faults.kinds import FaultKind, Target, TargetedFault
from moldau_jepsen.launcher.control import HEALTHY, Control
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.spec import Node
from moldau_jepsen.launcher.undo import PowerLoss


def node(node_id: int, role: str) -> Node:
    return Node(node_id=node_id, role=role, port=node_id, directory="/nowhere", config="", log="")


@dataclass
class ValueCluster:
    brokers: list[Node] = field(default_factory=lambda: [node(number, "broker") for number in (1, 2, 3)])
    controllers: list[Node] = field(default_factory=lambda: [node(number, "controller") for number in (101, 102, 103)])
    states: dict[int, ProcessState] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)
    controls: dict[int, Control] = field(default_factory=dict)
    orders: list[tuple[int, Control]] = field(default_factory=list)
    whole: bool = True

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

    def lose_power(self, node_id: int, seed: int) -> PowerLoss:
        self._move("lose power", node_id, ProcessState.RUNNING, ProcessState.STOPPED)
        return PowerLoss(pages=seed % 7, names=1, files=1)

    def control(self, node_id: int, change: Callable[[Control], Control]) -> None:
        self.controls[node_id] = change(self.controls.get(node_id, HEALTHY))
        self.orders.append((node_id, self.controls[node_id]))

    def wipe(self, node_id: int) -> None:
        assert self.state(node_id) is ProcessState.STOPPED
        self.calls.append(("wipe", node_id))

    def is_whole(self) -> bool:
        return self.whole

    def can_do_without(self, node_id: int) -> bool:
        return self.whole


@dataclass
class ValueOperations:
    calls: list[tuple[str, str]] = field(default_factory=list)  # what was asked, and what was answered

    async def broker_leaders(self) -> list[int]:
        return [2]

    async def active_controller(self) -> list[int]:
        return [103]

    async def reassign(self, draw: random.Random) -> str:
        self.calls.append(("reassign", f"partition {draw.randrange(3)}"))
        return self.calls[-1][1]

    async def elect_preferred(self) -> str:
        self.calls.append(("elect", f"all, time {len(self.calls) + 1}"))
        return self.calls[-1][1]


@dataclass
class ValueVoters:
    calls: list[tuple[str, int]] = field(default_factory=list)
    restored: bool = True
    obeyed: bool = True
    removed: dict[int, None] = field(default_factory=dict)

    async def remove_voter(self, node_id: int) -> str:
        self.calls.append(("remove", node_id))
        return f"remove {node_id}"

    async def surely_remove_voter(self, node_id: int, timeout_s: float) -> bool:
        await self.remove_voter(node_id)
        return self.obeyed

    async def add_voter(self, node_id: int) -> str:
        self.calls.append(("add", node_id))
        return f"add {node_id}"

    async def restore_voters(self, timeout_s: float) -> bool:
        return self.restored


@dataclass
class ValueCordons:
    calls: list[tuple[str, int]] = field(default_factory=list)
    answer: str = "done"
    restored: bool = True

    async def cordon(self, broker_id: int) -> str:
        self.calls.append(("cordon", broker_id))
        return self.answer

    async def uncordon(self, broker_id: int) -> str:
        self.calls.append(("uncordon", broker_id))
        return self.answer

    async def uncordon_all(self, timeout_s: float) -> bool:
        return self.restored


class ValueLinks(LinkRules):
    """Rules without an effect; calls block, as those of namespaces do, and are refused outside of ``inline``."""

    blocks = True

    def __init__(self, **lacks: str) -> None:
        super().__init__()
        self.lacks = lacks
        self.seen: list[LinkRule] = []

    def reset(self, members: Iterable[int]) -> int:
        assert INLINE, "a call that blocks was made in the event loop"
        return len(list(members))

    def _carry_out(self, changes: Mapping[Link, tuple[LinkRule, LinkRule]]) -> None:
        assert INLINE, "a call that blocks was made in the event loop"
        self.seen += [now for _, now in changes.values()]


INLINE: list[int] = []


async def inline(function: Callable[[int], object], node_id: int) -> object:
    await trio.lowlevel.checkpoint()
    INLINE.append(node_id)
    try:
        return function(node_id)
    finally:
        INLINE.pop()


def fault(kind: FaultKind, target: Target, begin_ms: float = 0, end_ms: float = 1000, number: int = 1) -> TargetedFault:
    return TargetedFault(kind=kind, target=target, begin=begin_ms / 1000, end=end_ms / 1000, number=number)


def run_faults(
    cluster: ValueCluster, plan: list[TargetedFault], *, synced: bool = False, voters: ValueVoters | None = None
) -> tuple[list[FaultEvent], Nemesis]:
    events: list[FaultEvent] = []
    kept: list[Nemesis] = []

    async def main() -> None:
        nemesis = Nemesis(
            cluster,
            Links({}),
            ValueOperations(),
            events.append,
            voters=voters or ValueVoters(),
            synced=synced,
            in_thread=inline,
        )
        kept.append(nemesis)
        await nemesis.run(plan)
        await nemesis.recover()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return events, kept[0]
