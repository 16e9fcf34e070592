"""Decisions about SCRAM credentials (KIP-554). The controller derives keys and never stores the salted password."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from moldau.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from moldau_quorum.controller.context import Context, RefusedError, Result
from moldau_quorum.metadata.records import MetadataRecord, RemoveUserScramCredentialRecord, UserScramCredentialRecord

if TYPE_CHECKING:
    from moldau_quorum.metadata.image import MetadataImage

SHA_256, SHA_512 = 1, 2
DIGESTS: Final = {SHA_256: "sha256", SHA_512: "sha512"}
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384


def alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, image: MetadataImage, context: Context
) -> Result[AlterUserScramCredentialsResponse]:
    """Adds, replaces and removes credentials; each user succeeds or fails as a whole."""
    failures: dict[str, RefusedError] = {}
    records: dict[str, list[MetadataRecord]] = {}
    seen: dict[tuple[str, int], None] = {}
    items: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    for item in items:
        try:
            if (item.name, item.mechanism) in seen:
                raise RefusedError(ErrorCode.DUPLICATE_RESOURCE, "user and mechanism appear twice in the request")
            seen[item.name, item.mechanism] = None
            _check(item.name, item.mechanism)
            if isinstance(item, ScramCredentialUpsertion):
                record: MetadataRecord = credential_record(item)
            else:
                if (item.name, item.mechanism) not in image.scram_credentials:
                    raise RefusedError(ErrorCode.RESOURCE_NOT_FOUND, "there is no such credential to delete")
                record = RemoveUserScramCredentialRecord(user=item.name, mechanism=item.mechanism)
            records.setdefault(item.name, []).append(record)
        except RefusedError as refusal:
            failures.setdefault(item.name, refusal)
    results: list[AlterUserScramCredentialsResult] = []
    decided: list[MetadataRecord] = []
    for user in dict.fromkeys(name for name, _ in seen):
        failure = failures.get(user)
        if failure is None:
            decided.extend(records[user])
            results.append(AlterUserScramCredentialsResult(user=user, error_message=None))
        else:
            results.append(
                AlterUserScramCredentialsResult(user=user, error_code=failure.code, error_message=failure.message)
            )
    return Result(records=tuple(decided), response=AlterUserScramCredentialsResponse(results=results))


def _check(user: str, mechanism: int) -> None:
    if not user:
        raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "a user name cannot be empty")
    if mechanism not in DIGESTS:
        raise RefusedError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"mechanism {mechanism} is neither 1 (SHA-256) nor 2 (SHA-512)"
        )


def credential_record(item: ScramCredentialUpsertion) -> UserScramCredentialRecord:
    """Returns the record that stores a credential.

    Raises:
        RefusedError: its iterations, salt or password are not allowed.
    """
    if not ITERATIONS_MIN <= item.iterations <= ITERATIONS_MAX:
        raise RefusedError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"{item.iterations} iterations are outside {ITERATIONS_MIN}..{ITERATIONS_MAX}",
        )
    if not item.salt or not item.salted_password:
        raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "salt and salted password cannot be empty")
    digest = DIGESTS[item.mechanism]
    salted = bytes(item.salted_password)
    client_key = hmac.digest(salted, b"Client Key", digest)  # RFC 5802 section 3
    return UserScramCredentialRecord(
        user=item.name,
        mechanism=item.mechanism,
        salt=bytes(item.salt),
        stored_key=hashlib.new(digest, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", digest),
        iterations=item.iterations,
    )


def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, image: MetadataImage, context: Context
) -> Result[DescribeUserScramCredentialsResponse]:
    """Returns mechanisms and iteration counts of all users or of the named ones."""
    return Result(response=described_credentials(request, image))


def described_credentials(
    request: DescribeUserScramCredentialsRequest, image: MetadataImage
) -> DescribeUserScramCredentialsResponse:
    """Returns the answer of a node with this image; brokers answer from their own."""
    by_user: dict[str, list[CredentialInfo]] = {}
    for user, mechanism in sorted(image.scram_credentials):
        credential = image.scram_credentials[user, mechanism]
        by_user.setdefault(user, []).append(CredentialInfo(mechanism=mechanism, iterations=credential.iterations))
    names = [entry.name for entry in request.users] if request.users else list(by_user)
    counts = Counter(names)
    results: list[DescribeUserScramCredentialsResult] = []
    for user in counts:
        code, message = ErrorCode.NONE, None
        if counts[user] > 1:
            code, message = ErrorCode.DUPLICATE_RESOURCE, "the user appears twice in the request"
        elif user not in by_user:
            code, message = ErrorCode.RESOURCE_NOT_FOUND, f"user {user!r} has no SCRAM credential"
        infos = by_user.get(user, []) if code == ErrorCode.NONE else []
        results.append(
            DescribeUserScramCredentialsResult(
                user=user, error_code=code, error_message=message, credential_infos=infos
            )
        )
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)
