"""SCRAM credentials (KIP-554), and SASL requests on listeners without SASL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from moldau.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from moldau.protocol.refusals import refusal_of
from moldau.runtime.sasl.core.server import illegal_sasl_state
from moldau_broker.server.handlers.forwarded import forward, until_visible
from moldau_quorum.controller.entities.scram import credential_record, described_credentials

if TYPE_CHECKING:
    from moldau.protocol.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsRequest,
        DescribeUserScramCredentialsResponse,
    )
    from moldau_broker.server.handlers.context import BrokerContext, Call
    from moldau_quorum.metadata.image import MetadataImage

CREDENTIALS_MAX = 1_000
"""Changes in one request, each of which costs the controller three digests and a record."""


async def handle_alter_user_scram_credentials(
    context: BrokerContext, request: AlterUserScramCredentialsRequest, call: Call
) -> AlterUserScramCredentialsResponse:
    """Forwards the request, and waits until this broker knows its changes: a client may log in with them next."""
    if len(request.deletions) + len(request.upsertions) > CREDENTIALS_MAX:
        why = f"a request may change {CREDENTIALS_MAX} credentials"
        return refusal_of(
            AlterUserScramCredentialsResponse, request, ErrorCode.INVALID_REQUEST, why, version=call.version
        )
    response, _ = await forward(context, request, AlterUserScramCredentialsResponse, call)
    changed = {result.user for result in response.results if result.error_code == ErrorCode.NONE}
    removed = [(each.name, each.mechanism) for each in request.deletions if each.name in changed]
    stored = [credential_record(each) for each in request.upsertions if each.name in changed]

    def is_known(image: MetadataImage) -> bool:
        known = image.scram_credentials
        return all(known.get((each.user, each.mechanism)) == each for each in stored) and not any(
            key in known for key in removed
        )

    if changed:
        await until_visible(context, is_known)
    return response


def handle_describe_user_scram_credentials(
    context: BrokerContext, request: DescribeUserScramCredentialsRequest, call: Call
) -> DescribeUserScramCredentialsResponse:
    """Describes the credentials that this broker knows; salts and keys never leave it."""
    return described_credentials(request, context.metadata.image)


def handle_sasl_handshake(context: BrokerContext, request: SaslHandshakeRequest, call: Call) -> SaslHandshakeResponse:
    """Refuses: on a listener with SASL the gate answers before the request comes here."""
    response = illegal_sasl_state(request)
    assert isinstance(response, SaslHandshakeResponse)
    return response


def handle_sasl_authenticate(
    context: BrokerContext, request: SaslAuthenticateRequest, call: Call
) -> SaslAuthenticateResponse:
    """Refuses, as ``handle_sasl_handshake``."""
    response = illegal_sasl_state(request)
    assert isinstance(response, SaslAuthenticateResponse)
    return response
