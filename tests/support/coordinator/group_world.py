"""A driver for the pure group core, and an in-memory log and topic catalogue for its shell."""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse
from moldau.protocol.refusals import refusal
from moldau.protocol.schema import Request, Response
from moldau.records import iterate_batches, set_base_offset
from moldau.runtime.tasks.sync import Signal
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.group_core import GroupCore
from moldau_broker.coordinator.regexes import compile_regex
from moldau_broker.coordinator.runtime.effects import (
    Answer,
    Append,
    AskShareState,
    CreateTopics,
    DescribeRight,
    Effect,
    Moment,
    RequestContext,
    TopicCreator,
)
from moldau_broker.coordinator.share.core.requests import KeyAnswer, ShareStateRequest, asks_of, response_of
from support.coordinator.group_timers import check_timers

WALL_START_MS = 1_700_000_000_000


class CoreDriver:
    """Drives one `GroupCore`: keeps the answers by request id, and commits writes on demand.

    After each event `check_timers` looks for something that waits without a time limit.
    """

    def __init__(self, config: GroupConfig | None = None, *, auto_commit: bool = True) -> None:
        self.config = config or GroupConfig()
        self.auto_commit = auto_commit
        self.now_ms = 1_000
        self.answers: dict[int, Response] = {}
        self.log: list[Append] = []
        self.uncommitted: list[Append] = []
        self.questions: list[AskShareState] = []
        """Questions to share coordinators that are not answered yet."""
        self.creations: list[CreateTopics] = []
        """Creations of internal topics that are not done yet."""
        self.creator: TopicCreator | None = None
        """The permission of the requests' clients to create topics."""
        self.topics = Topics()
        self.request_count = 0
        self.rights: dict[str, DescribeRight] = {}
        """Topics that the client of each member may describe; all topics for a member without an entry."""
        self.core = self._new_core()
        self.perform(self.core.start(self.moment()))

    def _new_core(self) -> GroupCore:
        core = GroupCore(self.config, self.topics, compile_regex)
        for append in self.log:
            producer_id = None if append.producer is None else append.producer.producer_id
            for key, value in append.records:
                core.replay(key, value, producer_id)
            if append.marker is not None:
                core.replay_marker(append.marker.producer.producer_id, append.marker.commit)
        return core

    def moment(self) -> Moment:
        return Moment(self.now_ms, WALL_START_MS + self.now_ms)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self.uncommitted.append(effect)
            elif isinstance(effect, AskShareState):
                self.questions.append(effect)
            elif isinstance(effect, CreateTopics):
                self.creations.append(effect)
            else:
                assert isinstance(effect, Answer), "a group coordinator sends no markers"
                assert effect.request_id not in self.answers, "a request was answered twice"
                assert effect.request_id < self.request_count
                self.answers[effect.request_id] = effect.response
        if self.auto_commit:
            self.commit()
            self.answer_questions()

    def answer_questions(self, code: ErrorCode = ErrorCode.NONE, *, refused: Collection[int] | None = None) -> None:
        """Answers all questions to share coordinators with one code, or only those about the partitions ``refused``."""
        while self.questions:
            question = self.questions.pop(0)
            answers = {
                key: KeyAnswer(code=code if refused is None or key.partition in refused else ErrorCode.NONE)
                for key in asks_of(question.request)
            }
            response = response_of(type(question.request), answers)
            self.perform(self.core.share_state_answered(question.question_id, response, self.moment()))

    def create_topics(self, errors: Mapping[str, ErrorCode] | None = None) -> None:
        """Does the creations that are asked for, or fails them with errors by name."""
        while self.creations:
            creation = self.creations.pop(0)
            for topic in creation.topics:
                if topic.name not in (errors or {}):
                    self.topics.counts[topic.name] = topic.partitions
                    self.make_topic(topic.name)
            self.perform(self.core.topics_created(creation.group_id, errors or {}, self.moment()))

    def commit(self) -> None:
        """Commits all pending writes."""
        while self.uncommitted:
            append = self.uncommitted.pop(0)
            self.log.append(append)
            self.perform(self.core.committed(append.append_id, self.moment()))
            check_timers(self.core)

    def refuse(self, code: ErrorCode, *, newest: bool = False) -> None:
        """Refuses the oldest pending write, or the newest one while the log still holds those before it."""
        append = self.uncommitted.pop(-1 if newest else 0)
        self.perform(self.core.failed(append.append_id, code, self.moment()))
        check_timers(self.core)

    def pass_time(self, milliseconds: int) -> None:
        """Advances the time and runs the timer at each deadline on the way."""
        end = self.now_ms + milliseconds
        while (due := self.core.next_deadline_ms()) is not None and due <= end:
            self.now_ms = max(due, self.now_ms)
            self.perform(self.core.on_timer(self.moment()))
            check_timers(self.core)
        self.now_ms = end

    def fail_over(self) -> None:
        """Replaces the coordinator by one that loads the committed log; soft state and pending writes are lost."""
        self.perform(self.core.resign(ErrorCode.NOT_COORDINATOR, self.moment()))
        self.uncommitted.clear()
        self.questions.clear()
        self.creations.clear()
        self.core = self._new_core()
        self.perform(self.core.start(self.moment()))
        check_timers(self.core)

    def delete_topic(self, name: str, *, made_again: bool = False, observed: bool = True) -> None:
        """Deletes a topic; ``made_again`` creates another one with its name.

        Without ``observed`` the group has no coordinator at that moment.
        """
        del self.topics.ids[name]
        if made_again:
            self.make_topic(name)
        if observed:
            self.perform(self.core.topics_deleted({name}, self.moment()))

    def make_topic(self, name: str) -> None:
        self.topics.ids[name] = UUID(int=self.topics.made)
        self.topics.made += 1

    def send(self, request: Request, version: int, client: str = "client") -> int:
        request_id = self.request_count
        self.request_count += 1
        context = RequestContext(
            version=version,
            client_id=client,
            client_host="/10.0.0.1",
            fresh_id=f"id{request_id}",
            may_describe=self.rights.get(getattr(request, "member_id", "")),
            creator=self.creator,
        )
        self.perform(self.core.handle(request_id, request, context, self.moment()))
        check_timers(self.core)
        return request_id

    def ask(self, request: Request, version: int) -> Response:
        """Sends a request that is answered at once, and returns the answer."""
        return self.answers[self.send(request, version)]


