"""The peers on accepted connections: a peer's messages count only after it has proved its address.

Each controller opens one connection to every other member, and messages go one way on it. When B accepts a connection
whose sender claims to be A, it sends a random number over its own connection to the address that the membership has for
A, and waits until that number comes back over the accepted connection:

    A -> B  HELLO nonce              first message of A's connection
    B -> A  CHALLENGE nonce, value   over B's connection to A
    A -> B  PROOF value              if the nonce is that of A's present connection to B

So a stranger that knows ids, cluster and epochs still cannot speak for a controller, unless it owns the controller's
address. With mutual TLS the certificate must fit that address as well (``node_principals``). From
the hello on the sender of a connection is fixed. Any other frame is refused, and the connection is closed.

A hello of a node that is no member waits: it may be one that is about to join.
"""

from __future__ import annotations

import hmac
from collections import deque
from typing import TYPE_CHECKING, Final

from moldau_quorum.log.port import QuorumMessageRefusedError
from moldau_quorum.log.raft.envelope import (
    HANDSHAKE_FORMAT,
    Envelope,
    MessageError,
    Payload,
    WrongDirectoryError,
    seal,
    unseal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.log import EventLogger
    from moldau.values import Buffer
    from moldau_quorum.log.raft.engine_node import EngineNode
    from moldau_quorum.log.raft.peers import PeerLink

HELLO, CHALLENGE, PROOF = 0, 1, 2
TOKEN_BYTES: Final = 16
HANDSHAKE_BYTES_MAX: Final = 1024
"""Most bytes that a peer may send at a time before it has proven its identity."""
UNPROVEN_MAX: Final = 64
"""Connections whose sender is not proven; the oldest gives way to a newer one."""


def hello(envelope: Envelope, nonce: bytes) -> bytes:
    """Returns the first message of a connection."""
    return seal(envelope, HANDSHAKE_FORMAT, (HELLO, nonce))


def challenge(envelope: Envelope, nonce: bytes, value: bytes) -> bytes:
    """Asks the node at the recipient's address whether the connection of that nonce is its own."""
    return seal(envelope, HANDSHAKE_FORMAT, (CHALLENGE, nonce, value))


def proof(envelope: Envelope, value: bytes) -> bytes:
    """Answers a challenge, on the connection that it was about."""
    return seal(envelope, HANDSHAKE_FORMAT, (PROOF, value))


def draw_token(environment: Environment) -> bytes:
    """Draws a nonce or a challenge."""
    return environment.random.getrandbits(8 * TOKEN_BYTES).to_bytes(TOKEN_BYTES, "big")


class Session:
    """See ``QuorumSession``."""

    __slots__ = ("_challenge", "_nonce", "_sessions", "is_proven", "refusal", "refusal_of_host", "sender")

    def __init__(self, sessions: Sessions, refusal_of_host: Callable[[str], str | None] | None) -> None:
        """Starts without a message."""
        self._sessions = sessions
        self._nonce = b""
        self._challenge: bytes | None = None
        self.refusal_of_host = refusal_of_host
        self.sender: int | None = None
        self.is_proven = False
        self.refusal: str | None = None
        """Why nothing more is taken."""

    def handle(self, body: Buffer) -> None:
        """See ``QuorumSession``."""
        try:
            self._take(body)
        except MessageError as error:
            self._sessions.refuse(self, str(error))
            raise QuorumMessageRefusedError(str(error)) from error

    def close(self) -> None:
        """See ``QuorumSession``."""
        self._sessions.ended(self)

    def _take(self, body: Buffer) -> None:
        if self.refusal is not None:
            raise MessageError(self.refusal)
        if not self.is_proven and len(body) > HANDSHAKE_BYTES_MAX:
            raise MessageError(f"{len(body)} bytes come from a peer that has not proved its identity")
        envelope, payload_format, payload = unseal(body)
        if self.sender is not None and envelope.sender != self.sender:
            raise MessageError(f"node {envelope.sender} speaks on the connection of node {self.sender}")
        if payload_format == HANDSHAKE_FORMAT:
            self._sessions.identity_check(envelope)
            self._shake_hands(envelope.sender, payload)
        elif not self.is_proven:
            raise MessageError(f"node {envelope.sender} has not shown that it is the one")
        else:
            self._sessions.deliver(self, envelope, payload_format, payload, len(body))

    def _shake_hands(self, sender: int, payload: Payload) -> None:
        kind, *tokens = payload or (None,)
        count = 2 if kind == CHALLENGE else 1
        if len(tokens) != count or not all(type(token) is bytes and len(token) == TOKEN_BYTES for token in tokens):
            raise MessageError(f"node {sender} sends a malformed handshake")
        first, last = bytes(tokens[0]), bytes(tokens[-1])  # type: ignore[call-overload]
        if kind == HELLO and self.sender is None:
            self.sender, self._nonce = sender, first
            self._sessions.greeted(self)
        elif kind == CHALLENGE and self.sender is not None:
            self._sessions.challenged(sender, first, last)
        elif kind == PROOF and self._challenge is not None and hmac.compare_digest(self._challenge, last):
            self.is_proven = True
            self._sessions.proven(self)
        else:
            raise MessageError(f"node {sender} sends part {kind} of a handshake that does not belong there")

    def challenge_over(self, link: PeerLink, value: bytes) -> None:
        """Asks the node at the other end of ``link`` whether this is its connection."""
        self._challenge = value
        link.send_challenge(self._nonce, value)


class Sessions:
    """The sessions of a node, and its links by which they are challenged."""

    def __init__(
        self,
        environment: Environment,
        *,
        node: Callable[[], EngineNode | None],
        links: Mapping[int, PeerLink],
        enqueue: Callable[[Session, Callable[[float], None], int], None],
        logger: EventLogger,
    ) -> None:
        """``enqueue`` gets what takes a checked message at a given time, and the size of the message."""
        self._environment = environment
        self._node = node
        self._links = links
        self._enqueue = enqueue
        self._log = logger
        self._unproven: deque[Session] = deque()
        self.refused = 0
        """Connections that were refused since the start."""
        self.ignored = 0
        """Messages that were left unread since the start, because a directory was another one."""

    def accept(self, refusal_of_host: Callable[[str], str | None] | None) -> Session:
        """See ``MetadataLog.accept_session``."""
        return Session(self, refusal_of_host)

    def refuse(self, session: Session, reason: str) -> None:
        """Refuses all further messages of the connection."""
        if session.refusal is None:
            session.refusal = reason
            self.refused += 1
            if self.refused & (self.refused - 1) == 0:  # the 1st, 2nd, 4th, 8th ...: a flood stays readable
                self._log.warning("quorum-message-refused", reason=reason, refused=self.refused)
        self.ended(session)

    def ended(self, session: Session) -> None:
        """Forgets a session."""
        if session in self._unproven:
            self._unproven.remove(session)

    def identity_check(self, envelope: Envelope) -> None:
        """Checks that a message is meant for this node.

        Raises:
            MessageError: it is not.
        """
        node = self._node()
        if node is None:
            raise MessageError("this node has not opened its log yet")
        node.identity.check(envelope)

    def deliver(self, session: Session, envelope: Envelope, payload_format: int, payload: Payload, size: int) -> None:
        """Handles a message of a peer that is known."""
        node = self._node()
        if node is None:
            raise MessageError("this node has not opened its log yet")
        try:
            take = node.prepare(envelope, payload_format, payload)
        except WrongDirectoryError as error:
            self.ignore(error)
            return
        self._enqueue(session, take, size)

    def ignore(self, error: WrongDirectoryError) -> None:
        """Counts a message that is left unread; its connection stays open."""
        self.ignored += 1
        if self.ignored & (self.ignored - 1) == 0:
            self._log.warning("quorum-message-ignored", reason=error, ignored=self.ignored)

    # --- handshakes

    def greeted(self, session: Session) -> None:
        """Challenges a session that now has a sender, or waits until that node is a member."""
        if len(self._unproven) >= UNPROVEN_MAX:
            self.refuse(self._unproven[0], "too many peers have not proved their identity")
        self._unproven.append(session)
        link = self._links.get(session.sender if session.sender is not None else -1)
        if link is None:
            self._log.debug("quorum-peer-unknown", peer=session.sender)
        else:
            link.hasten()
            self._challenge(session, link)

    def linked(self, peer_id: int) -> None:
        """Challenges the sessions that claim to come from a peer, now that the link to it is connected."""
        link = self._links.get(peer_id)
        for session in [session for session in self._unproven if session.sender == peer_id]:
            if link is not None:
                self._challenge(session, link)

    def _challenge(self, session: Session, link: PeerLink) -> None:
        if not link.is_connected:
            return
        reason = session.refusal_of_host(link.address[0]) if session.refusal_of_host is not None else None
        if reason is not None:
            self.refuse(session, f"node {session.sender}: {reason}")
            return
        session.challenge_over(link, draw_token(self._environment))

    def challenged(self, sender: int, nonce: bytes, value: bytes) -> None:
        """Answers a peer that asks whether a connection is this node's."""
        link = self._links.get(sender)
        if link is not None:
            link.prove(nonce, value)

    def proven(self, session: Session) -> None:
        """Accepts the sender of a session, which has proved that it is the peer that it claims to be."""
        self.ended(session)
