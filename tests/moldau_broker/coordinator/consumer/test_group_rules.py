"""Goal: sessions, epochs and deletions of consumer groups at the moments that stories of few clients do not reach.

Method: stories against the pure core, with virtual time and with commits of the log that the test holds back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau_broker.coordinator.group.consumer.core.heartbeat import check_epoch
from moldau_broker.coordinator.group.consumer.core.reconcile import reconcile
from moldau_broker.coordinator.group.consumer.core.state import ConsumerGroup, ConsumerMember, MemberState
from moldau_broker.coordinator.group.core.config import GroupConfig
from support.coordinator.consumer_world import GROUP, SESSION_MS, ConsumerClient, check_group, group_of
from support.coordinator.group_world import Consumer, CoreDriver, code_of, commit_request, join_request, leave_request
from support.coordinator.migration_world import COOPERATIVE, EAGER, ClassicClient, subscription_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    Act = Callable[[CoreDriver, ConsumerClient], None]


def world(**limits: Any) -> CoreDriver:
    driver = CoreDriver(GroupConfig(migration_policy="bidirectional", initial_rebalance_delay_ms=0, **limits))
    driver.topics.counts = {"t": 6}
    return driver


def rest(driver: CoreDriver, clients: list[Any], rounds: int = 12) -> None:
    for _ in range(rounds):
        driver.pass_time(10)
        for client in clients:
            client.beat()


def mixed_group(driver: CoreDriver) -> tuple[Any, Any]:
    """Returns a member of each protocol in one consumer group, both at rest."""
    classic, member = ClassicClient(driver, COOPERATIVE), ConsumerClient(driver, "c")
    rest(driver, [classic])
    rest(driver, [classic, member])
    assert [len(each.numbers) for each in (classic, member)] == [3, 3]
    return classic, member


def test_leaving_again_does_not_keep_a_static_member() -> None:
    """A static member that is away has the rest of its session to come back, however often it says that it leaves."""
    driver = world()
    away, other = ConsumerClient(driver, "a", instance="i"), ConsumerClient(driver, "b")
    rest(driver, [away, other])
    step_ms = SESSION_MS // 3
    for _ in range(2):
        assert away.leave(-2) is ErrorCode.NONE
        driver.pass_time(step_ms)
        other.beat()
    assert set(group_of(driver).members) == {"a", "b"}
    assert away.leave(-2) is ErrorCode.NONE
    driver.pass_time(step_ms)
    other.beat()
    assert set(group_of(driver).members) == {"b"}


def test_a_static_member_that_goes_has_released_what_it_had_to() -> None:
    """It reads nothing while it is away, so the others need not wait for it with partitions of theirs."""
    driver = world()
    a, b = ConsumerClient(driver, "a", instance="i"), ConsumerClient(driver, "b")
    rest(driver, [a])
    b.beat()
    a.send()
    assert a.take() is ErrorCode.NONE
    assert len(a.given) < len(a.reading), "it is to release some"
    assert a.leave(-2) is ErrorCode.NONE
    check_group(group_of(driver))
    b.beat()
    assert len(b.numbers) == 3
    again = ConsumerClient(driver, "a2", instance="i")
    again.beat()
    assert sorted(again.numbers + b.numbers) == [0, 1, 2, 3, 4, 5]
    check_group(group_of(driver))


@pytest.mark.parametrize(
    ("epoch", "reported", "is_fenced"),
    [
        (5, None, False),
        (5, {1, 2, 3}, False),  # judged elsewhere
        (4, {1, 2}, False),  # the answer with the present epoch was lost
        (4, {1}, False),
        (4, set(), False),
        (4, {1, 3}, True),  # another member may own the third by now
        (4, None, True),
        (3, {1}, True),
        (6, {1}, True),
    ],
)
def test_a_former_epoch_counts_without_foreign_partitions(epoch: int, reported: Any, is_fenced: bool) -> None:
    owned: Any = frozenset({1, 2})
    member = ConsumerMember(member_id="m", epoch=5, previous_epoch=4, assigned=owned)
    fenced = None
    try:
        check_epoch(member, epoch, reported if reported is None else frozenset(reported))
    except KafkaError as error:
        fenced = error.code
    assert fenced == (ErrorCode.FENCED_MEMBER_EPOCH if is_fenced else None)


@pytest.mark.parametrize("instance", [None, "i"])
def test_a_known_member_can_join_again_at_once(instance: str | None) -> None:
    """Its leave may have been lost, or a wrong epoch was fenced: it need not wait for the end of its former session."""
    driver = world()
    a = ConsumerClient(driver, "a", instance=instance)
    rest(driver, [a])
    for other in "bc":
        rest(driver, [a, ConsumerClient(driver, other)])
    assert a.epoch >= 3
    a.epoch += 1
    assert a.beat() is ErrorCode.FENCED_MEMBER_EPOCH
    assert a.epoch == 0
    assert a.beat() is ErrorCode.NONE
    assert a.epoch == group_of(driver).epoch, "nothing has changed for the others"
    assert len(a.numbers) == 2
    driver.pass_time(SESSION_MS - 1)
    assert a.beat() is ErrorCode.NONE, "its session has begun again"


@pytest.mark.parametrize("by_instance", [True, False])
def test_an_administrator_removes_members_of_both_protocols(by_instance: bool) -> None:
    """Admin.removeMembersFromConsumerGroup sends LeaveGroup, whatever protocol the members speak."""
    driver = world()
    away, other = ConsumerClient(driver, "a", instance="i"), ConsumerClient(driver, "b")
    rest(driver, [away, other])
    assert away.leave(-2) is ErrorCode.NONE
    asked = ("", "i") if by_instance else ("a", "i")
    answer = driver.ask(leave_request(asked, ("thief", "i"), ("unknown", None), ("", "j")), 5)
    codes = [ErrorCode(member.error_code) for member in answer.members]  # type: ignore[attr-defined]
    assert codes == [ErrorCode.NONE, *3 * [ErrorCode.UNKNOWN_MEMBER_ID]]
    assert set(group_of(driver).members) == {"b"}
    rest(driver, [other])
    assert len(other.numbers) == 6, "the partitions of the absent member are free"
    answer = driver.ask(leave_request(("b", None)), 5)
    assert [member.error_code for member in answer.members] == [ErrorCode.NONE]  # type: ignore[attr-defined]
    assert other.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert other.beat() is ErrorCode.NONE, "it joins again, as in Kafka"
    static = ConsumerClient(driver, "c", instance="k")
    rest(driver, [other, static])
    answer = driver.ask(leave_request(("thief", "k")), 5)
    assert [member.error_code for member in answer.members] == [ErrorCode.FENCED_INSTANCE_ID]  # type: ignore[attr-defined]


def test_a_member_that_joins_again_owns_nothing() -> None:
    """A member that joins has given up everything, so partitions outside its target are free at once."""
    driver = world()
    a, b = ConsumerClient(driver, "a"), ConsumerClient(driver, "b")
    rest(driver, [a])
    rest(driver, [a, b])
    late = ConsumerClient(driver, "c")
    rest(driver, [late])
    assert late.numbers == [], "the others still own all partitions"
    a.epoch = b.epoch = 0
    assert b.beat() is ErrorCode.NONE
    assert a.beat() is ErrorCode.NONE
    assert late.beat() is ErrorCode.NONE
    assert sorted(a.numbers + b.numbers + late.numbers) == list(range(6))


@pytest.mark.parametrize("syncs", [True, False])
def test_a_classic_member_must_fetch_what_it_was_assigned(syncs: bool) -> None:
    """It is removed if it sends no SyncGroup after its JoinGroup, even if its heartbeats go on."""
    driver = world()
    classic, member = mixed_group(driver)
    classic.rebalance_ms = 60_000
    classic.phase = "join"
    classic.send()
    assert classic.take() is ErrorCode.NONE
    if syncs:
        assert classic.beat() is ErrorCode.NONE
    for _ in range(13):
        driver.pass_time(5_000)
        classic.phase = "beat"
        classic.send()
        classic.take()
        member.beat()
    assert (classic.member_id in group_of(driver).members) is syncs


def test_each_release_has_its_whole_time() -> None:
    """A member that releases partitions in time, and learns at once that it must release more, has that time again."""
    driver = world()
    a, b, c = (ConsumerClient(driver, name, rebalance_ms=3_000) for name in "abc")
    a.beat()
    b.beat()
    a.send()
    a.take()  # three partitions are for b
    c.beat()
    driver.pass_time(2_000)
    a.obey()
    a.send()
    a.take()  # one more is for c
    assert group_of(driver).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    driver.pass_time(2_900)
    a.obey()
    assert a.beat() is ErrorCode.NONE
    driver.pass_time(200)
    assert "a" in group_of(driver).members


def test_a_release_that_is_not_written_keeps_no_member_for_ever() -> None:
    """The time for the release ends while the release waits for another write, and its own write is refused."""
    driver = world()
    a, b, c = (ConsumerClient(driver, name, rebalance_ms=3_000) for name in "abc")
    a.beat()
    b.beat()
    a.send()
    a.take()  # three partitions are for b
    driver.pass_time(2_000)
    driver.auto_commit = False
    c.send()
    a.obey()
    a.send()
    driver.pass_time(1_500)
    (joined,) = driver.uncommitted
    driver.uncommitted.clear()
    driver.log.append(joined)
    driver.perform(driver.core.committed(joined.append_id, driver.moment()))  # the release is written now
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.auto_commit = True
    assert group_of(driver).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    driver.pass_time(driver.config.gone_offsets_retry_ms)
    assert "a" not in group_of(driver).members


def test_a_release_that_follows_a_release_has_a_newer_epoch() -> None:
    """A commit that was sent before the second one, and arrives late, is one of a former epoch."""
    first, second, third = (("t", number) for number in range(3))
    sets: Any = [frozenset(each) for each in ({first, second}, {third}, {first})]
    assigned, revoking, target = sets
    member = ConsumerMember(
        member_id="m", epoch=3, state=MemberState.UNREVOKED_PARTITIONS, assigned=assigned, revoking=revoking
    )
    after = reconcile(member, 9, target, lambda _: True, assigned, joins=False)
    assert (after.epoch, after.state, len(after.revoking)) == (4, MemberState.UNREVOKED_PARTITIONS, 1)
    last = reconcile(after, 9, target, lambda _: True, target, joins=False)
    assert (last.epoch, last.state, last.assigned) == (9, MemberState.STABLE, target)


def test_a_member_that_goes_leaves_the_expression_to_the_others() -> None:
    """One that uses the same expression reads on."""
    driver = world()
    stays, goes = (ConsumerClient(driver, name, (), regex="t") for name in "ab")
    rest(driver, [stays, goes])
    goes.leave()
    rest(driver, [stays])
    assert stays.numbers == [0, 1, 2, 3, 4, 5]
    assert group_of(driver).regexes


def test_the_topics_of_a_member_that_is_gone_do_not_count() -> None:
    """A change of any topic makes the coordinator look at those of the group: there is nothing new for it."""
    driver = world()
    driver.topics.counts = {"t": 6, "u": 2}
    stays, goes = ConsumerClient(driver, "a"), ConsumerClient(driver, "b", ("u",))
    rest(driver, [stays, goes])
    goes.leave()
    rest(driver, [stays])
    epoch = stays.epoch
    driver.make_topic("another")
    driver.topics.counts["u"] = 3
    rest(driver, [stays])
    assert stays.epoch == group_of(driver).epoch == epoch


def test_no_group_expires_during_a_write() -> None:
    """A member that joined and left meanwhile is in that write; the group ends at the next check for expiry."""
    driver = world(offsets_retention_check_interval_ms=30_000)
    first, second = ConsumerClient(driver, "a"), ConsumerClient(driver, "b")
    first.beat()
    driver.pass_time(29_000)
    driver.auto_commit = False
    leaves, joins, leaves_too = first.request(), second.request(), second.request()
    leaves.member_epoch = leaves_too.member_epoch = -1
    for request in (leaves, joins, leaves_too):
        driver.send(request, 1)
    (append,) = driver.uncommitted
    driver.uncommitted.clear()
    driver.log.append(append)
    driver.perform(driver.core.committed(append.append_id, driver.moment()))
    assert len(driver.uncommitted) == 1, "what waited for the first write is a second one"
    assert not group_of(driver).members
    driver.pass_time(2_000)
    assert len(driver.uncommitted) == 1
    driver.auto_commit = True
    driver.commit()
    assert group_of(driver).epoch > 1
    driver.pass_time(30_000)
    assert driver.core.consumers.get(GROUP) is None


def test_a_consumer_group_goes_on_with_an_unwritten_generation() -> None:
    """The last members of a classic group went while the log was not available; no number is used twice."""
    driver = world()
    classic = Consumer(driver)
    classic.join()
    driver.pass_time(10)
    answer = classic.joined()
    assert answer is not None
    assert answer.generation_id == 1
    driver.auto_commit = False
    driver.pass_time(400_000)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.auto_commit = True
    generation = driver.core.rebalancer.groups[GROUP].generation
    assert not driver.core._written_groups
    member = ConsumerClient(driver, "c")
    assert member.beat() is ErrorCode.NONE
    assert member.epoch > generation > 1


def test_a_session_that_ends_during_the_join_counts() -> None:
    """The log was not available for so long, and the client is gone; a dead member would keep its partitions."""
    driver = world()
    driver.auto_commit = False
    ConsumerClient(driver, "a").send()
    driver.pass_time(SESSION_MS + 1_000)
    assert len(driver.uncommitted) == 1, "the write is still pending"
    driver.auto_commit = True
    driver.commit()
    assert not group_of(driver).members


def test_a_session_that_ends_during_a_failed_leave_counts() -> None:
    """The session ends while the write is pending that the log refuses in the end."""
    driver = world()
    member = ConsumerClient(driver, "a")
    member.beat()
    driver.pass_time(SESSION_MS - 1_000)
    driver.auto_commit = False
    request = member.request()
    request.member_epoch = -1
    driver.send(request, 1)
    driver.pass_time(2_000)
    driver.auto_commit = True
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.commit()
    assert not group_of(driver).members


def test_a_member_that_is_heard_during_a_write_stays() -> None:
    """Its session ended while another member's join was being written, and it spoke before the write was committed."""
    driver = world()
    member, other = ConsumerClient(driver, "a"), ConsumerClient(driver, "b")
    member.beat()
    driver.pass_time(SESSION_MS - 1_000)
    driver.auto_commit = False
    other.send()
    driver.pass_time(2_000)
    member.send()
    driver.auto_commit = True
    driver.commit()
    assert sorted(group_of(driver).members) == ["a", "b"]
    assert member.take() is ErrorCode.NONE


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({"types_filter": ["Classic"]}, {"classic"}),
        ({"types_filter": ["Consumer"]}, {GROUP}),
        ({"types_filter": ["classic", "consumer"]}, {GROUP, "classic"}),
        ({"types_filter": ["share"]}, set()),
        ({"states_filter": ["STABLE"]}, {GROUP}),
        ({"states_filter": ["Empty"]}, set()),
    ],
)
def test_lists_show_the_kinds_and_states_that_are_asked_for(filters: dict[str, list[str]], names: set[str]) -> None:
    driver = world()
    ConsumerClient(driver, "a").beat()
    Consumer(driver, group="classic").join()
    answer: Any = driver.ask(ListGroupsRequest(**filters), 5)
    assert {group.group_id for group in answer.groups} == names


