"""Goal: repeated, replaced and refused requests of members leave nothing behind in their group.

Method: the pure core with members that act like clients, one step at a time.
"""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.group import GroupState
from moldau_broker.coordinator.group.core.offsets.fetch_shapes import groups_of
from support.coordinator.group_world import Consumer, CoreDriver, code_of, join_request, stable_group


def test_a_repeated_sync_takes_the_place_of_the_first() -> None:
    """The client has given the first one up; both must be answered, each once."""
    driver = CoreDriver()
    members = [Consumer(driver) for _ in range(2)]
    for each in members:
        each.join()
    driver.pass_time(driver.config.initial_rebalance_delay_ms * 2)
    for each in members:
        each.joined()
    leader = next(each for each in members if each.members)
    (follower,) = (each for each in members if each is not leader)
    follower.sync()
    first = follower.sync_id
    follower.sync()
    assert first is not None
    assert driver.answers[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS  # type: ignore[attr-defined]
    assert follower.synced() is None
    leader.sync({each.member_id: each.member_id.encode() for each in members})
    answer = follower.synced()
    assert answer is not None
    assert (answer.error_code, follower.assignment) == (0, follower.member_id.encode())


def test_the_session_of_a_replaced_member_ends_with_it() -> None:
    """Only the session of the present one counts."""
    driver = CoreDriver()
    (old,) = stable_group(driver, 1, static=True)
    again = Consumer(driver, instance="i0")
    again.join()
    answer = again.joined()
    assert answer is not None
    again.generation = answer.generation_id
    for _ in range(30):
        driver.pass_time(5_000)
        assert again.heartbeat() is ErrorCode.NONE
    assert old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID


def test_a_full_group_does_not_wait_for_those_it_refuses() -> None:
    """A static member, which needs no member id of the coordinator first, has taken the last place."""
    driver = CoreDriver(GroupConfig(size_max=1))
    answer = driver.ask(join_request(), 9)
    assert code_of(answer) is ErrorCode.MEMBER_ID_REQUIRED
    static = Consumer(driver, instance="i")
    static.join()
    refused = driver.ask(join_request(answer.member_id), 9)  # type: ignore[attr-defined]
    assert code_of(refused) is ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.pass_time(driver.config.initial_rebalance_delay_ms * 2)
    assert static.joined() is not None
    static.sync({static.member_id: b"all"})
    static.join(metadata=b"other")
    answer = static.joined()
    assert answer is not None, "the refused member's id would still be waited for"
    assert answer.generation_id == 2


@pytest.mark.parametrize("more_ms", [1, 2_000, 3_000, 20_000])
def test_a_new_group_waits_no_longer_than_a_rebalance(more_ms: int) -> None:
    """A second member prolongs the wait by the delay, as far as the members' rebalance timeout allows."""
    driver = CoreDriver()
    delay_ms = driver.config.initial_rebalance_delay_ms
    Consumer(driver).join(rebalance_ms=delay_ms + more_ms)
    group = driver.core.rebalancer.groups["g"]
    driver.pass_time(delay_ms - 1)
    Consumer(driver).join(rebalance_ms=delay_ms + more_ms)
    driver.pass_time(min(delay_ms, more_ms))
    assert group.state is GroupState.PREPARING_REBALANCE
    driver.pass_time(1)
    assert group.state is GroupState.COMPLETING_REBALANCE


def test_the_first_version_with_groups_names_them() -> None:
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[3])]
    groups = [OffsetFetchRequestGroup(group_id="a"), OffsetFetchRequestGroup(group_id="b")]
    request = OffsetFetchRequest(group_id="old", topics=topics, groups=groups)
    names = CoreDriver().topics
    assert groups_of(request, 8, names) == groups
    (found,) = groups_of(request, 7, names)
    assert found.group_id == "old"
    assert [(each.name, list(each.partition_indexes)) for each in found.topics or ()] == [("t", [3])]


def test_ids_that_are_promised_take_the_room_of_members() -> None:
    """Clients that join with them one after the other would be refused only after a rebalance of the others."""
    driver = CoreDriver(GroupConfig(size_max=3))
    first, _ = stable_group(driver, 2)
    codes = [code_of(driver.ask(join_request(), 9)) for _ in range(2)]
    assert codes == [ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert first.heartbeat() is ErrorCode.NONE


def test_a_static_member_that_restarts_needs_no_more_memory() -> None:
    """Its metadata replace those of its former process, whose id it does not know."""
    driver = CoreDriver()
    stable_group(driver, 1, static=True)
    driver.core.membership._memory.bytes_max = driver.core.membership._memory.used_bytes
    again = Consumer(driver, instance="i0")
    again.join()
    answer = again.joined()
    assert answer is not None
    assert answer.error_code == ErrorCode.NONE


def test_an_assignment_that_was_not_committed_is_forgotten() -> None:
    """No member has heard of it, so a consumer group that the group becomes must not take anything for read by it."""
    driver = CoreDriver(auto_commit=False)
    members = [Consumer(driver) for _ in range(2)]
    for each in members:
        each.join()
    driver.pass_time(driver.config.initial_rebalance_delay_ms * 2)
    for each in members:
        each.joined()
    members[0].sync({each.member_id: b"its part" for each in members})
    assert driver.uncommitted
    late = Consumer(driver)
    late.join()
    group = driver.core.rebalancer.groups["g"]
    assert group.state is GroupState.PREPARING_REBALANCE
    assert {member.assignment for member in group.members.values()} == {b""}


def test_the_time_limits_of_a_member_are_those_of_its_last_join() -> None:
    """A client may come back with another configuration and the same id."""
    driver = CoreDriver()
    (member,) = stable_group(driver, 1)
    member.join(session_ms=30_000, metadata=b"new")
    member.joined()
    member.sync({member.member_id: b""})
    driver.pass_time(29_000)
    assert member.heartbeat() is ErrorCode.NONE
    member.join(session_ms=8_000, metadata=b"newer")
    member.joined()
    member.sync({member.member_id: b""})
    driver.pass_time(8_000)
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_generation_after_the_greatest_is_the_first() -> None:
    """No record could hold the next number: the write of the rebalance failed."""
    driver = CoreDriver(GroupConfig(initial_rebalance_delay_ms=0))
    consumer = Consumer(driver)
    seen = []
    for _ in range(2):
        consumer.join()
        driver.pass_time(10)
        joined = consumer.joined()
        assert joined is not None
        consumer.sync({consumer.member_id: b"A"})
        assert consumer.synced() is not None
        seen.append(joined.generation_id)
        driver.core.membership.groups["g"].generation = (1 << 31) - 1
    assert seen == [1, 1]
