"""SASL PLAIN (RFC 4616): ``[authzid] NUL authcid NUL password`` in one message. Pure."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from moldau.runtime.sasl.core.mechanism import Accepted, Outcome, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable

INVALID: Final = "Authentication failed: Invalid username or password"
"""Kafka's text, the same for an unknown user and for a wrong password."""

_NO_USER: Final = b"\0no user has this password: a token cannot hold NUL\0"


class PlainServer:
    """Checks one message against the configured passwords."""

    def __init__(self, password_of: Callable[[str], str | None]) -> None:
        """Takes the lookup of a user's password."""
        self._password_of = password_of

    def step(self, token: bytes) -> Outcome:
        """See ``ServerExchange.step``."""
        try:
            parts = token.decode("utf-8").split("\0")
        except UnicodeDecodeError:
            return Rejected(cause="the message is not UTF-8", message=INVALID)
        if len(parts) != 3:
            return Rejected(
                cause=f"the message has {len(parts)} parts instead of 3",
                message="Invalid SASL/PLAIN response: expected 3 tokens",
            )
        authorization_id, user, password = parts
        if not user:
            return Rejected(cause="the user name is empty", message="Authentication failed: username not specified")
        if not password:
            return Rejected(
                cause="the password is empty", message="Authentication failed: password not specified", claimed=user
            )
        expected = self._password_of(user)
        # An unknown user costs one comparison too, so that the time of an answer reveals nothing.
        known = _NO_USER if expected is None else expected.encode()
        if not hmac.compare_digest(known, password.encode()):
            return Rejected(
                cause="unknown user" if expected is None else "wrong password", message=INVALID, claimed=user
            )
        if authorization_id and authorization_id != user:
            return Rejected(
                cause="the authorization id is another user",
                message="Authentication failed: Client requested an authorization id that is different from username",
                claimed=user,
            )
        return Accepted(user=user)


class PlainClient:
    """Sends user and password."""

    is_complete = True

    def __init__(self, user: str, password: str) -> None:
        self._token = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        """See ``ClientExchange.first``."""
        return self._token

    def respond(self, challenge: bytes) -> bytes | None:
        """See ``ClientExchange.respond``; PLAIN has no second message."""
        return None
