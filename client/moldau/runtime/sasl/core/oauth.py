"""SASL OAUTHBEARER (RFC 7628): the messages and both sides of the exchange. Pure.

The client's message is ``n,,`` 0x01 ``auth=Bearer <token>`` 0x01 [extensions 0x01] 0x01. A server that refuses the
token answers with a JSON object, the client acknowledges it with 0x01, and then the exchange fails.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.runtime.sasl.core.mechanism import Accepted, Challenge, Outcome, Rejected, SaslExchangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TOKEN_BYTES_MAX: Final = 64 * 1024
_FIRST = re.compile(r"[ny],(?:a=((?:[^\x00,=]|=2C|=3D)*))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)+)\x01", re.DOTALL)
_BEARER = re.compile(r"[Bb]earer +([A-Za-z0-9\-._~+/]+=*)")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFacts:
    """The content of a checked token: its user, and the end of its validity (Unix epoch)."""

    principal: str
    expires_wall_ms: int


class TokenRefusedError(Exception):
    """Reports why a token is not accepted. The text holds nothing of the token."""

    def __init__(self, cause: str, *, scope: str = "") -> None:
        """``scope`` is the scope that the token lacks."""
        super().__init__(cause)
        self.scope = scope


class OauthServer:
    """The server's side of one exchange."""

    def __init__(self, check: Callable[[str], TokenFacts]) -> None:
        """Takes the check of a token, which raises ``TokenRefusedError``."""
        self._check = check
        self._refusal: Rejected | None = None

    def step(self, token: bytes) -> Outcome:
        """See ``ServerExchange.step``."""
        if self._refusal is not None:
            return self._refusal
        try:
            bearer, authorization_id = parse_first(token)
        except ValueError as error:
            return Rejected(cause=str(error))
        try:
            facts = self._check(bearer)
        except TokenRefusedError as error:
            answer = (
                {"status": "insufficient_scope", "scope": error.scope} if error.scope else {"status": "invalid_token"}
            )
            text = json.dumps(answer, separators=(",", ":"))
            self._refusal = Rejected(cause=str(error), message=text)
            return Challenge(data=text.encode(), refusal=self._refusal)
        if authorization_id and authorization_id != facts.principal:
            return Rejected(
                cause="the authorization id is not the token's principal",
                message="Authentication failed: Client requested an authorization id that is different from the "
                "token's principal name",
                claimed=authorization_id,
            )
        return Accepted(user=facts.principal, expires_wall_ms=facts.expires_wall_ms)


def parse_first(message: bytes) -> tuple[str, str]:
    """Returns token and authorization id of the client's first message.

    Raises:
        ValueError: the message is malformed.
    """
    if len(message) > TOKEN_BYTES_MAX:
        raise ValueError(f"the message has more than {TOKEN_BYTES_MAX} bytes")
    try:
        match = _FIRST.fullmatch(message.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("the message is not UTF-8") from None
    if match is None:
        raise ValueError("the OAUTHBEARER message is malformed")
    pairs = [pair.split("=", 1) for pair in match[2].split("\x01") if pair]
    values = {name: value for name, value in pairs if name == "auth"}
    bearer = _BEARER.fullmatch(values.get("auth", "").strip())
    if bearer is None:
        raise ValueError("the OAUTHBEARER message holds no bearer token")
    return bearer[1], (match[1] or "").replace("=2C", ",").replace("=3D", "=")


class OauthClient:
    """The client's side of one exchange."""

    is_complete = True

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        """Keeps what the message will hold.

        Raises:
            ValueError: it cannot hold the token or the extensions.
        """
        if _BEARER.fullmatch(f"Bearer {token}") is None:
            raise ValueError("the token has characters that a bearer token cannot have")
        more = "".join(f"{name}={value}\x01" for name, value in (extensions or {}).items())
        for name, value in (extensions or {}).items():
            if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
                raise ValueError(f"the SASL extension {name!r} has an illegal name or value")
        self._first = f"n,,\x01auth=Bearer {token}\x01{more}\x01".encode()

    def first(self) -> bytes:
        """See ``ClientExchange.first``."""
        return self._first

    def respond(self, challenge: bytes) -> bytes | None:
        """See ``ClientExchange.respond``; a challenge says why the token was refused."""
        if not challenge:
            return None
        if len(challenge) > 4096:
            raise SaslExchangeError("the server's OAUTHBEARER message is too long")
        return b"\x01"
