"""Goal: every kind of fault strikes, counts as effective, leaves nothing behind, and the cluster heals.

Method: one simulated cluster; each kind strikes alone, its effect is looked for in the world, it ends, and the cluster
must become healthy again. ``test_fault_shapes`` checks the targets and the effect of each kind.
"""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
import trio

from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.ports.objects import ObjectStoreError
from moldau_jepsen.cluster.simulated import ClusterNotReadyError, ClusterShape, SimulatedCluster
from moldau_jepsen.faults.kinds import SIMULATED_KINDS, FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.options import RunOptions, drawn_directories, planned_faults
from moldau_jepsen.simulation.campaign.seed import run_seed
from moldau_jepsen.simulation.inject.faults import NEEDS_DIRECTORIES, NEEDS_STORE, FaultScope
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.simulation.inject.process_faults import HANG_SECONDS, HANG_SECONDS_GOING_ON
from moldau_jepsen.world.disk.disk_profile import Trouble
from moldau_jepsen.world.world import run_world

CALM = {"paused": [], "down": [], "cut": [], "slow": [], "lossy": [], "disks": [], "rates": [], "store": []}

VISIBLE = {
    FaultKind.KILL: "down",
    FaultKind.KILL_LEADER: "down",
    FaultKind.KILL_MANY: "down",
    FaultKind.POWER: "down",
    FaultKind.POWER_ALL: "down",
    FaultKind.PAUSE: "paused",
    FaultKind.HANG: "paused",
    FaultKind.CUT: "cut",
    FaultKind.CUT_ONE_WAY: "cut",
    FaultKind.HALVES: "cut",
    FaultKind.BRIDGE: "cut",
    FaultKind.RING: "cut",
    FaultKind.LINK: "cut",
    FaultKind.BLIND: "cut",
    FaultKind.SLOW: "slow",
    FaultKind.HELD_BACK: "slow",
    FaultKind.DISK_SLOW: "disks",
    FaultKind.DISK_FULL: "disks",
    FaultKind.DIRECTORY: "disks",
    FaultKind.CLOCK_RATE: "rates",
    FaultKind.POWER_UNSYNCED: "down",
    FaultKind.LOSS: "lossy",
    FaultKind.READ_ERROR: "disks",
    FaultKind.DISK_HANGS: "disks",
    FaultKind.LATE_SYNC: "cut",
    **dict.fromkeys(NEEDS_STORE, "store"),
}
"""Kinds whose effect shows one step after their beginning. Others take time or strike by chance: see ``NOTED``."""

SHOWN_APART = {
    FaultKind.CRASH_POINT,
    FaultKind.HELD_CALL,
    FaultKind.POWER_TRUNCATED,
    FaultKind.RESET,
    FaultKind.DISK_ERROR,
    FaultKind.CLOCK_JUMP,
}
"""Kinds that strike only nodes at work; a test below shows the last one."""

UNDER_LOAD = (FaultKind.BIT_ROT, FaultKind.CRASH_POINT)
"""They strike what clients write: segments that have filled, and a process after some writes."""
RARE = (FaultKind.HELD_BACK, FaultKind.POWER_TRUNCATED, FaultKind.HELD_CALL)
"""They strike packets that a cut has stopped, a log that is truncated, and messages that a meter sees."""
OF_DISKS = (
    FaultKind.DISK_SLOW,
    FaultKind.DISK_FULL,
    FaultKind.DISK_ERROR,
    FaultKind.READ_ERROR,
    FaultKind.DIRECTORY,
    FaultKind.DISK_HANGS,
)
"""They strike at calls of a disk, and an idle cluster hardly uses its disks."""

NOTED = {
    FaultKind.RESTART: "stop",
    FaultKind.ROLL: "stop",
    FaultKind.VOTERS: "move",
    FaultKind.REASSIGN: "move",
    FaultKind.MOVE_DIRECTORY: "move",
    FaultKind.ELECT: "move",
    FaultKind.CORDON: "move",
    FaultKind.BIT_ROT: "stop",
    FaultKind.LOST_LOG: "log-loss",
}


