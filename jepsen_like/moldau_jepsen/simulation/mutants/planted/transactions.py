"""Bugs in transactions with an epoch of their own (``transaction.version`` 2, KIP-890)."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from moldau.producer.core.transaction_core import TransactionManager
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.end_txn import EndTxnResponse
from moldau_broker.coordinator.transaction.core import transaction_core
from moldau_broker.coordinator.transaction.core.rules import end_reply, is_repeated_end, prepared_end
from moldau_broker.coordinator.transaction.core.state import NO_EPOCH, NO_PRODUCER_ID
from moldau_broker.coordinator.transaction.core.transaction_core import TransactionCore
from moldau_broker.server.coordination import transactions
from moldau_broker.server.coordination.transaction_verifier import TransactionVerifier
from moldau_broker.server.coordination.transactions import TransactionMarkers
from moldau_broker.server.replicas.replica_manager import ReplicaManager

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.producer.core.transaction_values import Call
    from moldau.protocol.messages.end_txn import EndTxnRequest
    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.runtime.effects import Marker, Moment
    from moldau_broker.coordinator.transaction.core.state import Transaction, TransactionStatus
    from moldau_broker.server.coordination.transactions import Begun, TopicPartitionName
    from moldau_jepsen.planted_bug import Patch


def epoch_kept() -> list[Patch]:
    """A transaction ends with the epoch with which it began."""

    def kept(
        transaction: Transaction, status: TransactionStatus, bumps: bool, fresh_producer_id: int | None, moment: Moment
    ) -> Transaction | None:
        after = prepared_end(transaction, status, bumps, fresh_producer_id, moment)
        if after is None:
            return None
        return dataclasses.replace(
            after,
            producer_epoch=transaction.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_EPOCH,
        )

    return [(transaction_core, "prepared_end", kept)]


def repeated_end_raises_again() -> list[Patch]:
    """An EndTxn that is sent again after the end of its transaction raises the epoch once more.

    Clients miss every third answer, so that they send many again; without the bug that is harmless.
    """
    original, answered = TransactionCore._end, TransactionManager.answered
    answers = itertools.count()

    def miss(self: TransactionManager, call: Call, response: Response, now_ms: float) -> None:
        if isinstance(response, EndTxnResponse) and not response.error_code and next(answers) % 3 == 0:
            self.unanswered(call, now_ms)
        else:
            answered(self, call, response, now_ms)

    def end(
        self: TransactionCore,
        request_id: int,
        request: EndTxnRequest,
        version: int,
        fresh_producer_id: int | None,
        moment: Moment,
    ) -> ErrorCode:
        name = request.transactional_id
        transaction = self.lifecycle.transactions.get(name)
        if (
            transaction is None
            or version < transaction_core._EPOCH_BUMP_FROM
            or not is_repeated_end(transaction, request)
            or transaction.status.is_preparing
            or name in self.lifecycle.busy
        ):
            return original(self, request_id, request, version, fresh_producer_id, moment)
        after = dataclasses.replace(transaction, producer_epoch=transaction.producer_epoch + 1)
        self.lifecycle.write(name, after, moment, request_id, end_reply(after, bumps=True))
        return ErrorCode.NONE

    return [(TransactionCore, "_end", end), (TransactionManager, "answered", miss)]


def partition_not_added() -> list[Patch]:
    """A leader appends the first batch of a transaction without asking its coordinator."""

    async def add(
        self: TransactionVerifier,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartitionName],
    ) -> dict[TopicPartitionName, ErrorCode]:
        return dict.fromkeys(partitions, ErrorCode.NONE)

    return [(TransactionVerifier, "add", add)]


def late_marker_accepted() -> list[Patch]:
    """A copy of a marker that arrives when the producer's next transaction is open ends that one."""
    begin, flush = TransactionMarkers.begin, ReplicaManager.flush
    copies: dict[tuple[int, TopicPartitionName], tuple[TransactionMarkers, Marker]] = {}

    def begin_and_keep(self: TransactionMarkers, marker: Marker, key: TopicPartitionName) -> Begun:
        copies[marker.producer.producer_id, key] = (self, marker)
        return begin(self, marker, key)

    def flush_and_repeat(self: ReplicaManager) -> None:
        flush(self)
        for (producer_id, key), (markers, marker) in list(copies.items()):
            partition = self.partitions.get(key)
            if partition is None or not partition.is_leader or markers._replicas is not self:
                continue
            producer_epoch = marker.producer.producer_epoch
            if partition.log.producer_state.has_ongoing_transaction(producer_id, producer_epoch):
                del copies[producer_id, key]
                begin(markers, marker, key)

    return [
        (TransactionMarkers, "begin", begin_and_keep),
        (ReplicaManager, "flush", flush_and_repeat),
        (transactions, "is_late", lambda marker, producers: False),
    ]
