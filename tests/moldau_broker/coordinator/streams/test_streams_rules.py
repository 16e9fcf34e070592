"""Goal: a streams group stays usable when writes fail, topics and groups go, and its memory is full.

Method: the pure core, with writes that the test holds back or refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.leave_group import LeaveGroupResponse
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.streams_group_heartbeat import Subtopology, Topology
from moldau_broker.coordinator.group.streams.core import internal_topics
from moldau_broker.coordinator.group.streams.core.internal_topics import Status
from moldau_broker.coordinator.group.streams.core.reconcile import reconcile
from moldau_broker.coordinator.group.streams.core.state import (
    EMPTY_TASKS,
    MemberState,
    StreamsGroupState,
    StreamsMember,
    TaskSets,
)
from support.coordinator.group_world import (
    CoreDriver,
    code_of,
    commit_request,
    join_request,
    leave_request,
    stable_group,
)
from support.coordinator.streams_world import (
    GROUP,
    SESSION_MS,
    StreamsClient,
    check_group,
    group_of,
    reloaded,
    settle,
    streams_driver,
    topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_session_that_ends_during_the_join_counts() -> None:
    driver = streams_driver()
    driver.auto_commit = False
    StreamsClient(driver, "m").send()
    driver.pass_time(SESSION_MS + 1_000)
    driver.auto_commit = True
    driver.commit()
    assert not group_of(driver).members


def test_a_session_that_ends_during_a_failed_leave_counts() -> None:
    """The session ends while the write is pending that the log refuses in the end."""
    driver = streams_driver()
    member = StreamsClient(driver, "m")
    settle([member])
    driver.pass_time(SESSION_MS - 1_000)
    assert set(group_of(driver).members) == {"m"}
    driver.auto_commit = False
    request = member.request()
    request.member_epoch = -1
    driver.send(request, 1)
    driver.pass_time(2_000)
    driver.auto_commit = True
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.commit()
    assert not group_of(driver).members


@pytest.mark.parametrize("is_refused", [False, True])
def test_an_id_is_refused_for_now_while_the_last_member_leaves(is_refused: bool) -> None:
    """A member of a classic group repeats its JoinGroup until it is known whether the streams group has a member."""
    driver = streams_driver()
    member = StreamsClient(driver, "m")
    settle([member])
    driver.auto_commit = False
    request = member.request()
    request.member_epoch = -1
    driver.send(request, 1)
    assert code_of(driver.answers[driver.send(join_request(), 9)]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.auto_commit = True
    if is_refused:
        driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.commit()
    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL if is_refused else ErrorCode.MEMBER_ID_REQUIRED
    assert code_of(driver.ask(join_request(), 9)) is code


def test_a_member_that_is_heard_during_a_write_stays() -> None:
    """Its session ended while another member's join was being written, and it spoke before the write was committed."""
    driver = streams_driver()
    member, other = StreamsClient(driver, "a"), StreamsClient(driver, "b")
    settle([member])
    driver.pass_time(SESSION_MS - 1_000)
    driver.auto_commit = False
    other.send()
    driver.pass_time(2_000)
    member.send()
    driver.auto_commit = True
    driver.commit()
    assert sorted(group_of(driver).members) == ["a", "b"]
    assert member.take() is ErrorCode.NONE


def listed(driver: CoreDriver) -> list[tuple[str, str]]:
    answer = driver.ask(ListGroupsRequest(), 5)
    return [(each.group_id, each.group_type) for each in answer.groups]  # type: ignore[attr-defined]


def test_requests_behind_a_failed_write_are_refused_with_it() -> None:
    """They were decided on nothing yet; their members send them again."""
    driver = streams_driver()
    driver.auto_commit = False
    first, second = StreamsClient(driver, "a"), StreamsClient(driver, "b")
    first.send()
    second.send()
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    codes = [first.take(), second.take()]
    assert codes[0] is codes[1]
    assert codes[0] not in (None, ErrorCode.NONE)
    driver.auto_commit = True
    driver.commit()
    settle([first, second])
    assert sorted(len(client.active) for client in (first, second)) == [3, 3]


