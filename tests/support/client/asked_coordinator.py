"""A producer's transaction core, and a coordinator that answers its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.cluster.group_metadata import GroupMetadata
from moldau.cluster.metadata import TopicPartition
from moldau.producer.core.transaction_core import TransactionManager
from moldau.producer.core.transaction_values import State
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from moldau.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from moldau.protocol.schema import Request, Response

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = GroupMetadata(group_id="g", generation_id=3, member_id="m")


def make() -> TransactionManager:
    return TransactionManager(transactional_id="id", timeout_ms=60_000)


def answer_to(request: Request, code: ErrorCode = ErrorCode.NONE, only: int | None = None) -> Response:
    """A response that gives ``code`` (to partition ``only``, NONE or NOT_ATTEMPTED to others)."""
    if isinstance(request, InitProducerIdRequest):
        return InitProducerIdResponse(
            error_code=code, producer_id=7 if code is ErrorCode.NONE else -1, producer_epoch=request.producer_epoch + 1
        )
    if isinstance(request, AddPartitionsToTxnRequest):
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=number,
                            partition_error_code=code if only in (None, number) else ErrorCode.OPERATION_NOT_ATTEMPTED,
                        )
                        for number in topic.partitions
                    ],
                )
                for topic in request.v3_and_below_topics
            ]
        )
    if isinstance(request, AddOffsetsToTxnRequest):
        return AddOffsetsToTxnResponse(error_code=code)
    if isinstance(request, TxnOffsetCommitRequest):
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
    assert isinstance(request, EndTxnRequest)
    return EndTxnResponse(error_code=code)


def serve(manager: TransactionManager, *, has_records: bool = False, until: type[Request] | None = None) -> Any:
    """Answers every call with success; stops before a request of the class ``until`` and returns that call."""
    asked: list[Request] = []
    for _ in range(100):
        call = manager.next_call(has_records=has_records)
        if call is None:
            assert until is None, f"{until.__name__} never came"
            return asked
        if call.request is None:
            manager.found(call, 1)
        elif until is not None and isinstance(call.request, until):
            return call
        else:
            asked.append(call.request)
            manager.answered(call, answer_to(call.request), 0)
    raise AssertionError("the calls do not end")


def ready() -> TransactionManager:
    manager = make()
    manager.begin_init()
    serve(manager)
    assert manager.state is State.READY
    assert manager.outcome is not None
    manager.outcome.is_delivered = True
    return manager
