"""The Raft core: messages and time in, messages and entries out; no I/O, no clock, no randomness of its own.

Inputs are ``receive``, ``tick``, ``propose``, ``read_index``, ``synced`` and the few others below, each with the time.
What follows from them piles up until ``take_ready`` hands it out as one ``Ready``. Its owner then must

1. write ``hard_state`` and ``entries`` (the first entry replaces whatever stands at its index and after),
2. send ``messages`` at any time,
3. make all that was written up to this ``Ready`` durable, and only then send ``messages_synced`` and call ``synced``,
4. apply ``committed`` in order.

A node promises nothing that is not durable: votes and acknowledgements are in ``messages_synced``; its own vote and its
own entries count only after ``synced``. The leader's requests leave early, because they promise nothing (Raft thesis
section 10.2.1), and so do answers to heartbeats, which speak only of what is durable already. Entries are applied once
they are committed and durable here.

    FOLLOWER -> PRECANDIDATE -> CANDIDATE -> LEADER        elections with pre-vote (thesis section 9.6)
    any state, higher epoch -> FOLLOWER
    LEADER, no majority heard for an election timeout -> FOLLOWER      check-quorum (thesis section 6.2)

A node that hears a leader refuses to vote (leader stickiness, thesis section 4.2.3), unless the leader itself asked for
the election. What a leader does beyond this file is in ``leader.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.values import ZERO_UUID
from moldau_quorum.log.raft.core.draws import Draws
from moldau_quorum.log.raft.core.incoming_snapshot import IncomingSnapshot
from moldau_quorum.log.raft.core.leader import LeaderRole
from moldau_quorum.log.raft.core.membership import ConfigurationHistory
from moldau_quorum.log.raft.core.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from moldau_quorum.log.raft.core.plausible import check_plausible
from moldau_quorum.log.raft.core.ready import Outgoing, ReadReady, Ready, Role, SnapshotPiece
from moldau_quorum.log.raft.core.types import (
    NO_NODE,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    SnapshotPoint,
)
from moldau_quorum.log.raft.core.writes import Writes
from moldau_quorum.log.raft.directories import VoterDirectories
from moldau_quorum.log.raft.envelope import EPOCH_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from moldau_quorum.log.port import ElectionTiming, LogLimits
    from moldau_quorum.log.raft.core.entry_log import EntryLog

COMMITTED_BYTES_MAX: Final = 256 * 1024
COMMITTED_ENTRIES_MAX: Final = 500
"""Entries handed out for application at once; the rest follows with the next ``Ready``."""


class RaftCore:
    """One member. Invariant: applied <= commit_index <= last index; applied <= durable index.

    Elections and following stay in one class, because they read and change the same few fields (epoch, vote, log,
    commit index), and the safety of each rule depends on the others. A leader's own state is in ``LeaderRole``,
    memberships are in ``ConfigurationHistory``, writes in ``Writes``, a received snapshot in ``IncomingSnapshot``.
    """

    def __init__(
        self,
        *,
        node_id: int,
        timing: ElectionTiming,
        limits: LogLimits,
        seed: int,
        now_ms: float,
        hard_state: HardState,
        log: EntryLog,
        snapshot: SnapshotPoint | None,
        bootstrap: Configuration,
        directory_id: UUID = ZERO_UUID,
    ) -> None:
        """All of ``hard_state``, ``log`` and ``snapshot`` is durable, and the snapshot is applied.

        ``bootstrap`` is the membership where neither snapshot nor log holds one. ``seed`` drives election timeouts.
        ``directory_id`` is that of this node's disk (``directories``).
        """
        self.directories = VoterDirectories(node_id, directory_id)
        self.node_id = node_id
        self.timing = timing
        self.limits = limits
        self.hard_state = hard_state
        self.log = log
        self.snapshot = snapshot
        self.role = Role.FOLLOWER
        self.leader_id: int | None = None
        self.leader: LeaderRole | None = None
        self.now_ms = now_ms
        self.commit_index = self.applied_index = snapshot.index if snapshot else 0
        self.writes = Writes(log.last_index)
        self._incoming = IncomingSnapshot()
        self._configurations = ConfigurationHistory(snapshot, bootstrap)
        start = max(self.commit_index, log.base_index) + 1
        if start <= log.last_index:
            self._configurations.appended(log.slice(start, log.last_index, 1 << 62))
        self._draws = Draws(seed)
        self._heard_ms = float("-inf")  # last sign of life of the leader
        self._votes: dict[int, bool] = {}
        self._own_vote_number: int | None = None  # own vote counts when this Ready is durable
        self._transferred = False
        self._messages: list[Outgoing] = []
        self._messages_synced: list[Outgoing] = []
        self._reads: list[ReadReady] = []
        self._snapshot_pieces: list[SnapshotPiece] = []
        self._reset_election_timer()

    # --- state that others look at

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self.hard_state.epoch

    @property
    def configuration(self) -> Configuration:
        """The membership in force: the newest in the log, committed or not."""
        return self._configurations.current

    @property
    def configuration_index(self) -> int:
        """The index of the membership in force."""
        return self._configurations.current_index

    def configuration_at(self, index: int) -> Configuration:
        """Returns the membership as of ``index``, which must not lie before the newest snapshot."""
        return self._configurations.at(index)

    @property
    def has_ready(self) -> bool:
        """Whether ``take_ready`` has anything to hand out."""
        return bool(
            self.writes.are_pending
            or self._messages
            or self._messages_synced
            or self._reads
            or self._snapshot_pieces
            or self.applicable_index > self.applied_index
            or (self.leader is not None and self.leader.has_work)
        )

    @property
    def durable_index(self) -> int:
        """The index of the last entry that is durable here."""
        return self.writes.durable_index

    @property
    def installing(self) -> SnapshotPoint | None:
        """The complete snapshot that is being installed."""
        return self._incoming.installing

    @property
    def applicable_index(self) -> int:
        """The index up to which entries may be applied."""
        return self.applied_index if self.installing else min(self.commit_index, self.durable_index)

    def next_deadline_ms(self) -> float:
        """Returns the latest time at which ``tick`` has work."""
        return self.leader.next_deadline_ms() if self.leader is not None else self._election_deadline_ms

    # --- helpers shared with the leader

    def send(self, recipient: int, message: Message) -> None:
        """Sends once all that was written so far is durable."""
        self._messages_synced.append(Outgoing(recipient=recipient, message=message))

    def send_early(self, recipient: int, message: Message) -> None:
        """Sends at once: the message promises nothing."""
        self._messages.append(Outgoing(recipient=recipient, message=message))

    def read_done(self, read_id: int, index: int) -> None:
        """Ends a read."""
        self._reads.append(ReadReady(read_id=read_id, index=index))

    def append_entries(self, entries: Sequence[Entry]) -> None:
        """Adds entries after the last."""
        self.writes.entries_changed(self.log.last_index + 1)
        self.log.append(entries)
        before = self.configuration
        if self._configurations.appended(entries):
            if self.leader is not None:
                self.leader.configuration_changed(before)
            self.directories.changed(before, self.configuration)

    def commit_to(self, index: int) -> None:
        """Advances the commit index to ``index``, unless it is higher already."""
        assert index <= self.log.last_index, "only what is in the log can be committed here"
        self.commit_index = max(self.commit_index, index)

    def _truncate(self, last_index: int) -> None:
        """Drops entries that conflict with the leader's."""
        assert last_index >= self.commit_index, "a committed entry would be lost"
        self.log.truncate(last_index)
        self.writes.truncated(last_index)
        self._configurations.truncated(last_index)

    def _reset_election_timer(self) -> None:
        low, high = self.timing.election_timeout_ms_min, self.timing.election_timeout_ms_max
        self._election_deadline_ms = self.now_ms + low + (high - low) * self._draws.next()

    def _set_hard_state(self, epoch: int, voted_for: int) -> None:
        assert epoch >= self.epoch, "epochs never fall"
        self.hard_state = HardState(epoch=epoch, voted_for=voted_for)
        self.writes.hard_state_changed()

    # --- roles

    def become_follower(self, epoch: int, leader_id: int | None) -> None:
        """Follows ``leader_id`` in ``epoch``, or waits for a leader if it is None."""
        if epoch > self.epoch:
            self._set_hard_state(epoch, NO_NODE)
        if self.leader is not None:
            self.leader.resign()
            self.leader = None
        self.role = Role.FOLLOWER
        self.leader_id = leader_id
        self._transferred = False
        self._votes = {}
        self._own_vote_number = None
        self._reset_election_timer()

    def _campaign(self, *, pre_vote: bool) -> None:
        """Starts an election, if this node may vote in it.

        It is repeated sooner than a silent leader is given up: asking costs nothing, since others that hear a leader do
        not answer, and a split vote is to be settled quickly.
        """
        self._reset_election_timer()
        if not self._may_lead() or self.epoch >= EPOCH_MAX:
            self.leader_id = None  # silent for so long, it may have been replaced, or count this node no more
            return
        pause_ms = self.timing.heartbeat_interval_ms if pre_vote else self.timing.election_timeout_ms_min / 2
        self._election_deadline_ms = self.now_ms + pause_ms * (1 + self._draws.next())
        self.leader_id = None
        self._votes = {}
        self._own_vote_number = None  # a vote for itself that is not durable yet belongs to an election that is over
        epoch = self.epoch + 1
        self.role = Role.PRECANDIDATE if pre_vote else Role.CANDIDATE
        if not pre_vote:
            self._set_hard_state(epoch, self.node_id)
            self._own_vote_number = self.writes.number
        request = VoteRequest(
            epoch=epoch,
            pre_vote=pre_vote,
            transfer=self._transferred,
            last_index=self.log.last_index,
            last_epoch=self.log.last_epoch,
        )
        for voter in sorted(self.configuration.voters):
            if voter != self.node_id:
                self.send(voter, request)
        if pre_vote:
            self._count_vote(self.node_id, granted=True)

    def _may_lead(self) -> bool:
        """Voters may; so may one whose removal is in its log but perhaps not committed.

        It may be the only one that holds that entry, so that no voter could be elected without it (Raft thesis section
        4.2.2). Its own vote does not count.
        """
        if self.directories.is_own_voter(self.configuration):
            return True
        uncommitted = self.commit_index < self.configuration_index
        return uncommitted and self.directories.is_own_voter(self._configurations.previous)

    @property
    def _founds(self) -> bool:
        """Whether this node has no entry yet, so that only all voters together can let it stand (``directories``)."""
        return self.directories.are_known and self.log.last_index == 0

    def _count_vote(self, voter: int, *, granted: bool) -> None:
        configuration = self.configuration
        if voter in configuration.voters:
            self._votes.setdefault(voter, granted)
        in_favour = sum(1 for voter in configuration.voters if self._votes.get(voter))
        against = sum(1 for voter in configuration.voters if self._votes.get(voter) is False)
        needed = configuration.quorum
        if self._founds and self.role is Role.PRECANDIDATE:
            needed = len(configuration.voters)
        if in_favour >= needed:
            if self.role is Role.PRECANDIDATE:
                self._campaign(pre_vote=False)
            else:
                self._become_leader()
        elif against > len(configuration.voters) - configuration.quorum:
            self.become_follower(self.epoch, None)

    def _become_leader(self) -> None:
        assert self.role is Role.CANDIDATE, "leaders come from candidates"
        assert self.hard_state.voted_for == self.node_id, "a leader has voted for itself"
        self.role = Role.LEADER
        self.leader_id = self.node_id
        self._own_vote_number = None
        self.leader = LeaderRole(self)
        self.leader.open_epoch()

    # --- inputs

    def tick(self, now_ms: float) -> None:
        """Acts on timers that are due; call it at ``next_deadline_ms``, or at any other time."""
        self.now_ms = max(self.now_ms, now_ms)
        if self.leader is not None:
            self.leader.tick()
        elif self.now_ms >= self._election_deadline_ms:
            self._transferred = False
            self._campaign(pre_vote=True)

    def receive(
        self,
        sender: int,
        message: Message,
        now_ms: float,
        sender_directory: UUID = ZERO_UUID,
        addressed_directory: UUID = ZERO_UUID,
    ) -> None:
        """Takes a message. Lost, repeated, late and reordered messages do no harm.

        ``addressed_directory`` is what the sender takes this node's directory for; zero where it does not know.

        Raises:
            MessageError: no member of this quorum can have sent it; nothing has changed.
        """
        self.now_ms = max(self.now_ms, now_ms)
        check_plausible(self, sender, message)
        if isinstance(message, VoteResponse | AppendResponse | SnapshotResponse):
            self.directories.take_answer(self.configuration, sender, sender_directory)
        if message.epoch < self.epoch:
            self._receive_stale(sender, message)
            return
        if message.epoch > self.epoch and not self._enter_epoch(sender, message):
            return
        match message:
            case VoteRequest():
                self._on_vote_request(sender, message, addressed_directory)
            case VoteResponse():
                self._on_vote_response(sender, message)
            case AppendRequest():
                self._follow(sender)
                self._on_append_request(sender, message)
            case SnapshotRequest():
                self._follow(sender)
                self._on_snapshot_request(sender, message)
            case AppendResponse():
                if self.leader is not None:
                    self.leader.on_append_response(sender, message)
            case SnapshotResponse():
                if self.leader is not None:
                    self.leader.on_snapshot_response(sender, message)
            case TimeoutNow():
                if self.role is Role.FOLLOWER and self.leader_id == sender:
                    self._transferred = True
                    self._campaign(pre_vote=False)

    def peer_refused(self, peer: int, now_ms: float) -> None:
        """Notes that the process of ``peer`` is dead: its host refuses connections. If it led, an election begins soon.

        A hint for speed alone: the election that follows still asks with a pre-vote whether others agree.
        """
        self.now_ms = max(self.now_ms, now_ms)
        if self.role is Role.FOLLOWER and self.leader_id == peer:
            self.leader_id = None
            grace_ms = self.timing.refused_grace_ms * self._draws.next()
            self._election_deadline_ms = min(self._election_deadline_ms, self.now_ms + grace_ms)

    def propose(self, data: bytes) -> Entry | None:
        """Appends an entry as leader; None if this node does not lead or hands its leadership over."""
        return self.leader.propose(EntryKind.DATA, data) if self.leader is not None else None

    def synced(self, number: int) -> None:
        """Records that all writes up to and including the ``Ready`` of that number are durable."""
        self.writes.synced(number)
        if self._own_vote_number is not None and self._own_vote_number <= number:
            self._own_vote_number = None
            assert self.role is Role.CANDIDATE, "only candidates wait for their own vote"
            self._count_vote(self.node_id, granted=True)
        if self.leader is not None:
            self.leader.advance_commit()

    def take_ready(self) -> Ready:
        """Returns the effects of all inputs since the last call, and counts ``committed`` as applied."""
        if self.leader is not None:
            self.leader.flush()
        entries: tuple[Entry, ...] = ()
        number, first_index, has_hard_state = self.writes.hand_out(self.log.last_index)
        if first_index is not None and first_index <= self.log.last_index:
            entries = self.log.slice(first_index, self.log.last_index, 1 << 62)
        committed: tuple[Entry, ...] = ()
        if self.applicable_index > self.applied_index:
            last = min(self.applicable_index, self.applied_index + COMMITTED_ENTRIES_MAX)
            committed = self.log.slice(self.applied_index + 1, last, COMMITTED_BYTES_MAX)
            self.applied_index = committed[-1].index
        ready = Ready(
            number=number,
            hard_state=self.hard_state if has_hard_state else None,
            entries=entries,
            messages=tuple(self._messages),
            messages_synced=tuple(self._messages_synced),
            committed=committed,
            reads=tuple(self._reads),
            snapshot_pieces=tuple(self._snapshot_pieces),
        )
        self._messages, self._messages_synced, self._reads, self._snapshot_pieces = [], [], [], []
        if self.leader is not None:
            self.leader.applied(self.applied_index)
        return ready

    # --- epochs

    def _receive_stale(self, sender: int, message: Message) -> None:
        """Answers a message of an older epoch, which is void, so that its sender learns the present one."""
        if isinstance(message, AppendRequest | SnapshotRequest):
            self.send(sender, AppendResponse(epoch=self.epoch, accepted=False))
        elif isinstance(message, VoteRequest):
            self.send(sender, VoteResponse(epoch=self.epoch, pre_vote=message.pre_vote, granted=False))

    def _enter_epoch(self, sender: int, message: Message) -> bool:
        """Handles a newer epoch; returns whether the message is still to be processed."""
        if isinstance(message, VoteRequest):
            if not message.transfer and self._hears_leader():
                return False
            if not message.pre_vote:
                self.become_follower(message.epoch, None)
        elif isinstance(message, VoteResponse) and message.pre_vote and message.granted:
            pass  # the epoch is the one that was asked about; no node is in it yet
        elif isinstance(message, AppendRequest | SnapshotRequest):
            self.become_follower(message.epoch, sender)
        else:
            self.become_follower(message.epoch, None)
        return True

    def _hears_leader(self) -> bool:
        """Returns whether a leader is alive as far as this node knows (leader stickiness)."""
        if self.role is Role.LEADER:
            return True
        return self.leader_id is not None and self.now_ms - self._heard_ms < self.timing.election_timeout_ms_min

    def _follow(self, sender: int) -> None:
        """Follows the leader of this epoch, from which a message has come."""
        assert self.role is not Role.LEADER, "two leaders in one epoch"
        if self.role is not Role.FOLLOWER or self.leader_id is None:
            self.become_follower(self.epoch, sender)
        assert self.leader_id == sender, "two leaders in one epoch"
        self._heard_ms = self.now_ms
        self._reset_election_timer()

    # --- votes

    def _log_is_up_to_date(self, request: VoteRequest) -> bool:
        """Returns whether the sender's log holds all that may be committed in this node's (Raft section 5.4.1)."""
        return (request.last_epoch, request.last_index) >= (self.log.last_epoch, self.log.last_index)

    def _may_promise(self, request: VoteRequest, addressed_directory: UUID) -> bool:
        """Returns whether this node may vote: one without entries, perhaps emptied, only if its directory is named.

        Before the first election no node knows directories; a pre-vote of another node without entries learns them.
        """
        if not self._founds or addressed_directory == self.directories.own:
            return True
        return request.pre_vote and request.last_index == 0

    def _on_vote_request(self, sender: int, request: VoteRequest, addressed_directory: UUID) -> None:
        up_to_date = self._log_is_up_to_date(request) and self._may_promise(request, addressed_directory)
        if request.pre_vote:
            granted = up_to_date and request.epoch > self.epoch
            epoch = request.epoch if granted else self.epoch
            self.send(sender, VoteResponse(epoch=epoch, pre_vote=True, granted=granted))
            return
        voted_for = self.hard_state.voted_for
        granted = up_to_date and (voted_for == sender or (voted_for == NO_NODE and self.leader_id is None))
        if granted:
            if voted_for == NO_NODE:
                self._set_hard_state(self.epoch, sender)
            self._reset_election_timer()
        self.send(sender, VoteResponse(epoch=self.epoch, pre_vote=False, granted=granted))

    def _on_vote_response(self, sender: int, response: VoteResponse) -> None:
        if response.pre_vote:
            asked = self.role is Role.PRECANDIDATE
            relevant = asked and response.epoch == (self.epoch + 1 if response.granted else self.epoch)
        else:
            relevant = self.role is Role.CANDIDATE
        if relevant:
            self._count_vote(sender, granted=response.granted)

    # --- following

    def _on_append_request(self, sender: int, request: AppendRequest) -> None:
        if self.installing is not None:
            # The log is about to be replaced: the leader repeats entries, and hears that this node lives.
            if not request.entries and self.writes.is_hard_state_durable:
                self.send_early(sender, self._acceptance(request, min(self.commit_index, self.durable_index)))
            return
        log = self.log
        prev_index, entries = request.prev_index, request.entries
        if prev_index < self.commit_index:
            # Committed entries agree with every leader: only later ones are of interest.
            entries = entries[self.commit_index - prev_index :]
        elif log.epoch_at(prev_index) != request.prev_epoch:
            self._refuse_append(sender, request)
            return
        for position, entry in enumerate(entries):
            if log.epoch_at(entry.index) != entry.epoch:
                if entry.index <= log.last_index:
                    self._truncate(entry.index - 1)
                self.append_entries(entries[position:])
                break
        match_index = max(prev_index + len(request.entries), self.commit_index)
        self.commit_to(max(self.commit_index, min(request.commit_index, match_index)))
        if not request.entries and self.writes.is_hard_state_durable:
            # A heartbeat is answered at once with what is durable: a slow disk must not look like a dead node.
            self.send_early(sender, self._acceptance(request, min(match_index, self.durable_index)))
        else:
            self.send(sender, self._acceptance(request, match_index))

    def _acceptance(self, request: AppendRequest | SnapshotRequest, match_index: int) -> AppendResponse:
        return AppendResponse(
            epoch=self.epoch, accepted=True, match_index=match_index, read_sequence=request.read_sequence
        )

    def _refuse_append(self, sender: int, request: AppendRequest) -> None:
        hint_index = self.log.agreement_bound(request.prev_index, request.prev_epoch)
        self.send(
            sender,
            AppendResponse(
                epoch=self.epoch,
                accepted=False,
                rejected_index=request.prev_index,
                hint_index=hint_index,
                hint_epoch=self.log.epoch_at(hint_index) or 0,
                read_sequence=request.read_sequence,
            ),
        )

    def _on_snapshot_request(self, sender: int, request: SnapshotRequest) -> None:
        if request.index <= self.commit_index:
            self.send(sender, self._acceptance(request, self.commit_index))
            return
        if self.installing is not None:
            return
        piece = self._incoming.take(request)
        if piece is not None:
            self._snapshot_pieces.append(piece)
            if piece.last:
                return  # answered when it is installed
        self.send(
            sender,
            SnapshotResponse(
                epoch=self.epoch,
                index=request.index,
                next_piece=self._incoming.wanted_piece(request),
                read_sequence=request.read_sequence,
            ),
        )

    # --- snapshots

    def snapshot_installed(self, point: SnapshotPoint) -> None:
        """Goes on behind an installed snapshot, which is durable and restored; the log on disk begins behind it."""
        self._incoming.ended(point)
        if self.log.epoch_at(point.index) == point.epoch:
            self.writes.covered(point.index)
        else:
            assert self.role is not Role.LEADER, "a leader holds all that is committed"
            self.log.reset(point.index, point.epoch)
            self.writes.reset(point.index)
            self._configurations.reset(point)
        self.commit_index = max(self.commit_index, point.index)
        self.applied_index = max(self.applied_index, point.index)
        self.snapshot = point
        self._configurations.compacted(point)
        if self.role is Role.FOLLOWER and self.leader_id is not None:
            self.send(self.leader_id, AppendResponse(epoch=self.epoch, accepted=True, match_index=self.commit_index))

    def snapshot_refused(self, point: SnapshotPoint) -> None:
        """Drops a received snapshot that is invalid; the leader will offer it again."""
        self._incoming.ended(point)

    def snapshot_taken(self, point: SnapshotPoint, base_index: int) -> None:
        """Drops the entries up to ``base_index``, which a durable snapshot covers."""
        assert base_index <= point.index <= self.applied_index, "a snapshot holds what was applied"
        self.log.compact(base_index)
        self.snapshot = point
        self._configurations.compacted(point)
