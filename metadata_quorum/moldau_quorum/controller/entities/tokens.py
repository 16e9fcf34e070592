"""Decisions about delegation tokens (KIP-48, KIP-373).

A client that authenticated without a token may create one, for itself or, with the right CreateTokens on the owner, for
another principal. Owner, creator and renewers may change its expiry, never beyond its greatest life.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from moldau.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
)
from moldau.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from moldau.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from moldau.runtime.config.declaration import LONG_MAX
from moldau_quorum.controller.context import SLICE_RECORDS, Context, RefusedError, Result
from moldau_quorum.metadata.delegation_tokens import (
    USER_TYPE,
    find_token,
    is_expired,
    may_ask_for_tokens,
    may_renew,
    token_hmac,
)
from moldau_quorum.metadata.records import METADATA_LEVEL_TOKENS, DelegationTokenRecord, RemoveDelegationTokenRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moldau.protocol.messages.create_delegation_token import CreatableRenewers
    from moldau.runtime.sasl.core.identity import Identity
    from moldau_quorum.metadata.image import MetadataImage
    from moldau_quorum.metadata.records import MetadataRecord

TOKENS_MAX: Final = 10_000
"""Tokens of a cluster: each description may look at all of them."""
TOKENS_PER_CREATOR_MAX: Final = TOKENS_MAX // 10
"""Tokens that one principal has created: else one client with a login could leave no token to others. A service that
creates one for each of its jobs can start a hundred jobs a day."""
RENEWERS_MAX: Final = 100
NAMES_BYTES_MAX: Final = 16 * 1024
"""Bytes of the names of a token's owner and renewers. All nodes keep all tokens in memory, where one character of four
bytes makes a name four times as long."""


def _allowed(image: MetadataImage, context: Context) -> tuple[bytes, Identity]:
    """Returns the cluster's secret and the identity of the sender.

    Raises:
        RefusedError: there are no tokens here, or not on the sender's connection.
    """
    requester = context.requester
    if requester is None or not may_ask_for_tokens(requester):
        raise RefusedError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "")
    secret = context.settings.delegation_token_secret
    if secret is None:
        raise RefusedError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "")
    if image.metadata_level < METADATA_LEVEL_TOKENS:
        raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, "")
    return secret, requester


def create_token(
    request: CreateDelegationTokenRequest, image: MetadataImage, context: Context
) -> Result[CreateDelegationTokenResponse]:
    """Creates a token; the right to create it for another owner was checked before."""
    settings, now_ms = context.settings, context.wall_ms
    try:
        secret, requester = _allowed(image, context)
        owner = requester.principal
        if request.owner_principal_name:
            _check_type(request.owner_principal_type or "")
            owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
        _check_names(owner, request.renewers)
        _check_number(image, requester.principal)
    except RefusedError as refusal:
        principal = "" if context.requester is None else context.requester.principal
        kind, _, name = principal.partition(":")
        return Result(
            response=CreateDelegationTokenResponse(
                error_code=refusal.code,
                principal_type=kind,
                principal_name=name,
                issue_timestamp_ms=-1,
                expiry_timestamp_ms=-1,
                max_timestamp_ms=-1,
            )
        )
    longest_ms = settings.delegation_token_max_lifetime_ms
    life_ms = longest_ms if request.max_lifetime_ms <= 0 else min(request.max_lifetime_ms, longest_ms)
    max_ms = min(now_ms + life_ms, LONG_MAX)  # the greatest life that can be configured ends after all times
    token_id = base64.urlsafe_b64encode(context.new_uuid().bytes).decode().rstrip("=")
    record = DelegationTokenRecord(
        token_id=token_id,
        owner=owner,
        requester=requester.principal,
        renewers=tuple(
            dict.fromkeys(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in request.renewers)
        ),
        issue_ms=now_ms,
        max_ms=max_ms,
        expiry_ms=min(max_ms, now_ms + settings.delegation_token_expiry_time_ms),
    )
    owner_type, _, owner_name = owner.partition(":")
    return Result(
        records=(record,),
        response=CreateDelegationTokenResponse(
            principal_type=owner_type,
            principal_name=owner_name,
            token_requester_principal_type=USER_TYPE,
            token_requester_principal_name=requester.name,
            issue_timestamp_ms=record.issue_ms,
            expiry_timestamp_ms=record.expiry_ms,
            max_timestamp_ms=record.max_ms,
            token_id=token_id,
            hmac=token_hmac(secret, token_id),
        ),
    )


def _check_names(owner: str, renewers: Sequence[CreatableRenewers]) -> None:
    if len(renewers) > RENEWERS_MAX:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "")
    for renewer in renewers:
        _check_type(renewer.principal_type)
    names = [owner, *(renewer.principal_name for renewer in renewers)]
    if sum(len(name.encode()) for name in names) > NAMES_BYTES_MAX:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "")


def _check_number(image: MetadataImage, creator: str) -> None:
    tokens = image.delegation_tokens
    if len(tokens) < TOKENS_PER_CREATOR_MAX:
        return
    own = sum(token.requester == creator for token in tokens.unordered_values())
    if len(tokens) >= TOKENS_MAX or own >= TOKENS_PER_CREATOR_MAX:
        raise RefusedError(ErrorCode.POLICY_VIOLATION, "")


def _check_type(kind: str) -> None:
    if kind != USER_TYPE:
        raise RefusedError(ErrorCode.INVALID_PRINCIPAL_TYPE, "")


def _own_token(image: MetadataImage, context: Context, wanted: bytes) -> DelegationTokenRecord:
    """Returns the token with an HMAC, whose expiry the sender may change.

    Raises:
        RefusedError: there is none, or the sender may not.
    """
    secret, requester = _allowed(image, context)
    token = find_token(image, secret, wanted)
    if token is None:
        raise RefusedError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "")
    if not may_renew(token, requester.principal):
        raise RefusedError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "")
    return token


def _with_expiry(token: DelegationTokenRecord, period_ms: int, now_ms: int) -> DelegationTokenRecord:
    if is_expired(token, now_ms):
        raise RefusedError(ErrorCode.DELEGATION_TOKEN_EXPIRED, "")
    expiry_ms = min(token.max_ms, now_ms + min(period_ms, token.max_ms))
    return DelegationTokenRecord(
        token_id=token.token_id,
        owner=token.owner,
        requester=token.requester,
        renewers=token.renewers,
        issue_ms=token.issue_ms,
        max_ms=token.max_ms,
        expiry_ms=expiry_ms,
    )


def renew_token(
    request: RenewDelegationTokenRequest, image: MetadataImage, context: Context
) -> Result[RenewDelegationTokenResponse]:
    """Extends a token's life by the wanted period, at most by the usual one, which 0 and negative periods mean."""
    try:
        token = _own_token(image, context, bytes(request.hmac))
        usual_ms, period_ms = context.settings.delegation_token_expiry_time_ms, request.renew_period_ms
        period_ms = min(period_ms, usual_ms) if period_ms > 0 else usual_ms
        record = _with_expiry(token, period_ms, context.wall_ms)
    except RefusedError as refusal:
        return Result(response=RenewDelegationTokenResponse(error_code=refusal.code, expiry_timestamp_ms=-1))
    return Result(records=(record,), response=RenewDelegationTokenResponse(expiry_timestamp_ms=record.expiry_ms))


