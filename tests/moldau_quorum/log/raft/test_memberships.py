"""Goal: the membership in force is always the newest one that the log holds, whatever was cut or compacted.

Method: the history of memberships alone, beside a plain search of the log, after each cut of a log with three of them.
"""

import pytest

from moldau_quorum.log.port import VoterEndpoint
from moldau_quorum.log.raft.core.membership import ConfigurationHistory
from moldau_quorum.log.raft.core.types import Configuration, Entry, EntryKind, SnapshotPoint, encode_configuration


def of(*voters: int) -> Configuration:
    return Configuration(voters={each: VoterEndpoint(voter_id=each, host="h", port=1) for each in voters})


BOOTSTRAP = of(1)
CHANGES = {2: of(1, 2), 5: of(1, 2, 3), 6: of(1, 3)}
LAST = 8


def history() -> ConfigurationHistory:
    found = ConfigurationHistory(None, BOOTSTRAP)
    for index in range(1, LAST + 1):
        change = CHANGES.get(index)
        kind, data = EntryKind.DATA, b"x"
        if change is not None:
            kind, data = EntryKind.CONFIGURATION, encode_configuration(change)
        assert found.appended([Entry(index, 1, kind, data)]) == (change is not None)
    return found


def expected(last: int) -> tuple[int, Configuration]:
    return max(
        [(0, BOOTSTRAP), *((at, value) for at, value in CHANGES.items() if at <= last)], key=lambda each: each[0]
    )


@pytest.mark.parametrize("last", range(LAST + 1))
def test_a_cut_leaves_the_memberships_before_it(last: int) -> None:
    """The entry at the cut stays in the log, and so does its membership."""
    found = history()
    found.truncated(last)
    assert (found.current_index, found.current) == expected(last)
    assert [found.at(index) for index in range(last + 1)] == [expected(index)[1] for index in range(last + 1)]


@pytest.mark.parametrize("taken", range(1, LAST + 1))
@pytest.mark.parametrize("cut", range(1, LAST + 1))
def test_a_snapshot_keeps_the_membership_of_its_place(taken: int, cut: int) -> None:
    """A snapshot holds committed entries, so no later cut reaches below it."""
    if cut < taken:
        return
    found = history()
    found.compacted(SnapshotPoint(index=taken, epoch=1, configuration=expected(taken)[1]))
    found.truncated(cut)
    assert found.current == expected(cut)[1]
    assert found.at(taken) == expected(taken)[1]
    assert found.previous in (BOOTSTRAP, *CHANGES.values())
