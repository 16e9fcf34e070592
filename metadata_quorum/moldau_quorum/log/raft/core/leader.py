"""The core as leader: replication, commit, reads, membership, hand-over.

Proposals only touch the log; ``flush`` (called when a ``Ready`` is taken) sends to each member what it may have: all
that was proposed meanwhile travels in one message.

An entry is committed when a majority of the voters holds it durably and it is of the leader's own epoch (Raft section
5.4.2); older ones are committed with it. The leader is one voter among others: its own log counts as far as it is
durable, and not at all once it is no voter any more.

``LeaderRole`` calls methods of the ``RaftCore`` that owns it (``send``, ``append_entries``, ``commit_to``,
``read_done``, ``become_follower``) instead of returning effects. Both are one pure core: the calls only add to the
``Ready`` that the core hands out, and no call leaves the core. With effects, a commit that deposes the leader in the
middle of a message would take effect after the rest of the message was handled, and the order of messages in a
``Ready`` would need rules of its own.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from moldau.values import ZERO_UUID
from moldau_quorum.log.raft.core.messages import (
    AppendRequest,
    AppendResponse,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
)
from moldau_quorum.log.raft.core.progress import Progress, ProgressState
from moldau_quorum.log.raft.core.types import Configuration, Entry, EntryKind, encode_configuration, encode_replayable

if TYPE_CHECKING:
    from moldau_quorum.log.raft.core.raft_core import RaftCore

SNAPSHOT_RESEND_HEARTBEATS: Final = 4
"""A piece of a snapshot without an answer is sent again after so many heartbeat intervals."""


class LeaderRole:
    """The state of one leadership; dropped when it ends."""

    def __init__(self, core: RaftCore) -> None:
        """Begins the leadership of ``core``, which has just been elected."""
        self._core = core
        self.epoch = core.epoch
        self.first_index = core.log.last_index + 1
        """The index of the entry that opens the epoch."""
        self.progress: dict[int, Progress] = {}
        self._reads: deque[tuple[int, int, int]] = deque()  # (sequence, index, read id)
        self._read_sequence = 0
        self._heartbeat_ms = core.now_ms + core.timing.heartbeat_interval_ms
        self._flush_wanted = True
        self._transfer: tuple[int, float] | None = None  # target, deadline
        self._transfer_sent = False
        self.configuration_changed(core.configuration)

    # --- state that others look at

    @property
    def has_work(self) -> bool:
        """Whether ``flush`` might send something."""
        return self._flush_wanted

    def snapshots_in_use(self) -> list[int]:
        """Indexes of the snapshots that are being sent."""
        return sorted({progress.snapshot.index for progress in self.progress.values() if progress.snapshot is not None})

    def next_deadline_ms(self) -> float:
        """Returns the time at which ``tick`` has work."""
        return min(self._heartbeat_ms, self._quorum_lost_ms())

    def _quorum_lost_ms(self) -> float:
        """Returns the time at which no majority has been heard for an election timeout."""
        core = self._core
        voters = core.configuration.voters
        seen = sorted(
            (float("inf") if voter == core.node_id else self.progress[voter].last_seen_ms for voter in voters),
            reverse=True,
        )
        return seen[core.configuration.quorum - 1] + core.timing.election_timeout_ms_max

    # --- leadership

    def open_epoch(self) -> None:
        """Appends the empty entry with which all earlier ones will be committed.

        The first leader of a quorum also records the directories of the voters: all of them have answered with theirs.
        """
        self._append(EntryKind.NOOP, b"")
        completed = self._core.directories.completed(self._core.configuration)
        if self.first_index == 1 and completed is not None:
            self._append(EntryKind.CONFIGURATION, encode_replayable(completed))

    def resign(self) -> None:
        """Ends the leadership: reads in progress fail."""
        for _, _, read_id in self._reads:
            self._core.read_done(read_id, -1)
        self._reads.clear()

    def tick(self) -> None:
        """Steps down, gives a hand-over up, or sends heartbeats, as far as one of them is due."""
        core = self._core
        if core.now_ms >= self._quorum_lost_ms():
            core.become_follower(core.epoch, None)
            return
        if self._transfer is not None and core.now_ms >= self._transfer[1]:
            self._transfer = None  # the target did not take over: go on leading
        if core.now_ms >= self._heartbeat_ms:
            self._heartbeat_ms = core.now_ms + core.timing.heartbeat_interval_ms
            self._transfer_sent = False
            for member, progress in sorted(self.progress.items()):
                progress.retry(core.now_ms, SNAPSHOT_RESEND_HEARTBEATS * core.timing.heartbeat_interval_ms)
                if core.now_ms - progress.last_sent_ms >= core.timing.heartbeat_interval_ms / 2:
                    self._heartbeat(member, progress)
            self._flush_wanted = True

    # --- proposals

    def propose(self, kind: EntryKind, data: bytes) -> Entry | None:
        """Appends an entry; None while the leadership is being handed over."""
        return self._append(kind, data) if self._transfer is None else None

    def _append(self, kind: EntryKind, data: bytes) -> Entry:
        core = self._core
        entry = Entry(core.log.last_index + 1, self.epoch, int(kind), data)
        core.append_entries((entry,))
        self._flush_wanted = True
        return entry

    # --- sending

    def flush(self) -> None:
        """Sends each member what it may have, and opens a round of reads if one waits."""
        if not self._flush_wanted:
            return
        self._flush_wanted = False
        new_round = bool(self._reads) and self._reads[-1][0] > self._read_sequence
        if new_round:
            self._read_sequence += 1
        for member, progress in sorted(self.progress.items()):
            sent = self._replicate(member, progress)
            commit_known = min(progress.match, self._core.commit_index)
            if not sent and (new_round or progress.commit_sent < commit_known):
                self._heartbeat(member, progress)
        self._finish_transfer()

    def _replicate(self, member: int, progress: Progress) -> bool:
        """Sends entries, or a piece of a snapshot, as far as flow control allows; returns whether anything was."""
        core, limits = self._core, self._core.limits
        sent = False
        while progress.next <= core.log.last_index:
            if progress.state is ProgressState.SNAPSHOT:
                return self._send_piece(member, progress) or sent
            if progress.next <= core.log.base_index:
                assert core.snapshot is not None, "what was cut off is in a snapshot"
                progress.become_snapshot(core.snapshot)
                continue
            if not progress.room(limits.append_messages_in_flight_max, limits.append_bytes_in_flight_max):
                break
            entries = core.log.slice(progress.next, core.log.last_index, limits.append_bytes_max)
            self._send_append(member, progress, progress.next - 1, entries)
            progress.sent(entries[-1].index, sum(entry.size_bytes for entry in entries))
            sent = True
        return sent

    def _send_append(self, member: int, progress: Progress, prev_index: int, entries: tuple[Entry, ...]) -> None:
        core = self._core
        prev_epoch = core.log.epoch_at(prev_index) if prev_index else 0
        assert prev_epoch is not None, "the entry before is at hand"
        progress.last_sent_ms = core.now_ms
        progress.commit_sent = max(progress.commit_sent, core.commit_index if prev_index else 0)
        core.send_early(
            member,
            AppendRequest(
                epoch=self.epoch,
                prev_index=prev_index,
                prev_epoch=prev_epoch,
                commit_index=core.commit_index,
                read_sequence=self._read_sequence,
                entries=entries,
            ),
        )

    def _heartbeat(self, member: int, progress: Progress) -> None:
        """Sends an empty request behind the last one; a member that missed a message refuses it."""
        prev_index = progress.next - 1
        if progress.state is ProgressState.SNAPSHOT or prev_index < self._core.log.base_index:
            prev_index = 0  # agrees with every log
        self._send_append(member, progress, prev_index, ())

    def _send_piece(self, member: int, progress: Progress) -> bool:
        core = self._core
        if progress.probe_sent:
            return False
        if progress.snapshot_piece == 0 and progress.snapshot != core.snapshot:
            assert core.snapshot is not None, "snapshots are replaced by newer ones"
            progress.become_snapshot(core.snapshot)  # the member begins: it may have refused the one before
        point = progress.snapshot
        assert point is not None, "a member that gets pieces gets them of some snapshot"
        progress.probe_sent = True
        progress.last_sent_ms = progress.piece_sent_ms = core.now_ms
        core.send_early(
            member,
            SnapshotRequest(
                epoch=self.epoch,
                index=point.index,
                index_epoch=point.epoch,
                configuration=encode_configuration(point.configuration),
                piece=progress.snapshot_piece,
                piece_count=0,
                read_sequence=self._read_sequence,
            ),
        )
        return True

    # --- answers

    def _heard(self, member: int, read_sequence: int) -> Progress | None:
        progress = self.progress.get(member)
        if progress is None:
            return None
        progress.last_seen_ms = self._core.now_ms
        progress.answered = True
        if read_sequence > progress.read_sequence:
            progress.read_sequence = min(read_sequence, self._read_sequence)
            self._finish_reads()
        return progress

    def on_append_response(self, member: int, response: AppendResponse) -> None:
        """Handles the answer of a member, in this epoch."""
        core = self._core
        progress = self._heard(member, response.read_sequence)
        if progress is None:
            return
        if not response.accepted:
            self._on_refusal(progress, response)
            return
        match_index = response.match_index
        assert match_index <= core.log.last_index, "no member agrees with what does not exist"
        if progress.snapshot is not None:
            if match_index < core.log.base_index:
                progress.match = max(progress.match, match_index)
                if match_index >= progress.snapshot.index:
                    assert core.snapshot is not None, "what was cut off is in a snapshot"
                    progress.become_snapshot(core.snapshot)  # the log went on meanwhile, and was cut
                    self._flush_wanted = True
                return
            progress.become_replicate()
        if progress.accepted(match_index):
            self.advance_commit()
        progress.compare_with_leader(core.log.last_index, core.now_ms)
        self._complete_directories()
        self._flush_wanted = True

    def _on_refusal(self, progress: Progress, response: AppendResponse) -> None:
        stale = response.rejected_index <= progress.match
        if progress.state is ProgressState.PROBE:
            stale = response.rejected_index != progress.next - 1
        if stale or progress.state is ProgressState.SNAPSHOT:
            return
        bound = self._core.log.agreement_bound(response.hint_index, response.hint_epoch)
        progress.become_probe(min(response.rejected_index, bound + 1))
        self._flush_wanted = True

    def on_snapshot_response(self, member: int, response: SnapshotResponse) -> None:
        """Notes which piece of a snapshot a member asks for; ``flush`` sends it."""
        progress = self._heard(member, response.read_sequence)
        if progress is None or progress.snapshot is None:
            return
        if response.index == progress.snapshot.index and response.next_piece != progress.snapshot_piece:
            progress.snapshot_piece = response.next_piece
            progress.probe_sent = False
            self._flush_wanted = True

    # --- commit

    def _durable_on_quorum(self) -> int:
        """Returns the last index that a majority of the voters holds durably."""
        core = self._core
        configuration = core.configuration
        held = sorted(
            (core.durable_index if voter == core.node_id else self.progress[voter].match)
            for voter in configuration.voters
        )
        return held[len(held) - configuration.quorum]

    def advance_commit(self) -> None:
        """Commits the entries that a majority of the voters holds durably."""
        core = self._core
        index = self._durable_on_quorum()
        if index > core.commit_index and core.log.epoch_at(index) == self.epoch:
            core.commit_to(index)
            self._finish_reads()
            self._flush_wanted = True
        self._complete_directories()

    def _complete_directories(self) -> None:
        """Appends a membership with the directories of members that have become known since the last one."""
        core = self._core
        if not self._directories_missing or self._transfer is not None:
            return
        if core.commit_index < max(core.configuration_index, self.first_index):
            return
        completed = core.directories.completed(core.configuration)
        if completed is not None:
            self._append(EntryKind.CONFIGURATION, encode_replayable(completed))

    def applied(self, index: int) -> None:
        """Steps down if the entries up to ``index``, which are applied, remove this node from the voters."""
        core = self._core
        if index >= core.configuration_index and not core.directories.is_own_voter(core.configuration):
            self._broadcast_commit()
            core.become_follower(core.epoch, None)

    def _broadcast_commit(self) -> None:
        for member, progress in sorted(self.progress.items()):
            self._heartbeat(member, progress)

    # --- reads (ReadIndex, thesis section 6.4)

    def read_index(self, read_id: int) -> bool:
        """Begins a read; False if this leader does not know yet what is committed.

        All reads that begin before the next ``flush`` share one round of messages.
        """
        core = self._core
        if core.commit_index < self.first_index:
            return False
        self._reads.append((self._read_sequence + 1, core.commit_index, read_id))
        self._flush_wanted = True
        if core.configuration.quorum == 1 and core.directories.is_own_voter(core.configuration):
            self._read_sequence += 1
            self._finish_reads()
        return True

    def _confirmed_sequence(self) -> int:
        """Returns the last read sequence that a majority has echoed."""
        core = self._core
        configuration = core.configuration
        echoed = sorted(
            self._read_sequence if voter == core.node_id else self.progress[voter].read_sequence
            for voter in configuration.voters
        )
        return echoed[len(echoed) - configuration.quorum]

    def _finish_reads(self) -> None:
        confirmed = self._confirmed_sequence()
        while self._reads and self._reads[0][0] <= confirmed:
            _, index, read_id = self._reads.popleft()
            self._core.read_done(read_id, index)

    # --- membership and hand-over

    def configuration_changed(self, before: Configuration) -> None:
        """Keeps a progress for each other member, and for no other node.

        A member of another directory than in the membership ``before`` starts from nothing.
        """
        core = self._core
        members = [member.voter_id for member in core.configuration.members() if member.voter_id != core.node_id]
        kept = {
            member: progress
            for member, progress in self.progress.items()
            if core.directories.is_same(before, core.configuration, member)
        }
        self._directories_missing = core.directories.are_known and any(
            member.directory_id == ZERO_UUID for member in core.configuration.members()
        )
        self.progress = {
            member: kept.get(member) or Progress(next=max(1, core.log.last_index + 1), last_seen_ms=core.now_ms)
            for member in members
        }
        self._flush_wanted = True

    def change_configuration(self, configuration: Configuration) -> Entry | None:
        """Appends a membership that differs by one node from the one in force.

        None while an earlier change, or this leader's first entry, is not committed (thesis section 4.1, and the
        correction of 2015), and while the leadership is being handed over.

        Raises:
            ValueError: no replica could replay the entry; nothing was appended.
        """
        core = self._core
        if core.commit_index < max(core.configuration_index, self.first_index) or self._transfer is not None:
            return None
        assert len(configuration.voters.keys() ^ core.configuration.voters.keys()) <= 1, "one voter at a time"
        return self._append(EntryKind.CONFIGURATION, encode_replayable(configuration))

    def transfer(self, target: int) -> None:
        """Hands the leadership over to a voter: no proposals until it has taken over, or an election timeout passed."""
        core = self._core
        assert target in core.configuration.voters, "only a voter can lead"
        assert target != core.node_id, "the target is another node"
        self._transfer = (target, core.now_ms + core.timing.election_timeout_ms_max)
        self._transfer_sent = False
        self._flush_wanted = True

    def _finish_transfer(self) -> None:
        if self._transfer is None or self._transfer_sent:
            return
        progress = self.progress.get(self._transfer[0])
        if progress is not None and progress.match == self._core.log.last_index:
            self._transfer_sent = True
            self._core.send_early(self._transfer[0], TimeoutNow(epoch=self.epoch))
