"""AddOffsetsToTxn: table of the request and of the response."""

from moldau.protocol import field
from moldau.protocol.schema import Request, Response


class AddOffsetsToTxnRequest(Request, api_key=25, versions="0-4", flexible="3+"):
    """Announce that a transaction will commit offsets of a group (KIP-98)."""

    transactional_id: str = field.string("0+")
    producer_id: int = field.int64("0+")
    producer_epoch: int = field.int16("0+")
    group_id: str = field.string("0+")


class AddOffsetsToTxnResponse(Response, api_key=25, versions="0-4", flexible="3+"):
    """The outcome."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
