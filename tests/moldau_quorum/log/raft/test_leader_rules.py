"""Goal: what a leader sends to members that lag, and when it may change the membership by itself.

Method: the pure core alone. Each test states one rule that a member or an operator depends on.
"""

from uuid import UUID

import pytest

from moldau_quorum.log.port import ElectionTiming, LogLimits, VoterEndpoint
from moldau_quorum.log.raft.core.entry_log import EntryLog
from moldau_quorum.log.raft.core.messages import (
    AppendRequest,
    AppendResponse,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from moldau_quorum.log.raft.core.raft_core import RaftCore
from moldau_quorum.log.raft.core.ready import Role
from moldau_quorum.log.raft.core.types import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    SnapshotPoint,
    encode_configuration,
)

TIMING = ElectionTiming(election_timeout_ms_min=100, election_timeout_ms_max=200, heartbeat_interval_ms=50)
DIRECTORIES = {number: UUID(int=number) for number in (1, 2, 3, 4)}
VOTERS = Configuration(voters={number: VoterEndpoint(voter_id=number, host="h", port=1) for number in (1, 2, 3)})
OBSERVER = VoterEndpoint(voter_id=4, host="h", port=1)
NOW = 1002.0


def sent_to(core, member):
    """Everything that was handed out becomes durable at once; returns the messages sent to a member."""
    sent = []
    while core.has_ready:
        ready = core.take_ready()
        core.synced(ready.number)
        sent += [each.message for each in (*ready.messages, *ready.messages_synced) if each.recipient == member]
    return sent


def follower(*, knows_directories=False):
    """Node 1 has a log of which entries 1 to 3 are in a snapshot, and entries 4 and 5, of epoch 3, are not."""
    return RaftCore(
        node_id=1,
        timing=TIMING,
        limits=LogLimits(),
        seed=1,
        now_ms=0.0,
        hard_state=HardState(epoch=3),
        log=EntryLog(3, 2, (Entry(4, 3, EntryKind.NOOP, b""), Entry(5, 3, EntryKind.DATA, b"x"))),
        snapshot=SnapshotPoint(index=3, epoch=2, configuration=VOTERS),
        bootstrap=VOTERS,
        **({"directory_id": DIRECTORIES[1]} if knows_directories else {}),
    )


def leader(*, knows_directories=False):
    """Node 1 leads epoch 4 over its log."""
    core = follower(knows_directories=knows_directories)
    core.tick(1000.0)
    sent_to(core, 2)
    receive(core, 2, VoteResponse(epoch=4, pre_vote=True, granted=True), 1001.0)
    sent_to(core, 2)
    receive(core, 2, VoteResponse(epoch=4, pre_vote=False, granted=True))
    assert core.role is Role.LEADER
    return core


def receive(core, sender, message, now_ms=NOW, directory=None):
    if directory is None:
        directory = DIRECTORIES[sender] if core.directories.are_known else UUID(int=0)
    core.receive(sender, message, now_ms, sender_directory=directory)


def reads_of(core):
    """Everything that was handed out becomes durable at once; returns the reads that end, and where."""
    ended = []
    while core.has_ready:
        ready = core.take_ready()
        core.synced(ready.number)
        ended += [(each.read_id, each.index) for each in ready.reads]
    return ended


def far_behind(core, member):
    """The member has none of the leader's entries, so it gets a snapshot."""
    sent_to(core, member)
    for _ in range(2):
        core.tick(core.now_ms + TIMING.heartbeat_interval_ms)
        receive(core, 5 - member, AppendResponse(epoch=4, accepted=True, match_index=6), core.now_ms)
        probe = next(each for each in reversed(sent_to(core, member)) if isinstance(each, AppendRequest))
        receive(
            core,
            member,
            AppendResponse(epoch=4, accepted=False, rejected_index=probe.prev_index, hint_index=0),
            core.now_ms,
        )
        pieces = [each for each in sent_to(core, member) if isinstance(each, SnapshotRequest)]
        if pieces:
            return pieces
    raise AssertionError("no snapshot is sent")


