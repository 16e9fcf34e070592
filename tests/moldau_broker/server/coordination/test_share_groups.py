"""Goal: brokers serve share groups (KIP-932) over the wire: members, durable states, offsets, failovers.

Method: clusters on virtual network, disk and time, and bare clients. Requests about states go where FindCoordinator
says, as brokers send them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau_broker.coordinator.share.core.requests import Read
from moldau_broker.coordinator.share.core.state import SharePartitionKey
from moldau_quorum.controller.cluster.features import INITIAL_FEATURES, SHARE_VERSION
from support.cluster.broker_cluster import batch, run_cluster
from support.coordinator.share_group_world import alter, beat, delete_offsets
from support.coordinator.share_world import batches_of, request, write

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster

GROUP = "g"
SETTINGS = {
    "offsets_topic_num_partitions": "1",
    "share_coordinator_state_topic_num_partitions": "2",
    "share_coordinator_snapshot_update_records_per_snapshot": "2",
    "share_coordinator_state_topic_prune_interval_ms": "2000",
    "group_share_min_heartbeat_interval_ms": "1",
    "group_share_heartbeat_interval_ms": "500",
    "group_share_min_session_timeout_ms": "1",
    "group_share_session_timeout_ms": "6000",
}
GROUP_KEY, SHARE_KEY = 0, 2


async def enable(cluster: Cluster, level: int = 2) -> None:
    update = FeatureUpdateKey(feature=SHARE_VERSION, max_version_level=level, upgrade_type=1 if level else 2)
    answer = await cluster.client(min(cluster.running)).request(
        UpdateFeaturesRequest(feature_updates=[update], timeout_ms=10_000)
    )
    assert answer.error_code == ErrorCode.NONE
    await cluster.until(
        lambda: all(b.metadata.image.features.get(SHARE_VERSION, 0) == level for b in cluster.running.values())
    )


async def find(cluster: Cluster, key_type: int, key: str) -> int:
    """Returns the broker that coordinates a key."""
    with trio.fail_after(60):
        while True:
            for broker_id in sorted(cluster.running):
                try:
                    answer = await cluster.client(broker_id).request(
                        FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 6, timeout_ms=2_000
                    )
                except (*TRANSPORT_ERRORS, KafkaError):
                    continue
                found = answer.coordinators[0]
                if found.error_code == ErrorCode.NONE and found.node_id in cluster.running:
                    return found.node_id
            await trio.sleep(0.1)


async def ask(cluster: Cluster, message, key: str = GROUP, key_type: int = GROUP_KEY):
    """Sends a request to its coordinator until one has served it."""
    with trio.fail_after(60):
        while True:
            try:
                node_id = await find(cluster, key_type, key)
                answer = await cluster.client(node_id).request(message, message.__versions__.last)
            except (*TRANSPORT_ERRORS, KafkaError):
                continue
            code = getattr(answer, "error_code", None)
            if code is None and key_type == SHARE_KEY:
                code = answer.results[0].partitions[0].error_code
            if code not in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 15):
                return answer
            await trio.sleep(0.1)


async def state_request(cluster: Cluster, what, number: int = 0):
    """Asks the share coordinator about a partition of the topic ``t``."""
    topic_id = cluster.image().topics_by_name["t"].topic_id
    where = SharePartitionKey(GROUP, topic_id, number)
    answer = await ask(cluster, request((where, what)), where.coordinator_key, SHARE_KEY)
    return answer.results[0].partitions[0]


async def assigned(cluster: Cluster, member: str, count: int) -> int:
    """Beats until a member has so many partitions; returns its epoch."""
    epoch, found = 0, -1
    with trio.fail_after(60):
        while True:
            answer = await ask(cluster, beat(member, epoch, ("t",) if epoch == 0 else None))
            assert answer.error_code == ErrorCode.NONE, answer
            epoch = answer.member_epoch
            if answer.assignment is not None:
                found = sum(len(topic.partitions) for topic in answer.assignment.topic_partitions)
            if found == count:
                return epoch
            await trio.sleep(0.5)


async def offsets(cluster: Cluster, group: str = GROUP):
    wanted = DescribeShareGroupOffsetsRequest(groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group)])
    wanted.groups[0].topics = None
    answer = await ask(cluster, wanted)
    return answer.groups[0]


def run(scenario, **options) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=3, replicas=min(3, len(cluster.broker_ids)))
        await scenario(cluster)

    run_cluster(main, **{**SETTINGS, **options})


def test_share_groups_are_off_until_their_feature_is_on() -> None:
    """A new cluster serves share groups; one at level 0 does not."""

    async def scenario(cluster: Cluster) -> None:
        await enable(cluster, level=0)
        await find(cluster, GROUP_KEY, GROUP)
        client = cluster.client(1)
        for message in (beat("m", 0, ("t",)), alter(("t", 0, 1)), delete_offsets("t")):
            answer = await client.request(message, message.__versions__.last)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        described = await client.request(ShareGroupDescribeRequest(group_ids=[GROUP]), 1)
        assert described.groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (await offsets(cluster)).error_code == ErrorCode.UNSUPPORTED_VERSION
        await enable(cluster)
        assert (await ask(cluster, beat("m", 0, ("t",)))).error_code == ErrorCode.NONE

    assert INITIAL_FEATURES[SHARE_VERSION] == 2
    run(scenario)


def test_coordinators_are_found_by_kafkas_key() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        good = "g:AAAAAAAAAAAAAAAAAAAAAQ:0"
        for version, key, code in (
            (5, good, ErrorCode.INVALID_REQUEST),
            (6, "g", ErrorCode.INVALID_REQUEST),
            (6, good, ErrorCode.NONE),
        ):
            answer = await client.request(FindCoordinatorRequest(key_type=SHARE_KEY, coordinator_keys=[key]), version)
            assert answer.coordinators[0].error_code == code
        topic = cluster.image().topics_by_name["__share_group_state"]
        assert len(topic.partitions) == 2

    run(scenario)


def test_a_group_begins_as_soon_as_enough_brokers_are_there() -> None:
    """The topic of the states needs two brokers. Found by seed 9105: it was asked for once, and again after 10 s."""

    async def scenario(cluster: Cluster) -> None:
        async def join() -> None:
            await trio.sleep(3)
            cluster.start_broker(2)
            await cluster.until(lambda: 2 in cluster.running)
            joined.append(trio.current_time())

        joined: list[float] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            await assigned(cluster, "m", 3)
        assert joined
        assert trio.current_time() - joined[0] < 2.5

    run(scenario, share_coordinator_state_topic_replication_factor="2")


def test_a_member_gets_partitions_and_its_group_ends() -> None:
    async def scenario(cluster: Cluster) -> None:
        await enable(cluster)
        epoch = await assigned(cluster, "m", 3)
        assert (await state_request(cluster, Read(leader_epoch=0))).error_code == ErrorCode.NONE
        deleted = await ask(cluster, DeleteGroupsRequest(groups_names=[GROUP]))
        assert deleted.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        assert (await ask(cluster, beat("m", -1))).member_epoch == -1
        described = (await ask(cluster, ShareGroupDescribeRequest(group_ids=[GROUP]))).groups[0]
        assert (described.group_state, described.group_epoch) == ("Empty", epoch + 1)
        deleted = await ask(cluster, DeleteGroupsRequest(groups_names=[GROUP]))
        assert deleted.results[0].error_code == ErrorCode.NONE
        assert (await state_request(cluster, Read(leader_epoch=0))).error_code == ErrorCode.INVALID_REQUEST
        described = (await ask(cluster, ShareGroupDescribeRequest(group_ids=[GROUP]))).groups[0]
        assert described.error_message == "Group g not found."

    run(scenario)


def test_offsets_are_set_shown_and_deleted() -> None:
    """The lag counts what is behind the start offset and not done with."""

    async def scenario(cluster: Cluster) -> None:
        await enable(cluster)
        leader = await cluster.leader("t")
        await cluster.client(leader).produce("t", batch(*[b"x"] * 10))
        answer = await ask(cluster, alter(("t", 0, 4), ("t", 1, 0), ("t", 7, 0)))
        codes = [part.error_code for part in answer.responses[0].partitions]
        assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        await state_request(cluster, write((5, 6, 2, 1), state_epoch=1, leader_epoch=-1, count=2))
        group = await offsets(cluster)
        found = [(part.partition_index, part.start_offset, part.lag) for part in group.topics[0].partitions]
        assert found == [(0, 4, 4), (1, 0, 0)]
        named = [
            DescribeShareGroupOffsetsRequestGroup(
                group_id=GROUP, topics=[DescribeShareGroupOffsetsRequestTopic(topic_name="t", partitions=numbers)]
            )
            for numbers in ([0, 0], [1], [0])
        ]
        (once,) = (await ask(cluster, DescribeShareGroupOffsetsRequest(groups=named))).groups
        assert [part.partition_index for topic in once.topics for part in topic.partitions] == [0, 1]
        answer = await ask(cluster, delete_offsets("t"))
        assert answer.responses[0].error_code == ErrorCode.NONE
        assert not (await offsets(cluster)).topics
        assert (await offsets(cluster, "x")).error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(scenario, brokers=3)


def test_states_and_members_survive_their_coordinators() -> None:
    """Each broker dies once and returns; what was acknowledged is there after every death, and the log is pruned."""

    async def scenario(cluster: Cluster) -> None:
        await enable(cluster)
        epoch = await assigned(cluster, "m", 3)
        written = -1
        for broker_id in cluster.broker_ids:
            for _ in range(5):
                written += 1
                done = await state_request(cluster, write((written, written, 2, 1), state_epoch=-1, leader_epoch=-1))
                assert done.error_code == ErrorCode.NONE
            cluster.kill(broker_id)
            found = await state_request(cluster, Read(leader_epoch=-1))
            assert batches_of(found) == [(0, written, 2, 1)]
            answer = await ask(cluster, beat("m", epoch))
            assert answer.error_code == ErrorCode.NONE
            epoch = answer.member_epoch
            cluster.start_broker(broker_id)
            await cluster.until(lambda: len(cluster.running) == 3)
        await trio.sleep(5)
        starts = [
            replica.log.log_start_offset
            for broker_id in cluster.running
            for number in range(2)
            if (replica := cluster.replica(broker_id, "__share_group_state", number)) is not None and replica.is_leader
        ]
        assert max(starts) > 0

    run(scenario, brokers=3, controllers=1)


def test_a_deleted_topic_takes_its_states_along() -> None:
    async def scenario(cluster: Cluster) -> None:
        await enable(cluster)
        await ask(cluster, alter(("t", 0, 4)))
        answer = await cluster.client(1).request(
            DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=10_000), 6
        )
        assert answer.responses[0].error_code == ErrorCode.NONE
        shards = cluster.running[1].context.shares._shards.values()
        await cluster.until(lambda: not any(shard.core.states for shard in shards))
        assert not (await offsets(cluster)).topics

    run(scenario)
