"""Goal: a proposal or a linearizable read ends with the entry that decides it, not before and not with another one.

Method: the bookkeeping of both engines alone.
"""

from __future__ import annotations

import pytest

from moldau_quorum.log.port import LogPosition, NotLeaderError, OutcomeUnknownError
from moldau_quorum.log.raft.waiting import OpenProposals, OpenReads


def test_a_read_ends_when_its_index_is_applied() -> None:
    """Of two confirmed reads, and one that is not, only those end whose entries the state machine has seen."""
    ended: list[str] = []
    reads = OpenReads()
    ids = {}
    for name in ("first", "second", "unconfirmed"):
        ids[name] = reads.next_id
        reads.add(3, lambda name=name: ended.append(name))
    reads.confirm(ids["first"], 7, 3)
    reads.confirm(ids["second"], 9, 3)
    for applied, expected in ((6, []), (7, ["first"]), (8, ["first"]), (9, ["first", "second"]), (20, None)):
        reads.applied(applied)
        assert ended == (expected if expected is not None else ["first", "second"])


def test_a_read_of_a_lost_leadership_fails() -> None:
    reads = OpenReads()
    read_id = reads.next_id
    read = reads.add(3, lambda: None)
    reads.confirm(read_id, -1, 4)
    assert read.done
    assert isinstance(read.error, NotLeaderError)


@pytest.mark.parametrize(("epoch", "error"), [(3, type(None)), (4, NotLeaderError)])
def test_only_its_own_entry_commits_a_proposal(epoch: int, error: type) -> None:
    """Another leader's entry at the same index means that the proposal never will be committed."""
    proposals = OpenProposals(count_max=2, bytes_max=100)
    mine = proposals.add(LogPosition(index=5, epoch=3), 10, lambda: None)
    later = proposals.add(LogPosition(index=6, epoch=3), 10, lambda: None)
    proposals.applied(4, 3)
    assert not mine.done
    proposals.applied(5, epoch)
    assert (mine.done, type(mine.error)) == (True, error)
    assert not later.done
    proposals.leadership_settled(None)
    assert isinstance(later.error, OutcomeUnknownError)
    proposals.check_room(100)


def test_a_snapshot_ends_the_proposals_that_it_replaces() -> None:
    """That of its last index too: no entry comes that would end it. Later ones can still be committed."""
    for last_index in range(4, 9):
        proposals = OpenProposals(count_max=3, bytes_max=100)
        opened = [proposals.add(LogPosition(index=index, epoch=3), 10, lambda: None) for index in (5, 6, 7)]
        proposals.replaced_by_snapshot(last_index)
        assert [each.done for each in opened] == [index <= last_index for index in (5, 6, 7)]
        assert all(isinstance(each.error, OutcomeUnknownError) for each in opened if each.done)
        proposals.applied(7, 3)
        assert opened[2].error is None or last_index >= 7
        assert opened[2].done
