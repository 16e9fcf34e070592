"""A token is found by its HMAC in a time that does not grow with the number of tokens.

Any client that has logged in may send HMACs, and creates as many tokens as the cluster may have. If each lookup derived
the HMAC of each token, some dozen requests would hold the controller up for seconds.
"""

from __future__ import annotations

import pytest

from moldau_quorum.metadata import delegation_tokens
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import DelegationTokenRecord, RemoveDelegationTokenRecord

COUNT = 500


def token(number: int, expiry_ms: int = 5) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        token_id=f"t{number}",
        owner="User:a",
        requester="User:a",
        renewers=(),
        issue_ms=1,
        max_ms=9,
        expiry_ms=expiry_ms,
    )


@pytest.fixture
def derived(monkeypatch) -> list[str]:
    """Returns the ids of the tokens whose HMAC was derived."""
    ids: list[str] = []
    derive = delegation_tokens.token_hmac

    def counting(secret: bytes, token_id: str) -> bytes:
        ids.append(token_id)
        return derive(secret, token_id)

    monkeypatch.setattr(delegation_tokens, "token_hmac", counting)
    return ids


def test_the_hmac_of_each_token_is_derived_once(derived) -> None:
    secret = b"secret of this test"
    hmacs = [delegation_tokens.token_hmac(secret, f"t{number}") for number in range(COUNT)]
    derived.clear()
    before = MetadataImage().apply([token(number) for number in range(COUNT)], offset=1, epoch=1).image
    for number in range(COUNT):
        assert delegation_tokens.find_token(before, secret, hmacs[number]) == token(number)
        assert delegation_tokens.find_token(before, secret, b"none") is None
    assert len(derived) == COUNT

    # A renewed token keeps its HMAC; a removed one is found in older images only.
    changes = [token(0, 7), RemoveDelegationTokenRecord(token_id="t1"), token(COUNT)]
    after = before.apply(changes, offset=2, epoch=1).image
    assert delegation_tokens.find_token(after, secret, hmacs[0]) == token(0, 7)
    assert delegation_tokens.find_token(after, secret, hmacs[1]) is None
    assert len(derived) == COUNT + 2
    assert delegation_tokens.find_token(before, secret, hmacs[1]) == token(1)
    assert delegation_tokens.find_token(before, secret, hmacs[0]) == token(0)
    assert delegation_tokens.find_token(before, b"another secret", hmacs[0]) is None
