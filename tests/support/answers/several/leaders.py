"""Requests to brokers that do not lead a partition, or do not coordinate a group or a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.fetch import ReplicaState
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from support.answers import newer_groups, share_groups
from support.answers.classic_groups import commit, join, sync
from support.answers.records import WAIT_MS, batch, fetch, list_offsets, produce
from support.answers.several.topics import placed
from support.answers.transactions import Producer, begin

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.protocol.schema import Request
    from support.answers.several.session import ClusterSession

LEADER, FOLLOWER, APART = 1, 2, 3
"""The roles of the brokers for the topic of two replicas."""
NONE: Final = frozenset[int]()
"""No answer is a reason to ask again."""


async def leaders(cluster: ClusterSession) -> None:
    """Sends the same requests to the leader, to a follower, and to a broker without a replica."""
    name, topic_id = await placed(cluster, "placed", [[LEADER, FOLLOWER]])
    for number in range(3):
        await cluster.at(LEADER).ask(f"produce batch {number}", produce(name, (0, batch(2))), 12)
    for node, role in ((LEADER, "leader"), (FOLLOWER, "follower"), (APART, "broker apart")):
        await _records(cluster, node, role, name, topic_id)
        await _replicas(cluster, node, role, name, topic_id)
    await _closest(cluster)
    await _coordinators(cluster, name)


async def _records(cluster: ClusterSession, node: int, role: str, name: str, topic_id: UUID) -> None:
    session = cluster.at(node)

    async def each(step: str, request: Request, versions: range | tuple[int, ...]) -> None:
        for version in versions:
            await session.ask(f"{role}: {step}, version {version}", request, version, transient=NONE)

    if node != LEADER:
        await each("produce", produce(name, (0, batch())), range(3, 13))
        await each("produce", produce(topic_id, (0, batch())), (13,))
        await each("produce with acks=1", produce(name, (0, batch()), acks=1), (12,))
    for epoch in (-1, 0, 5):
        await each(f"fetch at epoch {epoch}", fetch(name, topic_id, (0, epoch, 0, -1), max_wait_ms=0), range(4, 19))
        await each(f"offsets at epoch {epoch}", list_offsets(name, (0, epoch, -1)), range(1, 12))
        await each(f"end of epoch 0 at epoch {epoch}", epochs(name, epoch, 0), range(2, 5))
    await each("end of epoch 7", epochs(name, -1, 7), (4,))
    for at in (-2, -3, -4, -5, -6, 0):
        await each(f"offset at {at}", list_offsets(name, (0, -1, at)), (11,))
    await each("stable offset", list_offsets(name, (0, -1, -1), isolation=1), (6,))
    await each("offsets for a debugger", list_offsets(name, (0, -1, -1), replica=-2), (6,))
    await each("fetch beyond the end", fetch(name, topic_id, (0, -1, 10**6, -1), max_wait_ms=0), (12, 18))
    await each("fetch behind epoch 3", fetch(name, topic_id, (0, -1, 2, 3), max_wait_ms=0), (12, 18))
    own = fetch(name, topic_id, (0, -1, 0, -1), max_wait_ms=0, rack_id=f"rack-{node}")
    await each("fetch of a rack", own, (11, 18))
    for before in (1, -1):
        parts = [DeleteRecordsPartition(partition_index=0, offset=before)]
        topics = [DeleteRecordsTopic(name=name, partitions=parts)]
        await each(f"delete records before {before}", DeleteRecordsRequest(topics=topics, timeout_ms=WAIT_MS), (2,))
    asked = [TopicRequest(name=name, partition_indexes=[0])]
    await each("producers", DescribeProducersRequest(topics=asked), (0,))
    await each("metadata", MetadataRequest(topics=[MetadataRequestTopic(name=name)]), range(9, 14))


def epochs(name: str, current: int, epoch: int) -> OffsetForLeaderEpochRequest:
    """Returns a request for the end of an epoch, by a client that knows the current one."""
    part = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=name, partitions=[part])])


async def _replicas(cluster: ClusterSession, node: int, role: str, name: str, topic_id: UUID) -> None:
    session = cluster.at(node)
    for replica in (9, APART, -2):
        request = fetch(name, topic_id, (0, -1, 6, -1), max_wait_ms=0, replica_id=replica)
        await session.ask(f"{role}: fetch as replica {replica}, version 12", request, 12, transient=NONE)
    state = ReplicaState(replica_id=APART, replica_epoch=-1)
    request = fetch(name, topic_id, (0, -1, 6, -1), max_wait_ms=0)
    request.replica_state = state
    for version in (15, 18):
        step = f"{role}: fetch as replica {APART}, version {version}"
        await session.ask(step, request, version, transient=NONE)
    offsets = list_offsets(name, (0, -1, -1), replica=APART)
    await session.ask(f"{role}: offsets as replica {APART}", offsets, 6, transient=NONE)
    ends = epochs(name, -1, 0)
    ends.replica_id = APART
    await session.ask(f"{role}: epochs as replica {APART}", ends, 4, transient=NONE)


async def _closest(cluster: ClusterSession) -> None:
    """A leader names the replica in the rack of a consumer, if it has the offset."""
    name, topic_id = await placed(cluster, "racks", [[1, 2, 3]])
    await cluster.at(1).ask("racks: produce", produce(name, (0, batch(3))), 12)
    for rack in ("rack-1", "rack-2", "rack-3", "rack-9", ""):
        for version in (11, 12, 13, 18):
            for offset in (0, 3, 100):
                request = fetch(name, topic_id, (0, -1, offset, -1), max_wait_ms=0, rack_id=rack)
                step = f"racks: from {offset}, {rack or 'no rack'}, version {version}"
                await cluster.at(1).ask(step, request, version, transient=NONE)


async def _coordinators(cluster: ClusterSession, name: str) -> None:
    group, transaction = (cluster.at(1).name(word) for word in ("group", "transaction"))
    for kind, key in ((0, group), (1, transaction)):
        while True:
            asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            found = await cluster.at(1).ask("coordinator", asked)
            cluster.answers.pop("coordinator")
            [coordinator] = found.coordinators
            if not coordinator.error_code:
                break
        node = cluster.others(coordinator.node_id)[0]
        requests = _of_transactions(transaction, group, name) if kind else _of_groups(group, name, transaction)
        for step, (request, version) in requests.items():
            await cluster.at(node).ask(f"not the coordinator: {step}", request, version, transient=NONE)


def _of_groups(group: str, name: str, transaction: str) -> dict[str, tuple[Request, int | None]]:
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    gone = [OffsetDeleteRequestTopic(name=name, partitions=partitions)]
    topics = [OffsetFetchRequestTopic(name=name, partition_indexes=[0])]
    wanted = [OffsetFetchRequestTopics(name=name, partition_indexes=[0])]
    several = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)])
    shared = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    cases: dict[str, tuple[Request, int | None]] = {
        **{
            f"add an offset, version {version}": (Producer(transaction, 5, 0).offsets(group, name), version)
            for version in (2, 4, 5)
        },
        **{f"join, version {version}": (join(group), version) for version in (2, 5, 9)},
        **{f"sync, version {version}": (sync(group, "m", 1), version) for version in (0, 5)},
        "heartbeat": (HeartbeatRequest(group_id=group, member_id="m", generation_id=1), 4),
        "leave, version 2": (LeaveGroupRequest(group_id=group, member_id="m"), 2),
        "leave": (LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="m")]), 5),
        **{f"commit, version {version}": (commit(group, name), version) for version in (2, 7, 9)},
        **{
            f"offsets, version {version}": (OffsetFetchRequest(group_id=group, topics=topics), version)
            for version in (1, 2, 7)
        },
        **{f"offsets, version {version}": (several, version) for version in (8, 9)},
        "all offsets, version 5": (OffsetFetchRequest(group_id=group, topics=None), 5),
        "delete offsets": (OffsetDeleteRequest(group_id=group, topics=gone), 0),
        "describe": (DescribeGroupsRequest(groups=[group]), 5),
        "describe with version 6": (DescribeGroupsRequest(groups=[group]), 6),
        "delete": (DeleteGroupsRequest(groups_names=[group]), 2),
        "describe a newer group": (ConsumerGroupDescribeRequest(group_ids=[group]), 1),
        "describe a share group": (ShareGroupDescribeRequest(group_ids=[group]), None),
        "describe a streams group": (StreamsGroupDescribeRequest(group_ids=[group]), None),
        "offsets of a share group": (DescribeShareGroupOffsetsRequest(groups=[shared]), None),
        "enter a newer group": (newer_groups.entry(group, name), None),
        "enter a share group": (
            share_groups.beat(group, subscribed_topic_names=[name]),
            None,
        ),
    }
    return cases


def _of_transactions(transaction: str, group: str, name: str) -> dict[str, tuple[Request, int | None]]:
    producer = Producer(transaction, 5, 0)
    return {
        **{f"begin, version {version}": (begin(transaction), version) for version in (0, 2, 5)},
        "add a partition": (producer.add((name, [0])), 3),
        "add a group": (producer.add_offsets(group), 3),
        "add as a broker": (producer.add_as_broker(name, verify=False), 5),
        "verify as a broker": (producer.add_as_broker(name, verify=True), 5),
        **{f"end, version {version}": (producer.end(commit=True), version) for version in (1, 4, 5)},
        "describe a transaction": (DescribeTransactionsRequest(transactional_ids=[transaction]), 0),
    }
