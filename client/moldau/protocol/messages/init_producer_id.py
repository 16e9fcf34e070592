"""InitProducerId: table of the request and of the response."""

from moldau.protocol import field
from moldau.protocol.schema import Request, Response


class InitProducerIdRequest(Request, api_key=22, versions="0-6", flexible="2+"):
    """Obtain a producer id and epoch, and fence older producers of a transactional id (KIP-98, KIP-360)."""

    transactional_id: str | None = field.string("0+", nullable="0+")
    transaction_timeout_ms: int = field.int32("0+")
    producer_id: int = field.int64("3+", default=-1)
    producer_epoch: int = field.int16("3+", default=-1)
    enable_2pc: bool = field.boolean("6+")
    keep_prepared_txn: bool = field.boolean("6+")


class InitProducerIdResponse(Response, api_key=22, versions="0-6", flexible="2+"):
    """The producer id and epoch."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    producer_id: int = field.int64("0+", default=-1)
    producer_epoch: int = field.int16("0+")
    ongoing_txn_producer_id: int = field.int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = field.int16("6+", default=-1)
