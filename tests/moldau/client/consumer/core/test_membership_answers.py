"""Goal: each answer of a coordinator takes a member to the right state, in both group protocols.

Method: the pure cores, with one answer of each kind in each state; no network and no clock.
"""

from __future__ import annotations

import dataclasses
from uuid import UUID

import pytest

from moldau.cluster.group_bytes import decode_assignment, encode_assignment
from moldau.consumer.core.assignors import (
    MemberSubscription,
    assignors_of,
    decode_subscription,
    encode_sticky_user_data,
    encode_subscription,
)
from moldau.consumer.core.epoch_membership import EpochMembership
from moldau.consumer.core.membership import (
    NO_MEMBERSHIP,
    GroupIdentity,
    Membership,
    MemberState,
    Next,
    assign_partitions,
)
from moldau.consumer.core.values import TopicPartition
from moldau.protocol.codec import decode
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from moldau.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from moldau.protocol.messages.sync_group import SyncGroupResponse

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
IDENTITY = GroupIdentity(group_id="g", instance_id=None, session_timeout_ms=6000, rebalance_timeout_ms=60000, rack="r1")
STATIC = dataclasses.replace(IDENTITY, instance_id="i")
UNJOINED, JOINING, SYNCING, STABLE = MemberState
GO_ON, AGAIN, RETRY, FIND = Next
TOPIC, OTHER = UUID(int=1), UUID(int=2)


def warned(event, **_):
    raise AssertionError(f"nothing is wrong here: {event}")


def member(*names, identity=IDENTITY):
    return Membership(identity, assignors_of(names or ("range",)))


def joined(generation=5, member_id="M", protocol="range"):
    return JoinGroupResponse(generation_id=generation, member_id=member_id, protocol_name=protocol, leader="another")


def in_state(state, identity=IDENTITY):
    """A member of generation 5, on its way to the state; a member that is unjoined rebalances."""
    membership = member(identity=identity)
    membership.join_request(["t"], ())
    membership.on_join(joined())
    if state is not SYNCING:
        membership.on_sync(SyncGroupResponse(assignment=encode_assignment([T0])))
        membership.take_over()
    if state in (UNJOINED, JOINING):
        membership.on_heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    if state is JOINING:
        membership.join_request(["t"], ())
    assert membership.state is state
    return membership


def answer(membership, state, code):
    """Gives the answer that a member in this state waits for."""
    if state is JOINING:
        return membership.on_join(JoinGroupResponse(error_code=code, member_id="N"))
    if state is SYNCING:
        return membership.on_sync(SyncGroupResponse(error_code=code))[0]
    return membership.on_heartbeat(code)


@pytest.mark.parametrize(
    ("state", "code", "step", "after", "generation", "member_id"),
    [
        (STABLE, ErrorCode.NONE, GO_ON, STABLE, 5, "M"),
        (STABLE, ErrorCode.REBALANCE_IN_PROGRESS, AGAIN, UNJOINED, 5, "M"),
        (STABLE, ErrorCode.ILLEGAL_GENERATION, AGAIN, UNJOINED, -1, "M"),
        (STABLE, ErrorCode.UNKNOWN_MEMBER_ID, AGAIN, UNJOINED, -1, ""),
        (STABLE, ErrorCode.NOT_COORDINATOR, FIND, STABLE, 5, "M"),
        (STABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE, FIND, STABLE, 5, "M"),
        (STABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, RETRY, STABLE, 5, "M"),
        (UNJOINED, ErrorCode.NONE, GO_ON, UNJOINED, 5, "M"),
        (SYNCING, ErrorCode.REBALANCE_IN_PROGRESS, AGAIN, UNJOINED, 5, "M"),
        (SYNCING, ErrorCode.ILLEGAL_GENERATION, AGAIN, UNJOINED, -1, "M"),
        (SYNCING, ErrorCode.UNKNOWN_MEMBER_ID, AGAIN, UNJOINED, -1, ""),
        (SYNCING, ErrorCode.NOT_COORDINATOR, FIND, UNJOINED, 5, "M"),
        (SYNCING, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, RETRY, UNJOINED, 5, "M"),
        (JOINING, ErrorCode.REBALANCE_IN_PROGRESS, RETRY, UNJOINED, 5, "M"),
        (JOINING, ErrorCode.MEMBER_ID_REQUIRED, AGAIN, UNJOINED, 5, "N"),
        (JOINING, ErrorCode.ILLEGAL_GENERATION, AGAIN, UNJOINED, -1, "M"),
        (JOINING, ErrorCode.UNKNOWN_MEMBER_ID, AGAIN, UNJOINED, -1, ""),
        (JOINING, ErrorCode.COORDINATOR_NOT_AVAILABLE, FIND, UNJOINED, 5, "M"),
        (JOINING, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, RETRY, UNJOINED, 5, "M"),
    ],
)
def test_what_a_member_does_after_each_answer(state, code, step, after, generation, member_id):
    membership = in_state(state)
    losses = membership.losses
    assert answer(membership, state, code) is step
    assert (membership.state, membership.generation, membership.member_id) == (after, generation, member_id)
    assert membership.losses == losses + (generation == -1)


