"""SaslAuthenticate: table of the request and of the response."""

from moldau.protocol import field
from moldau.protocol.schema import Request, Response
from moldau.values import Buffer


class SaslAuthenticateRequest(Request, api_key=36, versions="0-2", flexible="2+"):
    """Carry one step of a SASL exchange (KIP-152)."""

    auth_bytes: Buffer = field.binary("0+")


class SaslAuthenticateResponse(Response, api_key=36, versions="0-2", flexible="2+"):
    """The answer of the mechanism and the lifetime of the session (KIP-368)."""

    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    auth_bytes: Buffer = field.binary("0+")
    session_lifetime_ms: int = field.int64("1+")