def expire_token(
    request: ExpireDelegationTokenRequest, image: MetadataImage, context: Context
) -> Result[ExpireDelegationTokenResponse]:
    """Changes a token's expiry; a negative period removes the token at once."""
    now_ms = context.wall_ms
    try:
        token = _own_token(image, context, bytes(request.hmac))
        if request.expiry_time_period_ms < 0:
            return Result(
                records=(RemoveDelegationTokenRecord(token_id=token.token_id),),
                response=ExpireDelegationTokenResponse(expiry_timestamp_ms=now_ms),
            )
        record = _with_expiry(token, request.expiry_time_period_ms, now_ms)
    except RefusedError as refusal:
        return Result(response=ExpireDelegationTokenResponse(error_code=refusal.code, expiry_timestamp_ms=-1))
    return Result(records=(record,), response=ExpireDelegationTokenResponse(expiry_timestamp_ms=record.expiry_ms))


def wanted_tokens(
    request: DescribeDelegationTokenRequest, image: MetadataImage, secret: bytes | None, requester: Identity
) -> list[DelegationTokenRecord]:
    """Returns the tokens that a wanted principal owns, has created or may renew; all if the request names none.

    Raises:
        RefusedError: there are no tokens here, or not on the sender's connection.
    """
    if not may_ask_for_tokens(requester):
        raise RefusedError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "")
    if secret is None:
        raise RefusedError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "")
    found = [image.delegation_tokens[token_id] for token_id in sorted(image.delegation_tokens)]
    if request.owners is None:
        return found
    wanted = {f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners}
    return [token for token in found if not wanted.isdisjoint((token.owner, token.requester, *token.renewers))]


def described_token(token: DelegationTokenRecord, secret: bytes) -> DescribedDelegationToken:
    """Describes a token, with its HMAC."""
    owner_type, _, owner = token.owner.partition(":")
    requester_type, _, requester = token.requester.partition(":")
    return DescribedDelegationToken(
        principal_type=owner_type,
        principal_name=owner,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester,
        issue_timestamp=token.issue_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac(secret, token.token_id),
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
            for kind, _, name in (renewer.partition(":") for renewer in token.renewers)
        ],
    )


def remove_expired(image: MetadataImage, wall_ms: int) -> Iterator[list[MetadataRecord]]:
    """Yields the records that remove expired tokens, in slices."""
    records: list[MetadataRecord] = []
    for token_id in sorted(image.delegation_tokens):
        if is_expired(image.delegation_tokens[token_id], wall_ms):
            records.append(RemoveDelegationTokenRecord(token_id=token_id))
            if len(records) == SLICE_RECORDS:
                yield records
                records = []
    yield records
