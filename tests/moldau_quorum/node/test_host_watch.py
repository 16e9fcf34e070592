"""Goal: the controller gives up a broker whose host is cut off soon, and a paused one not before its session ends.

Method: the watch on the simulated network and virtual time, with hosts that are cut, paused, or listen to nothing.
"""

from __future__ import annotations

import trio

from moldau_jepsen.world.world import run_world
from moldau_quorum.controller.cluster.sessions import BrokerSessions
from moldau_quorum.node.host_watch import COMPARED, ROUND_MS, HostWatch

UNREACHABLE_MS = 3_000.0
BEAT_MS = 2_000.0


class Watched:
    """A watch over some brokers, each of which sends heartbeats until it is silent."""

    def __init__(self, world, brokers):
        self.world = world
        self.environment = world.node("controller").environment
        self.sessions = BrokerSessions(timeout_ms=9_000, grace_ms=250)
        self.silent = set()
        self.lost = []
        self.attempts = 0
        self.watch = HostWatch(
            self.environment,
            self.sessions,
            unreachable_ms=UNREACHABLE_MS,
            address=self._address,
            lost=lambda broker: self.lost.append((broker, self.now_ms)),
        )
        self.brokers = brokers

    @property
    def now_ms(self):
        return self.environment.clock.monotonic_ms()

    def _address(self, broker):
        self.attempts += 1
        return f"b{broker}", 9092

    async def beat(self, broker):
        while True:
            if broker not in self.silent:
                self.sessions.touch(broker, 1, self.now_ms, connection=None)
                self.watch.sessions_began()
            await trio.sleep(BEAT_MS / 1000)

    def cut(self, *brokers):
        self.world.network.cut_between(["controller"], [f"b{broker}" for broker in brokers])
        self.silent.update(brokers)


def watched(scenario, brokers=(1, 2, 3)):
    async def main(world):
        watch = Watched(world, brokers)
        for broker in brokers:
            await world.node(f"b{broker}").environment.network.listen(f"b{broker}", 9092)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.watch.run)
            for broker in brokers:
                nursery.start_soon(watch.beat, broker)
            await trio.sleep(0.1)  # just after the heartbeats: the worst time
            await scenario(watch)
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_a_cut_host_is_lost_after_the_time_that_is_set():
    async def scenario(watch):
        watch.cut(1)
        heard_ms = watch.sessions.get(1).heard_ms
        await trio.sleep(2.9)
        assert watch.lost == [] or watch.lost[0][1] - heard_ms >= UNREACHABLE_MS
        await trio.sleep(0.5)
        broker, lost_ms = watch.lost[0]
        assert broker == 1
        assert UNREACHABLE_MS <= lost_ms - heard_ms < UNREACHABLE_MS + 2 * ROUND_MS

    watched(scenario)


def test_a_paused_broker_is_not_lost():
    """Its kernel accepts connections."""

    async def scenario(watch):
        watch.world.node("b1").pause()
        watch.silent.add(1)
        await trio.sleep(8)
        assert watch.lost == []
        assert watch.attempts > 0

    watched(scenario)


def test_a_controller_without_network_loses_no_broker():
    async def scenario(watch):
        watch.cut(1, 2, 3)
        await trio.sleep(8)
        assert watch.lost == []

    watched(scenario)


def test_one_broker_alone_is_not_lost():
    async def scenario(watch):
        watch.cut(1)
        await trio.sleep(8)
        assert watch.lost == []

    watched(scenario, brokers=(1,))


def test_a_short_cut_changes_nothing():
    async def scenario(watch):
        watch.cut(1)
        await trio.sleep(2.5)
        watch.world.network.heal_all()
        watch.silent.clear()
        await trio.sleep(8)
        assert watch.lost == []

    watched(scenario)


def test_a_broker_that_is_heard_in_the_last_round_is_not_lost():
    """Its host still accepts nothing, but its heartbeat has found a way."""

    async def scenario(watch):
        watch.cut(1)
        heard_ms = watch.sessions.get(1).heard_ms
        await trio.sleep((heard_ms + UNREACHABLE_MS - ROUND_MS / 3 - watch.now_ms) / 1000)
        watch.sessions.touch(1, 1, watch.now_ms, connection=None)
        await trio.sleep(1)
        assert watch.lost == []
        await trio.sleep(3)
        assert [broker for broker, _ in watch.lost][:1] == [1]

    watched(scenario)


def test_brokers_that_are_heard_cost_no_attempts():
    async def scenario(watch):
        await trio.sleep(30)
        assert watch.attempts == 0
        watch.cut(1)
        await trio.sleep(2.9)
        assert watch.attempts <= 4 * (1 + COMPARED)

    watched(scenario, brokers=tuple(range(1, 10)))
