"""Goal: consumer groups behave as KIP-848 says: epochs, fencing, timeouts, static members, expressions and offsets.

Method: stories of a few clients against the pure core, with virtual time.
"""

from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau_broker.coordinator.group.consumer.core.records import change_record, parse_change
from moldau_broker.coordinator.group.consumer.core.state import (
    ConsumerGroupState,
    ConsumerMember,
    Current,
    GroupEpoch,
    MemberState,
    Regex,
    ResolvedRegex,
    Subscription,
    Target,
    TargetEpoch,
)
from moldau_broker.coordinator.group.core.config import GroupConfig
from support.coordinator.consumer_world import GROUP, ConsumerClient, check_group, group_of, reloaded, settle
from support.coordinator.group_world import Consumer, CoreDriver, code_of, commit_request

T = UUID(int=1)


def world(partitions: int = 4, config: GroupConfig | None = None) -> CoreDriver:
    driver = CoreDriver(config)
    driver.topics.counts = {"t": partitions, "u": 2}
    return driver


def two(driver: CoreDriver) -> tuple[ConsumerClient, ConsumerClient]:
    a, b = ConsumerClient(driver, "a"), ConsumerClient(driver, "b")
    settle([a, b])
    return a, b


def describe(driver: CoreDriver, group: str = GROUP) -> DescribedGroup:
    answer = driver.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    assert isinstance(answer, ConsumerGroupDescribeResponse)
    return answer.groups[0]


def heartbeat_code(driver: CoreDriver, request: ConsumerGroupHeartbeatRequest, version: int = 1) -> ErrorCode:
    return ErrorCode(driver.ask(request, version).error_code)  # type: ignore[attr-defined]


def test_the_first_member_gets_all_partitions() -> None:
    driver = world()
    a = ConsumerClient(driver, "a")
    assert a.beat() is ErrorCode.NONE
    assert (a.epoch, a.numbers) == (1, [0, 1, 2, 3])
    assert a.beat() is ErrorCode.NONE
    assert group_of(driver).state is ConsumerGroupState.STABLE


def test_partitions_move_only_after_their_release() -> None:
    """The second member waits until the first one no longer reports the partitions that it must release."""
    driver = world()
    a, b = ConsumerClient(driver, "a"), ConsumerClient(driver, "b")
    a.beat()
    b.beat()
    assert (b.epoch, b.numbers) == (2, [])
    assert group_of(driver).members["b"].state is MemberState.UNRELEASED_PARTITIONS
    a.send()
    a.take()
    assert a.epoch == 1, "the epoch of a member does not change before it has released what it must"
    assert sorted(number for _, number in a.given) == [0, 1]
    b.beat()
    assert b.numbers == []
    a.send()  # still reads all
    a.take()
    b.beat()
    assert b.numbers == []
    a.obey()
    a.beat()
    assert a.epoch == 2
    b.beat()
    assert b.numbers == [2, 3]
    assert describe(driver).group_state == "Stable"


def test_a_member_that_leaves_frees_its_partitions() -> None:
    driver = world()
    a, b = two(driver)
    assert b.leave() is ErrorCode.NONE
    assert group_of(driver).state is ConsumerGroupState.ASSIGNING
    a.beat()
    assert a.numbers == [0, 1, 2, 3]
    assert b.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_after_its_session() -> None:
    driver = world()
    a, _ = two(driver)
    for _ in range(8):
        driver.pass_time(5_000)
        a.beat()
    assert set(group_of(driver).members) == {"a", "b"}
    driver.pass_time(5_000)
    assert set(group_of(driver).members) == {"a"}
    a.beat()
    assert a.numbers == [0, 1, 2, 3]


def test_a_group_has_its_own_session_timeout() -> None:
    driver = world()
    driver.topics.settings = {
        (GROUP, "consumer.session.timeout.ms"): 50_000,
        (GROUP, "consumer.heartbeat.interval.ms"): 7_000,
    }
    a = ConsumerClient(driver, "a")
    a.send()
    assert driver.answers[a.last].heartbeat_interval_ms == 7_000  # type: ignore[index, attr-defined]
    driver.pass_time(49_000)
    assert "a" in group_of(driver).members
    driver.pass_time(1_001)
    assert not group_of(driver).members


