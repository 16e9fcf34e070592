"""A member of a streams group as a program on virtual time: it sends heartbeats, runs its tasks and commits.

It obeys KIP-1071: it closes revoked tasks, after a last commit, before it reports them as closed, and it drops all
tasks at once when it is fenced. Its history records what it does. It processes nothing: its tasks have positions that
grow, and the members of the first subtopology commit them for the partitions of the source topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
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
from moldau.protocol.messages.streams_group_heartbeat import (
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from moldau.protocol.schema import Response
from moldau.runtime.net.rpc import RpcConnection
from moldau.values import join_address
from moldau_broker.coordinator.group.streams.core.topology import by_subtopology, tasks_of
from moldau_jepsen.checkers.group.streams import Commit, Holding, Read

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from moldau.protocol.schema import Request
    from moldau.runtime.ports.environment import Environment
    from moldau_broker.coordinator.group.streams.core.topology import Task
    from moldau_jepsen.checkers.group.streams import History

R = TypeVar("R", bound=Response)

FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)
MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
STALE = (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
BEAT_S = 0.5
REQUEST_MS = 3_000.0
SLOW_SHARE = 0.3
"""Of the revoked tasks: those that take time to close, as tasks with much state do; heartbeats go on meanwhile."""
SLOW_S = (0.5, 3.0)
REBALANCE_MS = 40_000
"""Longer than a member takes to close a task, also if some of its requests are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application that counts words: it reads a topic, repartitions it, and counts with a changelog."""

    group: str
    topic: str

    @property
    def topology(self) -> Topology:
        """Its two subtopologies, with the internal topics that the broker creates."""
        words, counts = f"{self.topic}-words", f"{self.topic}-counts"
        return Topology(
            epoch=0,
            subtopologies=[
                Subtopology(subtopology_id="0", source_topics=[self.topic], repartition_sink_topics=[words]),
                Subtopology(
                    subtopology_id="1",
                    repartition_source_topics=[_internal(words, "delete")],
                    state_changelog_topics=[_internal(counts, "compact")],
                ),
            ],
        )


def _internal(name: str, policy: str) -> TopicInfo:
    return TopicInfo(name=name, topic_configs=[KeyValue(key="cleanup.policy", value=policy)])


def _entries(tasks: Iterable[Task]) -> list[TaskIds]:
    parts = by_subtopology(frozenset(tasks))
    return [TaskIds(subtopology_id=part, partitions=numbers) for part, numbers in parts.items()]


class Link:
    """One machine's way to the coordinator of the group."""

    def __init__(self, environment: Environment, brokers: Sequence[tuple[str, int]], application: Application) -> None:
        """``brokers`` has their hosts and ports."""
        self.environment = environment
        self.application = application
        self._brokers = list(brokers)
        self._coordinator: tuple[str, int] | None = None
        self._connections: dict[tuple[str, int], RpcConnection] = {}
        self.answered_by = ""
        """The coordinator of the last answer."""

    async def ask(self, response_class: type[R], message: Request, version: int) -> R | None:
        """Sends one request; returns the answer, or None if the coordinator is unknown or gives no answer."""
        try:
            if self._coordinator is None:
                address = self.environment.random.choice(self._brokers)
                request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.application.group])
                found = (await self._request(FindCoordinatorResponse, address, request, 6)).coordinators[0]
                if found.error_code != ErrorCode.NONE:
                    return None
                self._coordinator = (found.host, found.port)
            coordinator = self._coordinator
            answer = await self._request(response_class, coordinator, message, version)
            self.answered_by = join_address(*coordinator)
            return answer
        except (*TRANSPORT_ERRORS, KafkaError):
            self._coordinator = None
            return None

    def forget(self) -> None:
        """Looks for the coordinator again."""
        self._coordinator = None

    def close(self) -> None:
        """Closes all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def _request(self, response_class: type[R], address: tuple[str, int], message: Request, version: int) -> R:
        with trio.fail_after(REQUEST_MS / 1000):
            connection = self._connections.get(address)
            if connection is None or not connection.is_open:
                connection = await RpcConnection.open(self.environment, *address, "member")
                self._connections[address] = connection
            try:
                return await connection.request_as(response_class, message, version, REQUEST_MS)
            except (OSError, trio.TooSlowError):
                connection.close()
                raise


async def read_offset(link: Link, history: History, partition: int, member: tuple[str | None, int] = (None, -1)) -> int:
    """Returns the committed offset of a partition of the source, -1 if there is none, and -2 without an answer."""
    begun_ms = now_ms()
    group = OffsetFetchRequestGroup(
        group_id=link.application.group,
        member_id=member[0],
        member_epoch=member[1],
        topics=[OffsetFetchRequestTopics(name=link.application.topic, partition_indexes=[partition])],
    )
    answer = await link.ask(OffsetFetchResponse, OffsetFetchRequest(groups=[group], require_stable=True), 9)
    if answer is None:
        return -2
    found = answer.groups[0]
    code = ErrorCode(found.error_code or found.topics[0].partitions[0].error_code)
    if code is not ErrorCode.NONE:
        if code in MOVED:
            link.forget()
        return -2
    offset = int(found.topics[0].partitions[0].committed_offset)
    history.reads.append(Read(partition=partition, offset=offset, begun_ms=begun_ms, coordinator=link.answered_by))
    return offset


def now_ms() -> float:
    """Returns the virtual time."""
    return trio.current_time() * 1000


class StreamsMember:
    """One thread of an application, with a process of its own."""

    def __init__(self, member_id: str, link: Link, history: History) -> None:
        """Sends nothing before ``live``; ``history`` gets what it does."""
        self.member_id = member_id
        self.link = link
        self.history = history
        self.epoch = 0
        self.acting: dict[Task, Holding] = {}
        self.revoked: dict[Task, float] = {}
        """Tasks that the coordinator has taken away, with the time at which the member can have closed each."""
        self.positions: dict[Task, int] = {}
        self.sends_all = True
        self._hurries = trio.Event()
        self._leaves = False
        self.hung_until = 0.0

    @property
    def _draw(self) -> random.Random:
        return self.link.environment.random

    async def live(self) -> None:
        """Runs until it is cancelled; then the process is dead."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._beat_for_ever)
                nursery.start_soon(self._work_for_ever)
        finally:
            self._drop_all()

    async def leave(self) -> None:
        """Commits, closes all tasks, and leaves the group; a late answer to a heartbeat gives it no tasks any more."""
        self._leaves = True
        for task in sorted(self.acting):
            await self._commit(task)
            self._close(task)
        request = StreamsGroupHeartbeatRequest(
            group_id=self.link.application.group, member_id=self.member_id, member_epoch=-1
        )
        await self.link.ask(StreamsGroupHeartbeatResponse, request, 1)

    # Heartbeats

    async def _beat_for_ever(self) -> None:
        while not self._leaves:
            await self._until_awake()
            await self.beat()
            self._hurries = trio.Event()
            with trio.move_on_after(BEAT_S):
                await self._hurries.wait()

    async def beat(self) -> None:
        """Sends a heartbeat, and does what the answer asks for."""
        request = StreamsGroupHeartbeatRequest(
            group_id=self.link.application.group, member_id=self.member_id, member_epoch=self.epoch
        )
        if self.epoch == 0:
            self._drop_all()
            request.topology = self.link.application.topology
        if self.sends_all or self.epoch == 0:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.process_id = self.member_id
        request.active_tasks = _entries(self.acting)
        request.standby_tasks = request.warmup_tasks = []
        sent_ms = now_ms()
        answer = await self.link.ask(StreamsGroupHeartbeatResponse, request, 1)
        coordinator = self.link.answered_by
        await self._until_awake()
        self.sends_all = True
        if answer is None or self._leaves:
            return
        code = ErrorCode(answer.error_code)
        if code in FENCED:
            self.history.fenced += 1
            self.epoch = 0
            self._drop_all()
        elif code is not ErrorCode.NONE:
            self.link.forget()
        else:
            self.history.accepted.setdefault(self.member_id, []).append((sent_ms, coordinator))
            self.sends_all = False
            self.epoch = answer.member_epoch
            if answer.active_tasks is not None:
                self._obey(tasks_of(answer.active_tasks), coordinator)
            for task, holding in self.acting.items():
                if task not in self.revoked:
                    holding.epochs.add(self.epoch)

    def _obey(self, given: frozenset[Task], coordinator: str) -> None:
        self.revoked = {
            task: self.revoked[task] if task in self.revoked else trio.current_time() + self._closing_s()
            for task in sorted(set(self.acting) - given)
        }
        for task in sorted(given - set(self.acting)):
            holding = self.acting[task] = Holding(task, self.member_id, now_ms(), coordinator=coordinator)
            self.history.holdings.append(holding)

    def _closing_s(self) -> float:
        """Draws how long the member takes to close a task."""
        return self._draw.uniform(*SLOW_S) if self._draw.random() < SLOW_SHARE else 0.0

    # Tasks

    async def _work_for_ever(self) -> None:
        while True:
            await trio.sleep(self._draw.uniform(0.05, 0.6))
            await self._until_awake()
            for task in sorted(self.acting):
                if task in self.acting:
                    await self._step(task)

    async def _step(self, task: Task) -> None:
        if task[0] == "0":
            await self._process(task)
        if trio.current_time() >= self.revoked.get(task, float("inf")):
            self._close(task)
            self._hurries.set()

    async def _process(self, task: Task) -> None:
        holding = self.acting[task]
        if task not in self.positions:
            offset = await read_offset(self.link, self.history, task[1], (self.member_id, self.epoch))
            if offset == -2 or self.acting.get(task) is not holding:
                return
            self.positions[task] = max(offset, 0)
        self.positions[task] += self._draw.randint(1, 5)
        if task in self.revoked or self._draw.random() < 0.5:
            await self._commit(task)

    async def _commit(self, task: Task) -> None:
        holding, offset = self.acting.get(task), self.positions.get(task)
        if holding is None or offset is None:
            return
        begun_ms = now_ms()
        part = OffsetCommitRequestPartition(partition_index=task[1], committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=self.link.application.group,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id,
            topics=[OffsetCommitRequestTopic(name=self.link.application.topic, partitions=[part])],
        )
        accepted: bool | None = None
        try:
            answer = await self.link.ask(OffsetCommitResponse, request, 9)
            code = None if answer is None else ErrorCode(answer.topics[0].partitions[0].error_code)
            if code is ErrorCode.NONE:
                accepted = True
            elif code in STALE:
                accepted = False
                self.history.refused += 1
                self.positions.pop(task, None)
            elif code in MOVED:
                self.link.forget()
        finally:  # a cancelled commit may be accepted
            self.history.commits.append(
                Commit(
                    holding=holding,
                    partition=task[1],
                    offset=offset,
                    begun_ms=begun_ms,
                    ended_ms=now_ms(),
                    accepted=accepted,
                    coordinator=self.link.answered_by,
                )
            )

    def _close(self, task: Task) -> None:
        holding = self.acting.pop(task, None)
        if holding is not None:
            holding.ended_ms = now_ms()
        self.revoked.pop(task, None)
        self.positions.pop(task, None)

    def _drop_all(self) -> None:
        for task in sorted(self.acting):
            self._close(task)

    async def _until_awake(self) -> None:
        """Waits while the process hangs: then it neither sends nor notices anything, and still acts on its tasks."""
        while trio.current_time() < self.hung_until:  # noqa: ASYNC110 - the hang may become longer meanwhile
            await trio.sleep_until(self.hung_until)