def state_of(cluster):
    """Returns the effects of faults that are not undone."""
    network, machines = cluster.world.network, cluster.machines
    hosts = network.host_names
    links = [network._link(one, other) for one in hosts for other in hosts if one != other]
    return {
        "paused": [name for name in cluster.world.nodes if cluster.world.gate.is_paused(name)],
        "down": [node_id for node_id, machine in machines.items() if not machine.is_running],
        "cut": [link for link in links if link.cut],
        "slow": [link for link in links if link.extra_delay],
        "lossy": [link for link in links if link.loss_probability],
        "disks": [
            node_id
            for node_id, machine in machines.items()
            if machine.disk.profile.capacity_bytes < 1 << 32
            or machine.disk.profile.offload_delay_jitter > 0.001
            or machine.disk.profile.write_error_probability
            or machine.disk.profile.sync_error_probability
            or machine.disk.profile.read_error_probability
            or machine.disk.profile.failing_paths
            or machine.disk.profile.full_paths
            or machine.disk.profile.hanging_paths
        ],
        "rates": [node_id for node_id, machine in machines.items() if machine.clock._rate != 1.0],
        "store": list(cluster.world.objects.profile.troubles),
    }


async def use_disks(cluster):
    """Writes, syncs and reads a file of its own in every log directory, again and again."""
    while True:
        for node_id, machine in cluster.machines.items():
            if not machine.is_running:
                continue
            disk = machine.environment.disk
            for directory in cluster.log_directories(node_id):
                with contextlib.suppress(OSError):
                    file = disk.open(f"{directory}/used", OpenMode.WRITE)
                    file.append([b"x" * 10_000])
                    file.read(0, 1)
                    await disk.offload(file.sync)
                    disk.remove(file.path)
        await trio.sleep(0.02)


class OneByte:
    """The content of an object."""

    size_bytes = 1

    def read(self, position, count):
        return b"x"[position : position + count]


async def use_store(cluster, node_id):
    """Writes objects of its own from one machine, again and again."""
    store = cluster.machines[node_id].environment.open_objects("s3://used")
    while True:
        with contextlib.suppress(ObjectStoreError), trio.move_on_after(0.1):
            await store.put(f"used/{node_id}", OneByte())


async def every_kind(world):
    """Strikes with each kind; returns what was seen of each, failures, and the numbers of begun and effective faults.

    A fault counts as effective when it changed a node.
    """
    cluster = SimulatedCluster(world, ClusterShape(directories=2, settings={"log.flush.interval.messages": "1"}))
    cluster.start_all()
    await cluster.wait_healthy(60)
    await cluster.create_topic(world.node("client").environment, "flights", 2, {})
    injector = FaultInjector(cluster, ["client"], synced=True)
    seen = {}
    for number, kind in enumerate(SIMULATED_KINDS):
        before = len(world.trace.notes())
        injector.schedule([PlannedFault(kind=kind, begin=0.0, end=0.8, number=number)], trio.current_time())
        async with trio.open_nursery() as nursery:
            await trio.sleep(0.001)
            during = state_of(cluster)
            if kind in OF_DISKS:
                nursery.start_soon(use_disks, cluster)
            for node_id in cluster.broker_ids if kind in NEEDS_STORE else ():
                nursery.start_soon(use_store, cluster, node_id)
            await trio.sleep(0.9)
            nursery.cancel_scope.cancel()
        after = {name: left for name, left in state_of(cluster).items() if name != "down"}
        injector.end_all()
        await injector.log_losses.wait_replaced(60)
        await injector.moves.restore(60)
        await injector.replace_disks(60)
        try:
            await cluster.wait_healthy(90)
        except Exception as error:
            raise AssertionError(f"after {kind.value}") from error
        notes = [note.kind for note in world.trace.notes()[before:]]
        seen[kind] = (during, after, notes, injector.moves.voters())
    assert injector.unexplained_directories() == []
    explained = {*injector.targets.disk_errors, *injector.log_losses.victims}
    failures = [name for name, _ in world.failures if int(name.rpartition("-")[2]) not in explained]
    return seen, failures, injector.begun, injector.effective


