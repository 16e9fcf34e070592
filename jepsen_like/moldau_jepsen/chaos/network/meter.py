"""Counts the messages that pass the proxies of a run: requests and responses by API and version, and error codes.

A meter follows the frames of both directions of a connection. It reads the fixed start of the header of requests. It
decodes responses up to ``BODY_BYTES_MAX`` completely, because error codes can be anywhere; longer responses, which
carry records, are counted without error codes. It reads plain text; it reports a connection that does not look like
Kafka's protocol, and ignores the rest of it.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from moldau.protocol.api import APIS
from moldau.protocol.codec import DecodeError
from moldau.protocol.framing import decode_response
from moldau.protocol.schema import Struct
from moldau_jepsen.chaos.network.rules import CLIENT
from moldau_jepsen.coverage.coverage import PRIVATE_MESSAGES, MessageKind
from moldau_quorum.log.port import QUORUM_MESSAGE_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

BODY_BYTES_MAX = 4 * 1024
FRAME_BYTES_MAX = 256 * 1024 * 1024
PENDING_MAX = 1_000
"""Requests of a connection whose answers are awaited; some never come (a producer's with acks=0)."""
_REQUEST_START_BYTES = 12  # size, API key, version, correlation id
_RESPONSE_START_BYTES = 8  # size, correlation id


class ErrorSeen(NamedTuple):
    """An error code in answers of a kind of server."""

    api_key: int
    server: str
    code: int


class WireMeter:
    """Counts messages. It is not for use by several threads at once."""

    def __init__(self, controllers: Container[int]) -> None:
        """``controllers`` are node ids; all others but ``CLIENT`` are brokers'."""
        self._controllers = controllers
        self.messages: Counter[MessageKind] = Counter()
        self.errors: Counter[ErrorSeen] = Counter()
        self.long_answers = 0
        """Answers that were too long to be looked into for error codes."""
        self.unread = 0
        """Connections that were given up, and answers that could not be decoded."""

    def connection(self, source: int, target: int) -> tuple[Callable[[bytes], None], Callable[[bytes], None]]:
        """Returns what takes the bytes of a new connection: those of the member that opened it, and those back."""
        followed = _Connection(self, self._role(source), self._role(target))
        return followed.requests.feed, followed.responses.feed

    def _role(self, member: int) -> str:
        if member == CLIENT:
            return "client"
        return "controller" if member in self._controllers else "broker"


class _Connection:
    """Both directions."""

    def __init__(self, meter: WireMeter, client: str, server: str) -> None:
        self._meter = meter
        self._client = client
        self._server = server
        self._pending: dict[int, tuple[int, int]] = {}  # API key and version by correlation id
        self._answered: tuple[int, int] = (-1, -1)
        self.requests = _Stream(_REQUEST_START_BYTES, self._begin_request, None)
        self.responses = _Stream(_RESPONSE_START_BYTES, self._begin_response, self._end_response)

    def _give_up(self) -> int:
        self._meter.unread += 1
        self.requests.is_followed = self.responses.is_followed = False
        return 0

    def _begin_request(self, start: bytes) -> int:
        size, key = int.from_bytes(start[:4], "big", signed=True), int.from_bytes(start[4:6], "big", signed=True)
        version, correlation_id = int.from_bytes(start[6:8], "big", signed=True), int.from_bytes(start[8:12], "big")
        if not _REQUEST_START_BYTES - 4 <= size <= FRAME_BYTES_MAX or (key not in APIS and key not in PRIVATE_MESSAGES):
            return self._give_up()
        self._meter.messages[MessageKind(key, version, True, self._client, self._server)] += 1
        if key != QUORUM_MESSAGE_KEY:  # those go one way
            self._pending[correlation_id] = key, version
            if len(self._pending) > PENDING_MAX:
                del self._pending[next(iter(self._pending))]
        return size + 4 - _REQUEST_START_BYTES

    def _begin_response(self, start: bytes) -> int:
        size, correlation_id = int.from_bytes(start[:4], "big", signed=True), int.from_bytes(start[4:8], "big")
        answered = self._pending.pop(correlation_id, None)
        if not _RESPONSE_START_BYTES - 4 <= size <= FRAME_BYTES_MAX or answered is None:
            return self._give_up()
        self._answered = answered
        self._meter.messages[MessageKind(*answered, False, self._server, self._client)] += 1
        if size > BODY_BYTES_MAX:
            self._meter.long_answers += 1
        return size + 4 - _RESPONSE_START_BYTES

    def _end_response(self, frame: bytes) -> None:
        key, version = self._answered
        api = APIS.get(key)
        if api is None:
            return
        try:
            _, message = decode_response(api.response, version, memoryview(frame))
        except (DecodeError, ValueError):
            self._meter.unread += 1
            return
        for code in error_codes(message):
            if code:
                self._meter.errors[ErrorSeen(key, self._server, code)] += 1


class _Stream:
    """The frames of one direction."""

    __slots__ = ("_begin", "_body", "_end", "_left", "_start", "_start_bytes", "is_followed")

    def __init__(self, start_bytes: int, begin: Callable[[bytes], int], end: Callable[[bytes], None] | None) -> None:
        """Calls ``begin`` at the start of each frame, and ``end`` with whole frames.

        ``begin`` takes the first ``start_bytes`` of a frame and returns how many bytes follow. ``end`` takes frames of
        up to ``BODY_BYTES_MAX`` bytes, without their size.
        """
        self._start_bytes = start_bytes
        self._begin = begin
        self._end = end
        self._start = bytearray()
        self._body: bytearray | None = None
        self._left = 0
        self.is_followed = True

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        position = 0
        while position < len(data) and self.is_followed:
            if self._left:
                taken = data[position : position + self._left]
                if self._body is not None:
                    self._body += taken
                self._left -= len(taken)
            else:
                taken = data[position : position + self._start_bytes - len(self._start)]
                self._start += taken
                if len(self._start) == self._start_bytes:
                    self._begin_frame()
            position += len(taken)
            if self._body is not None and not self._left:
                frame, self._body = bytes(self._body), None
                if self._end is not None and self.is_followed:
                    self._end(frame)

    def _begin_frame(self) -> None:
        start = bytes(self._start)
        self._start.clear()
        self._left = self._begin(start)
        if self._end is not None and len(start) - 4 + self._left <= BODY_BYTES_MAX:
            self._body = bytearray(start[4:])


def error_codes(message: Struct) -> Iterator[int]:
    """Yields every error code in a message, at any depth."""
    for name, is_code in _ways(type(message)):
        value = getattr(message, name)
        if is_code:
            yield value
        elif isinstance(value, Struct):
            yield from error_codes(value)
        elif value is not None:
            for part in value:
                yield from error_codes(part)


@functools.cache
def _ways(kind: type[Struct]) -> tuple[tuple[str, bool], ...]:
    """Fields that are error codes, and fields below which there are some."""
    found: list[tuple[str, bool]] = []
    for name, spec in kind.__fields__.items():
        if name == "error_code" or name.endswith("_error_code"):
            found.append((name, True))
        elif spec.struct is not None and _ways(spec.struct):
            found.append((name, False))
    return tuple(found)
