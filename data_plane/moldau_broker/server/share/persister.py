"""The port through which leaders read and write the state of share-partitions, and its production implementation.

The share coordinator of a share-partition keeps its state in ``__share_group_state``. The leader of the partition reads
it once with ReadShareGroupState, which fences older leaders, and then writes with WriteShareGroupState.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import trio

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages import read_share_group_state as reading
from moldau.protocol.messages import write_share_group_state as writing
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.runtime.tasks.supervision import BackoffPolicy
from moldau.values import BrokerId
from moldau_broker.server.share.core.values import Persist, RecordState, StateBatch

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from moldau.protocol.schema import Request, Response
    from moldau.runtime.ports.environment import Clock
    from moldau_broker.server.coordination.transactions import Peers

R = TypeVar("R", bound="Response")
T = TypeVar("T")
FIND_COORDINATOR_VERSION = 6
READ_VERSION = 0
WRITE_VERSION = 1
SHARE_COORDINATOR = 2
"""Type of a share coordinator's key in FindCoordinator."""
BACKOFF = BackoffPolicy(initial_ms=50.0, max_ms=1_000.0)
GIVE_UP_MS = 15_000.0
"""How long an operation looks for a coordinator that answers."""
KNOWN_MAX = 10_000
"""Bound of the remembered coordinators; the oldest is forgotten first."""

_ELSEWHERE = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)


class ShareKey(NamedTuple):
    """A share-partition: one partition, as one group reads it."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The key by which FindCoordinator finds the share coordinator; the topic id is in Kafka's base 64."""
        topic_id = base64.urlsafe_b64encode(self.topic_id.bytes).rstrip(b"=").decode()
        return f"{self.group_id}:{topic_id}:{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """The share coordinator's state of a share-partition."""

    state_epoch: int
    start_offset: int  # -1: the group has not begun to read the partition
    batches: tuple[StateBatch, ...]


class ShareStatePersister(Protocol):
    """Durable state of share-partitions. Both calls end in bounded time, and may be cancelled."""

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState:
        """Returns the state, and fences writes of older leader epochs.

        Raises:
            KafkaError: the state could not be read; FENCED_LEADER_EPOCH: a newer leader has read it.
        """
        ...

    async def write(self, key: ShareKey, write: Persist) -> None:
        """Merges a write into the state; it is durable on return.

        Raises:
            KafkaError: the state was not written, or that is unknown; FENCED_STATE_EPOCH or FENCED_LEADER_EPOCH: this
                leader's state is void.
        """
        ...


