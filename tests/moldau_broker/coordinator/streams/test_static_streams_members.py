"""Goal: a static member of a streams group that restarts gets its tasks back, and no other has them meanwhile.

Method: stories against the pure core, with virtual time; the state is read from the log again where it is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from moldau_broker.coordinator.group.streams.core.state import StreamsGroupState
from support.coordinator.streams_world import (
    GROUP,
    SESSION_MS,
    StreamsClient,
    check_group,
    group_of,
    reloaded,
    settle,
    streams_driver,
)

if TYPE_CHECKING:
    from support.coordinator.group_world import CoreDriver

EVERY_TASK = 8
"""Tasks of the word count whose topics have four partitions."""


def static_and_other(driver: CoreDriver) -> tuple[StreamsClient, StreamsClient]:
    """Returns a static and a dynamic member that share all tasks."""
    static, other = StreamsClient(driver, "a", instance="i"), StreamsClient(driver, "b")
    settle([static, other])
    assert [len(each.running.active) for each in (static, other)] == [EVERY_TASK // 2, EVERY_TASK // 2]
    return static, other


def test_a_static_member_that_restarts_keeps_its_tasks() -> None:
    driver = streams_driver(t=4)
    static, other = static_and_other(driver)
    had, epoch = static.running, group_of(driver).epoch
    again = StreamsClient(driver, "a2", process="p-a", instance="i")
    assert again.beat() is ErrorCode.UNRELEASED_INSTANCE_ID
    assert static.leave(-2) is ErrorCode.NONE
    settle([other])
    assert other.running.active.isdisjoint(had.active), "the tasks of the absent member stay reserved"
    assert group_of(driver).state is StreamsGroupState.RECONCILING
    assert again.beat() is ErrorCode.NONE
    assert again.running == had
    assert group_of(driver).epoch == epoch == again.epoch, "nothing has changed for the others"
    assert static.beat() is ErrorCode.FENCED_INSTANCE_ID
    assert reloaded(driver) == group_of(driver)
    check_group(group_of(driver))
    (group,) = driver.ask(StreamsGroupDescribeRequest(group_ids=[GROUP]), 1).groups  # type: ignore[attr-defined]
    assert [(member.member_id, member.instance_id) for member in group.members] == [("a2", "i"), ("b", None)]


def test_a_lost_leave_does_not_lock_a_static_member_out() -> None:
    """With the same id it is the same consumer: it was fenced, or its leave or the answer to its join was lost."""
    driver = streams_driver(t=4)
    static, _ = static_and_other(driver)
    had = static.running
    static.epoch = 0
    assert static.beat() is ErrorCode.NONE
    assert static.running == had


def test_a_static_member_that_stays_away_is_removed() -> None:
    """It has the rest of its session to come back, however often it says that it leaves."""
    driver = streams_driver(t=4)
    static, other = static_and_other(driver)
    for _ in range(2):
        assert static.leave(-2) is ErrorCode.NONE
        driver.pass_time(SESSION_MS // 3)
        other.beat()
    assert set(group_of(driver).members) == {"a", "b"}
    assert static.leave(-2) is ErrorCode.NONE
    driver.pass_time(SESSION_MS // 3)
    settle([other])
    assert set(group_of(driver).members) == {"b"}
    assert len(other.running.active) == EVERY_TASK
    assert StreamsClient(driver, "a2", instance="i").beat() is ErrorCode.NONE, "the instance id is free"


@pytest.mark.parametrize("moves", [True, False])
def test_only_another_process_needs_another_assignment(moves: bool) -> None:
    driver = streams_driver(t=4)
    static, other = static_and_other(driver)
    had, epoch = static.running, group_of(driver).epoch
    static.leave(-2)
    again = StreamsClient(driver, "a2", process="elsewhere" if moves else "p-a", instance="i", rebalance_ms=5_000)
    settle([again, other])
    assert group_of(driver).epoch == epoch + moves
    assert again.running == had, "the assignor is sticky"


def test_a_task_that_was_being_closed_is_free_after_the_leave() -> None:
    driver = streams_driver(t=4)
    static = StreamsClient(driver, "a", instance="i")
    settle([static])
    other = StreamsClient(driver, "b")
    settle([other])
    static.send()
    static.take()  # it must close half of its tasks
    assert static.leave(-2) is ErrorCode.NONE
    settle([other])
    assert len(other.running.active) == EVERY_TASK // 2
    check_group(group_of(driver))
    assert reloaded(driver) == group_of(driver)


def test_an_absent_member_is_not_heard() -> None:
    driver = streams_driver(t=4)
    static, _ = static_and_other(driver)
    assert static.leave(-2) is ErrorCode.NONE
    assert static.commit(epoch=-2) is ErrorCode.STALE_MEMBER_EPOCH
    assert static.commit() is ErrorCode.STALE_MEMBER_EPOCH
    assert static.beat() is ErrorCode.FENCED_MEMBER_EPOCH


def test_instance_ids_belong_to_their_members() -> None:
    driver = streams_driver(t=4)
    static, other = static_and_other(driver)
    thief = StreamsClient(driver, "b", instance="i")
    thief.epoch = other.epoch
    assert thief.leave(-2) is ErrorCode.FENCED_INSTANCE_ID
    assert thief.beat() is ErrorCode.FENCED_INSTANCE_ID
    stranger = StreamsClient(driver, "c", instance="j")
    stranger.epoch = other.epoch
    assert stranger.leave() is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert static.leave() is ErrorCode.NONE
    assert set(group_of(driver).members) == {"b"}
    assert group_of(driver).static_members == {}
