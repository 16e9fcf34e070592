"""Goal: clients see the committed type of a group while its conversion is written, and afterwards what members read.

Method: the pure core, with a write that the test holds back, or with a conversion at each moment of a rebalance.
"""

from __future__ import annotations

from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau_broker.coordinator.group.consumer.core.embedded import parse_assignment
from moldau_broker.coordinator.group.core.config import GroupConfig
from support.coordinator.consumer_world import GROUP, ConsumerClient
from support.coordinator.group_world import CoreDriver, stable_group
from support.coordinator.migration_world import COOPERATIVE, EAGER, ClassicClient


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


@pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE])
def test_a_downgraded_group_shows_what_its_members_read(protocol: str) -> None:
    """The last member of the new protocol leaves at any moment; the others may have partitions yet to release then."""
    for steps in range(24):
        driver = CoreDriver(GroupConfig(migration_policy="bidirectional", initial_rebalance_delay_ms=0))
        driver.topics.counts = {"t": 6}
        members = [ClassicClient(driver, protocol) for _ in range(2)]
        for number in range(16):
            driver.pass_time(10)
            for member in members[: 1 + number // 8]:
                member.beat()
        newcomer = ConsumerClient(driver, "c")
        newcomer.beat()
        for number in range(steps):
            member = members[number % 2]
            if member.last is None:
                member.send()
            member.take()
        newcomer.leave()
        for _ in range(2):
            described = driver.ask(DescribeGroupsRequest(groups=[GROUP]), 6).groups[0]  # type: ignore[attr-defined]
            shown = {
                member.member_id: parse_assignment(bytes(member.member_assignment), driver.topics)
                for member in described.members
            }
            assert all(member.reading <= shown[member.member_id] for member in members), steps
            driver.fail_over()
