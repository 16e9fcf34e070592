"""DescribeTransactions: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class DescribeTransactionsRequest(Request, api_key=65, versions="0", flexible="0+"):
    """Describe transactions by transactional id (KIP-664)."""

    transactional_ids: Sequence[str] = field.string_array("0+")


class TopicData(Struct):
    """An element of ``topics`` in ``TransactionState``."""

    topic: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class TransactionState(Struct):
    """An element of ``transaction_states`` in ``DescribeTransactionsResponse``."""

    error_code: int = field.int16("0+")
    transactional_id: str = field.string("0+")
    transaction_state: str = field.string("0+")
    transaction_timeout_ms: int = field.int32("0+")
    transaction_start_time_ms: int = field.int64("0+")
    producer_id: int = field.int64("0+")
    producer_epoch: int = field.int16("0+")
    topics: Sequence[TopicData] = field.array(TopicData, "0+")


class DescribeTransactionsResponse(Response, api_key=65, versions="0", flexible="0+"):
    """State, timeout, producer and partitions of each."""

    throttle_time_ms: int = field.int32("0+")
    transaction_states: Sequence[TransactionState] = field.array(TransactionState, "0+")
