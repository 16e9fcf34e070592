"""A small cluster in memory that serves Kafka's protocol, for tests of the clients on virtual time.

It keeps the rules that a client can see (leaders and epochs, idempotence, dense offsets, long polls, the classic group
protocol) and injects faults: it answers errors, drops answers, cuts connections and moves leaders.
It replicates nothing.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from moldau.cluster.metadata import NO_TOPIC_ID
from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.codec import decode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import decode_request_header, encode_response
from moldau.protocol.messages import fetch as f
from moldau.protocol.messages import find_coordinator as fc
from moldau.protocol.messages import heartbeat as hb
from moldau.protocol.messages import init_producer_id as ip
from moldau.protocol.messages import join_group as jg
from moldau.protocol.messages import leave_group as lg
from moldau.protocol.messages import list_offsets as lo
from moldau.protocol.messages import metadata as md
from moldau.protocol.messages import offset_commit as oc
from moldau.protocol.messages import offset_fetch as of
from moldau.protocol.messages import offset_for_leader_epoch as oe
from moldau.protocol.messages import produce as pr
from moldau.protocol.messages import sync_group as sg
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from moldau.records import (
    decode_records,
    iterate_batches,
    parse_batch_header,
    set_base_offset,
    set_partition_leader_epoch,
)
from moldau.runtime.net.serving.answers import CloseConnection
from moldau.runtime.net.serving.server import ServerLimits, serve
from moldau.runtime.tasks.sync import Signal
from moldau.values import LeaderEpoch
from moldau_broker.replication.fetch_session import FetchPartition, FetchSessionCache

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from moldau.protocol.schema import Request, Response
    from moldau.records import Record
    from moldau.runtime.net.serving.answers import Answer, ResponsePart
    from moldau.runtime.ports.environment import Connection, Environment
    from moldau_broker.replication.fetch_session import FetchContext
    from moldau_jepsen.world.world import World

    Made = Callable[[], Awaitable[Response]]
    Fetched = tuple[FetchPartition, f.PartitionData]

SERVED = (0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 18, 22, 23)
PORT = 9092


@dataclass
class FakePartition:
    leader: int
    epoch: int = 0
    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    end: int = 0
    epochs: dict[int, int] = field(default_factory=dict)  # leader epoch -> end offset
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)  # id -> (epoch, last sequence)
    recent: deque[tuple[tuple[int, int, int], int]] = field(default_factory=lambda: deque(maxlen=5))
    aborted: list[tuple[int, int]] = field(default_factory=list)

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        batch = bytearray(data)
        header = parse_batch_header(batch)
        if header.has_producer_id and not header.is_control:
            identity = (header.producer_id, header.producer_epoch, header.base_sequence)
            for known, offset in self.recent:
                if known == identity:
                    return ErrorCode.DUPLICATE_SEQUENCE_NUMBER, offset
            epoch, last = self.producers.get(header.producer_id, (-1, -1))
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            expected = last + 1 if header.producer_epoch == epoch else 0
            if header.base_sequence != expected:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self.producers[header.producer_id] = (header.producer_epoch, header.last_sequence)
            self.recent.append((identity, self.end))
        set_base_offset(batch, 0, self.end)
        set_partition_leader_epoch(batch, 0, self.epoch)
        offset = self.end
        self.end += header.last_offset_delta + 1
        self.epochs[self.epoch] = self.end
        self.batches.append(bytes(batch))
        return ErrorCode.NONE, offset

    def records(self) -> list[Record]:
        return [record for data in self.batches for record in decode_records(data, 0, parse_batch_header(data))]

    def values(self) -> list[Any]:
        return [record.value for record in self.records()]

    def read(self, offset: int, size: int) -> bytes:
        out = b""
        for data in self.batches:
            if parse_batch_header(data).next_offset > offset:
                if out and len(out) + len(data) > size:
                    return out + data[: size - len(out)]
                out += data
        return out

    def truncate(self, offset: int) -> None:
        self.batches = [data for data in self.batches if parse_batch_header(data).next_offset <= offset]
        self.end = parse_batch_header(self.batches[-1]).next_offset if self.batches else 0


@dataclass
class FakeGroup:
    generation: int = 0
    members: dict[str, jg.JoinGroupRequest] = field(default_factory=dict)
    joined: dict[str, jg.JoinGroupRequest] = field(default_factory=dict)
    assignments: dict[str, bytes] | None = None
    leader: str = ""
    protocol: str = ""
    state: str = "Empty"
    deadline: float = math.inf
    changed: Signal = field(default_factory=Signal)
    next_member: int = 1
    history: list[dict[str, bytes]] = field(default_factory=list)


class Later:
    """An answer that a coroutine makes."""

    def __init__(self, make: Callable[[], Awaitable[bytes]]) -> None:
        self.make = make

    async def wait(self) -> Sequence[ResponsePart]:
        return [await self.make()]


class FakeCluster:
    """Brokers 1..n on hosts ``broker1`` ... of a simulated world, which metadata call ``advertised``, or by host."""

    def __init__(
        self, world: World | None, brokers: int = 2, *, prefix: str = "broker", cluster_id: str = "fake"
    ) -> None:
        """``world`` is None where the brokers are not started in one. ``prefix`` lets clusters share a world."""
        self.world = world
        self.cluster_id = cluster_id
        self.brokers = {number: f"{prefix}{number}" for number in range(1, brokers + 1)}
        self.advertised: dict[int, str] = {}
        self.topics: dict[str, list[FakePartition]] = {}
        self.ids: dict[str, UUID] = {}
        self.groups: dict[str, FakeGroup] = {}
        self.offsets: dict[tuple[str, str, int], tuple[int, int, str]] = {}
        self.errors: dict[int, deque[ErrorCode]] = {}
        self.lost_answers: dict[int, int] = {}  # api key -> answers that are carried out and then cut off
        self.requests: list[tuple[int, int, object]] = []
        self.appended = Signal()
        self.next_producer_id = 1000
        self.rebalance_ms = 50
        self.rebalance_timeout = 3.0
        self.auto_create = False
        self.max_versions: dict[int, int] = {}
        self.sessions = {number: FetchSessionCache(slots_max=100) for number in self.brokers}
        self.session_ids = itertools.count(1)
        self.fetched_bytes = 0
        self.expected: list[tuple[str, int]] = []  # cluster and node that clients named in ApiVersions
        self.handlers: dict[int, Callable[[int, Any], Any]] = {}  # further APIs: (broker, request) -> response
        self.served: dict[int, tuple[int, ...]] = {}  # broker -> API keys, where not all
        self.secure: dict[int, Callable[[Connection], Connection]] = {}  # broker -> what wraps its connections (TLS)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{PORT}" for host in self.brokers.values())

    def add_topic(self, name: str, partitions: int = 1) -> list[FakePartition]:
        self.ids[name] = UUID(int=1000 + len(self.ids))
        self.topics[name] = [FakePartition(leader=1 + index % len(self.brokers)) for index in range(partitions)]
        return self.topics[name]

    def move(self, topic: str, partition: int, leader: int) -> None:
        part = self.topics[topic][partition]
        part.leader, part.epoch = leader, part.epoch + 1
        self.appended.notify()

    def fail_next(self, key: ApiKey, *codes: ErrorCode) -> None:
        self.errors.setdefault(key, deque()).extend(codes)

    def start(self) -> None:
        for number in self.brokers:
            self.start_broker(number)

    def start_broker(self, number: int) -> None:
        async def main(environment: Environment) -> None:
            listener = await environment.network.listen(self.brokers[number], PORT)
            secure = self.secure.get(number)
            await serve(environment, listener, lambda connection: Handler(self, number), ServerLimits(), secure=secure)

        assert self.world is not None
        self.world.node(self.brokers[number]).start(main)

    def kill_broker(self, number: int) -> None:
        assert self.world is not None
        self.world.node(self.brokers[number]).kill()

    # --- requests

    def error_for(self, key: int) -> ErrorCode:
        waiting = self.errors.get(key)
        return waiting.popleft() if waiting else ErrorCode.NONE

    def answer(self, broker: int, request: Request) -> Any:
        key = request.__api_key__
        self.requests.append((broker, key, request))
        if key in self.handlers:
            return self.handlers[key](broker, request)
        return getattr(self, f"on_{ApiKey(key).name.lower()}")(broker, request)

    def on_metadata(self, broker: int, request: md.MetadataRequest) -> md.MetadataResponse:
        names = list(self.topics) if request.topics is None else [topic.name or "" for topic in request.topics]
        for name in names:
            if name not in self.topics and self.auto_create and request.allow_auto_topic_creation:
                self.add_topic(name)
        code = self.error_for(ApiKey.METADATA)
        return md.MetadataResponse(
            cluster_id=self.cluster_id,
            controller_id=1,
            brokers=[
                md.MetadataResponseBroker(node_id=n, host=self.advertised.get(n, host), port=PORT)
                for n, host in self.brokers.items()
            ],
            topics=[
                md.MetadataResponseTopic(
                    name=name,
                    topic_id=self.ids[name],
                    error_code=code,
                    partitions=[
                        md.MetadataResponsePartition(
                            partition_index=index,
                            leader_id=part.leader,
                            leader_epoch=part.epoch,
                            replica_nodes=list(self.brokers),
                            isr_nodes=list(self.brokers),
                            error_code=ErrorCode.NONE if part.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                        )
                        for index, part in enumerate(self.topics[name])
                    ],
                )
                if name in self.topics
                else md.MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                for name in names
            ],
        )

    def name_of(self, name: str, topic_id: UUID) -> str:
        return name or next((each for each, known in self.ids.items() if known == topic_id), "")

    def led(self, broker: int, topic: str, partition: int, epoch: int = -1) -> FakePartition | ErrorCode:
        if topic not in self.topics or partition >= len(self.topics[topic]):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        part = self.topics[topic][partition]
        if part.leader != broker:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if 0 <= epoch != part.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH if epoch < part.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        return part

    def on_produce(self, broker: int, request: pr.ProduceRequest) -> pr.ProduceResponse | None:
        responses = []
        for topic in request.topic_data:
            name = self.name_of(topic.name, topic.topic_id)
            answers = []
            for data in topic.partition_data:
                code = self.error_for(ApiKey.PRODUCE)
                offset = -1
                part = self.led(broker, name, data.index)
                if isinstance(part, ErrorCode):
                    code = part
                elif code is ErrorCode.NONE:
                    code, offset = part.append(bytes(data.records or b""))
                answers.append(pr.PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset))
            responses.append(
                pr.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
            )
        self.appended.notify()
        return pr.ProduceResponse(responses=responses) if request.acks else None

    def on_init_producer_id(self, broker: int, request: ip.InitProducerIdRequest) -> ip.InitProducerIdResponse:
        code = self.error_for(ApiKey.INIT_PRODUCER_ID)
        self.next_producer_id += 1
        return ip.InitProducerIdResponse(error_code=code, producer_id=self.next_producer_id, producer_epoch=0)

    def topic_of(self, key: bytes) -> tuple[str, UUID | None]:
        """Name and id of a topic in a fetch; no name if the id belongs to no topic."""
        if key.decode(errors="replace") in self.topics:
            return key.decode(), None
        if len(key) != 16:
            return key.decode(), None
        return self.name_of("", UUID(bytes=key)), UUID(bytes=key)

    def on_fetch(self, broker: int, request: f.FetchRequest) -> f.FetchResponse | Made:
        context = self.sessions[broker].open(
            request.session_id,
            request.session_epoch,
            [
                FetchPartition(
                    topic.topic.encode() or topic.topic_id.bytes,
                    asked.partition,
                    asked.fetch_offset,
                    asked.partition_max_bytes,
                    LeaderEpoch(asked.current_leader_epoch),
                )
                for topic in request.topics
                for asked in topic.partitions
            ],
            [
                (topic.topic.encode() or topic.topic_id.bytes, number)
                for topic in request.forgotten_topics_data
                for number in topic.partitions
            ],
            privileged=False,
            uses_topic_ids=True,
            now_ms=trio.current_time() * 1000,
            fresh_id=next(self.session_ids),
        )
        if context.error is not ErrorCode.NONE:
            return f.FetchResponse(error_code=context.error)

        async def wait() -> f.FetchResponse:
            deadline = trio.current_time() + request.max_wait_ms / 1000
            while True:
                answers, size, failed = self.fetched(broker, request, context)
                if size >= request.min_bytes or failed or trio.current_time() >= deadline:
                    self.fetched_bytes += size
                    return self.fetch_response(context, answers)
                with trio.move_on_at(deadline):
                    await self.appended.wait()

        return wait

    def fetched(self, broker: int, request: f.FetchRequest, context: FetchContext) -> tuple[list[Fetched], int, bool]:
        answers: list[Fetched] = []
        size, failed = 0, False
        for asked in context.partitions:
            name, _ = self.topic_of(asked.topic)
            part = self.led(broker, name, asked.partition, asked.current_leader_epoch)
            code = self.error_for(ApiKey.FETCH)
            if not name:
                part = ErrorCode.UNKNOWN_TOPIC_ID
            records = b""
            if isinstance(part, ErrorCode):
                code = part
            elif code is ErrorCode.NONE and not part.start <= asked.fetch_offset <= part.end:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
            elif code is ErrorCode.NONE and (size < request.max_bytes or not size):
                records = part.read(asked.fetch_offset, min(asked.max_bytes, max(request.max_bytes - size, 1)))
            failed |= code is not ErrorCode.NONE
            size += len(records)
            end, start = (part.end, part.start) if isinstance(part, FakePartition) else (-1, -1)
            aborted = None
            if request.isolation_level and isinstance(part, FakePartition):
                aborted = [f.AbortedTransaction(producer_id=pid, first_offset=first) for pid, first in part.aborted]
            answer = f.PartitionData(
                partition_index=asked.partition,
                error_code=code,
                high_watermark=end,
                last_stable_offset=end,
                log_start_offset=start,
                aborted_transactions=aborted,
                records=records,
            )
            answers.append((asked, answer))
        return answers, size, failed

    def fetch_response(self, context: FetchContext, answers: list[Fetched]) -> f.FetchResponse:
        topics: dict[bytes, list[f.PartitionData]] = {}
        for asked, answer in answers:
            has_news = bool(answer.records) or answer.error_code != ErrorCode.NONE
            is_said = asked.has_changes(answer.high_watermark, answer.log_start_offset, has_news=has_news)
            if is_said or not context.incremental:
                topics.setdefault(asked.topic, []).append(answer)
        if context.session is not None:
            context.session.rotate([asked.key for asked, answer in answers if answer.records])
        responses = [
            f.FetchableTopicResponse(
                topic=self.topic_of(key)[0], topic_id=self.topic_of(key)[1] or NO_TOPIC_ID, partitions=parts
            )
            for key, parts in topics.items()
        ]
        return f.FetchResponse(session_id=context.session_id, responses=responses)

    def on_list_offsets(self, broker: int, request: lo.ListOffsetsRequest) -> lo.ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                part = self.led(broker, topic.name, asked.partition_index, asked.current_leader_epoch)
                code = self.error_for(ApiKey.LIST_OFFSETS)
                offset = timestamp = -1
                if isinstance(part, ErrorCode):
                    code = part
                elif asked.timestamp == -1:
                    offset = part.end
                elif asked.timestamp == -2:
                    offset = part.start
                else:
                    found = [record for record in part.records() if record.timestamp >= asked.timestamp]
                    if found:
                        offset, timestamp = found[0].offset, found[0].timestamp
                answers.append(
                    lo.ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index,
                        error_code=code,
                        offset=offset,
                        timestamp=timestamp,
                        leader_epoch=part.epoch if isinstance(part, FakePartition) else -1,
                    )
                )
            topics.append(lo.ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return lo.ListOffsetsResponse(topics=topics)

    def on_offset_for_leader_epoch(
        self, broker: int, request: oe.OffsetForLeaderEpochRequest
    ) -> oe.OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                part = self.led(broker, topic.topic, asked.partition, asked.current_leader_epoch)
                if isinstance(part, ErrorCode):
                    answers.append(oe.EpochEndOffset(partition=asked.partition, error_code=part))
                    continue
                if asked.leader_epoch > part.epoch:  # the epoch belongs to a leader that this one does not know
                    answers.append(oe.EpochEndOffset(partition=asked.partition, leader_epoch=-1, end_offset=-1))
                    continue
                epoch = max((each for each in part.epochs if each <= asked.leader_epoch), default=-1)
                later = [
                    parse_batch_header(b).base_offset
                    for b in part.batches
                    if parse_batch_header(b).partition_leader_epoch > epoch
                ]
                answers.append(
                    oe.EpochEndOffset(
                        partition=asked.partition, leader_epoch=epoch, end_offset=later[0] if later else part.end
                    )
                )
            topics.append(oe.OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
        return oe.OffsetForLeaderEpochResponse(topics=topics)

    # --- groups: broker 1 coordinates all of them

    def on_find_coordinator(self, broker: int, request: fc.FindCoordinatorRequest) -> fc.FindCoordinatorResponse:
        code = self.error_for(ApiKey.FIND_COORDINATOR)
        return fc.FindCoordinatorResponse(
            coordinators=[
                fc.Coordinator(key=key, node_id=1, host=self.brokers[1], port=PORT, error_code=code)
                for key in request.coordinator_keys
            ]
        )

    def group(self, name: str) -> FakeGroup:
        return self.groups.setdefault(name, FakeGroup())

    def on_join_group(self, broker: int, request: jg.JoinGroupRequest) -> jg.JoinGroupResponse | Made:
        group = self.group(request.group_id)
        code = self.error_for(ApiKey.JOIN_GROUP)
        if code is not ErrorCode.NONE:
            return jg.JoinGroupResponse(error_code=code)
        if not request.member_id:
            member_id = f"member-{group.next_member}"
            group.next_member += 1
            return jg.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        if group.state != "Preparing":
            group.state = "Preparing"
            group.joined = {}
            group.deadline = trio.current_time() + self.rebalance_ms / 1000
        group.joined[request.member_id] = request
        group.members[request.member_id] = request
        group.changed.notify()
        generation = group.generation

        async def wait() -> jg.JoinGroupResponse:
            while group.generation == generation:
                is_late = trio.current_time() >= group.deadline + self.rebalance_timeout
                all_joined = set(group.members) <= set(group.joined) or is_late
                if all_joined and trio.current_time() >= group.deadline:
                    self.complete_join(group)
                    break
                with trio.move_on_after(max(group.deadline - trio.current_time(), 0.01)):
                    await group.changed.wait()
            return jg.JoinGroupResponse(
                generation_id=group.generation,
                protocol_type="consumer",
                protocol_name=group.protocol,
                leader=group.leader,
                member_id=request.member_id,
                members=[
                    jg.JoinGroupResponseMember(member_id=name, metadata=bytes(each.protocols[0].metadata))
                    for name, each in group.joined.items()
                ]
                if group.leader == request.member_id
                else [],
            )

        return wait

    def complete_join(self, group: FakeGroup) -> None:
        group.generation += 1
        group.members = dict(group.joined)
        group.leader = next(iter(group.joined))
        group.protocol = group.joined[group.leader].protocols[0].name
        group.assignments = None
        group.state = "Completing"
        group.changed.notify()

    def check(self, group: FakeGroup, request: Any) -> ErrorCode:
        generation = getattr(request, "generation_id", None)
        if generation is None:
            generation = request.generation_id_or_member_epoch
            if generation < 0:
                return ErrorCode.NONE
        if request.member_id not in group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def on_sync_group(self, broker: int, request: sg.SyncGroupRequest) -> sg.SyncGroupResponse | Made:
        group = self.group(request.group_id)
        code = self.error_for(ApiKey.SYNC_GROUP) or self.check(group, request)
        if code is not ErrorCode.NONE:
            return sg.SyncGroupResponse(error_code=code)
        if request.assignments:
            group.assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
            group.history.append(group.assignments)
            group.state = "Stable"
            group.changed.notify()
        generation = group.generation

        async def wait() -> sg.SyncGroupResponse:
            while group.assignments is None and group.generation == generation and group.state != "Preparing":
                await group.changed.wait()
            if group.assignments is None or group.generation != generation:
                return sg.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            return sg.SyncGroupResponse(assignment=group.assignments.get(request.member_id, b""))

        return wait

    def on_heartbeat(self, broker: int, request: hb.HeartbeatRequest) -> hb.HeartbeatResponse:
        group = self.group(request.group_id)
        code = self.error_for(ApiKey.HEARTBEAT) or self.check(group, request)
        if code is ErrorCode.NONE and group.state == "Preparing":
            code = ErrorCode.REBALANCE_IN_PROGRESS
        return hb.HeartbeatResponse(error_code=code)

    def on_leave_group(self, broker: int, request: lg.LeaveGroupRequest) -> lg.LeaveGroupResponse:
        group = self.group(request.group_id)
        for member in request.members:
            group.members.pop(member.member_id, None)
            group.joined.pop(member.member_id, None)
        if group.members and group.state != "Preparing":
            group.state = "Preparing"
            group.joined = {}
            group.deadline = trio.current_time()
        group.changed.notify()
        return lg.LeaveGroupResponse(members=[lg.MemberResponse(member_id=each.member_id) for each in request.members])

    def on_offset_commit(self, broker: int, request: oc.OffsetCommitRequest) -> oc.OffsetCommitResponse:
        group = self.group(request.group_id)
        code = self.error_for(ApiKey.OFFSET_COMMIT) or self.check(group, request)
        for topic in request.topics:
            for part in topic.partitions:
                if code is ErrorCode.NONE:
                    self.offsets[request.group_id, topic.name, part.partition_index] = (
                        part.committed_offset,
                        part.committed_leader_epoch,
                        part.committed_metadata or "",
                    )
        return oc.OffsetCommitResponse(
            topics=[
                oc.OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        oc.OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def on_offset_fetch(self, broker: int, request: of.OffsetFetchRequest) -> of.OffsetFetchResponse:
        (asked,) = request.groups
        return of.OffsetFetchResponse(
            groups=[
                of.OffsetFetchResponseGroup(
                    group_id=asked.group_id,
                    error_code=self.error_for(ApiKey.OFFSET_FETCH),
                    topics=[
                        of.OffsetFetchResponseTopics(
                            name=topic.name,
                            partitions=[
                                of.OffsetFetchResponsePartitions(
                                    partition_index=index,
                                    committed_offset=found[0],
                                    committed_leader_epoch=found[1],
                                    metadata=found[2],
                                )
                                for index in topic.partition_indexes
                                for found in [self.offsets.get((asked.group_id, topic.name, index), (-1, -1, ""))]
                            ],
                        )
                        for topic in asked.topics or ()
                    ],
                )
            ]
        )


class Handler:
    """One connection to a broker."""

    def __init__(self, cluster: FakeCluster, broker: int) -> None:
        self.cluster, self.broker = cluster, broker

    def handle(self, frame: memoryview) -> Answer:
        header = decode_request_header(frame)
        key, version, correlation = header.api_key, header.api_version, header.correlation_id
        if key == ApiKey.API_VERSIONS:
            if version > self.cluster.max_versions.get(key, version):
                return [encode_response(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 0, correlation)]
            asked = decode(ApiVersionsRequest, version, bytes(frame[header.body_offset :]))
            if asked.cluster_id is not None:
                self.cluster.expected.append((asked.cluster_id, asked.node_id))
                if (asked.cluster_id, asked.node_id) != (self.cluster.cluster_id, self.broker):
                    wrong = ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
                    return [encode_response(wrong, version, correlation)]
            keys = [
                ApiVersion(
                    api_key=each,
                    min_version=APIS[each].versions.first,
                    max_version=self.cluster.max_versions.get(each, APIS[each].versions.last),
                )
                for each in self.cluster.served.get(self.broker, (*SERVED, *self.cluster.handlers))
                if each in APIS
            ]
            return [encode_response(ApiVersionsResponse(api_keys=keys), version, correlation)]
        request = decode(APIS[key].request, version, bytes(frame[header.body_offset :]))
        made = self.cluster.answer(self.broker, request)
        if self.cluster.lost_answers.get(key, 0) > 0:
            self.cluster.lost_answers[key] -= 1
            raise CloseConnection("the answer is lost")
        if made is None:
            return None
        if callable(made):

            async def make() -> bytes:
                return encode_response(await made(), version, correlation)

            return Later(make)
        return [encode_response(made, version, correlation)]

    def flush(self) -> None:
        pass

    def closed(self) -> None:
        pass


def whole_log(partitions: list[FakePartition]) -> list[bytes]:
    """The values of all partitions, sorted."""
    return sorted(value for part in partitions for value in part.values())


def batch_count(part: FakePartition) -> int:
    return sum(1 for data in part.batches for _ in iterate_batches(data))
