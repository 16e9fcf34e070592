"""Writes transaction markers to partitions on this and other brokers.

The transaction coordinator decides the outcome. This module appends a marker to a partition that this broker leads,
like a produce with acks=all, and sends the others in WriteTxnMarkers to their leaders.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.protocol.answers import judge
from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.heartbeat import HeartbeatResponse
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.coordinator.transaction.core.state import EPOCH_PER_TRANSACTION
from moldau_broker.log.errors import LogStorageError
from moldau_quorum.controller.cluster.features import TRANSACTION_VERSION
from moldau_quorum.metadata.internal_topics import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.protocol.schema import Request, Response
    from moldau.runtime.ports.environment import Environment
    from moldau.values import BrokerId, LeaderEpoch, Offset
    from moldau_broker.coordinator.group.coordinator import GroupCoordinator
    from moldau_broker.coordinator.runtime.effects import Marker
    from moldau_broker.log.producers.producer_state import ProducerStateManager
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager

TopicPartitionName = tuple[str, int]
Begun = ErrorCode | Callable[[], Awaitable[ErrorCode]]
"""The error of a refused marker, or a function that waits for its commit."""
K = TypeVar("K")
CONNECT_TIMEOUT_MS = 2_000.0
REQUEST_TIMEOUT_MS = 10_000.0
MARKERS_TIMEOUT_MS = 0.75 * REQUEST_TIMEOUT_MS
"""How long a leader takes at most to answer WriteTxnMarkers.

It is clearly less than the coordinator waits for, so that the coordinator learns which markers were written.
"""
MARKERS_PER_TURN = 50
"""Markers that are appended before other tasks run."""
WRITE_MARKERS_VERSION = 1
WRITE_MARKERS_WITH_LEVEL_VERSION = 2
"""The first version of WriteTxnMarkers that states the client's level of ``transaction.version`` (KIP-1228)."""


