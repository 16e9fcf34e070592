"""Goal: the membership in force is always the newest one that the log holds, whatever was cut or compacted.

Method: the history of memberships alone, beside a plain search of the log, after each cut of a log with three of them;
and a production node on a virtual disk that takes a snapshot, driven by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moldau_quorum.log.port import VoterEndpoint
from moldau_quorum.log.raft.core.membership import ConfigurationHistory
from moldau_quorum.log.raft.core.messages import AppendRequest
from moldau_quorum.log.raft.core.types import (
    Configuration,
    Entry,
    EntryKind,
    SnapshotPoint,
    configuration_of,
    encode_configuration,
)
from support.raft.world import World, hand_to, run_jobs

if TYPE_CHECKING:
    from moldau_quorum.log.raft.node import RaftNode


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


def followed(node: RaftNode, leader: int, request: AppendRequest) -> None:
    """Gives a member a request of its leader, and makes durable what it writes."""
    hand_to(node, leader, request, 30.0)
    node.process()
    work = node.begin_sync()
    assert work is not None
    work.run()
    node.sync_done(work)
    node.process()


def test_a_snapshot_holds_no_uncommitted_membership() -> None:
    """A member takes a snapshot while a change of the voters is not committed, and the next leader cuts the change."""
    world = World(1)
    world.start(1)
    invariants = world.invariants
    invariants.applying = invariants.restored = invariants.started = lambda *_: None  # no member proposed the entries
    node = world.members[1].live_node
    voters = configuration_of(world.voters)
    entries = (
        Entry(1, 5, EntryKind.NOOP, b""),
        Entry(2, 5, EntryKind.DATA, b"x"),
        Entry(3, 5, EntryKind.CONFIGURATION, encode_configuration(voters.without(3))),
    )
    followed(node, 2, AppendRequest(epoch=5, prev_index=0, prev_epoch=0, commit_index=2, entries=entries))
    assert (node.applied_index, node.configuration) == (2, voters.without(3))
    node.take_snapshot()
    run_jobs(node)
    cut = AppendRequest(
        epoch=6, prev_index=2, prev_epoch=5, commit_index=2, entries=(Entry(3, 6, EntryKind.NOOP, b""),)
    )
    followed(node, 3, cut)
    assert node.configuration == voters
    world.crash(1, power_loss=True)
    world.start(1)
    assert world.members[1].live_node.configuration == voters
