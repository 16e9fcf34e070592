"""Checks of transactional batches: the transaction must be open in the partition, or its coordinator confirms it.

The first batch of a transaction in a partition is verified (KIP-890), so that a batch which arrives after the end of
its transaction opens no transaction that nothing would end.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.server.coordination.transaction_verifier import UNANSWERED
from moldau_broker.server.data_path.fetch_query import TOPIC_IDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.hot import ProduceRequestView
    from moldau_broker.server.coordination.transaction_verifier import TransactionVerifier
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager

_ABORTABLE_FROM = 11
"""The first version whose clients know TRANSACTION_ABORTABLE."""
_ADDED_BY_BROKER = 12
"""The first version whose clients have an epoch per transaction and send no AddPartitionsToTxn (KIP-890)."""
TRANSACTIONAL_FLAG = 0x10
ATTRIBUTES_LOW_BYTE = 22  # of a batch
_PRODUCER = struct.Struct(">qh").unpack_from  # producer id and epoch
_PRODUCER_AT, _PRODUCER_END = 43, 53
_SEQUENCE = struct.Struct(">i").unpack_from
_SEQUENCE_END = 57

Answered = tuple[ErrorCode, tuple[int, int]]
"""The coordinator's answer for a partition, and ``Partition.ends_seen`` from before the question."""
Verified = Mapping[tuple[bytes, int], Answered]


class TransactionChecks:
    """Finds the batches of a Produce that open a transaction in a partition, and asks the coordinator about them."""

    __slots__ = ("_replicas", "_verifier", "_verifies")

    def __init__(self, replicas: ReplicaManager, verifier: TransactionVerifier, verifies: Callable[[], bool]) -> None:
        """``verifies``: whether the coordinator must confirm the first batch of a transaction in a partition."""
        self._replicas = replicas
        self._verifier = verifier
        self._verifies = verifies

    def unverified(self, request: ProduceRequestView, version: int) -> list[tuple[bytes, int, Partition, int, int]]:
        """Returns the batches that would open a transaction in a partition.

        Each is a tuple of topic, index, partition, producer id and producer epoch.
        """
        if version < _ADDED_BY_BROKER and not self._verifies():
            return []
        lookup = self._replicas.by_raw_id if version >= TOPIC_IDS else self._replicas.by_raw_name
        found: list[tuple[bytes, int, Partition, int, int]] = []
        for topic, partitions in request.topics:
            for index, records in partitions:
                partition = lookup.get((topic, index))
                if partition is None or len(records) < _PRODUCER_END or not partition.is_leader:
                    continue
                if partition.is_internal:
                    continue  # refused without a question to the coordinator
                if records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_FLAG:
                    producer_id, producer_epoch = _PRODUCER(records, _PRODUCER_AT)
                    if not partition.log.producer_state.has_ongoing_transaction(producer_id, producer_epoch):
                        found.append((topic, index, partition, producer_id, producer_epoch))
        return found

    async def verify(self, request: ProduceRequestView, version: int) -> Verified:
        """Asks the coordinator about all batches of a request that would open a transaction in a partition.

        For clients with an epoch per transaction, it adds the partitions to the transaction. The batches must come from
        one producer, because the answer is about one: nothing would end the transaction that another one opens.
        """
        unverified = self.unverified(request, version)
        if not unverified:
            return {}
        assert request.transactional_id is not None
        ends_seen = {(topic, index): partition.ends_seen for topic, index, partition, _, _ in unverified}
        _, _, _, producer_id, producer_epoch = unverified[0]
        if any(each[3:] != (producer_id, producer_epoch) for each in unverified):
            return {key: (ErrorCode.INVALID_PRODUCER_ID_MAPPING, seen) for key, seen in ends_seen.items()}
        ask = self._verifier.add if version >= _ADDED_BY_BROKER else self._verifier.verify
        codes = await ask(
            request.transactional_id,
            producer_id,
            producer_epoch,
            [(partition.key.topic, partition.key.partition) for _, _, partition, _, _ in unverified],
        )
        return {
            (topic, index): (codes[partition.key.topic, partition.key.partition], ends_seen[topic, index])
            for topic, index, partition, _, _ in unverified
        }

    def error(
        self, partition: Partition, records: memoryview, verified: Verified | None, key: tuple[bytes, int], version: int
    ) -> ErrorCode:
        """Checks that a batch's transaction is open in this partition, or that its coordinator included it."""
        if not partition.is_leader:
            return ErrorCode.NONE  # ``stage`` refuses it, and the client looks for the leader
        if len(records) < _SEQUENCE_END:
            return ErrorCode.CORRUPT_MESSAGE
        adds = version >= _ADDED_BY_BROKER
        if not (adds or self._verifies()) or partition.log.producer_state.has_ongoing_transaction(
            *_PRODUCER(records, _PRODUCER_AT)
        ):
            return ErrorCode.NONE
        if verified is None:
            return ErrorCode.INVALID_TXN_STATE  # the request names no transactional id
        answer = verified.get(key)
        if answer is None:
            return ErrorCode.NOT_ENOUGH_REPLICAS  # this leader was elected, or a transaction ended, after the question
        error, ends_seen = answer
        if error is not ErrorCode.NONE:
            return _answer_of(error, version)
        if adds:
            (first_sequence,) = _SEQUENCE(records, _PRODUCER_END)
            if first_sequence and not _has_batches(partition, *_PRODUCER(records, _PRODUCER_AT)):
                # Sequences begin with each epoch: an earlier batch of this transaction was refused, or is lost.
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            return ErrorCode.NONE
        if ends_seen != partition.ends_seen:
            return ErrorCode.NOT_ENOUGH_REPLICAS  # a transaction ended meanwhile, perhaps this one: the client retries
        return ErrorCode.NONE


def _has_batches(partition: Partition, producer_id: int, producer_epoch: int) -> bool:
    """Returns whether the log has batches of the producer's epoch, so that it knows the next sequence number.

    They are of a transaction whose end did not raise the epoch: the client learned of the newer protocol after it.
    """
    entry = partition.log.producer_state.get(producer_id)
    return entry is not None and entry.epoch == producer_epoch and bool(entry.batches)


def _answer_of(code: ErrorCode, version: int) -> ErrorCode:
    """Returns the code with which clients of a version react to the coordinator's answer as Kafka intends."""
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version >= _ADDED_BY_BROKER:
        return code
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NOT_ENOUGH_REPLICAS if code in UNANSWERED else code
