"""Identity of the peer of a connection, as the broker knows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANONYMOUS: Final = "User:ANONYMOUS"
"""Kafka's principal of a peer that did not authenticate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Authenticated identity of a peer, and where it connected.

    ``principal`` has Kafka's form ``User:name``. ``mechanism`` is the SASL mechanism, ``SSL`` for a client certificate,
    and empty for a peer that did not authenticate.
    """

    principal: str = ANONYMOUS
    mechanism: str = ""
    host: str
    listener_name: str
    security_protocol: str
    by_token: bool = False
    """Whether it authenticated with a delegation token."""

    @property
    def name(self) -> str:
        """The principal without its type."""
        return self.principal.partition(":")[2]

    @property
    def is_anonymous(self) -> bool:
        """Whether the peer did not authenticate."""
        return self.principal == ANONYMOUS


class Peer:
    """Holder of the identity of one connection's peer; the gate replaces it when the peer has authenticated."""

    __slots__ = ("identity",)

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
