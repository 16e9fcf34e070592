"""Ports between a SASL session and its mechanism, and the outcomes of one step. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The client has authenticated as ``user``; ``data`` is the last answer.

    ``expires_wall_ms`` is the end of the credential's life (Unix epoch), None for one without an end.
    """

    user: str
    data: bytes = b""
    expires_wall_ms: int | None = None
    by_token: bool = False
    """Whether it was a delegation token of the user."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Rejected:
    """The client has not authenticated.

    ``cause`` is for the broker's log only. ``message`` goes to the client and does not depend on whether the user
    exists; None stands for the general text of the mechanism. ``claimed`` is the user that the client claimed to be.
    """

    cause: str
    message: str | None = None
    claimed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """The server answers with ``data`` and expects another token.

    ``refusal`` is set where the decision has been made, and the answer only gives the reason; a client may leave then.
    """

    data: bytes
    refusal: Rejected | None = None


Outcome = Challenge | Accepted | Rejected


class ServerExchange(Protocol):
    """The server's side of one exchange of a mechanism."""

    def step(self, token: bytes) -> Outcome:
        """Takes a token of the client; raises nothing, whatever the token holds."""
        ...


class ClientExchange(Protocol):
    """The client's side of one exchange of a mechanism."""

    def first(self) -> bytes:
        """Returns the first token."""
        ...

    def respond(self, challenge: bytes) -> bytes | None:
        """Returns the next token; None once the exchange is complete on this side.

        Raises:
            SaslExchangeError: the server's message is malformed, or the server failed to prove its identity.
        """
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the server has proved all that the mechanism demands of it."""
        ...


class SaslExchangeError(Exception):
    """Reports that the server's side of an exchange is wrong. The text holds no secret."""
