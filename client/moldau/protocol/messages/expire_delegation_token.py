"""ExpireDelegationToken: table of the request and of the response."""

from moldau.protocol import field
from moldau.protocol.schema import Request, Response
from moldau.values import Buffer


class ExpireDelegationTokenRequest(Request, api_key=40, versions="1-2", flexible="2+"):
    """Change when a token expires; a negative period removes it at once (KIP-48)."""

    hmac: Buffer = field.binary("0+")
    expiry_time_period_ms: int = field.int64("0+")


class ExpireDelegationTokenResponse(Response, api_key=40, versions="1-2", flexible="2+"):
    """When the token expires now (Unix epoch)."""

    error_code: int = field.int16("0+")
    expiry_timestamp_ms: int = field.int64("0+")
    throttle_time_ms: int = field.int32("0+")
