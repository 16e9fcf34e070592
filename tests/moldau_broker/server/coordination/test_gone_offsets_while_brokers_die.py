"""Goal: a returned offset was committed for its topic, and an acknowledged one is returned.

That holds however often a topic of the name is deleted and recreated while coordinators come and go. Method: a client
names topics by their ids, so that a late request meets no later topic, and commits numbers that never repeat; brokers
are killed and started at drawn moments, in virtual time.
"""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from support.cluster.broker_cluster import run_cluster
from support.cluster.group_asker import GroupAsker, fail_brokers
from support.proof import proof_beyond

ROUNDS = 12
BY_TOPIC_ID = 10
NONE_COMMITTED = -1
RETRY_S = 0.1


class Groups(GroupAsker):
    """The client; ``tried`` and ``acknowledged`` are the numbers committed for the present topic."""

    def __init__(self, cluster, draw) -> None:
        super().__init__(cluster, draw)
        self.number = 0
        self.topic_id = None
        self.former = set()

    async def make(self) -> None:
        creation = CreateTopicsRequest(
            timeout_ms=3000, topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
        )
        question = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
        while True:
            await self.ask(CreateTopicsResponse, creation)
            known = await self.ask(MetadataResponse, question)
            if known is not None and not known.topics[0].error_code and known.topics[0].topic_id not in self.former:
                self.topic_id = known.topics[0].topic_id
                return
            await trio.sleep(RETRY_S)

    async def delete(self) -> None:
        self.former.add(self.topic_id)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=self.topic_id)], timeout_ms=3000)
        while True:
            answer = await self.ask(DeleteTopicsResponse, request)
            if answer is not None and answer.responses[0].error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
                return
            await trio.sleep(RETRY_S)

    async def commit(self, group: str) -> tuple[int, bool]:
        self.number += 1
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=self.number, committed_metadata="")
        topics = [OffsetCommitRequestTopic(topic_id=self.topic_id, partitions=[part])]
        request = OffsetCommitRequest(group_id=group, topics=topics)
        answer = await self.ask_coordinator(group, OffsetCommitResponse, request, BY_TOPIC_ID)
        return self.number, answer is not None and answer.topics[0].partitions[0].error_code == ErrorCode.NONE

    async def reported(self, group: str) -> int:
        topics = [OffsetFetchRequestTopics(topic_id=self.topic_id, partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
        while True:
            answer = await self.ask_coordinator(group, OffsetFetchResponse, request, BY_TOPIC_ID)
            if answer is not None and answer.groups[0].error_code == ErrorCode.NONE:
                (topic,) = answer.groups[0].topics
                if topic.partitions[0].error_code == ErrorCode.NONE:
                    return topic.partitions[0].committed_offset
            await trio.sleep(RETRY_S)

    async def live(self, group: str) -> int:
        """Runs a topic from its creation to its deletion; returns the number of acknowledged commits."""
        tried, acknowledged = {NONE_COMMITTED}, 0
        assert await self.reported(group) in tried, "an offset of a former topic"
        for _ in range(self.draw.randint(1, 4)):
            number, is_acknowledged = await self.commit(group)
            tried.add(number)
            acknowledged += is_acknowledged
            if acknowledged:
                tried.discard(NONE_COMMITTED)
            await trio.sleep(self.draw.uniform(0, 0.3))
            assert await self.reported(group) in tried
        return acknowledged


@pytest.mark.parametrize("seed", proof_beyond(1, range(4)))
def test_offsets_belong_to_the_topic_of_their_commit(seed) -> None:
    """Offsets belong to the topic for which they were committed, not to a later one of the same name."""

    async def scenario(cluster) -> None:
        draw = random.Random(seed)
        client = Groups(cluster, draw)
        acknowledged = 0
        async with trio.open_nursery() as nursery:
            faults = partial(fail_brokers, pause_s=1.5, absence_s=4)
            nursery.start_soon(faults, cluster, random.Random(seed + 1000), trio.Event())
            with trio.fail_after(600):
                for number in range(ROUNDS):
                    await client.make()
                    acknowledged += await client.live("gh"[number % 4 // 2])
                    await client.delete()
            nursery.cancel_scope.cancel()
        assert acknowledged >= ROUNDS, "most commits succeed"

    run_cluster(scenario, seed=seed, brokers=3)
