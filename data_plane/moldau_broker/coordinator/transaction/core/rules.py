"""Rules and answers of the transaction coordinator that depend on one transaction's state only. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_transactions import TopicData
from moldau.protocol.messages.describe_transactions import TransactionState as DescribedTransaction
from moldau.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from moldau.protocol.messages.list_transactions import TransactionState as ListedTransaction
from moldau_broker.coordinator.transaction.core.answers import init_error
from moldau_broker.coordinator.transaction.core.state import (
    EPOCH_MAX,
    EPOCH_PER_TRANSACTION,
    NO_PRODUCER_ID,
    Transaction,
    TransactionStatus,
    is_epoch_exhausted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.runtime.effects import Moment


def described(name: str, transaction: Transaction | None) -> DescribedTransaction:
    """Returns one transaction of a DescribeTransactions answer."""
    if not name or transaction is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name else ErrorCode.INVALID_REQUEST
        return DescribedTransaction(error_code=code, transactional_id=name)
    topics: dict[str, list[int]] = {}
    for topic, partition in transaction.partitions:
        topics.setdefault(topic, []).append(partition)
    return DescribedTransaction(
        transactional_id=name,
        transaction_state=transaction.status.label,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[TopicData(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
    )


def unknown_states(request: ListTransactionsRequest) -> list[str]:
    """Returns the state names of a filter that do not exist."""
    labels = {status.label for status in TransactionStatus}
    return [label for label in request.state_filters if label not in labels]


def listed(
    request: ListTransactionsRequest, transactions: Mapping[str, Transaction], moment: Moment
) -> ListTransactionsResponse:
    """Returns the transactions that pass the filters of a ListTransactions request."""
    found: list[ListedTransaction] = []
    states, producer_ids = frozenset(request.state_filters), frozenset(request.producer_id_filters)
    for name, transaction in sorted(transactions.items()):
        if states and transaction.status.label not in states:
            continue
        if producer_ids and transaction.producer_id not in producer_ids:
            continue
        if request.duration_filter >= 0 and (
            transaction.start_ms < 0 or moment.wall_ms - transaction.start_ms <= request.duration_filter
        ):
            continue
        found.append(
            ListedTransaction(
                transactional_id=name,
                producer_id=transaction.producer_id,
                transaction_state=transaction.status.label,
            )
        )
    return ListTransactionsResponse(unknown_state_filters=unknown_states(request), transaction_states=found)


def may_init(transaction: Transaction, request: InitProducerIdRequest) -> bool:
    """Returns whether the producer is the present one, or retries a request whose answer it missed (KIP-360)."""
    if request.producer_id == NO_PRODUCER_ID:
        return True
    identity = (request.producer_id, request.producer_epoch)
    if request.producer_id == transaction.producer_id:
        return request.producer_epoch in (transaction.producer_epoch, transaction.last_epoch)
    return transaction.previous_producer_id != NO_PRODUCER_ID and (
        identity[0] == transaction.previous_producer_id and is_epoch_exhausted(identity[1])
    )


def is_repeated_end(transaction: Transaction, request: EndTxnRequest) -> bool:
    """Returns whether a client with one epoch per transaction retries an EndTxn that is already decided.

    The decision has raised the epoch, or replaced an exhausted producer id, so the retry carries the former identity.
    """
    if not transaction.has_own_epoch or transaction.status in (TransactionStatus.ONGOING, TransactionStatus.EMPTY):
        return False
    if request.producer_id == transaction.producer_id:
        if transaction.producer_epoch == EPOCH_MAX and transaction.next_producer_id == NO_PRODUCER_ID:
            return False  # an abort took the last epoch to fence the producer, which needs a new producer id
        return request.producer_epoch == transaction.producer_epoch - 1
    return (
        not transaction.status.is_preparing
        and request.producer_id == transaction.previous_producer_id
        and transaction.producer_epoch == 0
        and is_epoch_exhausted(request.producer_epoch)
    )


def is_timed_out(transaction: Transaction, epoch: int) -> bool:
    """Returns whether the coordinator has aborted the transaction of an epoch, as far as it knows.

    It does so after the timeout. A coordinator that has loaded the log does not know who requested an abort. A client
    does not commit what it has aborted itself, so a commit then means a timeout, too.
    """
    is_aborted = transaction.status in (TransactionStatus.PREPARE_ABORT, TransactionStatus.COMPLETE_ABORT)
    return is_aborted and transaction.last_epoch != epoch


def prepared_end(
    transaction: Transaction, status: TransactionStatus, bumps: bool, fresh_producer_id: int | None, moment: Moment
) -> Transaction | None:
    """Returns the state with the decision of a client; None if that needs a fresh producer id and has none.

    The markers state the client's level: from level 2 on (``bumps``), a partition expects a higher epoch in them.
    """
    after = transaction.moved(status, moment.wall_ms, client_version=EPOCH_PER_TRANSACTION if bumps else 0)
    if transaction.status is not TransactionStatus.ONGOING:
        after = replace(after, start_ms=moment.wall_ms)  # an abort of nothing, long after the last transaction
    if not bumps:
        return after
    epoch = transaction.producer_epoch
    after = replace(
        after, producer_epoch=min(epoch + 1, EPOCH_MAX), last_epoch=epoch, previous_producer_id=NO_PRODUCER_ID
    )
    if not is_epoch_exhausted(epoch):
        return after
    if fresh_producer_id is None:
        return None
    return replace(after, next_producer_id=fresh_producer_id, next_producer_epoch=0)


def init_reply(after: Transaction) -> Callable[[ErrorCode], Response]:
    """Returns the function from the outcome of a write to the InitProducerId answer."""

    def respond(code: ErrorCode) -> Response:
        if code is not ErrorCode.NONE:
            return init_error(code)
        return InitProducerIdResponse(producer_id=after.producer_id, producer_epoch=after.producer_epoch)

    return respond


def end_reply(after: Transaction, bumps: bool) -> Callable[[ErrorCode], Response]:
    """Returns the function from the outcome of a write to the EndTxn answer."""

    def respond(code: ErrorCode) -> Response:
        if code is not ErrorCode.NONE or not bumps:
            return EndTxnResponse(error_code=code)
        if after.next_producer_id != NO_PRODUCER_ID:
            return EndTxnResponse(producer_id=after.next_producer_id, producer_epoch=after.next_producer_epoch)
        return EndTxnResponse(producer_id=after.producer_id, producer_epoch=after.producer_epoch)

    return respond
