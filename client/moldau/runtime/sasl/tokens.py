"""Checks of OAUTHBEARER tokens: signature by the keys of a JWKS document, issuer, audience, expiry, scopes.

``check`` is synchronous and works with the keys at hand; ``prepare`` reads the document first, where there is none yet,
it is too old, or the token names a key that it does not hold. A file is read through the ``Disk`` port, a URL in a
thread. One attempt runs at a time, and the next one begins ``retry_ms`` after its end at the earliest, so that forged
tokens cause no load elsewhere. A login waits for an attempt only if the keys at hand cannot decide.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import math
from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.config.declaration import ConfigError
from moldau.runtime.sasl.core.oauth import TOKEN_BYTES_MAX, TokenFacts, TokenRefusedError, parse_first
from moldau.runtime.sasl.files import read_file_url
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import is_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from joserfc.jwk import Key, KeySet

    from moldau.runtime.config.sasl import TokenRules
    from moldau.runtime.ports.environment import Environment

ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
"""Signatures with public keys; a token signed with a shared secret, or not at all, is refused."""
DOCUMENT_BYTES_MAX: Final = 1 << 20


def _joserfc() -> ModuleType:
    try:
        import joserfc.jwk
        import joserfc.jws
    except ImportError as error:
        raise ConfigError(
            ["sasl.enabled.mechanisms: OAUTHBEARER needs the library joserfc: pip install 'moldau[oauth]'"]
        ) from error
    return joserfc


class TokenChecker:
    """Checks the tokens of one listener."""

    def __init__(self, rules: TokenRules, environment: Environment) -> None:
        """Prepares the checks.

        Raises:
            ConfigError: the library for signatures is missing.
        """
        self._rules = rules
        self._environment = environment
        self._library = _joserfc() if rules.jwks_url is not None else None
        self._keys: KeySet | None = None
        self._key_ids: frozenset[str] = frozenset()
        self._thumbprints: frozenset[str] = frozenset()  # of the keys that the document gives no id
        self._read_ms = self._tried_ms = -math.inf
        self._reading: trio.Event | None = None  # set at the end of the reading under way
        self._logger = EventLogger("moldau.sasl")

    # --- keys

    async def prepare(self, message: bytes) -> None:
        """Reads the keys if the token in the client's first ``message`` needs it.

        Keys that are only old are read again beside the logins, which go on with those at hand.
        """
        url, clock = self._rules.jwks_url, self._environment.clock
        if url is None:
            return
        is_needed = self._keys is None or self._names_unknown_key(message)
        if not is_needed and clock.monotonic_ms() - self._read_ms < self._rules.refresh_ms:
            return
        reading = self._reading
        if reading is None:
            if clock.monotonic_ms() - self._tried_ms < self._rules.retry_ms:
                return
            self._reading = reading = trio.Event()
            if url.startswith("file:"):
                await self._read_keys(url, reading)
            else:
                trio.lowlevel.spawn_system_task(self._read_keys, url, reading)
        if is_needed:
            await reading.wait()

    async def _read_keys(self, url: str, reading: trio.Event) -> None:
        try:
            keys = self._parse(await self._read(url))
        except (OSError, ValueError) as error:
            self._logger.error("token-keys-not-read", url=url, error=error)
        else:
            self._keys = keys
            self._key_ids = frozenset(str(key.kid) for key in keys.keys)
            self._read_ms = self._environment.clock.monotonic_ms()
        finally:
            self._tried_ms = self._environment.clock.monotonic_ms()
            self._reading = None
            reading.set()

    def _names_unknown_key(self, message: bytes) -> bool:
        try:
            key_id = _part(parse_first(message)[0], 0).get("kid")
        except (ValueError, TokenRefusedError):
            return False
        return isinstance(key_id, str) and key_id not in self._key_ids

    async def _read(self, url: str) -> bytes:
        if not url.startswith("file:"):
            from moldau.runtime.sasl.http import endpoint_context, fetch

            return await fetch(url, context=endpoint_context(self._rules.jwks_tls, self._environment.disk))
        return read_file_url(self._environment.disk, url, DOCUMENT_BYTES_MAX)

    def _parse(self, document: bytes) -> KeySet:
        from joserfc.errors import JoseError
        from joserfc.jwk import JWKRegistry, KeySet

        try:
            found = json.loads(document)
            if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
                raise ValueError("it is no JSON Web Key Set: an object with a list named keys")
            usable = [key for key in found["keys"] if isinstance(key, dict) and key.get("kty") in ("RSA", "EC", "OKP")]
        except RecursionError as error:
            raise ValueError("it nests too deeply") from error
        if not usable:
            raise ValueError("it holds no public key (kty RSA, EC or OKP)")
        keys: list[Key] = []
        ignored: Exception | None = None
        for each in usable:
            try:
                keys.append(JWKRegistry.import_key({name: value for name, value in each.items() if value is not None}))
            except (JoseError, KeyError, TypeError, ValueError) as error:  # RFC 7517, section 5: the others serve
                ignored = error
                self._logger.warning("token-key-ignored", url=self._rules.jwks_url, key=each.get("kid"), error=error)
        if not keys:
            raise ValueError(f"it holds no key that can be read: {type(ignored).__name__}") from ignored
        unnamed = [key for key in keys if key.kid is None]
        found_keys = KeySet(keys)  # gives those without an id their thumbprint
        self._thumbprints = frozenset(str(key.kid) for key in unnamed)
        return found_keys

    # --- tokens

    def check(self, token: str) -> TokenFacts:
        """Returns what a token says.

        Raises:
            TokenRefusedError: it is not accepted.
        """
        header = _part(token, 0)
        if header.get("alg") == "none":
            if not self._rules.accepts_unsecured:
                raise TokenRefusedError("the token has no signature")
            claims = _part(token, 1)
        else:
            claims = self._verified(token)
        return self._facts(claims)

    def _verified(self, token: str) -> dict[str, object]:
        if self._library is None:
            raise TokenRefusedError("the listener has no keys: sasl.oauthbearer.jwks.endpoint.url is not set")
        if self._keys is None:
            raise TokenRefusedError("the keys that sign tokens could not be read")
        from joserfc.errors import InvalidKeyIdError, JoseError

        header = _part(token, 0)
        try:
            claims = json.loads(_payload(token, _fitting(self._keys, self._thumbprints, header)))
        except InvalidKeyIdError as error:
            raise TokenRefusedError(
                "the key that signed the token is not at sasl.oauthbearer.jwks.endpoint.url"
            ) from error
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise TokenRefusedError(f"the signature is not valid ({type(error).__name__})") from error
        if not isinstance(claims, dict):
            raise TokenRefusedError("the token holds no claims")
        key_id = header.get("kid")
        if isinstance(key_id, str) and key_id not in self._key_ids:  # of a key that the document does not name
            self._key_ids |= {key_id}
        return claims

    def _facts(self, claims: dict[str, object]) -> TokenFacts:
        rules = self._rules
        now_ms = self._environment.clock.wall_ms()
        expires_ms = _time(claims, "exp")
        if expires_ms is None:
            raise TokenRefusedError("the token has no exp claim")
        if now_ms >= expires_ms + rules.clock_skew_ms:
            raise TokenRefusedError("the token has expired")
        for claim in ("nbf", "iat"):
            begins_ms = _time(claims, claim)
            if begins_ms is not None and begins_ms - rules.clock_skew_ms > now_ms:
                raise TokenRefusedError(f"the token's {claim} claim lies in the future")
        if rules.issuer is not None and claims.get("iss") != rules.issuer:
            raise TokenRefusedError("the token has another issuer")
        if rules.audiences and not set(_words(claims.get("aud"), splits=False)) & set(rules.audiences):
            raise TokenRefusedError("the token is for another audience")
        scopes = set(_words(claims.get(rules.scope_claim), splits=True))
        missing = [scope for scope in rules.required_scopes if scope not in scopes]
        if missing:
            raise TokenRefusedError("the token lacks a required scope", scope=" ".join(missing))
        principal = claims.get(rules.principal_claim)
        if not isinstance(principal, str) or not principal.strip() or not is_text(principal):
            raise TokenRefusedError(f"the token's {rules.principal_claim} claim names no user")
        return TokenFacts(principal=principal.strip(), expires_wall_ms=expires_ms + rules.clock_skew_ms)


def _fitting(keys: KeySet, thumbprints: frozenset[str], header: Mapping[str, object]) -> Sequence[Key | KeySet]:
    """Returns where to look for the key of a token: all keys that fit.

    A token need not name its key (RFC 7515), and a document need not either; it may have several keys of a name
    (RFC 7517, section 4.5).
    """
    name, algorithm = header.get("kid"), header.get("alg")
    fitting = [
        key
        for key in keys.keys
        if (name is None or key.kid == name or key.kid in thumbprints)
        and key.get("use") != "enc"
        and key.alg in (None, algorithm)
    ]
    return fitting or [keys]


def _payload(token: str, keys: Sequence[Key | KeySet]) -> bytes:
    """Returns the content of a token that one of the keys signed.

    Raises:
        JoseError: none of them did.
    """
    from joserfc.errors import JoseError
    from joserfc.jws import JWSRegistry, deserialize_compact

    # RFC 7515, section 4: parameters of the header that are not understood are ignored, unless ``crit`` names them.
    rules = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    rules.max_header_length = rules.max_payload_length = rules.max_signature_length = TOKEN_BYTES_MAX
    for key in keys[:-1]:
        with contextlib.suppress(JoseError):
            return deserialize_compact(token, key, registry=rules).payload
    return deserialize_compact(token, keys[-1], registry=rules).payload


def _part(token: str, index: int) -> dict[str, object]:
    """Returns a JSON part of a compact token, unverified."""
    parts = token.split(".")
    if len(parts) != 3:
        raise TokenRefusedError("the token is no JSON Web Token of three parts")
    try:
        text = parts[index] + "=" * (-len(parts[index]) % 4)
        found = json.loads(base64.urlsafe_b64decode(text))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise TokenRefusedError("the token is not base64 of JSON") from error
    if not isinstance(found, dict):
        raise TokenRefusedError("a part of the token is no JSON object")
    return found


def _time(claims: dict[str, object], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefusedError(f"the token's {name} claim is no time")
    # Holds neither for NaN nor infinity, and compares integers that no float can hold.
    if not 0 <= value <= 1 << 40:
        raise TokenRefusedError(f"the token's {name} claim is out of range")
    return int(value * 1000)


def _words(value: object, *, splits: bool) -> list[str]:
    if isinstance(value, str):
        return value.split() if splits else [value]
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []
