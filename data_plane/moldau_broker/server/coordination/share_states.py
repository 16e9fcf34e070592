"""Sends requests for durable share-group state to the share coordinators, on this and other brokers (KIP-932).

A request names share-partitions of one group, whose coordinators may be several brokers: it is divided by coordinator,
and the answers are joined. Requests that a coordinator refuses with a retriable error are repeated until a deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.coordinator.runtime.partitioning import partition_for
from moldau_broker.coordinator.share.core.requests import (
    KeyAnswer,
    asks_of,
    codes_of,
    joined,
    narrowed,
    request_of,
    response_of,
)
from moldau_broker.log.values import LATEST_TIMESTAMP
from moldau_quorum.metadata.internal_topics import SHARE_STATE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from moldau.protocol.schema import Response
    from moldau.values import BrokerId
    from moldau_broker.coordinator.share.coordinator import ShareCoordinator
    from moldau_broker.coordinator.share.core.requests import Ask, ShareStateRequest
    from moldau_broker.coordinator.share.core.state import SharePartitionKey
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.coordination.transactions import Peers
    from moldau_broker.server.replicas.replica_manager import ReplicaManager

DEADLINE_SECONDS = 10.0
_BACKOFF_FIRST_SECONDS = 0.05
_BACKOFF_MAX_SECONDS = 1.0
_LIST_OFFSETS_VERSION = 7
_PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


class ShareStateClient:
    """The share coordinators of the cluster, as the group coordinator and leaders of share-partitions use them."""

    def __init__(
        self,
        broker_id: BrokerId,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        peers: Peers,
        local: ShareCoordinator,
    ) -> None:
        """Asks ``local`` for what this broker coordinates."""
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._peers = peers
        self._local = local
        self._ensure_topic: Callable[[], Awaitable[object]] | None = None
        self._logger = EventLogger("moldau.broker.shares", node=broker_id)

    def connect(self, ensure_topic: Callable[[], Awaitable[object]]) -> None:
        """Sets the function that creates ``__share_group_state`` on first use; called once."""
        self._ensure_topic = ensure_topic

    async def ask(self, request: ShareStateRequest) -> Response:
        """Returns the answer for each share-partition; it comes by a deadline, and no error is raised.

        A request is repeated only where its coordinator has refused it, or where the connection failed: all requests
        may be repeated without harm.
        """
        kind = type(request)
        left = asks_of(request)
        answered: list[Response] = []
        backoff = _BACKOFF_FIRST_SECONDS
        with trio.move_on_after(DEADLINE_SECONDS):
            while True:
                refused = dict.fromkeys(left, KeyAnswer(code=ErrorCode.REQUEST_TIMED_OUT))
                # It cannot be created while too few brokers are there.
                if SHARE_STATE_TOPIC not in self._metadata.image.topics_by_name and self._ensure_topic is not None:
                    await self._ensure_topic()
                codes = await self._attempt(kind, request.group_id, left, answered)
                refused = {key: KeyAnswer(code=code) for key, code in codes.items()}
                left = {key: left[key] for key in refused}
                if not left:
                    break
                await trio.sleep(backoff)
                backoff = min(2 * backoff, _BACKOFF_MAX_SECONDS)
        done = {key for each in answered for key in codes_of(request.group_id, each)}
        refused = {key: answer for key, answer in refused.items() if key not in done}
        if refused:
            answered.append(response_of(kind, refused))
        return joined(kind, answered)

    async def _attempt(
        self,
        kind: type[ShareStateRequest],
        group_id: str,
        asks: Mapping[SharePartitionKey, Ask],
        answered: list[Response],
    ) -> dict[SharePartitionKey, ErrorCode]:
        """Asks each coordinator once; returns what has to be asked again, with the reason."""
        again: dict[SharePartitionKey, ErrorCode] = {}
        by_broker: dict[BrokerId, dict[SharePartitionKey, Ask]] = {}
        for key, ask in asks.items():
            leader = self._coordinator(key)
            if leader is None:
                again[key] = ErrorCode.COORDINATOR_NOT_AVAILABLE
            else:
                by_broker.setdefault(leader, {})[key] = ask

        async def ask_one(broker_id: BrokerId, part: dict[SharePartitionKey, Ask]) -> None:
            response = await self._send(broker_id, request_of(kind, group_id, part))
            if response is None:
                again.update(dict.fromkeys(part, ErrorCode.NETWORK_EXCEPTION))
                return
            codes = codes_of(group_id, response)
            again.update({key: code for key, code in codes.items() if code in _PASSING})
            answered.append(narrowed(kind, response, group_id, lambda key: codes[key] not in _PASSING))

        async with trio.open_nursery() as nursery:
            for broker_id, part in by_broker.items():
                nursery.start_soon(ask_one, broker_id, part)
        return again

    def _coordinator(self, key: SharePartitionKey) -> BrokerId | None:
        """Returns the broker that coordinates a share-partition; None if there is none at the moment."""
        topic = self._metadata.image.topics_by_name.get(SHARE_STATE_TOPIC)
        if topic is None or not len(topic.partitions):
            return None
        partition = topic.partitions.get(partition_for(key.coordinator_key, len(topic.partitions)))
        return partition.leader if partition is not None and partition.leader >= 0 else None

    async def _send(self, broker_id: BrokerId, request: ShareStateRequest) -> Response | None:
        if broker_id == self._broker_id:
            return await self._local.handle(request)
        try:
            return await self._peers.request(broker_id, request, request.__versions__.last)
        except (OSError, trio.TooSlowError, KafkaError, DecodeError) as error:
            self._logger.info("share-state-not-asked", coordinator=broker_id, error=error)
            return None

    # Ends of logs

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Returns the high watermarks of partitions, as their leaders know them; leaves out those it cannot learn."""
        found: dict[tuple[str, int], int] = {}
        by_leader: dict[BrokerId, list[tuple[str, int]]] = {}
        for key in partitions:
            image = self._metadata.partition(*key)
            if image is not None and image.leader >= 0:
                by_leader.setdefault(image.leader, []).append(key)

        async def ask_one(leader: BrokerId, keys: Sequence[tuple[str, int]]) -> None:
            if leader == self._broker_id:
                for key in keys:
                    local = self._replicas.partitions.get(key)
                    if local is not None and local.is_leader:
                        found[key] = local.replica.high_watermark
                return
            found.update(await self._ask_ends(leader, keys))

        with trio.move_on_after(DEADLINE_SECONDS):
            async with trio.open_nursery() as nursery:
                for leader, keys in by_leader.items():
                    nursery.start_soon(ask_one, leader, keys)
        return found

    async def _ask_ends(self, leader: BrokerId, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for topic, number in keys:
            wanted = ListOffsetsPartition(partition_index=number, timestamp=LATEST_TIMESTAMP)
            topics.setdefault(topic, []).append(wanted)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=wanted) for name, wanted in topics.items()]
        )
        try:
            response = await self._peers.request(leader, request, _LIST_OFFSETS_VERSION)
        except (OSError, trio.TooSlowError, KafkaError, DecodeError) as error:
            self._logger.info("end-offsets-not-asked", leader=leader, error=error)
            return {}
        assert isinstance(response, ListOffsetsResponse)
        return {
            (topic.name, part.partition_index): part.offset
            for topic in response.topics
            for part in topic.partitions
            if part.error_code == ErrorCode.NONE
        }
