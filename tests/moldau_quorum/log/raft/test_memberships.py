"""Goal: the membership in force is always the newest one that the log holds, whatever was cut or compacted.

Method: the history of memberships alone, beside a plain search of the log, after each cut of a log with three of them;
the core with a snapshot at each place of that log; and a production node on a virtual disk, driven by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moldau_quorum.log.port import ElectionTiming, LogLimits, VoterEndpoint
from moldau_quorum.log.raft.core.entry_log import EntryLog
from moldau_quorum.log.raft.core.membership import ConfigurationHistory
from moldau_quorum.log.raft.core.messages import AppendRequest, AppendResponse, SnapshotRequest
from moldau_quorum.log.raft.core.raft_core import RaftCore
from moldau_quorum.log.raft.core.types import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
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


def entry(index: int) -> Entry:
    change = CHANGES.get(index)
    if change is None:
        return Entry(index, 1, EntryKind.DATA, b"x")
    return Entry(index, 1, EntryKind.CONFIGURATION, encode_configuration(change))


def history() -> ConfigurationHistory:
    found = ConfigurationHistory(None, BOOTSTRAP)
    for index in range(1, LAST + 1):
        assert found.appended([entry(index)]) == (index in CHANGES)
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


def core_with_log() -> RaftCore:
    """Node 1 holds the whole log durably, and knows nothing of it to be committed."""
    return RaftCore(
        node_id=1,
        timing=ElectionTiming(election_timeout_ms_min=100, election_timeout_ms_max=200, heartbeat_interval_ms=50),
        limits=LogLimits(),
        seed=1,
        now_ms=0.0,
        hard_state=HardState(epoch=2),
        log=EntryLog(0, 0, [entry(index) for index in range(1, LAST + 1)]),
        snapshot=None,
        bootstrap=BOOTSTRAP,
    )


def settle(core: RaftCore) -> list[AppendResponse]:
    """All that was handed out becomes durable; returns what the core acknowledges."""
    answers = []
    while core.has_ready:
        ready = core.take_ready()
        core.synced(ready.number)
        answers += [out.message for out in ready.messages_synced if isinstance(out.message, AppendResponse)]
    return answers


@pytest.mark.parametrize("at", range(1, LAST + 3))
@pytest.mark.parametrize("epoch", [1, 2])
def test_an_installed_snapshot_replaces_what_it_contradicts(at: int, epoch: int) -> None:
    """Entries behind it, in a log that agrees, were acknowledged and may be committed: they stay."""
    core = core_with_log()
    point = SnapshotPoint(index=at, epoch=epoch, configuration=of(1, 2, 3, 4) if epoch == 2 else expected(at)[1])
    piece = SnapshotRequest(
        epoch=2,
        index=at,
        index_epoch=epoch,
        configuration=encode_configuration(point.configuration),
        piece=0,
        piece_count=1,
    )
    core.receive(2, piece, 10.0)
    assert settle(core) == []
    core.snapshot_installed(point)
    assert settle(core) == [AppendResponse(epoch=2, accepted=True, match_index=at)]
    agrees = epoch == 1 and at <= LAST
    assert (core.commit_index, core.applied_index, core.snapshot) == (at, at, point)
    assert (core.log.last_index, core.durable_index) == ((LAST, LAST) if agrees else (at, at))
    assert core.configuration == (expected(LAST)[1] if agrees else point.configuration)
    assert core.configuration_at(at) == point.configuration


@pytest.mark.parametrize("taken", range(1, LAST + 1))
@pytest.mark.parametrize("kept", [0, 1])
def test_an_own_snapshot_leaves_what_was_appended_meanwhile(taken: int, kept: int) -> None:
    """A node writes its snapshot beside its other work, and a membership may be appended before it ends."""
    core = core_with_log()
    core.receive(2, AppendRequest(epoch=2, prev_index=taken, prev_epoch=1, commit_index=taken), 10.0)
    settle(core)
    core.snapshot_taken(SnapshotPoint(index=taken, epoch=1, configuration=expected(taken)[1]), taken - kept)
    assert (core.configuration_index, core.configuration) == (max(taken, expected(LAST)[0]), expected(LAST)[1])
    assert [core.configuration_at(index) for index in range(taken, LAST + 1)] == [
        expected(index)[1] for index in range(taken, LAST + 1)
    ]
    assert (core.log.base_index, core.log.last_index, core.durable_index) == (taken - kept, LAST, LAST)


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
