"""Goal: packets that are held back arrive after later ones; the fault is drawn only where they must change nothing.

Method: one link of a world, with a connection from before the fault and one from after it; the plans of many seeds.
"""

from __future__ import annotations

import trio

from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.options import (
    RunOptions,
    drawn_quotas,
    drawn_security,
    drawn_transaction_level,
    planned_faults,
)
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.simulation.inject.link_faults import HELD_BACK_SECONDS
from moldau_jepsen.world.world import run_world

PORT = 9_092


async def arrivals(world):
    """Sends two bytes during the fault and after it; returns when they arrive after its end, and what was slow."""
    cluster = SimulatedCluster(world, ClusterShape(brokers=1, controllers=1))
    network = world.network
    injector = FaultInjector(cluster, ["client"], synced=True)
    fault = PlannedFault(kind=FaultKind.HELD_BACK, begin=0.0, end=1.0, number=3)
    hosts = ("client", "broker-1", "controller-101")
    pairs = [(one, other) for one in hosts for other in hosts if one != other]
    arrived = {}

    async def receive(listener):
        while True:
            connection = await listener.accept()
            nursery.start_soon(read, connection)

    async def read(connection):
        buffer = memoryview(bytearray(1))
        while True:
            await connection.wait_readable()
            if not connection.receive_into_nowait(buffer):
                return
            arrived[bytes(buffer)] = trio.current_time()

    async with trio.open_nursery() as nursery:
        for host in hosts:
            nursery.start_soon(receive, await world.node(host).environment.network.listen(host, PORT))
        early = {pair: await world.node(pair[0]).environment.network.connect(pair[1], PORT) for pair in pairs}
        start = trio.current_time()
        injector.schedule([fault], start)
        await trio.sleep(0.5)
        (slow,) = [pair for pair in pairs if network._link(*pair).extra_delay]
        await early[slow].send_all([b"h"])
        await trio.sleep(1.0)
        late = await world.node(slow[0]).environment.network.connect(slow[1], PORT)
        await late.send_all([b"n"])
        await trio.sleep(1.0)
        assert list(arrived) == [b"n"], "the new connection overtakes"
        await trio.sleep(HELD_BACK_SECONDS[1])
        nursery.cancel_scope.cancel()
    return arrived[b"h"] - start, injector.effective


def test_what_was_sent_during_the_fault_arrives_long_after_it():
    seconds, effective = run_world(arrivals, 2)
    assert HELD_BACK_SECONDS[0] <= seconds <= HELD_BACK_SECONDS[1] + 1.0
    assert effective["held-back"] == 1


def test_packets_are_held_back_where_they_change_nothing():
    options = RunOptions(transaction_level=None, security=None, quotas=None)
    drawn = 0
    for seed in range(300):
        held = any(fault.kind is FaultKind.HELD_BACK for fault in planned_faults(seed, options))
        drawn += held
        unfit = drawn_transaction_level(seed, options) == 1 or drawn_security(seed, options)
        assert not (held and (unfit or drawn_quotas(seed, options)))
    assert 30 < drawn < 90


def test_later_kinds_shift_no_earlier_plan():
    later = (FaultKind.HELD_BACK, FaultKind.POWER_TRUNCATED)
    older = tuple(kind for kind in RunOptions().kinds if kind not in later)
    for seed in range(50):
        with_them = planned_faults(seed, RunOptions())
        kept = [fault for fault in with_them if fault.kind not in later]
        assert kept == planned_faults(seed, RunOptions(kinds=older))
