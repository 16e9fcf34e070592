"""Delegation tokens (KIP-48)."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.admin.failures import raise_error
from moldau.cluster import arguments
from moldau.protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from moldau.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from moldau.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from moldau.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from moldau.runtime.net.served_versions import NeededVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.admin.requester import Requester
    from moldau.values import Buffer


_FOR_OTHERS = NeededVersion(3, "a token for another owner (KIP-373, Kafka 3.3)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """A token with which others log in as its owner. Times are milliseconds of the Unix epoch.

    A client gives ``token_id`` and ``hmac`` as user and password of a SCRAM login with ``tokenauth="true"``.
    """

    token_id: str
    hmac: str = field(repr=False)
    """The secret, in base64."""
    owner: str
    requester: str
    renewers: tuple[str, ...] = ()
    issue_ms: int
    expiry_ms: int
    max_ms: int


class Tokens:
    """Sends the requests about delegation tokens."""

    def __init__(self, requester: Requester) -> None:
        self._requester = requester

    async def create(
        self, *, owner: str | None = None, renewers: Iterable[str] = (), max_lifetime_ms: int = -1
    ) -> DelegationToken:
        """Implements ``Admin.create_delegation_token``."""
        call = "create_delegation_token"
        named = [_principal(call, name) for name in arguments.texts(call, "renewers", renewers)]
        owner_type, owner_name = (None, None) if owner is None else _principal(call, owner)
        response = await self._requester.ask(
            CreateDelegationTokenResponse,
            CreateDelegationTokenRequest(
                owner_principal_type=owner_type,
                owner_principal_name=owner_name,
                renewers=[CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in named],
                max_lifetime_ms=arguments.integer(call, "max_lifetime_ms", max_lifetime_ms, bits=arguments.INT64_BITS),
            ),
            needed=None if owner is None else _FOR_OTHERS,
        )
        raise_error(response.error_code, None)
        return DelegationToken(
            token_id=response.token_id,
            hmac=_text(response.hmac),
            owner=f"{response.principal_type}:{response.principal_name}",
            requester=f"{response.token_requester_principal_type}:{response.token_requester_principal_name}",
            renewers=tuple(f"{kind}:{name}" for kind, name in named),
            issue_ms=response.issue_timestamp_ms,
            expiry_ms=response.expiry_timestamp_ms,
            max_ms=response.max_timestamp_ms,
        )

    async def renew(self, hmac: str, *, period_ms: int = -1) -> int:
        """Implements ``Admin.renew_delegation_token``."""
        call = "renew_delegation_token"
        response = await self._requester.ask(
            RenewDelegationTokenResponse,
            RenewDelegationTokenRequest(
                hmac=_bytes(call, hmac),
                renew_period_ms=arguments.integer(call, "period_ms", period_ms, bits=arguments.INT64_BITS),
            ),
        )
        raise_error(response.error_code, None)
        return response.expiry_timestamp_ms

    async def expire(self, hmac: str, *, period_ms: int = -1) -> int:
        """Implements ``Admin.expire_delegation_token``."""
        call = "expire_delegation_token"
        response = await self._requester.ask(
            ExpireDelegationTokenResponse,
            ExpireDelegationTokenRequest(
                hmac=_bytes(call, hmac),
                expiry_time_period_ms=arguments.integer(call, "period_ms", period_ms, bits=arguments.INT64_BITS),
            ),
        )
        raise_error(response.error_code, None)
        return response.expiry_timestamp_ms

    async def describe(self, owners: Iterable[str] | None = None) -> list[DelegationToken]:
        """Implements ``Admin.describe_delegation_tokens``."""
        call = "describe_delegation_tokens"
        wanted = None
        if owners is not None:
            named = [_principal(call, name) for name in arguments.texts(call, "owners", owners)]
            wanted = [DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for kind, name in named]
        response = await self._requester.ask(
            DescribeDelegationTokenResponse, DescribeDelegationTokenRequest(owners=wanted)
        )
        raise_error(response.error_code, None)
        return [
            DelegationToken(
                token_id=token.token_id,
                hmac=_text(token.hmac),
                owner=f"{token.principal_type}:{token.principal_name}",
                requester=f"{token.token_requester_principal_type}:{token.token_requester_principal_name}",
                renewers=tuple(f"{each.principal_type}:{each.principal_name}" for each in token.renewers),
                issue_ms=token.issue_timestamp,
                expiry_ms=token.expiry_timestamp,
                max_ms=token.max_timestamp,
            )
            for token in response.tokens
        ]


def _principal(call: str, text: str) -> tuple[str, str]:
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise arguments.ArgumentValueError(f"{call}: a principal has the form User:name, not {text!r}")
    return kind, name


def _text(hmac: Buffer) -> str:
    return base64.b64encode(bytes(hmac)).decode()


def _bytes(call: str, hmac: str) -> bytes:
    try:
        return base64.b64decode(arguments.text(call, "hmac", hmac), validate=True)
    except (binascii.Error, ValueError) as error:
        raise arguments.ArgumentValueError(f"{call}: hmac must be the token's secret in base64") from error
