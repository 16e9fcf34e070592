"""Builds responses of the transaction coordinator, with codes that old clients understand. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.refusals import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.schema import Request, Response

BATCHED_FROM = 4
"""The first version of AddPartitionsToTxn with many transactions."""


def fenced(request: Request, version: int) -> ErrorCode:
    """Returns the code for a producer with an old epoch; old clients do not know PRODUCER_FENCED (KIP-588)."""
    first = 4 if isinstance(request, InitProducerIdRequest) else 2
    return ErrorCode.PRODUCER_FENCED if version >= first else ErrorCode.INVALID_PRODUCER_EPOCH


def init_error(code: ErrorCode) -> InitProducerIdResponse:
    """Returns an InitProducerId answer with an error."""
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def partition_codes(
    transaction: AddPartitionsToTxnTransaction, code_of: Callable[[str, int], ErrorCode]
) -> AddPartitionsToTxnResponse:
    """Returns an answer with one code for each partition of a transaction, in the form of version 4."""
    result = AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=partition, partition_error_code=code_of(topic.name, partition)
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in transaction.topics
        ],
    )
    return AddPartitionsToTxnResponse(results_by_transaction=[result])


def transactions_of(request: AddPartitionsToTxnRequest, version: int) -> list[AddPartitionsToTxnTransaction]:
    """Returns the transactions of a request, in the form of version 4."""
    if version >= BATCHED_FROM:
        return list(request.transactions)
    return [
        AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
    ]


def reshaped(response: AddPartitionsToTxnResponse, version: int) -> AddPartitionsToTxnResponse:
    """Converts an answer of version 4 into the form of the version."""
    if version >= BATCHED_FROM:
        return response
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=response.results_by_transaction[0].topic_results)


def transaction_refusal(request: Request, code: ErrorCode) -> Response:
    """Returns the answer to a request that the coordinator cannot accept at all.

    AddPartitionsToTxn is answered with a code for each partition, because the answer is one part of a combined one.
    """
    if isinstance(request, AddPartitionsToTxnRequest):
        return partition_codes(request.transactions[0], lambda _topic, _partition: code)
    return refusal(request, code)
