"""A member of a streams group as a program on virtual time: it sends heartbeats, runs its tasks and commits.

It obeys KIP-1071: it closes revoked tasks, after a last commit, before it reports them as closed, and it drops all
tasks at once when it is fenced. Its history records what it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from moldau.runtime.net.rpc import RpcConnection
from moldau_broker.coordinator.group.streams.core.topology import NO_TASKS, tasks_of
from support.coordinator.group_world import commit_request
from support.coordinator.streams_world import GROUP, entries, word_count
from support.streams.judge import Commit, Holding, Read

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from moldau.protocol.schema import Request
    from moldau.runtime.ports.environment import Environment
    from moldau_broker.coordinator.group.streams.core.topology import Task
    from support.streams.judge import History

FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)
MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
STALE = (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
BEAT_S = 0.5
REQUEST_MS = 3_000.0
REBALANCE_MS = 40_000
"""Longer than a member takes to close a task, also if some of its requests are lost."""


class Link:
    """One machine's way to the coordinator of the group."""

    def __init__(self, environment: Environment, hosts: Sequence[str]) -> None:
        self.environment = environment
        self.hosts = list(hosts)
        self._coordinator: str | None = None
        self._connections: dict[str, RpcConnection] = {}

    async def ask(self, message: Request, version: int) -> Any:
        """Sends one request; returns the answer, or None if the coordinator is unknown or gives no answer."""
        try:
            if self._coordinator is None:
                host = self.environment.random.choice(self.hosts)
                request = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
                found = await self._request(host, request, 6)
                if found.coordinators[0].error_code != ErrorCode.NONE:
                    return None
                self._coordinator = found.coordinators[0].host
            return await self._request(self._coordinator, message, version)
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

    async def _request(self, host: str, message: Request, version: int) -> Any:
        with trio.fail_after(REQUEST_MS / 1000):
            connection = self._connections.get(host)
            if connection is None or not connection.is_open:
                connection = await RpcConnection.open(self.environment, host, 9092, "member")
                self._connections[host] = connection
            try:
                return await connection.request(message, version, timeout_ms=REQUEST_MS)
            except (OSError, trio.TooSlowError):
                connection.close()
                raise


async def read_offset(link: Link, history: History, partition: int, member: tuple[str | None, int] = (None, -1)) -> int:
    """Returns the committed offset of a partition of ``t``, -1 if there is none, and -2 without an answer."""
    begun_ms = now_ms()
    group = OffsetFetchRequestGroup(
        group_id=GROUP,
        member_id=member[0],
        member_epoch=member[1],
        topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[partition])],
    )
    answer = await link.ask(OffsetFetchRequest(groups=[group], require_stable=True), 9)
    if answer is None:
        return -2
    found = answer.groups[0]
    code = ErrorCode(found.error_code or found.topics[0].partitions[0].error_code)
    if code is not ErrorCode.NONE:
        if code in MOVED:
            link.forget()
        return -2
    offset = int(found.topics[0].partitions[0].committed_offset)
    history.reads.append(Read(partition=partition, offset=offset, begun_ms=begun_ms))
    return offset


def now_ms() -> float:
    """Returns the virtual time."""
    return trio.current_time() * 1000


class StreamsMember:
    """One thread of an application, with a process of its own."""

    def __init__(self, member_id: str, link: Link, history: History) -> None:
        self.member_id = member_id
        self.link = link
        self.history = history
        self.epoch = 0
        self.acting: dict[Task, Holding] = {}
        self.revoked: set[Task] = set()
        """Tasks that the coordinator has taken away, and that the member still has to close."""
        self.positions: dict[Task, int] = {}
        self.sends_all = True
        self._hurries = trio.Event()
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
        """Commits, closes all tasks, and leaves the group."""
        for task in sorted(self.acting):
            await self._commit(task)
            self._close(task)
        request = StreamsGroupHeartbeatRequest(group_id=GROUP, member_id=self.member_id, member_epoch=-1)
        await self.link.ask(request, 1)

    # Heartbeats

    async def _beat_for_ever(self) -> None:
        while True:
            await self._until_awake()
            await self.beat()
            self._hurries = trio.Event()
            with trio.move_on_after(BEAT_S):
                await self._hurries.wait()

    async def beat(self) -> None:
        """Sends a heartbeat, and does what the answer asks for."""
        request = StreamsGroupHeartbeatRequest(group_id=GROUP, member_id=self.member_id, member_epoch=self.epoch)
        if self.epoch == 0:
            self._drop_all()
            request.topology = word_count()
        if self.sends_all or self.epoch == 0:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.process_id = self.member_id
        request.active_tasks = entries(frozenset(self.acting))
        request.standby_tasks = request.warmup_tasks = entries(NO_TASKS)
        sent_ms = now_ms()
        answer = await self.link.ask(request, 1)
        await self._until_awake()
        self.sends_all = True
        if answer is None:
            return
        code = ErrorCode(answer.error_code)
        if code in FENCED:
            self.history.fenced += 1
            self.epoch = 0
            self._drop_all()
        elif code is not ErrorCode.NONE:
            self.link.forget()
        else:
            self.history.accepted.setdefault(self.member_id, []).append(sent_ms)
            self.sends_all = False
            self.epoch = answer.member_epoch
            if answer.active_tasks is not None:
                self._obey(tasks_of(answer.active_tasks))
            for task, holding in self.acting.items():
                if task not in self.revoked:
                    holding.epochs.add(self.epoch)

    def _obey(self, given: frozenset[Task]) -> None:
        self.revoked = set(self.acting) - given
        for task in sorted(given - set(self.acting)):
            holding = self.acting[task] = Holding(task, self.member_id, now_ms())
            self.history.holdings.append(holding)

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
        if task in self.revoked:
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
        holding, offset = self.acting[task], self.positions.get(task)
        if offset is None:
            return
        begun_ms = now_ms()
        request = commit_request(offset, self.member_id, self.epoch, group=GROUP, partition=task[1])
        accepted: bool | None = None
        try:
            answer = await self.link.ask(request, 9)
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
                )
            )

    def _close(self, task: Task) -> None:
        holding = self.acting.pop(task, None)
        if holding is not None:
            holding.ended_ms = now_ms()
        self.revoked.discard(task)
        self.positions.pop(task, None)

    def _drop_all(self) -> None:
        for task in sorted(self.acting):
            self._close(task)

    async def _until_awake(self) -> None:
        """Waits while the process hangs: then it neither sends nor notices anything, and still acts on its tasks."""
        while trio.current_time() < self.hung_until:  # noqa: ASYNC110 - the hang may become longer meanwhile
            await trio.sleep_until(self.hung_until)
