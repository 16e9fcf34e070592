"""The tasks that keep a consumer's partitions positioned and fetched ahead. Performs what ``positions`` says is needed.

One loop looks at all partitions: those without a position are looked up (ListOffsets, OffsetForLeaderEpoch; committed
offsets are the group's affair), those with one are fetched, one long-polling request to each leader at a time, on a
connection of its own. What comes is buffered, at most two answers for each partition, so a slow application stops the
fetching and nothing else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.cluster.metadata import NO_TOPIC_ID, BrokerNode, TopicPartition
from moldau.consumer.chunk import FetchedChunk
from moldau.consumer.positions import NO_EPOCH, PartitionPosition, Phase, Positions
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.records import CorruptRecordError
from moldau.runtime.sync import Signal

if TYPE_CHECKING:
    from moldau.cluster.client import ClusterClient
    from moldau.runtime.config import Config

_TOPIC_ID_VERSION = 13
_SLEEP_MAX_MS = 60_000.0
_PREFERRED_REPLICA_MS = 300_000.0
_ERRORS_KEPT_MAX = 100
FETCH_PURPOSE = "fetch"


class OffsetOutOfRangeError(KafkaError):
    """A position lies outside of the log and ``auto.offset.reset`` is ``none``."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition}: there is no {'committed offset' if offset < 0 else f'offset {offset}'}, "
            "and auto.offset.reset is none",
        )
        self.partition = partition
        self.offset = offset


class LogTruncatedError(KafkaError):
    """The log was truncated below a position (unclean election) and ``auto.offset.reset`` is ``none``."""

    def __init__(self, partition: TopicPartition, offset: int, diverging_offset: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition}: the log was truncated to {diverging_offset}, below the position {offset}",
        )
        self.partition = partition
        self.offset = offset
        self.diverging_offset = diverging_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A committed offset: where the group goes on, with the leader epoch of the record before and a text of its own."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


Committed = Callable[[list[TopicPartition]], Awaitable[Mapping[TopicPartition, CommittedOffset]]]
"""Looks up committed offsets; partitions without one are left out."""