def test_each_kind_strikes_counts_and_ends():
    seen, failures, begun, effective = run_world(every_kind, 4)
    assert failures == []
    assert begun == Counter(kind.value for kind in SIMULATED_KINDS)
    others = (*UNDER_LOAD, *RARE, FaultKind.ELECT)
    effective.pop(FaultKind.ELECT.value, None)  # it has an effect only if the faults before it have moved leaders
    assert effective == Counter(kind.value for kind in SIMULATED_KINDS if kind not in others)
    for kind, (during, after, notes, voters) in seen.items():
        assert not any(after.values()), (kind, after)
        assert voters == [101, 102, 103], kind
        if kind in VISIBLE:
            assert during[VISIBLE[kind]], (kind, during)
        if kind in NOTED:
            assert NOTED[kind] in notes, (kind, notes)
    assert set(VISIBLE) | set(NOTED) | SHOWN_APART == set(SIMULATED_KINDS)


async def jump(world):
    """Sets wall clocks several times; returns how far each is from that of a machine which faults do not strike."""
    cluster = SimulatedCluster(world, ClusterShape(brokers=1, controllers=1))
    injector = FaultInjector(cluster, ["client"], synced=True)
    right = world.node("client").clock
    faults = [PlannedFault(kind=FaultKind.CLOCK_JUMP, begin=0.0, end=0.1, number=number) for number in range(6)]
    injector.schedule(faults, trio.current_time())
    await trio.sleep(0.2)
    wrong = [machine.clock.wall_ms() - right.wall_ms() for machine in cluster.machines.values()]
    injector.end_all()
    return wrong, [machine.clock.wall_ms() - right.wall_ms() for machine in cluster.machines.values()]


def test_wall_clocks_that_were_set_are_right_at_the_end():
    wrong, left = run_world(jump, 5)
    assert any(abs(ms) > 1_000 for ms in wrong)
    assert left == [0, 0]


async def hang(world):
    """Lets a broker hang; returns what it was at each moment of the fault."""
    cluster = SimulatedCluster(world, ClusterShape())
    cluster.start_all()
    await cluster.wait_healthy(60)
    injector = FaultInjector(cluster, ["client"], synced=True, fault_scope=FaultScope.BROKERS)
    injector.schedule([PlannedFault(kind=FaultKind.HANG, begin=0.0, end=3.0, number=0)], trio.current_time())
    seen = []
    for seconds in (HANG_SECONDS / 2, HANG_SECONDS / 2 + HANG_SECONDS_GOING_ON / 2, HANG_SECONDS_GOING_ON, 1.5):
        await trio.sleep(seconds)
        state = state_of(cluster)
        seen.append((len(state["paused"]), len(state["down"])))
    await cluster.wait_healthy(60)
    return seen


def test_a_hung_node_resumes_shortly_before_its_kill():
    assert run_world(hang, 5) == [(1, 0), (0, 0), (0, 1), (0, 0)]


