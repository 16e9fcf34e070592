"""Goal: a description of many delegation tokens does not hold the broker up, and is complete.

Method: the handler alone, on an image of the test, beside a task that counts its turns.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from moldau.runtime.sasl.core.identity import Identity
from moldau_broker.server.handlers.tokens import handle_describe_delegation_token
from moldau_quorum.metadata.delegation_tokens import token_hmac
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import DelegationTokenRecord
from support.turns import counted_turns

SECRET = "secret of the cluster"
COUNT = 1_000


def described(request: DescribeDelegationTokenRequest, **identity: Any) -> tuple[DescribeDelegationTokenResponse, int]:
    """Returns the answer, and how many turns others had meanwhile."""
    records = [
        DelegationTokenRecord(
            token_id=f"{number:04}",
            owner="User:even" if number % 2 == 0 else "User:odd",
            requester="User:creator",
            renewers=("User:renewer",),
            issue_ms=0,
            max_ms=9,
            expiry_ms=9,
        )
        for number in range(COUNT)
    ]
    context: Any = SimpleNamespace(
        config=SimpleNamespace(get_str_or_none={"delegation.token.secret.key": SECRET}.get),
        metadata=SimpleNamespace(image=MetadataImage().apply(records, offset=1, epoch=1).image),
    )
    who = {"principal": "User:even", "host": "h", "listener_name": "L", "security_protocol": "SASL_SSL", **identity}
    call: Any = SimpleNamespace(identity=Identity(**who))

    async def main() -> tuple[DescribeDelegationTokenResponse, int]:
        async with counted_turns() as turns:
            response = await handle_describe_delegation_token(context, request, call)
        return response, turns.count

    return trio.run(main)


def test_other_tasks_run_between_described_tokens() -> None:
    response, turns = described(DescribeDelegationTokenRequest(owners=None))
    assert [token.token_id for token in response.tokens] == [f"{number:04}" for number in range(COUNT)]
    assert all(token.hmac == token_hmac(SECRET.encode(), token.token_id) for token in response.tokens)
    assert turns >= 10


def test_descriptions_name_the_wanted_tokens_only() -> None:
    odd = DescribeDelegationTokenOwner(principal_type="User", principal_name="odd")
    response, _ = described(DescribeDelegationTokenRequest(owners=[odd]))
    assert [token.token_id for token in response.tokens] == [f"{number:04}" for number in range(1, COUNT, 2)]
    assert described(DescribeDelegationTokenRequest(owners=[]))[0].tokens == []
    refused, _ = described(DescribeDelegationTokenRequest(owners=None), by_token=True)
    assert (refused.error_code, refused.tokens) == (ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, [])
