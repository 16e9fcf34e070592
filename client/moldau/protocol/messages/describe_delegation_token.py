"""DescribeDelegationToken: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct
from moldau.values import Buffer


class DescribeDelegationTokenOwner(Struct):
    """An element of ``owners`` in ``DescribeDelegationTokenRequest``."""

    principal_type: str = field.string("0+")
    principal_name: str = field.string("0+")


class DescribeDelegationTokenRequest(Request, api_key=41, versions="1-3", flexible="2+"):
    """Describe the tokens of some owners, or of all (KIP-48)."""

    owners: Sequence[DescribeDelegationTokenOwner] | None = field.array(
        DescribeDelegationTokenOwner, "0+", nullable="0+"
    )


class DescribedDelegationTokenRenewer(Struct):
    """An element of ``renewers`` in ``DescribedDelegationToken``."""

    principal_type: str = field.string("0+")
    principal_name: str = field.string("0+")


class DescribedDelegationToken(Struct):
    """An element of ``tokens`` in ``DescribeDelegationTokenResponse``. Times are of the Unix epoch, in milliseconds."""

    principal_type: str = field.string("0+")
    principal_name: str = field.string("0+")
    token_requester_principal_type: str = field.string("3+")
    token_requester_principal_name: str = field.string("3+")
    issue_timestamp: int = field.int64("0+")
    expiry_timestamp: int = field.int64("0+")
    max_timestamp: int = field.int64("0+")
    token_id: str = field.string("0+")
    hmac: Buffer = field.binary("0+")
    renewers: Sequence[DescribedDelegationTokenRenewer] = field.array(DescribedDelegationTokenRenewer, "0+")


class DescribeDelegationTokenResponse(Response, api_key=41, versions="1-3", flexible="2+"):
    """The tokens that the caller may see."""

    error_code: int = field.int16("0+")
    tokens: Sequence[DescribedDelegationToken] = field.array(DescribedDelegationToken, "0+")
    throttle_time_ms: int = field.int32("0+")
