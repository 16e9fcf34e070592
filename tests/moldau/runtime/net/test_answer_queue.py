"""Goal: an error of one connection's answers ends that connection, and not the turn that serves others too.

Method: a queue with a tracer that fails, in a turn of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

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


class Transmission:
    sent = 0

    def send_now(self, parts: Sequence[bytes]) -> Sequence[bytes]:
        self.sent += len(parts)
        return ()


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