def test_a_commit_that_names_an_epoch_needs_its_member() -> None:
    """Only a client that shows no epoch may commit for a group without members, whatever member it names."""
    driver = world()
    member = ConsumerClient(driver, "a")
    member.beat()
    member.leave()
    assert code_of(driver.ask(commit_request(1, "", 0), 9)) is ErrorCode.UNKNOWN_MEMBER_ID
    for name in ("", "a", "stranger"):
        assert code_of(driver.ask(commit_request(1, name, -1), 9)) is ErrorCode.NONE


@pytest.mark.parametrize(("version", "code"), [(3, ErrorCode.NONE), (4, ErrorCode.MEMBER_ID_REQUIRED)])
def test_old_clients_join_without_a_member_id(version: int, code: ErrorCode) -> None:
    """They do not know KIP-394, and would never come in; newer ones must come again with the id that they get."""
    driver = world()
    ConsumerClient(driver, "c").beat()
    metadata = subscription_bytes(driver.topics, ("t",), frozenset(), -1, 0)
    answer = driver.ask(join_request("", protocols=(EAGER,), metadata=metadata), version)
    assert code_of(answer) is code
    assert len(group_of(driver).members) == (2 if code is ErrorCode.NONE else 1)


def test_partitions_that_a_classic_member_must_release_stay() -> None:
    """It reads them until it has its next assignment; an upgrade that comes before must not give them away."""
    driver = world()
    reader = ClassicClient(driver, COOPERATIVE)
    rest(driver, [reader])
    assert reader.numbers == list(range(6))
    second = ClassicClient(driver, COOPERATIVE)
    for _ in range(2):
        second.send()
        second.take()
    for _ in range(2):  # learns of the rebalance, and joins with all six
        reader.send()
        reader.take()
    reader.send()  # the assignment of the new generation, which takes some of the six away; its answer is lost
    newcomer = ConsumerClient(driver, "c")
    newcomer.beat()
    assert sorted(number for _, number in group_of(driver).members[reader.member_id].assigned) == list(range(6))
    assert newcomer.numbers == []


