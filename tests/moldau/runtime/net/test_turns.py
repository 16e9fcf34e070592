"""Goal: a turn serves what has arrived in the order receive, flush, send, and no further than its bounds.

Method: a server of fake readers, which note the parts of a turn; queues and arrivals that note what they are asked.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.runtime.net.serving.parked_reader import HEAVY_BYTES, ParkedReader
from moldau.runtime.net.serving.turns import BYTES_MAX, ENDED_MAX, REQUESTS_MAX, EndedWaits, take_turn


class Server:
    arrivals: Any = None
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 7.0)

    def __init__(self) -> None:
        self.requests = 1000
        self.ended_waits = EndedWaits()
        self.parts: list[tuple[str, str]] = []

    def reader(self, name: str, size: int = 10, requests: int = 1) -> Any:
        def receive(_: float) -> int:
            self.parts.append(("receive", name))
            self.requests += requests
            return size

        note = self.parts.append
        return SimpleNamespace(
            receive=receive, flush=lambda: note(("flush", name)), answer=lambda: note(("answer", name))
        )


def test_all_receive_then_all_flush_then_all_answer() -> None:
    server = Server()
    waiting = [server.reader("a"), server.reader("nothing", size=-1), server.reader("b", size=0)]
    assert take_turn(server, waiting) == 3
    assert server.parts == [
        *(("receive", name) for name in ("a", "nothing", "b")),
        *(("flush", name) for name in "ab"),
        *(("answer", name) for name in "ab"),
    ]


@pytest.mark.parametrize(
    ("size", "requests", "served"),
    [(1, 0, 5), (1, REQUESTS_MAX // 2, 2), (1, REQUESTS_MAX, 1), (BYTES_MAX // 2, 0, 2), (BYTES_MAX - 1, 0, 2)],
)
def test_a_turn_ends_at_its_bounds(size: int, requests: int, served: int) -> None:
    server = Server()
    assert take_turn(server, [server.reader(name, size, requests) for name in "abcde"]) == served


def test_connections_without_bytes_end_no_turn() -> None:
    server = Server()
    waiting = [server.reader("gone", size=-1, requests=REQUESTS_MAX), server.reader("a")]
    assert take_turn(server, waiting) == 2


def test_ended_waits_are_answered_at_the_end_of_their_turn() -> None:
    ended, left = EndedWaits(), []
    queue: Any = SimpleNamespace(leave_ready=lambda: left.append("left"))
    assert not ended.note(queue), "no turn runs, so the writer must send"
    ended.begin()
    assert ended.note(queue)
    assert not left
    ended.end()
    assert left == ["left"]
    assert not ended.note(queue)
    ended.begin()
    ended.end()
    assert left == ["left"], "a queue leaves once for each note"


def test_one_turn_answers_a_bounded_number_of_ended_waits() -> None:
    ended, left = EndedWaits(), []
    queue: Any = SimpleNamespace(leave_ready=lambda: left.append(1))
    ended.begin()
    assert [ended.note(queue) for _ in range(ENDED_MAX + 2)] == [True] * ENDED_MAX + [False] * 2
    ended.end()
    assert len(left) == ENDED_MAX


@pytest.mark.parametrize("watches", [True, False])
def test_a_closed_reader_is_no_longer_watched(watches: bool) -> None:
    forgotten: list[object] = []
    arrivals: Any = SimpleNamespace(watch=lambda connection, reader: watches, forget=forgotten.append)
    parts: list[Any] = [SimpleNamespace() for _ in range(6)]
    connection: Any = SimpleNamespace()
    reader = ParkedReader(*parts)
    reader.watch(connection, arrivals, parts[-1])
    reader.close()
    assert forgotten == ([connection] if watches else [])


@pytest.mark.parametrize("is_heavy", [True, False])
def test_a_turn_handles_large_requests_that_are_not_heavy(is_heavy: bool) -> None:
    handled: list[str] = []
    requests: Any = SimpleNamespace(
        starts_heavy=lambda: is_heavy, handle_frames=lambda answers, most: handled.append("frames"), must_wait=bool
    )
    buffer = bytearray(2 * HEAVY_BYTES)
    received: Any = SimpleNamespace(buffer=buffer, view=memoryview(buffer), start=0, end=0, arrived_ms=0.0)
    connection: Any = SimpleNamespace(receive_into_nowait=lambda view: HEAVY_BYTES)
    other: Any = SimpleNamespace(until_ms=0.0, pending=())
    reader = ParkedReader(requests, connection, received, other, other, other)
    assert reader.receive(5.0) == -1, "the reader runs, and receives by itself"
    reader._task = other
    assert reader.receive(5.0) == HEAVY_BYTES
    assert (received.end, received.arrived_ms) == (HEAVY_BYTES, 5.0)
    assert handled == ([] if is_heavy else ["frames"])


@pytest.mark.parametrize("free", [0, 1])
def test_a_full_buffer_leaves_the_next_receive_to_the_reader(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that did not fit have been announced already: nothing else would look for them."""
    woken: list[object] = []
    monkeypatch.setattr(ParkedReader, "_wake", lambda reader, left: woken.append(left))
    requests: Any = SimpleNamespace(
        starts_heavy=bool, must_wait=bool, handle_frames=lambda answers, most: False, flush=lambda answers: None
    )
    buffer = bytearray(100)
    received: Any = SimpleNamespace(
        buffer=buffer, view=memoryview(buffer), start=0, end=0, arrived_ms=0.0, make_room=lambda: 0
    )
    connection: Any = SimpleNamespace(receive_into_nowait=lambda view: len(view) - free)
    other: Any = SimpleNamespace(until_ms=0.0, pending=(), leave=lambda answers: (), held=0)
    reader = ParkedReader(requests, connection, received, other, other, other)
    reader._task = other
    assert reader.receive(5.0) == 100 - free
    reader.flush()
    reader.answer()
    assert len(woken) == (free == 0)