@pytest.mark.parametrize("fail_over", [False, True])
def test_a_member_that_does_not_release_is_removed(fail_over: bool) -> None:
    driver = world()
    a = ConsumerClient(driver, "a", rebalance_ms=3_000)
    b = ConsumerClient(driver, "b")
    a.beat()
    b.beat()
    a.send()
    a.take()
    if fail_over:
        driver.fail_over()
    for _ in range(3):
        a.send()  # heartbeats alone do not count as progress
        a.take()
        driver.pass_time(1_000)
    b.beat()
    assert b.numbers == [0, 1, 2, 3]
    assert a.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_release_in_time_counts_although_its_write_is_late() -> None:
    """The time for the release ends while its write is in flight; by then the member must release more, in new time."""
    driver = world(6)
    a, b, c = (ConsumerClient(driver, name, rebalance_ms=3_000) for name in "abc")
    a.beat()
    b.beat()
    a.send()
    a.take()  # three partitions are for b
    c.beat()
    driver.pass_time(2_000)
    driver.auto_commit = False
    a.obey()
    a.send()  # it has released them, and hears next that one more is for c
    driver.pass_time(1_500)
    driver.auto_commit = True
    driver.commit()
    assert a.take() is ErrorCode.NONE
    assert group_of(driver).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    driver.pass_time(1_400)
    settle([a, b, c])
    assert [len(each.numbers) for each in (a, b, c)] == [2, 2, 2]


def test_wrong_epochs_are_fenced() -> None:
    driver = world()
    a, b = two(driver)
    settle([a, b, ConsumerClient(driver, "c")])
    assert a.epoch >= 3
    for wrong in (a.epoch + 1, a.epoch - 2):
        a.epoch = wrong
        a.send()
        assert driver.answers[a.last].error_code == ErrorCode.FENCED_MEMBER_EPOCH  # type: ignore[index, attr-defined]
    ghost = ConsumerClient(driver, "ghost")
    ghost.epoch = 1
    assert ghost.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_lost_answer_can_be_asked_for_again() -> None:
    driver = world()
    a = ConsumerClient(driver, "a")
    a.send()
    a.take(lost=True)
    assert a.epoch == 0
    assert a.beat() is ErrorCode.NONE
    assert (a.epoch, a.numbers) == (1, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -7}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 5}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_refused_requests(change: dict[str, object], code: ErrorCode) -> None:
    driver = world()
    request = ConsumerClient(driver, "a").request()
    for name, value in change.items():
        setattr(request, name, value)
    assert heartbeat_code(driver, request) is code
    assert driver.core.consumers.get(GROUP) is None


def test_refused_heartbeats_do_not_prolong_a_session() -> None:
    driver = world(config=GroupConfig(metadata_bytes_max=5_000))
    client = ConsumerClient(driver, "a")
    client.beat()
    wide = client.request()
    wide.subscribed_topic_names = [f"topic-{number}" for number in range(100)]
    for _ in range(9):
        assert heartbeat_code(driver, wide) is ErrorCode.GROUP_MAX_SIZE_REACHED
        driver.pass_time(5_000)
    assert not group_of(driver).members


def test_version_0_lets_the_coordinator_name_the_member() -> None:
    driver = world()
    answer = driver.ask(ConsumerClient(driver, "").request(), 0)
    assert answer.member_id == "id0"  # type: ignore[attr-defined]
    assert list(group_of(driver).members) == ["id0"]


def test_a_full_group_refuses_new_members() -> None:
    driver = world(config=GroupConfig(consumer_size_max=1))
    a = ConsumerClient(driver, "a")
    a.beat()
    for instance in (None, "i"):
        assert ConsumerClient(driver, "b", instance=instance).beat() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert a.beat() is ErrorCode.NONE


def test_memory_of_members_is_bounded() -> None:
    driver = world(config=GroupConfig(metadata_bytes_max=5_000))
    assert ConsumerClient(driver, "a").beat() is ErrorCode.NONE
    wide = ConsumerClient(driver, "b", tuple(f"topic-{number}" for number in range(100)))
    assert wide.beat() is ErrorCode.GROUP_MAX_SIZE_REACHED
    used = driver.core._memory.used_bytes
    assert used > 0
    driver.fail_over()
    assert driver.core._memory.used_bytes == used