@pytest.mark.parametrize("state", [JOINING, SYNCING, STABLE])
@pytest.mark.parametrize("code", [ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED])
def test_other_refusals_end_the_membership(state, code):
    membership = in_state(state)
    with pytest.raises(KafkaError, match=f"{code.name}.*group g"):
        answer(membership, state, code)
    assert (membership.has_generation, membership.member_id, membership.state) == (False, "", UNJOINED)
    assert (membership.is_stable, membership.losses) == (False, 1)


def test_a_member_joins_and_syncs():
    membership = member()
    assert (membership.is_stable, membership.has_generation, membership.commits_as) == (False, False, NO_MEMBERSHIP)
    membership.join_request(["t"], ())
    assert membership.state is JOINING
    assert membership.on_join(joined()) is GO_ON
    request = membership.sync_request({"M": [T0], "N": [T1, U0]})
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 5, "M")
    assert (request.protocol_type, request.protocol_name, request.group_instance_id) == ("consumer", "range", None)
    assert {each.member_id: decode_assignment(each.assignment) for each in request.assignments} == {
        "M": [T0],
        "N": [T1, U0],
    }
    assert membership.sync_request(None).assignments == []
    assert membership.on_sync(SyncGroupResponse(assignment=encode_assignment([T0]))) == (GO_ON, [T0])
    assert (membership.is_stable, membership.owned_generation, membership.commits_as) == (True, 5, (5, "M"))
    beat = membership.heartbeat_request()
    assert (beat.group_id, beat.generation_id, beat.member_id) == ("g", 5, "M")
    assert membership.commit_generation((4, "M")) == 4, "a commit belongs to the generation that asked for it"


def test_a_member_joins_with_its_configuration():
    membership = member("range", "sticky", identity=STATIC)
    membership.rejoin("x" * 300)
    request = membership.join_request(["t"], [T0])
    assert (request.group_id, request.member_id, request.group_instance_id) == ("g", "", "i")
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (6000, 60000)
    assert request.reason == "x" * 255, "the coordinator takes no longer one"
    assert [each.name for each in request.protocols] == ["range", "sticky"]
    for each in (membership.sync_request(None), membership.heartbeat_request()):
        assert each.group_instance_id == "i"


def claims(membership, owned=(T0,)):
    """For each assignor that is offered: the partitions that the member claims, and for which generation."""
    found = {}
    for each in membership.join_request(["t"], owned).protocols:
        read = decode_subscription("M", None, each.metadata, each.name)
        assert read.rack == "r1"
        found[each.name] = (read.owned, read.generation)
    return found


