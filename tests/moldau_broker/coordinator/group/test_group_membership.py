"""Goal: classic groups behave as in Kafka, from the first join to the last leave.

Method: scripts that read as stories against the pure core; the test advances the time. Error paths come first.
"""

import pytest

from moldau.protocol.codec import decode, encode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.group import GroupState
from support.coordinator.group_world import (
    Consumer,
    CoreDriver,
    code_of,
    commit_request,
    heartbeat_request,
    join_request,
    leave_request,
    rebalance,
    stable_group,
    sync_request,
)


def state_of(driver: CoreDriver, group: str = "g") -> GroupState:
    return driver.core.membership.groups[group].state


def test_bad_joins_are_refused() -> None:
    driver = CoreDriver()
    refused = [
        (join_request(group=""), ErrorCode.INVALID_GROUP_ID),
        (join_request(session_ms=5_999), ErrorCode.INVALID_SESSION_TIMEOUT),
        (join_request(session_ms=1_800_001), ErrorCode.INVALID_SESSION_TIMEOUT),
        (join_request("unknown-member"), ErrorCode.UNKNOWN_MEMBER_ID),
        (join_request(protocols=()), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (join_request(protocol_type=""), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ]
    for request, code in refused:
        for version in range(10):
            answer = driver.ask(request, version)
            assert code_of(answer) is code
            assert isinstance(answer, JoinGroupResponse)
            assert answer.protocol_name == (None if version >= 7 else "")
    assert not driver.core.membership.groups
    stable_group(driver, 1)
    for request in (join_request(protocols=("other",)), join_request(protocol_type="connect")):
        assert code_of(driver.ask(request, 9)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_member_id_is_required_from_version_4() -> None:
    """A new member gets an id first and then joins (KIP-394); old clients join at once."""
    driver = CoreDriver()
    first = driver.ask(join_request(), 4)
    assert isinstance(first, JoinGroupResponse)
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id == "client-id0"
    assert state_of(driver) is GroupState.EMPTY
    waiting = driver.send(join_request(first.member_id), 4)
    assert state_of(driver) is GroupState.PREPARING_REBALANCE
    old = driver.send(join_request(), 3)
    driver.pass_time(6_000)
    assert {code_of(driver.answers[request]) for request in (waiting, old)} == {ErrorCode.NONE}


@pytest.mark.parametrize("instance", ["i0", "free"])
def test_an_id_given_out_is_not_that_of_a_static_member(instance: str) -> None:
    """A join with a pending member id and an instance id is refused; group and pending id are unaffected."""
    driver = CoreDriver()
    (static,) = stable_group(driver, 1, static=True)
    given = driver.ask(join_request(), 5)
    assert isinstance(given, JoinGroupResponse)
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    refused = driver.ask(join_request(given.member_id, instance=instance), 5)
    assert code_of(refused) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert state_of(driver) is GroupState.STABLE
    assert driver.core.membership.groups["g"].static_members == {"i0": static.member_id}
    waiting = driver.send(join_request(given.member_id), 5)
    assert waiting not in driver.answers
    static.join()
    assert code_of(driver.answers[waiting]) is ErrorCode.NONE


def test_an_id_given_out_and_not_used_is_forgotten() -> None:
    """A client that got an id and died delays the join phase by its session timeout at most."""
    driver = CoreDriver()
    (member,) = stable_group(driver, 1)
    lost = driver.ask(join_request(session_ms=10_000), 9)
    assert isinstance(lost, JoinGroupResponse)
    newcomer = Consumer(driver)
    newcomer.join(3)
    member.join()
    assert newcomer.joined() is None
    driver.pass_time(9_999)
    assert newcomer.joined() is None
    driver.pass_time(1)
    assert newcomer.joined() is not None
    assert code_of(driver.ask(join_request(lost.member_id), 9)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_group_waits_for_more_members() -> None:
    """``group.initial.rebalance.delay.ms`` is extended while members join, up to the rebalance timeout."""
    driver = CoreDriver(GroupConfig(initial_rebalance_delay_ms=3_000))
    consumers = [Consumer(driver) for _ in range(3)]
    for consumer in consumers:
        consumer.join(rebalance_ms=7_000)
        driver.pass_time(2_300)
    driver.pass_time(99)
    assert consumers[0].joined() is None
    driver.pass_time(1)
    answers = [consumer.joined() for consumer in consumers]
    assert [answer.generation_id for answer in answers if answer] == [1, 1, 1]
    assert len(consumers[0].members) == 3
    assert consumers[1].members == []
    assert {answer.leader for answer in answers if answer} == {consumers[0].member_id}


def test_a_generation_from_join_to_stable() -> None:
    driver = CoreDriver()
    first, second = stable_group(driver, 2)
    assert (first.assignment, second.assignment) == (b"0", b"1")
    assert first.heartbeat() is second.heartbeat() is ErrorCode.NONE
    assert state_of(driver) is GroupState.STABLE
    described = driver.ask(DescribeGroupsRequest(groups=["g", "none"]), 5)
    assert isinstance(described, DescribeGroupsResponse)
    group, none = described.groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    assert [bytes(member.member_assignment) for member in group.members] == [b"0", b"1"]
    assert [bytes(member.member_metadata) for member in group.members] == [b"range", b"range"]
    assert (none.group_state, none.error_code) == ("Dead", 0)
    newer = driver.ask(DescribeGroupsRequest(groups=["none"]), 6)
    assert isinstance(newer, DescribeGroupsResponse)
    assert newer.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    listed = driver.ask(ListGroupsRequest(states_filter=["stable"], types_filter=["Classic"]), 5)
    assert isinstance(listed, ListGroupsResponse)
    assert [(entry.group_id, entry.group_state, entry.group_type) for entry in listed.groups] == [
        ("g", "Stable", "classic")
    ]
    for filters in ({"states_filter": ["Empty"]}, {"types_filter": ["consumer"]}):
        nothing = driver.ask(ListGroupsRequest(**filters), 5)
        assert isinstance(nothing, ListGroupsResponse)
        assert nothing.groups == []


def test_sync_is_answered_only_when_the_assignment_is_committed() -> None:
    driver = CoreDriver(auto_commit=False)
    leader, follower = Consumer(driver), Consumer(driver)
    leader.join()
    follower.join()
    driver.pass_time(6_000)
    assert leader.joined() is not None
    assert follower.joined() is not None
    follower.sync()
    leader.sync({leader.member_id: b"L", follower.member_id: b"F"})
    assert leader.synced() is None
    assert follower.synced() is None
    assert follower.heartbeat() is ErrorCode.NONE
    assert state_of(driver) is GroupState.COMPLETING_REBALANCE
    driver.commit()
    leader.synced()
    follower.synced()
    assert (leader.assignment, follower.assignment) == (b"L", b"F")


@pytest.mark.parametrize(
    ("refusal", "reported"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (None, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_an_assignment_that_is_not_written_starts_over(refusal: ErrorCode | None, reported: ErrorCode) -> None:
    """No member gets an assignment that could be lost; None stands for a commit that takes too long."""
    driver = CoreDriver(auto_commit=False)
    leader, follower = Consumer(driver), Consumer(driver)
    leader.join()
    follower.join()
    driver.pass_time(6_000)
    leader.joined()
    follower.joined()
    follower.sync()
    leader.sync({follower.member_id: b"F"})
    if refusal is None:
        driver.pass_time(driver.config.commit_timeout_ms)
    else:
        driver.refuse(refusal)
    for consumer in (leader, follower):
        answer = consumer.synced()
        assert answer is not None
        assert answer.error_code == reported
        assert consumer.assignment == b""
    assert state_of(driver) is GroupState.PREPARING_REBALANCE
    driver.commit()
    assert state_of(driver) is GroupState.PREPARING_REBALANCE
    leader.join()
    follower.join()
    driver.auto_commit = True
    rebalance([leader, follower])
    assert leader.generation == 2


def test_the_longest_names_still_fit_into_records_and_answers() -> None:
    """A client may send strings of maximal length; the member id made of them must still fit the protocol."""
    driver = CoreDriver()
    longest = "ä" * 16383
    request_id = driver.send(join_request(instance=longest, protocols=(longest,)), 9, client=longest)
    driver.pass_time(6_000)
    answer = driver.answers[request_id]
    assert isinstance(answer, JoinGroupResponse)
    assert answer.error_code == ErrorCode.NONE
    assert decode(JoinGroupResponse, 9, encode(answer, 9)) == answer
    driver.ask(sync_request(answer.member_id, 1, {answer.member_id: b"x"}, instance=longest), 5)
    driver.fail_over()
    assert list(driver.core.membership.groups["g"].members) == [answer.member_id]


def test_every_change_of_members_makes_one_new_generation() -> None:
    """A join, a leave and a crash each lead to exactly one rebalance (G3)."""
    driver = CoreDriver()
    first, second = stable_group(driver, 2)
    third = Consumer(driver)
    third.join()
    assert first.heartbeat() is second.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    first.join()
    assert third.joined() is None
    second.join()
    rebalance([first, second, third])
    assert first.generation == 2
    answer = driver.ask(leave_request((second.member_id, None)), 5)
    assert code_of(answer) is ErrorCode.NONE
    assert second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    first.join()
    third.join()
    rebalance([first, third])
    assert first.generation == 3
    for _ in range(3):
        driver.pass_time(5_000)
        first.heartbeat()
    assert state_of(driver) is GroupState.PREPARING_REBALANCE
    first.join()
    rebalance([first])
    assert first.generation == 4
    assert first.members == [first.member_id]


def test_a_member_that_does_not_rejoin_is_left_behind() -> None:
    driver = CoreDriver()
    first, second = stable_group(driver, 2)
    driver.ask(leave_request(("", None)), 5)
    first.join(rebalance_ms=20_000)
    for _ in range(7):
        driver.pass_time(9_900)
        second.heartbeat()
    assert first.joined() is not None
    assert second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert first.generation == 2


def test_members_that_never_sync_are_removed() -> None:
    driver = CoreDriver()
    consumers = [Consumer(driver) for _ in range(2)]
    for consumer in consumers:
        consumer.join(rebalance_ms=12_000)
    driver.pass_time(6_000)
    for consumer in consumers:
        consumer.joined()
    consumers[1].sync()
    for _ in range(2):
        driver.pass_time(6_000)
        consumers[0].heartbeat()
    answer = consumers[1].synced()
    assert answer is not None
    assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert list(driver.core.membership.groups["g"].members) == [consumers[1].member_id]
    driver.pass_time(60_000)  # also the session of the removed member would have ended
    assert not driver.core.membership.groups["g"].members


@pytest.mark.parametrize("too_little", [0, 1])
def test_the_memory_of_a_group_is_bounded_to_the_byte(too_little: int) -> None:
    free = CoreDriver()
    free.send(join_request(), 3)
    needed = free.core.membership.groups["g"].held_bytes
    driver = CoreDriver(GroupConfig(metadata_bytes_max=needed - too_little))
    request_id = driver.send(join_request(), 3)
    if too_little:
        assert code_of(driver.answers[request_id]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    else:
        assert request_id not in driver.answers, "it waits for other members"


def test_waiting_members_are_not_expired_but_lost_newcomers_are() -> None:
    config = GroupConfig(new_member_join_timeout_ms=30_000)
    driver = CoreDriver(config)
    first, second = stable_group(driver, 2)
    newcomer = Consumer(driver)
    newcomer.join(rebalance_ms=1_000_000)
    first.join(rebalance_ms=1_000_000)
    for _ in range(40):
        driver.pass_time(1_000)
        second.heartbeat()
    lost = newcomer.joined()
    assert lost is not None
    assert lost.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert first.joined() is None
    second.join()
    assert first.joined() is not None


def test_sessions_end_without_heartbeats() -> None:
    """A lost member delays the group by one session timeout at most; commits count as heartbeats."""
    driver = CoreDriver()
    (member,) = stable_group(driver, 1)
    for offset in range(5):
        driver.pass_time(9_999)
        assert member.commit(offset) is ErrorCode.NONE
    driver.pass_time(9_999)
    assert state_of(driver) is GroupState.STABLE
    driver.pass_time(1)
    assert state_of(driver) is GroupState.EMPTY
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_group_size_is_bounded() -> None:
    driver = CoreDriver(GroupConfig(size_max=2))
    consumers = stable_group(driver, 2)
    assert code_of(driver.ask(join_request(), 3)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert code_of(driver.ask(join_request(), 9)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    consumers[0].join()
    consumers[1].join()
    rebalance(consumers)
    assert len(consumers[0].members) == 2


def test_wrong_generations_and_members_are_fenced() -> None:
    driver = CoreDriver()
    (member,) = stable_group(driver, 1)
    for generation in (member.generation - 1, member.generation + 1):
        assert code_of(driver.ask(heartbeat_request(member.member_id, generation), 4)) is ErrorCode.ILLEGAL_GENERATION
        assert code_of(driver.ask(sync_request(member.member_id, generation), 5)) is ErrorCode.ILLEGAL_GENERATION
        request = commit_request(1, member.member_id, generation)
        assert code_of(driver.ask(request, 9)) is ErrorCode.ILLEGAL_GENERATION
    assert code_of(driver.ask(heartbeat_request("x", 1), 4)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(driver.ask(commit_request(1, "x", 1), 9)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(driver.ask(commit_request(1), 9)) is ErrorCode.UNKNOWN_MEMBER_ID
    wrong = sync_request(member.member_id, member.generation)
    wrong.protocol_name = "sticky"
    assert code_of(driver.ask(wrong, 5)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong.protocol_name, wrong.protocol_type = None, "connect"
    assert code_of(driver.ask(wrong, 5)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_with_most_votes_wins() -> None:
    driver = CoreDriver()
    votes = [("a", "b"), ("b", "c", "a"), ("b", "a")]
    consumers = [Consumer(driver) for _ in votes]
    for consumer, protocols in zip(consumers, votes, strict=True):
        consumer.join(protocols=protocols)
    driver.pass_time(6_000)
    answer = consumers[0].joined()
    assert answer is not None
    assert answer.protocol_name == "b"
    assert [bytes(member.metadata) for member in answer.members] == [b"b", b"b", b"b"]


def test_joining_again_without_a_change() -> None:
    """A follower that missed its answer gets it again; the leader or changed metadata start a rebalance."""
    driver = CoreDriver()
    leader, follower = stable_group(driver, 2)
    follower.join()
    again = follower.joined()
    assert again is not None
    assert (again.generation_id, list(again.members)) == (1, [])
    assert state_of(driver) is GroupState.STABLE
    leader.join()
    assert state_of(driver) is GroupState.PREPARING_REBALANCE
    follower.join()
    rebalance([leader, follower])
    follower.join(metadata=b"changed")
    assert state_of(driver) is GroupState.PREPARING_REBALANCE


def test_the_oldest_member_leads_after_the_leader_left() -> None:
    driver = CoreDriver()
    first, second, third = stable_group(driver, 3)
    driver.ask(LeaveGroupRequest(group_id="g", member_id=first.member_id), 1)
    third.join()
    second.join()
    second.joined()
    answer = third.joined()
    assert answer is not None
    assert answer.leader == second.member_id
    assert len(second.members) == 2


def test_leaving_in_batches() -> None:
    driver = CoreDriver()
    consumers = stable_group(driver, 3, static=True)
    request = leave_request((consumers[0].member_id, None), ("", "i1"), ("other", "i2"), ("", "i9"), ("x", None))
    answer = driver.ask(request, 5)
    assert isinstance(answer, LeaveGroupResponse)
    assert [ErrorCode(member.error_code) for member in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert list(driver.core.membership.groups["g"].members) == [consumers[2].member_id]
    assert code_of(driver.ask(leave_request(("x", None), group="none"), 5)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(driver.ask(LeaveGroupRequest(group_id="none"), 0)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(driver.ask(leave_request(group=""), 5)) is ErrorCode.INVALID_GROUP_ID


def test_a_static_member_restarts_without_a_rebalance() -> None:
    """With the same instance id and subscription, a member keeps its assignment without a rebalance (KIP-345)."""
    driver = CoreDriver()
    leader, follower = stable_group(driver, 2, static=True)
    restarted = Consumer(driver, instance="i1")
    restarted.join()
    answer = restarted.joined()
    assert answer is not None
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert restarted.member_id != follower.member_id
    assert state_of(driver) is GroupState.STABLE
    restarted.sync()
    restarted.synced()
    assert restarted.assignment == b"1"
    assert follower.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert follower.commit(1) is ErrorCode.FENCED_INSTANCE_ID
    assert leader.heartbeat() is restarted.heartbeat() is ErrorCode.NONE


@pytest.mark.parametrize("syncs", [True, False])
def test_a_static_member_restarts_before_its_first_sync(syncs: bool) -> None:
    """Its next process takes over the duty to fetch the assignment before the end of the sync phase."""
    driver = CoreDriver()
    leader, follower = Consumer(driver, instance="i0"), Consumer(driver, instance="i1")
    for consumer in (leader, follower):
        consumer.join()
    driver.pass_time(driver.config.initial_rebalance_delay_ms * 2)
    assert None not in (leader.joined(), follower.joined())
    leader.sync({leader.member_id: b"0", follower.member_id: b"1"})
    assert state_of(driver) is GroupState.STABLE
    restarted = Consumer(driver, instance="i1")
    restarted.join()
    assert restarted.joined() is not None
    assert state_of(driver) is GroupState.STABLE
    if syncs:
        restarted.sync()
        restarted.synced()
        assert restarted.assignment == b"1"
    for _ in range(13):
        driver.pass_time(5_000)
        leader.heartbeat()
        restarted.heartbeat()
    expected = ErrorCode.NONE if syncs else ErrorCode.UNKNOWN_MEMBER_ID
    assert restarted.heartbeat() is expected


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_static_leader_restarts(version: int) -> None:
    """From version 9 on the answer names the member as leader and skips the assignment (KIP-814)."""
    driver = CoreDriver()
    leader, _ = stable_group(driver, 2, static=True)
    restarted = Consumer(driver, instance="i0")
    restarted.join(version)
    answer = restarted.joined()
    assert answer is not None
    if version >= 9:
        assert answer.skip_assignment
        assert answer.leader == restarted.member_id
        assert len(answer.members) == 2
    else:
        assert answer.leader == leader.member_id
        assert answer.members == ()


def test_a_static_member_that_changes_the_protocol_rebalances() -> None:
    """A static member that comes back with metadata that change the selected protocol starts a rebalance."""
    driver = CoreDriver()
    stable_group(driver, 1, static=True)
    restarted = Consumer(driver, instance="i0")
    restarted.join(protocols=("range", "sticky"))
    assert restarted.joined() is not None
    assert restarted.generation == 1
    changed = Consumer(driver, instance="i0")
    changed.join(protocols=("sticky", "range"))
    answer = changed.joined()
    assert answer is not None
    assert (answer.generation_id, answer.protocol_name) == (2, "sticky")


def test_a_static_member_in_a_rebalance_fences_its_predecessor() -> None:
    driver = CoreDriver()
    first, second = stable_group(driver, 2, static=True)
    newcomer = Consumer(driver)
    newcomer.join()
    second.join()
    replacement = Consumer(driver, instance="i1")
    replacement.join()
    fenced = second.joined()
    assert fenced is not None
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID
    first.join()
    rebalance([first, replacement, newcomer])
    assert first.generation == 2


def test_absent_static_members_stay_until_their_session_ends() -> None:
    driver = CoreDriver()
    first, second = stable_group(driver, 2, static=True)
    newcomer = Consumer(driver)
    newcomer.join(rebalance_ms=5_000)
    first.join(rebalance_ms=5_000)
    group = driver.core.membership.groups["g"]
    group.members[second.member_id].session_timeout_ms = 300_000
    second.heartbeat()
    driver.pass_time(60_000)
    answer = newcomer.joined()
    assert answer is not None
    assert second.member_id in group.members
    assert group.generation == 2


@pytest.mark.parametrize("absent", [0, 1])
def test_a_member_that_has_joined_leads_the_generation(absent: int) -> None:
    """A static member that is away stays a member, and cannot assign: the others would wait for its session's end."""
    driver = CoreDriver()
    consumers = stable_group(driver, 2, static=True)
    away, present = consumers[absent], consumers[1 - absent]
    group = driver.core.membership.groups["g"]
    group.members[away.member_id].session_timeout_ms = 300_000
    away.heartbeat()
    group.members[away.member_id].rebalance_timeout_ms = 5_000
    present.join(rebalance_ms=5_000, metadata=b"changed")
    driver.pass_time(5_000)
    answer = present.joined()
    assert answer is not None
    assert (answer.generation_id, answer.leader) == (2, present.member_id)
    assert len(present.members) == 2
    present.sync({present.member_id: b"1", away.member_id: b"2"})
    assert present.synced() is not None
    assert state_of(driver) is GroupState.STABLE


def test_no_generation_begins_without_a_member_that_joined() -> None:
    """All are static and away: the coordinator waits for one of them, or for the ends of their sessions."""
    driver = CoreDriver()
    first, second = stable_group(driver, 2, static=True)
    group = driver.core.membership.groups["g"]
    for member in group.members.values():
        member.session_timeout_ms, member.rebalance_timeout_ms = 300_000, 5_000
    first.heartbeat()
    driver.ask(leave_request((second.member_id, second.instance)), 5)
    driver.pass_time(60_000)
    assert (group.generation, group.state) == (1, GroupState.PREPARING_REBALANCE)
    first.join(rebalance_ms=5_000)
    answer = first.joined()
    assert answer is not None
    assert (answer.generation_id, answer.leader) == (2, first.member_id)


def test_static_members_whose_record_is_not_written_try_again() -> None:
    driver = CoreDriver()
    stable_group(driver, 1, static=True)
    driver.auto_commit = False
    restarted = Consumer(driver, instance="i0")
    restarted.join()
    assert restarted.joined() is None
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    answer = restarted.joined()
    assert answer is not None
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.auto_commit = True
    restarted.join()
    again = restarted.joined()
    assert again is not None
    assert again.error_code == ErrorCode.NONE


def test_groups_survive_the_loss_of_their_coordinator() -> None:
    """The next coordinator has generation, members and assignments; members only see NOT_COORDINATOR."""
    driver = CoreDriver()
    first, second = stable_group(driver, 2)
    assert first.commit(42) is ErrorCode.NONE
    driver.fail_over()
    assert first.heartbeat() is second.heartbeat() is ErrorCode.NONE
    first.sync()
    first.synced()
    assert first.assignment == b"0"
    assert first.commit(43) is ErrorCode.NONE
    driver.pass_time(10_000)
    assert state_of(driver) is GroupState.EMPTY


def test_a_failover_during_a_rebalance_answers_all_requests() -> None:
    """A coordinator that resigns during a rebalance answers all open requests."""
    driver = CoreDriver(auto_commit=False)
    leader, follower = Consumer(driver), Consumer(driver)
    leader.join()
    follower.join()
    driver.pass_time(6_000)
    leader.joined()
    follower.joined()
    follower.sync()
    leader.sync({follower.member_id: b"F"})
    late = Consumer(driver)
    driver.send(commit_request(1, group="other"), 9)
    late.join(3)
    driver.fail_over()
    assert set(driver.answers) == set(range(driver.request_count))
    assert leader.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