@pytest.mark.parametrize(
    ("names", "version", "code"),
    [
        ({}, 3, ErrorCode.NONE),
        ({"generation_id": 0}, 3, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "fenced"}, 3, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "fenced"}, 3, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "member"}, 3, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "member"}, 6, ErrorCode.STALE_MEMBER_EPOCH),
    ],
)
def test_old_transactional_producers_name_no_generation(names: dict[str, Any], version: int, code: ErrorCode) -> None:
    """One that names a generation or a member knows KIP-447, so it must name both."""
    driver = world()
    member = ConsumerClient(driver, "a")
    member.beat()
    if names.get("member_id") == "member":
        names = {"member_id": member.member_id}
    part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=GROUP,
        producer_id=7,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
        **{"generation_id": -1, **names},
    )
    answer: Any = driver.ask(request, version)
    assert answer.topics[0].partitions[0].error_code == code


@pytest.mark.parametrize(
    ("epoch", "target_epoch", "members", "state"),
    [
        (7, 7, [], "Empty"),
        (7, 6, [(6, MemberState.STABLE)], "Assigning"),
        (7, 7, [(7, MemberState.STABLE), (7, MemberState.STABLE)], "Stable"),
        (7, 7, [(7, MemberState.STABLE), (6, MemberState.STABLE)], "Reconciling"),
        (7, 7, [(7, MemberState.UNRELEASED_PARTITIONS), (7, MemberState.STABLE)], "Reconciling"),
    ],
)
def test_a_group_is_stable_once_all_have_their_target(
    epoch: int, target_epoch: int, members: list[tuple[int, MemberState]], state: str
) -> None:
    found = ConsumerGroup(group_id=GROUP, exists=True, epoch=epoch, assignment_epoch=target_epoch)
    for number, (member_epoch, step) in enumerate(members):
        name = f"m{number}"
        found.members[name] = ConsumerMember(member_id=name, epoch=member_epoch, state=step)
    assert found.state.value == state


