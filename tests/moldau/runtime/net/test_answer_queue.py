"""Goal: an error of one connection's answers ends that connection, and not the turn that serves others too.

The writer sends what a turn leaves behind.
Method: a queue in a turn of its own, with a tracer that fails, or with an answer that needs the writer.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from moldau.runtime.net.serving.answer_queue import AnswerQueue
from moldau.runtime.net.serving.answers import WaitingAnswer
from moldau.runtime.net.serving.held import HeldBytes
from moldau.runtime.net.serving.turns import EndedWaits
from moldau.runtime.tasks.sync import ByteBudget

if TYPE_CHECKING:
    from collections.abc import Sequence


class Poll(WaitingAnswer):
    """A request that waits until the test ends it."""

    def answer_now(self) -> Sequence[bytes]:
        return (b"answer",)


class Later:
    """An answer that the writer waits for."""

    async def wait(self) -> Sequence[bytes]:
        await trio.lowlevel.checkpoint()
        return (b"later",)


class Transmission:
    sent = 0

    def send_now(self, parts: Sequence[bytes]) -> Sequence[bytes]:
        self.sent += len(parts)
        return ()

    async def send(self, parts: Sequence[bytes]) -> None:
        self.send_now(parts)


class Times:
    """Fails with each answer that has left."""

    def answered(self, api_key: int, took_ms: float) -> None:
        raise ValueError("the tracer failed")


class Clock:
    def monotonic_ms(self) -> float:
        return 0.0


def test_a_failure_after_the_answers_left_stays_in_its_queue() -> None:
    async def main() -> None:
        ended, transmission = EndedWaits(), Transmission()
        parts: Any = (transmission, HeldBytes(ByteBudget(1000), 1000), Clock(), Times(), ended)
        queue, poll = AnswerQueue(*parts), Poll()
        queue._held.request_waits(1)
        queue.begun.append((1, 0.0, None))
        queue.leave([poll])
        ended.begin()
        poll.finish()
        ended.end()
        assert transmission.sent == 1
        with pytest.raises(ValueError, match="the tracer failed"):
            await queue.write()

    trio.run(main)


def test_the_writer_goes_on_behind_an_answer_of_a_turn() -> None:
    """Else the connection would answer nothing any more, for no turn sends an answer that needs a task."""

    async def main() -> None:
        ended, transmission = EndedWaits(), Transmission()
        parts: Any = (transmission, HeldBytes(ByteBudget(1000), 1000), Clock(), None, ended)
        queue, poll = AnswerQueue(*parts), Poll()
        answers: Any = [poll, Later()]
        for answer in answers:
            queue._held.request_waits(1)
            queue.leave([answer])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.write)
            await trio.testing.wait_all_tasks_blocked()
            ended.begin()
            poll.finish()
            ended.end()
            assert transmission.sent == 1
            await trio.testing.wait_all_tasks_blocked()
            assert (transmission.sent, list(queue.pending), queue._held.held) == (2, [], 0)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_connection_stalls_from_its_first_waiting_answer_on() -> None:
    """One that was idle for long is not ended as soon as a request of it waits while others need memory."""
    now_ms, transmission = 0.0, Transmission()
    clock: Any = SimpleNamespace(monotonic_ms=lambda: now_ms)
    parts: Any = (transmission, HeldBytes(ByteBudget(1000), 1000), clock, None, EndedWaits())
    queue, stalled = AnswerQueue(*parts), []
    for at in (50.0, 60.0):
        now_ms = at
        queue._held.request_waits(1)
        queue.leave([Poll()])
        stalled.append(queue.stalled_since_ms)
    assert stalled == [50.0, 50.0]


@pytest.mark.parametrize("in_turn", [False, True])
def test_the_writer_sends_what_no_turn_sends(in_turn: bool) -> None:
    async def main() -> None:
        ended, transmission = EndedWaits(), Transmission()
        parts: Any = (transmission, HeldBytes(ByteBudget(1000), 1000), Clock(), None, ended)
        queue, poll = AnswerQueue(*parts), Poll()
        queue._held.request_waits(1)
        queue.leave([poll])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.write)
            await trio.testing.wait_all_tasks_blocked()
            if in_turn:
                ended.begin()
            poll.finish()
            await trio.testing.wait_all_tasks_blocked()
            assert transmission.sent == (0 if in_turn else 1)
            if in_turn:
                ended.end()
            assert (transmission.sent, queue._held.held) == (1, 0)
            nursery.cancel_scope.cancel()

    trio.run(main)


class Full(Transmission):
    """Takes nothing at once, as a transport whose buffer is full."""

    finished = 0

    def send_now(self, parts: Sequence[bytes]) -> Sequence[bytes]:
        return parts

    async def send(self, parts: Sequence[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        self.sent += len(parts)

    async def send_rest(self, rest: Sequence[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        self.finished += len(rest)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_writer_finishes_what_the_transport_did_not_take(count: int) -> None:
    """The rest may be that of several answers, all of which have left at its end; that is progress of the peer."""

    async def main() -> None:
        ended, transmission, clock = EndedWaits(), Full(), Clock()
        parts: Any = (transmission, HeldBytes(ByteBudget(1000), 1000), clock, None, ended)
        queue, polls = AnswerQueue(*parts), [Poll() for _ in range(count)]
        for _ in polls:
            queue._held.request_waits(1)
        queue.leave(polls)
        clock.monotonic_ms = lambda: 9.0  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.write)
            ended.begin()
            for poll in reversed(polls):
                poll.finish()
            ended.end()
            assert list(queue.pending) == polls, "their bytes have not left"
            assert queue.stalled_since_ms == 0.0
            await trio.testing.wait_all_tasks_blocked()
            assert (transmission.finished, transmission.sent, list(queue.pending)) == (count, 0, [])
            assert (queue._held.held, queue.stalled_since_ms) == (0, 9.0)
            nursery.cancel_scope.cancel()

    trio.run(main)
