"""Delegation tokens of the metadata image (KIP-48), as listeners and coordinators of requests use them. Pure.

The secret of a token, its HMAC, is derived from its id and ``delegation.token.secret.key``, so that each node knows it
and the metadata log does not. A client logs in with SCRAM: the id is its user, the HMAC in base64 its password.
"""

from __future__ import annotations

import base64
import hmac
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from moldau.runtime.sasl.core.scram import (
    ITERATIONS_DEFAULT,
    SALT_BYTES,
    ScramKeys,
    TokenKeys,
    keys_of,
    salted_password,
)
from moldau_quorum.metadata.persistent_map import PersistentMap

if TYPE_CHECKING:
    from moldau.runtime.config import Config
    from moldau.runtime.sasl.core.identity import Identity
    from moldau_quorum.metadata.image import MetadataImage
    from moldau_quorum.metadata.records import DelegationTokenRecord

DIGEST: Final = "sha512"
KEYS_KEPT_MAX: Final = 1_000
"""Keys of tokens that a node remembers; each costs some milliseconds to derive."""
USER_TYPE: Final = "User"


def token_secret(config: Config) -> bytes | None:
    """Returns ``delegation.token.secret.key`` as bytes; None where there are no tokens."""
    text = config.get_str_or_none("delegation.token.secret.key")
    return text.encode() if text else None


def token_hmac(secret: bytes, token_id: str) -> bytes:
    """Returns the secret of a token."""
    return hmac.digest(secret, token_id.encode(), DIGEST)


def may_ask_for_tokens(identity: Identity | None) -> bool:
    """Returns whether a peer may create, change or see tokens: it must have authenticated, and not with a token."""
    return identity is not None and not identity.is_anonymous and not identity.by_token


def may_renew(token: DelegationTokenRecord, principal: str) -> bool:
    """Returns whether a principal owns a token or was named as a renewer; one that created it for another may not."""
    return principal in (token.owner, *token.renewers)


def is_expired(token: DelegationTokenRecord, wall_ms: int) -> bool:
    """Returns whether a token can no longer be used."""
    return wall_ms >= min(token.expiry_ms, token.max_ms)


class _TokenIds:
    """The ids of tokens by their HMACs; follows the tokens from image to image, so that each HMAC is derived once."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._tokens: PersistentMap[str, DelegationTokenRecord] = PersistentMap()
        self._ids: dict[bytes, str] = {}

    def find(self, tokens: PersistentMap[str, DelegationTokenRecord], wanted: bytes) -> str | None:
        """Returns the id of the token among ``tokens`` that has an HMAC; None if there is none."""
        for token_id in self._tokens.changed_keys(tokens):
            is_new, is_kept = token_id not in self._tokens, token_id in tokens
            if is_new or not is_kept:
                derived = token_hmac(self._secret, token_id)
                if is_kept:
                    self._ids[derived] = token_id
                else:
                    del self._ids[derived]
        self._tokens = tokens
        return self._ids.get(wanted)


@lru_cache(maxsize=2)
def _token_ids(secret: bytes) -> _TokenIds:
    return _TokenIds(secret)


def find_token(image: MetadataImage, secret: bytes, wanted: bytes) -> DelegationTokenRecord | None:
    """Returns the token with an HMAC; None if there is none.

    The time of a lookup says nothing about an HMAC that is close to the wanted one: it depends on a hash of all bytes.
    """
    token_id = _token_ids(secret).find(image.delegation_tokens, wanted)
    return None if token_id is None else image.delegation_tokens[token_id]


class TokenLogins:
    """The SCRAM keys of tokens."""

    def __init__(self, secret: bytes | None) -> None:
        """Without a secret there are no tokens."""
        self._secret = secret
        self._known: dict[tuple[str, str], ScramKeys] = {}

    def keys(self, image: MetadataImage, token_id: str, mechanism: str, wall_ms: int) -> TokenKeys | None:
        """Returns the keys of a token; None if it does not exist or has expired."""
        token = image.delegation_tokens.get(token_id)
        if self._secret is None or token is None or is_expired(token, wall_ms):
            return None
        return TokenKeys(
            keys=self._keys(self._secret, token_id, mechanism),
            owner=token.owner.partition(":")[2],
            expires_wall_ms=min(token.expiry_ms, token.max_ms),
        )

    def _keys(self, secret: bytes, token_id: str, mechanism: str) -> ScramKeys:
        found = self._known.get((token_id, mechanism))
        if found is None:
            salt = hmac.digest(secret, f"salt\0{mechanism}\0{token_id}".encode(), DIGEST)[:SALT_BYTES]
            password = base64.b64encode(token_hmac(secret, token_id)).decode()
            salted = salted_password(mechanism, password, salt, ITERATIONS_DEFAULT)
            found = keys_of(mechanism, salted, salt, ITERATIONS_DEFAULT)
            if len(self._known) >= KEYS_KEPT_MAX:
                self._known.clear()
            self._known[token_id, mechanism] = found
        return found
