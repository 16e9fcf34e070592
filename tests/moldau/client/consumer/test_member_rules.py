"""Goal: a consumer says the right things of itself, and hands out the right bytes, where stories get by chance only.

Method: the pure cores alone, and the client of a coordinator without connections.
"""

import dataclasses
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace
from uuid import UUID

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from moldau import TopicPartition
from moldau.cluster.committed import CommittedOffset
from moldau.cluster.group_bytes import encode_assignment
from moldau.consumer import CommitFailedError
from moldau.consumer.core.assignors import MemberSubscription, assignors_of
from moldau.consumer.core.chunk import FetchedChunk
from moldau.consumer.core.epoch_membership import EpochMembership
from moldau.consumer.core.fetch_session import Asked, FetchSession
from moldau.consumer.core.membership import GroupIdentity, Membership
from moldau.consumer.core.positions import PartitionPosition
from moldau.consumer.epoch_group import EpochGroupClient
from moldau.protocol.codec import decode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau.records import ColumnBuilder, decode_records, encode_batch, parse_batch_header
from moldau.runtime.telemetry.log import EventLogger

IDENTITY = GroupIdentity(group_id="g", instance_id=None, session_timeout_ms=6000, rebalance_timeout_ms=60000)
TOPIC = UUID(int=1)


def test_encoded_batches_are_those_that_were_fetched():
    """Each batch has its own bytes, whatever lies before it in the answer."""
    batches = [encode_batch([(1, None, bytes(size), ())], base_offset=at) for at, size in enumerate((10, 300, 40))]
    chunk = FetchedChunk(memoryview(b"".join(batches)), 0)
    taken = []
    assert chunk.take_encoded(taken, 1) == len(batches[0]), "one batch, even if it is larger"
    assert chunk.take_encoded(taken, 1 << 20) == len(batches[1]) + len(batches[2])
    assert [bytes(each.data) for each in taken] == batches
    assert [each.first_offset for each in taken] == [0, 1, 2]
    assert chunk.offset == 3
    records = [decode_records(each.data, 0, parse_batch_header(each.data)) for each in taken]
    assert [[len(record.value) for record in each] for each in records] == [[10], [300], [40]]


def heartbeat(membership, epoch, numbers=None):
    """Sends a heartbeat and takes its answer, with an assignment if ``numbers`` names partitions."""
    assignment = None
    if numbers is not None:
        partitions = [ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=TOPIC, partitions=numbers)]
        assignment = Assignment(topic_partitions=partitions)
    request = membership.epoch_heartbeat(())
    response = ConsumerGroupHeartbeatResponse(member_epoch=epoch, assignment=assignment)
    membership.on_epoch_heartbeat(request, response, membership.losses)


def test_a_transaction_commits_in_the_epoch_of_the_takeover():
    """Heartbeats raise the epoch while the application's callbacks run; offsets of an older epoch would be refused."""
    membership = EpochMembership(IDENTITY, "M", None)
    membership.want(["t"])
    heartbeat(membership, 3, [0, 1])
    membership.take_target()
    heartbeat(membership, 4)
    membership.take_over()
    assert membership.assigned_as == (4, "M")
    heartbeat(membership, 5)
    assert membership.assigned_as == (5, "M")


def test_a_subscription_during_a_heartbeat_is_still_to_be_sent():
    """The answer is about the earlier one, whose target must not end the join for the new one."""
    membership = EpochMembership(IDENTITY, "M", None)
    membership.want(["t"])
    request = membership.epoch_heartbeat(())
    membership.want(["u"])
    partitions = [ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=TOPIC, partitions=[0])]
    answer = ConsumerGroupHeartbeatResponse(member_epoch=3, assignment=Assignment(topic_partitions=partitions))
    membership.on_epoch_heartbeat(request, answer, membership.losses)
    assert not membership.has_answer
    assert membership.epoch_heartbeat(()).subscribed_topic_names == ["u"]
    heartbeat(membership, 4)
    assert membership.has_answer
    assert membership.epoch_heartbeat(()).subscribed_topic_names is None


def test_a_sticky_member_without_partitions_claims_none():
    """Its subscription has no user data, as that of a new member has none in Kafka's client."""
    membership = Membership(IDENTITY, assignors_of(["sticky"]))

    def user_data(owned):
        (protocol,) = membership.join_request(["t"], owned).protocols
        return decode(ConsumerProtocolSubscription, 1, protocol.metadata, 2).user_data

    assert user_data([]) is None
    assert user_data([TopicPartition("t", 0)]) is not None


def joined(instance_id=None):
    """A member in epoch 3 that has taken over partitions 0 and 1."""
    identity = dataclasses.replace(IDENTITY, instance_id=instance_id)
    membership = EpochMembership(identity, "M", "range")
    membership.want(["t"])
    heartbeat(membership, 3, [0, 1])
    membership.take_target()
    membership.take_over()
    return membership


def test_a_member_leaves_that_may_have_joined():
    """The coordinator may have added it, although its answer did not come; not after it has refused it for good."""
    membership = EpochMembership(IDENTITY, "M", None)
    membership.want(["t"])
    membership.epoch_heartbeat(())
    assert membership.epoch_leave_request("closed").member_epoch == -1
    assert membership.epoch_leave_request("closed") is None, "it has left"
    membership.want(["t"])
    request = membership.epoch_heartbeat(())
    refusal = ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    membership.on_epoch_heartbeat(request, refusal, membership.losses)
    assert membership.epoch_leave_request("closed") is None


def test_a_topic_that_metadata_lose_costs_no_partition():
    """It was deleted, or a broker that is behind was asked, between the target and its takeover, or afterwards."""
    membership = EpochMembership(IDENTITY, "M", None)
    names = {TOPIC: "t", UUID(int=2): "u"}
    client = SimpleNamespace(cluster_metadata=SimpleNamespace(topic_names=lambda: names))
    config = SimpleNamespace(get_int=lambda _: 1_000, get_str=lambda _: "")
    positions = [TopicPartition("t", 0), TopicPartition("t", 1)]
    group = EpochGroupClient(client, "g", config, membership, lambda: positions)
    membership.want(["t"])
    heartbeat(membership, 3, [0, 1])
    assert trio.run(group.join, ["t"], []) == positions
    names.clear()
    assert group.still_given(positions) == positions
    group.adopted()
    assert group._held_ids() == [(TOPIC, 0), (TOPIC, 1)], "the coordinator would give them to others"
    membership.target = frozenset({(TOPIC, 1)})
    assert group.still_given(positions) == positions[1:]


def test_a_topic_that_is_taken_away_is_held_until_a_poll():
    """The target lacks it, and the application reads it until it has given it up: another member must wait."""
    membership = EpochMembership(IDENTITY, "M", None)
    second = UUID(int=2)
    names = {TOPIC: "t", second: "u"}
    client = SimpleNamespace(cluster_metadata=SimpleNamespace(topic_names=lambda: names))
    config = SimpleNamespace(get_int=lambda _: 1_000, get_str=lambda _: "")
    positions = [TopicPartition("t", 0), TopicPartition("u", 0)]
    group = EpochGroupClient(client, "g", config, membership, lambda: positions)
    membership.want(["t", "u"])
    heartbeat(membership, 3, [0])
    membership.target = frozenset({(TOPIC, 0), (second, 0)})
    assert trio.run(group.join, ["t", "u"], []) == positions
    group.adopted()
    heartbeat(membership, 3, [0])
    assert trio.run(group.join, ["t", "u"], positions) == positions[:1]
    assert group._held_ids() == [(TOPIC, 0), (second, 0)], "the coordinator would give it to another member"
    del positions[1]
    group.adopted()
    assert group._held_ids() == [(TOPIC, 0)]


