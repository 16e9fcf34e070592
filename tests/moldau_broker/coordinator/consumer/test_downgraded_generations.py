"""Goal: a classic group that follows a consumer group goes on with the newest epoch that a member was given.

Method: a static process takes the place of the last member of the consumer protocol, with each subscription.
"""

from __future__ import annotations

from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.group import GroupState
from support.coordinator.consumer_world import GROUP, ConsumerClient
from support.coordinator.group_world import CoreDriver
from support.coordinator.migration_world import COOPERATIVE, EAGER, ClassicClient


@pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE])
@pytest.mark.parametrize("topics", [("t",), ("u",), ("t", "u")])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_join_that_downgrades_a_group_gives_its_generation(
    others: int, topics: tuple[str, ...], protocol: str
) -> None:
    """A new subscription raises the group epoch in the same step; a lower generation would refuse the next request."""
    driver = CoreDriver(GroupConfig(migration_policy="bidirectional", initial_rebalance_delay_ms=0))
    driver.topics.counts = {"t": 6, "u": 2}
    clients: list[Any] = [ConsumerClient(driver, "c", instance="i")]
    clients[0].beat()
    clients += [ClassicClient(driver, protocol) for _ in range(others)]
    for _ in range(12):
        for client in clients:
            client.beat()
    clients[0] = ClassicClient(driver, protocol, topics, instance="i")
    clients[0].send()
    assert clients[0].take() is ErrorCode.NONE
    assert driver.core.consumers.get(GROUP) is None
    classic = driver.core.rebalancer.groups[GROUP]
    assert classic.generation == max(client.epoch for client in clients)
    driver.fail_over()
    clients[0].send()
    assert clients[0].take() is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(12):
        for client in clients:
            client.beat()
    assert driver.core.rebalancer.groups[GROUP].state is GroupState.STABLE
