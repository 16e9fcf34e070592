"""Goal: filters of partitions mean what those of ``kafka-topics`` mean. Method: pure functions on made partitions."""

import pytest

from moldau.admin import PartitionDescription
from moldau_cli.errors import UsageError
from moldau_cli.plans.partitions import Trouble, has_trouble, parse_assignment


def troubles(isr, replicas=(1, 2, 3), leader=1, adding=0, brokers=(1, 2, 3)):
    part = PartitionDescription(partition=0, leader=leader, leader_epoch=1, replicas=replicas, isr=isr)
    return [
        trouble.name for trouble in Trouble if has_trouble(part, trouble, min_isr=2, adding=adding, brokers=brokers)
    ]


def test_replicas_out_of_sync():
    assert troubles((1, 2, 3)) == []
    assert troubles((1, 2)) == ["UNDER_REPLICATED", "AT_MIN_ISR"]
    assert troubles((1,)) == ["UNDER_REPLICATED", "UNDER_MIN_ISR"]


def test_replicas_that_are_being_added_may_lag():
    assert troubles((1, 2, 3), replicas=(1, 2, 3, 4), adding=1) == []


def test_a_leader_must_live():
    assert troubles((1, 2, 3), leader=-1) == ["UNAVAILABLE"]
    assert troubles((1, 2, 3), brokers=(2, 3)) == ["UNAVAILABLE"]


def test_assignments_in_kafkas_notation():
    assert parse_assignment("1:2,2:3") == {0: [1, 2], 1: [2, 3]}
    assert parse_assignment("3", first=4) == {4: [3]}


@pytest.mark.parametrize("text", ["", "1:", "1:1", "1,2:3", "a"])
def test_wrong_assignments(text):
    with pytest.raises(UsageError, match="--replica-assignment"):
        parse_assignment(text)
