"""Goal: clients see the committed type of a group while its conversion is written.

Method: the pure core, with a write that the test holds back.
"""

from __future__ import annotations

from typing import Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau_broker.coordinator.group.core.config import GroupConfig
from support.coordinator.consumer_world import GROUP, ConsumerClient
from support.coordinator.group_world import CoreDriver, stable_group
from support.coordinator.migration_world import ClassicClient


def listed(driver: CoreDriver) -> list[Any]:
    answer = driver.ask(ListGroupsRequest(), 5)
    assert isinstance(answer, ListGroupsResponse)
    return list(answer.groups)


def test_a_group_is_shown_while_its_upgrade_is_written() -> None:
    """Until then it is a classic group, with its members."""
    driver = CoreDriver(GroupConfig(initial_rebalance_delay_ms=0))
    driver.topics.counts = {"t": 6}
    member = ClassicClient(driver)
    for _ in range(8):
        driver.pass_time(10)
        member.beat()
    driver.auto_commit = False
    ConsumerClient(driver, "c").send()
    assert [(group.group_type, group.group_state) for group in listed(driver)] == [("classic", "Stable")]
    described = driver.ask(DescribeGroupsRequest(groups=[GROUP]), 6).groups[0]  # type: ignore[attr-defined]
    assert (described.error_code, len(described.members)) == (ErrorCode.NONE, 1)
    driver.commit()
    assert [group.group_type for group in listed(driver)] == ["consumer"]


def test_a_group_does_not_expire_before_its_record_is_committed() -> None:
    """A group of another type took its id, and the record followed without a tombstone: the log held two groups."""
    driver = CoreDriver()
    stable_group(driver, 1)
    driver.auto_commit = False
    driver.pass_time(driver.config.offsets_retention_check_interval_ms)
    assert len(driver.uncommitted) == 1, "that the group is empty, since the session of its member has ended"
    client = ConsumerClient(driver, "c")
    client.send()
    driver.commit()
    assert client.take() is ErrorCode.NONE
    for _ in range(2):
        assert [group.group_type for group in listed(driver)] == ["consumer"]
        driver.fail_over()
