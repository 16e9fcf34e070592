"""RenewDelegationToken: table of the request and of the response."""

from moldau.protocol import field
from moldau.protocol.schema import Request, Response
from moldau.values import Buffer


class RenewDelegationTokenRequest(Request, api_key=39, versions="1-2", flexible="2+"):
    """Extend the life of a token (KIP-48)."""

    hmac: Buffer = field.binary("0+")
    renew_period_ms: int = field.int64("0+")


class RenewDelegationTokenResponse(Response, api_key=39, versions="1-2", flexible="2+"):
    """When the token expires now (Unix epoch)."""

    error_code: int = field.int16("0+")
    expiry_timestamp_ms: int = field.int64("0+")
    throttle_time_ms: int = field.int32("0+")
