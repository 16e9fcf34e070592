"""One member of the quorum without an event loop: core, files, state machine, proposals and reads brought together.

The shell that runs a node (trio's, a simulator's) repeats:

    receive / tick / propose / ...        inputs, any number
    process()                             writes to the page cache, applies what is committed
    take_outbox()                         messages that may be sent now
    begin_sync() -> run -> sync_done()    makes the writes durable, at its own pace; releases messages that waited
    take_job()                            long work on snapshots, in steps, beside all this

A crash between any two of these steps, and inside of any of them, must lose nothing that was promised; the campaign in
the tests crashes nodes at every single call of the disk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.values import ZERO_UUID
from moldau_quorum.log.port import (
    CommittedEntry,
    CommittedRange,
    Leadership,
    LogBusyError,
    LogDamagedError,
    LogPosition,
    MembershipChangeError,
    NotLeaderError,
    OffsetOutOfRangeError,
    ProposalTooLargeError,
    QuorumStatus,
    SnapshotInvalidError,
    VoterStatus,
)
from moldau_quorum.log.raft.core.messages import (
    AppendRequest,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    decode_payload,
    encode_message,
)
from moldau_quorum.log.raft.core.raft_core import RaftCore
from moldau_quorum.log.raft.core.types import Configuration, EntryKind, SnapshotPoint, configuration_of
from moldau_quorum.log.raft.engine_node import NodeStatistics
from moldau_quorum.log.raft.envelope import RAFT_FORMAT, Identity, MessageError
from moldau_quorum.log.raft.storage.snapshot_jobs import (
    InstallSnapshot,
    Job,
    RestoreSnapshot,
    SealSnapshot,
    TakeSnapshot,
)
from moldau_quorum.log.raft.storage.snapshot_store import (
    SnapshotFileReader,
    SnapshotWriter,
    open_newest_snapshot,
    remove_older_snapshots,
)
from moldau_quorum.log.raft.storage.wal import SyncWork, WriteAheadLog, make_durable_directories
from moldau_quorum.log.raft.storage.write_syncs import WriteSyncs
from moldau_quorum.log.raft.waiting import OpenProposals, OpenReads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.environment import Disk
    from moldau_quorum.log.port import MetadataLogConfig, StateMachine
    from moldau_quorum.log.raft.core.ready import Outgoing, Ready, SnapshotPiece
    from moldau_quorum.log.raft.core.types import Entry
    from moldau_quorum.log.raft.envelope import Envelope, Payload
    from moldau_quorum.log.raft.waiting import Pending


class RaftNode:
    """See the module. Invariant: ``applied_index`` is what the state machine has seen."""

    def __init__(
        self, disk: Disk, config: MetadataLogConfig, machine: StateMachine, *, seed: int, now_ms: float
    ) -> None:
        """Opens the files and repairs a torn end. Blocks. ``restore_job`` comes next.

        Raises:
            LogDamagedError: the files cannot be trusted.
            OSError: the disk failed.
        """
        self._disk = disk
        self._config = config
        self._machine = machine
        self._directory = config.directory
        make_durable_directories(disk, self._directory)
        self.snapshot_reader = open_newest_snapshot(disk, self._directory)
        self._wal, hard_state, log = WriteAheadLog.open(
            disk, self._directory, config.limits.segment_bytes, exists=config.log_exists
        )
        point = self.snapshot_reader.point if self.snapshot_reader is not None else None
        if log.base_index > (point.index if point is not None else 0):
            raise LogDamagedError(
                f"{self._directory}: the log begins behind index {log.base_index}, but the newest snapshot is of "
                f"{point.index if point is not None else 'nothing'}"
            )
        if point is not None and hard_state.epoch < point.epoch:
            raise LogDamagedError(
                f"{self._directory}: the log knows epoch {hard_state.epoch} only, but there is a snapshot of epoch "
                f"{point.epoch}: the vote may be lost"
            )
        if point is not None and log.epoch_at(point.index) != point.epoch:
            # Received and put in place, but the log was not reset yet: its entries are older, or void.
            log.reset(point.index, point.epoch)
            self._wal.reset(point.index, point.epoch)
        try:
            self.core = RaftCore(
                node_id=config.node_id,
                timing=config.timing,
                limits=config.limits,
                seed=seed,
                now_ms=now_ms,
                hard_state=hard_state,
                log=log,
                snapshot=point,
                bootstrap=Configuration() if config.joins else configuration_of(config.voters),
                directory_id=config.directory_id,
            )
        except ValueError as error:
            raise LogDamagedError(f"{self._directory}: an entry of the log cannot be replayed: {error}") from error
        self.identity = Identity(config.node_id, config.directory_id, config.cluster_id)
        self.leadership = Leadership(epoch=hard_state.epoch)
        self.applied_index = self.core.applied_index
        self._outbox: list[tuple[int, bytes]] = []
        self._deferred: deque[tuple[int, tuple[Outgoing, ...]]] = deque()  # Ready number, messages
        self._syncs = WriteSyncs(self._wal)  # their writes have the numbers of Ready
        self._durable_number = self._epoch_number = 0  # Ready: the last durable one, and that of the present epoch
        self._storing: tuple[int, SealSnapshot] | None = None  # Ready number that must be durable first
        self._proposals = OpenProposals(
            count_max=config.limits.proposals_in_flight_max, bytes_max=config.limits.proposal_bytes_in_flight_max
        )
        self._reads = OpenReads()
        self._readers: dict[int, SnapshotFileReader] = {}
        self._writer: SnapshotWriter | None = None  # of the snapshot being received
        self._jobs: deque[Job] = deque()
        self._taking = False
        self._bytes_since_snapshot = 0  # entries behind the snapshot count when they are applied
        self._received = self._applied_count = self._taken = self._installed = 0
        self._snapshots_refused = 0
        self.snapshot_refusal: str | None = None
        """Why the last snapshot of a leader was refused."""

    def restore_job(self) -> Job | None:
        """Returns the job that restores the newest snapshot; run it before anything else."""
        if self.snapshot_reader is None:
            return None
        return RestoreSnapshot(self.snapshot_reader, self._machine, lambda: None)

    # --- inputs

    def prepare(self, envelope: Envelope, payload_format: int, payload: Payload) -> Callable[[float], None]:
        """Checks a message and returns what takes it at a given time, which may refuse it too.

        Raises:
            MessageError: it is malformed, or not for this node. So does the function returned, where the message is
                impossible.
        """
        self.identity.check(envelope)
        if payload_format != RAFT_FORMAT:
            raise MessageError(f"node {envelope.sender} runs another engine: format {payload_format}")
        message = decode_payload(payload)

        def take(now_ms: float) -> None:
            self.core.receive(envelope.sender, message, now_ms, envelope.sender_directory, envelope.recipient_directory)
            self._received += 1

        return take

    def tick(self, now_ms: float) -> None:
        """See ``RaftCore.tick``."""
        self.core.tick(now_ms)

    def propose(self, data: bytes, *, epoch: int, notify: Callable[[], None]) -> Pending:
        """Appends an entry to the log; see ``MetadataLog.propose_nowait``."""
        limits = self._config.limits
        if len(data) > limits.entry_bytes_max:
            raise ProposalTooLargeError(f"a proposal of {len(data)} bytes, at most {limits.entry_bytes_max} allowed")
        if not self.leadership.active or self.leadership.epoch != epoch or self.core.leader is None:
            raise NotLeaderError(self.leadership.leader_id, self.core.epoch)
        self._proposals.check_room(len(data))
        entry = self.core.propose(data)
        if entry is None:
            # Not NotLeaderError: if the target does not take over, this node leads on in this epoch, and sends nothing.
            raise LogBusyError("the leadership is being handed over")
        return self._track(entry, notify)

    def _track(self, entry: Entry, notify: Callable[[], None]) -> Pending:
        return self._proposals.add(LogPosition(index=entry.index, epoch=entry.epoch), entry.size_bytes, notify)

    def change_configuration(self, configuration: Configuration, *, notify: Callable[[], None]) -> Pending:
        """Appends a membership.

        Raises:
            NotLeaderError: this node is not the active leader.
            LogBusyError: another change is under way.
            MembershipChangeError: no replica could replay the entry.
        """
        if self.core.leader is None or not self.leadership.active:
            raise NotLeaderError(self.leadership.leader_id, self.core.epoch)
        try:
            entry = self.core.leader.change_configuration(configuration)
        except ValueError as error:
            raise MembershipChangeError(str(error)) from error
        if entry is None:
            raise LogBusyError("another change of the voters, or a hand-over, is under way")
        return self._track(entry, notify)

    def read(self, notify: Callable[[], None]) -> Pending:
        """Begins a linearizable read: done when all that was committed at this moment is applied here."""
        read_id = self._reads.next_id
        if self.core.leader is None or not self.core.leader.read_index(read_id):
            raise NotLeaderError(self.leadership.leader_id, self.core.epoch)
        return self._reads.add(self.core.epoch, notify)

    # --- processing

    def process(self) -> None:
        """Executes the effects of the inputs, and applies a bounded number of entries.

        After a start a node has up to as many entries to apply as are between two snapshots, which takes seconds.
        Others must hear from it meanwhile, so the rest is left for the next turn (``has_more``).

        Raises:
            OSError: a file could not be written or synced; the node must not continue.
        """
        while self.core.has_ready:
            if self._wal.wants_rotation:
                if not self._syncs.is_clean:
                    break  # a segment ends when it is durable; ``sync_done`` lets us go on
                self._wal.rotate()
            ready = self.core.take_ready()
            self._carry_out(ready)
            if ready.committed and self.has_more:
                break
        if not self.core.has_ready:
            self._settle_leadership()
        self._close_readers()
        self._maybe_take_snapshot()

    @property
    def has_more(self) -> bool:
        """See ``EngineNode``."""
        waits_for_sync = self._wal.wants_rotation and not self._syncs.is_clean
        return self.core.applicable_index > self.core.applied_index and not waits_for_sync

    def _carry_out(self, ready: Ready) -> None:
        self._wal.write(ready.hard_state, ready.entries, self._epoch_before(ready.entries))
        self._syncs.written = ready.number
        if ready.hard_state is not None:
            self._epoch_number = ready.number
        for outgoing in ready.messages:
            self._send(outgoing)
        self._deferred.append((ready.number, ready.messages_synced))
        if self._syncs.is_clean:
            self._durable(ready.number)
        for piece in ready.snapshot_pieces:
            self._store_piece(piece)
        self._notice_lost_leadership()
        for entry in ready.committed:
            self._apply(entry)
        for read in ready.reads:
            self._reads.confirm(read.read_id, read.index, self.core.epoch)
        self._reads.applied(self.applied_index)

    def _epoch_before(self, entries: Sequence[Entry]) -> int:
        epoch = self.core.log.epoch_at(entries[0].index - 1) if entries else 0
        assert epoch is not None, "entries follow others, or a snapshot"
        return epoch

    def _send(self, outgoing: Outgoing) -> None:
        message = outgoing.message
        if isinstance(message, SnapshotRequest):
            reader = self._reader_of(message.index)
            if message.piece >= reader.piece_count:
                return
            message = replace(message, piece_count=reader.piece_count, data=reader.read_piece(message.piece))
        recipient, directory = outgoing.recipient, ZERO_UUID
        if isinstance(message, VoteRequest | AppendRequest | SnapshotRequest | TimeoutNow):
            directory = self.core.directories.of(self.core.configuration, recipient)
        self._outbox.append((recipient, encode_message(self.identity.envelope(recipient, directory), message)))

    def envelope(self, recipient: int) -> Envelope:
        """Returns the envelope of a message that names no directory."""
        return self.identity.envelope(recipient)

    def take_outbox(self) -> list[tuple[int, bytes]]:
        """Returns recipients and bodies of the messages that may be sent now, and forgets them."""
        outbox, self._outbox = self._outbox, []
        return outbox

    @property
    def wants_sync(self) -> bool:
        """Whether ``begin_sync`` has work."""
        return self._syncs.is_wanted

    def begin_sync(self) -> SyncWork | None:
        """Returns the work that makes all writes durable, to be run outside the event loop; None without writes."""
        return self._syncs.begin()

    def sync_done(self, work: SyncWork) -> None:
        """Ends a sync whose ``run`` has returned; call ``process`` next."""
        number = self._syncs.done(work)
        # Effects handed out meanwhile that wrote nothing wait for nothing else: nothing more may come for long.
        self._durable(number if self._wal.dirty else self._syncs.written)

    def _durable(self, number: int) -> None:
        self.core.synced(number)
        self._durable_number = number
        while self._deferred and self._deferred[0][0] <= number:
            for outgoing in self._deferred.popleft()[1]:
                self._send(outgoing)
        if self._storing is not None and self._storing[0] <= number:
            self._jobs.append(self._storing[1])
            self._storing = None

    # --- applying

    def _apply(self, entry: Entry) -> None:
        assert entry.index == self.applied_index + 1, "entries are applied in order, each once"
        self.applied_index = entry.index
        self._applied_count += 1
        self._bytes_since_snapshot += entry.size_bytes
        if entry.kind == EntryKind.DATA:
            asks = self._machine.apply(CommittedEntry(index=entry.index, epoch=entry.epoch, data=entry.data))
            if asks:
                self._bytes_since_snapshot = self._config.limits.snapshot_after_bytes
        self._proposals.applied(entry.index, entry.epoch)

    def _lead_epoch(self) -> int | None:
        return self.core.leader.epoch if self.core.leader is not None else None

    def _notice_lost_leadership(self) -> None:
        """Reports lost leadership before the entries of the next leader are applied."""
        if self.leadership.active and self._lead_epoch() != self.leadership.epoch:
            self._report_leadership(active=False)

    def _settle_leadership(self) -> None:
        """Fails the proposals of lost leaderships, and reports leadership, after all committed entries are applied."""
        self._notice_lost_leadership()
        self._proposals.leadership_settled(self._lead_epoch())
        leader = self.core.leader
        self._report_leadership(active=leader is not None and self.applied_index >= leader.first_index)

    def _report_leadership(self, *, active: bool) -> None:
        leader_id = self.core.leader_id if self.core.leader_id is not None else -1
        leadership = Leadership(leader_id=leader_id, epoch=self.core.epoch, active=active)
        if leadership != self.leadership:
            self.leadership = leadership
            self._machine.leadership_changed(leadership)

    # --- snapshots

    def take_job(self) -> Job | None:
        """Returns long work that the owner does beside the rest, None without any; see ``snapshot_jobs``."""
        return self._jobs.popleft() if self._jobs else None

    @property
    def has_job(self) -> bool:
        """Whether ``take_job`` has work."""
        return bool(self._jobs)

    def _maybe_take_snapshot(self) -> None:
        limits = self._config.limits
        point = self.core.snapshot
        entries = self.applied_index - (point.index if point is not None else 0)
        due = self._bytes_since_snapshot >= limits.snapshot_after_bytes or entries >= limits.snapshot_after_entries
        if due and entries > 0 and not self._taking and self.core.installing is None:
            self.take_snapshot()

    def take_snapshot(self) -> None:
        """Begins a snapshot of the present state, unless one is being taken or nothing has been applied."""
        if self._taking or self.core.installing is not None or self.applied_index == 0:
            return
        epoch = self.core.log.epoch_at(self.applied_index)
        assert epoch is not None, "the last applied entry, or the snapshot that ends with it, is at hand"
        point = SnapshotPoint(
            index=self.applied_index, epoch=epoch, configuration=self.core.configuration_at(self.applied_index)
        )
        if self.core.snapshot is not None and self.core.snapshot.index >= point.index:
            return
        self._taking = True
        self._bytes_since_snapshot = 0
        writer = SnapshotWriter(self._disk, self._directory, point, "taking")
        self._jobs.append(TakeSnapshot(writer, self._machine.snapshot_pieces(), self._snapshot_taken))

    def _snapshot_taken(self, writer: SnapshotWriter) -> None:
        self._taking = False
        point = writer.point
        if self.core.snapshot is not None and self.core.snapshot.index >= point.index:
            remove_older_snapshots(self._disk, self._directory, self.core.snapshot)
            return  # the leader's snapshot has overtaken ours
        self._taken += 1
        log = self.core.log
        base_index = log.compaction_point(point.index, self._config.limits.log_bytes_kept)
        self.core.snapshot_taken(point, base_index)
        self._snapshot_replaced(writer)

    def _snapshot_replaced(self, writer: SnapshotWriter) -> None:
        if self.snapshot_reader is not None and self.snapshot_reader.point.index not in self._readers:
            self._readers[self.snapshot_reader.point.index] = self.snapshot_reader
        self.snapshot_reader = SnapshotFileReader(self._disk, writer.path)
        remove_older_snapshots(self._disk, self._directory, writer.point)
        self._wal.drop_before(self.core.log.base_index)
        self._close_readers()

    def _store_piece(self, piece: SnapshotPiece) -> None:
        if piece.piece == 0:
            if self._writer is not None:
                self._writer.abandon()
            self._writer = SnapshotWriter(self._disk, self._directory, piece.point, "receiving")
        writer = self._writer
        assert writer is not None, "the first piece comes first"
        assert writer.piece_count == piece.piece, "pieces come in order"
        writer.add(piece.data)
        if piece.last:
            self._writer = None
            job = SealSnapshot(writer, self._snapshot_sealed)
            if self._epoch_number <= self._durable_number:
                self._jobs.append(job)
            else:  # beside an older epoch of the log it would look as if a vote had been lost
                self._storing = (self._epoch_number, job)

    def _snapshot_sealed(self, writer: SnapshotWriter) -> None:
        """Restores the state machine before the snapshot gets its name: one that it refuses is never found again."""
        try:
            reader = SnapshotFileReader(self._disk, writer.part_path, writer.point)
        except LogDamagedError as error:
            self._snapshot_refused(writer, error)
            return

        def restored() -> None:
            reader.close()
            self._jobs.append(InstallSnapshot(writer, self._snapshot_restored))

        def refused(error: SnapshotInvalidError) -> None:
            reader.close()
            self._snapshot_refused(writer, error)

        self._jobs.append(RestoreSnapshot(reader, self._machine, restored, refused))

    def _snapshot_refused(self, writer: SnapshotWriter, error: Exception) -> None:
        writer.abandon()
        self._snapshots_refused += 1
        self.snapshot_refusal = f"snapshot of {writer.point.index}, epoch {writer.point.epoch}: {error}"
        self.core.snapshot_refused(writer.point)

    def _snapshot_restored(self, writer: SnapshotWriter) -> None:
        point = writer.point
        self._installed += 1
        if self.core.log.epoch_at(point.index) != point.epoch:
            self._wal.reset(point.index, point.epoch)
        self.core.snapshot_installed(point)
        self.applied_index = self.core.applied_index
        self._bytes_since_snapshot = 0
        self._proposals.replaced_by_snapshot(point.index)
        self._snapshot_replaced(writer)
        self._reads.applied(self.applied_index)

    def _reader_of(self, index: int) -> SnapshotFileReader:
        current = self.snapshot_reader
        if current is not None and current.point.index == index:
            return current
        return self._readers[index]

    def _close_readers(self) -> None:
        if self._readers:
            used = self.core.leader.snapshots_in_use() if self.core.leader is not None else []
            for index in [index for index in self._readers if index not in used]:
                self._readers.pop(index).close()

    def open_snapshot(self) -> SnapshotFileReader | None:
        """Opens the newest snapshot once more, for the caller to close."""
        if self.snapshot_reader is None:
            return None
        return SnapshotFileReader(self._disk, self.snapshot_reader.path)

    # --- what the shell looks at

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self.core.epoch

    @property
    def configuration(self) -> Configuration:
        """The membership in force."""
        return self.core.configuration

    @property
    def log_start_index(self) -> int:
        """The first index that can be read."""
        return self.core.log.first_index

    def next_deadline_ms(self) -> float:
        """Returns the time at which ``tick`` has work."""
        return self.core.next_deadline_ms()

    def peer_refused(self, peer: int, now_ms: float) -> None:
        """See ``RaftCore.peer_refused``."""
        self.core.peer_refused(peer, now_ms)

    def transfer(self, target: int) -> None:
        """Begins to hand the leadership over to a voter."""
        if self.core.leader is None:
            raise NotLeaderError(self.leadership.leader_id, self.core.epoch)
        self.core.leader.transfer(target)

    def member_match(self, member: int) -> int | None:
        """Returns the index up to which a member is known to have the log; None before its first answer."""
        if self.core.leader is None:
            raise NotLeaderError(self.leadership.leader_id, self.core.epoch)
        progress = self.core.leader.progress.get(member)
        return progress.match if progress is not None and progress.answered else None

    def read_committed(self, from_index: int, bytes_max: int) -> CommittedRange:
        """See ``MetadataLog.read_committed``."""
        log = self.core.log
        if from_index <= log.base_index:
            raise OffsetOutOfRangeError(from_index, log.base_index + 1)
        entries = log.slice(from_index, self.applied_index, bytes_max) if from_index <= self.applied_index else ()
        return CommittedRange(
            entries=tuple(
                CommittedEntry(index=entry.index, epoch=entry.epoch, data=entry.data)
                for entry in entries
                if entry.kind == EntryKind.DATA
            ),
            next_index=entries[-1].index + 1 if entries else max(from_index, 1),
            high_watermark=self.applied_index,
        )

    def status(self, now_ms: float, wall_ms: int) -> QuorumStatus:
        """See ``MetadataLog.status``."""
        core, leader = self.core, self.core.leader
        rows = []
        for member in core.configuration.members():
            end, fetched, caught_up = -1, -1, -1
            progress = leader.progress.get(member.voter_id) if leader is not None else None
            if leader is not None and member.voter_id == core.node_id:
                end, fetched, caught_up = core.log.last_index, wall_ms, wall_ms
            elif progress is not None:
                end = progress.match
                fetched = wall_ms - round(now_ms - progress.last_seen_ms) if progress.answered else -1
                if progress.last_caught_up_ms > float("-inf"):
                    caught_up = wall_ms - round(now_ms - progress.last_caught_up_ms)
            rows.append(
                VoterStatus(
                    voter=member,
                    log_end_offset=end,
                    last_fetch_timestamp_ms=fetched,
                    last_caught_up_timestamp_ms=caught_up,
                    is_voter=member.voter_id in core.configuration.voters,
                )
            )
        return QuorumStatus(
            leader_id=self.leadership.leader_id,
            epoch=core.epoch,
            high_watermark=self.applied_index,
            log_start_index=core.log.base_index + 1,
            log_end_index=core.log.last_index,
            snapshot_index=core.snapshot.index if core.snapshot is not None else 0,
            replicas=tuple(rows),
        )

    def statistics(self) -> NodeStatistics:
        """Returns counters."""
        return NodeStatistics(
            messages_received=self._received,
            entries_applied=self._applied_count,
            snapshots_taken=self._taken,
            snapshots_installed=self._installed,
            snapshots_refused=self._snapshots_refused,
            torn_bytes=self._wal.torn_bytes,
        )

    def close(self) -> None:
        """Closes the files without syncing; proposals and reads end with an open outcome."""
        self._proposals.close()
        self._reads.close()
        self._wal.close()
        for reader in self._readers.values():
            reader.close()
        if self.snapshot_reader is not None:
            self.snapshot_reader.close()
        if self._writer is not None:
            self._writer.abandon()