def join_request(
    member_id: str = "",
    group: str = "g",
    *,
    protocols: tuple[str, ...] = ("range",),
    instance: str | None = None,
    session_ms: int = 10_000,
    rebalance_ms: int = 60_000,
    protocol_type: str = "consumer",
    metadata: bytes = b"",
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        member_id=member_id,
        group_instance_id=instance,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata or name.encode()) for name in protocols],
    )


def sync_request(
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    group: str = "g",
    instance: str | None = None,
    protocol_type: str | None = None,
    protocol_name: str | None = None,
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequestAssignment(member_id=name, assignment=data) for name, data in (assignments or {}).items()
        ],
    )


def heartbeat_request(
    member_id: str, generation: int, group: str = "g", instance: str | None = None
) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance)


def leave_request(*members: tuple[str, str | None], group: str = "g") -> LeaveGroupRequest:
    return LeaveGroupRequest(
        group_id=group,
        members=[MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in members],
    )


def commit_request(
    offset: int,
    member_id: str = "",
    generation: int = -1,
    *,
    group: str = "g",
    topic: str = "t",
    partition: int = 0,
    metadata: str = "",
    instance: str | None = None,
) -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_leader_epoch=3, committed_metadata=metadata
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )


def code_of(response: Response) -> ErrorCode:
    """Returns the first error code of an answer."""
    if isinstance(response, OffsetCommitResponse | TxnOffsetCommitResponse):
        return ErrorCode(response.topics[0].partitions[0].error_code)
    if isinstance(response, LeaveGroupResponse):
        return ErrorCode(response.members[0].error_code if response.members else response.error_code)
    assert isinstance(response, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse)
    return ErrorCode(response.error_code)


