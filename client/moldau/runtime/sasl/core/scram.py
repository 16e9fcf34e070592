"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677) as Kafka uses them: without channel binding. Pure.

    client -> server   n,,n=user,r=<client nonce>
    server -> client   r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client -> server   c=biws,r=<both nonces>,p=<proof>
    server -> client   v=<signature>

The server keeps a salt, an iteration count, StoredKey and ServerKey, never the password. An unknown user gets a salt
that is derived from a secret of the server, so that the first answer does not reveal whether the user exists; the proof
then fails as that of a wrong password does. Passwords are taken as UTF-8 and not normalised, as in Kafka.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from hashlib import pbkdf2_hmac
from typing import TYPE_CHECKING, Final

from moldau.runtime.sasl.core.mechanism import Accepted, Challenge, Outcome, Rejected, SaslExchangeError

if TYPE_CHECKING:
    from collections.abc import Callable

DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN: Final = 4_096
ITERATIONS_DEFAULT: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Largest count that a broker stores (KIP-554)."""
CLIENT_ITERATIONS_MAX: Final = 1_000_000
"""Largest count that a client computes, some 0.3 s: a server must not be able to stall it for longer."""
MESSAGE_BYTES_MAX: Final = 8 * 1024
SALT_BYTES: Final = 24
NONCE_BYTES: Final = 24

_CLIENT_FIRST = re.compile(
    r"([ny]),(?:a=((?:[^\x00,=]|=2C|=3D)+))?,n=((?:[^\x00,=]|=2C|=3D)+),r=([\x21-\x2b\x2d-\x7e]+)(,.*)?"
)
_CLIENT_FINAL = re.compile(r"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]=[^,]*)*?),p=([A-Za-z0-9+/=]+)")
_SERVER_FIRST = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,9})(?:,.*)?")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ScramKeys:
    """The part of a password that a server keeps."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Returns SaltedPassword: Hi(password, salt, iterations). Takes 1 ms for some 2,000 iterations."""
    return pbkdf2_hmac(DIGESTS[mechanism], password.encode(), salt, iterations)


def keys_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramKeys:
    """Returns the keys that a server stores for a salted password."""
    digest = DIGESTS[mechanism]
    return ScramKeys(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest(),
        server_key=hmac.digest(salted, b"Server Key", digest),
    )


def decoy_keys(mechanism: str, user: str, secret: bytes, iterations: int) -> ScramKeys:
    """Returns keys for an unknown user: the same ones each time, and no password fits them."""
    digest = DIGESTS[mechanism]
    name = f"{mechanism}\0{user}".encode()
    return ScramKeys(
        salt=hmac.digest(secret, b"salt\0" + name, "sha256")[:SALT_BYTES],
        iterations=iterations,
        stored_key=hmac.digest(secret, b"stored\0" + name, digest),
        server_key=hmac.digest(secret, b"server\0" + name, digest),
    )


def encode_name(user: str) -> str:
    """Escapes a user name (``saslname``)."""
    return user.replace("=", "=3D").replace(",", "=2C")


def decode_name(name: str) -> str:
    """Reverses ``encode_name``."""
    return name.replace("=2C", ",").replace("=3D", "=")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _text(message: bytes) -> str | None:
    if len(message) > MESSAGE_BYTES_MAX:
        return None
    try:
        return message.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _decode64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TokenKeys:
    """A delegation token as a server knows it, whose id and secret a client gives as user and password."""

    keys: ScramKeys
    owner: str
    """The user that the client is from then on."""
    expires_wall_ms: int


TOKEN_EXTENSION: Final = ",tokenauth=true"


def _no_token(token_id: str) -> TokenKeys | None:
    return None


