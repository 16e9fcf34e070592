"""Goal: a consumer says the right things of itself, and hands out the right bytes, where stories get by chance only.

Method: the pure cores alone.
"""

from uuid import UUID

from moldau import TopicPartition
from moldau.consumer.core.assignors import assignors_of
from moldau.consumer.core.chunk import FetchedChunk
from moldau.consumer.core.epoch_membership import EpochMembership
from moldau.consumer.core.membership import GroupIdentity, Membership
from moldau.protocol.codec import decode
from moldau.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from moldau.records import decode_records, encode_batch, parse_batch_header

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


def test_a_sticky_member_without_partitions_claims_none():
    """Its subscription has no user data, as that of a new member has none in Kafka's client."""
    membership = Membership(IDENTITY, assignors_of(["sticky"]))

    def user_data(owned):
        (protocol,) = membership.join_request(["t"], owned).protocols
        return decode(ConsumerProtocolSubscription, 1, protocol.metadata, 2).user_data

    assert user_data([]) is None
    assert user_data([TopicPartition("t", 0)]) is not None
