"""Tokens and key sets for tests of OAUTHBEARER, made by joserfc."""

from __future__ import annotations

import base64
import functools
import json
from typing import TYPE_CHECKING

from joserfc import jws
from joserfc.jwk import RSAKey

if TYPE_CHECKING:
    from collections.abc import Mapping

ISSUER, AUDIENCE = "https://issuer.example", "moldau"


@functools.cache
def key(name: str = "key-1") -> RSAKey:
    """Returns an RSA key with this key id."""
    return RSAKey.generate_key(2048, parameters={"kid": name})


def key_set(*names: str) -> str:
    """Returns the public keys as a JWKS document."""
    return json.dumps({"keys": [key(name).as_dict(private=False) for name in names or ("key-1",)]})


def token(
    now_s: float,
    *,
    subject: str | None = "carol",
    life_s: float = 600,
    key_id: str = "key-1",
    signed_by: str | None = None,
    algorithm: str = "RS256",
    header: Mapping[str, object] | None = None,
    **claims: object,
) -> str:
    """Returns a signed token with more members of its ``header``; claims and members of None are left out."""
    given = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": int(now_s + life_s), "iat": int(now_s), **claims}
    payload = json.dumps({name: value for name, value in given.items() if value is not None})
    members = {"alg": algorithm, "kid": key_id, **(header or {})}
    rules = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    return jws.serialize_compact(
        {name: value for name, value in members.items() if value is not None},
        payload,
        key(signed_by or key_id),
        registry=rules,
    )


def unsigned(now_s: float, subject: str = "carol", life_s: float = 600) -> str:
    """Returns a token without a signature."""
    parts = [{"alg": "none"}, {"sub": subject, "exp": int(now_s + life_s)}]
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."
