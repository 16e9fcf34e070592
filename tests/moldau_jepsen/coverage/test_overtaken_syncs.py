"""Goal: each way in which a log changes while it is synced is counted, and only while it is synced.

Method: the production log on a virtual disk, whose works begin and end by hand; the writes of a quorum's member.
"""

from __future__ import annotations

from collections import Counter

import pytest

from moldau_broker.log.values import run_work
from moldau_jepsen.coverage.situations import Situation, situations_watched
from moldau_quorum.log.raft.core.writes import Writes
from support.log.lab import create, open_manager, put
from support.log.model import START_MS, VirtualMachine

VALUE = b"v" * 200


def cut(log):
    log.truncate_to(2)


def cut_above(log):
    for _ in range(3):
        put(log, VALUE)
    log.truncate_to(4)


def roll(log):
    log.storage.roll(log.log_end_offset, START_MS)


def drop(log):
    log.storage.drop_oldest(1)


@pytest.mark.parametrize(
    ("change", "situation"),
    [
        (cut, Situation.CUT_DURING_SYNC),
        (cut_above, None),
        (roll, Situation.ROLLED_DURING_SYNC),
        (drop, Situation.DELETED_DURING_SYNC),
    ],
)
def test_a_change_counts_only_while_the_log_is_synced(change, situation) -> None:
    counts: Counter[Situation] = Counter()
    with situations_watched(counts):
        manager = open_manager(VirtualMachine(1), ["/d1"], segment_bytes=100_000)
        log = create(manager)
        for _ in range(2):
            put(log, VALUE)
        roll(log)
        for _ in range(2):
            put(log, VALUE)
        assert counts == {}
        work = manager.flush_work(log)
        change(log)
        assert counts == ({} if situation is None else {situation: 1})
        run_work(work)
        roll(log)
    assert +counts == ({} if situation is None else {situation: 1})


def test_a_sync_that_fails_is_over() -> None:
    counts: Counter[Situation] = Counter()
    with situations_watched(counts):
        manager = open_manager(VirtualMachine(1), ["/d1"], segment_bytes=100_000)
        log = create(manager)
        put(log, VALUE)
        work = manager.flush_work(log)
        work.failed(OSError(24, "too many open files"))
        roll(log)
    assert counts == {}


def test_a_write_of_the_quorum_that_is_cut_below_its_end_counts() -> None:
    counts: Counter[Situation] = Counter()
    with situations_watched(counts):
        writes = Writes(3)
        writes.entries_changed(4)
        first = writes.hand_out(6)
        writes.truncated(6)
        assert counts == {}
        writes.truncated(4)
        assert counts == {Situation.QUORUM_CUT_DURING_SYNC: 1}
        writes.synced(first.number)
        writes.truncated(3)
    assert counts == {Situation.QUORUM_CUT_DURING_SYNC: 1}
