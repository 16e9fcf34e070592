"""Every role crossed with every message type, older, equal and newer: nothing raises, nothing is promised too early."""

import itertools
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau_jepsen.world.world import run_world
from moldau_quorum.log.port import ElectionTiming, LogLimits, MetadataLogConfig, VoterEndpoint
from moldau_quorum.log.raft.core.entry_log import EntryLog
from moldau_quorum.log.raft.core.messages import (
    MESSAGE_TYPES,
    SNAPSHOT_PIECE_BYTES_MAX,
    AppendRequest,
    AppendResponse,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    decode_payload,
    encode_message,
)
from moldau_quorum.log.raft.core.progress import Progress, ProgressState
from moldau_quorum.log.raft.core.raft_core import RaftCore
from moldau_quorum.log.raft.core.ready import Role
from moldau_quorum.log.raft.core.types import Configuration, Entry, EntryKind, HardState, encode_configuration
from moldau_quorum.log.raft.envelope import Envelope, MessageError, WrongDirectoryError, unseal
from moldau_quorum.log.raft.shell import RaftLog
from support.proof import examples

VOTERS = Configuration(voters={n: VoterEndpoint(voter_id=n, host="h", port=1) for n in (1, 2, 3)})
ENTRIES = (Entry(1, 1, EntryKind.NOOP, b""), Entry(2, 2, EntryKind.NOOP, b""), Entry(3, 2, EntryKind.DATA, b"x"))
TIMING = ElectionTiming(election_timeout_ms_min=100, election_timeout_ms_max=200, heartbeat_interval_ms=50)


def settle(core):
    """Everything that was handed out becomes durable at once; returns the messages sent."""
    sent = []
    while core.has_ready:
        ready = core.take_ready()
        core.synced(ready.number)
        sent += [outgoing.message for outgoing in (*ready.messages, *ready.messages_synced)]
    return sent


def core_in(role):
    core = RaftCore(
        node_id=1,
        timing=TIMING,
        limits=LogLimits(),
        seed=1,
        now_ms=0.0,
        hard_state=HardState(epoch=3),
        log=EntryLog(0, 0, ENTRIES),
        snapshot=None,
        bootstrap=VOTERS,
    )
    if role is not Role.FOLLOWER:
        core.tick(1000.0)
        settle(core)
    if role in (Role.CANDIDATE, Role.LEADER):
        core.receive(2, VoteResponse(epoch=4, pre_vote=True, granted=True), 1001.0)
        settle(core)
    if role is Role.LEADER:
        core.receive(2, VoteResponse(epoch=4, pre_vote=False, granted=True), 1002.0)
        settle(core)
    assert core.role is role
    return core


def messages(epoch):
    yield VoteRequest(epoch=epoch, pre_vote=False, last_index=9, last_epoch=epoch)
    yield VoteRequest(epoch=epoch, pre_vote=True, last_index=9, last_epoch=epoch)
    yield VoteRequest(epoch=epoch, pre_vote=False, transfer=True, last_index=1, last_epoch=1)
    yield VoteResponse(epoch=epoch, pre_vote=False, granted=True)
    yield VoteResponse(epoch=epoch, pre_vote=False, granted=False)
    yield VoteResponse(epoch=epoch, pre_vote=True, granted=False)
    yield AppendRequest(epoch=epoch, prev_index=3, prev_epoch=2, commit_index=3)
    yield AppendRequest(
        epoch=epoch,
        prev_index=1,
        prev_epoch=1,
        commit_index=9,
        entries=(Entry(2, epoch, EntryKind.NOOP, b""),),
    )
    yield AppendRequest(epoch=epoch, prev_index=9, prev_epoch=2, commit_index=9)
    yield AppendResponse(epoch=epoch, accepted=True, match_index=3)
    yield AppendResponse(epoch=epoch, accepted=True, match_index=99, read_sequence=99)
    yield AppendResponse(epoch=epoch, accepted=False, rejected_index=3, hint_index=1, hint_epoch=1)
    yield SnapshotRequest(
        epoch=epoch,
        index=7,
        index_epoch=2,
        configuration=encode_configuration(VOTERS),
        piece=0,
        piece_count=2,
        data=b"piece",
    )
    yield SnapshotResponse(epoch=epoch, index=7, next_piece=1)
    yield TimeoutNow(epoch=epoch)


CASES = [
    pytest.param(role, shift, position, id=f"{role.value}-{type(message).__name__}-{position}-{shift:+}")
    for role, shift in itertools.product(Role, (-1, 0, 1))
    for position, message in enumerate(messages(4))
]


