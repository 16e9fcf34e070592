"""Goal: the syncs of a deposed leader return after it has dropped what only it had, and count for nothing.

Method: a leader of the quorum that appends while the fault lasts; whole runs with cut logs of partitions.
"""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.coverage.coverage import Transition
from moldau_jepsen.coverage.situations import Situation, situations_watched
from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.seed import run_seed
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.simulation.mutants.pressed import LATE_SYNCS
from moldau_jepsen.world.world import run_world

LASTS = 4.0
ENTRY = b"of a leader that was cut off"


def links_cut(world):
    network = world.network
    hosts = network.host_names
    return {(one, other) for one in hosts for other in hosts if one != other and network._link(one, other).cut}


async def deposed(world, counts):
    """Returns whether the old leader was synced before, while and after it dropped its entry, and if that is gone."""
    cluster = SimulatedCluster(world, ClusterShape(brokers=1))
    cluster.start_all()
    await cluster.wait_healthy(60)
    injector = FaultInjector(cluster, ["client"], synced=True, fault_scope=FaultScope.CONTROLLERS)
    old = cluster.active_controller()
    others = [node_id for node_id in cluster.controller_ids if node_id != old]
    log = cluster.controllers[old].log
    fault = PlannedFault(kind=FaultKind.LATE_SYNC, begin=0.0, end=LASTS, number=0)
    injector.schedule([fault], trio.current_time())
    await trio.sleep(0.001)
    pairs = [pair for other in others for pair in ((old, other), (other, old))]
    assert links_cut(world) == {(cluster.host(one), cluster.host(other)) for one, other in pairs}
    position = log.propose_nowait(ENTRY, epoch=log.leadership.epoch).position
    core = log.node.core
    await trio.sleep(LASTS - 0.1)
    assert links_cut(world) == set(), "others lead, so it hears them again"
    assert log.leadership.leader_id in others
    assert core.log.epoch_at(position.index) != position.epoch, "its entry is gone"
    under_way = [core.durable_index < position.index]
    await trio.sleep(1.0)
    under_way.append(core.durable_index < position.index)
    await cluster.wait_healthy(60)
    return under_way, injector.effective, +counts


def test_a_deposed_controller_drops_an_entry_under_its_sync():
    counts = Counter()
    with situations_watched(counts):
        under_way, effective, found = run_world(lambda world: deposed(world, counts), 1)
    assert under_way == [True, False]
    assert effective == {"late-sync": 1}
    assert found[Situation.QUORUM_CUT_DURING_SYNC] >= 1


@pytest.mark.proof
def test_deposed_brokers_cut_logs_under_their_syncs():
    found = 0
    for seed in (1, 2, 3):
        result = run_seed(seed, LATE_SYNCS.of_seed(seed))
        assert result.passed, result.violations
        found += result.coverage.transitions[Transition("rare situations", "(start)", Situation.CUT_DURING_SYNC.value)]
    assert found >= 3