def test_a_piece_of_a_snapshot_is_sent_once_until_it_is_late():
    """Commands that are proposed meanwhile do not send it again; without an answer for four heartbeats it is due."""
    core = leader()
    assert [piece.piece for piece in far_behind(core, 3)] == [0]
    begun = core.now_ms
    resent = []
    for step in range(1, 12):
        core.tick(begun + 25 * step)
        receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=core.log.last_index), core.now_ms)
        receive(core, 3, AppendResponse(epoch=4, accepted=True, match_index=0), core.now_ms)
        core.propose(b"y")
        resent += [core.now_ms - begun for each in sent_to(core, 3) if isinstance(each, SnapshotRequest)]
    assert resent == [200]
    receive(core, 3, SnapshotResponse(epoch=4, index=3, next_piece=1), core.now_ms)
    assert [each.piece for each in sent_to(core, 3) if isinstance(each, SnapshotRequest)] == [1]


def test_heartbeats_beside_a_snapshot_agree_with_every_log():
    """The member answers them without a write to its disk, so the leader does not take it for dead."""
    core = leader()
    far_behind(core, 3)
    core.tick(core.now_ms + TIMING.heartbeat_interval_ms)
    beats = [each for each in sent_to(core, 3) if isinstance(each, AppendRequest)]
    assert [(each.prev_index, each.prev_epoch, each.entries) for each in beats] == [(0, 0, ())]


@pytest.mark.parametrize("answers", [True, False])
def test_a_member_that_begins_again_gets_the_present_snapshot(answers):
    """It has refused the former one: of a level that it does not know, say, and that was lowered since."""
    core = leader()
    assert [(piece.index, piece.piece) for piece in far_behind(core, 3)] == [(3, 0)]
    if answers:
        receive(core, 3, SnapshotResponse(epoch=4, index=3, next_piece=1), core.now_ms)
    core.propose(b"y")
    sent_to(core, 2)
    receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=7), core.now_ms)
    sent_to(core, 2)
    core.snapshot_taken(SnapshotPoint(index=7, epoch=4, configuration=VOTERS), 7)
    if answers:
        receive(core, 3, SnapshotResponse(epoch=4, index=3, next_piece=0), core.now_ms)
    pieces = []
    for _ in range(4):
        pieces += [each for each in sent_to(core, 3) if isinstance(each, SnapshotRequest)]
        receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=7), core.now_ms)
        core.tick(core.now_ms + TIMING.heartbeat_interval_ms)
    pieces += [each for each in sent_to(core, 3) if isinstance(each, SnapshotRequest)]
    assert [(piece.index, piece.piece) for piece in pieces] == [(7, 0)] * (1 + answers)


@pytest.mark.parametrize("next_piece", range(4))
@pytest.mark.parametrize("index", range(2, 9))
def test_a_late_answer_about_another_snapshot_moves_nothing(index, next_piece):
    """The piece that it names may not exist in the present one, which would then never arrive."""
    core = leader()
    far_behind(core, 3)
    core.propose(b"y")
    sent_to(core, 2)
    receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=7), core.now_ms)
    sent_to(core, 2)
    core.snapshot_taken(SnapshotPoint(index=7, epoch=4, configuration=VOTERS), 7)
    sent = []
    for step in range(9):
        core.tick(core.now_ms + TIMING.heartbeat_interval_ms)
        receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=7), core.now_ms)
        if step == 5:  # the first piece of the present snapshot has left, and is lost
            receive(core, 3, SnapshotResponse(epoch=4, index=index, next_piece=next_piece), core.now_ms)
        sent += [(each.index, each.piece) for each in sent_to(core, 3) if isinstance(each, SnapshotRequest)]
    assert sent[0] == (7, 0)
    assert {piece for _, piece in sent[1:]} == {next_piece if index == 7 else 0}


