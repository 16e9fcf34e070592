"""EndTxn: table of the request and of the response."""

from moldau.protocol import field
from moldau.protocol.schema import Request, Response


class EndTxnRequest(Request, api_key=26, versions="0-5", flexible="3+"):
    """Commit or abort a transaction (KIP-98, KIP-890 epoch bump)."""

    transactional_id: str = field.string("0+")
    producer_id: int = field.int64("0+")
    producer_epoch: int = field.int16("0+")
    committed: bool = field.boolean("0+")


class EndTxnResponse(Response, api_key=26, versions="0-5", flexible="3+"):
    """The outcome and, from version 5, the epoch to go on with."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    producer_id: int = field.int64("5+", default=-1)
    producer_epoch: int = field.int16("5+", default=-1)
