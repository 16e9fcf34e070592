"""SaslHandshake: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response


class SaslHandshakeRequest(Request, api_key=17, versions="0-1"):
    """Choose a SASL mechanism (KIP-43)."""

    mechanism: str = field.string("0+")


class SaslHandshakeResponse(Response, api_key=17, versions="0-1"):
    """The mechanisms enabled on the listener."""

    error_code: int = field.int16("0+")
    mechanisms: Sequence[str] = field.string_array("0+")
