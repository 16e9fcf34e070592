"""The answers of request handlers that wait, and the encoding of every response that a handler returns."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.api import APIS
from moldau.protocol.codec import decode
from moldau.protocol.framing import decode_response, encode_response
from moldau.protocol.messages.share_fetch import ShareFetchResponse
from moldau.protocol.schema import Response
from moldau.runtime.net.serving.answer_limit import encode_answer, encode_parts_in_turns
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.coordinator.runtime.completion import Completion
from moldau_broker.server.cluster_metadata.shared_answers import SharedAnswer
from moldau_broker.server.handlers.context import LongAnswer
from moldau_broker.server.quotas.toll import timed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from moldau.protocol.schema import Request
    from moldau.runtime.net.serving.answers import ResponsePart
    from moldau.runtime.net.serving.throttle import Throttle
    from moldau_broker.server.handlers.apis import ServedApi
    from moldau_broker.server.handlers.context import BrokerContext, Call
    from moldau_broker.server.quotas.broker_quotas import BrokerQuotas
    from moldau_broker.server.quotas.toll import Toll
    from moldau_quorum.authorization.checks import Verdict

_logger = EventLogger("moldau.broker.connection")
_CORRELATION: Final = struct.Struct(">i")
_SIZE_BYTES: Final = 4
_BODY_AT: Final = _SIZE_BYTES + _CORRELATION.size
DECODED_FACTOR = 10
"""Approximate ratio of a request's size in memory to its size on the wire; a list of int32 grows the most."""
HANDLER_TIMEOUT_MS = 600_000.0
"""Bound of each handler's wait, even if its request asks for more (JoinGroup waits longest)."""


def delivered_bytes(response: Response) -> int | None:
    """Returns the bytes of the records that a ShareFetch delivers; None for other responses."""
    if not isinstance(response, ShareFetchResponse):
        return None
    return sum(len(part.records or b"") for topic in response.responses for part in topic.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request with what its answer needs."""

    api: ServedApi
    call: Call
    body: bytes
    """That of the request on the wire."""
    quotas: BrokerQuotas
    throttle: Throttle
    toll: Toll | None

    def encode(self, response: Response) -> bytes:
        """Returns the frame of a response, or of a refusal if it is too large; the toll of the request is due."""
        return self._frame(self._permitted(response), self.call.correlation_id)

    def _permitted(self, response: Response) -> Response:
        if self.call.verdict is not None:
            response = self.call.verdict.answer(response, self.call.version)
        self.settle(response)
        return response

    def refuse(self, response: Response) -> bytes:
        """Returns the frame of the refusal by authorization; the toll of the request is due."""
        self.settle(response)
        return encode_response(response, self.call.version, self.call.correlation_id)

    def settle(self, response: Response) -> None:
        """Charges the toll, and writes the pause into the response.

        A response that the controller has throttled pauses the connection too.
        """
        announced_ms: int = getattr(response, "throttle_time_ms", 0)
        if announced_ms > 0:
            self.quotas.pause(self.throttle, announced_ms)
        if self.toll is not None:
            pause_ms = self.toll.due(delivered=delivered_bytes(response))
            if pause_ms > announced_ms and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = pause_ms

    def share(self, shared: SharedAnswer) -> Sequence[ResponsePart]:
        """Returns an answer that many clients get: its bytes are encoded once; the toll of the request is due.

        A client that has to pause gets an answer of its own, which says so.
        """
        pause_ms = 0 if self.toll is None else self.toll.due()
        call, frame = self.call, shared.frame
        if frame is None:
            assert shared.response is not None
            shared.frame = frame = self._frame(shared.response, 0)
            shared.response = None
        if pause_ms > 0:
            _, response = decode_response(APIS[self.api.key].response, call.version, memoryview(frame)[_SIZE_BYTES:])
            if hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = pause_ms
            return (self._frame(response, call.correlation_id),)
        return (frame[:_SIZE_BYTES] + _CORRELATION.pack(call.correlation_id), memoryview(frame)[_BODY_AT:])

    def _frame(self, response: Response, correlation_id: int) -> bytes:
        return encode_answer(response, self.call.version, correlation_id, request=self._request, logger=_logger)

    def _request(self) -> Request:
        return decode(self.api.request, self.call.version, self.body)

    async def finish(self, work: Awaitable[Response | SharedAnswer]) -> Sequence[ResponsePart]:
        """Completes a handler within ``HANDLER_TIMEOUT_MS``, and encodes its response."""
        toll = self.toll
        with trio.fail_after(HANDLER_TIMEOUT_MS / 1000):
            response = await (work if toll is None else timed(toll, work))
        if isinstance(response, SharedAnswer):
            return self.share(response)
        version, correlation_id = self.call.version, self.call.correlation_id
        return await encode_parts_in_turns(
            self._permitted(response), version, correlation_id, request=self._request, logger=_logger
        )


class HandlerAnswer:
    """The answer of a handler that waits, which starts when the answers before it have left.

    The answers before it may have taken minutes: ``judge_again`` checks the request by changed rights, and returns None
    if they are the same.
    """

    __slots__ = ("_context", "_exchange", "_judge_again", "_request", "held_bytes")

    def __init__(
        self, context: BrokerContext, request: Request, exchange: Exchange, judge_again: Callable[[], Verdict | None]
    ) -> None:
        self.held_bytes = DECODED_FACTOR * len(exchange.body)
        self._judge_again = judge_again
        self._exchange = exchange
        self._context = context
        self._request = request

    async def wait(self) -> Sequence[ResponsePart]:
        """Runs the handler."""
        exchange, request = self._exchange, self._request
        verdict = self._judge_again()
        if verdict is not None:
            if verdict.remainder is None:
                assert verdict.refused is not None
                return (exchange.refuse(verdict.refused),)
            request = verdict.remainder
            exchange = replace(exchange, call=replace(exchange.call, verdict=verdict))
        assert exchange.api.handle is not None
        outcome = exchange.api.handle(self._context, request, exchange.call)
        assert not isinstance(outcome, Response | Completion | LongAnswer)
        return await exchange.finish(outcome)


class LateAnswer:
    """The answer of a handler with long work, which starts when the answers before it have left."""

    __slots__ = ("_answer", "_exchange", "held_bytes")

    def __init__(self, answer: LongAnswer, exchange: Exchange) -> None:
        self.held_bytes = DECODED_FACTOR * len(exchange.body)
        self._answer = answer
        self._exchange = exchange

    async def wait(self) -> Sequence[ResponsePart]:
        """Runs the rest of the handler."""
        return await self._exchange.finish(self._answer.finish())


class CompletionAnswer:
    """The answer of a coordinator that has accepted the request but has no response yet."""

    __slots__ = ("_completion", "_exchange")

    def __init__(self, completion: Completion, exchange: Exchange) -> None:
        self._completion = completion
        self._exchange = exchange

    async def wait(self) -> Sequence[ResponsePart]:
        """Waits for the coordinator, which has its own deadlines."""
        return (self._exchange.encode(await self._completion.wait()),)