def joins(driver: CoreDriver, member: ConsumerClient) -> None:
    del member
    ConsumerClient(driver, "b", ("u",)).send()


def leaves(driver: CoreDriver, member: ConsumerClient) -> None:
    driver.send(ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=member.member_id, member_epoch=-1), 1)


def falls_silent(driver: CoreDriver, member: ConsumerClient) -> None:
    del member
    driver.pass_time(SESSION_MS)


def resubscribes(*topics: str) -> Act:
    def act(driver: CoreDriver, member: ConsumerClient) -> None:
        del driver
        member.topics, member.sends_all = topics, True
        member.send()

    return act


def reader_of_two_topics(**limits: Any) -> tuple[CoreDriver, ConsumerClient]:
    """Returns a group with offsets of three topics, and its member, which reads ``t`` and ``v``."""
    driver = world(**limits)
    driver.topics.counts = {"t": 1, "u": 1, "v": 1}
    driver.make_topic("v")
    for topic in driver.topics.counts:
        driver.ask(commit_request(1, "", -1, group=GROUP, topic=topic), 9)
    return driver, ConsumerClient(driver, "a", ("t", "v"))


def change(driver: CoreDriver, member: ConsumerClient, act: Act, *, is_in_flight: bool) -> None:
    driver.auto_commit = False
    act(driver, member)
    assert driver.uncommitted
    if not is_in_flight:
        driver.commit()