class Peers:
    """Connections to other brokers, one for each broker and API, opened on first use.

    Answers keep the order of the requests, and markers wait for their commit: other requests must not wait for that.
    """

    def __init__(self, environment: Environment, broker_id: BrokerId, metadata: MetadataCache) -> None:
        self._environment = environment
        self._client_id = f"broker-{broker_id}-transactions"
        self._metadata = metadata
        self._connections: dict[tuple[int, int], RpcConnection] = {}
        self._opening: dict[tuple[int, int], trio.Lock] = {}
        self._failures: dict[tuple[int, int], int] = {}
        """Attempts to open a connection that have failed, or that a fence of the broker has overtaken."""

    async def request(self, broker_id: BrokerId, message: Request, version: int) -> Response:
        """Sends a request to a broker, and sends it again over a new connection if an old one breaks.

        The peer closes idle connections, and requests sent at that moment are lost. All requests here are repeatable.

        Raises:
            OSError: no connection, or it broke.
            trio.TooSlowError: no connection or no answer in time.
            KafkaError: the broker refused the request.
            DecodeError: the broker's answer is malformed.
        """
        connection, is_new = await self._connection(broker_id, message.__api_key__)
        try:
            return await connection.request(message, version, timeout_ms=REQUEST_TIMEOUT_MS)
        except OSError:
            if is_new or connection.is_open or self._is_fenced(broker_id):
                raise
        connection, _ = await self._connection(broker_id, message.__api_key__)
        return await connection.request(message, version, timeout_ms=REQUEST_TIMEOUT_MS)

    async def _connection(self, broker_id: BrokerId, api_key: int) -> tuple[RpcConnection, bool]:
        """Returns the connection for an API, and whether it is new.

        Requests that wait for an attempt which fails then fail with it: one attempt each, in turn, would take minutes
        while the host does not answer.
        """
        key = (broker_id, api_key)
        failures = self._failures.get(key, 0)
        async with self._opening.setdefault(key, trio.Lock()):
            connection = self._connections.get(key)
            if connection is not None and connection.is_open:
                return connection, False
            if self._failures.get(key, 0) != failures:
                raise ConnectionError(f"broker {broker_id} could not be reached a moment ago")
            address = self._metadata.inter_broker_address(broker_id)
            if address is None:
                raise ConnectionError(f"broker {broker_id} is not registered")
            try:
                with trio.fail_after(CONNECT_TIMEOUT_MS / 1000):
                    connection = await RpcConnection.open(self._environment, *address, self._client_id, negotiate=False)
            except (OSError, trio.TooSlowError, KafkaError, DecodeError):
                self._failures[key] = self._failures.get(key, 0) + 1
                raise
            if self._failures.get(key, 0) != failures:
                connection.close()
                raise ConnectionError(f"broker {broker_id} is fenced")
            self._connections[key] = connection
            return connection, True

    def broker_fenced(self, broker_id: BrokerId) -> None:
        """Ends the requests to a broker that is fenced: it leads and coordinates nothing, and may never answer."""
        for key in [key for key in self._opening if key[0] == broker_id]:
            self._failures[key] = self._failures.get(key, 0) + 1
            connection = self._connections.pop(key, None)
            if connection is not None:
                connection.fail(f"broker {broker_id} is fenced")

    def _is_fenced(self, broker_id: BrokerId) -> bool:
        broker = self._metadata.image.brokers.get(broker_id)
        return broker is None or broker.fenced

    def close(self) -> None:
        """Closes all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections = {}


class TransactionMarkers:
    """Writes markers; see ``coordinator.runtime.ports.MarkerWriter``."""

    def __init__(self, broker_id: BrokerId, metadata: MetadataCache, replicas: ReplicaManager, peers: Peers) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._peers = peers
        self._groups: GroupCoordinator | None = None
        self._logger = EventLogger("moldau.broker.markers", node=broker_id)

    def connect(self, groups: GroupCoordinator) -> None:
        """Sets the coordinator that writes markers to ``__consumer_offsets``; called once."""
        self._groups = groups

    async def write_markers(
        self, marker: Marker, partitions: tuple[TopicPartitionName, ...]
    ) -> Mapping[TopicPartitionName, ErrorCode]:
        """Tries once to write the marker to each partition at its present leader; returns the error codes."""
        codes: dict[TopicPartitionName, ErrorCode] = {}
        by_leader: dict[BrokerId, list[TopicPartitionName]] = {}
        for key in partitions:
            image = self._metadata.partition(*key)
            if image is None:
                codes[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif image.leader < 0:
                codes[key] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                by_leader.setdefault(image.leader, []).append(key)
        async with trio.open_nursery() as nursery:
            for leader, keys in by_leader.items():
                write = self._write_here if leader == self._broker_id else self._write_there
                nursery.start_soon(write, leader, marker, keys, codes)
        return codes

    async def _write_here(
        self,
        leader: BrokerId,
        marker: Marker,
        keys: Sequence[TopicPartitionName],
        codes: dict[TopicPartitionName, ErrorCode],
    ) -> None:
        pending: dict[TopicPartitionName, Begun] = {}
        for key in keys:
            if len(pending) % MARKERS_PER_TURN == MARKERS_PER_TURN - 1:
                await trio.lowlevel.checkpoint()
            pending[key] = self.begin(marker, key)
        codes.update(await finish(pending))

    async def _write_there(
        self,
        leader: BrokerId,
        marker: Marker,
        keys: Sequence[TopicPartitionName],
        codes: dict[TopicPartitionName, ErrorCode],
    ) -> None:
        topics: dict[str, list[int]] = {}
        for topic, index in keys:
            topics.setdefault(topic, []).append(index)
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=marker.producer.producer_id,
                    producer_epoch=marker.producer.producer_epoch,
                    transaction_result=marker.commit,
                    topics=[
                        WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()
                    ],
                    coordinator_epoch=marker.coordinator_epoch,
                    transaction_version=marker.transaction_version,
                )
            ]
        )
        try:
            response = await self._peers.request(leader, request, self._version())
        except (OSError, trio.TooSlowError, KafkaError, DecodeError) as error:
            self._logger.info("markers-not-sent", leader=leader, partitions=len(keys), error=error)
            codes.update(dict.fromkeys(keys, ErrorCode.NETWORK_EXCEPTION))
            return
        assert isinstance(response, WriteTxnMarkersResponse)
        codes.update(_outcomes(marker, keys, response))

    def _version(self) -> int:
        """Returns the version of WriteTxnMarkers that every broker of the cluster serves."""
        level = self._metadata.image.features.get(TRANSACTION_VERSION, 0)
        return WRITE_MARKERS_WITH_LEVEL_VERSION if level >= EPOCH_PER_TRANSACTION else WRITE_MARKERS_VERSION

    def begin(self, marker: Marker, key: TopicPartitionName) -> Begun:
        """Appends a marker to a partition here; returns an error, or a function that waits for the commit."""
        topic, index = key
        partition = self._replicas.partitions.get(key)
        if partition is not None and is_late(marker, partition.log.producer_state):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if topic == OFFSETS_TOPIC:
            assert self._groups is not None
            if partition is not None:
                partition.marker_count += 1
            completion = self._groups.complete_transaction(
                index, marker, lambda code: HeartbeatResponse(error_code=code)
            )

            async def wait_for_group() -> ErrorCode:
                response = await completion.wait()
                assert isinstance(response, HeartbeatResponse)
                return ErrorCode(response.error_code)

            return wait_for_group
        if partition is None or not partition.is_leader:
            known = self._metadata.partition(*key) is not None
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        leader_epoch = partition.replica.state.leader_epoch
        try:
            end_offset = self._replicas.append_marker(
                partition,
                producer_id=marker.producer.producer_id,
                producer_epoch=marker.producer.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                commit=marker.commit,
            )
        except LogStorageError as error:
            self._replicas.directory_failed(error)
            return error.code
        except KafkaError as error:
            return error.code
        return lambda: self._wait_committed(partition, leader_epoch, end_offset)

    async def _wait_committed(self, partition: Partition, leader_epoch: LeaderEpoch, end_offset: Offset) -> ErrorCode:
        try:
            await self._replicas.waits.wait_committed(partition, leader_epoch, end_offset)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE


def is_late(marker: Marker, producers: ProducerStateManager) -> bool:
    """Returns whether a marker arrives after the next transaction of its producer has begun in a partition.

    With an epoch per transaction the marker carries a higher epoch than the records that it ends. If records of its own
    epoch are open, an earlier copy of the marker has ended its transaction. Without that rule the copy would end the
    next one (KIP-1228).
    """
    producer = marker.producer
    return marker.transaction_version >= EPOCH_PER_TRANSACTION and producers.has_ongoing_transaction(
        producer.producer_id, producer.producer_epoch
    )


async def finish(pending: Mapping[K, Begun], timeout_ms: float = MARKERS_TIMEOUT_MS) -> dict[K, ErrorCode]:
    """Waits for commits, for all of them together up to ``timeout_ms``; markers that time out may be written again."""
    codes: dict[K, ErrorCode] = {}
    waits: dict[K, Callable[[], Awaitable[ErrorCode]]] = {}
    for key, outcome in pending.items():
        if isinstance(outcome, ErrorCode):
            codes[key] = outcome
        else:
            waits[key] = outcome

    async def wait(key: K) -> None:
        codes[key] = await waits[key]()

    with trio.move_on_after(timeout_ms / 1000):
        if len(waits) == 1:  # no task for the usual transaction
            await wait(*waits)
        else:
            async with trio.open_nursery() as nursery:  # as many tasks as a request may name partitions
                for key in waits:
                    nursery.start_soon(wait, key)
    return {key: codes.get(key, ErrorCode.REQUEST_TIMED_OUT) for key in pending}


def _outcomes(
    marker: Marker, keys: Sequence[TopicPartitionName], response: WriteTxnMarkersResponse
) -> dict[TopicPartitionName, ErrorCode]:
    """Returns the code of each partition to which a marker was sent; one that the answer leaves out has failed."""
    answers = (
        (
            (topic.name, part.partition_index),
            KafkaError(ErrorCode.of(part.error_code)) if part.error_code else None,
            None,
        )
        for result in response.markers
        if result.producer_id == marker.producer.producer_id
        for topic in result.topics
        for part in topic.partitions
    )
    judged = judge("partition", keys, answers)
    return {key: ErrorCode.NONE if key in judged.done else judged.failures[key].code for key in keys}