def test_a_member_with_a_former_snapshot_gets_the_present_one():
    """The log went on meanwhile and was cut: what follows the snapshot that the member has is not in it any more."""
    core = leader()
    assert [piece.index for piece in far_behind(core, 3)] == [3]
    assert core.applied_index == 6
    receive(core, 3, SnapshotResponse(epoch=4, index=3, next_piece=2), core.now_ms)
    assert [each.piece for each in sent_to(core, 3) if isinstance(each, SnapshotRequest)] == [2]
    core.snapshot_taken(SnapshotPoint(index=6, epoch=4, configuration=VOTERS), 6)
    receive(core, 3, AppendResponse(epoch=4, accepted=True, match_index=3), core.now_ms)
    pieces = [each for each in sent_to(core, 3) if isinstance(each, SnapshotRequest)]
    assert [(each.index, each.piece) for each in pieces] == [(6, 0)]


def test_an_acceptance_beside_a_snapshot_commits():
    """The member may hold what was sent before the snapshot, and no other voter may be left to show a majority."""
    core = leader()
    core.propose(b"y")
    assert [len(each.entries) for each in sent_to(core, 3)] == [2]
    receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=6))
    sent_to(core, 3)
    core.snapshot_taken(SnapshotPoint(index=6, epoch=4, configuration=VOTERS), 6)
    core.tick(core.now_ms + TIMING.heartbeat_interval_ms)
    assert any(isinstance(each, SnapshotRequest) for each in sent_to(core, 3))
    receive(core, 3, AppendResponse(epoch=4, accepted=True, match_index=7), core.now_ms)
    assert core.commit_index == 7


def test_a_hand_over_is_asked_for_again_with_each_heartbeat():
    """The request may be lost, and the leader takes no proposals meanwhile."""
    core = leader()
    receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=core.log.last_index))
    sent_to(core, 2)
    core.leader.transfer(2)
    asked = []
    for _ in range(3):
        asked.append(sent_to(core, 2).count(TimeoutNow(epoch=4)))
        core.tick(core.now_ms + TIMING.heartbeat_interval_ms)
        for member in (2, 3):
            receive(core, member, AppendResponse(epoch=4, accepted=True, match_index=6), core.now_ms)
    assert asked == [1, 1, 1]


def test_no_directories_are_written_during_a_hand_over():
    """The target must hold the whole log to take over; what the leader appended meanwhile would delay it."""
    core = leader(knows_directories=True)
    sent_to(core, 2)
    for last_index in (6, 7):  # the entry of the epoch, and the directories of the nodes that have answered
        receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=last_index))
        sent_to(core, 2)
    assert core.commit_index == core.log.last_index == 7
    core.leader.transfer(2)
    assert TimeoutNow(epoch=4) in sent_to(core, 2)
    receive(core, 3, AppendResponse(epoch=4, accepted=True, match_index=7))
    assert core.log.last_index == 7, "the directory of node 3 waits"
    for _ in range(5):
        core.tick(core.now_ms + TIMING.heartbeat_interval_ms)
        for member in (2, 3):
            receive(core, member, AppendResponse(epoch=4, accepted=True, match_index=7), core.now_ms)
    assert core.role is Role.LEADER, "the target did not take over"
    known = {key: voter.directory_id for key, voter in core.configuration.voters.items()}
    assert known == {number: DIRECTORIES[number] for number in (1, 2, 3)}


@pytest.mark.parametrize(("silence_ms", "asks"), [(99, False), (100, True)])
def test_a_leader_counts_as_alive_for_the_shortest_timeout(silence_ms, asks):
    """From then on others may be silent too, so a pre-vote must be answered."""
    core = RaftCore(
        node_id=1,
        timing=TIMING,
        limits=LogLimits(),
        seed=1,
        now_ms=0.0,
        hard_state=HardState(epoch=3),
        log=EntryLog(0, 0, (Entry(1, 3, EntryKind.NOOP, b""),)),
        snapshot=None,
        bootstrap=VOTERS,
    )
    core.receive(2, AppendRequest(epoch=3, prev_index=1, prev_epoch=3, commit_index=1), 10.0)
    sent_to(core, 2)
    core.receive(3, VoteRequest(epoch=4, pre_vote=True, last_index=1, last_epoch=3), 10.0 + silence_ms)
    assert sent_to(core, 3) == ([VoteResponse(epoch=4, pre_vote=True, granted=True)] if asks else [])