def outcome_of_deletion(act: Act, *, is_in_flight: bool) -> tuple[list[int], list[tuple[str, int]]]:
    """Returns the codes of an OffsetDelete that follows ``act``, and the partitions whose offsets are left."""
    driver, member = reader_of_two_topics()
    rest(driver, [member])
    change(driver, member, act, is_in_flight=is_in_flight)
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=[
            OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
            for name in driver.topics.counts
        ],
    )
    request_id = driver.send(request, 0)
    driver.commit()
    answer: Any = driver.answers[request_id]
    codes = [topic.partitions[0].error_code for topic in answer.topics]
    return codes, sorted(driver.core.offsets.committed(GROUP))


CHANGES: list[tuple[Act, str]] = [
    (joins, "tuv"),
    (leaves, ""),
    (falls_silent, ""),
    (resubscribes("t"), "t"),
    (resubscribes("t", "u", "v"), "tuv"),
    (resubscribes("u"), "u"),
    (resubscribes(), ""),
]
"""Events that change which topics the members read, and the topics that they read then."""


@pytest.mark.parametrize(("act", "kept"), CHANGES)
def test_a_deletion_of_offsets_follows_the_write_in_flight(act: Act, kept: str) -> None:
    """The tombstones come behind that write in the log, so they must not concern a topic that a member reads by then.

    Whether the write of a join, a leave or a new subscription is committed already makes no difference.
    """
    codes = [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic in kept else ErrorCode.NONE for topic in "tuv"]
    expected = codes, [(topic, 0) for topic in kept]
    assert outcome_of_deletion(act, is_in_flight=False) == expected
    assert outcome_of_deletion(act, is_in_flight=True) == expected