def test_the_assignor_that_most_members_prefer_is_used() -> None:
    driver = world()
    a = ConsumerClient(driver, "a", assignor="range")
    a.beat()
    assert describe(driver).assignor_name == "range"
    b, c = (ConsumerClient(driver, name, assignor="uniform") for name in "bc")
    settle([a, b, c])
    assert describe(driver).assignor_name == "uniform"


def test_a_static_member_that_restarts_keeps_its_partitions() -> None:
    driver = world()
    a, b = ConsumerClient(driver, "a", instance="i"), ConsumerClient(driver, "b")
    settle([a, b])
    kept, epoch = a.numbers, group_of(driver).epoch
    assert ConsumerClient(driver, "a2", instance="i").beat() is ErrorCode.UNRELEASED_INSTANCE_ID
    assert a.leave(-2) is ErrorCode.NONE
    b.beat()
    assert len(b.numbers) == 2, "the partitions of the absent member stay reserved"
    assert a.beat() is ErrorCode.FENCED_MEMBER_EPOCH
    again = ConsumerClient(driver, "a2", instance="i")
    assert again.beat() is ErrorCode.NONE
    assert again.numbers == kept
    assert group_of(driver).epoch == epoch, "nothing has changed for the others"
    old = ConsumerClient(driver, "a", instance="i")
    old.epoch = epoch
    assert old.beat() is ErrorCode.FENCED_INSTANCE_ID


def test_an_absent_static_member_is_removed_in_the_end() -> None:
    driver = world()
    a = ConsumerClient(driver, "a", instance="i")
    a.beat()
    a.leave(-2)
    driver.pass_time(46_000)
    assert not group_of(driver).members


def test_topics_of_a_refused_write_are_looked_at_again() -> None:
    """The heartbeat that found new partitions was refused by the log; the next one must find them too."""
    driver = world()
    a = ConsumerClient(driver, "a")
    a.beat()
    driver.topics.counts["t"] = 6
    driver.auto_commit = False
    a.send()
    assert len(driver.uncommitted) == 1
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert a.take() is not ErrorCode.NONE
    driver.auto_commit = True
    a.beat()
    assert a.numbers == [0, 1, 2, 3, 4, 5]


def test_new_topics_and_partitions_raise_the_epoch() -> None:
    driver = world()
    a = ConsumerClient(driver, "a", ("t", "later"))
    a.beat()
    driver.topics.counts["t"] = 6
    a.beat()
    assert (a.epoch, a.numbers) == (2, [0, 1, 2, 3, 4, 5])
    driver.make_topic("later")
    driver.topics.counts["later"] = 1
    a.beat()
    assert len(a.reading) == 7
    driver.delete_topic("later")
    a.beat()
    a.beat()
    assert a.numbers == [0, 1, 2, 3, 4, 5]
    assert group_of(driver).state is ConsumerGroupState.STABLE


def test_regular_expressions_follow_the_topics() -> None:
    driver = world()
    a = ConsumerClient(driver, "a", (), regex="t|later-.*")
    a.beat()
    assert a.numbers == [0, 1, 2, 3]
    driver.make_topic("later-1")
    driver.make_topic("not-later-1")
    driver.topics.counts["later-1"] = 1
    a.beat()
    assert len(a.reading) == 5
    assert reloaded(driver) == group_of(driver)
    member = describe(driver).members[0]
    assert member.subscribed_topic_regex == "t|later-.*"
    a.leave()
    assert not group_of(driver).regexes


def test_another_coordinator_goes_on_where_the_last_one_was() -> None:
    driver = world()
    a, b = two(driver)
    before = group_of(driver)
    driver.fail_over()
    assert group_of(driver) == before
    assert a.beat() is ErrorCode.NONE
    assert b.beat() is ErrorCode.NONE
    assert group_of(driver) == before
    driver.pass_time(46_000)
    assert not group_of(driver).members


def test_requests_share_the_next_write() -> None:
    """While one write is in flight, further joins wait, and then become one write."""
    driver = world()
    driver.auto_commit = False
    clients = [ConsumerClient(driver, name) for name in "abcd"]
    for client in clients:
        client.send()
        assert client.take() is None
    assert len(driver.uncommitted) == 1
    driver.commit()
    assert len(driver.log) == 2
    for client in clients:
        assert client.take() is ErrorCode.NONE
    check_group(group_of(driver))


