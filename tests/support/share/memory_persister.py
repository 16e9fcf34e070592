"""The durable state of share-partitions in memory, with a share coordinator's rules, and a coordinator made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages import read_share_group_state as reading
from moldau.protocol.messages import write_share_group_state as writing
from moldau.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from moldau_broker.server.share.core.values import Persist, RecordState, StateBatch
from moldau_broker.server.share.persister import ShareKey, StoredState

if TYPE_CHECKING:
    from moldau.protocol.schema import Request, Response


class MemoryPersister:
    """Obeys the contract of ``ShareStatePersister``; one of them serves all brokers of a test."""

    def __init__(self) -> None:
        self.start_offsets: dict[ShareKey, int] = {}
        self.state_epochs: dict[ShareKey, int] = {}
        self.leader_epochs: dict[ShareKey, int] = {}
        self.records: dict[ShareKey, dict[int, tuple[RecordState, int]]] = {}
        self.complete: dict[ShareKey, int] = {}
        self.writes = 0
        self.delay_ms = 0.0
        self.refusals: list[ErrorCode] = []  # for the next operations, in order

    async def _arrive(self) -> None:
        await trio.sleep(self.delay_ms / 1000)
        if self.refusals:
            raise KafkaError(self.refusals.pop(0))

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState:
        await self._arrive()
        self._fence(key, leader_epoch)
        self.leader_epochs[key] = leader_epoch
        batches: list[StateBatch] = []
        for offset, (state, count) in sorted(self.records.get(key, {}).items()):
            last = batches[-1] if batches else None
            if last is not None and (last.last + 1, last.state, last.delivery_count) == (offset, state, count):
                batches[-1] = StateBatch(last.first, offset, state, count)
            else:
                batches.append(StateBatch(offset, offset, state, count))
        return StoredState(
            state_epoch=self.state_epochs.get(key, 0),
            start_offset=self.start_offsets.get(key, -1),
            batches=tuple(batches),
        )

    async def write(self, key: ShareKey, write: Persist) -> None:
        await self._arrive()
        self._fence(key, write.leader_epoch)
        if write.state_epoch < self.state_epochs.get(key, 0):
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        self.writes += 1
        self.leader_epochs[key] = write.leader_epoch
        self.start_offsets[key] = max(write.start_offset, self.start_offsets.get(key, 0))
        self.complete[key] = write.delivery_complete_count
        records = self.records.setdefault(key, {})
        for batch in write.batches:
            for offset in range(batch.first, batch.last + 1):
                records[offset] = (batch.state, batch.delivery_count)
        for offset in [each for each in records if each < self.start_offsets[key]]:
            del records[offset]

    def _fence(self, key: ShareKey, leader_epoch: int) -> None:
        if leader_epoch < self.leader_epochs.get(key, -1):
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)


class CoordinatorOfMemory:
    """Answers FindCoordinator, ReadShareGroupState and WriteShareGroupState as brokers do, from a ``MemoryPersister``.

    Broker ``coordinator`` coordinates; others answer NOT_COORDINATOR. ``broken`` counts connections that will fail, and
    those to the broker ``dead`` always do.
    """

    def __init__(self, memory: MemoryPersister) -> None:
        self.memory = memory
        self.coordinator = 7
        self.known = 7  # to FindCoordinator
        self.broken = 0
        self.dead: int | None = None
        self.asked: list[tuple[int, str]] = []

    async def request(self, broker_id: int, message: Request, version: int) -> Response:
        self.asked.append((broker_id, type(message).__name__))
        await trio.sleep(0.001)
        if self.broken or broker_id == self.dead:
            self.broken = max(0, self.broken - 1)
            raise ConnectionResetError("broken")
        if isinstance(message, FindCoordinatorRequest):
            assert (message.key_type, version) == (2, 6)
            return FindCoordinatorResponse(
                coordinators=[
                    Coordinator(key=key, node_id=self.known, host="b", port=1) for key in message.coordinator_keys
                ]
            )
        if isinstance(message, reading.ReadShareGroupStateRequest):
            return await self._read(broker_id, message)
        assert isinstance(message, writing.WriteShareGroupStateRequest)
        assert version == 1
        return await self._write(broker_id, message)

    async def _read(self, broker_id: int, message: reading.ReadShareGroupStateRequest) -> Response:
        (topic,) = message.topics
        (part,) = topic.partitions
        result = reading.PartitionResult(partition=part.partition)
        try:
            self._check(broker_id)
            state = await self.memory.read(
                ShareKey(message.group_id, topic.topic_id, part.partition), part.leader_epoch
            )
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        else:
            result.state_epoch, result.start_offset = state.state_epoch, state.start_offset
            result.state_batches = [
                reading.StateBatch(
                    first_offset=each.first,
                    last_offset=each.last,
                    delivery_state=each.state,
                    delivery_count=each.delivery_count,
                )
                for each in state.batches
            ]
        return reading.ReadShareGroupStateResponse(
            results=[reading.ReadStateResult(topic_id=topic.topic_id, partitions=[result])]
        )

    async def _write(self, broker_id: int, message: writing.WriteShareGroupStateRequest) -> Response:
        (topic,) = message.topics
        (part,) = topic.partitions
        result = writing.PartitionResult(partition=part.partition)
        write = Persist(
            state_epoch=part.state_epoch,
            leader_epoch=part.leader_epoch,
            start_offset=part.start_offset,
            delivery_complete_count=part.delivery_complete_count,
            batches=tuple(
                StateBatch(each.first_offset, each.last_offset, RecordState(each.delivery_state), each.delivery_count)
                for each in part.state_batches
            ),
        )
        try:
            self._check(broker_id)
            await self.memory.write(ShareKey(message.group_id, topic.topic_id, part.partition), write)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        return writing.WriteShareGroupStateResponse(
            results=[writing.WriteStateResult(topic_id=topic.topic_id, partitions=[result])]
        )

    def _check(self, broker_id: int) -> None:
        if broker_id != self.coordinator:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
