"""Goal: a fault counts as effective when it changed a node, and only as planned when it had no target.

Method: simulated clusters. Kinds strike late, and without a target: nodes that are down already, brokers that must be
spared, disks that are given no errors, moves that are not answered. ``test_fault_actions`` counts those with a target.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter

import pytest
import trio

from moldau.runtime.ports.environment import OpenMode
from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.options import RunOptions
from moldau_jepsen.simulation.campaign.seed import run_seed
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.world.world import run_world

UNDER_LOAD = (FaultKind.BIT_ROT, FaultKind.CRASH_POINT)
"""They strike what clients write: segments that have filled, and a process after some writes."""
KILLS = (FaultKind.KILL, FaultKind.POWER, FaultKind.HANG, FaultKind.CRASH_POINT, FaultKind.RESTART, FaultKind.PAUSE)


async def strike(world, injector, kinds, seconds=1.0):
    """Strikes with each kind alone; returns which took effect. The numbers of the faults seed the choice of targets."""
    first = sum(injector.begun.values())
    before = injector.effective
    for number, kind in enumerate(kinds, first):
        injector.schedule([PlannedFault(kind=kind, begin=0.0, end=seconds, number=number)], trio.current_time())
        await trio.sleep(seconds + 0.1)
    return injector.effective - before


@pytest.mark.proof
def test_a_delayed_strike_counts_at_its_time():
    faults = tuple(
        PlannedFault(kind=kind, begin=begin, end=8.0, number=number)
        for number, (kind, begin) in enumerate(zip(UNDER_LOAD, (2.0, 4.0), strict=True))
    )
    shape = ClusterShape(settings={"log.segment.bytes": "2048"})
    options = RunOptions(faults=faults, shape=shape, fault_seconds=9.0, pipe=False, transactions=False, synced=True)
    result = run_seed(3, options)
    assert result.passed, result.violations
    assert result.planned_by_kind == result.faults_by_kind == {"bit-rot": 1, "crash-point": 1}
    assert result.faults == 2


async def armed_for(world):
    """Returns what the crash points of several faults count until they strike: writes, sends, or neither."""
    cluster = SimulatedCluster(world, ClusterShape(controllers=1, brokers=1))
    cluster.start_all()
    await cluster.wait_healthy(60)
    injector = FaultInjector(cluster, ["client"], synced=True)
    found = []
    for number in range(30):
        fault = PlannedFault(kind=FaultKind.CRASH_POINT, begin=0.0, end=0.001, number=number)
        injector.schedule([fault], trio.current_time())
        await trio.sleep(0.0005)
        ports = [machine._disk_port for machine in cluster.machines.values() if machine.is_running]
        hosts = [world.network.host(machine.name) for machine in cluster.machines.values()]
        found.append((sum(port._crash_after > 0 for port in ports), sum(host._sends_left > 0 for host in hosts)))
        await trio.sleep(0.001)
        assert not any(host._sends_left for host in hosts)
        await cluster.wait_healthy(60)
    return Counter(found)


def test_a_crash_point_counts_writes_or_sends():
    found = run_world(armed_for, 5)
    writes, sends = found.pop((1, 0)), found.pop((0, 1))
    assert writes > sends > 3
    assert set(found) <= {(0, 0)}, "it may have taken effect already"


async def without_targets(world):
    cluster = SimulatedCluster(world, ClusterShape(controllers=1))
    cluster.start_all()
    await cluster.wait_healthy(60)
    await cluster.create_topic(world.node("client").environment, "flights", 1, {})  # something to move
    injector = FaultInjector(cluster, ["client"], synced=False, fault_scope=FaultScope.BROKERS)
    found = {}
    for node_id in cluster.broker_ids:
        cluster.kill(node_id)
    # At its end the first fault would restart nodes that the next one must find down.
    injector.targets.start = lambda nodes: None
    found["down"] = await strike(world, injector, KILLS)
    injector = FaultInjector(cluster, ["client"], synced=False, fault_scope=FaultScope.BROKERS)
    await cluster.wait_healthy(60)
    injector.targets.safekeeping.needs = lambda node_id: True
    spared = [FaultKind.KILL, FaultKind.KILL_MANY, FaultKind.HANG, FaultKind.DISK_FULL, FaultKind.DISK_ERROR]
    spared += [FaultKind.READ_ERROR, FaultKind.CRASH_POINT, FaultKind.POWER]
    found["spared"] = await strike(world, injector, spared)
    injector.targets.safekeeping.refusal = lambda node_id: "not now"
    refused = [FaultKind.POWER_UNSYNCED, FaultKind.BIT_ROT, FaultKind.MOVE_DIRECTORY, FaultKind.DIRECTORY]
    found["refused"] = await strike(world, injector, refused)
    cluster.kill(101)
    found["unanswered"] = await strike(world, injector, [FaultKind.VOTERS, FaultKind.REASSIGN, FaultKind.ELECT], 8.0)
    return found, injector.begun


def test_a_fault_without_a_target_is_only_planned():
    found, begun = run_world(without_targets, 5)
    assert found == {"down": Counter(), "spared": Counter(), "refused": Counter(), "unanswered": Counter()}
    assert begun.total() == 15


async def errors_of_a_disk(world):
    """Strikes disks that are in use often enough for every pair of rates."""
    cluster = SimulatedCluster(world, ClusterShape(controllers=1))
    injector = FaultInjector(cluster, ["client"], synced=True)
    profiles = [machine.disk.profile for machine in cluster.machines.values()]
    files = [machine.environment.disk.open("/f", OpenMode.CREATE) for machine in cluster.machines.values()]
    seen = []
    for _ in range(40):
        before = injector.effective.total()
        number = injector.begun.total()
        fault = PlannedFault(kind=FaultKind.DISK_ERROR, begin=0.0, end=0.1, number=number)
        injector.targets.start = lambda nodes: None
        injector.schedule([fault], trio.current_time())
        await trio.sleep(0.05)
        rates = any(each.write_error_probability or each.sync_error_probability for each in profiles)
        assert injector.effective.total() == before, "no node is affected yet"
        for file in itertools.islice(itertools.cycle(files), 1000 * len(files)):
            with contextlib.suppress(OSError):
                file.write_at(0, b"x")
                file.sync()
            if injector.effective.total() > before:
                break
        seen.append((rates, injector.effective.total() - before))
        await trio.sleep(0.1)
    return seen


def test_a_disk_that_was_given_no_errors_was_not_affected():
    seen = run_world(errors_of_a_disk, 5)
    assert set(seen) == {(True, 1), (False, 0)}
