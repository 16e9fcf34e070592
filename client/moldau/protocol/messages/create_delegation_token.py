"""CreateDelegationToken: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct
from moldau.values import Buffer


class CreatableRenewers(Struct):
    """An element of ``renewers`` in ``CreateDelegationTokenRequest``."""

    principal_type: str = field.string("0+")
    principal_name: str = field.string("0+")


class CreateDelegationTokenRequest(Request, api_key=38, versions="1-3", flexible="2+"):
    """Create a token with which others may log in as its owner (KIP-48, KIP-373)."""

    owner_principal_type: str | None = field.string("3+", nullable="3+")
    owner_principal_name: str | None = field.string("3+", nullable="3+")
    renewers: Sequence[CreatableRenewers] = field.array(CreatableRenewers, "0+")
    max_lifetime_ms: int = field.int64("0+")


class CreateDelegationTokenResponse(Response, api_key=38, versions="1-3", flexible="2+"):
    """The token; ``hmac`` is its secret. Times are of the Unix epoch."""

    error_code: int = field.int16("0+")
    principal_type: str = field.string("0+")
    principal_name: str = field.string("0+")
    token_requester_principal_type: str = field.string("3+")
    token_requester_principal_name: str = field.string("3+")
    issue_timestamp_ms: int = field.int64("0+")
    expiry_timestamp_ms: int = field.int64("0+")
    max_timestamp_ms: int = field.int64("0+")
    token_id: str = field.string("0+")
    hmac: Buffer = field.binary("0+")
    throttle_time_ms: int = field.int32("0+")
