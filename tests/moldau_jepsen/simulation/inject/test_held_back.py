"""Goal: packets that are held back arrive after later ones; the fault is drawn only where they must change nothing.

Method: one link of a world, with a connection from before the fault and one from after it; the plans of many seeds.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
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
from moldau_jepsen.simulation.campaign.run import Run
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.simulation.inject.late_packets import PromptLinks
from moldau_jepsen.simulation.inject.link_faults import HELD_BACK_SECONDS
from moldau_jepsen.simulation.judge.watch import LogLines
from moldau_jepsen.world.world import derive_random, run_world
from moldau_quorum.metadata.internal_topics import TRANSACTIONS_TOPIC

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


def test_packets_are_held_back_in_runs_of_all_kinds():
    options = RunOptions(transaction_level=None, security=None, quotas=None)
    drawn = Counter()
    for seed in range(150):
        if any(fault.kind is FaultKind.HELD_BACK for fault in planned_faults(seed, options)):
            drawn["level 1"] += drawn_transaction_level(seed, options) == 1
            drawn["rights"] += drawn_security(seed, options)
            drawn["quotas"] += drawn_quotas(seed, options)
            drawn["all"] += 1
    assert 35 < drawn.pop("all") < 80
    assert min(drawn.values()) > 3, drawn


def prompt_links_of(**options):
    """Returns the links of a run that are spared, and the machines of its clients."""
    found = []

    async def main(world):
        made = Run(world, RunOptions(pipe=True, bank=True, members=True, **options), LogLines())
        found.append((made.injector.targets.prompt_links, made.clients.hosts))

    run_world(main, 1)
    return found[0]


@pytest.mark.parametrize(
    ("options", "late", "prompt"),
    [
        ({}, ["client broker-1", "broker-1 broker-2", "broker-1 controller-101"], []),
        (
            {"transaction_level": 1},
            ["member-0 broker-1", "broker-1 controller-101", "controller-101 broker-1"],
            ["client broker-1", "worker-0 broker-1", "teller-0 broker-1", "broker-1 broker-2"],
        ),
        (
            {"quotas": True},
            ["worker-0 broker-1", "broker-1 broker-2", "controller-101 controller-102"],
            ["client broker-1", "broker-1 controller-101"],
        ),
        ({"security": True}, ["teller-0 broker-1"], ["client broker-1", "broker-1 controller-101"]),
    ],
    ids=["plain", "level-1", "quotas", "rights"],
)
def test_only_requests_that_must_be_prompt_are_spared(options, late, prompt):
    links, hosts = prompt_links_of(**options)
    assert {"client", "worker-0", "teller-0", "member-0"} <= set(hosts)
    assert [pair for pair in late if not links.may_be_late(*pair.split())] == []
    assert [pair for pair in prompt if links.may_be_late(*pair.split())] == []


async def slowed_links(world):
    """Returns the links that many faults slow down where brokers answer nothing late to each other."""
    cluster = SimulatedCluster(world, ClusterShape(brokers=2, controllers=1))
    prompt = PromptLinks(clients=["client"], between_brokers=True, to_controllers=True)
    injector = FaultInjector(cluster, ["client", "member-0"], synced=True, prompt_links=prompt)
    for machine in ("client", "member-0"):
        world.node(machine)
    slowed = set()
    for number in range(40):
        fault = PlannedFault(kind=FaultKind.HELD_BACK, begin=0.0, end=0.5, number=number)
        injector.schedule([fault], trio.current_time())
        await trio.sleep(0.1)
        hosts = world.network.host_names
        pairs = [(one, other) for one in hosts for other in hosts if one != other]
        slowed |= {pair for pair in pairs if world.network._link(*pair).extra_delay}
        await trio.sleep(0.5)
    return slowed


def test_other_links_are_slow_instead_of_spared_ones():
    nodes = {"broker-1", "broker-2", "controller-101"}
    expected = {("member-0", node) for node in nodes}
    expected |= {("controller-101", broker) for broker in ("broker-1", "broker-2")}
    assert run_world(slowed_links, 2) == expected


def test_later_kinds_shift_no_earlier_plan():
    later = (
        FaultKind.HELD_BACK,
        FaultKind.POWER_TRUNCATED,
        FaultKind.DISK_HANGS,
        FaultKind.HELD_CALL,
        FaultKind.LATE_SYNC,
    )
    older = tuple(kind for kind in RunOptions().kinds if kind not in later)
    for seed in range(50):
        with_them = planned_faults(seed, RunOptions())
        kept = [fault for fault in with_them if fault.kind not in later]
        assert kept == planned_faults(seed, RunOptions(kinds=older))


def test_packets_of_clients_go_to_coordinators_mostly():
    """Half of the strikes on a client aim at a coordinator of transactions, as some broker knows it."""
    counts = Counter()
    topic = SimpleNamespace(partitions={0: SimpleNamespace(leader=2), 1: SimpleNamespace(leader=7)})
    image = SimpleNamespace(topics_by_name={TRANSACTIONS_TOPIC: topic})
    empty = SimpleNamespace(topics_by_name={})
    brokers = {1: SimpleNamespace(metadata=SimpleNamespace(image=empty))}

    async def main(world):
        cluster = SimulatedCluster(world, ClusterShape(brokers=3, controllers=1))
        injector = FaultInjector(cluster, ["client"], synced=True, fault_scope=FaultScope.BROKERS)
        cluster.brokers |= brokers
        assert injector.targets.transaction_coordinators() == []
        cluster.brokers[2] = SimpleNamespace(metadata=SimpleNamespace(image=image))
        assert injector.targets.transaction_coordinators() == [2], "only nodes that faults may choose"
        cluster.leaders = lambda: [1, 3]
        world.node("client")
        network = world.network
        for number in range(60):
            end = injector._actions[FaultKind.HELD_BACK](derive_random(1, "held", number))
            counts.update(other for other in network.host_names if network._link("client", other).extra_delay)
            end()

    run_world(main, 1)
    assert set(counts) == {"broker-1", "broker-2", "broker-3"}
    assert counts["broker-2"] > counts["broker-1"] + counts["broker-3"]
