"""AlterUserScramCredentials: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct
from moldau.values import Buffer


class ScramCredentialDeletion(Struct):
    """An element of ``deletions`` in ``AlterUserScramCredentialsRequest``."""

    name: str = field.string("0+")
    mechanism: int = field.int8("0+")


class ScramCredentialUpsertion(Struct):
    """An element of ``upsertions`` in ``AlterUserScramCredentialsRequest``."""

    name: str = field.string("0+")
    mechanism: int = field.int8("0+")
    iterations: int = field.int32("0+")
    salt: Buffer = field.binary("0+")
    salted_password: Buffer = field.binary("0+")


class AlterUserScramCredentialsRequest(Request, api_key=51, versions="0", flexible="0+"):
    """Create, change or delete SCRAM credentials (KIP-554)."""

    deletions: Sequence[ScramCredentialDeletion] = field.array(ScramCredentialDeletion, "0+")
    upsertions: Sequence[ScramCredentialUpsertion] = field.array(ScramCredentialUpsertion, "0+")


class AlterUserScramCredentialsResult(Struct):
    """An element of ``results`` in ``AlterUserScramCredentialsResponse``."""

    user: str = field.string("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")


class AlterUserScramCredentialsResponse(Response, api_key=51, versions="0", flexible="0+"):
    """One outcome for each user."""

    throttle_time_ms: int = field.int32("0+")
    results: Sequence[AlterUserScramCredentialsResult] = field.array(AlterUserScramCredentialsResult, "0+")