@pytest.mark.parametrize("pre_vote", [True, False])
def test_a_leader_that_its_majority_hears_grants_no_vote(pre_vote):
    """A member that hears nothing of its leader, but is heard, must not end the leadership again and again."""
    core = leader()
    sent_to(core, 2)
    asked = {"last_index": core.log.last_index, "last_epoch": core.log.last_epoch, "pre_vote": pre_vote}
    receive(core, 2, VoteRequest(epoch=core.epoch + 1, transfer=False, **asked))
    assert core.role is Role.LEADER
    assert not [each for each in sent_to(core, 2) if isinstance(each, VoteResponse)]
    receive(core, 2, VoteRequest(epoch=core.epoch + 1, transfer=True, **asked))
    assert core.role is (Role.LEADER if pre_vote else Role.FOLLOWER), "the leader itself has asked for this election"


def test_only_the_death_of_the_leader_hastens_an_election():
    """Another member's host may refuse connections for long; its leader is as alive as before."""
    core = follower()
    receive(core, 2, AppendRequest(epoch=4, prev_index=5, prev_epoch=3, commit_index=5, read_sequence=0, entries=()))
    deadline_ms = core.next_deadline_ms()
    core.peer_refused(3, NOW + 1)
    assert (core.leader_id, core.next_deadline_ms()) == (2, deadline_ms)
    core.peer_refused(2, NOW + 2)
    assert core.leader_id is None
    assert core.next_deadline_ms() < deadline_ms


def test_a_membership_changes_after_the_first_entry_of_the_epoch():
    """Before that, a change of the former leader may still be the one that holds, and two of them share no majority."""
    core = leader()
    voters = dict(VOTERS.voters)
    del voters[3]
    smaller = Configuration(voters=voters)
    sent_to(core, 2)
    assert core.leader.change_configuration(smaller) is None
    receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=core.log.last_index))
    assert core.leader.change_configuration(smaller) is not None


def test_a_vote_durable_after_the_election_counts_no_more():
    """The disk was slow, and another candidate has won meanwhile."""
    core = follower()
    core.tick(1000.0)
    sent_to(core, 2)
    receive(core, 2, VoteResponse(epoch=4, pre_vote=True, granted=True), 1001.0)
    ready = core.take_ready()
    assert core.role is Role.CANDIDATE
    beat = AppendRequest(epoch=4, prev_index=5, prev_epoch=3, commit_index=5)
    receive(core, 3, beat, 1002.0)
    core.synced(ready.number)
    assert (core.role, core.leader_id) == (Role.FOLLOWER, 3)


def test_no_directories_are_written_beside_another_change():
    """Two memberships that are not committed may have majorities without a common voter."""
    core = leader(knows_directories=True)
    sent_to(core, 2)
    for last_index in (6, 7):  # the entry of the epoch, and the directories of the nodes that have answered
        receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=last_index))
        sent_to(core, 2)
    assert core.leader.change_configuration(core.configuration.with_learner(OBSERVER)) is not None
    sent_to(core, 2)
    receive(core, 3, AppendResponse(epoch=4, accepted=True, match_index=7))
    assert (core.commit_index, core.log.last_index) == (7, 8), "the directory of node 3 waits"
    receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=8))
    assert (core.commit_index, core.log.last_index) == (8, 9)
    assert core.configuration.voters[3].directory_id == DIRECTORIES[3]


