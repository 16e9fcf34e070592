"""Notes when the parts of a request begin and end, and passes slow and drawn requests to a sink.

The sink is a narrow port: exporters (OpenTelemetry, in the launcher) and tests implement it. A request is passed on
if it was slow or was drawn. Slow means ``slow_ms`` from its arrival until its answer has left; the wait of
an API that waits for news by design (Fetch) does not count. Until then a request costs one small object with the first
bytes of its frame, which name the client and the topic. Without a tracer nothing of this runs.

A request has three stages: it is handled (a Produce: appended, with the flush that it shares with the requests that
arrived together), it waits (for in-sync replicas, records, the controller, a coordinator), and its answer is sent.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.codec import DecodeError, ProtocolError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import decode_request_header, decode_response
from moldau.protocol.schema import Struct
from moldau.runtime.net.buffers import byte_count
from moldau.runtime.net.serving.answers import FileRange
from moldau.values import join_address

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from moldau.runtime.net.serving.answers import ResponsePart
    from moldau.runtime.ports.environment import Clock, Connection

HEAD_BYTES: Final = 320
"""So much of a frame is kept: header, client id, and the first topic of a Produce or Fetch."""
ANSWER_BYTES_MAX: Final = 16 * 1024
"""Larger answers are not decoded for the result, which is then ``answered``."""
POLLS: Final = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})
"""APIs whose wait is what their clients want."""
HANDLED: Final[Mapping[int, str]] = {ApiKey.PRODUCE: "append", ApiKey.FETCH: "read"}
WAITED: Final[Mapping[int, str]] = {
    ApiKey.PRODUCE: "wait-for-in-sync-replicas",
    ApiKey.FETCH: "wait-for-records",
    ApiKey.SHARE_FETCH: "wait-for-records",
}
_BY_ID: Final = 13
"""Produce and Fetch name topics by id from this version on."""
_FETCH_WITHOUT_REPLICA: Final = 15
_FETCH_SESSIONS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a request, in milliseconds of Unix time."""

    name: str
    begun_ms: float
    ended_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """A request that was slow or drawn."""

    api: str
    """Kafka's name."""
    version: int
    correlation_id: int
    client_id: str
    listener: str
    peer: str
    topic: str
    """The first topic of a Produce or Fetch: its name, or its id if the name is not known; empty: none is named."""
    result: str
    """The first error of the answer, ``NONE``, or ``answered`` if the answer is large or sent from a file."""
    is_slow: bool
    begun_ms: float
    ended_ms: float
    stages: tuple[Stage, ...]


class RequestTrace:
    """One request under way; times are of the monotonic clock."""

    __slots__ = ("handled_ms", "handling_ms", "head", "listener", "owner", "peer", "ready_ms", "received_ms")

    def __init__(
        self, owner: RequestTraces, head: bytes, listener: str, peer: str, received_ms: float, handling_ms: float
    ) -> None:
        self.owner = owner
        self.head = head
        self.listener = listener
        self.peer = peer
        self.received_ms = received_ms
        self.handling_ms = self.handled_ms = self.ready_ms = handling_ms


class RequestTraces:
    """The tracer of a node's listeners."""

    def __init__(
        self,
        clock: Clock,
        draws: random.Random,
        sink: Callable[[TracedRequest], None],
        *,
        slow_ms: float,
        sample_ratio: float,
        waits: Mapping[int, str] | None = None,
    ) -> None:
        """``sink`` must neither wait nor fail. ``waits`` names the waiting stage of further APIs."""
        self._clock = clock
        self._draws = draws
        self._sink = sink
        self._slow_ms = slow_ms
        self._sample_ratio = sample_ratio
        self._waits = {**(waits or {}), **WAITED}
        self.topic_name: Callable[[bytes], str | None] = _unknown
        """Returns the name of a topic's id; the broker sets it once it knows topics."""

    def begin(self, frame: memoryview, received_ms: float, listener: str, connection: Connection) -> RequestTrace:
        """Notes that a request is about to be handled; ``frame`` is borrowed."""
        host, port = connection.peer_address[:2]
        head, peer = bytes(frame[:HEAD_BYTES]), join_address(host, port)
        return RequestTrace(self, head, listener, peer, received_ms, self._clock.monotonic_ms())

    def handled(self, traces: Sequence[RequestTrace]) -> None:
        """Notes that requests were handled, and what they wrote flushed."""
        now_ms = self._clock.monotonic_ms()
        for trace in traces:
            trace.handled_ms = trace.ready_ms = now_ms

    def ready(self, traces: Sequence[RequestTrace | None]) -> None:
        """Notes that answers need not wait any more; None stands for requests from before the tracer."""
        now_ms = self._clock.monotonic_ms()
        for trace in traces:
            if trace is not None:
                trace.ready_ms = now_ms

    def answered(self, trace: RequestTrace, now_ms: float, answer: Sequence[ResponsePart]) -> None:
        """Notes that the answer has left; hands the request on if it was slow or is drawn."""
        if len(trace.head) < _KEY_VERSION_BYTES:
            return  # a bare SASL token
        key, version = _KEY_VERSION(trace.head)
        took_ms = now_ms - trace.received_ms
        if key in POLLS:
            took_ms -= trace.ready_ms - trace.handled_ms
        is_slow = took_ms >= self._slow_ms
        if not is_slow and not (self._sample_ratio and self._draws.random() < self._sample_ratio):
            return
        try:
            header = decode_request_header(trace.head)
            correlation_id, client_id, topic = header.correlation_id, header.client_id or "", b""
            if key in (ApiKey.PRODUCE, ApiKey.FETCH):
                topic = first_topic(trace.head, header.body_offset, key, version)
        except DecodeError:
            return  # the client id is longer than the head
        ahead_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        names = (HANDLED.get(key, "handle"), self._waits.get(key, "wait"), "send")
        times = (trace.handling_ms, trace.handled_ms, trace.ready_ms, now_ms)
        self._sink(
            TracedRequest(
                api=_api_name(key),
                version=version,
                correlation_id=correlation_id,
                client_id=client_id,
                listener=trace.listener,
                peer=trace.peer,
                topic=self._topic(topic, version),
                result=result_of(key, version, answer),
                is_slow=is_slow,
                begun_ms=trace.received_ms + ahead_ms,
                ended_ms=now_ms + ahead_ms,
                stages=tuple(
                    Stage(name=name, begun_ms=begun_ms + ahead_ms, ended_ms=ended_ms + ahead_ms)
                    for name, begun_ms, ended_ms in zip(names, times[:-1], times[1:], strict=True)
                    if ended_ms > begun_ms
                ),
            )
        )

    def _topic(self, found: bytes, version: int) -> str:
        if version < _BY_ID or not found:
            return found.decode(errors="replace")
        return self.topic_name(found) or found.hex()


