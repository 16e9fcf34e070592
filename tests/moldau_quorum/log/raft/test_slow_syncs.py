"""During a sync of its log a node does some work, and delays the rest: messages, snapshots.

Method: a production node on a virtual disk, driven by hand, one call after the other.
"""

import struct

import pytest

from moldau_quorum.log.raft.core.messages import AppendResponse, SnapshotRequest, VoteRequest, VoteResponse
from moldau_quorum.log.raft.core.types import configuration_of, encode_configuration
from support.raft.world import World, hand_to, message_in, run_jobs


def started(seed=1, **options):
    """A world whose member 1 runs and has made everything durable; nothing happens in it by itself any more."""
    world = World(seed, **options)
    world.start(1)
    world.run_until(20)
    world.events.clear()
    sync(world.members[1].node)
    world.members[1].node.take_outbox()
    return world, world.members[1]


def sync(node):
    while (work := node.begin_sync()) is not None:
        work.run()
        node.sync_done(work)
        node.process()


@pytest.mark.parametrize("seed", range(6))
def test_a_one_piece_snapshot_waits_for_its_durable_epoch(seed):
    """Power is lost while the sync of that epoch is under way. The node must come back, and take the snapshot then."""
    world, member = started(seed)
    state = struct.pack("<Q", 500) + bytes(8)
    request = SnapshotRequest(
        epoch=5,
        index=500,
        index_epoch=5,
        configuration=encode_configuration(configuration_of(world.voters)),
        piece=0,
        piece_count=1,
        data=state,
    )
    world.invariants.restored = world.invariants.started = lambda *_: None
    for attempt in range(2):
        node = member.node
        was_kept = node.epoch == 5  # a disk may have written data that was not synced
        hand_to(node, 2, request, 30.0)
        node.process()
        work = node.begin_sync()
        assert (work is None) == was_kept, "a new epoch is written"
        run_jobs(node)
        if attempt == 0:
            world.crash(1, power_loss=True)
            world.start(1)
            assert member.node is not None
            continue
        if work is not None:
            work.run()
            node.sync_done(work)
        node.process()
        run_jobs(node)
        assert (member.machine.index, node.epoch) == (500, 5)


def asked_to_vote(node, sender, now_ms, **fields):
    hand_to(node, sender, VoteRequest(transfer=False, last_index=9, last_epoch=4, **fields), now_ms)
    node.process()


def answers(node):
    return [(recipient, message_in(body)) for recipient, body in node.take_outbox()]


def test_answers_without_a_write_wait_for_the_pending_sync():
    """A pre-vote is asked for while a vote is made durable. Nothing else comes; both answers leave after the sync."""
    _, member = started()
    node = member.node
    asked_to_vote(node, 2, 30.0, epoch=5, pre_vote=False)
    work = node.begin_sync()
    asked_to_vote(node, 3, 31.0, epoch=6, pre_vote=True)
    assert answers(node) == []
    work.run()
    node.sync_done(work)
    node.process()
    assert answers(node) == [
        (2, VoteResponse(epoch=5, pre_vote=False, granted=True)),
        (3, VoteResponse(epoch=6, pre_vote=True, granted=True)),
    ]
    assert not node.wants_sync


def test_writes_during_a_sync_wait_for_the_next():
    _, member = started()
    node = member.node
    asked_to_vote(node, 2, 30.0, epoch=5, pre_vote=False)
    work = node.begin_sync()
    asked_to_vote(node, 3, 31.0, epoch=6, pre_vote=False)
    asked_to_vote(node, 2, 32.0, epoch=7, pre_vote=True)
    work.run()
    node.sync_done(work)
    node.process()
    assert answers(node) == [(2, VoteResponse(epoch=5, pre_vote=False, granted=True))]
    sync(node)
    assert answers(node) == [
        (3, VoteResponse(epoch=6, pre_vote=False, granted=True)),
        (2, VoteResponse(epoch=7, pre_vote=True, granted=True)),
    ]


def test_a_leader_is_active_when_its_own_disk_has_caught_up():
    """The others have committed its first entry, and it has applied nothing of what they have made durable."""
    _, member = started()
    node = member.node
    node.tick(400.0)
    node.process()
    for pre_vote, voter in ((True, 2), (True, 3), (False, 2)):
        hand_to(node, voter, VoteResponse(epoch=1, pre_vote=pre_vote, granted=True), 401.0)
        node.process()
        if pre_vote:
            sync(node)
    assert node.core.leader is not None
    work = node.begin_sync()
    last = node.core.log.last_index
    for voter in (2, 3):
        hand_to(node, voter, AppendResponse(epoch=1, accepted=True, match_index=last), 402.0)
        node.process()
    assert (node.core.commit_index, node.applied_index, node.leadership.active) == (last, 0, False)
    work.run()
    node.sync_done(work)
    node.process()
    assert (node.applied_index, node.leadership.active) == (last, True)
