"""Goal: requests that change nothing leave a consumer group as it is, and its description names all owners."""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau_broker.coordinator.group.core.config import GroupConfig
from support.coordinator.consumer_world import GROUP, ConsumerClient
from support.coordinator.group_world import Consumer, CoreDriver, join_request
from support.coordinator.migration_world import subscription_bytes


def world() -> CoreDriver:
    driver = CoreDriver()
    driver.topics.counts = {"t": 4}
    return driver


def describe(driver: CoreDriver) -> DescribedGroup:
    answer = driver.ask(ConsumerGroupDescribeRequest(group_ids=[GROUP]), 1)
    assert isinstance(answer, ConsumerGroupDescribeResponse)
    return answer.groups[0]


def numbers(group: DescribedGroup, member: int) -> list[int]:
    return [number for each in group.members[member].assignment.topic_partitions for number in each.partitions]


def test_a_member_owns_what_it_has_not_released() -> None:
    """It may still read these partitions, and no other member gets them."""
    driver = world()
    a, b = ConsumerClient(driver, "a"), ConsumerClient(driver, "b")
    a.beat()
    b.beat()
    a.send()
    a.take()
    assert len(a.given) == 2
    assert (numbers(describe(driver), 0), numbers(describe(driver), 1)) == ([0, 1, 2, 3], [])


def test_a_refused_classic_member_ends_no_empty_group() -> None:
    """It names an id that no classic group knows; its group keeps type and epoch."""
    driver = world()
    a = ConsumerClient(driver, "a")
    a.beat()
    a.leave()
    before = describe(driver)
    classic = Consumer(driver)
    classic.member_id = "one-of-another-group"
    classic.join()
    assert classic.join_id is not None
    assert driver.answers[classic.join_id].error_code == ErrorCode.UNKNOWN_MEMBER_ID  # type: ignore[attr-defined]
    assert describe(driver) == before
    assert before.error_code == ErrorCode.NONE


def test_a_member_keeps_the_instance_that_it_no_longer_names() -> None:
    """JoinGroup before version 5 has no instance id, so the member of an older client would lose its place."""
    driver = CoreDriver(GroupConfig(migration_policy="bidirectional"))
    driver.topics.counts = {"t": 4}
    ConsumerClient(driver, "a").beat()
    metadata = subscription_bytes(driver.topics, ("t",), frozenset(), -1, 3)
    first = driver.ask(join_request(instance="i", metadata=metadata), 5)
    assert isinstance(first, JoinGroupResponse)
    again = driver.ask(join_request(first.member_id, metadata=metadata), 4)
    assert isinstance(again, JoinGroupResponse)
    assert again.error_code == ErrorCode.NONE
    assert [each.instance_id for each in describe(driver).members if each.member_id == first.member_id] == ["i"]