def member_that_closed_in_time(driver: CoreDriver) -> StreamsClient:
    """Returns a member that has closed its first tasks 2 s after it was asked to, and is about to say so.

    It has 3 s for each closing, and must close more, because a third member has joined.
    """
    first, second, third = (StreamsClient(driver, name, rebalance_ms=3_000) for name in "abc")
    settle([first])
    second.beat()
    first.send()
    first.take()
    third.beat()
    driver.pass_time(2_000)
    first.obey()
    return first


def test_each_closing_has_its_whole_time() -> None:
    """The second one has as long as the first one had."""
    driver = streams_driver()
    member = member_that_closed_in_time(driver)
    member.send()
    member.take()
    assert group_of(driver).members["a"].state is MemberState.UNREVOKED_TASKS
    driver.pass_time(2_900)
    member.obey()
    assert member.beat() is ErrorCode.NONE
    driver.pass_time(200)
    assert "a" in group_of(driver).members


def test_a_closing_in_time_counts_although_its_write_is_late() -> None:
    """The time ends while the write is in flight; by then the member must close more, in new time."""
    driver = streams_driver()
    member = member_that_closed_in_time(driver)
    driver.auto_commit = False
    member.send()
    driver.pass_time(1_500)
    driver.auto_commit = True
    driver.commit()
    assert member.take() is ErrorCode.NONE
    assert group_of(driver).members["a"].state is MemberState.UNREVOKED_TASKS
    driver.pass_time(1_400)
    member.obey()
    assert member.beat() is ErrorCode.NONE