@pytest.mark.parametrize("named_again", [UUID(int=44), UUID(int=0)], ids=["by its directory", "by its id alone"])
def test_a_learner_of_another_directory_starts_from_nothing(named_again):
    """A leader must not count what the same node has had in a directory that it has lost.

    The leader would let it vote at once, and ignore it whenever it says that it has nothing.
    """
    core = leader(knows_directories=True)

    def answers(member, match_index, **more):
        sent_to(core, member)
        receive(core, member, AppendResponse(epoch=4, accepted=True, match_index=match_index), **more)

    def learner(directory):
        endpoint = VoterEndpoint(voter_id=4, directory_id=directory, host="h", port=1)
        assert core.leader.change_configuration(core.configuration.with_learner(endpoint)) is not None
        answers(2, core.log.last_index)

    for last_index in (6, 7):  # the entry of the epoch, and the directories of the nodes that have answered
        answers(2, last_index)
    answers(3, 7)
    answers(2, core.log.last_index)
    learner(DIRECTORIES[4])
    answers(4, core.log.last_index)
    held = core.log.last_index
    assert core.leader.progress[4].match == held

    learner(named_again)
    assert core.leader.progress[4].match == 0
    core.tick(core.now_ms + TIMING.heartbeat_interval_ms)
    probe = sent_to(core, 4)[-1]
    emptied = AppendResponse(epoch=4, accepted=False, rejected_index=probe.prev_index)
    receive(core, 4, emptied, core.now_ms, directory=UUID(int=44))
    assert any(isinstance(message, SnapshotRequest) for message in sent_to(core, 4))
    answers(2, core.log.last_index)
    assert core.configuration.learners[4].directory_id == UUID(int=44)
    assert core.directories.of(core.configuration, 4) == UUID(int=44)


def test_a_member_that_keeps_up_with_steady_writes_is_caught_up():
    """DescribeQuorum shows the time; the leader has written more whenever an answer arrives (KIP-836)."""
    core = leader()
    sent_to(core, 2)
    for _ in range(50):
        held = core.log.last_index
        core.propose(b"x")
        sent_to(core, 2)
        receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=held), core.now_ms + 10)
    assert core.leader.progress[2].match < core.log.last_index
    assert core.leader.progress[2].last_caught_up_ms == core.now_ms - 10
    behind = core.leader.progress[2].match
    for _ in range(3):
        core.propose(b"x")
        receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=behind), core.now_ms + 10)
    assert core.leader.progress[2].last_caught_up_ms < core.now_ms - 30, "it has stopped to take entries"


def test_a_node_that_installs_a_snapshot_is_not_dead():
    """It may take seconds; with another voter down, the leader would resign because it hears no majority."""
    core = follower()
    membership = encode_configuration(VOTERS)
    core.receive(
        2, SnapshotRequest(epoch=4, index=9, index_epoch=4, configuration=membership, piece=0, piece_count=1), 10.0
    )
    assert sent_to(core, 2) == []
    assert core.installing is not None
    for prev_index, prev_epoch in ((0, 0), (9, 4)):
        beat = AppendRequest(
            epoch=4, prev_index=prev_index, prev_epoch=prev_epoch, commit_index=9, read_sequence=prev_index
        )
        core.receive(2, beat, 20.0)
        answer = AppendResponse(epoch=4, accepted=True, match_index=3, read_sequence=prev_index)
        assert sent_to(core, 2) == [answer], "nothing but the snapshot that it began with is known to agree"
    entries = AppendRequest(
        epoch=4, prev_index=5, prev_epoch=3, commit_index=9, entries=(Entry(6, 4, EntryKind.NOOP, b""),)
    )
    core.receive(2, entries, 30.0)
    assert sent_to(core, 2) == [], "the log is about to be replaced"
    core.snapshot_installed(core.installing)
    assert sent_to(core, 2) == [AppendResponse(epoch=4, accepted=True, match_index=9)]


