"""The ports through which a coordinator uses its broker.

The broker implements these ports over its replicated partitions and its metadata image; tests implement them in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from moldau.protocol.errors import ErrorCode
    from moldau.protocol.schema import Response
    from moldau.values import Buffer, LeaderEpoch, Offset
    from moldau_broker.coordinator.runtime.effects import Marker
    from moldau_broker.coordinator.share.core.requests import ShareStateRequest


class InternalLog(Protocol):
    """The partitions of one internal topic that this broker leads: that of groups, transactions or share-partitions.

    Every call names the leader epoch under which the coordinator was elected. A call for a partition that this broker
    does not lead in exactly that epoch raises ``KafkaError(NOT_LEADER_OR_FOLLOWER)``. ``append`` also raises it when
    the newest metadata name another leader and the replica has not applied them yet: no coordinator sees a topic in a
    record before it sees the topic in the metadata.
    """

    def append(self, partition: int, leader_epoch: LeaderEpoch, batch: Buffer) -> Offset:
        """Appends one record batch (offsets are assigned here) as a write with acks=all; does not wait for replicas.

        Batches of one partition are in the log in the order of the calls. Returns the log end offset after the batch:
        the batch is committed when the high watermark reaches it. The batch is borrowed for the length of the call.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER; NOT_ENOUGH_REPLICAS (fewer in-sync replicas than
            ``min.insync.replicas``); MESSAGE_TOO_LARGE; KAFKA_STORAGE_ERROR. Nothing was appended then.
        """
        ...

    async def wait_committed(self, partition: int, leader_epoch: LeaderEpoch, end_offset: Offset) -> None:
        """Waits until the high watermark is at least ``end_offset``. It has no deadline of its own; callers cancel it.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER when leadership of that epoch ends first.
        """
        ...

    def delete_records(self, partition: int, leader_epoch: LeaderEpoch, end_offset: Offset) -> None:
        """Moves the log start offset up to ``end_offset``, which is at most the high watermark. Followers do so too.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER; KAFKA_STORAGE_ERROR.
        """
        ...

    def log_start_offset(self, partition: int, leader_epoch: LeaderEpoch) -> Offset:
        """Returns the first offset of the log.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER.
        """
        ...

    def log_end_offset(self, partition: int, leader_epoch: LeaderEpoch) -> Offset:
        """Returns the offset after the last record of the leader's log.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER.
        """
        ...

    async def read(self, partition: int, leader_epoch: LeaderEpoch, offset: Offset, max_bytes: int) -> Buffer:
        """Reads whole record batches below the high watermark, from the one that holds ``offset`` on.

        Returns at most ``max_bytes`` but at least one batch if there is one; empty at the high watermark. The result
        belongs to the caller.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER; OFFSET_OUT_OF_RANGE (below the log start); KAFKA_STORAGE_ERROR.
        """
        ...


class TopicNames(Protocol):
    """Topics as the metadata image knows them at the moment of the call."""

    def topic_name(self, topic_id: UUID) -> str | None:
        """Returns the name of a topic id, or None if there is no such topic."""
        ...

    def topic_id(self, name: str) -> UUID | None:
        """Returns the id of a topic, or None if there is no such topic."""
        ...

    def has_partition(self, name: str, partition: int) -> bool:
        """Returns whether the partition exists."""
        ...


class MarkerWriter(Protocol):
    """Writes transaction markers into partitions of any leader."""

    async def write_markers(
        self, marker: Marker, partitions: tuple[tuple[str, int], ...]
    ) -> Mapping[tuple[str, int], ErrorCode]:
        """Makes one attempt for each partition at its present leader.

        The attempt is a WriteTxnMarkers request, or a direct call if this broker leads the partition.

        Partitions of ``__consumer_offsets`` led here go through ``GroupCoordinator.complete_transaction``. Ends by a
        deadline of its own and does not raise for a broker that cannot be reached: its partitions get
        NETWORK_EXCEPTION or LEADER_NOT_AVAILABLE. A partition that is missing in the result counts as not attempted.
        """
        ...


class ShareStates(Protocol):
    """The share coordinators of the cluster."""

    async def ask(self, request: ShareStateRequest) -> Response:
        """Returns the answer for each share-partition of the request, at the present coordinators.

        Ends by a deadline of its own and does not raise: what could not be asked gets an error code.
        """
        ...


class ProducerIdSource(Protocol):
    """Allocates producer ids that are unique in the cluster (KIP-730)."""

    async def take(self) -> int:
        """Returns the next id.

        Raises:
            KafkaError: retriable; the controller allocates none at the moment.
        """
        ...