def test_a_failed_write_changes_nothing() -> None:
    driver = world()
    a = ConsumerClient(driver, "a")
    a.beat()
    before = group_of(driver)
    driver.auto_commit = False
    b = ConsumerClient(driver, "b")
    b.send()
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert b.take() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group_of(driver) == before
    b.send()
    driver.commit()
    assert b.take() is ErrorCode.NONE


def test_a_slow_write_is_answered_with_an_error() -> None:
    driver = world()
    driver.auto_commit = False
    a, b, c = (ConsumerClient(driver, name) for name in "abc")
    a.send()
    b.send()
    driver.pass_time(5_000)
    assert a.take() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert b.take() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    c.send()
    assert c.take() is ErrorCode.COORDINATOR_NOT_AVAILABLE, "requests do not pile up behind a write of unknown outcome"
    driver.commit()
    a.send()
    driver.commit()
    assert a.take() is ErrorCode.NONE


def test_lost_leadership_answers_every_request() -> None:
    driver = world()
    driver.auto_commit = False
    a, b = ConsumerClient(driver, "a"), ConsumerClient(driver, "b")
    a.send()
    b.send()
    driver.fail_over()
    assert a.take() is ErrorCode.NOT_COORDINATOR
    assert b.take() is ErrorCode.NOT_COORDINATOR
    assert driver.core.consumers.get(GROUP) is None


def test_a_removal_that_fails_is_tried_again() -> None:
    driver = world()
    a = ConsumerClient(driver, "a")
    a.beat()
    driver.auto_commit = False
    driver.pass_time(45_000)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert "a" in group_of(driver).members
    driver.pass_time(1_000)
    driver.commit()
    assert not group_of(driver).members


# Offsets


def fetch_code(driver: CoreDriver, member_id: str | None, epoch: int) -> ErrorCode:
    request = OffsetFetchRequestGroup(
        group_id=GROUP,
        member_id=member_id,
        member_epoch=epoch,
        topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])],
    )
    return ErrorCode(driver.core.fetch(request, require_stable=False).error_code)


def txn_commit(member_id: str, epoch: int) -> TxnOffsetCommitRequest:
    part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    return TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=GROUP,
        producer_id=9,
        producer_epoch=0,
        generation_id=epoch,
        member_id=member_id,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
    )


