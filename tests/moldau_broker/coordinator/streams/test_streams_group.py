"""Goal: a streams group does what KIP-1071 asks, step by step, and refuses what it must.

Method: clients that send heartbeats to the pure core; each test is a short story. Errors come first.
"""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from moldau.protocol.messages.streams_group_heartbeat import CopartitionGroup, Subtopology, TaskOffset
from moldau_broker.coordinator.group.streams.core.internal_topics import Status
from moldau_broker.coordinator.group.streams.core.state import EMPTY_TASKS, MemberState, StreamsGroupState, TaskSets
from support.coordinator.group_world import CoreDriver, code_of, commit_request, heartbeat_request, join_request
from support.coordinator.streams_world import (
    GROUP,
    SESSION_MS,
    StreamsClient,
    check_group,
    entries,
    group_of,
    join_of,
    reloaded,
    settle,
    streams_driver,
    topic,
    word_count,
)


def started(count: int = 2, **options: int) -> tuple[CoreDriver, list[StreamsClient]]:
    driver = streams_driver(**options)
    clients = [StreamsClient(driver, f"m{number}") for number in range(count)]
    settle(clients)
    return driver, clients


TEXTS = ("group_id", "member_id", "instance_id", "rack_id")


def wrong(change, *, epoch: int = 0) -> ErrorCode:
    """Returns the answer to a changed first heartbeat of a client."""
    driver = streams_driver()
    client = StreamsClient(driver, "m")
    client.epoch = epoch
    request = client.request()
    change(request)
    answer = driver.ask(request, 1)
    assert driver.core.streams.committed == {}
    return ErrorCode(answer.error_code)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda r: setattr(r, "instance_id", ""), ErrorCode.INVALID_REQUEST),
        (lambda r: setattr(r, "member_id", ""), ErrorCode.INVALID_REQUEST),
        *((lambda r, key=key: setattr(r, key, " "), ErrorCode.INVALID_REQUEST) for key in TEXTS),
        (lambda r: setattr(r, "rack_id", ""), ErrorCode.INVALID_REQUEST),
        (lambda r: setattr(r, "rebalance_timeout_ms", -1), ErrorCode.INVALID_REQUEST),
        (lambda r: setattr(r, "rebalance_timeout_ms", -7), ErrorCode.INVALID_REQUEST),
        (lambda r: setattr(r, "topology", None), ErrorCode.INVALID_REQUEST),
        (lambda r: setattr(r, "standby_tasks", None), ErrorCode.INVALID_REQUEST),
        (lambda r: setattr(r, "active_tasks", entries(frozenset([("0", 0)]))), ErrorCode.INVALID_REQUEST),
        (lambda r: setattr(r, "member_epoch", -2), ErrorCode.INVALID_REQUEST),
        (lambda r: setattr(r, "member_epoch", -9), ErrorCode.INVALID_REQUEST),
        (lambda r: setattr(r, "member_epoch", 4), ErrorCode.INVALID_REQUEST),
        (lambda r: setattr(r.topology, "epoch", -1), ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (lambda r: setattr(r.topology.subtopologies[0], "source_topics", ["a b"]), ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (
            lambda r: setattr(r.topology.subtopologies[0], "source_topics", ["__consumer_offsets"]),
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
        (lambda r: setattr(r.topology.subtopologies[0], "source_topic_regex", ["a.*"]), ErrorCode.INVALID_REQUEST),
        (
            lambda r: setattr(r.topology.subtopologies[1], "state_changelog_topics", [topic("c", 3)]),
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
        (
            lambda r: setattr(r.topology.subtopologies[0], "copartition_groups", [CopartitionGroup(source_topics=[1])]),
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
        (lambda r: setattr(r.topology.subtopologies[1], "subtopology_id", "0"), ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (
            lambda r: setattr(r.topology.subtopologies[0], "repartition_sink_topics", []),
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
        (
            lambda r: setattr(r.topology, "subtopologies", [Subtopology(subtopology_id="0")]),
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
    ],
)
def test_wrong_first_heartbeat_is_refused(change, code: ErrorCode) -> None:
    assert wrong(change) is code


@pytest.mark.parametrize("offsets", [[], [TaskOffset(subtopology_id="0", partition=1, offset=7)]])
def test_members_may_report_restored_offsets(offsets) -> None:
    """Those of Kafka Streams 4.4 do so from their first heartbeat on; only warm-up tasks would depend on it."""
    driver = streams_driver()
    client = StreamsClient(driver, "m")
    request = client.request()
    request.task_offsets = request.task_end_offsets = offsets
    answer = driver.ask(request, 1)
    assert ErrorCode(answer.error_code) is ErrorCode.NONE  # type: ignore[attr-defined]
    assert list(driver.core.streams.committed[GROUP].members) == ["m"]


def test_unknown_groups_and_members_are_refused() -> None:
    driver = streams_driver()
    stranger = StreamsClient(driver, "x")
    stranger.epoch = 3
    assert stranger.beat() is ErrorCode.GROUP_ID_NOT_FOUND
    settle([StreamsClient(driver, "m")])
    stranger.epoch = 3
    assert stranger.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert StreamsClient(driver, "y").leave() is ErrorCode.UNKNOWN_MEMBER_ID


def test_wrong_epochs_are_fenced() -> None:
    driver, (client, _) = started()
    present = client.epoch
    for epoch in (present + 1, 1):
        client.epoch = epoch
        assert client.beat() is ErrorCode.FENCED_MEMBER_EPOCH
    assert client.epoch == 0
    assert client.beat() is ErrorCode.NONE
    assert client.epoch == group_of(driver).epoch


def test_former_epoch_is_accepted_if_the_answer_was_lost() -> None:
    driver, (first, second) = started()
    second.leave()
    first.send()
    assert first.take(lost=True) is ErrorCode.NONE
    assert first.beat() is ErrorCode.NONE
    assert len(first.active) == 6
    assert group_of(driver).state is StreamsGroupState.STABLE


def test_tasks_outside_the_topology_are_refused() -> None:
    driver, (client, _) = started()
    for task in (("0", 3), ("0", -1), ("9", 0)):
        request = client.request()
        request.active_tasks = entries(frozenset([task]))
        assert ErrorCode(driver.ask(request, 1).error_code) is ErrorCode.INVALID_REQUEST  # type: ignore[attr-defined]


def test_refused_heartbeats_do_not_prolong_a_session() -> None:
    driver, (client, other) = started()
    wrong = client.request()
    wrong.active_tasks = entries(frozenset([("9", 0)]))
    for _ in range(SESSION_MS // 5_000):
        other.beat()
        assert ErrorCode(driver.ask(wrong, 1).error_code) is ErrorCode.INVALID_REQUEST  # type: ignore[attr-defined]
        driver.pass_time(5_000)
    assert list(group_of(driver).members) == [other.member_id]


def test_given_tasks_that_a_topic_has_lost_are_taken_back() -> None:
    driver, (client,) = started(1)
    driver.topics.counts.update(t=2, words=2, counts=2)
    settle([client])
    assert client.active == ["0_0", "0_1", "1_0", "1_1"]


def test_answer_with_a_new_epoch_names_the_tasks() -> None:
    """A member that has not begun its tasks yet, and misses the order to give them back, must not begin them."""
    driver, (client,) = started(1)
    client.running = EMPTY_TASKS  # the tasks are given, and not begun
    driver.delete_topic("words")
    client.send()
    assert client.take(lost=True) is ErrorCode.NONE
    assert group_of(driver).members["m0"].state is MemberState.UNREVOKED_TASKS
    client.beat()
    assert client.given == group_of(driver).members["m0"].assigned == EMPTY_TASKS


def test_member_with_tasks_of_another_hears_of_it() -> None:
    driver, (first, second) = started()
    first.running = TaskSets(active=first.running.active | second.running.active)
    first.given = first.running
    first.beat()
    assert first.running == group_of(driver).members["m0"].assigned


def test_full_group_refuses_members() -> None:
    driver, clients = started()
    object.__setattr__(driver.config, "streams_size_max", 2)
    assert StreamsClient(driver, "x").beat() is ErrorCode.GROUP_MAX_SIZE_REACHED
    clients[0].epoch = 0
    assert clients[0].beat() is ErrorCode.NONE  # a member may join again


def test_topics_are_created_and_tasks_follow() -> None:
    driver = streams_driver()
    client = StreamsClient(driver, "m")
    assert client.beat() is ErrorCode.NONE
    assert client.statuses == [Status.MISSING_INTERNAL_TOPICS]
    assert client.running == EMPTY_TASKS
    assert group_of(driver).state is StreamsGroupState.NOT_READY
    (creation,) = driver.creations
    assert [(t.name, t.partitions, dict(t.configs)) for t in creation.topics] == [
        ("counts", 3, {"cleanup.policy": "compact"}),
        ("words", 3, {"cleanup.policy": "delete"}),
    ]
    client.beat()
    assert len(driver.creations) == 1, "topics are created once at a time"
    driver.create_topics()
    settle([client])
    assert client.statuses == []
    assert client.active == ["0_0", "0_1", "0_2", "1_0", "1_1", "1_2"]
    assert group_of(driver).state is StreamsGroupState.STABLE


def test_a_refused_topology_creates_no_topics() -> None:
    driver = streams_driver(auto_commit=False)
    client = StreamsClient(driver, "m")
    client.send()
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert client.take() is not ErrorCode.NONE
    assert driver.creations == []
    driver.auto_commit = True
    client.beat()
    assert len(driver.creations) == 1


def test_failed_creation_is_reported_and_repeated() -> None:
    driver = streams_driver()
    client = StreamsClient(driver, "m")
    client.beat()
    driver.create_topics({"counts": ErrorCode.POLICY_VIOLATION, "words": ErrorCode.POLICY_VIOLATION})
    client.beat()
    assert driver.creations == []
    assert client.answered is not None
    assert client.answered.status is not None
    assert "Creation failed: counts (POLICY_VIOLATION), words (POLICY_VIOLATION)." in (
        client.answered.status[0].status_detail
    )
    driver.pass_time(10_000)
    client.beat()
    driver.create_topics()
    settle([client])
    assert len(client.active) == 6


def test_missing_source_topics_are_reported() -> None:
    driver = streams_driver(u=1)
    client = StreamsClient(driver, "m")
    client.beat()
    assert client.statuses == [Status.MISSING_SOURCE_TOPICS]
    assert driver.creations == []
    driver.make_topic("t")
    driver.topics.counts["t"] = 2
    settle([client])
    assert client.active == ["0_0", "0_1", "1_0", "1_1"]


def test_unequal_partitions_of_a_join_are_reported() -> None:
    driver = streams_driver(t=3, u=2)
    client = StreamsClient(driver, "m", join_of("t", "u"))
    client.beat()
    assert client.statuses == [Status.INCORRECTLY_PARTITIONED_TOPICS]
    driver.topics.counts["u"] = 3
    settle([client])
    assert client.active == ["0_0", "0_1", "0_2"]
    driver.topics.counts["u"] = 4
    client.beat()
    assert client.statuses == [Status.INCORRECTLY_PARTITIONED_TOPICS]
    client.beat()
    assert client.active == []
    assert group_of(driver).state is StreamsGroupState.NOT_READY


def test_stale_topology_is_reported_and_another_is_refused() -> None:
    driver = streams_driver()
    settle([StreamsClient(driver, "new", word_count(epoch=2))])
    old = StreamsClient(driver, "old", word_count(epoch=1, source="u"))
    assert old.beat() is ErrorCode.NONE
    assert old.statuses == [Status.STALE_TOPOLOGY]
    other = StreamsClient(driver, "other", word_count(epoch=2, source="u"))
    assert other.beat() is ErrorCode.INVALID_REQUEST


def test_shutdown_reaches_all_until_the_group_is_empty() -> None:
    driver, (first, second) = started()
    first.shutdown = True
    first.beat()
    second.beat()
    assert second.statuses == [Status.SHUTDOWN_APPLICATION]
    first.leave()
    second.beat()
    assert second.statuses == [Status.SHUTDOWN_APPLICATION]
    second.shutdown = True
    second.leave()
    again = StreamsClient(driver, "again")
    again.beat()
    assert again.statuses == []


def test_first_assignment_waits_for_further_members() -> None:
    driver = streams_driver(delay_ms=3_000)
    clients = [StreamsClient(driver, f"m{number}") for number in range(2)]
    for client in clients:
        client.beat()
        driver.create_topics()
        assert Status.ASSIGNMENT_DELAYED in client.statuses
        assert (client.epoch, client.running) == (1, EMPTY_TASKS)
    driver.pass_time(3_000)
    assert group_of(driver).assignment_epoch == group_of(driver).epoch
    assert all(client.running == EMPTY_TASKS for client in clients)
    settle(clients)
    assert [len(client.active) for client in clients] == [3, 3]


def test_epochs_of_a_group_never_fall_while_it_waits() -> None:
    """A commit of the application's last run, which the network held back, must not carry a present epoch."""
    driver = streams_driver(delay_ms=3_000)
    before = StreamsClient(driver, "before")
    before.beat()
    driver.create_topics()
    driver.pass_time(3_000)
    settle([before])
    last = before.epoch
    before.leave()
    again = StreamsClient(driver, "again")
    again.beat()
    assert Status.ASSIGNMENT_DELAYED in again.statuses
    assert again.epoch >= last


def test_delay_setting_of_a_group_counts() -> None:
    driver = streams_driver()
    driver.topics.settings[GROUP, "streams.initial.rebalance.delay.ms"] = 500
    driver.topics.settings[GROUP, "streams.heartbeat.interval.ms"] = 700
    client = StreamsClient(driver, "m")
    client.beat()
    assert Status.ASSIGNMENT_DELAYED in client.statuses
    assert client.answered is not None
    assert client.answered.heartbeat_interval_ms == 700
    driver.pass_time(500)
    settle([client])
    assert len(client.active) == 6


def test_task_moves_only_after_it_is_closed() -> None:
    driver, (first,) = started(1)
    second = StreamsClient(driver, "x")
    second.beat()
    assert second.active == []
    first.send()
    first.take()  # it is asked to close three tasks, and still runs all six
    assert len(first.running.active) == 6
    second.beat()
    assert second.active == []
    assert group_of(driver).members["m0"].state is MemberState.UNREVOKED_TASKS
    first.send()
    first.take()
    second.beat()
    assert second.active == [], "the first member has not reported yet that it has closed the tasks"
    first.obey()
    first.beat()
    second.beat()
    assert len(second.active) == 3
    assert reloaded(driver) == group_of(driver)


@pytest.mark.parametrize("fail_over", [False, True])
def test_member_that_does_not_close_is_removed(fail_over: bool) -> None:
    driver = streams_driver()
    first = StreamsClient(driver, "m0", rebalance_ms=2_000)
    settle([first])
    second = StreamsClient(driver, "x")
    second.beat()
    first.send()
    first.take()
    if fail_over:
        driver.fail_over()
    driver.pass_time(2_000)
    assert "m0" not in group_of(driver).members
    settle([second])
    assert len(second.active) == 6
    assert first.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_silent_member_is_removed_after_its_session() -> None:
    driver, (first, second) = started()
    driver.pass_time(SESSION_MS - 1)
    first.beat()
    driver.pass_time(1)
    assert sorted(group_of(driver).members) == ["m0"]
    settle([first])
    assert len(first.active) == 6
    assert second.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_session_counts_from_the_failover() -> None:
    driver, clients = started()
    driver.pass_time(SESSION_MS - 1)
    driver.fail_over()
    driver.pass_time(SESSION_MS - 1)
    settle(clients)
    driver.pass_time(SESSION_MS)
    assert group_of(driver).members == {}
    assert group_of(driver).state is StreamsGroupState.EMPTY


def test_standbys_are_on_other_processes() -> None:
    driver = streams_driver(standbys=1)
    clients = [StreamsClient(driver, name, process=name[0]) for name in ("a1", "a2", "b1", "b2")]
    settle(clients)
    check_group(group_of(driver))
    assert sorted(task for client in clients for task in client.standby) == ["1_0", "1_1", "1_2"]
    driver.topics.settings[GROUP, "streams.num.standby.replicas"] = 0
    settle(clients)
    assert [client.standby for client in clients] == [[], [], [], []]


def test_standby_becomes_active_when_its_owner_leaves() -> None:
    driver = streams_driver(standbys=1)
    first, second = (StreamsClient(driver, name) for name in ("a", "b"))
    settle([first, second])
    first.leave()
    settle([second])
    assert len(second.active) == 6
    assert second.standby == []


def test_endpoints_tell_where_partitions_are() -> None:
    driver = streams_driver()
    first, second = StreamsClient(driver, "a", endpoint=("h1", 1)), StreamsClient(driver, "b", endpoint=("h2", 2))
    settle([first, second])
    first.endpoint_epoch = -1
    first.beat()
    assert first.answered is not None
    found = {
        (entry.user_endpoint.host, entry.user_endpoint.port): {
            part.topic: sorted(part.partitions) for part in entry.active_partitions
        }
        for entry in first.answered.partitions_by_user_endpoint or ()
    }
    every = sorted((name, number) for parts in found.values() for name, numbers in parts.items() for number in numbers)
    assert set(found) == {("h1", 1), ("h2", 2)}
    assert every == [(name, number) for name in ("t", "words") for number in range(3)]
    first.beat()
    assert first.answered.partitions_by_user_endpoint is None


@pytest.mark.parametrize("instance", [None, "i"])
def test_a_process_does_not_inherit_an_endpoint(instance: str | None) -> None:
    """Queries would be sent to the address of the process that has ended."""
    driver = streams_driver()
    former = StreamsClient(driver, "a", endpoint=("h1", 1), instance=instance)
    other = StreamsClient(driver, "b", endpoint=("h2", 2))
    settle([former, other])
    if instance is not None:
        former.leave(-2)
    present = StreamsClient(driver, "a" if instance is None else "c", instance=instance)
    settle([present, other])
    assert present.active
    other.endpoint_epoch = -1
    other.beat()
    assert other.answered is not None
    hosts = [entry.user_endpoint.host for entry in other.answered.partitions_by_user_endpoint or ()]
    assert hosts == ["h2"]


def test_commits_are_judged_by_member_and_task_epoch() -> None:
    driver, (first, second) = started()
    owner, other = (first, second) if "0_0" in first.active else (second, first)
    assert owner.commit() is ErrorCode.NONE
    assert owner.commit(epoch=owner.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert owner.commit(epoch=owner.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    other.leave()
    before = owner.epoch
    settle([owner])
    assert owner.epoch > before
    assert owner.commit(epoch=before) is ErrorCode.NONE, "the task was the member's then already"
    taken = next(n for n in range(3) if f"0_{n}" in other.active)
    assert owner.commit(partition=taken, epoch=before) is ErrorCode.STALE_MEMBER_EPOCH
    assert owner.commit(topic="counts", epoch=before) is ErrorCode.STALE_MEMBER_EPOCH
    assert code_of(driver.ask(commit_request(1, other.member_id, 2), 9)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(driver.ask(commit_request(1), 9)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_one_stale_partition_refuses_a_whole_commit() -> None:
    """The member had the task of one partition in the epoch of the commit, and another member that of the other."""
    driver, (first, second) = started()
    owner, other = (first, second) if "0_0" in first.active else (second, first)
    other.leave()
    before = owner.epoch
    settle([owner])
    taken = next(number for number in range(3) if f"0_{number}" in other.active)
    late = commit_request(1, owner.member_id, before, group=GROUP)
    assert code_of(driver.ask(late, 9)) is ErrorCode.NONE
    late.topics[0].partitions = [
        part for number in (0, taken) for part in commit_request(2, partition=number).topics[0].partitions
    ]
    assert code_of(driver.ask(late, 9)) is ErrorCode.STALE_MEMBER_EPOCH
    committed = driver.core.offsets.committed(GROUP)
    assert [(key, each.offset) for key, each in committed.items()] == [(("t", 0), 1)]


def test_offsets_are_read_in_the_present_epoch() -> None:
    driver, (first, _) = started()
    assert first.commit(9) is ErrorCode.NONE

    def fetch(member: str | None, epoch: int) -> tuple[int, int]:
        asked = OffsetFetchRequestGroup(
            group_id=GROUP,
            member_id=member,
            member_epoch=epoch,
            topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])],
        )
        answer = driver.core.fetch(asked, False)
        return answer.error_code, answer.topics[0].partitions[0].committed_offset if answer.topics else -1

    assert fetch(None, -1) == (0, 9)
    assert fetch(first.member_id, first.epoch) == (0, 9)
    assert fetch(first.member_id, first.epoch - 1)[0] == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("x", 1)[0] == ErrorCode.UNKNOWN_MEMBER_ID


def test_requests_of_other_protocols_are_refused() -> None:
    driver, clients = started()
    joined = driver.ask(join_request(), 9)
    assert code_of(joined) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code_of(driver.ask(heartbeat_request("m0", 1), 4)) is ErrorCode.UNKNOWN_MEMBER_ID
    consumer = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="c",
        member_epoch=0,
        rebalance_timeout_ms=1,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    assert driver.ask(consumer, 1).error_code == ErrorCode.GROUP_ID_NOT_FOUND  # type: ignore[attr-defined]
    settle(clients)


def test_empty_group_makes_way_for_a_classic_one_and_back() -> None:
    """The offsets stay when a stopped application changes its protocol."""
    driver, clients = started()
    assert clients[0].commit(7, partition=int(clients[0].active[0][2:])) is ErrorCode.NONE
    for client in clients:
        client.leave()
    joined = driver.ask(join_request(), 9)
    assert code_of(joined) is ErrorCode.MEMBER_ID_REQUIRED
    assert driver.core.streams.committed == {}
    assert len(driver.core.offsets.committed(GROUP)) == 1
    driver.send(join_request(joined.member_id), 9)  # type: ignore[attr-defined]
    newcomer = StreamsClient(driver, "n")
    assert newcomer.beat() is ErrorCode.GROUP_ID_NOT_FOUND
    driver.pass_time(400_000)  # the classic member's session ends
    newcomer.epoch = 0
    settle([newcomer])
    assert len(newcomer.active) == 6
    assert len(driver.core.offsets.committed(GROUP)) == 1


def test_groups_are_listed_described_and_deleted() -> None:
    driver, clients = started()

    def listed(**filters: list[str]) -> list[tuple[str, str, str]]:
        answer = driver.ask(ListGroupsRequest(**filters), 5)
        return [(g.group_id, g.group_state, g.group_type) for g in answer.groups]  # type: ignore[attr-defined]

    assert listed() == [(GROUP, "Stable", "streams")]
    assert listed(types_filter=["Streams"], states_filter=["stable"]) == [(GROUP, "Stable", "streams")]
    assert listed(types_filter=["consumer"]) == []
    asked = StreamsGroupDescribeRequest(group_ids=[GROUP, "none"], include_topology_description=True)
    group, absent = driver.ask(asked, 1).groups  # type: ignore[attr-defined]
    assert absent.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (group.group_state, group.assignor_name, group.topology_description_status) == ("Stable", "sticky", 1)
    assert [part.subtopology_id for part in group.topology.subtopologies] == ["0", "1"]
    assert group.topology.subtopologies[1].state_changelog_topics[0].partitions == 3
    assert [member.assignment for member in group.members] == [member.target_assignment for member in group.members]
    classic = driver.ask(DescribeGroupsRequest(groups=[GROUP]), 6).groups[0]  # type: ignore[attr-defined]
    assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    def delete() -> ErrorCode:
        answer = driver.ask(DeleteGroupsRequest(groups_names=[GROUP]), 2)
        return ErrorCode(answer.results[0].error_code)  # type: ignore[attr-defined]

    assert clients[0].commit(3, partition=int(clients[0].active[0][2:])) is ErrorCode.NONE
    assert delete() is ErrorCode.NON_EMPTY_GROUP
    for client in clients:
        client.leave()
    assert listed() == [(GROUP, "Empty", "streams")]
    assert delete() is ErrorCode.NONE
    assert listed() == []
    assert driver._new_core().streams.committed == {}
    assert driver.core.offsets.committed(GROUP) == {}