def test_only_a_cooperative_group_keeps_partitions():
    """One eager assignor among those offered makes all members give everything up, as in Kafka's client."""
    for names, expected in [
        (("cooperative-sticky",), {"cooperative-sticky": ((T0,), 5)}),
        (("cooperative-sticky", "range"), {"cooperative-sticky": ((), 5), "range": ((), 5)}),
        (("range", "sticky"), {"range": ((), 5), "sticky": ((T0,), 5)}),
    ]:
        membership = member(*names)
        membership.on_join(joined(protocol=names[0]))
        membership.on_sync(SyncGroupResponse(assignment=encode_assignment([T0])))
        assert claims(membership) == expected
        assert membership.is_cooperative == (names == ("cooperative-sticky",))


def test_lost_partitions_are_claimed_for_no_generation():
    """Another member may own them by now, and its claim must win."""
    membership = member("cooperative-sticky")
    membership.on_join(joined(protocol="cooperative-sticky"))
    membership.on_sync(SyncGroupResponse(assignment=encode_assignment([T0])))
    membership.lose_generation("the session timed out")
    assert claims(membership) == {"cooperative-sticky": ((T0,), -1)}


def test_the_leader_gets_the_members_and_assigns():
    """Unless a restarted static leader keeps its assignment (KIP-814)."""
    row = JoinGroupResponseMember(
        member_id="M", group_instance_id="i", metadata=encode_subscription(["t"], [T0], 4, None)
    )
    answers = {
        (leader, skip): JoinGroupResponse(leader=leader, member_id="M", skip_assignment=skip, members=[row])
        for leader in ("M", "another")
        for skip in (False, True)
    }
    assert [key for key, each in answers.items() if Membership.is_leader(each)] == [("M", False)]
    (found,) = Membership.members_of(answers["M", False], warned)
    assert found == MemberSubscription(member_id="M", topics=("t",), instance_id="i", owned=(T0,), generation=4)


def test_the_leader_reads_the_memory_of_sticky_members():
    """Other assignors do not read it: their members' partitions are those of their subscriptions."""
    metadata = encode_subscription(["t"], (), -1, None, encode_sticky_user_data([T1], 4))
    row = JoinGroupResponseMember(member_id="M", metadata=metadata)
    for protocol, owned in (("sticky", (T1,)), ("range", ()), (None, ())):
        (found,) = Membership.members_of(JoinGroupResponse(protocol_name=protocol, members=[row]), warned)
        assert found.owned == owned


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
@pytest.mark.parametrize("metadata", [b"", b"\x00", b"\x00\x01\x00\x00\x00\x05\x00", b"\xff\xff"])
def test_a_malformed_subscription_costs_the_others_nothing(assignor, metadata):
    """The leader took it for a lost answer, and joined again without end: no member of the group read anything."""
    rows = [
        JoinGroupResponseMember(member_id="A", metadata=encode_subscription(["t"], (), -1, None)),
        JoinGroupResponseMember(member_id="B", group_instance_id="b", metadata=metadata),
    ]
    warnings = []
    answer = JoinGroupResponse(protocol_name=assignor, members=rows)
    members = Membership.members_of(answer, lambda event, **fields: warnings.append((event, fields["member"])))
    assert warnings == [("subscription-unreadable", "B")]
    assigned = assign_partitions(assignors_of([assignor])[0], {"t": 2}, members)
    assert {member: sorted(each) for member, each in assigned.items()} == {"A": [T0, T1], "B": []}


def test_a_malformed_assignment_is_reported():
    """The member took it for a lost answer, and began one rebalance after the other."""
    membership = member()
    membership.on_join(joined())
    with pytest.raises(KafkaError, match=r"INCONSISTENT_GROUP_PROTOCOL.*the leader of group 'g' cannot be read"):
        membership.on_sync(SyncGroupResponse(assignment=b"\x00"))


def test_the_group_chooses_one_of_the_assignors():
    membership = member("range", "roundrobin")
    membership.on_join(joined(protocol="roundrobin"))
    assert membership.assignor.name == "roundrobin"
    membership.on_join(joined(protocol="other"))
    with pytest.raises(KafkaError, match=r"INCONSISTENT_GROUP_PROTOCOL.*'other', which was not offered"):
        _ = membership.assignor


