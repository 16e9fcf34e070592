"""The tasks that find a consumer's positions and prefetch its partitions, as ``positions`` decides.

One loop looks at all partitions. It looks up missing positions (ListOffsets, OffsetForLeaderEpoch; the group looks up
committed offsets) and fetches the others (``fetch_plan`` decides when, ``node_fetcher`` sends the requests). Buffers
are bounded in bytes, so a slow application stops the fetching and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.cluster.committed import CommittedOffset, OffsetsUnknownError
from moldau.cluster.metadata import PartitionInfo, TopicPartition
from moldau.consumer.core.positions import NO_EPOCH, PartitionPosition, Phase, Positions
from moldau.consumer.core.statistics import ConsumerCounters
from moldau.consumer.core.values import PartitionError
from moldau.consumer.node_fetcher import NodeFetcher
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
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
from moldau.runtime.tasks.step_loop import StepLoop
from moldau.runtime.tasks.sync import Signal

if TYPE_CHECKING:
    from moldau.cluster.client import ClusterClient
    from moldau.runtime.config import Config

_ERRORS_KEPT_MAX = 100


class OffsetOutOfRangeError(KafkaError):
    """Reports a position outside of the log while ``auto.offset.reset`` is ``none``."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition}: there is no {'committed offset' if offset < 0 else f'offset {offset}'}, "
            "and auto.offset.reset is none",
        )
        self.partition = partition
        self.offset = offset


class LogTruncatedError(KafkaError):
    """Reports that the log was truncated below a position (unclean election), with reset policy ``none``."""

    def __init__(self, partition: TopicPartition, offset: int, diverging_offset: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition}: the log was truncated to {diverging_offset}, below the position {offset}",
        )
        self.partition = partition
        self.offset = offset
        self.diverging_offset = diverging_offset


Committed = Callable[[list[TopicPartition]], Awaitable[Mapping[TopicPartition, CommittedOffset]]]
"""Looks up committed offsets; partitions without one are left out."""