@pytest.mark.parametrize(("role", "shift", "position"), CASES)
def test_every_role_bears_every_message(role, shift, position):
    core = core_in(role)
    epoch = core.epoch + shift
    message = list(messages(epoch))[position]
    leads = role is Role.LEADER
    if leads and shift == 0 and isinstance(message, AppendRequest | SnapshotRequest):
        with pytest.raises(MessageError, match="both claim to lead"):
            core.receive(2, message, 1010.0)
        return
    if leads and shift == 0 and getattr(message, "match_index", 0) > core.log.last_index:
        with pytest.raises(MessageError, match="the log ends at"):
            core.receive(2, message, 1010.0)
        return
    before, commit = core.epoch, core.commit_index
    core.receive(2, message, 1010.0)
    # An answer that promises anything waits for the disk; a leader's requests, and answers to heartbeats, do not.
    early = [outgoing.message for outgoing in core.take_ready().messages]
    for item in early:
        if core.role is Role.LEADER:
            assert isinstance(item, AppendRequest | SnapshotRequest | TimeoutNow)
        else:
            assert isinstance(item, AppendResponse)
            assert item.match_index <= core.durable_index
            assert shift == 0, "a newer epoch is made durable before it is spoken of"
    sent = settle(core)
    assert core.epoch >= before
    assert core.commit_index >= commit
    assert all(item.epoch >= before for item in sent)
    if shift < 0:
        assert (core.role, core.epoch) == (role, before)
    for number, item in enumerate(sent):
        assert decode_payload(unseal(encode_message(Envelope(1, 2), item))[2]) == item, number


def test_all_message_types_are_crossed():
    assert {type(message) for message in messages(4)} == set(MESSAGE_TYPES)


def test_leader_stickiness():
    """A node that hears a leader ignores elections, unless the leader asked for one."""
    core = core_in(Role.FOLLOWER)
    core.receive(2, AppendRequest(epoch=3, prev_index=3, prev_epoch=2, commit_index=0), 10.0)
    settle(core)
    core.receive(3, VoteRequest(epoch=9, pre_vote=False, last_index=9, last_epoch=9), 50.0)
    assert (core.epoch, settle(core)) == (3, [])
    core.receive(3, VoteRequest(epoch=9, pre_vote=False, transfer=True, last_index=9, last_epoch=9), 60.0)
    assert settle(core) == [VoteResponse(epoch=9, pre_vote=False, granted=True)]


def test_own_vote_and_own_entries_wait_for_the_disk():
    core = core_in(Role.PRECANDIDATE)
    core.receive(2, VoteResponse(epoch=4, pre_vote=True, granted=True), 1001.0)
    ready = core.take_ready()
    assert ready.hard_state == HardState(epoch=4, voted_for=1)
    core.receive(2, VoteResponse(epoch=4, pre_vote=False, granted=True), 1002.0)
    assert core.role is Role.CANDIDATE, "its own vote is not durable yet"
    core.synced(ready.number)
    assert core.role is Role.LEADER
    ready = core.take_ready()
    assert [entry.index for entry in ready.entries] == [4]
    core.receive(2, AppendResponse(epoch=4, accepted=True, match_index=4), 1003.0)
    assert core.commit_index == 0, "its own entry is not durable yet"
    core.receive(3, AppendResponse(epoch=4, accepted=True, match_index=4), 1003.0)
    assert core.commit_index == 4, "but two others are a majority without it"
    assert core.take_ready().committed == ENTRIES, "and it applies what is durable here"
    core.synced(ready.number)
    assert [entry.index for entry in core.take_ready().committed] == [4]


@pytest.mark.parametrize(
    "member",
    [
        VoterEndpoint(voter_id=-1, host="h", port=1),
        VoterEndpoint(voter_id=1 << 64, host="h", port=1),
        VoterEndpoint(voter_id=4, host="", port=1),
        VoterEndpoint(voter_id=4, host="h", port=70_000),
    ],
)
def test_no_membership_is_appended_that_cannot_be_replayed(member):
    core = core_in(Role.LEADER)
    core.receive(2, AppendResponse(epoch=4, accepted=True, match_index=4), 1003.0)
    settle(core)
    last_index = core.log.last_index
    with pytest.raises(ValueError, match=r"voter|host|port|encoded"):
        core.leader.change_configuration(VOTERS.with_learner(member))
    assert core.log.last_index == last_index
    assert core.configuration == VOTERS


@pytest.mark.parametrize(
    ("last_index", "last_epoch", "granted"),
    [(3, 2, True), (9, 2, True), (1, 3, True), (2, 2, False), (9, 1, False)],
    ids=["equal", "longer", "newer", "shorter", "older"],
)
def test_only_a_candidate_with_an_up_to_date_log_gets_the_vote(last_index, last_epoch, granted):
    core = core_in(Role.FOLLOWER)
    core.receive(2, VoteRequest(epoch=4, pre_vote=False, last_index=last_index, last_epoch=last_epoch), 1.0)
    answers = [message.granted for message in settle(core) if isinstance(message, VoteResponse)]
    assert answers == [granted]
    assert core.hard_state == (HardState(epoch=4, voted_for=2) if granted else HardState(epoch=4))