def test_a_reader_names_a_member_and_its_epoch_or_neither() -> None:
    driver = world()
    ConsumerClient(driver, "a").beat()
    assert fetch_code(driver, None, -1) is ErrorCode.NONE
    assert fetch_code(driver, "a", -1) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch_code(driver, None, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch_code(driver, "b", -1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_by_member_epoch() -> None:
    driver = world()
    a, b = two(driver)
    assert a.commit() is ErrorCode.NONE
    assert a.commit(version=8) is ErrorCode.UNSUPPORTED_VERSION
    stale = a.epoch - 1
    assert code_of(driver.ask(commit_request(1, "a", stale), 9)) is ErrorCode.STALE_MEMBER_EPOCH
    assert code_of(driver.ask(commit_request(1, "ghost", 2), 9)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(driver.ask(commit_request(1), 9)) is ErrorCode.UNKNOWN_MEMBER_ID
    for member_id, epoch, code in (
        ("a", a.epoch, ErrorCode.NONE),
        (None, -1, ErrorCode.NONE),
        ("a", stale, ErrorCode.STALE_MEMBER_EPOCH),
        ("ghost", 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert fetch_code(driver, member_id, epoch) is code
    for member_id, epoch, code in (
        ("a", a.epoch, ErrorCode.NONE),
        ("", -1, ErrorCode.NONE),
        ("a", stale, ErrorCode.ILLEGAL_GENERATION),
        ("ghost", 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        answer = driver.ask(txn_commit(member_id, epoch), 3)
        assert answer.topics[0].partitions[0].error_code == code  # type: ignore[attr-defined]
    a.leave()
    b.leave()
    assert code_of(driver.ask(commit_request(1), 9)) is ErrorCode.NONE, "tools may commit for an empty group"


def test_a_commit_follows_the_removal_in_flight() -> None:
    """A commit that comes after a removal in the log is refused, though the removal is not committed yet."""
    driver = world()
    a = ConsumerClient(driver, "a")
    a.beat()
    driver.auto_commit = False
    driver.pass_time(45_000)
    assert "a" in group_of(driver).members
    assert code_of(driver.ask(commit_request(1, "a", a.epoch), 9)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    driver = world()
    a = ConsumerClient(driver, "a", ("u",))
    a.beat()
    a.commit()
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=[
            OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
            for name in ("t", "u")
        ],
    )
    codes = [topic.partitions[0].error_code for topic in driver.ask(request, 0).topics]  # type: ignore[attr-defined]
    assert codes == [ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_offsets_of_read_topics_do_not_expire() -> None:
    driver = world(config=GroupConfig(offsets_retention_ms=100_000, offsets_retention_check_interval_ms=60_000))
    a = ConsumerClient(driver, "a")
    a.beat()
    a.commit()
    for _ in range(50):
        driver.pass_time(5_000)
        a.beat()
    assert driver.core.offsets.has_group(GROUP)
    a.leave()
    driver.pass_time(120_000)
    assert not driver.core.offsets.has_group(GROUP)
    assert driver.core.consumers.get(GROUP) is None
    assert not driver._new_core().consumers.committed


# Administration, and classic groups


def test_groups_of_both_kinds_are_listed() -> None:
    driver = world()
    ConsumerClient(driver, "a").beat()
    Consumer(driver, group="classic").join()
    driver.ask(commit_request(1, group="offsets-only"), 9)

    def listed(**filters: list[str]) -> list[tuple[str, str, str]]:
        answer = driver.ask(ListGroupsRequest(**filters), 5)
        found = answer.groups  # type: ignore[attr-defined]
        return sorted((each.group_id, each.group_type, each.group_state) for each in found)

    both = [("classic", "classic", "PreparingRebalance"), ("g", "consumer", "Stable")]
    assert listed() == [*both, ("offsets-only", "classic", "Empty")]
    assert listed(types_filter=["Consumer"]) == [both[1]]
    assert listed(types_filter=["classic"], states_filter=["preparingrebalance"]) == [both[0]]


def test_unknown_and_classic_groups_are_not_described() -> None:
    driver = world()
    Consumer(driver, group="classic").join()
    for name in ("classic", "nothing"):
        found = describe(driver, name)
        assert (found.error_code, found.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_describe_names_epochs_and_assignments() -> None:
    driver = world()
    a, _ = two(driver)
    found = describe(driver)
    assert (found.group_epoch, found.assignment_epoch, found.group_state) == (2, 2, "Stable")
    member = found.members[0]
    assert (member.member_id, member.member_epoch, member.member_type) == ("a", 2, 1)
    assert [(each.topic_name, list(each.partitions)) for each in member.assignment.topic_partitions] == [
        ("t", a.numbers)
    ]
    assert member.target_assignment == member.assignment


def test_only_empty_groups_are_deleted() -> None:
    driver = world()
    a = ConsumerClient(driver, "a")
    a.beat()
    a.commit()

    def delete() -> ErrorCode:
        answer = driver.ask(DeleteGroupsRequest(groups_names=[GROUP]), 2)
        return ErrorCode(answer.results[0].error_code)  # type: ignore[attr-defined]

    assert delete() is ErrorCode.NON_EMPTY_GROUP
    a.leave()
    assert delete() is ErrorCode.NONE
    assert delete() is ErrorCode.GROUP_ID_NOT_FOUND
    assert not driver._new_core().consumers.committed
    assert not driver._new_core().offsets.has_group(GROUP)
    a.epoch = 0
    assert a.beat() is ErrorCode.NONE
    assert a.epoch == 1


def test_a_heartbeat_waits_for_a_deletion() -> None:
    driver = world()
    a = ConsumerClient(driver, "a")
    a.beat()
    a.leave()
    driver.auto_commit = False
    driver.send(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    b = ConsumerClient(driver, "b")
    b.send()
    assert b.take() is None
    driver.pass_time(5_000)
    assert b.take() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.commit()
    b.send()
    driver.commit()
    assert b.take() is ErrorCode.NONE
    assert reloaded(driver) == group_of(driver)


def test_a_classic_group_in_use_keeps_its_id() -> None:
    driver = world()
    classic = Consumer(driver)
    classic.join()
    assert ConsumerClient(driver, "a").beat() is ErrorCode.GROUP_ID_NOT_FOUND
    driver.pass_time(3_000)
    assert classic.joined() is not None
    driver.pass_time(400_000)
    assert ConsumerClient(driver, "a").beat() is ErrorCode.NONE
    assert not driver._new_core()._written_groups


def test_an_empty_consumer_group_gives_way_to_a_classic_one() -> None:
    driver = world()
    a = ConsumerClient(driver, "a")
    a.beat()
    classic = Consumer(driver)
    classic.join(4)
    joined = driver.answers[classic.join_id]  # type: ignore[index]
    assert joined.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # type: ignore[attr-defined]
    a.leave()
    classic.join()
    driver.pass_time(3_000)
    answer = classic.joined()
    assert answer is not None
    assert answer.error_code == ErrorCode.NONE
    assert driver.core.consumers.get(GROUP) is None


# Records

MEMBER = ConsumerMember(
    member_id="m",
    instance_id="i",
    rack_id="r",
    client_id="c",
    client_host="/h",
    topics=("t", "u"),
    regex="a.*",
    rebalance_timeout_ms=9,
    assignor="range",
)


@pytest.mark.parametrize(
    ("key_version", "change"),
    [
        (3, GroupEpoch(group_id="g", epoch=4, metadata_hash=-5)),
        (3, GroupEpoch(group_id="g", epoch=None)),
        (5, Subscription(group_id="g", member_id="m", member=MEMBER)),
        (5, Subscription(group_id="g", member_id="m", member=None)),
        (6, TargetEpoch(group_id="g", epoch=4)),
        (6, TargetEpoch(group_id="g", epoch=4, assigned_ms=1_700_000_000_000)),
        (6, TargetEpoch(group_id="g", epoch=None)),
        (7, Target(group_id="g", member_id="m", partitions=frozenset({(T, 1), (T, 0)}))),
        (7, Target(group_id="g", member_id="m", partitions=None)),
        (
            8,
            Current(
                group_id="g",
                member_id="m",
                member=ConsumerMember(
                    member_id="m",
                    epoch=3,
                    previous_epoch=2,
                    state=MemberState.UNREVOKED_PARTITIONS,
                    assigned=frozenset({(T, 1)}),
                    revoking=frozenset({(T, 2)}),
                ),
            ),
        ),
        (8, Current(group_id="g", member_id="m", member=None)),
        (16, Regex(group_id="g", regex="a.*", resolved=ResolvedRegex(topics=("a",), version=7, resolved_ms=8))),
        (16, Regex(group_id="g", regex="a.*", resolved=None)),
    ],
)
def test_records_are_read_as_they_were_written(key_version: int, change: object) -> None:
    key, value = change_record(change)  # type: ignore[arg-type]
    assert int.from_bytes(key[:2], "big") == key_version
    assert parse_change(key_version, key, value) == change


def test_golden_bytes_of_records() -> None:
    key, value = change_record(GroupEpoch(group_id="g", epoch=2, metadata_hash=1))
    assert key == b"\0\x03\0\x01g"
    assert value == b"\0\0" + b"\0\0\0\x02" + b"\x01\0\x08\0\0\0\0\0\0\0\x01"
    key, value = change_record(TargetEpoch(group_id="g", epoch=2))
    assert (key, value) == (b"\0\x06\0\x01g", b"\0\0\0\0\0\x02\0")
    key, value = change_record(TargetEpoch(group_id="g", epoch=2, assigned_ms=1))
    assert value == b"\0\0\0\0\0\x02\x01\0\x08\0\0\0\0\0\0\0\x01", "Kafka 4.3 adds the time as a tagged field"


def test_an_unknown_member_state_is_fenced_first() -> None:
    """A newer coordinator may have left a state that this one does not know."""
    driver = world()
    a = ConsumerClient(driver, "a")
    a.beat()
    key, value = change_record(
        Current(
            group_id=GROUP,
            member_id="a",
            member=ConsumerMember(member_id="a", epoch=1, state=MemberState.UNKNOWN, assigned=a.reading),
        )
    )
    driver.core.replay(key, value)
    assert a.beat() is ErrorCode.FENCED_MEMBER_EPOCH
    assert a.beat() is ErrorCode.NONE
    assert a.numbers == [0, 1, 2, 3]
