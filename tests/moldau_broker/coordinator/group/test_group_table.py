"""Goal: in every state of a group every request has a defined answer, and every request is answered.

Method: bring a group into each state, send each request with each identity, and compare the code with a table.
"""

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.schema import Request
from moldau_broker.coordinator.group.core.group import TRANSITIONS, Group, GroupState
from support.coordinator.group_world import (
    Consumer,
    CoreDriver,
    code_of,
    commit_request,
    heartbeat_request,
    join_request,
    leave_request,
    stable_group,
    sync_request,
)

OK = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
GENERATION = ErrorCode.ILLEGAL_GENERATION
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
WAITS = None


def in_state(state: GroupState) -> tuple[CoreDriver, str, int]:
    """Returns a group in a state, the id of its last member and its generation."""
    driver = CoreDriver(auto_commit=True)
    leader, member = stable_group(driver, 2)
    if state is GroupState.EMPTY:
        driver.ask(leave_request((leader.member_id, None), (member.member_id, None)), 5)
    elif state is not GroupState.STABLE:
        leader.join()
        if state is GroupState.COMPLETING_REBALANCE:
            member.join()
            leader.joined()
    group = driver.core.membership.groups["g"]
    assert group.state is state
    return driver, member.member_id, group.generation


EXPECTED: dict[str, dict[GroupState, ErrorCode | None]] = {
    "join as a member": {
        GroupState.EMPTY: UNKNOWN,
        GroupState.PREPARING_REBALANCE: OK,
        GroupState.COMPLETING_REBALANCE: OK,
        GroupState.STABLE: OK,
    },
    "join with another protocol list": {
        GroupState.EMPTY: UNKNOWN,
        GroupState.PREPARING_REBALANCE: OK,
        GroupState.COMPLETING_REBALANCE: WAITS,
        GroupState.STABLE: WAITS,
    },
    "join as an unknown member": dict.fromkeys(GroupState, UNKNOWN),
    "join without an id": dict.fromkeys(GroupState, ErrorCode.MEMBER_ID_REQUIRED),
    "sync as a member": {
        GroupState.EMPTY: UNKNOWN,
        GroupState.PREPARING_REBALANCE: REBALANCE,
        GroupState.COMPLETING_REBALANCE: WAITS,
        GroupState.STABLE: OK,
    },
    "sync in an old generation": {
        GroupState.EMPTY: UNKNOWN,
        GroupState.PREPARING_REBALANCE: GENERATION,
        GroupState.COMPLETING_REBALANCE: GENERATION,
        GroupState.STABLE: GENERATION,
    },
    "sync as an unknown member": dict.fromkeys(GroupState, UNKNOWN),
    "heartbeat as a member": {
        GroupState.EMPTY: UNKNOWN,
        GroupState.PREPARING_REBALANCE: REBALANCE,
        GroupState.COMPLETING_REBALANCE: OK,
        GroupState.STABLE: OK,
    },
    "heartbeat in an old generation": {
        GroupState.EMPTY: UNKNOWN,
        GroupState.PREPARING_REBALANCE: GENERATION,
        GroupState.COMPLETING_REBALANCE: GENERATION,
        GroupState.STABLE: GENERATION,
    },
    "heartbeat as an unknown member": dict.fromkeys(GroupState, UNKNOWN),
    "leave as a member": {
        GroupState.EMPTY: UNKNOWN,
        GroupState.PREPARING_REBALANCE: OK,
        GroupState.COMPLETING_REBALANCE: OK,
        GroupState.STABLE: OK,
    },
    "leave as an unknown member": dict.fromkeys(GroupState, UNKNOWN),
    "commit as a member": {
        GroupState.EMPTY: UNKNOWN,
        GroupState.PREPARING_REBALANCE: OK,
        GroupState.COMPLETING_REBALANCE: REBALANCE,
        GroupState.STABLE: OK,
    },
    "commit in an old generation": {
        GroupState.EMPTY: UNKNOWN,
        GroupState.PREPARING_REBALANCE: GENERATION,
        GroupState.COMPLETING_REBALANCE: GENERATION,
        GroupState.STABLE: GENERATION,
    },
    "commit as an unknown member": dict.fromkeys(GroupState, UNKNOWN),
    "commit without a group": {
        GroupState.EMPTY: OK,
        GroupState.PREPARING_REBALANCE: UNKNOWN,
        GroupState.COMPLETING_REBALANCE: UNKNOWN,
        GroupState.STABLE: UNKNOWN,
    },
}


def build(name: str, member_id: str, generation: int) -> tuple[Request, int]:
    who = "unknown-member" if "an unknown member" in name else member_id
    when = generation - 1 if "old generation" in name else generation
    if name == "join without an id":
        return join_request(), 9
    if name == "join with another protocol list":
        return join_request(who, protocols=("range", "sticky")), 9
    if name == "commit without a group":
        return commit_request(1), 9
    if name.startswith("join"):
        return join_request(who), 9
    if name.startswith("sync"):
        return sync_request(who, when), 5
    if name.startswith("heartbeat"):
        return heartbeat_request(who, when), 4
    if name.startswith("leave"):
        return leave_request((who, None)), 5
    return commit_request(1, who, when), 9


@pytest.mark.parametrize("state", [state for state in GroupState if state is not GroupState.DEAD])
@pytest.mark.parametrize("name", EXPECTED)
def test_every_request_in_every_state(name: str, state: GroupState) -> None:
    driver, member_id, generation = in_state(state)
    request_id = driver.send(*build(name, member_id, generation))
    expected = EXPECTED[name][state]
    if expected is WAITS:
        assert request_id not in driver.answers
        driver.pass_time(200_000)
        assert request_id in driver.answers
    else:
        assert code_of(driver.answers[request_id]) is expected


def test_requests_to_a_group_that_does_not_exist() -> None:
    driver = CoreDriver()
    for name in EXPECTED:
        request, version = build(name, "m", 1)
        expected = {
            "join without an id": ErrorCode.MEMBER_ID_REQUIRED,
            "commit without a group": OK,
        }.get(name, GENERATION if name.startswith("commit") else UNKNOWN)
        driver = CoreDriver()
        assert code_of(driver.ask(request, version)) is expected, name


@pytest.mark.parametrize("before", GroupState)
@pytest.mark.parametrize("after", GroupState)
def test_only_the_transitions_of_the_table_exist(before: GroupState, after: GroupState) -> None:
    group = Group(group_id="g", state=before)
    if after in TRANSITIONS[before]:
        group.transition(after, 5)
        assert (group.state, group.state_since_ms) == (after, 5)
    else:
        with pytest.raises(AssertionError):
            group.transition(after, 5)


def test_nothing_waits_forever() -> None:
    """After the longest timeout every request has an answer."""
    driver = CoreDriver()
    consumers = [Consumer(driver) for _ in range(5)]
    for index, consumer in enumerate(consumers):
        consumer.join(9 if index % 2 else 3)
        driver.pass_time(100)
    driver.pass_time(500_000)
    assert set(driver.answers) == set(range(driver.request_count))
    assert driver.core.membership.groups["g"].state is GroupState.EMPTY
    assert len(driver.core.rebalancer.deadlines) == 0