class Fetcher:
    """Finds positions and fetches until cancelled; ``next_error`` returns errors for the application."""

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
        self._isolation = 1 if config.get_str("isolation.level") == "read_committed" else 0
        self._retry_ms = config.get_int("retry.backoff.ms")
        self._patience_ms = config.get_int("default.api.timeout.ms")
        self._loop = StepLoop(client.environment.clock, client.changed)
        self._asking: dict[TopicPartition, None] = {}
        self.arrived = Signal()
        # While the application does not poll, the same is refused again and again: at most one error of each text, and
        # of each position.
        self._errors: dict[str, Exception] = {}
        self._position_errors: dict[PartitionPosition, tuple[Exception, int]] = {}
        self.counters = ConsumerCounters()
        self._node_fetches = NodeFetcher(client, config, self, self.counters)

    def wake(self) -> None:
        """Wakes the loop after an assignment, a seek, a pause, or when the buffers have room."""
        self._loop.wake()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled."""
        await self._loop.run(self._step, task_status=task_status)

    async def close_sessions(self) -> None:
        """Ends all fetches; see ``NodeFetcher.close_sessions``."""
        await self._node_fetches.close_sessions()

    def report(self, error: Exception, position: PartitionPosition | None = None) -> None:
        """Keeps an error for the next poll, which raises it.

        An error of a ``position`` replaces its last one, and is dropped if the application seeks or gives the partition
        up before that poll.
        """
        if position is None:
            self._errors[str(error)] = error
            if len(self._errors) > _ERRORS_KEPT_MAX:
                del self._errors[next(iter(self._errors))]
        else:
            self._position_errors[position] = (error, position.generation)
        self.arrived.notify()

    def next_error(self) -> Exception | None:
        """Removes an error that is still true, and returns it; None if there is none."""
        if self._errors:
            return self._errors.pop(next(iter(self._errors)))
        while self._position_errors:
            position = next(iter(self._position_errors))
            error, generation = self._position_errors.pop(position)
            if position.generation == generation:
                return error
        return None

    # --- one look

    def _step(self) -> float:
        client, positions = self._client, self._positions
        now_ms = client.now_ms
        infos = client.cluster_metadata.partition_infos(positions.by_partition)
        is_searching = False
        for position, info in zip(positions.by_partition.values(), infos, strict=True):
            if info is not None and info.leader_epoch != position.leader_epoch:
                position.leader_is(info.leader_epoch)
            if position.phase is not Phase.FETCH:
                is_searching = True
        next_ms = positions.next_retry_ms(now_ms)
        if is_searching:
            self._look_up(now_ms)
            next_ms = min(next_ms, self._ask(Phase.RESET, self._list_offsets, now_ms))
            next_ms = min(next_ms, self._ask(Phase.VALIDATE, self._validate, now_ms))
        return min(next_ms, self._fetch(now_ms, infos))

    def _leader_of(self, position: PartitionPosition) -> int | None:
        leader = self._client.cluster_metadata.leader(position.partition)
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
                    self.report(OffsetOutOfRangeError(position.partition, position.offset), position)
                    continue
                position.reset_timestamp = timestamp
            leader = self._leader_of(position)
            if leader is not None:
                by_node.setdefault(leader, []).append((position, position.generation))
        for node_id, asked in by_node.items():
            for position, _ in asked:
                self._asking[position.partition] = None
            self._loop.nursery.start_soon(self._ask_quietly, ask, node_id, asked)
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
            self._client.logger.info("position-unanswered", node=node_id, error=error)
            self._client.request_update()
            for position, _ in asked:
                self.back_off(position)
        except KafkaError as error:
            self.report(error)
            for position, _ in asked:
                self.back_off(position)
        finally:
            for position, _ in asked:
                self._asking.pop(position.partition, None)
            self.wake()
            self.arrived.notify()

    def back_off(self, position: PartitionPosition) -> None:
        """Pauses the partition for about ``retry.backoff.ms``."""
        position.retry_at_ms = self._client.now_ms + self._retry_ms * (
            0.8 + 0.4 * self._client.environment.random.random()
        )

    def failed(self, position: PartitionPosition, code: ErrorCode) -> None:
        """Handles an error of a partition: retries it later or keeps it for the application."""
        if code.refreshes_metadata:
            self._client.request_update()
        self.back_off(position)
        if not code.retriable or code is ErrorCode.CORRUPT_MESSAGE:  # a damaged log stays damaged, unless it moves
            error = PartitionError(code, position.partition, f"{position.partition}: {code.message}")
            self.report(error, position)

    # --- positions

    def _look_up(self, now_ms: float) -> None:
        """Starts looking up committed offsets; without a group it applies the reset policy."""
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
        asked = [(position, position.generation) for position in wanted]
        for position in wanted:
            self._asking[position.partition] = None
        self._loop.nursery.start_soon(self._ask_quietly, self._look_up_committed, -1, asked)

    async def _look_up_committed(self, node_id: int, asked: list[tuple[PartitionPosition, int]]) -> None:
        assert self._committed is not None
        errors: dict[TopicPartition, ErrorCode] = {}
        try:
            found = await self._committed([position.partition for position, _ in asked])
        except OffsetsUnknownError as error:
            found, errors = error.found, error.errors
        for position, generation in asked:
            if generation != position.generation or position.phase is not Phase.LOOK_UP:
                continue
            if position.partition in errors:
                self.failed(position, errors[position.partition])
                continue
            committed = found.get(position.partition)
            if committed is None:
                position.reset(None)
            else:
                position.seek(committed.offset, committed.leader_epoch)

    async def _list_offsets(self, node_id: int, asked: list[tuple[PartitionPosition, int]]) -> None:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        epochs = {position.partition: self.leader_epoch(position.partition) for position, _ in asked}
        for position, _ in asked:
            assert position.reset_timestamp is not None
            topics.setdefault(position.partition.topic, []).append(
                ListOffsetsPartition(
                    partition_index=position.partition.partition,
                    current_leader_epoch=epochs[position.partition],
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
                    self.failed(position, code)
                elif answer.offset < 0:
                    # No record is that late: continue at the end.
                    position.reset_timestamp = -1
                else:
                    position.seek(answer.offset)
                    position.begins_in(answer.leader_epoch, epochs[position.partition])
        for position, _ in by_partition.values():
            self.back_off(position)

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Returns the partition's leader epoch, if known."""
        info = self._client.cluster_metadata.partition_info(partition)
        return NO_EPOCH if info is None else info.leader_epoch

    async def _validate(self, node_id: int, asked: list[tuple[PartitionPosition, int]]) -> None:
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for position, _ in asked:
            topics.setdefault(position.partition.topic, []).append(
                OffsetForLeaderPartition(
                    partition=position.partition.partition,
                    current_leader_epoch=self.leader_epoch(position.partition),
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
                    self.failed(position, code)
                    continue
                diverged = position.validated(answer.end_offset, answer.leader_epoch)
                if diverged is not None:
                    self._truncated(position, diverged, answer.leader_epoch)
        for position, _ in by_partition.values():
            self.back_off(position)

    def _truncated(self, position: PartitionPosition, diverged: int, epoch: int) -> None:
        """Goes back to where the leader's log and the one that was read part; ``epoch`` is that of the records below.

        The epoch stays with the position, because the next leader may lack records of it too.
        """
        offset, leader_epoch = position.offset, position.leader_epoch
        if diverged >= offset:
            # Only the prefetched records are void.
            epoch = position.offset_epoch
            position.seek(offset)
            position.begins_in(epoch, leader_epoch)
            return
        self._client.logger.warning("log-truncated", partition=position.partition, position=offset, diverged=diverged)
        position.seek(diverged)
        position.begins_in(epoch, leader_epoch)
        if self._reset_timestamp() is None:
            position.retry_at_ms = math.inf
            self.report(LogTruncatedError(position.partition, offset, diverged), position)

    # --- fetching

    def _fetch(self, now_ms: float, infos: list[PartitionInfo | None]) -> float:
        """Starts the fetches that are due at each node; returns when to look again.

        ``infos`` are the metadata of all partitions, in the order of the positions.
        """
        by_node: dict[int, list[PartitionPosition]] = {}
        brokers = self._client.cluster_metadata.brokers
        for position, info in zip(self._positions.by_partition.values(), infos, strict=True):
            if position.phase is not Phase.FETCH or now_ms < position.retry_at_ms:
                continue
            node_id: int | None
            if info is not None and info.leader in brokers and position.may_ask_any_leader:
                node_id = info.leader
            else:
                node_id = self._node_for(position, now_ms)
            if node_id is not None:
                by_node.setdefault(node_id, []).append(position)
        return self._node_fetches.start_due(self._loop.nursery, by_node, now_ms)

    def _node_for(self, position: PartitionPosition, now_ms: float) -> int | None:
        preferred = position.preferred_replica
        if (
            preferred >= 0
            and now_ms < position.preferred_until_ms
            and preferred in self._client.cluster_metadata.brokers
        ):
            return preferred
        position.preferred_replica = -1
        return self._leader_of(position)

    def out_of_range(self, position: PartitionPosition, offset: int) -> None:
        """Handles an offset that the leader does not have: the reset policy decides, or the application."""
        if offset != position.fetch_offset or position.chunks:
            self.back_off(position)
        elif self._reset_timestamp() is None:
            position.retry_at_ms = math.inf
            self.report(OffsetOutOfRangeError(position.partition, offset), position)
        else:
            self._client.logger.info("offset-out-of-range", partition=position.partition, offset=offset)
            position.reset(None)
