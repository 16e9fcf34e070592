"""DescribeGroups during a rebalance."""

from __future__ import annotations

from moldau.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from support.coordinator.group_world import CoreDriver, stable_group


def test_a_rebalance_shows_the_assignments_before_it() -> None:
    """Members go on with them until they join; tools show who reads what meanwhile, as with Kafka."""
    driver = CoreDriver()
    first, _ = stable_group(driver, 2)
    first.join()
    described = driver.ask(DescribeGroupsRequest(groups=["g"]), 5)
    assert isinstance(described, DescribeGroupsResponse)
    [group] = described.groups
    assert group.group_state == "PreparingRebalance"
    assert [bytes(member.member_assignment) for member in group.members] == [b"0", b"1"]
    assert [bytes(member.member_metadata) for member in group.members] == [b"", b""]
