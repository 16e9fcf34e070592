"""Faults of processes and machines: deaths, losses of power, restarts, pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.truncations import Truncations

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from moldau_jepsen.simulation.inject.targets import Targets

CLIENT_PAUSE_PROBABILITY = 0.3
HANG_SECONDS = 1.2
HANG_SECONDS_GOING_ON = 0.4
REFUSED_AGAIN_SECONDS = 0.25
STOP_SECONDS = 10.0
SETTLE_SECONDS = 3.0
LOOK_SECONDS = 0.2
SEND_POINT_PROBABILITY = 0.3


class ProcessFaults:
    """Begins faults of processes and machines. Each action returns a function that ends it."""

    def __init__(self, targets: Targets) -> None:
        """Starts with processes that run."""
        self._targets = targets
        self._world = targets.world
        self._cluster = targets.cluster
        self.actions: Mapping[FaultKind, Callable[[random.Random], Callable[[], None]]] = {
            FaultKind.KILL: lambda draw: self._kill([draw.choice(targets.nodes)]),
            FaultKind.KILL_LEADER: lambda draw: self._kill([targets.leader(draw)]),
            FaultKind.KILL_MANY: lambda draw: self._kill(targets.several(draw)),
            FaultKind.CRASH_POINT: self._crash_point,
            FaultKind.POWER: self._power_of_one,
            FaultKind.POWER_ALL: lambda _: self._power(targets.may_lose_power),
            FaultKind.POWER_UNSYNCED: self._power_unsynced,
            FaultKind.POWER_TRUNCATED: Truncations(targets).strike,
            FaultKind.RESTART: self._restart,
            FaultKind.ROLL: self._roll,
            FaultKind.PAUSE: self._pause,
            FaultKind.HANG: self._hang,
        }

    def _mark_if_running(self, node_id: int) -> None:
        if self._cluster.machines[node_id].is_running:
            self._targets.mark()

    # --- deaths

    def _kill(self, nodes: Sequence[int]) -> Callable[[], None]:
        for node_id in self._targets.may_kill(nodes):
            self._mark_if_running(node_id)
            self._cluster.kill(node_id)
        return lambda: self._targets.start(nodes)

    def _crash_point(self, draw: random.Random) -> Callable[[], None]:
        targets, cluster = self._targets, self._cluster
        running = [node_id for node_id in targets.nodes if cluster.machines[node_id].is_running]
        node_id = draw.choice(running or targets.nodes)
        machine = cluster.machines[node_id]
        armed = machine.is_running and not targets.spares(node_id)
        if machine.is_running:
            power = node_id in targets.may_lose_power and draw.random() < 0.5
            crash = cluster.lose_power if power else cluster.kill
            took_effect = targets.mark

            def strike() -> None:
                took_effect()
                crash(node_id)

            count = draw.randint(1, 60)
            # Drawn last, so that it shifts no other draw.
            crash_after = machine.crash_after_writes
            if draw.random() < SEND_POINT_PROBABILITY:
                crash_after = machine.crash_after_sends
            if armed:
                targets.safekeeping.endanger(node_id)
                crash_after(count, strike)

        def end() -> None:
            machine.forget_crash_point()  # one that was not reached must not strike when all is to heal
            if armed:
                targets.safekeeping.secure(node_id)
            targets.start([node_id])

        return end

    def _hang(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._targets.nodes)
        if self._targets.spares(node_id):
            return lambda: None
        machine = self._cluster.machines[node_id]
        self._targets.safekeeping.endanger(node_id)
        self._mark_if_running(node_id)
        machine.pause()
        over = False

        def go_on() -> None:
            if over:
                return
            machine.resume()
            self._world.agenda.call_after(HANG_SECONDS_GOING_ON, kill)

        def kill() -> None:
            if not over:
                self._cluster.kill(node_id)

        def end() -> None:
            nonlocal over
            over = True
            machine.resume()
            self._targets.safekeeping.secure(node_id)
            self._targets.start([node_id])

        self._world.agenda.call_after(HANG_SECONDS, go_on)
        return end

    # --- power

    def _power(self, nodes: Sequence[int]) -> Callable[[], None]:
        for node_id in self._targets.may_kill(nodes):
            self._mark_if_running(node_id)
            self._cluster.lose_power(node_id)
        return lambda: self._targets.start(nodes)

    def _power_of_one(self, draw: random.Random) -> Callable[[], None]:
        nodes = self._targets.may_lose_power
        return self._power([draw.choice(nodes)] if nodes else [])

    def _power_unsynced(self, draw: random.Random) -> Callable[[], None]:
        """Cuts the power of a drawn broker as soon as other replicas hold all that it has not synced."""
        targets, cluster = self._targets, self._cluster
        if targets.fault_scope is FaultScope.CONTROLLERS:
            return lambda: None
        affected: list[int] = []
        mark = targets.mark
        over = False

        def strike() -> None:
            if over or affected:
                return
            for node_id in draw.sample(cluster.broker_ids, len(cluster.broker_ids)):
                if cluster.machines[node_id].is_running and not targets.safekeeping.refusal(node_id):
                    targets.safekeeping.lose(node_id)
                    cluster.lose_power(node_id)
                    affected.append(node_id)
                    mark()
                    self._world.trace.note("page-cache", cluster.host(node_id), "is lost")
                    return
            self._world.agenda.call_after(REFUSED_AGAIN_SECONDS, strike)

        def end() -> None:
            nonlocal over
            over = True
            targets.start(affected)

        strike()
        return end

    # --- the rest

    def _restart(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._targets.nodes)
        self._mark_if_running(node_id)
        self._cluster.stop(node_id)
        return lambda: self._targets.start([node_id])

    def _roll(self, draw: random.Random) -> Callable[[], None]:
        """Restarts the brokers one by one, each after the one before it serves; the last may not be back at the end."""
        active = True
        mark = self._targets.mark

        async def rolling() -> None:
            for node_id in draw.sample(self._cluster.broker_ids, len(self._cluster.broker_ids)):
                if not active:
                    return
                if self._cluster.machines[node_id].is_running:
                    mark()
                self._cluster.stop(node_id)
                with trio.move_on_after(STOP_SECONDS):
                    await self._cluster.machines[node_id].wait_ended()
                self._cluster.start(node_id)
                with trio.move_on_after(SETTLE_SECONDS):
                    while not self._cluster.is_healthy():  # noqa: ASYNC110 - health is polled, no event reports it
                        await trio.sleep(LOOK_SECONDS)

        def end() -> None:
            nonlocal active
            active = False

        self._world.nursery.start_soon(rolling)
        return end

    def _pause(self, draw: random.Random) -> Callable[[], None]:
        targets = self._targets
        if draw.random() < CLIENT_PAUSE_PROBABILITY and targets.fault_scope is FaultScope.ALL:
            host = draw.choice(targets.clients)
            targets.mark()
        else:
            node_id = targets.leader_or_any(draw)
            host = self._cluster.host(node_id)
            self._mark_if_running(node_id)
        machine = self._world.node(host)
        machine.pause()
        return machine.resume
