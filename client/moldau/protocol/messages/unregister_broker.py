"""UnregisterBroker: table of the request and of the response."""

from moldau.protocol import field
from moldau.protocol.schema import Request, Response


class UnregisterBrokerRequest(Request, api_key=64, versions="0", flexible="0+"):
    """Remove the registration of a broker (KIP-631)."""

    broker_id: int = field.int32("0+")


class UnregisterBrokerResponse(Response, api_key=64, versions="0", flexible="0+"):
    """The outcome."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