class CoordinatorPersister:
    """Reads and writes through share coordinators, which FindCoordinator finds."""

    def __init__(self, broker_id: BrokerId, peers: Peers, clock: Clock, random: random.Random) -> None:
        """``random`` spreads repeated attempts."""
        self._broker_id = broker_id
        self._peers = peers
        self._clock = clock
        self._random = random
        self._known: dict[str, BrokerId] = {}

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState:
        """See ``ShareStatePersister``."""
        request = reading.ReadShareGroupStateRequest(
            group_id=key.group_id,
            topics=[
                reading.ReadStateData(
                    topic_id=key.topic_id,
                    partitions=[reading.PartitionData(partition=key.partition, leader_epoch=leader_epoch)],
                )
            ],
        )

        async def attempt(coordinator: BrokerId) -> StoredState:
            response = await self._ask(reading.ReadShareGroupStateResponse, coordinator, request, READ_VERSION)
            for topic in response.results:
                for result in topic.partitions:
                    if (topic.topic_id, result.partition) == (key.topic_id, key.partition):
                        _check(result.error_code, result.error_message)
                        return StoredState(
                            state_epoch=result.state_epoch,
                            start_offset=result.start_offset,
                            batches=tuple(_state_batch(each) for each in result.state_batches),
                        )
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the share coordinator left the partition out")

        return await self._with_coordinator(key, attempt)

    async def write(self, key: ShareKey, write: Persist) -> None:
        """See ``ShareStatePersister``."""
        request = writing.WriteShareGroupStateRequest(
            group_id=key.group_id,
            topics=[
                writing.WriteStateData(
                    topic_id=key.topic_id,
                    partitions=[
                        writing.PartitionData(
                            partition=key.partition,
                            state_epoch=write.state_epoch,
                            leader_epoch=write.leader_epoch,
                            start_offset=write.start_offset,
                            delivery_complete_count=write.delivery_complete_count,
                            state_batches=[
                                writing.StateBatch(
                                    first_offset=batch.first,
                                    last_offset=batch.last,
                                    delivery_state=batch.state,
                                    delivery_count=batch.delivery_count,
                                )
                                for batch in write.batches
                            ],
                        )
                    ],
                )
            ],
        )

        async def attempt(coordinator: BrokerId) -> None:
            response = await self._ask(writing.WriteShareGroupStateResponse, coordinator, request, WRITE_VERSION)
            for topic in response.results:
                for result in topic.partitions:
                    if (topic.topic_id, result.partition) == (key.topic_id, key.partition):
                        _check(result.error_code, result.error_message)
                        return
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the share coordinator left the partition out")

        await self._with_coordinator(key, attempt)

    # --- coordinators ----------------------------------------------------------------------------------------------

    async def _with_coordinator(self, key: ShareKey, attempt: Callable[[BrokerId], Awaitable[T]]) -> T:
        """Tries again while no coordinator answers, for at most ``GIVE_UP_MS``.

        Raises:
            KafkaError: the answer was a refusal; COORDINATOR_NOT_AVAILABLE: there was none.
        """
        until_ms = self._clock.monotonic_ms() + GIVE_UP_MS
        failures = 0
        while True:
            try:
                return await attempt(await self._coordinator(key.coordinator_key))
            except (OSError, trio.TooSlowError, DecodeError) as error:
                refused = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{type(error).__name__}: {error}")
            except KafkaError as error:
                if error.code not in _ELSEWHERE:
                    raise
                refused = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
            self._known.pop(key.coordinator_key, None)
            failures += 1
            delay_ms = BACKOFF.delay_ms(failures, self._random)
            if self._clock.monotonic_ms() + delay_ms >= until_ms:
                raise refused
            await trio.sleep(delay_ms / 1000)

    async def _coordinator(self, key: str) -> BrokerId:
        """Returns the share coordinator of a key; raises the errors of ``_ask``."""
        known = self._known.get(key)
        if known is not None:
            return known
        request = FindCoordinatorRequest(key_type=SHARE_COORDINATOR, coordinator_keys=[key])
        response = await self._ask(FindCoordinatorResponse, self._broker_id, request, FIND_COORDINATOR_VERSION)
        for coordinator in response.coordinators:
            if coordinator.key == key:
                _check(coordinator.error_code, coordinator.error_message)
                if len(self._known) >= KNOWN_MAX:
                    del self._known[next(iter(self._known))]
                found = self._known[key] = BrokerId(coordinator.node_id)
                return found
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "FindCoordinator left the key out")

    async def _ask(self, response_class: type[R], broker_id: BrokerId, request: Request, version: int) -> R:
        """Asks a broker.

        Raises:
            OSError: no connection, or it broke.
            trio.TooSlowError: no answer in time.
            KafkaError: the broker refused the request.
            DecodeError: the answer is malformed.
        """
        response = await self._peers.request(broker_id, request, version)
        assert isinstance(response, response_class)
        return response


def _check(code: int, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise KafkaError(ErrorCode.of(code), message)


def _state_batch(batch: reading.StateBatch) -> StateBatch:
    try:
        state = RecordState(batch.delivery_state)
    except ValueError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"delivery state {batch.delivery_state} is unknown") from error
    return StateBatch(batch.first_offset, batch.last_offset, state, batch.delivery_count)