class Assigns:
    """An assignor of an application, with a fixed result."""

    name = "fixed"
    is_cooperative = False

    def __init__(self, result):
        self.result = result

    def assign(self, partition_counts, members):
        return self.result


def test_an_assignor_may_not_give_a_partition_twice():
    assert assign_partitions(Assigns({"a": [T0], "b": [T1]}), {}, []) == {"a": [T0], "b": [T1]}
    with pytest.raises(AssertionError, match="t-0 is assigned to a and b"):
        assign_partitions(Assigns({"a": [T0], "b": [T1, T0]}), {}, [])


def test_a_member_that_leaves_is_no_member_any_more():
    membership = in_state(STABLE)
    request = membership.leave_request("closed")
    assert (request.group_id, request.member_id) == ("g", "M")
    assert [(each.member_id, each.reason) for each in request.members] == [("M", "closed")]
    assert (membership.member_id, membership.has_generation, membership.state) == ("", False, UNJOINED)
    assert membership.leave_request("closed") is None, "it has left"
    assert member().leave_request("closed") is None, "it never joined"
    static = in_state(STABLE, STATIC)
    assert static.leave_request("closed") is None, "its place is kept until its session ends"
    assert not static.has_generation, "its partitions may be those of others when it comes back"


@pytest.mark.parametrize("state", [UNJOINED, JOINING, STABLE])
def test_without_partitions_a_member_commits_as_a_stranger(state):
    """After it has given them up in order; whatever it was before, nothing is lost."""
    membership = in_state(state)
    membership.lose_generation("the session timed out")
    assert membership.commits_as is None, "others may own its partitions"
    membership.end("unsubscribed")
    assert (membership.commits_as, membership.assigned_as) == (NO_MEMBERSHIP, NO_MEMBERSHIP)
    assert (membership.member_id, membership.has_generation) == ("", False)
    assert not membership.is_assignment_lost


# --- groups whose coordinator assigns (KIP-848)


def epoch_member(identity=IDENTITY, assignor="uniform"):
    membership = EpochMembership(identity, "M", assignor)
    membership.want(["u", "t"])
    return membership


def given(*partitions):
    rows = [ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic, partitions=[at]) for topic, at in partitions]
    return Assignment(topic_partitions=rows)


def beat(membership, *, epoch=3, target=None, code=ErrorCode.NONE, message=None, held=()):
    """Sends a heartbeat and gives its answer; returns both the request and what is next."""
    request = membership.epoch_heartbeat(held)
    response = ConsumerGroupHeartbeatResponse(
        member_epoch=epoch, assignment=target, error_code=code, error_message=message
    )
    return request, membership.on_epoch_heartbeat(request, response, membership.losses)


def with_partitions(identity=IDENTITY):
    """A member in epoch 3 whose application has taken partition 0 over."""
    membership = epoch_member(identity)
    beat(membership, target=given((TOPIC, 0)))
    membership.take_target()
    membership.take_over()
    return membership


def test_the_first_heartbeat_joins_with_everything():
    membership = epoch_member()
    assert membership.is_cooperative
    assert membership.epoch_heartbeat([(TOPIC, 0)]).topic_partitions == [], "it holds nothing of the group yet"
    request, step = beat(membership, target=given((TOPIC, 0)))
    assert step is GO_ON
    assert (request.group_id, request.member_id, request.member_epoch, request.instance_id) == ("g", "M", 0, None)
    assert (request.subscribed_topic_names, request.rack_id) == (["t", "u"], "r1")
    assert (request.rebalance_timeout_ms, request.server_assignor, request.topic_partitions) == (60000, "uniform", [])
    request, _ = beat(membership, epoch=4)
    assert (request.member_epoch, request.subscribed_topic_names, request.rack_id) == (3, None, None)
    assert (membership.generation, membership.target) == (4, frozenset({(TOPIC, 0)}))


