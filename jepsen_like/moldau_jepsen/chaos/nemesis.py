"""Carries out a plan of faults against a cluster of real processes, and puts everything right at the end.

Each planned fault is a task: it waits for its beginning, chooses its nodes, strikes, waits for its end, and undoes
what it did. A node that one fault has stopped or paused is left alone by others until it is back; rules on links are
stacked, so that the end of one fault does not heal another's cut. After the plan ``recover`` starts, resumes and
heals all that is left, whatever happened before.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import trio

from moldau_jepsen.chaos.links import CLIENT, OPEN, Link, LinkRule, Links
from moldau_jepsen.chaos.schedule import FaultKind, PlannedFault, Target, choose_nodes, ring_cuts
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.spec import LauncherError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from moldau_jepsen.launcher.spec import Node

CONTROLLER_SHARE = 0.35
"""Share of faults on processes and links that strike controllers; the others strike brokers."""
SLOW_MS = (20.0, 400.0)
RESET_EVERY_S = (0.2, 2.0)
ACTION_TIMEOUT_S = 60.0


class Cluster(Protocol):
    """What the nemesis needs of ``moldau_jepsen.launcher.LocalCluster``; all calls block."""

    @property
    def brokers(self) -> Sequence[Node]: ...

    @property
    def controllers(self) -> Sequence[Node]: ...

    def state(self, node_id: int) -> ProcessState: ...

    def kill(self, node_id: int) -> None: ...

    def pause(self, node_id: int) -> None: ...

    def resume(self, node_id: int) -> None: ...

    def stop_node(self, node_id: int) -> bool: ...

    def launch(self, node_id: int) -> None: ...


class InThread(Protocol):
    """Runs a blocking call outside the event loop, as ``trio.to_thread.run_sync`` does."""

    def __call__(self, function: Callable[[int], object], node_id: int, /) -> Awaitable[object]: ...


class Operations(Protocol):
    """Administrative operations that run as faults, and the questions that name the leaders."""

    async def broker_leaders(self) -> list[int]:
        """Ids of the brokers that lead a partition of the workload now; empty when nobody knows."""
        ...

    async def active_controller(self) -> list[int]:
        """Id of the active controller, empty when nobody knows."""
        ...

    async def reassign(self, draw: random.Random) -> str:
        """Moves a drawn partition of the workload to drawn brokers; returns what was asked, for the report."""
        ...

    async def elect_preferred(self) -> str:
        """Elects the preferred leader of every partition of the workload; returns what was asked, for the report."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEvent:
    """A fault as it happened; times are milliseconds since the start of the run."""

    kind: str
    target: str
    nodes: tuple[int, ...]
    begin_ms: float
    end_ms: float
    detail: str = ""


