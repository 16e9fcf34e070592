"""Executes a plan of faults against a cluster of real processes, and reverts all faults at the end.

Each planned fault is a task: it waits for its beginning, chooses its nodes, injects the fault, waits for its end, and
reverts it. Other faults leave a stopped or paused node alone until it is back. Rules on links are stacked, so that the
end of one fault does not heal another's cut. After the plan ``recover`` starts, resumes and heals all nodes and links
in any case.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import trio

from moldau_jepsen.chaos.nemesis.cordons import strike_cordons
from moldau_jepsen.chaos.nemesis.machines import calm_disk, draw_order, right_clock
from moldau_jepsen.chaos.nemesis.schedule import choose_nodes
from moldau_jepsen.chaos.network.rules import CLIENT, DELAY, LOSS, RATE, Link, LinkFaults, LinkRule
from moldau_jepsen.faults.kinds import FaultKind, Target, TargetedFault
from moldau_jepsen.faults.rot import Damage, damage, damage_metadata
from moldau_jepsen.faults.topology import ring_cuts
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.spec import LauncherError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau_jepsen.chaos.nemesis.needs import Cluster, Cordons, Operations, Voters
    from moldau_jepsen.chaos.network.rules import InThread, LinkRules
    from moldau_jepsen.launcher.control import Control
    from moldau_jepsen.launcher.spec import Node
    from moldau_jepsen.launcher.undo import PowerLoss

CONTROLLER_SHARE = 0.35
"""Share of faults on processes and links that strike controllers; the others strike brokers."""
SLOW_MS = (20.0, 400.0)
SLOW_BYTES_PER_S = (10_000.0, 200_000.0)
"""Of links that know no delay."""
LOSSES = (1 / 32, 1 / 16, 1 / 8, 1 / 4)
RESET_EVERY_S = (0.2, 2.0)
RESTORE_TIMEOUT_S = 90.0
REPLACE_ATTEMPTS = 3
"""How often a controller's vote is asked for, each time for ``RESTORE_TIMEOUT_S``, before the end of the run."""
ROLLING_WAIT_S = 30.0
WATCH_EVERY_S = 0.5
DEATHS_MAX = 20
FAILED_FOR_S = 10.0
"""A node notices an error of its disk within this time; it is then brought back."""
REFUSED_WITHIN_S = 60.0
"""A controller with damaged metadata must have ended by then."""
CHURN_EVERY_S = (1.0, 5.0)
ANSWERS_SHOWN = 4
VOTERS_MIN = 3
NOT_DONE = ("not asked", "no effect")
"""How answers begin that report that nothing was done."""
BUSY = "no effect: other faults hold all nodes that were chosen"
UNCLEAN = frozenset(
    {
        FaultKind.KILL,
        FaultKind.PAUSE,
        FaultKind.RESTART,
        FaultKind.POWER,
        FaultKind.BIT_ROT,
        FaultKind.DISK_FULL,
        FaultKind.DISK_ERROR,
    }
)
"""Faults that may end a process uncleanly: a node ends by itself after a long pause, and after an error of its disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEvent:
    """An executed fault; times are milliseconds since the start of the run."""

    kind: str
    target: str
    nodes: tuple[int, ...]
    begin_ms: float
    end_ms: float
    detail: str = ""
    took_effect: bool = True
    """False for a planned fault that found no target when it was due, or that was refused; ``detail`` says why."""


class _Action(NamedTuple):
    """The outcome of a planned fault."""

    nodes: Sequence[int]
    """The nodes that it affected; none for what concerns no single node."""
    detail: str
    took_effect: bool


class _PowerLost(NamedTuple):
    """A broker that lost what its page cache held, and another one that holds all of it.

    The controllers distrust each broker that comes back from an unclean stop, killed or not. If all replicas of a
    partition stop so before its leadership has left the broker that lost power, that broker, as the last known leader,
    leads again without the records (KIP-966). So ``holder`` must not stop until all replicas are in sync again.
    """

    broker: int
    holder: int


def _upon(nodes: Sequence[int], detail: str = "") -> _Action:
    """Returns the outcome of a fault of nodes: it took effect if there were any."""
    return _Action(nodes, detail if nodes or detail else BUSY, bool(nodes))


class Nemesis:
    """Injects faults. All methods belong to one ``trio.run``; blocking calls of the cluster run in threads."""

    def __init__(
        self,
        cluster: Cluster,
        links: LinkRules | None,
        operations: Operations,
        report: Callable[[FaultEvent], None],
        *,
        voters: Voters | None = None,
        cordons: Cordons | None = None,
        synced: bool = False,
        in_thread: InThread = trio.to_thread.run_sync,
    ) -> None:
        """Without ``links`` the faults on links are refused when they strike. ``in_thread`` runs blocking calls.

        ``synced``: brokers sync records before they acknowledge them, so that any number of them may lose power.
        Otherwise a record lives in page caches, and only one broker at a time may, when all replicas are in sync.
        """
        self._cluster = cluster
        self._links = None if links is None else LinkFaults(links, in_thread)
        self._operations = operations
        self._report = report
        self._taken: dict[int, FaultKind] = {}
        self._power_lost: _PowerLost | None = None
        self._in_thread = in_thread
        self._voters = voters
        self._cordons = cordons
        self._synced = synced
        self._rotten: dict[int, str] = {}  # nodes with damaged records, whose disk is to be replaced
        self._failed_until: dict[int, float] = {}  # nodes whose disk failed a moment ago
        self.deaths: list[str] = []
        """Nodes that ended without a fault, and nodes that did not come back."""
        self._processes = trio.Lock()  # the launcher is not for several threads at once

    async def run(self, plan: Sequence[TargetedFault]) -> None:
        """Carries out the plan, from now on; returns when the last fault has ended. Call ``recover`` afterwards.

        Raises:
            LauncherError: A node does not come back.
        """
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for fault in plan:
                nursery.start_soon(self._carry_out, fault, started)

    async def recover(self) -> None:
        """Heals all links, resumes and starts all nodes.

        Raises:
            LauncherError: A node does not come back.
        """
        if self._links is not None:
            await self._links.heal()
        for node in self._nodes.values():
            if node.hostile:
                await self._call(lambda node_id: self._cluster.control(node_id, _all_right), node.node_id)
            await self._bring_back(node.node_id)
        self._taken.clear()
        self._power_lost = None
        for node_id in sorted(self._rotten):
            await self._replace_disk(node_id, is_last=True)
        if self._voters is not None and not await self._voters.restore_voters(RESTORE_TIMEOUT_S):
            self.deaths.append(f"not all controllers vote again {RESTORE_TIMEOUT_S:g} s after the last fault")
        if self._cordons is not None and not await self._cordons.uncordon_all(RESTORE_TIMEOUT_S):
            self.deaths.append(f"not all brokers take replicas again {RESTORE_TIMEOUT_S:g} s after the last fault")

    async def watch(self) -> None:
        """Notices nodes that end by themselves, until cancelled: each is a death, and is started again."""
        while True:
            for node in self._nodes.values():
                if self._may_end(node.node_id):
                    continue
                if self._failed_until.pop(node.node_id, None) is not None:
                    await self._bring_back(node.node_id)
                    continue
                state = await self._call(self._cluster.state, node.node_id)
                if state is ProcessState.STOPPED and not self._may_end(node.node_id):
                    self._record_death(node)
                    await self._call_in(ProcessState.STOPPED, self._cluster.launch, node.node_id)
            if len(self.deaths) >= DEATHS_MAX:
                return
            await trio.sleep(WATCH_EVERY_S)

    @property
    def _nodes(self) -> dict[int, Node]:
        return {node.node_id: node for node in (*self._cluster.controllers, *self._cluster.brokers)}

    def _record_death(self, node: Node) -> None:
        self.deaths.append(f"{node.role} {node.node_id} ended by itself; its log is {node.log}")

    def _may_end(self, node_id: int) -> bool:
        """A fault holds it, its records are damaged, or an error of its disk may not have reached it yet."""
        if node_id in self._taken or node_id in self._rotten:
            return True
        return trio.current_time() < self._failed_until.get(node_id, 0.0)

    async def _replace_disk(self, node_id: int, *, is_last: bool = False) -> None:
        """Gives a node whose records were damaged an empty disk: they come from the other replicas.

        Other faults may prevent it for now; ``recover`` tries for the last time.
        """
        if any(node.node_id == node_id for node in self._cluster.controllers):
            await self._replace_controller(node_id, is_last=is_last)
            return
        with trio.move_on_after(RESTORE_TIMEOUT_S) as scope:
            while not await self._call(self._cluster.can_do_without, node_id):  # noqa: ASYNC110 - no event reports it
                await trio.sleep(WATCH_EVERY_S)
            if await self._call(self._cluster.state, node_id) is ProcessState.RUNNING:
                await self._call(self._cluster.stop_node, node_id)
            await self._call(self._cluster.wipe, node_id)
            await self._call(self._cluster.launch, node_id)
            del self._rotten[node_id]
        if scope.cancelled_caught and is_last:
            self.deaths.append(f"broker {node_id} could not be replaced: partitions have no other in-sync replica")

    async def _replace_controller(self, node_id: int, *, is_last: bool) -> None:
        """A voter with an empty disk might vote twice in an epoch, and lacks the entries that it confirmed."""
        assert self._voters is not None, "controllers rot only where a client can take their vote away"
        if not await self._voters.surely_remove_voter(node_id, RESTORE_TIMEOUT_S):
            if is_last:
                self.deaths.append(f"controller {node_id} could not be replaced: its vote could not be taken away")
            return
        if await self._call(self._cluster.state, node_id) is not ProcessState.STOPPED:
            await self._call(self._cluster.stop_node, node_id)
        await self._call(self._cluster.wipe, node_id)
        await self._call(self._cluster.launch, node_id)
        del self._rotten[node_id]
        await self._voters.restore_voters(RESTORE_TIMEOUT_S)  # what is missing in the end is found by ``recover``

    async def _bring_back(self, node_id: int) -> None:
        if not await self._call_in(ProcessState.PAUSED, self._cluster.resume, node_id):
            await self._call_in(ProcessState.STOPPED, self._cluster.launch, node_id)

    async def _call(self, function: Callable[[int], object], node_id: int) -> object:
        """Every call of the launcher has a bound of its own."""
        async with self._processes:
            return await self._in_thread(function, node_id)

    async def _call_in(self, wanted: ProcessState, function: Callable[[int], object], node_id: int) -> bool:
        """Makes the call if the node is in that state, and returns whether it did.

        Only the node itself may change the state meanwhile.
        """

        def both(node_id: int) -> bool:
            if self._cluster.state(node_id) is not wanted:
                return False
            try:
                function(node_id)
            except LauncherError:
                if wanted is ProcessState.STOPPED or self._cluster.state(node_id) is not ProcessState.STOPPED:
                    raise
                return False  # it has ended in this moment
            return True

        return bool(await self._call(both, node_id))

    # -- one fault ----------------------------------------------------------------------------------------------------

    async def _carry_out(self, fault: TargetedFault, started: float) -> None:
        draw = random.Random(fault.number)
        await trio.sleep_until(started + fault.begin)
        end = started + fault.end
        begun_ms = (trio.current_time() - started) * 1000
        match fault.kind:
            case FaultKind.REASSIGN | FaultKind.ELECT | FaultKind.VOTERS:
                action = await self._churn(fault, draw, end)
            case FaultKind.CORDON:
                if self._cordons is None:
                    raise LauncherError(f"fault {fault.kind.value} needs a cluster that the run starts")
                leaders = await self._operations.broker_leaders() if fault.target is Target.LEADERS else []
                brokers = choose_nodes(fault.target, [node.node_id for node in self._cluster.brokers], leaders, draw)
                cordoned, answers = await strike_cordons(self._cordons, brokers, end)
                action = _Action(cordoned or brokers, answers, bool(cordoned))
            case FaultKind.KILL | FaultKind.PAUSE | FaultKind.RESTART:
                action = await self._strike_processes(fault, draw, end)
            case FaultKind.POWER:
                action = await self._strike_power(fault, draw, end)
            case FaultKind.BIT_ROT:
                action = await self._strike_files(fault, draw, end)
            case FaultKind.DISK_FULL | FaultKind.DISK_ERROR | FaultKind.DISK_SLOW | FaultKind.CLOCK:
                action = await self._strike_machines(fault, draw, end)
            case _:
                action = await self._strike_links(fault, draw, end)
        self._report(
            FaultEvent(
                kind=fault.kind.value,
                target=fault.target.value,
                nodes=tuple(action.nodes),
                begin_ms=begun_ms,
                end_ms=(trio.current_time() - started) * 1000,
                detail=action.detail,
                took_effect=action.took_effect,
            )
        )

    async def _choose(self, fault: TargetedFault, draw: random.Random) -> tuple[list[int], list[int]]:
        """Returns the affected nodes and all nodes of their role."""
        if draw.random() < CONTROLLER_SHARE and self._cluster.controllers:
            role = [node.node_id for node in self._cluster.controllers]
            leaders = await self._operations.active_controller() if fault.target is Target.LEADERS else []
        else:
            role = [node.node_id for node in self._cluster.brokers]
            leaders = await self._operations.broker_leaders() if fault.target is Target.LEADERS else []
        return choose_nodes(fault.target, role, leaders, draw), role

    async def _take(self, chosen: Sequence[int], kind: FaultKind) -> list[int]:
        """Keeps nodes from other faults, those of the chosen that no other has. From now on they may end."""
        back = self._power_lost
        if back is not None and back.broker not in self._taken and await self._is_whole():
            self._power_lost = None  # it has copied its records again
        affected = []
        for node_id in chosen:
            lost = self._power_lost
            if node_id in self._taken or (kind in UNCLEAN and lost is not None and lost.holder == node_id):
                continue
            may_end = self._may_end(node_id)
            self._taken[node_id] = kind
            affected.append(node_id)
            if not may_end and await self._call(self._cluster.state, node_id) is ProcessState.STOPPED:
                self._record_death(self._nodes[node_id])
        return affected

    def _give_back(self, affected: Sequence[int]) -> None:
        for node_id in affected:
            self._taken.pop(node_id, None)

    async def _strike_processes(self, fault: TargetedFault, draw: random.Random, end: float) -> _Action:
        chosen, _ = await self._choose(fault, draw)
        affected = await self._take(chosen, fault.kind)
        hit = []
        if fault.kind is FaultKind.RESTART:
            for number, node_id in enumerate(affected):
                if number:
                    await self._wait_whole(ROLLING_WAIT_S)
                await self._stop(node_id)
                await self._bring_back(node_id)
                hit.append(node_id)
        else:
            strike = self._cluster.kill if fault.kind is FaultKind.KILL else self._cluster.pause
            hit = [node_id for node_id in affected if await self._call_in(ProcessState.RUNNING, strike, node_id)]
            await trio.sleep_until(end)
            for node_id in affected:
                await self._bring_back(node_id)
        self._give_back(affected)
        return _upon(hit)

    async def _stop(self, node_id: int) -> None:
        if await self._call(self._cluster.state, node_id) is not ProcessState.STOPPED:
            await self._call(self._cluster.stop_node, node_id)

    async def _wait_whole(self, timeout_s: float) -> bool:
        with trio.move_on_after(timeout_s):
            while not await self._is_whole():  # noqa: ASYNC110 - no event reports it
                await trio.sleep(WATCH_EVERY_S)
            return True
        return False

    async def _is_whole(self) -> bool:
        return bool(await self._call(lambda _: self._cluster.is_whole(), 0))

    # -- machines -----------------------------------------------------------------------------------------------------

    async def _strike_power(self, fault: TargetedFault, draw: random.Random, end: float) -> _Action:
        chosen, _ = await self._choose(fault, draw)
        brokers = [node.node_id for node in self._cluster.brokers]
        careful = not self._synced and chosen[0] in brokers
        affected = await self._take(chosen[:1] if careful else chosen, fault.kind)
        if careful and not (await self._is_whole() and self._power_lost is None):
            self._give_back(affected)
            return _upon([], "no effect: records may live in one page cache alone")
        if careful and affected:
            holders = [node_id for node_id in brokers if node_id not in affected and not self._may_end(node_id)]
            if not holders:
                self._give_back(affected)
                return _upon([], "no effect: other faults may stop all brokers that hold the records")
            self._power_lost = _PowerLost(affected[0], draw.choice(holders))
        texts = []
        for node_id in affected:
            seed = draw.getrandbits(32)
            lost = cast("PowerLoss", await self._call(partial(self._cut_power, seed), node_id))
            texts.append(f"{node_id} lost {lost.pages} pages and {lost.names} names")
        await trio.sleep_until(end)
        for node_id in affected:
            await self._bring_back(node_id)
        self._give_back(affected)
        return _upon(affected, ", ".join(texts))

    def _cut_power(self, seed: int, node_id: int) -> PowerLoss:
        return self._cluster.lose_power(node_id, seed)

    async def _strike_files(self, fault: TargetedFault, draw: random.Random, end: float) -> _Action:
        chosen, _ = await self._choose(fault, draw)
        controllers = [node.node_id for node in self._cluster.controllers]
        affected = await self._take(chosen, fault.kind)
        texts, hit = [], []
        for node_id in affected:
            if self._rotten or not await self._is_whole():
                texts.append("no effect: the other replicas are not all there")
                continue
            if node_id in controllers:
                if self._voters is None or len(controllers) - len(self._voters.removed) < VOTERS_MIN:
                    texts.append("no effect: the quorum cannot do without it")
                    continue
                self._rotten[node_id] = "about to rot"  # no other vote may be taken away from now on
            await self._stop(node_id)
            done = (damage_metadata if node_id in controllers else damage)(Path(self._nodes[node_id].directory), draw)
            texts.append("no effect: no file is closed" if done is None else done.text)
            if done is not None:
                hit.append(node_id)
            if done is not None and done.records:
                self._rotten[node_id] = done.text
            else:
                self._rotten.pop(node_id, None)
            await self._call(self._cluster.launch, node_id)
            if done is not None and done.refused:
                await self._await_refusal(node_id, done)
        await trio.sleep_until(end)
        for node_id in affected:
            if node_id in controllers and node_id in self._rotten:
                for _ in range(REPLACE_ATTEMPTS):
                    await self._replace_disk(node_id)
                    if node_id not in self._rotten:
                        break
                continue
            await self._bring_back(node_id)  # it may have refused to start
            if node_id in self._rotten and await self._call(self._cluster.can_do_without, node_id):
                await self._replace_disk(node_id)
        self._give_back(affected)
        return _upon(hit, ", ".join(texts))

    async def _await_refusal(self, node_id: int, done: Damage) -> None:
        with trio.move_on_after(REFUSED_WITHIN_S):
            while await self._call(self._cluster.state, node_id) is not ProcessState.STOPPED:  # noqa: ASYNC110 - as above
                await trio.sleep(WATCH_EVERY_S)
            return
        self.deaths.append(f"controller {node_id} started with damaged metadata ({done.text})")

    async def _strike_machines(self, fault: TargetedFault, draw: random.Random, end: float) -> _Action:
        chosen, _ = await self._choose(fault, draw)
        affected = await self._take(chosen, fault.kind)  # a node whose disk fails may end for it
        order = draw_order(fault.kind, draw)
        for node_id in affected:
            await self._call(lambda node: self._cluster.control(node, order.change), node_id)
        await trio.sleep_until(end)
        for node_id in affected:
            await self._call(lambda node: self._cluster.control(node, order.undo), node_id)
            await self._bring_back(node_id)
            if fault.kind in (FaultKind.DISK_FULL, FaultKind.DISK_ERROR):
                self._failed_until[node_id] = trio.current_time() + FAILED_FOR_S
        self._give_back(affected)
        return _upon(affected, order.text if affected else "")

    # -- churn --------------------------------------------------------------------------------------------------------

    async def _churn(self, fault: TargetedFault, draw: random.Random, end: float) -> _Action:
        """Goes on until the fault ends; returns the nodes and the first few answers."""
        answers: list[str] = []
        nodes: dict[int, None] = {}
        while True:
            match fault.kind:
                case FaultKind.REASSIGN:
                    answers.append(await self._operations.reassign(draw))
                case FaultKind.ELECT:
                    answers.append(await self._operations.elect_preferred())
                case _:
                    answers += await self._churn_voters(fault, draw, end, nodes)
            pause = draw.uniform(*CHURN_EVERY_S)
            if trio.current_time() + pause >= end:
                break
            await trio.sleep(pause)
        await trio.sleep_until(end)
        more = f"; {len(answers) - ANSWERS_SHOWN} more" if len(answers) > ANSWERS_SHOWN else ""
        done = any(not answer.startswith(NOT_DONE) for answer in answers)
        return _Action(sorted(nodes), "; ".join(answers[:ANSWERS_SHOWN]) + more, done)

    async def _churn_voters(
        self, fault: TargetedFault, draw: random.Random, end: float, nodes: dict[int, None]
    ) -> list[str]:
        if self._voters is None:
            raise LauncherError(f"fault {fault.kind.value} needs a cluster whose controllers are known")
        leaders = await self._operations.active_controller() if fault.target is Target.LEADERS else []
        known = [node.node_id for node in self._cluster.controllers if node.node_id not in self._rotten]
        if len(known) < VOTERS_MIN:
            return ["no effect: a quorum of one or two controllers is left alone"]
        leaders = [leader for leader in leaders if leader in known]
        (node_id,) = choose_nodes(fault.target, known, leaders, draw)
        nodes[node_id] = None
        removed = await self._voters.remove_voter(node_id)
        await trio.sleep(min(draw.uniform(*CHURN_EVERY_S), max(0.0, end - trio.current_time())))
        return [removed, await self._voters.add_voter(node_id)]

    # -- links --------------------------------------------------------------------------------------------------------

    async def _strike_links(self, fault: TargetedFault, draw: random.Random, end: float) -> _Action:
        if self._links is None:
            raise LauncherError(f"fault {fault.kind.value} needs a cluster whose links are ruled")
        affected, role = await self._choose(fault, draw)
        if fault.kind is FaultKind.RESET:
            count = 0
            while trio.current_time() < end:
                count += await self._links.reset(affected)
                await trio.sleep(min(draw.uniform(*RESET_EVERY_S), max(0.0, end - trio.current_time())))
            return _Action(affected, f"{count} connections", count > 0)
        rules, detail = self._rules_of(fault, draw, affected, role)
        token = await self._links.impose(rules)
        await trio.sleep_until(end)
        await self._links.lift(token)
        return _Action(affected, detail if rules else "no effect: no links are to be cut", bool(rules))

    def _rules_of(
        self, fault: TargetedFault, draw: random.Random, affected: Sequence[int], role: Sequence[int]
    ) -> tuple[list[tuple[Link, LinkRule]], str]:
        members = list(self._nodes)
        cut = LinkRule(cut=True)
        if fault.target is Target.RING:
            return [(Link(sender, receiver), cut) for sender, receiver in ring_cuts(sorted(role))], ""
        others = [member for member in members if member not in affected]
        if fault.kind is FaultKind.ISOLATE:
            others.append(CLIENT)
        if fault.kind in (FaultKind.SLOW, FaultKind.LOSS):
            rule, detail = self._draw_rule(fault.kind, draw)
            return [(Link(node, other), rule) for node in affected for other in (*others, CLIENT)], detail
        rules = [(Link(node, other), cut) for node in affected for other in others]
        if fault.kind is not FaultKind.CUT_ONE_WAY:
            rules += [(Link(other, node), cut) for node in affected for other in others]
        return rules, ""

    def _draw_rule(self, kind: FaultKind, draw: random.Random) -> tuple[LinkRule, str]:
        assert self._links is not None
        lacks = self._links.links.lacks
        if kind is FaultKind.LOSS and LOSS not in lacks:
            share = draw.choice(LOSSES)
            return LinkRule(loss=share), f"{share:.1%} of packets"
        if kind is FaultKind.SLOW and DELAY not in lacks:
            rule = LinkRule(delay_ms=round(draw.uniform(*SLOW_MS), 1))
            return rule, f"{rule.delay_ms} ms"
        if kind is FaultKind.SLOW and RATE not in lacks:
            rule = LinkRule(bytes_per_second=float(round(draw.uniform(*SLOW_BYTES_PER_S))))
            return rule, f"{rule.bytes_per_second / 1000:.0f} kB/s"
        raise LauncherError(f"fault {kind.value}: {lacks.get(LOSS if kind is FaultKind.LOSS else DELAY)}")


def _all_right(control: Control) -> Control:
    return right_clock(calm_disk(control))
