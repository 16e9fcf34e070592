"""Goal: the description of a consumer group names all owners of partitions."""

from __future__ import annotations

from moldau.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from support.coordinator.consumer_world import GROUP, ConsumerClient
from support.coordinator.group_world import CoreDriver


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
