"""Decides which transaction markers (WriteTxnMarkers) a broker accepts from a connection.

A marker ends a transaction in one partition, and from then on the partition refuses older epochs of the producer and of
its coordinator. A made-up marker could therefore block a producer or a coordinator for good, and any client can send
one while requests are not authenticated. These rules hold without authentication:

- Clients that have a listener of their own may not send markers at all, except to abort a transaction that is open in
  the partition, with exactly its epochs (``moldau txns abort``, KIP-664). Such a marker raises no epoch.
- An ordinary marker is accepted at once: a transaction of the producer is open in the partition, the marker carries its
  epoch or one that fences it, and the coordinator epoch is either the last one seen or within the leader epoch of
  the producer's partition of ``__transaction_state``.
- For any other marker the broker asks the coordinator whether it is ending this transaction with this outcome, epoch
  and partition. Only unusual ends need the question: a partition without data, or a new coordinator and a new leader
  at once. Markers with a producer id that was never allocated are refused without a question.

The refusal is COORDINATOR_NOT_AVAILABLE where newer metadata or a reachable coordinator may change it: the coordinator
sends its markers until they are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.transaction.core.state import EPOCH_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from moldau_broker.coordinator.runtime.effects import Marker
    from moldau_broker.log.values import ProducerDescription
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.coordination.transaction_verifier import TransactionVerifier
    from moldau_broker.server.coordination.transactions import TopicPartitionName
    from moldau_broker.server.replicas.replica_manager import ReplicaManager

QUESTIONS_MAX = 64
"""Bound of questions to coordinators for one request; the sender has to send further markers again."""
QUESTIONS_SECONDS = 5.0
_EPOCHS_RAISED_MAX = 2
"""By how much the end of a transaction raises the epoch of its producer at most: by two if another one takes over."""


class MarkerChecks:
    """Checks markers that arrive over a connection; markers of this broker's own coordinator need no check."""

    def __init__(self, metadata: MetadataCache, replicas: ReplicaManager, verifier: TransactionVerifier) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._verifier = verifier

    def judge(self, marker: Marker, key: TopicPartitionName, listener_name: str) -> ErrorCode | None:
        """Returns NONE if the marker may be written, a code if not, None if the coordinator must be asked."""
        producer = marker.producer
        partition = self._replicas.partitions.get(key)
        if partition is None or not partition.is_leader:
            return ErrorCode.NONE  # the append refuses it, because this broker does not lead the partition
        if producer.producer_id < 0 or producer.producer_epoch < 0:
            return ErrorCode.INVALID_REQUEST
        here = partition.log.producer_state.describe_producer(producer.producer_id)
        if here is not None and _is_plain_abort(marker, here):
            return ErrorCode.NONE
        if listener_name != self._metadata.inter_broker_listener:
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if producer.producer_id >= self._metadata.image.next_producer_id:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if here is None or here.current_transaction_start_offset < 0:
            return None
        highest = min(here.producer_epoch + _EPOCHS_RAISED_MAX, EPOCH_MAX)
        if not here.producer_epoch <= producer.producer_epoch <= highest:
            return None
        if marker.coordinator_epoch == here.coordinator_epoch:
            return ErrorCode.NONE
        leader_epoch = self._verifier.coordinator_epoch(producer.producer_id)
        if leader_epoch is None:
            return None
        is_possible = marker.coordinator_epoch <= leader_epoch
        return ErrorCode.NONE if is_possible else ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def ask(
        self, unsure: Mapping[Marker, Collection[TopicPartitionName]]
    ) -> dict[tuple[Marker, TopicPartitionName], ErrorCode]:
        """Asks the coordinators about undecided markers; markers without an answer in time are missing."""
        codes: dict[tuple[Marker, TopicPartitionName], ErrorCode] = {}

        async def ask_one(marker: Marker, keys: Collection[TopicPartitionName]) -> None:
            answers = await self._verifier.confirm_marker(marker, keys)
            codes.update({(marker, key): code for key, code in answers.items()})

        with trio.move_on_after(QUESTIONS_SECONDS):
            async with trio.open_nursery() as nursery:
                for marker, keys in list(unsure.items())[:QUESTIONS_MAX]:
                    nursery.start_soon(ask_one, marker, keys)
        return codes


def _is_plain_abort(marker: Marker, here: ProducerDescription) -> bool:
    """Returns whether the marker aborts exactly the open transaction and raises no epoch."""
    return (
        not marker.commit
        and here.current_transaction_start_offset >= 0
        and marker.producer.producer_epoch == here.producer_epoch
        and marker.coordinator_epoch <= max(0, here.coordinator_epoch)
    )