@pytest.mark.parametrize("is_in_flight", [False, True])
@pytest.mark.parametrize(("act", "kept"), CHANGES)
def test_an_expiry_of_offsets_follows_the_write_in_flight(act: Act, kept: str, is_in_flight: bool) -> None:
    """As a deletion: all offsets are old, and those stay that a member will read when the write is committed."""
    limits = {"offsets_retention_ms": 100_000, "offsets_retention_check_interval_ms": 1_000}
    driver, member = reader_of_two_topics(**limits)
    for _ in range(19):
        member.beat()
        driver.pass_time(5_000)
    member.beat()
    driver.pass_time(4_000)
    assert len(driver.core.offsets.committed(GROUP)) == 3
    change(driver, member, act, is_in_flight=is_in_flight)
    for _ in range(2):  # a group with tombstones in flight waits for the next round
        driver.pass_time(2_000)
        driver.commit()
    assert sorted(driver.core.offsets.committed(GROUP)) == [(topic, 0) for topic in kept]


@pytest.mark.parametrize("text", ["", " ", "\t \x00"])
@pytest.mark.parametrize("key", ["group_id", "instance_id", "member_id", "rack_id"])
def test_blank_names_are_refused_as_empty_ones(key: str, text: str) -> None:
    """As by Kafka, which trims them first; a no-break space is no blank."""
    driver = world()
    for value, code in ((text, ErrorCode.INVALID_REQUEST), ("\xa0", ErrorCode.NONE)):
        fields: dict[str, Any] = {"group_id": GROUP, "member_id": "m", key: value}
        request = ConsumerGroupHeartbeatRequest(
            member_epoch=0, rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[], **fields
        )
        answer = driver.ask(request, 1)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        assert ErrorCode(answer.error_code) is code