class Consumer:
    """A member that acts like a real client, one step at a time."""

    def __init__(self, driver: CoreDriver, *, instance: str | None = None, group: str = "g") -> None:
        self.driver = driver
        self.instance = instance
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.members: list[str] = []
        self.join_id: int | None = None
        self.sync_id: int | None = None
        self.assignment: bytes | None = None

    def join(self, version: int = 9, **options: object) -> None:
        request = join_request(self.member_id, self.group, instance=self.instance, **options)  # type: ignore[arg-type]
        self.join_id = self.driver.send(request, version)
        answer = self.driver.answers.get(self.join_id)
        if isinstance(answer, JoinGroupResponse) and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.join(version, **options)

    def joined(self) -> JoinGroupResponse | None:
        """Applies and returns the answer to the last join."""
        answer = self.driver.answers.get(-1 if self.join_id is None else self.join_id)
        if answer is None:
            return None
        assert isinstance(answer, JoinGroupResponse)
        if answer.error_code == ErrorCode.NONE:
            self.member_id = answer.member_id
            self.generation = answer.generation_id
            self.members = [member.member_id for member in answer.members]
        return answer

    def sync(self, assignments: dict[str, bytes] | None = None) -> None:
        self.sync_id = self.driver.send(
            sync_request(self.member_id, self.generation, assignments, self.group, self.instance), 5
        )

    def synced(self) -> SyncGroupResponse | None:
        answer = self.driver.answers.get(-1 if self.sync_id is None else self.sync_id)
        if answer is None:
            return None
        assert isinstance(answer, SyncGroupResponse)
        self.assignment = bytes(answer.assignment)
        return answer

    def heartbeat(self) -> ErrorCode:
        request = heartbeat_request(self.member_id, self.generation, self.group, self.instance)
        return code_of(self.driver.ask(request, 4))

    def commit(self, offset: int, **options: object) -> ErrorCode:
        request = commit_request(
            offset,
            self.member_id,
            self.generation,
            group=self.group,
            instance=self.instance,
            **options,  # type: ignore[arg-type]
        )
        return code_of(self.driver.ask(request, 9))


def stable_group(driver: CoreDriver, count: int, *, static: bool = False) -> list[Consumer]:
    """Makes a group of ``count`` members in Stable; each member is assigned its index."""
    consumers = [Consumer(driver, instance=f"i{index}" if static else None) for index in range(count)]
    for consumer in consumers:
        consumer.join()
    driver.pass_time(driver.config.initial_rebalance_delay_ms * 2)
    rebalance(consumers)
    return consumers


def rebalance(consumers: list[Consumer]) -> None:
    """Sends the SyncGroup of all members; the leader assigns each member its index."""
    for consumer in consumers:
        answer = consumer.joined()
        assert answer is not None
        assert answer.error_code == ErrorCode.NONE
    for consumer in consumers:
        given = {member: str(index).encode() for index, member in enumerate(consumer.members)}
        consumer.sync(given)
    for consumer in consumers:
        synced = consumer.synced()
        assert synced is not None
        assert synced.error_code == ErrorCode.NONE


class TrioClock:
    """The clock port over trio's clock."""

    def monotonic_ms(self) -> float:
        return trio.current_time() * 1000

    def wall_ms(self) -> int:
        return WALL_START_MS + int(trio.current_time() * 1000)

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000


@dataclass
class MemoryPartition:
    leader_epoch: int = 0
    batches: list[bytes] = field(default_factory=list)
    next_offset: int = 0
    high_watermark: int = 0
    start_offset: int = 0
    refuse_with: ErrorCode | None = None


