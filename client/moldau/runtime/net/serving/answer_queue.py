"""The sending side of one connection: its answers leave in the order of its requests.

Answers that are ready leave at once. If one is not ready (a ``Deferred``), it and those behind it wait in a queue, and
the writer sends them: a task that waits for the first answer of the queue. A ``WaitingAnswer`` needs the writer only if
it ends outside of a turn (``turns``): the turn that ends it sends it too.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, cast

from moldau.runtime.net.buffers import byte_count
from moldau.runtime.net.serving.answers import Deferred, EarlyAnswer, FileRange, ResponsePart, WaitingAnswer
from moldau.runtime.tasks.sync import Signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.net.serving.held import HeldBytes
    from moldau.runtime.net.serving.request_times import RequestTimes
    from moldau.runtime.net.serving.request_traces import RequestTrace
    from moldau.runtime.net.serving.transmission import Transmission
    from moldau.runtime.net.serving.turns import EndedWaits
    from moldau.runtime.ports.environment import Clock

_NOTHING: tuple[ResponsePart, ...] = ()


def ready_bytes(parts: Sequence[ResponsePart]) -> int:
    """Returns the bytes of an answer that are in memory."""
    return sum(byte_count(part) for part in parts if not isinstance(part, FileRange))


class AnswerQueue:
    """The answers of one connection. Invariant: ``pending`` is empty unless the first of it is waited for or sent."""

    __slots__ = (
        "_clock",
        "_ended",
        "_failure",
        "_held",
        "_rest",
        "_times",
        "_transmission",
        "_work",
        "begun",
        "changed",
        "pending",
        "stalled_since_ms",
    )

    def __init__(
        self,
        transmission: Transmission,
        held: HeldBytes,
        clock: Clock,
        times: RequestTimes | None,
        ended: EndedWaits,
    ) -> None:
        """``held`` is charged for what waits here; ``times`` counts the time to each answer."""
        self._ended = ended
        self._work = Signal()  # notified when the writer has something to do
        self._rest: tuple[Sequence[ResponsePart], list[Sequence[ResponsePart]]] | None = None
        # the bytes of answers that a turn could not send, and the answers
        self._failure: Exception | None = None  # of a turn that sent answers; the writer raises it
        self._transmission = transmission
        self._held = held
        self._clock = clock
        self._times = times
        self.pending: deque[Sequence[ResponsePart] | Deferred] = deque()
        self.begun: deque[tuple[int, float, RequestTrace | None]] = deque()
        """API keys of the answers that have not left, in order, when their requests arrived, and their traces."""
        self.changed = Signal()
        """Notified when ``pending`` becomes shorter."""
        self.stalled_since_ms = clock.monotonic_ms()
        """When the last of ``pending`` left, or the first came."""

    def leave(self, answers: Sequence[Sequence[ResponsePart] | Deferred]) -> Sequence[ResponsePart]:
        """Sends the answers of a drain, or leaves them to the writer if one is not ready or others wait already.

        Returns the bytes that the transport did not take: the caller sends them before anything else.
        """
        if not answers:
            return _NOTHING
        if len(answers) == 1:
            parts = answers[0]
            if self.pending or not isinstance(parts, (list, tuple)):
                return self._queue(answers)
        elif self.pending or not all(isinstance(answer, (list, tuple)) for answer in answers):
            return self._queue(answers)
        else:
            parts = [part for each in cast("Sequence[Sequence[ResponsePart]]", answers) for part in each]
        rest = self._transmission.send_now(parts)
        if not rest:
            self.left(answers)
        return rest

    def _queue(self, answers: Sequence[Sequence[ResponsePart] | Deferred]) -> Sequence[ResponsePart]:
        is_idle = not self.pending
        if is_idle:
            self.stalled_since_ms = self._clock.monotonic_ms()
        for answer in answers:
            if isinstance(answer, (list, tuple)):
                self._held.answer_queued(ready_bytes(answer))
        self.pending.extend(answers)
        if is_idle and not self._waits_without_task():
            self._work.notify()
        return _NOTHING

    async def dispatch(self, answers: Sequence[Sequence[ResponsePart] | Deferred]) -> None:
        """Does what ``leave`` does, and waits until the transport has taken what left."""
        rest = self.leave(answers)
        if rest:
            await self.finish(rest, answers)

    async def finish(self, rest: Sequence[ResponsePart], answers: Sequence[Sequence[ResponsePart] | Deferred]) -> None:
        """Sends the rest of ready answers of which ``leave`` sent a part."""
        await self._transmission.send_rest(rest)
        self.left(answers)

    def left(self, answers: Sequence[Sequence[ResponsePart] | Deferred]) -> None:
        """Counts the time of the first answers, which have left; a farewell has no request of its own."""
        if self.begun and self._times is not None:
            begun = self.begun
            now_ms = self._clock.monotonic_ms()
            observed = self._times.answered
            for answer in answers:
                if not begun:
                    break
                api_key, begun_ms, trace = begun.popleft()
                observed(api_key, now_ms - begun_ms)
                if trace is not None:
                    trace.owner.answered(trace, now_ms, cast("Sequence[ResponsePart]", answer))

    def end_waits(self) -> None:
        """Lets requests be answered that need not wait."""
        for answer in self.pending:
            if isinstance(answer, EarlyAnswer):
                answer.end_wait()

    async def write(self) -> None:
        """Runs the writer: waits for answers that were not ready, and sends them in order."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._rest is not None:
                (rest, ready), self._rest = self._rest, None
                await self._transmission.send_rest(rest)
                self._sent(ready)
            while self.pending and not self._waits_without_task():
                await self._send_next()
            await self._work.wait()

    def _waits_without_task(self) -> bool:
        """Returns whether the next answer needs no writer yet; its end leads to ``leave_ready`` or the writer."""
        first = self.pending[0]
        if not isinstance(first, WaitingAnswer) or first.finished:
            return False
        first.when_finished(self._first_ended)
        return True

    def _first_ended(self) -> None:
        if not self._ended.note(self):
            self._work.notify()

    def leave_ready(self) -> None:
        """Sends the answers at the head that need not wait any more, in the turn that has ended the wait of the first.

        Bytes that the transport does not take, and errors, are left to the writer, which waits meanwhile.
        """
        try:
            ready = self._ready_answers()
            parts = self._parts_of(ready)
            rest = self._transmission.send_now(parts) if parts else _NOTHING
            if rest:
                self._rest = rest, ready
                self._work.notify()
                return
            self._sent(ready)
        except Exception as error:  # noqa: BLE001 - the writer raises it: a turn serves other connections too
            self._failure = error
            self._work.notify()
            return
        if self.pending and not self._waits_without_task():
            self._work.notify()

    async def _send_next(self) -> None:
        """Sends the next answers that are ready, in one call, or waits for one that is not and sends that."""
        ready = self._ready_answers()
        if not ready:
            ready.append(await cast("Deferred", self.pending[0]).wait())
        parts = self._parts_of(ready)
        if parts:
            await self._transmission.send(parts)
        self._sent(ready)

    def _parts_of(self, ready: list[Sequence[ResponsePart]]) -> Sequence[ResponsePart]:
        """Returns the parts of answers that are about to leave, and notes the end of their waits."""
        if self.begun and (trace := self.begun[0][2]) is not None:
            trace.owner.ready([begun[2] for begun in islice(self.begun, len(ready))])
        return ready[0] if len(ready) == 1 else [part for each in ready for part in each]

    def _sent(self, ready: list[Sequence[ResponsePart]]) -> None:
        """Removes answers that have left from the head of the queue."""
        for _ in ready:
            answer = self.pending.popleft()
            if isinstance(answer, (list, tuple)):
                self._held.answer_sent(ready_bytes(answer))
            else:
                self._held.request_answered()
        self.stalled_since_ms = self._clock.monotonic_ms()
        self.left(ready)
        self.changed.notify()

    def _ready_answers(self) -> list[Sequence[ResponsePart]]:
        """Returns the answers at the head of the queue that need not wait; they stay in it until they have left."""
        ready: list[Sequence[ResponsePart]] = []
        for answer in self.pending:
            if isinstance(answer, (list, tuple)):
                ready.append(answer)
            elif isinstance(answer, WaitingAnswer) and answer.finished:
                ready.append(answer.answer_now())
            else:
                break
        return ready