@pytest.mark.parametrize("membership", [VOTERS.with_learner(OBSERVER), VOTERS], ids=["learner", "no member"])
def test_a_member_without_a_vote_forgets_a_silent_leader(membership):
    """A learner that was dropped hears nothing more, so brokers must not take its metadata for recent."""
    core = RaftCore(
        node_id=4,
        timing=TIMING,
        limits=LogLimits(),
        seed=1,
        now_ms=0.0,
        hard_state=HardState(epoch=3),
        log=EntryLog(3, 2),
        snapshot=SnapshotPoint(index=3, epoch=2, configuration=membership),
        bootstrap=Configuration(),
    )
    core.receive(1, AppendRequest(epoch=3, prev_index=3, prev_epoch=2, commit_index=3), 10.0)
    core.tick(10.0 + TIMING.election_timeout_ms_min - 1)
    assert core.leader_id == 1
    core.tick(10.0 + TIMING.election_timeout_ms_max)
    assert (core.leader_id, core.role, core.epoch) == (None, Role.FOLLOWER, 3)
    core.receive(2, AppendRequest(epoch=4, prev_index=3, prev_epoch=2, commit_index=3), 500.0)
    assert core.leader_id == 2


def test_a_failed_hand_over_gives_no_later_election_its_right():
    """The former leader asked for one election alone: later ones must not disturb a leader that others hear."""
    core = follower()
    core.receive(2, AppendRequest(epoch=3, prev_index=5, prev_epoch=3, commit_index=3), 10.0)
    core.receive(2, TimeoutNow(epoch=3), 20.0)
    asked = [message.transfer for message in sent_to(core, 2) if isinstance(message, VoteRequest)]
    assert (asked, core.role) == ([True], Role.CANDIDATE)
    core.tick(1_000.0)
    asked = [message.transfer for message in sent_to(core, 2) if isinstance(message, VoteRequest)]
    assert (asked, core.role) == ([False], Role.PRECANDIDATE)


def test_a_read_waits_for_a_round_that_began_after_it():
    """An answer to an earlier request does not show that this node still led when the read began."""
    core = leader()
    receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=6))
    sent_to(core, 2)
    for read_id in (1, 2):
        assert core.leader.read_index(read_id)
        assert reads_of(core) == []
    receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=6, read_sequence=1))
    assert reads_of(core) == [(1, 6)]
    receive(core, 3, AppendResponse(epoch=4, accepted=False, rejected_index=5, read_sequence=2))
    assert reads_of(core) == [(2, 6)]


def test_reads_end_with_a_leadership_that_no_other_follows():
    """The leader is cut off. It may not be heard for long, and its callers must ask another node."""
    core = leader()
    receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=6))
    sent_to(core, 2)
    assert core.leader.read_index(1)
    assert reads_of(core) == []
    core.tick(core.now_ms + TIMING.election_timeout_ms_max)
    assert (core.role, core.leader_id) == (Role.FOLLOWER, None)
    assert reads_of(core) == [(1, -1)]


@pytest.mark.parametrize("first", [4, 5, 6, 7])
def test_a_request_from_below_the_commit_index_counts_whole(first):
    """The leader knows an older position. Committed entries are not compared again, and still count."""
    core = follower()
    receive(core, 2, AppendRequest(epoch=3, prev_index=5, prev_epoch=3, commit_index=5))
    sent_to(core, 2)
    entries = tuple(Entry(index, 3, EntryKind.DATA, b"x") for index in range(first, 9))
    receive(
        core, 2, AppendRequest(epoch=3, prev_index=5, prev_epoch=3, commit_index=5, entries=(Entry(6, 3, 0, b"x"),))
    )
    sent_to(core, 2)
    prev_epoch = 2 if first == 4 else 3
    receive(
        core, 2, AppendRequest(epoch=3, prev_index=first - 1, prev_epoch=prev_epoch, commit_index=5, entries=entries)
    )
    assert sent_to(core, 2) == [AppendResponse(epoch=3, accepted=True, match_index=8)]


def test_a_late_acceptance_takes_nothing_back():
    """Answers overtake each other: a heartbeat is answered at once, and entries only when they are durable."""
    core = leader()
    sent_to(core, 2)
    for match_index in (6, 5, 3):
        receive(core, 2, AppendResponse(epoch=4, accepted=True, match_index=match_index))
        assert (core.leader.progress[2].match, core.commit_index) == (6, 6)
        assert not [each for each in sent_to(core, 2) if isinstance(each, AppendRequest) and each.entries]