_KEY_VERSION_BYTES: Final = 4
_KEY_VERSION = struct.Struct(">hh").unpack_from


def _unknown(_: bytes) -> str | None:
    return None


def _api_name(key: int) -> str:
    api = APIS.get(key)
    return f"API {key}" if api is None else api.name


def first_topic(head: bytes, offset: int, api_key: int, version: int) -> bytes:
    """Returns the first topic of a Produce or Fetch, by name or id; empty if it names none within ``head``."""
    try:
        position = _before_topics(head, offset, api_key, version)
        count, position = _length(head, position, is_flexible=version >= _flexible_from(api_key), width=4)
        if count < 1:
            return b""
        if version >= _BY_ID:
            return head[position : position + 16] if len(head) >= position + 16 else b""
        size, position = _length(head, position, is_flexible=version >= _flexible_from(api_key), width=2)
        return head[position : position + size] if size > 0 and len(head) >= position + size else b""
    except IndexError:
        return b""


def _flexible_from(api_key: int) -> int:
    return 9 if api_key == ApiKey.PRODUCE else 12


def _before_topics(head: bytes, offset: int, api_key: int, version: int) -> int:
    """Returns the position of the array of topics."""
    if api_key == ApiKey.PRODUCE:
        size, position = _length(head, offset, is_flexible=version >= _flexible_from(api_key), width=2)
        return position + max(0, size) + 6  # the transactional id, acks and timeout
    position = offset if version >= _FETCH_WITHOUT_REPLICA else offset + 4
    position += 13  # the longest wait, least and most bytes, isolation level
    return position + 8 if version >= _FETCH_SESSIONS else position


def _length(head: bytes, position: int, *, is_flexible: bool, width: int) -> tuple[int, int]:
    """Returns a length (-1: null) and the position behind it.

    Raises:
        IndexError: the head ends before.
    """
    if not is_flexible:
        if len(head) < position + width:
            raise IndexError
        return int.from_bytes(head[position : position + width], "big", signed=True), position + width
    value = shift = 0
    while True:
        byte = head[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value - 1, position
        shift += 7


def result_of(api_key: int, version: int, answer: Sequence[ResponsePart]) -> str:
    """Returns the first error of an answer, ``NONE``, or ``answered`` if it cannot be looked at cheaply."""
    parts = [part for part in answer if not isinstance(part, FileRange)]
    api = APIS.get(api_key)
    if api is None or len(parts) < len(answer) or sum(map(byte_count, parts)) > ANSWER_BYTES_MAX:
        return "answered"
    try:
        _, response = decode_response(api.response, version, b"".join(parts)[4:])
    except ProtocolError:  # also of an ApiVersions request whose version is not served: its answer has another one
        return "answered"
    code = next(_errors(response), 0)
    return ErrorCode.of(code).name


def _errors(message: Struct) -> Iterator[int]:
    """Yields the error codes of a message and of its parts that are not 0."""
    for name in message.__fields__:
        value = getattr(message, name)
        if name == "error_code" and value:
            yield value
        elif isinstance(value, Struct):
            yield from _errors(value)
        elif isinstance(value, list | tuple):
            for each in value:
                if isinstance(each, Struct):
                    yield from _errors(each)
