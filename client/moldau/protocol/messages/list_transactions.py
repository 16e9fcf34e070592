"""ListTransactions: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class ListTransactionsRequest(Request, api_key=66, versions="0-2", flexible="0+"):
    """List the transactions that a broker coordinates (KIP-664, KIP-994 duration)."""

    state_filters: Sequence[str] = field.string_array("0+")
    producer_id_filters: Sequence[int] = field.int64_array("0+")
    duration_filter: int = field.int64("1+", default=-1)
    transactional_id_pattern: str | None = field.string("2+", nullable="2+", default=None)


class TransactionState(Struct):
    """An element of ``transaction_states`` in ``ListTransactionsResponse``."""

    transactional_id: str = field.string("0+")
    producer_id: int = field.int64("0+")
    transaction_state: str = field.string("0+")


class ListTransactionsResponse(Response, api_key=66, versions="0-2", flexible="0+"):
    """Transactional ids with state."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    unknown_state_filters: Sequence[str] = field.string_array("0+")
    transaction_states: Sequence[TransactionState] = field.array(TransactionState, "0+")