class ScramServer:
    """The server's side of one exchange."""

    def __init__(
        self,
        mechanism: str,
        keys: Callable[[str], ScramKeys | None],
        decoy: Callable[[str], ScramKeys],
        server_nonce: str,
        tokens: Callable[[str], TokenKeys | None] = _no_token,
    ) -> None:
        """Takes the lookup of a user's keys, the keys for unknown users, and a nonce that was never used before.

        ``tokens`` returns a delegation token by its id; None if it does not exist or has expired.
        """
        self._tokens = tokens
        self._token: TokenKeys | None = None
        self._asks_for_token = False
        self._digest = DIGESTS[mechanism]
        self._keys_of = keys
        self._decoy_of = decoy
        self._server_nonce = server_nonce
        self._user: str | None = None
        self._keys: ScramKeys | None = None
        self._is_known = False
        self._nonce = self._header = self._client_first_bare = self._server_first = ""
        self._is_over = False

    def step(self, token: bytes) -> Outcome:
        """See ``ServerExchange.step``."""
        if self._is_over:
            return Rejected(cause="a message after the end of the exchange", claimed=self._user or "")
        message = _text(token)
        if message is None:
            outcome: Outcome = Rejected(cause="the message is too long or not UTF-8", claimed=self._user or "")
        else:
            outcome = self._first(message) if self._user is None else self._final(message)
        self._is_over = not isinstance(outcome, Challenge)
        return outcome

    def _first(self, message: str) -> Outcome:
        match = _CLIENT_FIRST.fullmatch(message)
        if match is None:
            return Rejected(cause="the client's first message is malformed, or asks for channel binding")
        flag, authorization_id, name, client_nonce, extensions = match.groups()
        user = decode_name(name)
        if authorization_id and decode_name(authorization_id) != user:
            return Rejected(
                cause="the authorization id is another user",
                message="Authentication failed: Client requested an authorization id that is different from username",
                claimed=user,
            )
        if extensions is not None and TOKEN_EXTENSION[1:] in extensions.split(","):
            self._asks_for_token = True
            self._token = self._tokens(user)
            keys = None if self._token is None else self._token.keys
        else:
            keys = self._keys_of(user)
        self._is_known = keys is not None
        self._keys = keys = self._decoy_of(user) if keys is None else keys
        if keys.iterations < ITERATIONS_MIN:
            return Rejected(
                cause=f"the credential has {keys.iterations} iterations, fewer than {ITERATIONS_MIN}", claimed=user
            )
        self._user = user
        self._header = f"{flag},{'a=' + authorization_id if authorization_id else ''},"
        self._client_first_bare = message[len(self._header) :]
        self._nonce = client_nonce + self._server_nonce
        salt = base64.b64encode(keys.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={keys.iterations}"
        return Challenge(data=self._server_first.encode())

    def _final(self, message: str) -> Outcome:
        assert self._user is not None
        assert self._keys is not None
        user = self._user
        match = _CLIENT_FINAL.fullmatch(message)
        if match is None:
            return Rejected(cause="the client's final message is malformed", claimed=user)
        without_proof, binding, nonce, proof_text = match.groups()
        if not hmac.compare_digest(nonce.encode(), self._nonce.encode()):
            return Rejected(cause="the nonce is not that of this exchange", claimed=user)
        if _decode64(binding) != self._header.encode():
            return Rejected(cause="the channel binding differs from the first message", claimed=user)
        proof = _decode64(proof_text)
        keys, digest = self._keys, self._digest
        if proof is None or len(proof) != len(keys.stored_key):
            return Rejected(cause="the proof has the wrong length", claimed=user)
        auth_message = f"{self._client_first_bare},{self._server_first},{without_proof}".encode()
        client_key = _xor(proof, hmac.digest(keys.stored_key, auth_message, digest))
        is_right = hmac.compare_digest(hashlib.new(digest, client_key).digest(), keys.stored_key)
        if not is_right or not self._is_known:
            return Rejected(cause="wrong password" if self._is_known else self._unknown(user), claimed=user)
        signature = base64.b64encode(hmac.digest(keys.server_key, auth_message, digest)).decode()
        data = f"v={signature}".encode()
        token = self._token
        if token is None:
            return Accepted(user=user, data=data)
        return Accepted(user=token.owner, data=data, expires_wall_ms=token.expires_wall_ms, by_token=True)

    def _unknown(self, name: str) -> str:
        """Returns why there are no keys for a name; the node logs it, and the client does not see it."""
        if self._asks_for_token:
            return "unknown or expired delegation token"
        if self._tokens(name) is not None:
            return "a delegation token's id as user: the client does not ask for a token (tokenauth)"
        return "unknown user"


class ScramClient:
    """The client's side of one exchange. The salted password is kept by ``salted``, which may cache it."""

    def __init__(
        self, mechanism: str, user: str, salted: Callable[[bytes, int], bytes], client_nonce: str, extensions: str = ""
    ) -> None:
        """Takes the function that salts the password, a fresh nonce, and extensions such as ``,tokenauth=true``."""
        self._digest = DIGESTS[mechanism]
        self._salted = salted
        self._nonce = client_nonce
        self._bare = f"n={encode_name(user)},r={client_nonce}{extensions}"
        self._signature: bytes | None = None
        self.is_complete = False

    def first(self) -> bytes:
        """See ``ClientExchange.first``."""
        return f"n,,{self._bare}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """See ``ClientExchange.respond``."""
        message = _text(challenge)
        if message is None:
            raise SaslExchangeError("the server's SCRAM message is too long or not UTF-8")
        if message.startswith("e="):
            raise SaslExchangeError(f"the server refused: {message[2:].partition(',')[0]}")
        if self._signature is not None:
            self._check_signature(message)
            return None
        match = _SERVER_FIRST.fullmatch(message)
        if match is None:
            raise SaslExchangeError("the server's first SCRAM message is malformed")
        nonce, salt_text, iterations_text = match.groups()
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise SaslExchangeError("the server's nonce does not continue the client's nonce")
        iterations = int(iterations_text)
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise SaslExchangeError(
                f"the server asks for {iterations} iterations, which is outside "
                f"{ITERATIONS_MIN}..{CLIENT_ITERATIONS_MAX}"
            )
        salt = _decode64(salt_text)
        if not salt:
            raise SaslExchangeError("the server's salt is not base64")
        digest = self._digest
        salted = self._salted(salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        stored_key = hashlib.new(digest, client_key).digest()
        without_proof = f"c=biws,r={nonce}"
        auth_message = f"{self._bare},{message},{without_proof}".encode()
        proof = _xor(client_key, hmac.digest(stored_key, auth_message, digest))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), auth_message, digest)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _check_signature(self, message: str) -> None:
        assert self._signature is not None
        given = _decode64(message[2:].partition(",")[0]) if message.startswith("v=") else None
        if given is None or not hmac.compare_digest(given, self._signature):
            raise SaslExchangeError("the server did not prove that it knows the password's keys")
        self.is_complete = True
