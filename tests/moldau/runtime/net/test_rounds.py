"""Goal: one round over the buffer of a connection takes the frames that it may, and no others.

Method: the loop of one connection without its tasks; the test fills the buffer and notes what the handler gets.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from moldau.runtime.net.serving.answers import CloseConnection
from moldau.runtime.net.serving.connection_loop import ConnectionLoop
from moldau.runtime.net.serving.parked_reader import HEAVY_BYTES
from moldau.runtime.net.serving.server import ServerLimits
from moldau.runtime.net.serving.transmission import NEVER_MS
from moldau.runtime.net.serving.turns import EndedWaits
from moldau.runtime.tasks.sync import ByteBudget

PRODUCE, FETCH, SASL_HANDSHAKE = 0, 1, 17


def frame(key: int, size: int = 20) -> bytes:
    """A request whose frame has ``size`` bytes behind the length."""
    return struct.pack(">ihhi", size, key, 0, 1) + bytes(size - 8)


class Round:
    """A connection with ``buffered`` in its buffer."""

    def __init__(self, buffered: bytes = b"", **limits: Any) -> None:
        self.now_ms = 0.0
        server: Any = SimpleNamespace(
            limits=ServerLimits(buffer_bytes=64 * 1024, **limits),
            budget=ByteBudget(1 << 20),
            clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms),
            pool=None,
            times=None,
            ended_waits=EndedWaits(),
            listener_name="PLAINTEXT",
            requests=0,
            keepers={},
        )
        self.server = server
        connection: Any = SimpleNamespace(peer_address=("127.0.0.1", 1), wait_readable=trio.sleep_forever)
        self.handled: list[object] = []
        self.loop = ConnectionLoop(server, connection)
        self.loop._handler = self  # type: ignore[assignment]
        self.receive(buffered)

    def receive(self, more: bytes) -> None:
        received = self.loop._received
        received.buffer[received.end : received.end + len(more)] = more
        received.end += len(more)

    def handle(self, request: memoryview) -> tuple[bytes, ...]:
        self.handled.append((struct.unpack_from(">h", request)[0], len(request)))
        return (b"answer",)

    def flush(self) -> None:
        self.handled.append("flush")


def test_the_largest_frame_is_allowed_and_one_byte_more_is_not() -> None:
    allowed = Round(frame(FETCH, 100), request_bytes_max=100)
    assert not allowed.loop._handle_round([], 9)
    assert allowed.handled == [(FETCH, 100), "flush"]
    for key, size in ((FETCH, 101), (FETCH, -1)):
        refused = Round(struct.pack(">ihhi", size, key, 0, 1) + bytes(200), request_bytes_max=100)
        with pytest.raises(CloseConnection, match=f"frame size {size} is outside 8..100 .socket.request.max.bytes."):
            refused.loop._handle_round([], 9)
        assert refused.handled == ["flush"]


def test_a_heavy_frame_that_is_not_the_first_ends_the_round() -> None:
    seen = Round(frame(FETCH) + frame(FETCH, HEAVY_BYTES) + frame(FETCH))
    assert seen.loop._handle_round([], 9)
    assert seen.handled == [(FETCH, 20), "flush"]
    assert seen.loop.starts_heavy()
    assert not seen.loop._handle_round([], 9), "the first may be heavy"
    assert seen.handled[2:] == [(FETCH, HEAVY_BYTES), (FETCH, 20), "flush"]


def test_large_produce_requests_share_a_flush() -> None:
    seen = Round(frame(PRODUCE, HEAVY_BYTES) * 2 + frame(FETCH, HEAVY_BYTES - 1) + frame(PRODUCE)[:9])
    assert not seen.loop.starts_heavy()
    assert not seen.loop._handle_round([], 9)
    assert seen.handled == [(PRODUCE, HEAVY_BYTES)] * 2 + [(FETCH, HEAVY_BYTES - 1), "flush"]
    assert seen.loop._received.pending == 9, "the frame that has begun stays"


@pytest.mark.parametrize("arrived", range(4, 11))
def test_a_login_is_seen_once_its_api_key_has_arrived(arrived: int) -> None:
    seen = Round(frame(SASL_HANDSHAKE))
    seen.loop._received.end = arrived  # the buffer still has the bytes of an earlier request behind its end
    assert seen.loop._is_sasl_next() == (arrived >= 6)
    assert not Round(frame(FETCH)).loop._is_sasl_next()


def test_a_buffer_with_bytes_in_it_is_kept() -> None:
    for pending, quiet_since_ms, is_parked, shrinks in ((0, 5, True, True), (1, 5, True, False), (0, 4, True, False)):
        seen, released = Round(bytes(pending)), []
        received: Any = SimpleNamespace(pending=pending, arrived_ms=5, release=lambda: released.append(1))  # noqa: B023
        seen.loop._received, seen.loop._parked.is_parked = received, is_parked
        seen.loop.shrink_if_parked(quiet_since_ms)
        assert released == [1] * shrinks, (pending, quiet_since_ms)
        seen.loop._parked.is_parked = False
        seen.loop.shrink_if_parked(quiet_since_ms)
        assert released == [1] * shrinks, "the reader holds a view"


@pytest.mark.parametrize(("kept", "now_ms", "ends"), [(100, 30, False), (101, 30, True), (100, 200, True)])
def test_a_connection_within_its_share_has_more_time(kept: int, now_ms: float, ends: bool) -> None:
    seen = Round(overdraft_ms=30, held_ms=200)
    answers: Any = SimpleNamespace(pending=[1], stalled_since_ms=0.0)
    held: Any = SimpleNamespace(charged=kept, others_wait=True)
    seen.loop._answers, seen.loop._held = answers, held

    async def main() -> None:  # a cancel scope asks the clock of the run
        seen.loop.enforce_share(now_ms, 100)
        assert seen.loop.is_ending == ends

    trio.run(main)


@pytest.mark.parametrize("waits_for", ["room for answers", "memory", "the end of a pause"])
def test_what_the_server_delays_is_no_slowness_of_the_peer(waits_for: str) -> None:
    """A frame has begun, and its rest may lie in the transport: nothing is read meanwhile."""
    seen, deadlines = Round(frame(FETCH) + frame(FETCH)[:9], answers_max=1), []
    loop: Any = seen.loop

    async def wait(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        deadlines.append(loop._received.frame_deadline_ms)
        seen.now_ms = 60_000.0
        loop._answers.pending.clear()

    async def main() -> None:
        loop._received.frame_deadline_ms = 30_000.0
        loop._server.keepers, loop._answers = {}, SimpleNamespace(pending=deque(), begun=deque(), changed=None)
        if waits_for == "memory":
            loop._held = SimpleNamespace(unpaid=5, pay=wait)
            await loop._pay_for_waits()
        elif waits_for == "room for answers":
            loop._answers.pending.append(b"answer")
            loop._answers.changed = SimpleNamespace(wait_until=wait)
            loop._answers.dispatch = wait
            await loop._handle_buffered()
        else:
            loop._throttle = SimpleNamespace(until_ms=50_000.0, wait=wait)
            await loop._sit_out()

    trio.run(main)
    assert deadlines[0] == math.inf


def test_a_frame_that_has_begun_waits_for_the_end_of_a_pause() -> None:
    """Its rest waits in the transport meanwhile, so its time begins again when it is read on."""

    async def main() -> None:
        paused = Round(frame(FETCH)[:9])
        paused.loop._received.make_room()
        assert paused.loop._received.frame_deadline_ms == paused.server.limits.frame_ms
        paused.loop._throttle.extend(1_000.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(paused.loop._sit_out)
            await trio.testing.wait_all_tasks_blocked()
            assert paused.loop._received.frame_deadline_ms == NEVER_MS
            paused.loop._throttle.lift()
        paused.loop._received.make_room()
        assert paused.loop._received.frame_deadline_ms == paused.server.limits.frame_ms

    trio.run(main)


def test_a_connection_that_waits_for_memory_is_watched() -> None:
    """The sweeper asks those that it knows for bytes which others need, and shares the budget among them."""

    async def main() -> None:
        waiting = Round(struct.pack(">i", 1 << 19) + bytes((64 << 10) - 4))
        budget = waiting.server.budget
        assert budget.acquire_nowait(budget.limit)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.loop._make_room)
            await trio.testing.wait_all_tasks_blocked()
            assert list(waiting.server.keepers) == [waiting.loop]
            assert waiting.loop.keeps_or_waits
            budget.release(budget.limit)
        assert waiting.loop._received.reserved == budget.used > 0

    trio.run(main)


def test_the_time_in_line_for_memory_is_not_slowness() -> None:
    """A frame whose connection waits for bytes of the budget is not read meanwhile."""

    async def main() -> None:
        slow = Round(struct.pack(">i", 1 << 19) + bytes((64 << 10) - 4))
        received, budget = slow.loop._received, slow.server.budget
        assert budget.acquire_nowait(budget.limit)
        needed = received.make_room()
        assert received.note_progress(slow.now_ms) == 0.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(received.reserve, needed)
            await trio.testing.wait_all_tasks_blocked()
            slow.now_ms = 900.0
            budget.release(budget.limit)
        assert received.note_progress(slow.now_ms) == 0.0
        slow.now_ms = 1_000.0
        assert received.note_progress(slow.now_ms) == 100.0

    trio.run(main)
