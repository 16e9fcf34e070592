"""Goal: a group gets a new target assignment at most once in its assignment interval, and members wait no longer.

Method: stories of a few members of each kind of group against the pure core, with virtual time.
"""

from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from moldau_broker.coordinator.group.core.assignment_pace import assignment_wait_ms, heartbeat_after_ms
from moldau_broker.coordinator.group.core.config import GroupConfig
from support.coordinator import consumer_world, share_group_world, streams_world
from support.coordinator.consumer_world import ConsumerClient
from support.coordinator.group_world import CoreDriver
from support.coordinator.migration_world import BEAT, COOPERATIVE, ClassicClient
from support.coordinator.share_group_world import ShareClient

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("assigned_ms", "interval_ms", "is_assigned", "wait_ms"),
    [
        (0, 1_000, True, 0),  # it is not known when the last target was computed
        (NOW_MS, 0, True, 0),
        (NOW_MS, 1_000, True, 1_000),
        (NOW_MS - 999, 1_000, True, 1),
        (NOW_MS - 1_000, 1_000, True, 0),
        (NOW_MS, 1_000, False, 0),  # the last target gives nothing to anyone
        (NOW_MS + 3_600_000, 1_000, True, 0),  # the last coordinator's clock was an hour ahead
    ],
)
def test_wait_until_the_next_target(assigned_ms: int, interval_ms: int, is_assigned: bool, wait_ms: int) -> None:
    assert assignment_wait_ms(assigned_ms, interval_ms, NOW_MS, is_assigned=is_assigned) == wait_ms


def test_a_waiting_member_returns_when_the_target_is_due() -> None:
    assert heartbeat_after_ms(5_000, 0) == 5_000
    assert heartbeat_after_ms(5_000, 300) == 300
    assert heartbeat_after_ms(200, 300) == 200


def consumers(interval_ms: int) -> CoreDriver:
    driver = CoreDriver(GroupConfig(consumer_assignment_interval_ms=interval_ms))
    driver.topics.counts = {"t": 4}
    return driver


def answered_interval_ms(driver: CoreDriver, client: ConsumerClient) -> int:
    answer = driver.ask(client.request(), 1)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer.heartbeat_interval_ms


def test_consumers_that_join_together_share_a_target() -> None:
    driver = consumers(1_000)
    clients = [ConsumerClient(driver, name) for name in "abcd"]
    for client in clients:
        client.beat()
    group = consumer_world.group_of(driver)
    assert (clients[0].numbers, group.assignment_epoch, group.epoch) == ([0, 1, 2, 3], 1, 4)
    assert group.state.value == "Assigning"
    driver.pass_time(400)
    assert answered_interval_ms(driver, clients[3]) == 600
    driver.pass_time(600)
    consumer_world.settle(clients)
    assert [client.numbers for client in clients] == [[0], [1], [2], [3]]
    assert consumer_world.group_of(driver).assignment_epoch == 4
    assert answered_interval_ms(driver, clients[3]) == 5_000


def test_the_pace_outlives_a_coordinator() -> None:
    driver = consumers(1_000)
    a, b = ConsumerClient(driver, "a"), ConsumerClient(driver, "b")
    a.beat()
    driver.fail_over()
    b.beat()
    assert consumer_world.group_of(driver).assignment_epoch == 1
    driver.pass_time(1_000)
    consumer_world.settle([a, b])
    assert consumer_world.group_of(driver).assignment_epoch == 2


def test_a_classic_member_joins_again_when_the_target_is_due() -> None:
    """In a group of both protocols it is asked to join again when the next target is due, and not before."""
    driver = CoreDriver(GroupConfig(consumer_assignment_interval_ms=1_000, initial_rebalance_delay_ms=0))
    driver.topics.counts = {"t": 4}
    first, later = ConsumerClient(driver, "a"), ClassicClient(driver, COOPERATIVE)
    first.beat()
    later.beat()  # a member id, a generation, an assignment, a heartbeat
    assert (later.phase, later.epoch, later.numbers) == (BEAT, 1, [])
    for _ in range(3):
        driver.pass_time(300)
        assert later.beat() is ErrorCode.NONE
        assert (later.phase, later.epoch) == (BEAT, 1)
    driver.pass_time(100)
    members: list[Any] = [later, first]
    consumer_world.settle(members)
    assert (later.epoch, first.epoch) == (2, 2)
    assert [len(first.numbers), len(later.numbers)] == [2, 2]


def test_the_value_of_the_group_comes_first() -> None:
    driver = consumers(15_000)
    driver.topics.settings[consumer_world.GROUP, "consumer.assignment.interval.ms"] = 0
    a, b = ConsumerClient(driver, "a"), ConsumerClient(driver, "b")
    consumer_world.settle([a, b])
    assert (a.numbers, b.numbers) == ([0, 1], [2, 3])


def test_a_group_that_was_left_does_not_wait() -> None:
    """A consumer that restarts within the interval gets its partitions at once: no other member would have to move."""
    driver = consumers(15_000)
    a = ConsumerClient(driver, "a")
    a.beat()
    a.leave()
    b = ConsumerClient(driver, "b")
    b.beat()
    assert b.numbers == [0, 1, 2, 3]


def test_share_members_that_join_together_share_a_target() -> None:
    driver = CoreDriver(GroupConfig(share_assignment_interval_ms=1_000))
    driver.topics.counts["t"] = 2
    a, b = ShareClient(driver, "a"), ShareClient(driver, "b")
    a.beat(0)
    a.beat()
    assert len(a.assigned) == 2, "partitions whose state has begun do not wait for an interval"
    b.beat(0)
    assert not b.assigned
    driver.pass_time(1_000)
    for client in (b, a):
        client.beat()
    assert [len(client.assigned) for client in (a, b)] == [1, 1]
    assert driver.core.shares.committed[share_group_world.GROUP].assigned_ms == driver.moment().wall_ms


def test_streams_members_hear_why_they_wait() -> None:
    driver = streams_world.streams_driver(t=4)
    driver.topics.settings[streams_world.GROUP, "streams.assignment.interval.ms"] = 1_000
    a = streams_world.StreamsClient(driver, "a", process="p1")
    streams_world.settle([a])
    b = streams_world.StreamsClient(driver, "b", process="p2")
    b.beat()
    assert b.answered is not None
    assert [(each.status_code, each.status_detail) for each in b.answered.status or ()] == [
        (5, "Assignment delayed due to the configured assignment interval.")
    ]
    assert b.answered.heartbeat_interval_ms == 1_000
    driver.pass_time(1_000)
    streams_world.settle([a, b])
    assert len(a.active) == len(b.active) > 0
    assert not b.statuses


def test_expressions_are_resolved_again_after_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator missed a change of the topics; the next look at the interval's end finds it."""
    driver = CoreDriver(GroupConfig(consumer_regex_refresh_interval_ms=30_000))
    driver.topics.counts = {"t": 2, "t-later": 1}
    driver.topics.ids.pop("t-later", None)
    a = ConsumerClient(driver, "a", (), regex="t.*")
    a.beat()
    assert a.numbers == [0, 1]
    known = driver.topics.version()
    monkeypatch.setattr(driver.topics, "version", lambda: known)
    driver.make_topic("t-later")
    driver.pass_time(29_999)
    a.beat()
    assert a.numbers == [0, 1]
    driver.pass_time(1)
    a.beat()
    a.beat()
    assert a.numbers == [0, 0, 1]
