"""Goal: the share workload says of no record that it was acquired later than it may have been.

Method: the workload's poll with a member whose polls are written out, on a clock that they move.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import trio

from moldau.cluster.metadata import TopicPartition
from moldau_jepsen.checkers.group.share import Delivered
from moldau_jepsen.workloads.share import FETCH_WAIT_MS, ShareOptions, ShareWorkload

if TYPE_CHECKING:
    from collections.abc import Iterator

UNCERTAIN_MS = FETCH_WAIT_MS + ShareOptions().request_timeout_ms + 100.0
POLL_MS = 10.0
WORK_MS = 5_000.0
"""How long the member works on the records of a poll."""


def begins(*polls: tuple[int, list[tuple[int, int]]]) -> list[tuple[int, float]]:
    """Returns offsets and the times from which on they may have been acquired.

    Each poll asks for so many records and returns offsets with their delivery counts.
    """
    clock = SimpleNamespace(now_ms=0.0)
    environment: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: clock.now_ms))
    workload = ShareWorkload("b1:9092", ShareOptions(), environment)
    answers: Iterator[list[tuple[int, int]]] = iter([answer for _, answer in polls])

    async def poll(timeout_ms: float, *, max_records: int) -> list[Any]:
        await trio.lowlevel.checkpoint()
        clock.now_ms += POLL_MS
        place = TopicPartition("t", 0)
        return [
            SimpleNamespace(topic_partition=place, offset=offset, value=b"1", delivery_count=count)
            for offset, count in next(answers)
        ]

    async def main() -> None:
        for limit, _ in polls:
            await workload._poll(SimpleNamespace(poll=poll), 1, limit)  # type: ignore[arg-type]
            clock.now_ms += WORK_MS

    trio.run(main)
    return [(each.place[1], each.begun_ms + UNCERTAIN_MS) for each in workload.events if isinstance(each, Delivered)]


def test_a_record_that_came_before_is_as_old_as_the_buffer() -> None:
    """It is returned after the end of its lock too, and another member may have accepted it before this poll began.

    The workload took it for acquired shortly before the poll, and the checker for delivered again.
    """
    full, next_full, rest = (1, [(0, 1)]), (1, [(1, 2)]), (3, [(2, 2), (3, 1)])
    third = 2 * (POLL_MS + WORK_MS)
    assert begins(full, next_full, rest) == [(0, 0.0), (1, 0.0), (2, 0.0), (3, third)]


def test_an_empty_buffer_holds_nothing_old() -> None:
    """A poll that returns fewer records than it asked for has emptied the buffer."""
    second = POLL_MS + WORK_MS
    assert begins((2, [(0, 1)]), (1, [(1, 2)]), (1, [(2, 3)])) == [(0, 0.0), (1, POLL_MS), (2, POLL_MS)]
    assert begins((2, []), (2, []), (2, [(0, 2)])) == [(0, second + POLL_MS)]
