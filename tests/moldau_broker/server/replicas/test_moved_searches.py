"""Goal: a search by time finds its record although the log moves to another directory meanwhile.

Method: one log of many segments in two directories, whose move ends between two steps of the search.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, cast

import pytest

from moldau_broker.log.partition.lookups import SEGMENTS_PER_STEP
from moldau_broker.log.values import MAX_TIMESTAMP, TimestampOffset
from moldau_broker.server.replicas.partition import Partition
from support.log.lab import A, create, open_manager, put
from support.log.model import START_MS, VirtualMachine

if TYPE_CHECKING:
    from collections.abc import Generator

    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.log.partition.timestamps import Step

SEGMENTS = 3 * SEGMENTS_PER_STEP


def searched() -> tuple[LogManager, Partition]:
    """Returns a log of many segments, with a record each, and its partition."""
    manager = open_manager(VirtualMachine(1), ["/d1", "/d2"])
    log = create(manager, A, directory="/d1")
    for number in range(SEGMENTS):
        put(log, b"v", now=START_MS + number)
        log.storage.roll(log.log_end_offset, START_MS)
    log.update_high_watermark(log.log_end_offset)
    return manager, Partition(A, uuid.UUID(int=1), log, cast("Any", None))


def outcome(search: Generator[Step, None, TimestampOffset | None]) -> TimestampOffset | None:
    """Runs a search to its end."""
    for _ in range(2 * SEGMENTS):
        try:
            next(search)
        except StopIteration as end:
            found: TimestampOffset | None = end.value
            return found
    pytest.fail("the search does not end")


@pytest.mark.parametrize("timestamp_ms", [MAX_TIMESTAMP, START_MS + SEGMENTS - 1])
def test_a_search_goes_on_in_the_moved_log(timestamp_ms: int) -> None:
    """The former log has no segments any more; a client that hears of no record would go on at the end of the log."""
    manager, partition = searched()
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    while not manager.copy_to_future(A, START_MS):
        pass
    search = partition.search_timestamp(timestamp_ms)
    assert next(search) is None
    partition.log = manager.replace_current_with_future(A)
    assert outcome(search) == TimestampOffset(timestamp_ms=START_MS + SEGMENTS - 1, offset=SEGMENTS - 1, leader_epoch=1)


@pytest.mark.parametrize("moves", [False, True])
def test_a_search_behind_the_newest_record_finds_nothing(moves: bool) -> None:
    """It looks at the log once, or once more if the log has moved meanwhile."""
    manager, partition = searched()
    former = partition.log
    search = partition.search_timestamp(START_MS + SEGMENTS)
    if moves:
        manager.alter_replica_log_dir(A, "/d2", START_MS)
        while not manager.copy_to_future(A, START_MS):
            pass
        next(search)
        partition.log = manager.replace_current_with_future(A)
    assert outcome(search) is None
    assert (partition.log is former) is not moves