class RefusingShareStates:
    """`ShareStates` of a cluster without share coordinators."""

    async def ask(self, request: ShareStateRequest) -> Response:
        await trio.lowlevel.checkpoint()
        return refusal(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class MemoryLog:
    """`InternalLog` in memory. With ``hold`` the high watermark does not move until `release`."""

    def __init__(self) -> None:
        self.partitions: dict[int, MemoryPartition] = {}
        self.hold = False
        self.changed = Signal()

    def lead(self, partition: int, leader_epoch: int) -> None:
        state = self.partitions.setdefault(partition, MemoryPartition())
        state.leader_epoch = leader_epoch
        state.high_watermark = state.next_offset
        self.changed.notify()

    def state(self, partition: int, leader_epoch: int) -> MemoryPartition:
        state = self.partitions.get(partition)
        if state is None or state.leader_epoch != leader_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return state

    def append(self, partition: int, leader_epoch: int, batch: bytes | bytearray | memoryview) -> int:
        state = self.state(partition, leader_epoch)
        if state.refuse_with is not None:
            raise KafkaError(state.refuse_with)
        data = bytearray(batch)
        set_base_offset(data, 0, state.next_offset)
        ((_, header),) = iterate_batches(data)
        state.batches.append(bytes(data))
        state.next_offset = header.next_offset
        if not self.hold:
            self.release(partition)
        return state.next_offset

    def release(self, partition: int) -> None:
        state = self.partitions[partition]
        state.high_watermark = state.next_offset
        self.changed.notify()

    async def wait_committed(self, partition: int, leader_epoch: int, end_offset: int) -> None:
        await trio.lowlevel.checkpoint()
        while self.state(partition, leader_epoch).high_watermark < end_offset:
            await self.changed.wait()

    def log_start_offset(self, partition: int, leader_epoch: int) -> int:
        return self.state(partition, leader_epoch).start_offset

    def delete_records(self, partition: int, leader_epoch: int, end_offset: int) -> None:
        state = self.state(partition, leader_epoch)
        assert end_offset <= state.high_watermark
        state.start_offset = max(state.start_offset, end_offset)

    def log_end_offset(self, partition: int, leader_epoch: int) -> int:
        return self.state(partition, leader_epoch).next_offset

    async def read(self, partition: int, leader_epoch: int, offset: int, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        state = self.state(partition, leader_epoch)
        found = bytearray()
        for batch in state.batches:
            ((_, header),) = iterate_batches(batch)
            if header.next_offset > offset and header.next_offset <= state.high_watermark:
                if found and len(found) + len(batch) > max_bytes:
                    break
                found += batch
        return bytes(found)


class Topics:
    """`Catalogue` over a few topics."""

    def __init__(self) -> None:
        self.ids = {"t": UUID(int=1), "u": UUID(int=2)}
        self.made = 3
        self.counts: dict[str, int] = {}
        """Numbers of partitions other than 10."""
        self.settings: dict[tuple[str, str], int] = {}
        self._names: tuple[str, ...] = ()
        self._looks = 0
        self.acl_changes = 0
        """How often ACLs were changed."""
        self._seen: tuple[list[tuple[str, UUID]], list[tuple[str, int]], int] = ([], [], 0)

    def topic_name(self, topic_id: UUID) -> str | None:
        return next((name for name, known in self.ids.items() if known == topic_id), None)

    def topic_id(self, name: str) -> UUID | None:
        return self.ids.get(name)

    def has_partition(self, name: str, partition: int) -> bool:
        return 0 <= partition < self.partition_count(name)

    def partition_count(self, name: str) -> int:
        return self.counts.get(name, 10) if name in self.ids else 0

    def names(self) -> tuple[str, ...]:
        names = tuple(sorted(self.ids))
        if names != self._names:
            self._names = names
        return self._names

    def version(self) -> int:
        """Returns another number if, and only if, topics or ACLs have changed since the last call, as brokers do."""
        seen = (sorted(self.ids.items()), sorted(self.counts.items()), self.acl_changes)
        if seen != self._seen:
            self._seen = seen
            self._looks += 1
        return self._looks

    def group_setting(self, group_id: str, key: str) -> int | None:
        return self.settings.get((group_id, key))


class World:
    """The environment of a `GroupCoordinator`: a clock and random numbers, without network and disk."""

    def __init__(self) -> None:
        self.clock = TrioClock()
        self.random = random.Random(7)
