"""Goal: the last effective offset in the log of a partition wins, whenever its transaction ended.

So a coordinator that replayed the whole log and one that loads the compacted log have the same state.

Method: all short histories of one partition against the rule.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from uuid import UUID

import pytest

from moldau_broker.coordinator.group.core.offsets.committed import OffsetStore
from moldau_broker.coordinator.group.core.records import CommittedOffset, OffsetRecord
from support.proof import all_examples

PLAIN, TOMBSTONE, FIRST, SECOND = "plain", "tombstone", 1, 2
"""The writer: a commit without a transaction, or one of two producers."""
WRITES = ((PLAIN,), (TOMBSTONE,), (FIRST,), (SECOND,))
ENDS = tuple((producer, commit) for producer in (FIRST, SECOND) for commit in (True, False))
Log = list[tuple[int, tuple]]
"""Records and markers with their offsets; a record commits its own offset."""


def value(offset: int) -> CommittedOffset:
    return CommittedOffset(offset=offset, leader_epoch=0, metadata="", commit_ms=0)


def replayed(log: Log) -> tuple[int | None, list[int]]:
    """Returns the committed offset, and the pending ones."""
    store = OffsetStore()
    for offset, event in log:
        if len(event) == 2:
            store.replay_marker(*event)
            continue
        committed = None if event[0] == TOMBSTONE else value(offset)
        record = OffsetRecord(group_id="g", topic="t", partition=0, committed=committed)
        store.replay_offset(record, event[0] if event[0] in (FIRST, SECOND) else None)
    found = store.committed("g").get(("t", 0))
    return None if found is None else found.offset, [pending.offset for pending in store.pending("g", "t", 0)]


def outcome(log: Log, at: int) -> bool | None:
    """Returns whether the record at an index of the log is effective; None while its transaction is open."""
    (producer,) = log[at][1]
    if producer in (PLAIN, TOMBSTONE):
        return True
    return next((event[1] for _, event in log[at + 1 :] if len(event) == 2 and event[0] == producer), None)


def compacted(log: Log) -> Log:
    """Returns the compacted log: below the first open transaction, markers and the last effective record."""
    records = [at for at in range(len(log)) if len(log[at][1]) == 1]
    stable = next((at for at in records if outcome(log, at) is None), len(log))
    counting = [at for at in records if at < stable and outcome(log, at)]
    gone = {at for at in records if at < stable} - set(counting[-1:])
    return [entry for at, entry in enumerate(log) if at not in gone]


@pytest.mark.drawn
def test_the_last_record_that_counts_wins() -> None:
    for length in range(1, 6 if all_examples() else 5):
        for events in itertools.product(WRITES + ENDS, repeat=length):
            log = list(enumerate(events))
            counting = [at for at in range(length) if len(events[at]) == 1 and outcome(log, at)]
            last = None if not counting or events[counting[-1]] == (TOMBSTONE,) else counting[-1]
            assert replayed(log)[0] == last, events
            assert replayed(compacted(log)) == replayed(log), events


def test_the_end_of_a_transaction_keeps_a_later_commit() -> None:
    """A commit that is later in the log stays when an earlier transaction ends."""
    assert replayed([(10, (FIRST,)), (20, (PLAIN,)), (21, (FIRST, True))]) == (20, [])
    assert replayed([(10, (FIRST,)), (20, (SECOND,)), (21, (SECOND, True)), (22, (FIRST, True))]) == (20, [])
    assert replayed([(10, (FIRST,)), (20, (SECOND,)), (21, (SECOND, False)), (22, (FIRST, True))]) == (10, [])
    again = [(10, (FIRST,)), (20, (SECOND,)), (30, (FIRST,)), (31, (SECOND, True))]
    assert replayed(again) == (20, [30])
    assert replayed([*again, (32, (FIRST, True))]) == (30, [])


def test_a_commit_for_a_new_topic_ends_those_for_its_predecessor() -> None:
    """No producer of the deleted topic holds up readers of the new one, or commits an offset after that one's.

    An id that is not known, as of a commit by an old version, may be that of either topic.
    """
    for former, present in itertools.product((None, UUID(int=1), UUID(int=2)), repeat=2):
        store = OffsetStore()
        for producer, topic_id in ((FIRST, former), (SECOND, present)):
            committed = replace(value(producer), topic_id=topic_id)
            store.replay_offset(OffsetRecord(group_id="g", topic="t", partition=0, committed=committed), producer)
        is_gone = None not in (former, present) and former != present
        assert [each.offset for each in store.pending("g", "t", 0)] == ([SECOND] if is_gone else [FIRST, SECOND])
        store.replay_marker(FIRST, True)
        assert [each.offset for each in store.committed("g").values()] == ([] if is_gone else [FIRST])
        store.replay_marker(SECOND, True)
        assert [each.offset for each in store.committed("g").values()] == [SECOND]
        assert not store.has_pending("g")