class Nemesis:
    """The one that harms. All methods belong to one ``trio.run``; blocking calls of the cluster go through threads."""

    def __init__(
        self,
        cluster: Cluster,
        links: Links | None,
        operations: Operations,
        report: Callable[[FaultEvent], None],
        *,
        in_thread: InThread = trio.to_thread.run_sync,
    ) -> None:
        """Without ``links`` the faults on links are refused when they strike. ``in_thread`` runs blocking calls."""
        self._cluster = cluster
        self._links = links
        self._operations = operations
        self._report = report
        self._taken: dict[int, FaultKind] = {}
        self._imposed: dict[Link, list[tuple[int, LinkRule]]] = {}
        self._in_thread = in_thread
        self._tokens = itertools.count()
        self._processes = trio.Lock()  # the launcher is not for several threads at once

    async def run(self, plan: Sequence[PlannedFault]) -> None:
        """Carries out the plan, from now on; returns when the last fault has ended. Call ``recover`` afterwards.

        Raises ``LauncherError`` when a node does not come back.
        """
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for fault in plan:
                nursery.start_soon(self._carry_out, fault, started)

    async def recover(self) -> None:
        """Heals all links, resumes and starts all nodes. Raises ``LauncherError`` when a node does not come back."""
        self._imposed.clear()
        if self._links is not None:
            self._links.heal()
        for node in (*self._cluster.controllers, *self._cluster.brokers):
            await self._bring_back(node.node_id)
        self._taken.clear()

    async def _bring_back(self, node_id: int) -> None:
        state = await self._call(self._cluster.state, node_id)
        if state is ProcessState.PAUSED:
            await self._call(self._cluster.resume, node_id)
        elif state is ProcessState.STOPPED:
            await self._call(self._cluster.launch, node_id)

    async def _call(self, function: Callable[[int], object], node_id: int) -> object:
        async with self._processes:
            with trio.fail_after(ACTION_TIMEOUT_S):
                return await self._in_thread(function, node_id)

    # -- one fault ----------------------------------------------------------------------------------------------------

    async def _carry_out(self, fault: PlannedFault, started: float) -> None:
        draw = random.Random(fault.seed)
        await trio.sleep_until(started + fault.begin_ms / 1000)
        end = started + fault.end_ms / 1000
        begun_ms = (trio.current_time() - started) * 1000
        nodes: list[int] = []
        detail = ""
        match fault.kind:
            case FaultKind.REASSIGN:
                detail = await self._operations.reassign(draw)
            case FaultKind.ELECT:
                detail = await self._operations.elect_preferred()
            case FaultKind.KILL | FaultKind.PAUSE | FaultKind.RESTART:
                nodes = await self._strike_processes(fault, draw, end)
            case _:
                nodes, detail = await self._strike_links(fault, draw, end)
        self._report(
            FaultEvent(
                kind=fault.kind.value,
                target=fault.target.value,
                nodes=tuple(nodes),
                begin_ms=begun_ms,
                end_ms=(trio.current_time() - started) * 1000,
                detail=detail,
            )
        )

    async def _choose(self, fault: PlannedFault, draw: random.Random) -> tuple[list[int], list[int]]:
        """Returns the struck nodes and all nodes of their role."""
        if draw.random() < CONTROLLER_SHARE:
            role = [node.node_id for node in self._cluster.controllers]
            leaders = await self._operations.active_controller() if fault.target is Target.LEADERS else []
        else:
            role = [node.node_id for node in self._cluster.brokers]
            leaders = await self._operations.broker_leaders() if fault.target is Target.LEADERS else []
        return choose_nodes(fault.target, role, leaders, draw), role

    async def _strike_processes(self, fault: PlannedFault, draw: random.Random, end: float) -> list[int]:
        chosen, _ = await self._choose(fault, draw)
        struck = [node_id for node_id in chosen if node_id not in self._taken]
        for node_id in struck:
            self._taken[node_id] = fault.kind
        if fault.kind is FaultKind.RESTART:
            for node_id in struck:
                await self._call(self._cluster.stop_node, node_id)
                await self._call(self._cluster.launch, node_id)
        else:
            strike = self._cluster.kill if fault.kind is FaultKind.KILL else self._cluster.pause
            for node_id in struck:
                await self._call(strike, node_id)
            await trio.sleep_until(end)
            for node_id in struck:
                await self._bring_back(node_id)
        for node_id in struck:
            del self._taken[node_id]
        return struck

    async def _strike_links(self, fault: PlannedFault, draw: random.Random, end: float) -> tuple[list[int], str]:
        if self._links is None:
            raise LauncherError(f"fault {fault.kind.value} needs a cluster whose links pass proxies")
        struck, role = await self._choose(fault, draw)
        if fault.kind is FaultKind.RESET:
            count = 0
            while trio.current_time() < end:
                count += self._links.reset(struck)
                await trio.sleep(min(draw.uniform(*RESET_EVERY_S), max(0.0, end - trio.current_time())))
            return struck, f"{count} connections"
        rules, detail = self._rules_of(fault, draw, struck, role)
        token = next(self._tokens)
        for link, rule in rules:
            self._impose(link, token, rule)
        await trio.sleep_until(end)
        for link, _ in rules:
            self._lift(link, token)
        return struck, detail

    def _rules_of(
        self, fault: PlannedFault, draw: random.Random, struck: Sequence[int], role: Sequence[int]
    ) -> tuple[list[tuple[Link, LinkRule]], str]:
        members = [node.node_id for node in (*self._cluster.controllers, *self._cluster.brokers)]
        cut = LinkRule(cut=True)
        if fault.target is Target.RING:
            pairs = ring_cuts(sorted(role))
            return [(Link(a, b), cut) for one, other in pairs for a, b in ((one, other), (other, one))], ""
        others = [member for member in members if member not in struck]
        if fault.kind is FaultKind.ISOLATE:
            others.append(CLIENT)
        if fault.kind is FaultKind.SLOW:
            rule = LinkRule(delay_ms=round(draw.uniform(*SLOW_MS), 1))
            return [(Link(node, other), rule) for node in struck for other in (*others, CLIENT)], f"{rule.delay_ms} ms"
        rules = [(Link(node, other), cut) for node in struck for other in others]
        if fault.kind is not FaultKind.CUT_ONE_WAY:
            rules += [(Link(other, node), cut) for node in struck for other in others]
        return rules, ""

    # -- rules of several faults on one link --------------------------------------------------------------------------

    def _impose(self, link: Link, token: int, rule: LinkRule) -> None:
        assert self._links is not None
        self._imposed.setdefault(link, []).append((token, rule))
        self._links.set_rule(link, rule)

    def _lift(self, link: Link, token: int) -> None:
        assert self._links is not None
        left = [entry for entry in self._imposed.get(link, []) if entry[0] != token]
        self._imposed[link] = left
        self._links.set_rule(link, left[-1][1] if left else OPEN)
