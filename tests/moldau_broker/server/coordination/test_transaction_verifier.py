"""Goal: a coordinator confirms only the marker that ends its transaction now; any other could block a producer.

Method: every combination of a marker's outcome, epochs and partition with the coordinator's state of the transaction,
which is given by hand.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from moldau.protocol.messages.list_transactions import ListTransactionsResponse
from moldau.protocol.messages.list_transactions import TransactionState as Listed
from moldau_broker.coordinator.runtime.effects import Marker, TransactionalProducer
from moldau_broker.coordinator.transaction.core.state import TransactionStatus
from moldau_broker.server.cluster_metadata.topic_creation import TRANSACTIONS_TOPIC
from moldau_broker.server.coordination.transaction_verifier import TransactionVerifier

if TYPE_CHECKING:
    from moldau.protocol.schema import Request, Response

PRODUCER, EPOCH, LEADER_EPOCH = 7, 3, 5


class Coordinator:
    """Knows one transaction, of one partition."""

    def __init__(self, status: TransactionStatus, producer_id: int) -> None:
        self.status, self.producer_id = status, producer_id

    async def handle(self, request: Request, *, version: int) -> Response:
        await trio.lowlevel.checkpoint()
        if not isinstance(request, DescribeTransactionsRequest):
            return ListTransactionsResponse(transaction_states=[Listed(transactional_id="x", producer_id=PRODUCER)])
        state = TransactionState(
            transactional_id="x",
            transaction_state=self.status.label,
            producer_id=self.producer_id,
            producer_epoch=EPOCH,
            topics=[TopicData(topic="t", partitions=[0])],
        )
        return DescribeTransactionsResponse(transaction_states=[state])


def verifier_of(coordinator: Any) -> TransactionVerifier:
    partition = SimpleNamespace(leader=1, leader_epoch=LEADER_EPOCH)
    topics = {TRANSACTIONS_TOPIC: SimpleNamespace(partitions={0: partition})}
    metadata: Any = SimpleNamespace(image=SimpleNamespace(topics_by_name=topics))
    none: Any = None
    verifier = TransactionVerifier(1, metadata, none, none, retry_ms=1, retry_max_ms=1)  # type: ignore[arg-type]
    verifier.connect(coordinator)
    return verifier


def test_only_the_marker_of_the_present_end_is_confirmed() -> None:
    async def main() -> None:
        for status, producer_id, commit, epoch, coordinator_epoch, index in product(
            TransactionStatus,
            (PRODUCER, PRODUCER + 1),
            (False, True),
            (EPOCH - 1, EPOCH, EPOCH + 1, 0x7FFF),
            (0, LEADER_EPOCH, LEADER_EPOCH + 1),
            (0, 1),
        ):
            marker = Marker(
                producer=TransactionalProducer(producer_id=PRODUCER, producer_epoch=epoch),
                coordinator_epoch=coordinator_epoch,
                commit=commit,
                transaction_version=0,
            )
            ending = TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT
            expected = ErrorCode.NONE if index == 0 else ErrorCode.INVALID_TXN_STATE
            if coordinator_epoch > LEADER_EPOCH:
                expected = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if (status, producer_id, epoch) != (ending, PRODUCER, EPOCH):
                expected = ErrorCode.INVALID_TXN_STATE
            answer = await verifier_of(Coordinator(status, producer_id)).confirm_marker(marker, [("t", index)])
            assert answer == {("t", index): expected}, (status, producer_id, marker)

    trio.run(main)
