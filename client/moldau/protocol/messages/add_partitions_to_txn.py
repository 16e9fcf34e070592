"""AddPartitionsToTxn: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class AddPartitionsToTxnTopic(Struct):
    """An element of ``topics`` in ``AddPartitionsToTxnTransaction``."""

    name: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class AddPartitionsToTxnTransaction(Struct):
    """An element of ``transactions`` in ``AddPartitionsToTxnRequest``."""

    transactional_id: str = field.string("4+")
    producer_id: int = field.int64("4+")
    producer_epoch: int = field.int16("4+")
    verify_only: bool = field.boolean("4+")
    topics: Sequence[AddPartitionsToTxnTopic] = field.array(AddPartitionsToTxnTopic, "4+")


class AddPartitionsToTxnRequest(Request, api_key=24, versions="0-5", flexible="3+"):
    """Announce the partitions a transaction will write to; brokers verify with it too (KIP-98, KIP-890)."""

    transactions: Sequence[AddPartitionsToTxnTransaction] = field.array(AddPartitionsToTxnTransaction, "4+")
    v3_and_below_transactional_id: str = field.string("0-3")
    v3_and_below_producer_id: int = field.int64("0-3")
    v3_and_below_producer_epoch: int = field.int16("0-3")
    v3_and_below_topics: Sequence[AddPartitionsToTxnTopic] = field.array(AddPartitionsToTxnTopic, "0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    """An element of ``results_by_partition`` in ``AddPartitionsToTxnTopicResult``."""

    partition_index: int = field.int32("0+")
    partition_error_code: int = field.int16("0+")


class AddPartitionsToTxnTopicResult(Struct):
    """An element of ``topic_results`` in ``AddPartitionsToTxnResult``."""

    name: str = field.string("0+")
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult] = field.array(
        AddPartitionsToTxnPartitionResult, "0+"
    )


class AddPartitionsToTxnResult(Struct):
    """An element of ``results_by_transaction`` in ``AddPartitionsToTxnResponse``."""

    transactional_id: str = field.string("4+")
    topic_results: Sequence[AddPartitionsToTxnTopicResult] = field.array(AddPartitionsToTxnTopicResult, "4+")


class AddPartitionsToTxnResponse(Response, api_key=24, versions="0-5", flexible="3+"):
    """One error code for each partition."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("4+")
    results_by_transaction: Sequence[AddPartitionsToTxnResult] = field.array(AddPartitionsToTxnResult, "4+")
    results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnTopicResult] = field.array(
        AddPartitionsToTxnTopicResult, "0-3"
    )