@pytest.mark.proof
def test_a_failed_directory_moves_its_replicas():
    """A directory fails alone, its replicas move, and the broker comes back with all of them."""
    faults = (
        PlannedFault(kind=FaultKind.DIRECTORY, begin=1.0, end=4.0, number=0),
        PlannedFault(kind=FaultKind.MOVE_DIRECTORY, begin=1.5, end=6.0, number=1),
    )
    options = RunOptions(
        directories=2, fault_seconds=8.0, fault_scope=FaultScope.BROKERS, pipe=False, transactions=False, faults=faults
    )
    result = run_seed(3, options)
    assert result.passed, result.violations
    lines = [line.split(maxsplit=2) for line in result.timeline]
    (affected,) = [rest.split() for _, _, rest in lines if rest.startswith("directory    ")]
    _, host, path, _ = affected
    node = host.rpartition("-")[2]
    reported = [rest for _, _, rest in lines]
    failed = next(i for i, text in enumerate(reported) if "log-directory-failed" in text)
    assert f"node={node} directory={path} " in reported[failed]
    exits = [i for i, text in enumerate(reported) if text.startswith("exit ")]
    assert [reported[i].split() for i in exits] == [["exit", host, "1", "normally"]], "only the healing ended it"
    healed = next(i for i, text in enumerate(reported) if text.startswith("heal ") and text.endswith(" directory"))
    assert failed < healed < exits[0]
    assert any(text.split() == ["start", host, "2"] for text in reported[exits[0] :])
    assert any("replica-moved" in text for text in reported)


def test_faults_of_the_store_are_for_runs_with_tiered_topics():
    swarm, tiered = RunOptions(), RunOptions(tiered=True)
    drawn = [{fault.kind for fault in planned_faults(seed, tiered)} for seed in range(60)]
    assert set().union(*drawn) >= set(NEEDS_STORE)
    for seed, kinds in enumerate(drawn):
        assert {fault.kind for fault in planned_faults(seed, swarm)} == kinds - set(NEEDS_STORE)


def test_several_directories_are_drawn_for_some_seeds():
    """Several directories and their faults are drawn for a share of the seeds."""
    options = RunOptions(directories=None)
    several = [seed for seed in range(300) if drawn_directories(seed, options) > 1]
    assert 60 < len(several) < 120
    for seed in range(300):
        kinds = {fault.kind for fault in planned_faults(seed, options)}
        assert seed in several or not kinds & set(NEEDS_DIRECTORIES)
    assert any({fault.kind for fault in planned_faults(seed, options)} >= set(NEEDS_DIRECTORIES) for seed in several)


async def unexplained(world):
    """Fails a directory without a fault; returns the reported directories before and after it, and the health."""
    cluster = SimulatedCluster(world, ClusterShape(directories=2))
    cluster.start_all()
    await cluster.wait_healthy(60)
    await cluster.create_topic(world.node("client").environment, "flights", 4, {})
    injector = FaultInjector(cluster, ["client"], synced=True)
    await cluster.wait_healthy(60)
    before = injector.unexplained_directories()
    world.node("broker-2").disk.profile.failing_paths = ("/data2",)
    await trio.sleep(10)
    return before, injector.unexplained_directories(), cluster.is_healthy()


def test_a_directory_failure_without_a_fault_is_reported():
    before, after, healthy = run_world(unexplained, 6)
    assert before == []
    assert after == ["broker-2: /data2"]
    assert not healthy


async def stopped_while_its_disk_hangs(world):
    """Returns whether a node runs that had not ended yet when everything was healed."""
    cluster = SimulatedCluster(world, ClusterShape(controllers=1, brokers=1))
    cluster.start_all()
    await cluster.wait_healthy(60)
    injector = FaultInjector(cluster, ["client"], synced=True)
    node_id = cluster.controller_ids[0]
    machine = cluster.machines[node_id]
    machine.disk.profile.begin(Trouble(on_effect=lambda: None, hanging_paths=tuple(cluster.log_directories(node_id))))
    with pytest.raises(ClusterNotReadyError):
        await cluster.create_topic(world.node("client").environment, "flights", 1, {}, 1.0)
    cluster.stop(node_id)
    await trio.sleep(5)
    assert cluster.is_stopping(node_id), "its write hangs"
    injector.end_all()
    await machine.wait_ended()
    await trio.sleep(1)
    return machine.is_running


def test_a_node_that_still_stops_is_started_by_healing():
    """Before all nodes are healthy, others wait for it, for example the one that makes it a voter again."""
    assert run_world(stopped_while_its_disk_hangs, 1)
