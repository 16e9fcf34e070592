"""Goal: a node that takes or receives a snapshot keeps what it has promised, and takes each one it is asked for.

Method: a production node on a virtual disk, driven by hand, one call after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moldau_quorum.log.raft.core.messages import AppendRequest, SnapshotRequest
from moldau_quorum.log.raft.core.types import Entry, EntryKind, configuration_of, encode_configuration
from moldau_quorum.log.raft.storage.snapshot_jobs import InstallSnapshot
from support.raft.world import GENESIS, World, hand_to, run_jobs

if TYPE_CHECKING:
    from moldau_quorum.log.raft.core.messages import Message
    from moldau_quorum.log.raft.node import RaftNode


def world_of_one() -> World:
    """Member 1 runs, and a test speaks for the others; so no member has proposed the entries, which is not checked."""
    world = World(1)
    begin(world)
    invariants = world.invariants
    invariants.applying = invariants.restored = invariants.started = invariants.check = lambda *_: None
    return world


def begin(world: World) -> RaftNode:
    """Starts member 1; what it writes by itself is durable on return."""
    world.start(1)
    world.run_until(world.now + 20)
    world.events.clear()
    return world.members[1].live_node


def take(node: RaftNode, leader: int, message: Message) -> None:
    """Gives a node a message, and makes durable what it writes."""
    hand_to(node, leader, message, 30.0)
    node.process()
    while (work := node.begin_sync()) is not None:
        work.run()
        node.sync_done(work)
        node.process()


def entries(first: int, last: int, epoch: int) -> tuple[Entry, ...]:
    return tuple(Entry(index, epoch, EntryKind.DATA, b"x") for index in range(first, last + 1))


@pytest.mark.parametrize("index", [1, 2, 3, 5])
def test_a_log_begins_again_behind_a_snapshot_after_a_crash(index: int) -> None:
    """The process died when the snapshot had its name, and the log still held entries that the snapshot contradicts."""
    world = world_of_one()
    node = world.members[1].live_node
    take(node, 2, AppendRequest(epoch=5, prev_index=0, prev_epoch=0, commit_index=0, entries=entries(1, 3, 5)))
    piece = SnapshotRequest(
        epoch=6,
        index=index,
        index_epoch=6,
        configuration=encode_configuration(configuration_of(world.voters)),
        piece=0,
        piece_count=1,
        data=index.to_bytes(8, "little") + GENESIS,
    )
    take(node, 3, piece)
    while True:
        job = node.take_job()
        assert job is not None
        while job.step():
            pass
        work = job.blocking_work()
        if work is not None:
            work()
        if isinstance(job, InstallSnapshot):
            break
        job.finish()
    world.crash(1, power_loss=True)
    for last in range(index, index + 4):
        node = begin(world)
        assert (node.core.log.last_index, node.core.log.last_epoch, node.applied_index) == (last, 6, index)
        take(
            node,
            3,
            AppendRequest(
                epoch=6, prev_index=last, prev_epoch=6, commit_index=0, entries=entries(last + 1, last + 1, 6)
            ),
        )
        assert node.core.durable_index == last + 1
        world.crash(1, power_loss=True)


@pytest.mark.parametrize("asked_at", [1, 2, 3])
def test_each_snapshot_that_is_asked_for_is_taken(asked_at: int) -> None:
    """The state machine asks while another snapshot is being written: that one is of an older state."""
    world = world_of_one()
    member = world.members[1]
    node = member.live_node
    applied = member.live_machine.apply

    def apply(entry: object) -> bool:
        applied(entry)  # type: ignore[arg-type]
        return entry.index == asked_at  # type: ignore[attr-defined]

    member.live_machine.apply = apply  # type: ignore[assignment,method-assign]
    take(node, 2, AppendRequest(epoch=5, prev_index=0, prev_epoch=0, commit_index=1, entries=entries(1, 1, 5)))
    if asked_at > 1:
        node.take_snapshot()
    assert node.has_job
    take(node, 2, AppendRequest(epoch=5, prev_index=1, prev_epoch=5, commit_index=3, entries=entries(2, 3, 5)))
    run_jobs(node)
    node.process()
    run_jobs(node)
    assert node.statistics().snapshots_taken == (2 if asked_at > 1 else 1)
    assert node.core.snapshot is not None
    assert node.core.snapshot.index == (3 if asked_at > 1 else 1)
