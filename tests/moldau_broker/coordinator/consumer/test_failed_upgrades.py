"""Goal: a classic group goes on after a failed upgrade as if its members had just to join again, in whatever phase.

Method: the log refuses the upgrade after each number of steps of a group that begins, or to which members come.
"""

from __future__ import annotations

import itertools

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.group import GroupState
from support.coordinator.consumer_world import GROUP, ConsumerClient
from support.coordinator.group_world import CoreDriver
from support.coordinator.migration_world import COOPERATIVE, EAGER, ClassicClient

DELAY_MS = 3_000


@pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_member_waits_for_time_after_a_failed_upgrade(count: int, protocol: str) -> None:
    """All members are there and ask: no delay of the first join phase is left, and no deadline ends the next one."""
    states: dict[GroupState, None] = {}
    for steps, pause_ms in itertools.product(range(4 * count), (0, DELAY_MS // 2)):
        driver = CoreDriver(GroupConfig(migration_policy="bidirectional", initial_rebalance_delay_ms=DELAY_MS))
        driver.topics.counts = {"t": 6}
        clients = [ClassicClient(driver, protocol) for _ in range(count)]
        for step in range(steps):
            clients[step % count].beat()
            driver.pass_time(pause_ms)
        group = driver.core.rebalancer.groups.get(GROUP)
        if group is None or group.state is GroupState.EMPTY:
            continue  # there is nothing to convert
        states[group.state] = None
        driver.auto_commit = False
        newcomer = ConsumerClient(driver, "c")
        newcomer.send()
        driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert newcomer.take() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        driver.auto_commit = True
        for _ in range(12):
            for client in clients:
                client.beat()
        assert driver.core.rebalancer.groups[GROUP].state is GroupState.STABLE, (steps, pause_ms)
        assert sorted(number for client in clients for number in client.numbers) == list(range(6)), (steps, pause_ms)
    assert GroupState.PREPARING_REBALANCE in states