def test_a_piece_of_a_snapshot_is_bounded():
    piece = SnapshotRequest(
        epoch=4,
        index=7,
        index_epoch=2,
        configuration=encode_configuration(VOTERS),
        piece=0,
        piece_count=1,
        data=bytes(SNAPSHOT_PIECE_BYTES_MAX),
    )
    payload = list(unseal(encode_message(Envelope(2, 1), piece))[2])
    assert decode_payload(tuple(payload)) == piece
    payload[payload.index(piece.data)] += b"x"
    with pytest.raises(MessageError, match="a piece of a snapshot has"):
        decode_payload(tuple(payload))


@pytest.mark.parametrize("entry", [5, None, "text", [1, 1, 1, b""]])
def test_an_entry_that_is_no_tuple_is_refused(entry):
    request = AppendRequest(epoch=4, prev_index=0, prev_epoch=0, commit_index=0, entries=ENTRIES[:1])
    payload = list(unseal(encode_message(Envelope(2, 1), request))[2])
    (place,) = [at for at, value in enumerate(payload) if type(value) is tuple]
    payload[place] = (entry,)
    with pytest.raises(MessageError, match="an entry of an AppendRequest is ill-typed"):
        decode_payload(tuple(payload))


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_refused(body):
    with pytest.raises(MessageError):
        unseal(body)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_damaged_messages_are_refused(data):
    """The checksum detects any change of the message's bytes."""
    message = data.draw(st.sampled_from(list(messages(4))))
    body = bytearray(encode_message(Envelope(2, 1), message))
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(MessageError):
        unseal(bytes(body))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=6).map(tuple) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=examples(500), deadline=None)
@given(st.data())
def test_forged_payloads_are_refused_or_sound(data):
    """Any values in the place of some fields: refused, or a message that survives its encoding."""
    message = data.draw(st.sampled_from(list(messages(4))))
    payload = list(unseal(encode_message(Envelope(2, 1), message))[2])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(PLAIN)
    try:
        decoded = decode_payload(tuple(payload))
    except MessageError:
        return
    assert decode_payload(unseal(encode_message(Envelope(2, 1), decoded))[2]) == decoded


def test_elections_begin_within_their_bounds() -> None:
    """Members draw different times, or they would ask for votes together again and again."""
    deadlines = []
    for seed in range(30):
        core = RaftCore(
            node_id=1,
            timing=TIMING,
            limits=LogLimits(),
            seed=seed,
            now_ms=500.0,
            hard_state=HardState(epoch=3),
            log=EntryLog(0, 0, ENTRIES),
            snapshot=None,
            bootstrap=VOTERS,
        )
        assert not core.has_ready, "all that it begins with is on disk"
        deadlines.append(core.next_deadline_ms())
    assert 600 <= min(deadlines) < 620
    assert 680 < max(deadlines) <= 700


def test_a_log_that_begins_after_a_snapshot_is_empty() -> None:
    log = EntryLog(0, 0, ENTRIES)
    assert log.size_bytes > 0
    log.reset(7, 3)
    assert (log.size_bytes, log.base_index, log.base_epoch, log.last_index) == (0, 7, 3, 7)
    assert (log.epoch_at(7), log.epoch_at(6), log.epoch_at(8)) == (3, None, None)


def test_a_leader_sends_on_from_where_the_logs_agree() -> None:
    """An answer to an older message may agree with less than was asked for last, or with more than was sent."""
    progress = Progress(next=10, last_seen_ms=0.0)
    assert progress.accepted(5)
    assert (progress.state, progress.match, progress.next) == (ProgressState.REPLICATE, 5, 6)
    progress.sent(8, 100)
    assert not progress.accepted(5)
    assert progress.next == 9
    assert progress.accepted(11)
    assert (progress.match, progress.next) == (11, 12)


def test_learners_are_members_too() -> None:
    learner = VoterEndpoint(voter_id=4, host="h", port=1)
    configuration = Configuration(voters=VOTERS.voters, learners={4: learner})
    assert configuration.member(4) == learner
    assert configuration.member(1) == VOTERS.voters[1]
    assert configuration.member(5) is None
    assert [each.voter_id for each in configuration.members()] == [1, 2, 3, 4]
    assert configuration.quorum == 2


@pytest.mark.parametrize("refusal", [MessageError("impossible"), WrongDirectoryError("of another directory")])
def test_a_refused_message_is_alone_in_its_turn(refusal: MessageError) -> None:
    """Messages of several members wait for one turn of the driver; only the refused one has a consequence."""

    async def main(world: Any) -> None:
        config = MetadataLogConfig(node_id=1, directory="/data", voters={1: ("c1", 1)}, directory_id=UUID(int=1))
        log = RaftLog(world.node("c1").environment, config, SimpleNamespace())  # type: ignore[arg-type]
        taken = []

        def refuse(now_ms: float) -> None:
            raise refusal

        sessions = [log.accept_session() for _ in range(3)]
        for session, take in zip(sessions, (taken.append, refuse, taken.append), strict=True):
            log._enqueue(session, take, 10)
        log._take_inbox(7.0)
        assert taken == [7.0, 7.0]
        is_refused = not isinstance(refusal, WrongDirectoryError)
        assert [session.refusal is not None for session in sessions] == [False, is_refused, False]

    run_world(main, 1)
