"""Goal: a search finds the record that all records of the log have it find, though segments leave the disk meanwhile.

Method: all logs of three records, all times, and all moments at which records leave the disk; the answers to all
questions about remote segments.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio

from moldau_broker.log.values import (
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    MAX_TIMESTAMP,
    TimestampOffset,
)
from moldau_broker.remote_log.core.names import Listing, RemoteSegment
from moldau_broker.remote_log.core.remote_log import RemoteLog
from moldau_broker.server.remote_reading.offsets import RemoteQuestion, answer, search

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

COUNT = 3
TURNS = 4
"""Turns after each of which records may leave the disk."""
STARTS = [each for each in itertools.product(range(COUNT + 1), repeat=TURNS) if list(each) == sorted(each)]
LOGS = list(itertools.product((1, 2), repeat=COUNT))


def first_of(times: Sequence[int], offsets: range, wanted: int) -> TimestampOffset | None:
    """Returns the first record of a part of the log at or after a time; for MAX_TIMESTAMP that with the largest."""
    if wanted == MAX_TIMESTAMP:
        wanted = max((times[offset] for offset in offsets), default=0)
    found = [offset for offset in offsets if times[offset] >= wanted]
    return TimestampOffset(timestamp_ms=times[found[0]], offset=found[0], leader_epoch=0) if found else None


class TestSearch:
    """A disk whose first records leave it while a search goes on; what has left is in the store."""

    def run(self, times: Sequence[int], starts: Sequence[int], wanted: int, *, keeps: bool) -> TimestampOffset | None:
        """``keeps``: a search of the disk also finds the records that leave it meanwhile."""
        log = SimpleNamespace(log_start_offset=0, local_log_start_offset=starts[0])

        def search_local(timestamp_ms: int) -> Generator[None, None, TimestampOffset | None]:
            start = log.local_log_start_offset
            yield
            return first_of(times, range(start if keeps else log.local_log_start_offset, COUNT), timestamp_ms)

        steps = search(SimpleNamespace(log=log, search_timestamp=search_local), wanted)  # type: ignore[arg-type]
        reply, is_last = None, False
        for turn in range(1, 5 * TURNS):
            try:
                step = steps.send(reply)
            except StopIteration as end:
                found: TimestampOffset | None = end.value
                return found
            reply = None
            if isinstance(step, RemoteQuestion):
                assert not is_last, "the answer was known"
                reply = first_of(times, range(log.local_log_start_offset), wanted)
                if wanted == MAX_TIMESTAMP and reply is not None and reply.timestamp_ms < step.local_max_ms:
                    reply = None
                is_last = reply is not None or wanted == MAX_TIMESTAMP
            log.local_log_start_offset = starts[min(turn, TURNS - 1)]
        raise AssertionError("the search finds no end")

    @pytest.mark.parametrize("wanted", [1, 2, 3, MAX_TIMESTAMP])
    def test_no_record_is_passed_over(self, wanted: int) -> None:
        for times, starts, keeps in itertools.product(LOGS, STARTS, (True, False)):
            found = self.run(times, starts, wanted, keeps=keeps)
            assert found == first_of(times, range(COUNT), wanted), (times, starts, keeps)


def segment(base: int, last: int, epoch: int) -> RemoteSegment:
    return RemoteSegment(base, last, epoch, 5, False, UUID(int=base + 1), 10)


class Reader:
    """Knows the segments of a log, and notes the searches."""

    def __init__(self, segments: list[RemoteSegment]) -> None:
        epochs = {each.last_offset: each.last_epoch for each in segments}
        self._known = RemoteLog(Listing(segments, []), lambda offset: epochs[offset], 0)
        self.searches: list[tuple[object, ...]] = []

    async def known_or_listed(self, partition: object) -> RemoteLog:
        return self._known

    async def search_timestamp(self, partition: object, timestamp_ms: int) -> None:
        self.searches.append(("time", partition, timestamp_ms))

    async def largest_timestamp(self, partition: object, above_ms: int) -> None:
        self.searches.append(("largest", partition, above_ms))


def answer_of(
    timestamp_ms: int, segments: list[RemoteSegment], *, start: int = 0, local_start: int = 0
) -> tuple[int, int, int] | None:
    log = SimpleNamespace(
        log_start_offset=start,
        local_log_start_offset=local_start,
        epochs=SimpleNamespace(epoch_for_offset=lambda offset: 100 + offset),
    )
    question = RemoteQuestion(SimpleNamespace(log=log), timestamp_ms)  # type: ignore[arg-type]
    reader: Any = Reader(segments)
    found = trio.run(answer, reader, question)
    return None if found is None else (found.timestamp_ms, found.offset, found.leader_epoch)


SEGMENTS = [segment(0, 9, 1), segment(10, 19, 3)]


def test_the_latest_tiered_record_ends_the_last_segment() -> None:
    assert answer_of(LATEST_TIERED_TIMESTAMP, SEGMENTS, start=5, local_start=15) == (-1, 19, 3)
    assert answer_of(LATEST_TIERED_TIMESTAMP, [], start=5, local_start=15) is None


@pytest.mark.parametrize(
    ("segments", "start", "local_start", "pending"),
    [
        (SEGMENTS, 5, 15, 20),
        (SEGMENTS, 25, 25, 25),  # retention, or DeleteRecords, has passed them
        ([], 5, 5, 5),  # nothing was copied yet
        ([], 5, 6, None),  # segments that were copied are not known
    ],
)
def test_the_first_pending_record_follows_the_last_segment(
    segments: list[RemoteSegment], start: int, local_start: int, pending: int | None
) -> None:
    found = answer_of(EARLIEST_PENDING_UPLOAD_TIMESTAMP, segments, start=start, local_start=local_start)
    assert found == (None if pending is None else (-1, pending, 100 + pending))


def test_times_are_searched_for() -> None:
    reader: Any = Reader(SEGMENTS)
    partition: Any = SimpleNamespace()
    trio.run(answer, reader, RemoteQuestion(partition, 7, 3))
    trio.run(answer, reader, RemoteQuestion(partition, MAX_TIMESTAMP, 3))
    assert reader.searches == [("time", partition, 7), ("largest", partition, 3)]