def test_a_join_ends_with_a_target_for_the_subscription():
    membership = epoch_member()
    assert not membership.has_answer
    beat(membership)
    assert not membership.has_answer, "it is a member without a target"
    beat(membership, target=given())
    assert membership.has_answer, "a target may be empty"
    membership.want(["t"])
    assert not membership.has_answer, "the coordinator does not know the subscription yet"
    assert beat(membership)[0].subscribed_topic_names == ["t"]
    assert membership.has_answer


def test_a_new_target_makes_the_member_take_it_over():
    membership = with_partitions()
    assert (membership.state, membership.owned_generation, membership.assigned_as) == (STABLE, 3, (3, "M"))
    beat(membership, epoch=4, target=given((TOPIC, 0)))
    assert membership.state is STABLE, "nothing has changed"
    beat(membership, epoch=5, target=given((TOPIC, 0), (OTHER, 1)))
    assert (membership.state, membership.target) == (UNJOINED, frozenset({(TOPIC, 0), (OTHER, 1)}))
    held = [(OTHER, 1), (TOPIC, 2), (TOPIC, 0)]
    rows = membership.epoch_heartbeat(held).topic_partitions
    assert [(each.topic_id, list(each.partitions)) for each in rows] == [(TOPIC, [0, 2]), (OTHER, [1])]


def test_a_target_counts_as_held_from_its_takeover():
    """Callbacks may commit from then on, and their commits belong to the epoch of the partitions."""
    membership = epoch_member()
    beat(membership, target=given((TOPIC, 0)))
    assert membership.assigned_as == NO_MEMBERSHIP
    membership.take_target()
    assert membership.assigned_as == (3, "M")
    membership.take_over()
    membership.lose_generation("fenced")
    beat(membership, epoch=8, target=given((TOPIC, 0)))
    membership.take_target()
    assert (membership.assigned_as, membership.holds) == ((3, "M"), False), "the application has not heard of the loss"
    membership.take_over()
    assert (membership.assigned_as, membership.holds) == ((8, "M"), True)


def test_commits_name_the_present_epoch():
    """Their right to be sent lasts as long as nothing was lost, whatever the epoch."""
    membership = epoch_member()
    assert membership.commits_as == NO_MEMBERSHIP
    beat(membership, target=given((TOPIC, 0)))
    membership.take_target()
    membership.take_over()
    asked = membership.commits_as
    beat(membership, epoch=4)
    assert membership.commits_as == asked
    assert membership.commit_generation(asked) == 4
    membership.lose_generation("fenced")
    assert membership.commits_as is None
    beat(membership, epoch=9, target=given((TOPIC, 0)))
    assert membership.commits_as is None, "the application has not taken the new partitions over"
    membership.take_target()
    membership.take_over()
    assert membership.commits_as not in (None, asked, NO_MEMBERSHIP)


@pytest.mark.parametrize(
    ("code", "step", "is_lost"),
    [
        (ErrorCode.FENCED_MEMBER_EPOCH, RETRY, True),
        (ErrorCode.UNKNOWN_MEMBER_ID, RETRY, True),
        (ErrorCode.GROUP_ID_NOT_FOUND, RETRY, True),
        (ErrorCode.NOT_COORDINATOR, FIND, False),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, FIND, False),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, RETRY, False),
        (ErrorCode.UNRELEASED_INSTANCE_ID, RETRY, False),
    ],
)
def test_what_a_refused_heartbeat_costs(code, step, is_lost):
    membership = with_partitions()
    assert beat(membership, code=code)[1] is step
    assert (membership.losses, membership.has_generation) == (int(is_lost), not is_lost)
    assert (membership.target is None, membership.fatal, membership.member_id) == (is_lost, None, "M")
    again = membership.epoch_heartbeat([(TOPIC, 0)])
    assert (again.member_epoch, again.subscribed_topic_names) == (0 if is_lost else 3, ["t", "u"])
    assert len(again.topic_partitions) == (0 if is_lost else 1)


