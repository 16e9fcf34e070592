"""Goal: a voter that drops the uncommitted end of its log loses power, and comes back with the quorum's log.

Method: three voters. The leader appends while it is cut off, and drops its entry when it hears its successor. Topics
make the voters write.
"""

from __future__ import annotations

import pytest
import trio

from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.simulation.inject.truncations import WRITES_MAX
from moldau_jepsen.world.world import run_world

LASTS = 10.0
ENTRY = b"of a leader that was cut off"


async def deposed_leader(world, scope):
    """Returns whether the old leader alone went down, how many faults took effect, and whether its entry is gone."""
    cluster = SimulatedCluster(world, ClusterShape(brokers=1))
    cluster.start_all()
    await cluster.wait_healthy(60)
    injector = FaultInjector(cluster, ["client"], synced=True, fault_scope=scope)
    old = cluster.active_controller()
    others = [node_id for node_id in cluster.controller_ids if node_id != old]
    links = [pair for other in others for pair in ((old, other), (other, old))]
    for one, other in links:
        world.network.cut(cluster.host(one), cluster.host(other))
    log = cluster.controllers[old].log
    position = log.propose_nowait(ENTRY, epoch=log.leadership.epoch).position
    while not any(cluster.controllers[other].log.leadership.active for other in others):  # noqa: ASYNC110 - no event reports it
        await trio.sleep(0.1)
    injector.schedule(
        [PlannedFault(kind=FaultKind.POWER_TRUNCATED, begin=0.0, end=LASTS, number=0)], trio.current_time()
    )
    await trio.sleep(0.1)
    for one, other in links:
        world.network.heal(cluster.host(one), cluster.host(other))
    while (running := cluster.controllers.get(old)) and running.log.leadership.leader_id not in others:  # noqa: ASYNC110
        await trio.sleep(0.1)
    for number in range(WRITES_MAX + 1):  # the writes that a voter survives at most
        await cluster.create_topic(world.node("client").environment, f"flights-{number}", 1, {})
    await trio.sleep(1)
    down = [node_id for node_id in cluster.controller_ids if not cluster.machines[node_id].is_running]
    await trio.sleep(LASTS)
    await cluster.wait_healthy(60)
    entries = cluster.controllers[old].log.node.core.log
    assert entries.last_index >= position.index
    lost = entries.base_index >= position.index or entries.epoch_at(position.index) > position.epoch
    return down == [old], injector.effective["power-truncated"], lost


@pytest.mark.parametrize("seed", [1, 2])
def test_a_deposed_leader_loses_power_as_it_truncates(seed):
    assert run_world(lambda world: deposed_leader(world, FaultScope.CONTROLLERS), seed) == (True, 1, True)


def test_voters_are_spared_by_faults_of_brokers():
    assert run_world(lambda world: deposed_leader(world, FaultScope.BROKERS), 1) == (False, 0, True)