class Fetcher:
    """Positions and fetches until it is cancelled. Errors for the application wait in ``errors``."""

    def __init__(
        self,
        client: ClusterClient,
        positions: Positions,
        config: Config,
        reset_timestamp: Callable[[], int | None],
        committed: Committed | None,
    ) -> None:
        """``reset_timestamp`` gives the time of the reset policy, None for ``none``; ``committed`` looks offsets up."""
        self._committed = committed
        self._client = client
        self._positions = positions
        self._reset_timestamp = reset_timestamp
        self._min_bytes = config.get_int("fetch.min.bytes")
        self._max_wait_ms = config.get_int("fetch.max.wait.ms")
        self._max_bytes = config.get_int("fetch.max.bytes")
        self._partition_bytes = config.get_int("max.partition.fetch.bytes")
        self._isolation = 1 if config.get_str("isolation.level") == "read_committed" else 0
        self._checks_crc = config.get_bool("check.crcs")
        self._rack = config.get_str("client.rack")
        self._retry_ms = config.get_int("retry.backoff.ms")
        self._patience_ms = config.get_int("default.api.timeout.ms")
        self._wake = Signal()
        self._is_wanted = False
        self._fetching: dict[int, None] = {}
        self._asking: dict[TopicPartition, None] = {}
        self.arrived = Signal()
        self.errors: deque[Exception] = deque(maxlen=_ERRORS_KEPT_MAX)
        self._nursery: trio.Nursery | None = None

    def wake(self) -> None:
        """Makes the loop look again: an assignment, a seek, a pause or room in the buffers."""
        self._is_wanted = True
        self._wake.notify()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._watch_cluster)
            task_status.started()
            while True:
                self._is_wanted = False
                next_ms = self._step()
                if self._is_wanted:
                    await trio.lowlevel.checkpoint()
                    continue
                with trio.move_on_after(min(max(next_ms - self._client.now_ms, 0.0), _SLEEP_MAX_MS) / 1000):
                    await self._wake.wait()

    async def _watch_cluster(self) -> None:
        while True:
            await self._client.changed.wait()
            self.wake()

    def _error(self, error: Exception) -> None:
        self.errors.append(error)
        self.arrived.notify()

    # --- one look

    def _step(self) -> float:
        client, positions = self._client, self._positions
        now_ms = client.now_ms
        for position in positions.by_partition.values():
            info = client.picture.partition_info(position.partition)
            if info is not None:
                position.leader_is(info.leader_epoch)
        next_ms = positions.next_retry_ms(now_ms)
        self._look_up(now_ms)
        next_ms = min(next_ms, self._ask(Phase.RESET, self._list_offsets, now_ms))
        next_ms = min(next_ms, self._ask(Phase.VALIDATE, self._validate, now_ms))
        return min(next_ms, self._fetch(now_ms))

    def _leader_of(self, position: PartitionPosition) -> int | None:
        leader = self._client.picture.leader(position.partition)
        if leader is None:
            self._client.request_update()
            return None
        node_id, epoch = leader
        if position.is_ahead_of(epoch, self._client.now_ms, self._patience_ms):
            self._client.doubt_metadata(position.awaited_since_ms)
            return None
        return node_id

    def _ask(
        self,
        phase: Phase,
        ask: Callable[[int, list[tuple[PartitionPosition, int]]], Awaitable[None]],
        now_ms: float,
    ) -> float:
        """Starts one request to each leader of partitions in ``phase``."""
        by_node: dict[int, list[tuple[PartitionPosition, int]]] = {}
        for position in self._positions.in_phase(phase, now_ms):
            if position.partition in self._asking:
                continue
            if phase is Phase.RESET and position.reset_timestamp is None:
                timestamp = self._reset_timestamp()
                if timestamp is None:
                    position.retry_at_ms = math.inf
                    self._error(OffsetOutOfRangeError(position.partition, position.offset))
                    continue
                position.reset_timestamp = timestamp
            leader = self._leader_of(position)
            if leader is not None:
                by_node.setdefault(leader, []).append((position, position.generation))
        assert self._nursery is not None
        for node_id, asked in by_node.items():
            for position, _ in asked:
                self._asking[position.partition] = None
            self._nursery.start_soon(self._ask_quietly, ask, node_id, asked)
        return math.inf

    async def _ask_quietly(
        self,
        ask: Callable[[int, list[tuple[PartitionPosition, int]]], Awaitable[None]],
        node_id: int,
        asked: list[tuple[PartitionPosition, int]],
    ) -> None:
        try:
            await ask(node_id, asked)
        except TRANSPORT_ERRORS as error:
            self._client.logger.info("position_unanswered", node=node_id, error=error)
            self._client.request_update()
            for position, _ in asked:
                self._back_off(position)
        except KafkaError as error:
            self._error(error)
            for position, _ in asked:
                self._back_off(position)
        finally:
            for position, _ in asked:
                self._asking.pop(position.partition, None)
            self.wake()
            self.arrived.notify()

    def _back_off(self, position: PartitionPosition) -> None:
        position.retry_at_ms = self._client.now_ms + self._retry_ms * (
            0.8 + 0.4 * self._client.environment.random.random()
        )

    def _failed(self, position: PartitionPosition, code: ErrorCode) -> None:
        """A partition got an error: later again, or an error for the application."""
        if code.refreshes_metadata:
            self._client.request_update()
        self._back_off(position)
        if not code.retriable:
            self._error(KafkaError(code, f"{position.partition}: {code.message}"))

    # --- positions

    def _look_up(self, now_ms: float) -> None:
        """Starts looking up committed offsets, in a group; else the reset policy decides."""
        wanted = [
            position
            for position in self._positions.in_phase(Phase.LOOK_UP, now_ms)
            if position.partition not in self._asking
        ]
        if not wanted:
            return
        if self._committed is None:
            for position in wanted:
                position.reset(None)
            return
        assert self._nursery is not None
        asked = [(position, position.generation) for position in wanted]
        for position in wanted:
            self._asking[position.partition] = None
        self._nursery.start_soon(self._ask_quietly, self._look_up_committed, -1, asked)

    async def _look_up_committed(self, node_id: int, asked: list[tuple[PartitionPosition, int]]) -> None:
        assert self._committed is not None
        found = await self._committed([position.partition for position, _ in asked])
        for position, generation in asked:
            if generation != position.generation or position.phase is not Phase.LOOK_UP:
                continue
            committed = found.get(position.partition)
            if committed is None:
                position.reset(None)
            else:
                position.seek(committed.offset, committed.leader_epoch)

    async def _list_offsets(self, node_id: int, asked: list[tuple[PartitionPosition, int]]) -> None:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for position, _ in asked:
            assert position.reset_timestamp is not None
            topics.setdefault(position.partition.topic, []).append(
                ListOffsetsPartition(
                    partition_index=position.partition.partition,
                    current_leader_epoch=self._leader_epoch(position.partition),
                    timestamp=position.reset_timestamp,
                )
            )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self._isolation,
            topics=[ListOffsetsTopic(name=topic, partitions=parts) for topic, parts in topics.items()],
            timeout_ms=self._client.request_timeout_ms,
        )
        response = await self._client.request(node_id, ListOffsetsResponse, request)
        by_partition = {position.partition: (position, generation) for position, generation in asked}
        for topic in response.topics:
            for answer in topic.partitions:
                found = by_partition.pop(TopicPartition(topic.name, answer.partition_index), None)
                if found is None or found[1] != found[0].generation or found[0].phase is not Phase.RESET:
                    continue
                position = found[0]
                code = ErrorCode.of(answer.error_code)
                if code is not ErrorCode.NONE:
                    self._failed(position, code)
                elif answer.offset < 0:
                    # No record is that late: go on at the end.
                    position.reset_timestamp = -1
                else:
                    position.seek(answer.offset)
                    position.leader_epoch = self._leader_epoch(position.partition)
        for position, _ in by_partition.values():
            self._back_off(position)

    def _leader_epoch(self, partition: TopicPartition) -> int:
        info = self._client.picture.partition_info(partition)
        return NO_EPOCH if info is None else info.leader_epoch

    async def _validate(self, node_id: int, asked: list[tuple[PartitionPosition, int]]) -> None:
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for position, _ in asked:
            topics.setdefault(position.partition.topic, []).append(
                OffsetForLeaderPartition(
                    partition=position.partition.partition,
                    current_leader_epoch=self._leader_epoch(position.partition),
                    leader_epoch=position.last_fetched_epoch,
                )
            )
        request = OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[OffsetForLeaderTopic(topic=topic, partitions=parts) for topic, parts in topics.items()],
        )
        connection = await self._client.connection(node_id)
        if not connection.serves(ApiKey.OFFSET_FOR_LEADER_EPOCH):
            for position, _ in asked:
                position.validated(-1, -1)
            return
        response = await connection.request_as(OffsetForLeaderEpochResponse, request)
        by_partition = {position.partition: (position, generation) for position, generation in asked}
        for topic in response.topics:
            for answer in topic.partitions:
                found = by_partition.pop(TopicPartition(topic.topic, answer.partition), None)
                if found is None or found[1] != found[0].generation:
                    continue
                position = found[0]
                code = ErrorCode.of(answer.error_code)
                if code is not ErrorCode.NONE:
                    self._failed(position, code)
                    continue
                diverged = position.validated(answer.end_offset, answer.leader_epoch)
                if diverged is not None:
                    self._truncated(position, diverged)
        for position, _ in by_partition.values():
            self._back_off(position)

    def _truncated(self, position: PartitionPosition, diverged: int) -> None:
        offset = position.offset
        if diverged >= offset:
            # Only what was fetched ahead is void.
            position.seek(offset)
            return
        self._client.logger.warning("log_truncated", partition=position.partition, position=offset, diverged=diverged)
        if self._reset_timestamp() is None:
            position.seek(diverged)
            position.retry_at_ms = math.inf
            self._error(LogTruncatedError(position.partition, offset, diverged))
        else:
            position.seek(diverged)

    # --- fetching

    def _fetch(self, now_ms: float) -> float:
        """Starts a fetch at each node that has something to fetch and none under way."""
        client = self._client
        by_node: dict[int, list[PartitionPosition]] = {}
        for position in self._positions.by_partition.values():
            if not position.wants_fetch(now_ms):
                continue
            node_id = self._node_for(position, now_ms)
            if node_id is not None and node_id not in self._fetching:
                by_node.setdefault(node_id, []).append(position)
        next_ms = math.inf
        assert self._nursery is not None
        for node_id, wanted in by_node.items():
            if client.connection_nowait(node_id, FETCH_PURPOSE) is None:
                next_ms = min(next_ms, now_ms + max(client.retry_delay_ms(node_id, FETCH_PURPOSE), 1.0))
                continue
            self._fetching[node_id] = None
            self._nursery.start_soon(self._fetch_from, node_id, wanted)
        return next_ms

    def _node_for(self, position: PartitionPosition, now_ms: float) -> int | None:
        preferred = position.preferred_replica
        if preferred >= 0 and now_ms < position.preferred_until_ms and preferred in self._client.picture.brokers:
            return preferred
        position.preferred_replica = -1
        return self._leader_of(position)

    async def _fetch_from(self, node_id: int, wanted: Sequence[PartitionPosition]) -> None:
        asked = {each.partition: (each, each.generation, each.fetch_offset) for each in wanted}
        try:
            response = await self._request_fetch(node_id, wanted)
            self._fetched(response, asked)
        except TRANSPORT_ERRORS as error:
            if not self._client.is_closed:
                self._client.logger.info("fetch_unanswered", node=node_id, error=error)
            self._client.request_update()
            for position in wanted:
                position.preferred_replica = -1
                self._back_off(position)
        except KafkaError as error:
            self._error(error)
            for position in wanted:
                self._back_off(position)
        finally:
            del self._fetching[node_id]
            self.wake()

    async def _request_fetch(self, node_id: int, wanted: Sequence[PartitionPosition]) -> FetchResponse:
        client = self._client
        topics: dict[str, list[FetchPartition]] = {}
        for position in wanted:
            topics.setdefault(position.partition.topic, []).append(
                FetchPartition(
                    partition=position.partition.partition,
                    current_leader_epoch=self._leader_epoch(position.partition),
                    fetch_offset=position.fetch_offset,
                    last_fetched_epoch=-1,
                    partition_max_bytes=self._partition_bytes,
                )
            )
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            isolation_level=self._isolation,
            topics=[
                FetchTopic(topic=topic, topic_id=client.picture.topic_id(topic), partitions=parts)
                for topic, parts in topics.items()
            ],
            rack_id=self._rack,
        )
        connection = await client.connection(node_id, FETCH_PURPOSE)
        version = connection.version_for(request)
        if any(topic.topic_id == NO_TOPIC_ID for topic in request.topics):
            version = connection.version_for(request, _TOPIC_ID_VERSION - 1)
        timeout_ms = client.request_timeout_ms + self._max_wait_ms
        return await connection.request_as(FetchResponse, request, version, timeout_ms)

    def _fetched(
        self, response: FetchResponse, asked: dict[TopicPartition, tuple[PartitionPosition, int, int]]
    ) -> None:
        client = self._client
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            for position, _, _ in asked.values():
                self._failed(position, code)
            return
        for endpoint in response.node_endpoints:
            client.picture.add_broker(
                BrokerNode(node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack)
            )
        names = {client.picture.topic_id(partition.topic): partition.topic for partition in asked}
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for answer in topic.partitions:
                found = asked.get(TopicPartition(name, answer.partition_index))
                if found is not None and found[1] == found[0].generation:
                    self._fetched_partition(*found, answer)
        self.arrived.notify()

    def _fetched_partition(
        self, position: PartitionPosition, generation: int, offset: int, answer: PartitionData
    ) -> None:
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            self._fetch_error(position, offset, code, answer)
            return
        position.high_watermark = answer.high_watermark
        position.last_stable_offset = answer.last_stable_offset
        position.log_start_offset = answer.log_start_offset
        if answer.preferred_read_replica >= 0:
            position.preferred_replica = answer.preferred_read_replica
            position.preferred_until_ms = self._client.now_ms + _PREFERRED_REPLICA_MS
        if not answer.records:
            return
        aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
        try:
            chunk = FetchedChunk(
                memoryview(answer.records),
                offset,
                aborted=aborted if self._isolation else (),
                checks_crc=self._checks_crc,
            )
        except CorruptRecordError as error:
            self._back_off(position)
            self._error(KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{position.partition} at offset {offset}: {error}"))
            return
        if chunk.is_empty:
            self._back_off(position)
            self._error(
                KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"{position.partition} at offset {offset}: {chunk.size_bytes} bytes came without one whole batch",
                )
            )
            return
        position.add_chunk(generation, offset, chunk)

    def _fetch_error(self, position: PartitionPosition, offset: int, code: ErrorCode, answer: PartitionData) -> None:
        if answer.current_leader.leader_id >= 0:
            self._client.picture.set_leader(
                position.partition, answer.current_leader.leader_id, answer.current_leader.leader_epoch
            )
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if position.preferred_replica >= 0:
                # A follower may be behind the leader; the leader decides.
                position.preferred_replica = -1
            elif offset == position.fetch_offset and not position.chunks:
                if self._reset_timestamp() is None:
                    position.retry_at_ms = math.inf
                    self._error(OffsetOutOfRangeError(position.partition, offset))
                else:
                    self._client.logger.info("offset_out_of_range", partition=position.partition, offset=offset)
                    position.reset(None)
            else:
                self._back_off(position)
            return
        position.preferred_replica = -1
        self._failed(position, code)