@pytest.mark.parametrize(
    ("code", "message", "text"),
    [
        (ErrorCode.INVALID_REQUEST, "the assignor is unknown", "group g: the assignor is unknown"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, None, f"group g: {ErrorCode.GROUP_AUTHORIZATION_FAILED.message}"),
        (ErrorCode.UNSUPPORTED_VERSION, None, "use classic"),
        (ErrorCode.GROUP_ID_NOT_FOUND, None, "group g"),  # of a member that joins
    ],
)
def test_other_refusals_are_raised_by_the_next_poll(code, message, text):
    """No heartbeat is sent until the application subscribes again."""
    membership = epoch_member()
    assert beat(membership, code=code, message=message)[1] is RETRY
    assert (membership.has_answer, membership.topics, membership.losses) == (True, None, 1)
    assert membership.fatal.code is code
    assert text in str(membership.fatal)
    membership.want(["t"])
    assert (membership.fatal, membership.topics, membership.has_answer) == (None, ("t",), False)


def test_a_lost_answer_makes_the_next_heartbeat_complete():
    """The coordinator may not know what the lost request said."""
    membership = with_partitions()
    assert beat(membership)[0].subscribed_topic_names is None
    membership.unanswered()
    assert beat(membership)[0].subscribed_topic_names == ["t", "u"]
    assert beat(membership)[0].subscribed_topic_names is None


def test_an_answer_from_before_a_loss_is_ignored():
    membership = with_partitions()
    request, losses = membership.epoch_heartbeat(()), membership.losses
    membership.lose_generation("the poll came too late")
    late = ConsumerGroupHeartbeatResponse(member_epoch=9, assignment=given((TOPIC, 7)))
    assert membership.on_epoch_heartbeat(request, late, losses) is GO_ON
    assert (membership.has_generation, membership.target) == (False, None)
    assert membership.epoch_heartbeat(()).subscribed_topic_names == ["t", "u"], "it joins again with everything"


def test_a_member_keeps_its_id_for_life():
    """The application's restart is another member (KIP-1082)."""
    membership = with_partitions()
    membership.lose_member_id("left")
    assert (membership.member_id, membership.has_generation, membership.target) == ("M", False, None)
    beat(membership, epoch=7, target=given((TOPIC, 0)))
    membership.take_target()
    membership.end("unsubscribed")
    assert (membership.member_id, membership.topics, membership.commits_as) == ("M", None, NO_MEMBERSHIP)
    assert (membership.has_generation, membership.is_assignment_lost) == (False, False)


def test_leaving_ends_the_subscription():
    membership = with_partitions()
    request = membership.epoch_leave_request("closed")
    assert (request.group_id, request.member_epoch) == ("g", -1)
    assert (membership.topics, membership.has_generation, membership.losses) == (None, False, 1)
    never = epoch_member()
    assert never.epoch_leave_request("closed") is None
    assert never.topics is None, "no heartbeat may join it after it was closed"


def test_a_member_id_alone_is_no_membership():
    """Commits are sent without it until the member has a generation, and again only for what it has taken over."""
    membership = member()
    membership.join_request(["t"], ())
    membership.on_join(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="N"))
    assert membership.commits_as == NO_MEMBERSHIP
    membership = in_state(STABLE)
    membership.lose_generation("the session timed out")
    membership.on_join(joined(7))
    membership.on_sync(SyncGroupResponse(assignment=encode_assignment([T0])))
    assert membership.commits_as is None
    membership.take_over()
    assert membership.commits_as == (7, "M")


def test_only_sticky_members_write_down_what_they_had():
    protocols = member("range", "sticky").join_request(["t"], [T0]).protocols
    remembered = [decode(ConsumerProtocolSubscription, 3, each.metadata, 2).user_data for each in protocols]
    assert [each is not None for each in remembered] == [False, True]