def committed(message):
    """Returns the answer to a commit of which all was done."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=each.partition_index) for each in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


@pytest.mark.parametrize("possessions", list(product([[0], [1], [0, 1], []], repeat=2)))
def test_a_commit_concerns_the_possession_of_its_call(possessions):
    """A partition that was released and came back has been read on by others: a late repetition would set it back."""

    class Recording(EpochGroupClient):
        async def _request(self, response_class, message, deadline_ms, **_):
            await trio.lowlevel.checkpoint()
            sent.append(message.topics[0].partitions[0].committed_offset)
            return committed(message)

    def hold(epoch, numbers):
        heartbeat(membership, epoch, numbers)
        membership.take_target()
        positions[:] = [TopicPartition("t", number) for number in numbers]
        membership.take_over()
        group.adopted()

    sent = []
    membership = EpochMembership(IDENTITY, "M", None)
    config = SimpleNamespace(get_int=lambda _: 1_000, get_str=lambda _: "")
    positions = []
    group = Recording(SimpleNamespace(clusters_left=0), "g", config, membership, lambda: positions)
    membership.want(["t"])
    hold(3, [0, 1])
    early = group.ask_commit({TopicPartition("t", 0): CommittedOffset(5)})
    for epoch, numbers in enumerate(possessions, start=4):
        hold(epoch, numbers)
    hold(6, [0, 1])
    late = group.ask_commit({TopicPartition("t", 0): CommittedOffset(6)})
    was_kept = all(0 in numbers for numbers in possessions)
    with nullcontext() if was_kept else pytest.raises(CommitFailedError, match="ILLEGAL_GENERATION"):
        trio.run(group._commit_once, early, 1_000.0)
    trio.run(group._commit_once, late, 1_000.0)
    assert sent == ([5, 6] if was_kept else [6])


@pytest.mark.parametrize("epoch", [3, 4])
@pytest.mark.parametrize("held", [[0, 1], [1], [0], []])
def test_a_commit_of_a_released_partition_is_not_sent(epoch, held):
    """It is repeated under the present epoch, so the coordinator could not refuse it; another member may have read on.

    In the epoch of the call it may be sent: the coordinator gives the partition to no other member before the next one.
    """

    class Recording(EpochGroupClient):
        async def _request(self, response_class, message, deadline_ms, **_):
            await trio.lowlevel.checkpoint()
            sent.append(message.generation_id_or_member_epoch)
            return committed(message)

    sent = []
    membership = EpochMembership(IDENTITY, "M", None)
    client = SimpleNamespace(clusters_left=0)
    config = SimpleNamespace(get_int=lambda _: 1_000, get_str=lambda _: "")
    positions = [TopicPartition("t", 0), TopicPartition("t", 1)]
    group = Recording(client, "g", config, membership, lambda: positions)
    membership.want(["t"])
    heartbeat(membership, 3, [0, 1])
    membership.take_target()
    membership.take_over()
    asked = group.ask_commit({positions[0]: CommittedOffset(5)})
    heartbeat(membership, epoch)
    positions[:] = [TopicPartition("t", number) for number in held]
    if epoch == 3 or 0 in held:
        assert trio.run(group._commit_once, asked, 1_000.0) == (ErrorCode.NONE, {})
        assert sent == [epoch]
    else:
        with pytest.raises(CommitFailedError):
            trio.run(group._commit_once, asked, 1_000.0)
        assert sent == []


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_a_static_member_leaves_for_a_while_only(instance_id, epoch):
    request = joined(instance_id).epoch_leave_request("closed")
    assert (request.member_id, request.member_epoch, request.instance_id) == ("M", epoch, instance_id)
    assert EpochMembership(IDENTITY, "M", None).epoch_leave_request("closed") is None, "it never joined"


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR])
def test_after_a_refusal_the_next_heartbeat_says_all(code):
    """The coordinator may be another one by then, or may have missed what changed."""
    membership = joined()
    request = membership.epoch_heartbeat([(TOPIC, 0)])
    assert request.subscribed_topic_names is None
    membership.on_epoch_heartbeat(request, ConsumerGroupHeartbeatResponse(error_code=code), membership.losses)
    again = membership.epoch_heartbeat([(TOPIC, 0)])
    assert (again.subscribed_topic_names, again.rebalance_timeout_ms, again.server_assignor) == (["t"], 60000, "range")


def test_lost_partitions_are_not_reported_as_held():
    """Others may own them by now; the member holds what it has taken over since."""
    membership = joined()
    held = [(TOPIC, 0), (TOPIC, 1)]
    assert [list(each.partitions) for each in membership.epoch_heartbeat(held).topic_partitions] == [[0, 1]]
    request = membership.epoch_heartbeat(held)
    refusal = ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH)
    membership.on_epoch_heartbeat(request, refusal, membership.losses)
    assert membership.epoch_heartbeat(held).topic_partitions == []
    heartbeat(membership, 9, [1])
    assert membership.epoch_heartbeat(held).topic_partitions == [], "the application does not know yet"
    membership.take_target()
    membership.take_over()
    assert [list(each.partitions) for each in membership.epoch_heartbeat(held[1:]).topic_partitions] == [[1]]


def test_only_a_session_that_the_broker_keeps_is_closed():
    """A request with session 0 would be a full fetch of nothing."""
    session = FetchSession()
    assert session.final_request() is None
    session.next_request({}, by_topic_id=True)
    session.answered(0)
    assert session.final_request() is None
    session.next_request({}, by_topic_id=True)
    session.answered(77)
    final = session.final_request()
    assert (final.session_id, final.epoch, final.partitions, final.forgotten) == (77, -1, {}, {})
    session.lost(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert session.final_request() is None


def test_the_first_assignment_counts_as_held_at_once():
    """Nothing of a former membership can be committed under it."""
    membership = Membership(IDENTITY, assignors_of(["range"]))
    joined = JoinGroupResponse(generation_id=5, member_id="M", protocol_name="range", leader="another")
    membership.on_join(joined)
    membership.on_sync(SyncGroupResponse(assignment=encode_assignment([TopicPartition("t", 0)])))
    assert (membership.assigned_as, membership.commits_as) == ((5, "M"), (5, "M"))


def test_a_session_remembers_the_last_request():
    """A partition whose position has moved on is named again, and then no more."""
    session = FetchSession()
    partition = TopicPartition("t", 0)
    named = []
    for offset in (5, 5, 8, 8, 5):
        asked = {partition: Asked(topic_id=TOPIC, leader_epoch=1, fetch_offset=offset, max_bytes=100)}
        request = session.next_request(asked, by_topic_id=True)
        named.append([each.fetch_offset for each in request.partitions.values()])
        session.answered(77)
    assert named == [[5], [], [8], [], [5]]


def test_a_position_that_was_set_is_asked_for_at_once():
    """The partition was idle where it was before."""
    position = PartitionPosition(TopicPartition("t", 0))
    position.seek(0)
    position.is_idle = True
    position.seek(7)
    assert (position.is_idle, position.fetch_offset) == (False, 7)


def test_another_seek_to_an_epoch_does_not_begin_the_wait_again():
    """The wait for a later leader ends, or a topic that was made again would be waited for without end."""
    position = PartitionPosition(TopicPartition("t", 0))
    position.seek(7, 5)
    assert position.is_ahead_of(4, 1_000, 500)
    position.seek(7, 5)
    assert position.is_ahead_of(4, 1_499, 500)
    assert not position.is_ahead_of(4, 1_500, 500)


def test_columns_follow_records_of_the_same_batch():
    """Each record is handed out once, in whichever form."""
    chunk = FetchedChunk(memoryview(encode_batch([(1, None, b"%d" % number, ()) for number in range(5)])), 0)
    assert [record.value for record in chunk.take(2)] == [b"0", b"1"]
    builder = ColumnBuilder()
    assert chunk.take_columns(builder, 1 << 20) == 3
    assert chunk.take(10) == []
    assert chunk.offset == 5


def test_the_first_member_gets_the_partition_that_is_left_over():
    (assignor,) = assignors_of(["cooperative-sticky"])
    members = [MemberSubscription(member_id=name, topics=("t",)) for name in "abc"]
    found = assignor.assign({"t": 4}, members)
    assert {name: len(held) for name, held in found.items()} == {"a": 2, "b": 1, "c": 1}


class Unreached(EpochGroupClient):
    """The client of a coordinator that cannot be reached for a while."""

    is_reached = True

    async def _connect(self, deadline_ms):
        await trio.sleep(0.1)
        if not self.is_reached:
            raise ConnectionError("no coordinator")

    async def _request(self, response_class, message, deadline_ms, **_):
        await self._connect(deadline_ms)
        partitions = [ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=TOPIC, partitions=[0])]
        return ConsumerGroupHeartbeatResponse(
            member_epoch=message.member_epoch + 1, assignment=Assignment(topic_partitions=partitions)
        )


class PatientClient:
    """The part of a cluster client that a coordinator's client uses while it sends nothing."""

    logger = EventLogger("test")
    request_timeout_ms = 1_000
    cluster_metadata = SimpleNamespace(topic_names=lambda: {TOPIC: "t"})

    @property
    def now_ms(self):
        return trio.current_time() * 1000

    async def backoff(self, failures):
        await trio.sleep(0.1 * failures)


