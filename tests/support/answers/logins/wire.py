"""A connection that sends what it is asked to, in any order, to a listener with logins."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import trio

from moldau.protocol.api import APIS
from moldau.protocol.framing import decode_response, encode_request
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.messages.sasl_handshake import SaslHandshakeRequest
from moldau.runtime.sasl.core.scram import ScramClient

if TYPE_CHECKING:
    from moldau.protocol.schema import Request
    from support.answers.session import Answer, AnswerSession

CLOSED = "the connection was closed"
ANSWER_S = 10.0
CLIENT_ID = "same-answers"
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def plain(user: str, password: str = "password", role: str = "") -> bytes:
    """Returns the token of PLAIN."""
    return f"{role}\0{user}\0{password}".encode()


class Wire:
    """One connection; each message is a step of the scenario."""

    def __init__(self, session: AnswerSession, stream: trio.SocketStream, word: str) -> None:
        """``word`` begins the names of its steps."""
        self._session = session
        self._stream = stream
        self._word = word
        self._received = b""
        self._number = 0

    async def bare(self, step: str, token: bytes) -> bytes | None:
        """Sends bytes as a frame; returns the frame of the answer, None if the connection is closed instead.

        Of the answer is kept whether it is empty: mechanisms put numbers into theirs that each run draws.
        """
        answer = await self._exchange(token)
        self._session.answers[f"{self._word}: {step}"] = CLOSED if answer is None else bool(answer)
        return answer

    async def ask(self, step: str, request: Request, version: int) -> Answer:
        """Sends a request."""
        self._number += 1
        frame = encode_request(request, version, self._number, CLIENT_ID)
        found = await self._exchange(frame[4:])
        answer: Answer = CLOSED
        if found is not None:
            _, answer = decode_response(APIS[request.__api_key__].response, version, found)
        self._session.answers[f"{self._word}: {step}"] = _kept(self._session, request, answer, version)
        return answer

    async def handshake(self, step: str, mechanism: str, version: int = 1) -> Answer:
        """Names a mechanism."""
        return await self.ask(step, SaslHandshakeRequest(mechanism=mechanism), version)

    async def token(self, step: str, token: bytes, version: int = 2) -> Answer:
        """Sends a token in a request."""
        return await self.ask(step, SaslAuthenticateRequest(auth_bytes=token), version)

    async def works(self, step: str) -> None:
        """Sends a usual request."""
        answer = await self.ask(step, MetadataRequest(topics=[]), 9)
        outcome = CLOSED if answer == CLOSED else "answered" if answer.brokers else "refused"
        self._session.answers[f"{self._word}: {step}"] = outcome

    async def login(self, step: str, user: str, mechanism: str = "PLAIN") -> None:
        """Logs in with PLAIN."""
        await self.handshake(f"{step}, handshake", mechanism)
        await self.token(f"{step}, token", plain(user))

    async def scram(
        self, step: str, mechanism: str, user: str, password: str = "password", *, extensions: str = ""
    ) -> Answer:
        """Logs in with SCRAM; returns the last answer."""

        def salted(salt: bytes, iterations: int) -> bytes:
            return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), salt, iterations)

        client = ScramClient(mechanism, user, salted, "a-nonce-of-a-client", extensions)
        await self.handshake(f"{step}, handshake", mechanism)
        answer = await self.token(f"{step}, first", client.first())
        if answer == CLOSED or answer.error_code or bytes(answer.auth_bytes).startswith(b"e="):
            return answer
        proof = client.respond(bytes(answer.auth_bytes))
        assert proof is not None
        return await self.token(f"{step}, proof", proof)

    async def close(self) -> None:
        """Ends the connection."""
        await self._stream.aclose()

    async def _exchange(self, frame: bytes) -> bytes | None:
        try:
            with trio.fail_after(ANSWER_S):
                await self._stream.send_all(len(frame).to_bytes(4, "big") + frame)
                return await self._frame()
        except (trio.BrokenResourceError, EOFError):
            return None

    async def _frame(self) -> bytes:
        size = int.from_bytes(await self._take(4), "big")
        return await self._take(size)

    async def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            more = await self._stream.receive_some()
            if not more:
                raise EOFError
            self._received += more
        taken, self._received = self._received[:count], self._received[count:]
        return taken


def _kept(session: AnswerSession, request: Request, answer: Answer, version: int) -> object:
    """Returns what of an answer is compared: not the numbers that a mechanism draws."""
    if answer == CLOSED:
        return CLOSED
    if isinstance(request, SaslAuthenticateRequest):
        lifetime_ms = getattr(answer, "session_lifetime_ms", 0)
        refused = bytes(answer.auth_bytes) if bytes(answer.auth_bytes).startswith(b"e=") else bool(answer.auth_bytes)
        return [session.comparable(answer.error_code, "error_code"), refused, lifetime_ms]
    return session.comparable(answer, version=version)


async def connected(session: AnswerSession, word: str, *, renewed: bool = True) -> Wire:
    """Opens a connection to the listener on which sessions end, or to the one on which they do not."""
    address = session.broker.where_sessions_end if renewed else session.broker.for_users
    host, port = address.rsplit(":", 1)
    return Wire(session, await trio.open_tcp_stream(host, int(port)), word)
