"""Envelope: table of the request and of the response."""

from moldau.protocol import field
from moldau.protocol.schema import Request, Response
from moldau.values import Buffer


class EnvelopeRequest(Request, api_key=58, versions="0", flexible="0+"):
    """Forward a client request from a broker to the controller under the name of the client (KIP-590)."""

    request_data: Buffer = field.binary("0+")
    request_principal: Buffer | None = field.binary("0+", nullable="0+")
    client_host_address: Buffer = field.binary("0+")


class EnvelopeResponse(Response, api_key=58, versions="0", flexible="0+"):
    """The response to the forwarded request."""

    response_data: Buffer | None = field.binary("0+", nullable="0+", default=None)
    error_code: int = field.int16("0+")