def test_a_join_goes_on_after_a_poll_that_came_too_late():
    """The member left in the middle of its join, for which the next polls then waited without end."""

    async def main():
        polled_ms = [0.0]
        config = SimpleNamespace(get_int=lambda _: 5_000)
        membership = EpochMembership(IDENTITY, "M", None)
        group = Unreached(PatientClient(), "g", config, membership, list)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.heartbeat_forever, lambda: polled_ms[0], lambda: None)
            assert await group.join(["t"], []) == [TopicPartition("t", 0)]
            membership.take_over()
            polled_ms[0] = trio.current_time() * 1000
            group.is_reached = False
            with trio.fail_after(60):
                async with trio.open_nursery() as joining:
                    joining.start_soon(group.join, ["t", "u"], [])
                    await trio.sleep(20)
                    assert membership.losses == 1, "it has left"
                    group.is_reached = True
                    await trio.sleep(20)
                    assert not membership.has_generation, "it does not join before the application polls"
                    polled_ms[0] = trio.current_time() * 1000
            assert membership.topics == ("t", "u")
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_wake_up_during_a_heartbeat_is_not_lost():
    """A released partition or a new subscription is said at once, also while an answer is still on its way."""
    sent = []

    class Slow(Unreached):
        async def _request(self, response_class, message, deadline_ms, **more):
            sent.append((trio.current_time(), message.subscribed_topic_names))
            await trio.sleep(1)
            return await super()._request(response_class, message, deadline_ms, **more)

    async def main():
        config = SimpleNamespace(get_int=lambda _: 60_000)
        membership = EpochMembership(IDENTITY, "M", None)
        group = Slow(PatientClient(), "g", config, membership, list)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.heartbeat_forever, lambda: trio.current_time() * 1000, lambda: None)
            await trio.testing.wait_all_tasks_blocked()
            membership.want(["t"])
            group._wake()
            await trio.sleep(0.5)
            membership.want(["u"])
            group._wake()
            await trio.sleep(5)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    (first, second), (topics, others) = zip(*sent, strict=True)
    assert (topics, others) == (["t"], ["u"])
    assert 1 <= second - first < 2


def test_a_member_that_leaves_before_its_join_does_not_join():
    """Its connection opens slowly, and the application unsubscribes meanwhile."""
    sent = []

    class Opening(Unreached):
        async def _request(self, response_class, message, deadline_ms, **more):
            sent.append(message.member_epoch)
            return await super()._request(response_class, message, deadline_ms, **more)

    async def main():
        config = SimpleNamespace(get_int=lambda _: 60_000)
        membership = EpochMembership(IDENTITY, "M", None)
        group = Opening(PatientClient(), "g", config, membership, list)
        membership.want(["t"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.heartbeat_forever, lambda: trio.current_time() * 1000, lambda: None)
            await trio.sleep(0.05)
            await group.leave("the consumer unsubscribed")
            await trio.sleep(5)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert sent == []
