"""AllocateProducerIds: table of the request and of the response."""

from moldau.protocol import field
from moldau.protocol.schema import Request, Response


class AllocateProducerIdsRequest(Request, api_key=67, versions="0", flexible="0+"):
    """A broker asks the controller for a block of producer ids (KIP-730)."""

    broker_id: int = field.int32("0+")
    broker_epoch: int = field.int64("0+", default=-1)


class AllocateProducerIdsResponse(Response, api_key=67, versions="0", flexible="0+"):
    """The first id and the length of the block."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    producer_id_start: int = field.int64("0+")
    producer_id_len: int = field.int32("0+")