def test_a_group_that_begins_again_waits_as_a_new_one() -> None:
    """The delay of a deleted group does not end that of the next one of its name."""
    driver = streams_driver(delay_ms=3_000)
    first = StreamsClient(driver, "a")
    first.beat()
    driver.create_topics()
    driver.pass_time(2_000)
    first.leave()
    answer = driver.ask(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert answer.results[0].error_code == 0  # type: ignore[attr-defined]
    StreamsClient(driver, "b").beat()
    driver.pass_time(2_900)
    assert group_of(driver).assignment_epoch == 0
    driver.pass_time(100)
    assert group_of(driver).assignment_epoch == group_of(driver).epoch


def leaves(driver: CoreDriver, client: StreamsClient) -> None:
    del driver
    client.leave()


def falls_silent(driver: CoreDriver, client: StreamsClient) -> None:
    del client
    driver.pass_time(SESSION_MS - 1)


def loses_its_endpoint(driver: CoreDriver, client: StreamsClient) -> None:
    del driver
    client.endpoint, client.epoch = None, 0
    client.beat()


@pytest.mark.parametrize("goes", [leaves, falls_silent, loses_its_endpoint])
def test_endpoints_are_read_again_when_one_is_gone(goes: Callable[[CoreDriver, StreamsClient], None]) -> None:
    """A process that left, that is silent, or that came back without its endpoint, answers no queries any more."""
    driver = streams_driver()
    first, second = StreamsClient(driver, "a", endpoint=("h1", 1)), StreamsClient(driver, "b")
    settle([first, second])
    driver.pass_time(1)
    second.beat()
    known = second.endpoint_epoch
    goes(driver, first)
    second.beat()
    assert second.endpoint_epoch != known


def test_endpoints_are_read_again_after_a_move() -> None:
    """Also by a client that was silent until as many changes had happened as it had heard of before."""
    driver = streams_driver()
    first, second = StreamsClient(driver, "a", endpoint=("h1", 1)), StreamsClient(driver, "b")
    settle([first, second])
    second.beat()
    driver.fail_over()
    for _ in range(second.endpoint_epoch):
        first.epoch = 0
        first.beat()
    second.beat()
    assert second.answered is not None
    assert second.answered.partitions_by_user_endpoint is not None


def test_the_first_delay_is_not_prolonged() -> None:
    """Neither by members that come later, nor when the first one has left before."""
    driver = streams_driver(delay_ms=3_000)
    first = StreamsClient(driver, "a")
    first.beat()
    driver.create_topics()
    driver.pass_time(2_000)
    first.leave()
    StreamsClient(driver, "b").beat()
    assert group_of(driver).assignment_epoch < group_of(driver).epoch
    driver.pass_time(1_000)
    assert group_of(driver).assignment_epoch == group_of(driver).epoch


def test_a_group_may_go_while_its_topics_are_created() -> None:
    driver = streams_driver()
    client = StreamsClient(driver, "a")
    client.beat()
    client.leave()
    assert len(driver.creations) == 1
    answer = driver.ask(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert answer.results[0].error_code == 0  # type: ignore[attr-defined]
    driver.create_topics()
    assert listed(driver) == []
    other = StreamsClient(driver, "b")
    settle([other])
    assert len(other.active) == 6


@pytest.mark.parametrize("version", [3, 9])
def test_no_classic_group_begins_beside_a_streams_group(version: int) -> None:
    """The log refuses the end of the streams group: with two groups of one id, DeleteGroups ended the broker."""
    driver = streams_driver()
    client = StreamsClient(driver, "a")
    settle([client])
    client.leave()
    driver.auto_commit = False
    joined = driver.send(join_request(), version)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE if version == 3 else ErrorCode.MEMBER_ID_REQUIRED
    assert code_of(driver.answers[joined]) is code
    assert not driver.core.rebalancer.groups
    driver.auto_commit = True
    assert listed(driver) == [(GROUP, "streams")]
    deleted: Any = driver.ask(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert deleted.results[0].error_code == ErrorCode.NONE


def test_a_classic_group_ends_where_a_streams_group_begins() -> None:
    """The next coordinator would find two groups of one name in the log."""
    driver = streams_driver()
    stable_group(driver, 1)
    driver.pass_time(400_000)  # the classic member's session ends
    assert listed(driver) == [(GROUP, "classic")]
    client = StreamsClient(driver, "a")
    settle([client])
    for _ in range(2):
        assert listed(driver) == [(GROUP, "streams")]
        driver.fail_over()
    settle([client])
    assert group_of(driver).state is StreamsGroupState.STABLE
    client.leave()
    driver.ask(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    driver.fail_over()
    assert listed(driver) == []


def test_repartition_topics_that_read_each_other_are_refused() -> None:
    """No number of partitions follows from such a loop."""
    driver = streams_driver()
    loop = [
        Subtopology(subtopology_id="0", repartition_source_topics=[topic("b")], repartition_sink_topics=["a"]),
        Subtopology(subtopology_id="1", repartition_source_topics=[topic("a")], repartition_sink_topics=["b"]),
    ]
    client = StreamsClient(driver, "a", Topology(epoch=0, subtopologies=loop))
    assert client.beat() is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_a_topology_that_turns_out_wrong_after_the_delay() -> None:
    """While a source topic is missing, the numbers of partitions are not computed, so a loop is not noticed.

    The topic may be created before the delay of the first assignment ends.
    """
    driver = streams_driver(delay_ms=3_000)
    parts = [
        Subtopology(subtopology_id="0", repartition_source_topics=[topic("b")], repartition_sink_topics=["a"]),
        Subtopology(subtopology_id="1", repartition_source_topics=[topic("a")], repartition_sink_topics=["b"]),
        Subtopology(subtopology_id="2", source_topics=["late"]),
    ]
    client = StreamsClient(driver, "a", Topology(epoch=0, subtopologies=parts))
    assert client.beat() is ErrorCode.NONE
    assert Status.MISSING_SOURCE_TOPICS in client.statuses
    driver.make_topic("late")
    driver.pass_time(3_000)
    assert client.beat() is ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert client.leave() is ErrorCode.NONE


def test_each_part_of_a_long_chain_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids can sort a chain of subtopologies backwards; a broker must not look at all of them for each one."""
    looks = 0
    largest_input = internal_topics._largest_input

    def counting(*args: Any) -> int:
        nonlocal looks
        looks += 1
        return largest_input(*args)

    monkeypatch.setattr(internal_topics, "_largest_input", counting)
    count = 300
    parts = [
        Subtopology(
            subtopology_id=f"{count - n:04}",
            repartition_source_topics=[topic(f"r{n}")],
            repartition_sink_topics=[f"r{n + 1}"],
        )
        for n in range(count)
    ]
    parts.append(Subtopology(subtopology_id="9999", source_topics=["t"], repartition_sink_topics=["r0"]))
    client = StreamsClient(streams_driver(), "a", Topology(epoch=0, subtopologies=parts))
    assert client.beat() is ErrorCode.NONE
    sizes = {topic.name: topic.partitions for topic in client.driver.creations[0].topics}
    assert sizes == {f"r{n}": 3 for n in range(count)}
    assert looks <= 2 * len(parts)


def test_sinks_are_decided_from_what_is_known_in_their_turn() -> None:
    """As in Kafka, which looks at the subtopologies in rounds and does not wait for the other inputs."""
    parts = [
        Subtopology(
            subtopology_id="0",
            repartition_source_topics=[topic("b"), topic("c")],
            repartition_sink_topics=["a"],
        ),
        Subtopology(subtopology_id="1", source_topics=["small"], repartition_sink_topics=["b"]),
        Subtopology(subtopology_id="2", repartition_source_topics=[topic("d")], repartition_sink_topics=["c"]),
        Subtopology(
            subtopology_id="3",
            source_topics=["large"],
            repartition_source_topics=[topic("a")],
            repartition_sink_topics=["d"],
        ),
    ]
    driver = streams_driver(small=2, large=5)
    client = StreamsClient(driver, "m", Topology(epoch=0, subtopologies=parts))
    assert client.beat() is ErrorCode.NONE
    sizes = {topic.name: topic.partitions for topic in driver.creations[0].topics}
    assert sizes == {"a": 2, "b": 2, "c": 5, "d": 5}


def test_a_full_group_takes_what_needs_no_more_memory() -> None:
    """The bound may have been lowered since; members that shrink or stay as they are must not be refused."""
    driver = streams_driver()
    client = StreamsClient(driver, "a", endpoint=("a-long-name", 1))
    settle([client])
    object.__setattr__(driver.config, "metadata_bytes_max", 1)
    for host, code in (
        ("a-short", ErrorCode.NONE),
        ("b-short", ErrorCode.NONE),
        ("a-longer-name", ErrorCode.GROUP_MAX_SIZE_REACHED),
        ("a", ErrorCode.NONE),
    ):
        client.endpoint, client.sends_all = (host, 1), True
        assert client.beat() is code


def test_a_member_that_moved_to_another_process_is_recorded() -> None:
    """Its standby tasks must lie elsewhere, so the group is assigned again."""
    driver = streams_driver()
    client = StreamsClient(driver, "a", process="here")
    settle([client])
    before = group_of(driver).epoch
    client.process, client.sends_all = "there", True
    client.beat()
    assert group_of(driver).members["a"].process_id == "there"
    assert group_of(driver).epoch > before
    assert reloaded(driver) == group_of(driver)


def test_an_empty_group_ends_with_the_last_of_its_offsets() -> None:
    """Each offset expires by its own age, and the group stays as long as one is left."""
    driver = streams_driver()
    client = StreamsClient(driver, "a")
    settle([client])
    client.leave()
    half_ms = driver.config.offsets_retention_ms // 2
    for partition in (0, 1):
        driver.ask(commit_request(7, partition=partition), 9)
        driver.pass_time(half_ms)
    driver.pass_time(driver.config.offsets_retention_check_interval_ms)
    assert list(driver.core.offsets.committed(GROUP)) == [("t", 1)]
    assert listed(driver) == [(GROUP, "streams")]
    driver.pass_time(half_ms)
    assert listed(driver) == []


def test_a_heartbeat_without_tasks_gives_none_back() -> None:
    """A member may leave out its tasks: it may still run those that were taken away."""
    task = ("0", 1)
    member = StreamsMember(
        member_id="m",
        epoch=3,
        previous_epoch=2,
        state=MemberState.UNREVOKED_TASKS,
        revoking=TaskSets(active=frozenset({task})),
    )
    for reported in (None, TaskSets(active=frozenset({task}))):
        assert reconcile(member, 5, EMPTY_TASKS, lambda kind, task: True, reported, joins=False) == member
    for reported, joins in ((EMPTY_TASKS, False), (None, True)):
        after = reconcile(member, 5, EMPTY_TASKS, lambda kind, task: True, reported, joins=joins)
        assert (after.epoch, after.state, after.revoking) == (5, MemberState.STABLE, EMPTY_TASKS)


def test_a_closing_that_follows_a_closing_has_a_newer_epoch() -> None:
    """A commit that was sent before the second one, and arrives late, is one of a former epoch."""
    first, second, third = (TaskSets(active=frozenset({("0", number)})) for number in range(3))
    both = TaskSets(active=first.active | second.active)
    member = StreamsMember(
        member_id="m", epoch=3, state=MemberState.UNREVOKED_TASKS, assigned=both, revoking=third, since={("0", 0): 1}
    )
    after = reconcile(member, 9, first, lambda kind, task: True, both, joins=False)
    assert (after.epoch, after.state, after.revoking) == (4, MemberState.UNREVOKED_TASKS, second)
    last = reconcile(after, 9, first, lambda kind, task: True, first, joins=False)
    assert (last.epoch, last.state, last.assigned) == (9, MemberState.STABLE, first)


def test_a_task_that_was_closed_and_comes_back_is_new() -> None:
    """A commit of the time before may arrive late: the member has closed the task since, and may have gone on."""
    driver = streams_driver()
    first, second = StreamsClient(driver, "a"), StreamsClient(driver, "b")
    settle([first])
    before, all_tasks = first.epoch, first.running
    second.beat()
    first.beat()
    closed = [number for part, number in sorted(all_tasks.active - first.running.active) if part == "0"]
    kept = [number for part, number in sorted(first.running.active) if part == "0"]
    second.leave()
    first.beat()
    assert first.running == all_tasks
    assert [first.commit(partition=number, epoch=before) for number in kept] == [ErrorCode.NONE] * len(kept)
    assert [first.commit(partition=number, epoch=before) for number in closed] == [ErrorCode.STALE_MEMBER_EPOCH]
    settle([first])
    assert first.commit(partition=closed[0]) is ErrorCode.NONE
    check_group(group_of(driver))


def test_an_id_that_no_classic_member_uses_yet_is_free() -> None:
    """A client of the classic protocol got a member id and went away: the group has no members."""
    driver = streams_driver()
    assert code_of(driver.ask(join_request(), 9)) is ErrorCode.MEMBER_ID_REQUIRED
    newcomer = StreamsClient(driver, "m")
    settle([newcomer])
    assert len(newcomer.active) == 6


def test_a_refused_classic_member_ends_no_streams_group() -> None:
    """It names an id that no classic group knows; the empty group keeps its epoch."""
    driver = streams_driver()
    member = StreamsClient(driver, "m")
    settle([member])
    member.leave()
    before = driver.core.streams.committed[GROUP]
    assert code_of(driver.ask(join_request("one-of-another-group"), 9)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.core.streams.committed[GROUP] is before


def test_each_member_that_leaves_a_streams_group_is_unknown() -> None:
    """LeaveGroup of an administrator: a code for the whole request would hide the member that it is about."""
    driver = streams_driver()
    StreamsClient(driver, "m").beat()
    answer = driver.ask(leave_request(("m", None)), 5)
    assert isinstance(answer, LeaveGroupResponse)
    assert (answer.error_code, answer.members[0].error_code) == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    assert set(group_of(driver).members) == {"m"}
