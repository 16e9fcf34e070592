"""DescribeUserScramCredentials: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class UserName(Struct):
    """An element of ``users`` in ``DescribeUserScramCredentialsRequest``."""

    name: str = field.string("0+")


class DescribeUserScramCredentialsRequest(Request, api_key=50, versions="0", flexible="0+"):
    """Ask which SCRAM credentials users have (KIP-554)."""

    users: Sequence[UserName] | None = field.array(UserName, "0+", nullable="0+")


class CredentialInfo(Struct):
    """An element of ``credential_infos`` in ``DescribeUserScramCredentialsResult``."""

    mechanism: int = field.int8("0+")
    iterations: int = field.int32("0+")


class DescribeUserScramCredentialsResult(Struct):
    """An element of ``results`` in ``DescribeUserScramCredentialsResponse``."""

    user: str = field.string("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    credential_infos: Sequence[CredentialInfo] = field.array(CredentialInfo, "0+")


class DescribeUserScramCredentialsResponse(Response, api_key=50, versions="0", flexible="0+"):
    """Mechanisms and iteration counts, never secrets."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    results: Sequence[DescribeUserScramCredentialsResult] = field.array(DescribeUserScramCredentialsResult, "0+")
