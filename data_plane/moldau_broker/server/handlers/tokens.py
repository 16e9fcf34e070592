"""Delegation tokens (KIP-48): the controller decides about them, and each broker describes those that it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from moldau.protocol.api import APIS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from moldau.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from moldau.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from moldau_broker.server.handlers.forwarded import relay, until_visible
from moldau_quorum.controller.entities.tokens import described_tokens
from moldau_quorum.metadata.delegation_tokens import token_secret

if TYPE_CHECKING:
    from moldau.protocol.messages.describe_delegation_token import (
        DescribeDelegationTokenRequest,
        DescribeDelegationTokenResponse,
    )
    from moldau.protocol.schema import Response
    from moldau_broker.server.handlers.context import BrokerContext, Call

TokenChange = TypeVar(
    "TokenChange", CreateDelegationTokenRequest, RenewDelegationTokenRequest, ExpireDelegationTokenRequest
)


async def change_token(context: BrokerContext, request: TokenChange, call: Call) -> Response:
    """Forwards the request, and waits until this broker knows the change: a client may log in with the token next."""
    before = context.metadata.image.delegation_tokens
    response = await relay(context, request, call)
    assert isinstance(response, APIS[request.__api_key__].response)
    if getattr(response, "error_code", ErrorCode.NONE) == ErrorCode.NONE:
        await until_visible(context, lambda image: image.delegation_tokens is not before)
    return response


def handle_describe_delegation_token(
    context: BrokerContext, request: DescribeDelegationTokenRequest, call: Call
) -> DescribeDelegationTokenResponse:
    """Describes the tokens that this broker knows; the check of the request removes those that are not to be seen."""
    return described_tokens(request, context.metadata.image, token_secret(context.config), call.identity)
