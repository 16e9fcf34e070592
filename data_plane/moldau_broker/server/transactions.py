"""Transactions between brokers: markers into partitions wherever they are led, and the question whether a producer's
transaction includes a partition.

The transaction coordinator decides; this module carries. A marker for a partition that is led here is appended like a
produce with acks=all; others travel in WriteTxnMarkers to their leaders. Before the first batch of a transaction is
appended to a partition, its leader asks the coordinator whether the transaction includes it (KIP-890): a batch that
comes late, after its transaction has ended, would otherwise open one that nobody ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.protocol.messages.heartbeat import HeartbeatResponse
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from moldau.runtime.log import EventLogger
from moldau.runtime.rpc import RpcConnection
from moldau_broker.coordinator.partitioning import partition_for
from moldau_broker.log.errors import LogStorageError
from moldau_broker.server.topic_creation import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from moldau.protocol.schema import Request, Response
    from moldau.runtime.environment import Environment
    from moldau_broker.coordinator.effects import Marker
    from moldau_broker.coordinator.shell import GroupCoordinator
    from moldau_broker.coordinator.transaction_shell import TransactionCoordinator
    from moldau_broker.server.metadata_cache import MetadataCache
    from moldau_broker.server.partition import Partition
    from moldau_broker.server.replica_manager import ReplicaManager

TopicPartitionName = tuple[str, int]
CONNECT_TIMEOUT_MS = 2_000.0
REQUEST_TIMEOUT_MS = 10_000.0
ADD_PARTITIONS_VERSION = 4
WRITE_MARKERS_VERSION = 1


class Peers:
    """A connection to each other broker for each API, opened when it is needed.

    Answers come in the order of the requests, and a marker waits for its commit: questions must not wait behind it.
    """

    def __init__(self, environment: Environment, broker_id: int, metadata: MetadataCache) -> None:
        self._environment = environment
        self._client_id = f"broker-{broker_id}-transactions"
        self._metadata = metadata
        self._connections: dict[tuple[int, int], RpcConnection] = {}
        self._opening: dict[tuple[int, int], trio.Lock] = {}

    async def request(self, broker_id: int, message: Request, version: int) -> Response:
        """Asks a broker. Raises ``OSError``, ``trio.TooSlowError`` or ``KafkaError`` when it cannot be asked."""
        key = (broker_id, message.__api_key__)
        async with self._opening.setdefault(key, trio.Lock()):
            connection = self._connections.get(key)
            if connection is None or not connection.is_open:
                address = self._metadata.inter_broker_address(broker_id)
                if address is None:
                    raise ConnectionError(f"broker {broker_id} is not registered")
                with trio.fail_after(CONNECT_TIMEOUT_MS / 1000):
                    connection = await RpcConnection.open(self._environment, *address, self._client_id, negotiate=False)
                self._connections[key] = connection
        return await connection.request(message, version, timeout_ms=REQUEST_TIMEOUT_MS)

    def close(self) -> None:
        """Drops all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections = {}


class TransactionMarkers:
    """Writes markers; see ``coordinator.ports.MarkerWriter``."""

    def __init__(self, broker_id: int, metadata: MetadataCache, replicas: ReplicaManager, peers: Peers) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._peers = peers
        self._groups: GroupCoordinator | None = None
        self._logger = EventLogger("moldau.broker.markers", node=broker_id)

    def connect(self, groups: GroupCoordinator) -> None:
        """Sets who writes markers into ``__consumer_offsets``; once."""
        self._groups = groups

    async def write_markers(
        self, marker: Marker, partitions: tuple[TopicPartitionName, ...]
    ) -> Mapping[TopicPartitionName, ErrorCode]:
        """One attempt for each partition at its present leader."""
        codes: dict[TopicPartitionName, ErrorCode] = {}
        by_leader: dict[int, list[TopicPartitionName]] = {}
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
        leader: int,
        marker: Marker,
        keys: Sequence[TopicPartitionName],
        codes: dict[TopicPartitionName, ErrorCode],
    ) -> None:
        pending = {key: self.begin(marker, key) for key in keys}
        codes.update(await finish(pending))

    async def _write_there(
        self,
        leader: int,
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
                )
            ]
        )
        try:
            response = await self._peers.request(leader, request, WRITE_MARKERS_VERSION)
        except (OSError, trio.TooSlowError, KafkaError, DecodeError) as error:
            self._logger.info("markers-not-sent", leader=leader, partitions=len(keys), error=error)
            codes.update(dict.fromkeys(keys, ErrorCode.NETWORK_EXCEPTION))
            return
        assert isinstance(response, WriteTxnMarkersResponse)
        for result in response.markers:
            for topic_result in result.topics:
                for partition in topic_result.partitions:
                    codes[topic_result.name, partition.partition_index] = ErrorCode(partition.error_code)

    def begin(self, marker: Marker, key: TopicPartitionName) -> ErrorCode | Callable[[], Awaitable[ErrorCode]]:
        """Appends a marker to a partition that is led here; returns an error, or what waits for the commit."""
        topic, index = key
        if topic == OFFSETS_TOPIC:
            assert self._groups is not None
            led = self._replicas.partitions.get(key)
            if led is not None:
                led.marker_count += 1
            completion = self._groups.complete_transaction(
                index, marker, lambda code: HeartbeatResponse(error_code=code)
            )

            async def wait_for_group() -> ErrorCode:
                response = await completion.wait()
                assert isinstance(response, HeartbeatResponse)
                return ErrorCode(response.error_code)

            return wait_for_group
        partition = self._replicas.partitions.get(key)
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

    async def _wait_committed(self, partition: Partition, leader_epoch: int, end_offset: int) -> ErrorCode:
        try:
            await self._replicas.wait_committed(partition, leader_epoch, end_offset)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE


async def finish(
    pending: Mapping[TopicPartitionName, ErrorCode | Callable[[], Awaitable[ErrorCode]]],
) -> dict[TopicPartitionName, ErrorCode]:
    """Waits for the commits of markers, for a while; what is not committed by then may be written again."""
    codes: dict[TopicPartitionName, ErrorCode] = {}
    with trio.move_on_after(REQUEST_TIMEOUT_MS / 1000):
        for key, outcome in pending.items():
            codes[key] = outcome if isinstance(outcome, ErrorCode) else await outcome()
    for key in pending:
        codes.setdefault(key, ErrorCode.REQUEST_TIMED_OUT)
    return codes


class TransactionVerifier:
    """Asks the coordinator of a transactional id whether its transaction includes partitions."""

    def __init__(self, broker_id: int, metadata: MetadataCache, peers: Peers) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._peers = peers
        self._coordinator: TransactionCoordinator | None = None

    def connect(self, coordinator: TransactionCoordinator) -> None:
        """Sets the coordinator of the transactional ids that are coordinated here; once."""
        self._coordinator = coordinator

    async def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartitionName]
    ) -> dict[TopicPartitionName, ErrorCode]:
        """NONE for each partition that the transaction includes.

        NOT_ENOUGH_REPLICAS (try again) where nobody could say.
        """
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    verify_only=True,
                    topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
                )
            ]
        )
        codes = dict.fromkeys(partitions, ErrorCode.NOT_ENOUGH_REPLICAS)
        try:
            response = await self._ask(transactional_id, request)
        except (OSError, trio.TooSlowError, KafkaError, DecodeError):
            return codes
        for transaction in response.results_by_transaction:
            for topic_result in transaction.topic_results:
                for partition in topic_result.results_by_partition:
                    code = ErrorCode(partition.partition_error_code)
                    codes[topic_result.name, partition.partition_index] = _ANSWERS.get(code, code)
        return codes

    async def _ask(self, transactional_id: str, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        topic = self._metadata.image.topics_by_name.get(TRANSACTIONS_TOPIC)
        count = 0 if topic is None else len(topic.partitions)
        if topic is None or not count:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partition = topic.partitions.get(partition_for(transactional_id, count))
        assert partition is not None, "partitions are numbered without gaps"
        if partition.leader == self._broker_id:
            assert self._coordinator is not None
            with trio.fail_after(REQUEST_TIMEOUT_MS / 1000):
                response = await self._coordinator.handle(request, version=ADD_PARTITIONS_VERSION)
        else:
            response = await self._peers.request(partition.leader, request, ADD_PARTITIONS_VERSION)
        assert isinstance(response, AddPartitionsToTxnResponse)
        return response


_ANSWERS: Mapping[ErrorCode, ErrorCode] = {
    # What concerns the coordinator, not the producer: a producer knows how to wait for replicas.
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.NOT_ENOUGH_REPLICAS,
    # The coordinator has the last word on who is fenced; to an append it is an old epoch (KIP-588).
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}
