"""Runs a client that creates a topic, writes to it, reads it, deletes it, and creates it again under the same name.

A broker, or one of its log directories, may be offline meanwhile and come back with the log of a deleted topic. Every
request names the topic by its id where the protocol can, so that a late request cannot reach a later topic: records
that were acknowledged for an id must be there until its deletion begins. ``checkers.topics`` judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from moldau.records import decode_records, encode_batch, iterate_batches
from moldau_jepsen.checkers.log.reach import GAP_MAX, end_of
from moldau_jepsen.checkers.log.topics import UNKNOWN, TopicRead, TopicWrite
from moldau_jepsen.history import Evidence, Lead, TopicPartition
from moldau_jepsen.workloads.questions import TIMEOUT_MS, Questions

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping, Sequence

    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.workloads.questions import Nodes
    from moldau_jepsen.workloads.recording.recorder import Recorder

TOPIC = "made-again"
PARTITIONS = 2
RETRY_S = 0.2
WRITES_MAX = 12
WRITES_PER_SECOND = 8.0
READ_PROBABILITY = 0.5
READ_S = 2.0
FETCH_BYTES = 1 << 20
# Where topics are named by their ids (KIP-516).
PRODUCE_VERSION = 13
FETCH_VERSION = 17
ALL = -1


class TopicsWorkload:
    """The client and its observations."""

    def __init__(
        self,
        nodes: Nodes,
        environment: Environment,
        recorder: Recorder,
        *,
        replication: Sequence[int] = (3,),
        on_acknowledged: Callable[[str, int, uuid.UUID, int], None] = lambda topic, partition, topic_id, offset: None,
    ) -> None:
        """``replication`` is drawn from for each topic; one replica is enough where no disk forgets.

        ``recorder`` hears which brokers acknowledged as leaders; what was written and read stays here.
        ``on_acknowledged`` hears of each acknowledged record: topic, partition, the topic's id, offset.
        """
        self._replication = replication
        self._nodes = nodes
        self._environment = environment
        self._recorder = recorder
        self._process = recorder.new_process()
        self._questions = Questions(environment, nodes, "topics", keeps_connections=True)
        self._on_acknowledged = on_acknowledged
        self._stopping = trio.Event()
        self._deleted: set[uuid.UUID] = set()
        self._alive: uuid.UUID | None = None  # the topic whose deletion has not begun
        self.writes: list[TopicWrite] = []
        self.reads: list[TopicRead] = []
        self.stuck: str | None = None
        """Why the final read failed, if it did."""

    def stop(self) -> None:
        """Begins no further operation."""
        self._stopping.set()

    async def run(self) -> None:
        """Makes, fills and deletes topics until ``stop``."""
        draw = self._environment.random
        try:
            while not self._stopping.is_set():
                topic_id = await self._make()
                if topic_id is None:
                    return
                for _ in range(draw.randint(1, WRITES_MAX)):
                    if self._stopping.is_set():
                        return
                    await trio.sleep(draw.expovariate(WRITES_PER_SECOND))
                    await self._write(topic_id, draw.randrange(PARTITIONS))
                if draw.random() < READ_PROBABILITY:
                    with trio.move_on_after(READ_S):  # while faults strike, that it does not end says nothing
                        await self._read_back(topic_id)
                if self._stopping.is_set():
                    return
                await self._delete(topic_id)
        finally:
            self._questions.close()

    async def final_read(self, seconds: float) -> None:
        """Reads the topic that is left, if one is; sets ``stuck`` when that does not end within ``seconds``."""
        if self._alive is None:
            return
        try:
            with trio.move_on_after(seconds):
                await self._read_back(self._alive)
                return
        finally:
            self._questions.close()
        self.stuck = f"topic {TOPIC} with id {self._alive} could not be read to its end within {seconds} s"

    # --- a topic's life

    async def _make(self) -> uuid.UUID | None:
        """Returns the id of a topic that is there, None when the client is stopped before."""
        replicas = min(self._environment.random.choice(self._replication), len(self._nodes.broker_ids))
        in_sync = CreatableTopicConfig(name="min.insync.replicas", value=str(max(1, replicas - 1)))
        request = CreateTopicsRequest(
            timeout_ms=TIMEOUT_MS,
            topics=[
                CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=replicas, configs=[in_sync])
            ],
        )
        while not self._stopping.is_set():
            await self._questions.ask(
                self._any_broker(), CreateTopicsResponse, request
            )  # metadata will show its effect
            known = await self._metadata()
            if known is not None and known[0] not in self._deleted:
                self._alive = known[0]
                return self._alive
            await trio.sleep(RETRY_S)
        return None

    async def _write(self, topic_id: uuid.UUID, partition: int) -> None:
        """Sends one record, once."""
        found = await self._leader(topic_id, partition)
        if found is None:
            return
        leader, leader_epoch = found
        begun_ms = self._recorder.now_ms()
        value, place = f"{len(self.writes)} for {topic_id}", len(self.writes)
        self.writes.append(TopicWrite(str(topic_id), partition, value, UNKNOWN))
        now_ms = int(self._environment.clock.wall_ms())
        records = encode_batch([(now_ms, None, value.encode(), ())])
        request = ProduceRequest(
            acks=ALL,
            timeout_ms=TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    topic_id=topic_id, partition_data=[PartitionProduceData(index=partition, records=records)]
                )
            ],
        )
        response = await self._questions.ask(leader, ProduceResponse, request, PRODUCE_VERSION)
        if response is None:
            return
        answer = response.responses[0].partition_responses[0]
        if ErrorCode.of(answer.error_code) is ErrorCode.NONE:
            self.writes[place] = self.writes[place]._replace(offset=answer.base_offset)
            self._on_acknowledged(TOPIC, partition, topic_id, answer.base_offset)
            led = TopicPartition(f"{TOPIC} {topic_id}", partition)
            lead = Lead(led, leader_epoch, leader, Evidence.ACKNOWLEDGED)
            self._recorder.claim(self._process, begun_ms, [lead])

    async def _read_back(self, topic_id: uuid.UUID) -> None:
        """Reads all partitions to their ends, which lie behind all that was acknowledged or read."""
        for partition in range(PARTITIONS):
            await self._read_partition(topic_id, partition)

    async def _read_partition(self, topic_id: uuid.UUID, partition: int) -> None:
        writes, place = len(self.writes), (str(topic_id), partition)
        # A new leader may not know yet how much is committed: what was read before is.
        reported = [write.offset for write in self.writes if write[:2] == place and write.offset != UNKNOWN]
        wanted = max(end_of(reported), *(read.end for read in self.reads if read[:2] == place), 0)
        position, records = 0, list[tuple[int, str]]()
        while True:
            found = await self._leader(topic_id, partition)
            answer = None if found is None else await self._fetch(found[0], topic_id, partition, position)
            if answer is None:
                await trio.sleep(RETRY_S)
                continue
            batches, high_watermark = answer
            before = position
            for offset, value in batches:
                if offset >= max(wanted, high_watermark) + GAP_MAX:  # it is judged alone, and the read goes on behind
                    self._note_impossible(TopicRead(*place, ((offset, value),), end=0, writes=0))
                    continue
                if offset >= position:
                    records.append((offset, value))
                    position = offset + 1
            if position >= max(wanted, high_watermark):
                self.reads.append(TopicRead(str(topic_id), partition, tuple(records), position, writes))
                return
            if not batches or position == before:
                await trio.sleep(RETRY_S)  # a leader that does not know yet how much is committed

    def _note_impossible(self, read: TopicRead) -> None:
        if read not in self.reads:
            self.reads.append(read)

    async def _fetch(
        self, leader: int, topic_id: uuid.UUID, partition: int, offset: int
    ) -> tuple[list[tuple[int, str]], int] | None:
        """Returns records from ``offset`` on, and the high watermark; None when there was no answer, or an error."""
        part = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=FETCH_BYTES,
            topics=[FetchTopic(topic_id=topic_id, partitions=[part])],
        )
        response = await self._questions.ask(leader, FetchResponse, request, FETCH_VERSION)
        if response is None or response.error_code or not response.responses:
            return None
        answer = response.responses[0].partitions[0]
        if answer.error_code:
            return None
        data = memoryview(answer.records or b"")
        records = [
            (record.offset, bytes(record.value or b"").decode())
            for position, header in iterate_batches(data)
            for record in decode_records(data, position, header)
        ]
        return records, answer.high_watermark

    async def _delete(self, topic_id: uuid.UUID) -> None:
        """Repeats the deletion until a response confirms it, or the client is stopped."""
        self._alive = None
        self._deleted.add(topic_id)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id)], timeout_ms=TIMEOUT_MS)
        while not self._stopping.is_set():
            response = await self._questions.ask(self._any_broker(), DeleteTopicsResponse, request)
            if response is not None and ErrorCode.of(response.responses[0].error_code) in (
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_TOPIC_ID,
            ):
                return
            await trio.sleep(RETRY_S)

    # --- questions

    def _any_broker(self) -> int:
        return self._environment.random.choice(self._nodes.broker_ids)

    async def _metadata(self) -> tuple[uuid.UUID, Mapping[int, tuple[int, int]]] | None:
        """Returns the id of the topic of the name, its leaders and their epochs, as some broker knows them."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
        response = await self._questions.ask(self._any_broker(), MetadataResponse, request)
        if response is None or response.topics[0].error_code:
            return None
        topic = response.topics[0]
        return topic.topic_id, {part.partition_index: (part.leader_id, part.leader_epoch) for part in topic.partitions}

    async def _leader(self, topic_id: uuid.UUID, partition: int) -> tuple[int, int] | None:
        """Returns a partition's leader and its epoch."""
        known = await self._metadata()
        if known is None or known[0] != topic_id:
            return None
        leader = known[1].get(partition)
        return leader if leader is not None and leader[0] in self._nodes.broker_ids else None
