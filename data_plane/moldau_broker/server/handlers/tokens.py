"""Delegation tokens (KIP-48): the controller decides about them, and each broker describes those that it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from moldau.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from moldau.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from moldau.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from moldau_broker.server.handlers.forwarded import relay, until_visible
from moldau_quorum.controller.context import RefusedError
from moldau_quorum.controller.entities.tokens import described_token, wanted_tokens
from moldau_quorum.metadata.delegation_tokens import find_token, token_secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.schema import Response
    from moldau_broker.server.handlers.context import BrokerContext, Call
    from moldau_quorum.metadata.image import MetadataImage

TOKENS_PER_TURN: Final = 50
"""Tokens that are described between two checkpoints; one with a hundred renewers takes some hundred microseconds."""

TokenChange = TypeVar(
    "TokenChange", CreateDelegationTokenRequest, RenewDelegationTokenRequest, ExpireDelegationTokenRequest
)


async def change_token(context: BrokerContext, request: TokenChange, call: Call) -> Response:
    """Forwards the request, and waits until this broker knows the change: a client may log in with the token next."""
    before = context.metadata.image
    response = await relay(context, request, call)
    assert isinstance(
        response, CreateDelegationTokenResponse | RenewDelegationTokenResponse | ExpireDelegationTokenResponse
    )
    if response.error_code == ErrorCode.NONE:
        await until_visible(context, _change_of(context, request, response, before))
    return response


def _change_of(
    context: BrokerContext,
    request: TokenChange,
    response: CreateDelegationTokenResponse | RenewDelegationTokenResponse | ExpireDelegationTokenResponse,
    before: MetadataImage,
) -> Callable[[MetadataImage], bool]:
    """Returns the condition that an image has the change of a token, and not only one of another token."""
    if isinstance(response, CreateDelegationTokenResponse):
        token_id = response.token_id
        return lambda image: token_id in image.delegation_tokens
    assert not isinstance(request, CreateDelegationTokenRequest)
    secret = token_secret(context.config)
    known = None if secret is None else find_token(before, secret, bytes(request.hmac))
    if known is None:  # this broker does not know yet that the token was created
        return lambda image: image.delegation_tokens is not before.delegation_tokens
    wanted_id, expiry_ms = known.token_id, response.expiry_timestamp_ms

    def is_known(image: MetadataImage) -> bool:
        token = image.delegation_tokens.get(wanted_id)
        return token is None or token.expiry_ms == expiry_ms

    return is_known


async def handle_describe_delegation_token(
    context: BrokerContext, request: DescribeDelegationTokenRequest, call: Call
) -> DescribeDelegationTokenResponse:
    """Describes the tokens that this broker knows; the check of the request removes those that are not to be seen.

    Other tasks run between the tokens.
    """
    secret = token_secret(context.config)
    try:
        found = wanted_tokens(request, context.metadata.image, secret, call.identity)
    except RefusedError as refusal:
        return DescribeDelegationTokenResponse(error_code=refusal.code, tokens=[])
    assert secret is not None, "there would be no tokens"
    tokens: list[DescribedDelegationToken] = []
    for number, token in enumerate(found, start=1):
        if number % TOKENS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
        tokens.append(described_token(token, secret))
    return DescribeDelegationTokenResponse(tokens=tokens)
