"""The topics of administered share groups: they are written to, deleted, and created again under their names.

Records are written with single requests that name the topic by its id, so that a late one cannot reach a later topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from moldau.records import encode_batch
from moldau_jepsen.checkers.group.share_administration import Written
from moldau_jepsen.history import TopicPartition
from moldau_jepsen.workloads.questions import TIMEOUT_MS

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping

    from moldau.runtime.ports.environment import Clock
    from moldau_jepsen.checkers.group.share import Place
    from moldau_jepsen.workloads.share_administration.asker import Asker

TOPICS = {"share-administered-a": 1, "share-administered-b": 2}
"""Partitions by topic."""
PRODUCE_VERSION = 13
ALL_REPLICAS = -1
REPLICAS = 3
RETRY_S = 0.2
BATCH_RECORDS = (1, 3)


def labelled(name: str, topic_id: uuid.UUID, partition: int) -> TopicPartition:
    """Returns how the history names a partition: its topic may have had other lives under its name."""
    return TopicPartition(f"{name} {topic_id}", partition)


def place_of(value: bytes, name: str, partition: int, offset: int) -> Place:
    """Returns the place of a record, whose value names the topic id that it was written to."""
    return TopicPartition(f"{name} {value.decode().partition('|')[0]}", partition), offset


class AdministeredTopics:
    """The topics and what was written to them."""

    def __init__(self, clock: Clock) -> None:
        """Knows no topic before ``look``."""
        self._clock = clock
        self.ids: dict[str, uuid.UUID] = {}
        """The topics whose deletion has not begun."""
        self._former: set[uuid.UUID] = set()
        self._deleting: dict[str, uuid.UUID] = {}
        """The topics whose deletion has begun, and which are not there again."""
        self.written: list[Written] = []

    def partitions(self) -> list[TopicPartition]:
        """Returns all partitions of the topics that are there."""
        return [
            labelled(name, topic_id, number) for name, topic_id in self.ids.items() for number in range(TOPICS[name])
        ]

    def undivided(self) -> frozenset[str]:
        """Returns the names, in the history, of all topics that have or had one partition."""
        every = [*self._former, *self.ids.values()]
        return frozenset(f"{name} {topic_id}" for name, count in TOPICS.items() if count == 1 for topic_id in every)

    async def look(self, asker: Asker) -> bool:
        """Takes the ids of topics from the metadata; returns whether all topics are there."""
        for topic in await asker.topics(list(TOPICS)):
            if topic.name is not None and topic.topic_id not in self._former:
                self.ids[topic.name] = topic.topic_id
        return len(self.ids) == len(TOPICS)

    async def write(self, asker: Asker, is_over: Callable[[], bool], records_per_second: float) -> None:
        """Writes batches of a few records to partitions until ``is_over``."""
        number = 0
        leaders: Mapping[tuple[uuid.UUID, int], int] = {}
        while not is_over():
            await trio.sleep(asker.draw.expovariate(records_per_second / BATCH_RECORDS[1]))
            name = asker.draw.choice(list(TOPICS))
            partition = asker.draw.randrange(TOPICS[name])
            topic_id = self.ids.get(name)
            if topic_id is None:
                continue
            leader = leaders.get((topic_id, partition))
            if leader is None:
                leaders = await leaders_of(asker)
                continue
            count = asker.draw.randint(*BATCH_RECORDS)
            if not await self._write_batch(asker, leader, (name, topic_id, partition), (number, count)):
                leaders = {}
            number += count

    async def _write_batch(
        self, asker: Asker, leader: int, target: tuple[str, uuid.UUID, int], numbers: tuple[int, int]
    ) -> bool:
        name, topic_id, partition = target
        first, count = numbers
        wall_ms = int(self._clock.wall_ms())
        values = [f"{topic_id}|{number}".encode() for number in range(first, first + count)]
        batch = encode_batch([(wall_ms, None, value, ()) for value in values])
        data = TopicProduceData(
            topic_id=topic_id, partition_data=[PartitionProduceData(index=partition, records=batch)]
        )
        request = ProduceRequest(acks=ALL_REPLICAS, timeout_ms=TIMEOUT_MS, topic_data=[data])
        response = await asker.ask(leader, ProduceResponse, request, PRODUCE_VERSION)
        if response is None:
            return False
        answer = response.responses[0].partition_responses[0]
        if answer.error_code:
            return False
        place, now_ms = labelled(name, topic_id, partition), asker.now_ms
        self.written += [Written((place, answer.base_offset + index), now_ms) for index in range(count)]
        return True

    async def recreate(self, asker: Asker, name: str, is_over: Callable[[], bool]) -> bool:
        """Deletes a topic and creates it again, each until that is confirmed; returns False if it is over before."""
        self._deleting[name] = self.ids.pop(name)
        self._former.add(self._deleting[name])
        return await self.restore(asker, name, is_over)

    async def restore(self, asker: Asker, name: str, is_over: Callable[[], bool]) -> bool:
        """Completes a deletion that has begun, and creates the topic; see ``recreate``."""
        topic_id = self._deleting[name]
        delete = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id)], timeout_ms=TIMEOUT_MS)
        while not is_over():
            answer = await asker.ask_any(DeleteTopicsResponse, delete)
            done = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID)
            if answer is not None and ErrorCode.of(answer.responses[0].error_code) in done:
                break
            await trio.sleep(RETRY_S)
        return await self._create(asker, name, is_over)

    async def restore_all(self, asker: Asker) -> None:
        """Creates the topics again whose recreation was interrupted; the caller sets a deadline."""
        for name in [each for each in self._deleting if each not in self.ids]:
            await self.restore(asker, name, lambda: False)

    async def _create(self, asker: Asker, name: str, is_over: Callable[[], bool]) -> bool:
        """Creates a topic until the metadata show it; returns False if it is over before."""
        replicas = min(REPLICAS, len(asker.nodes.broker_ids))
        topic = CreatableTopic(name=name, num_partitions=TOPICS[name], replication_factor=replicas)
        create = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        while not is_over():
            await asker.ask_any(CreateTopicsResponse, create)  # the metadata show its effect
            await self.look(asker)
            if name in self.ids:
                return True
            await trio.sleep(RETRY_S)
        return False


async def leaders_of(asker: Asker) -> dict[tuple[uuid.UUID, int], int]:
    """Returns the leaders of all partitions, as some broker knows them."""
    return {
        (topic.topic_id, part.partition_index): part.leader_id
        for topic in await asker.topics(list(TOPICS))
        for part in topic.partitions
        if part.leader_id in asker.nodes.broker_ids
    }
