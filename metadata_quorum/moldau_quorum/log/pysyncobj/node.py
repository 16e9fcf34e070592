"""One member of the quorum on the hardened pysyncobj: ``EngineNode`` over the library, the journal and the snapshots.

The library believes that what it writes to its journal is durable at once. So this node lets it see only one side of
that at a time: messages that it sends wait until the writes before them are durable, and it gets its tick, in which
alone it counts and commits, only when nothing is waiting to be made durable.

What the library cannot do, the port's users miss here: no pre-vote, no change of the voters, linearizable reads cost a
log entry, and a snapshot is loaded in one step.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Final

from moldau_quorum.log.port import (
    CommittedEntry,
    CommittedRange,
    Leadership,
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
from moldau_quorum.log.pysyncobj.journal import DATA, NOOP, DurableJournal, decode_anchor, encode_anchor
from moldau_quorum.log.pysyncobj.library import HardenedSyncObj
from moldau_quorum.log.pysyncobj.snapshots import LoadSnapshot, PublicSnapshot
from moldau_quorum.log.pysyncobj.wire import decode, encode
from moldau_quorum.log.raft.core.plausible import EPOCH_STEP_MAX
from moldau_quorum.log.raft.core.types import ENTRY_OVERHEAD_BYTES, SnapshotPoint, configuration_of
from moldau_quorum.log.raft.engine_node import NodeStatistics
from moldau_quorum.log.raft.envelope import PYSYNCOBJ_FORMAT, Identity, MessageError
from moldau_quorum.log.raft.storage.snapshot_jobs import Job, TakeSnapshot
from moldau_quorum.log.raft.storage.snapshot_store import (
    SnapshotFileReader,
    SnapshotWriter,
    open_newest_snapshot,
    remove_older_snapshots,
)
from moldau_quorum.log.raft.storage.wal import SyncWork, WriteAheadLog, make_durable_directories
from moldau_quorum.log.raft.storage.write_syncs import WriteSyncs
from moldau_quorum.log.raft.waiting import OpenProposals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau.runtime.ports.environment import Disk
    from moldau_quorum.log.port import MetadataLogConfig, StateMachine
    from moldau_quorum.log.pysyncobj.journal import LibraryEntry
    from moldau_quorum.log.pysyncobj.wire import LibraryMessage
    from moldau_quorum.log.raft.core.types import Configuration
    from moldau_quorum.log.raft.envelope import Envelope, Payload
    from moldau_quorum.log.raft.waiting import Pending

TICK_MS: Final = 20.0
"""The library looks at its timers so often."""


class PySyncObjNode:
    """See the module and ``EngineNode``."""

    def __init__(
        self, disk: Disk, config: MetadataLogConfig, machine: StateMachine, *, seed: int, now_ms: float
    ) -> None:
        """Opens the files. Blocks.

        Raises:
            LogDamagedError: a file of the log is damaged.
            OSError: a file cannot be read or written.
        """
        if config.joins or config.node_id not in config.voters:
            raise MembershipChangeError("with metadata.quorum.engine=pysyncobj the voters are fixed")
        self._disk, self._config, self._machine = disk, config, machine
        self._directory = config.directory
        self._now_ms = now_ms
        make_durable_directories(disk, self._directory)
        self._reader = open_newest_snapshot(disk, self._directory)
        self._wal, hard_state, log = WriteAheadLog.open(
            disk, self._directory, config.limits.segment_bytes, exists=config.log_exists
        )
        point = self._reader.point if self._reader is not None else None
        if point is not None and hard_state.epoch < point.epoch:
            raise LogDamagedError(
                f"{self._directory}: the log knows epoch {hard_state.epoch}, a snapshot {point.epoch}"
            )
        if log.base_index > (point.index if point is not None else 0):
            raise LogDamagedError(f"{self._directory}: the log begins behind {log.base_index}, without a snapshot")
        self._journal = DurableJournal(self._wal, hard_state, log)
        if self._reader is not None:
            self._journal.anchor(*decode_anchor(self._reader.read_piece(0)))
        self.identity = Identity(config.node_id, config.directory_id, config.cluster_id)
        self.configuration = configuration_of(config.voters)
        self.leadership = Leadership(epoch=hard_state.epoch)
        self.applied_index = 0
        self._outbox: list[tuple[int, bytes]] = []
        self._deferred: deque[tuple[int, int, bytes]] = deque()  # number of a write, recipient, body
        self._syncs = WriteSyncs(self._wal)
        self._answering: tuple[int, int] | None = None  # member and sequence of the message being processed
        self._proposals = OpenProposals(
            count_max=config.limits.proposals_in_flight_max, bytes_max=config.limits.proposal_bytes_in_flight_max
        )
        self._tick_wanted = False
        self._appended = False
        self._jobs: deque[Job] = deque()
        self._finished: bool = False
        self._taking = False
        self._since_snapshot = [0, 0]  # entries, bytes
        self._writer: SnapshotWriter | None = None
        self._cursors: dict[int, tuple[int, int]] = {}  # member to snapshot index and piece
        self._fed = False  # the state machine holds the snapshot that the library is about to load
        self._received = self._applied = self._taken = self._installed = self._snapshots_refused = 0
        self.snapshot_refusal: str | None = None
        self.library = HardenedSyncObj(
            self,
            self._journal,
            node_id=config.node_id,
            members=sorted(config.voters),
            timing=config.timing,
            limits=config.limits,
            draw=random.Random(seed),
            now_ms=now_ms,
        )

    # --- what the library calls

    def send_message(self, member: int, message: LibraryMessage) -> None:
        """See ``Owner``."""
        sequence = 0
        if message["type"] in ("append_entries", "snapshot"):
            self.library.sequences[member] += 1
            sequence = self.library.sequences[member]
        elif self._answering is not None and self._answering[0] == member:
            sequence = self._answering[1]
        body = encode(self.envelope(member), self.library.term, sequence, message)
        self._deferred.append((self._syncs.written + 1, member, body))

    def apply_command(self, command: bytes, index: int, term: int) -> None:
        """See ``Owner``."""
        self._notice_lost_leadership()
        self.applied_index = index
        self._applied += 1
        self._since_snapshot[0] += 1
        self._since_snapshot[1] += len(command)
        if command[:1] == DATA:
            asks = self._machine.apply(CommittedEntry(index=index, epoch=term, data=command[1:]))
            if asks:
                self._since_snapshot[1] = self._config.limits.snapshot_after_bytes
        self._proposals.applied(index, term)

    def begin_snapshot(self, before: LibraryEntry, last: LibraryEntry) -> None:
        """See ``Owner``."""
        point = SnapshotPoint(index=last[1], epoch=last[2], configuration=self.configuration)
        writer = SnapshotWriter(self._disk, self._directory, point, "taking")

        def pieces() -> Iterator[bytes]:
            yield encode_anchor(before, last)
            yield from state

        state = self._machine.snapshot_pieces()
        self._jobs.append(TakeSnapshot(writer, pieces(), self._snapshot_taken))

    def _snapshot_taken(self, writer: SnapshotWriter) -> None:
        self._taking = False
        self._finished = True
        self._tick_wanted = True
        if self._reader is None or self._reader.point.index < writer.point.index:
            self._taken += 1
            self._replace_reader(writer)

    def _replace_reader(self, writer: SnapshotWriter) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = SnapshotFileReader(self._disk, writer.path)
        self._cursors.clear()
        remove_older_snapshots(self._disk, self._directory, writer.point)

    def snapshot_finished(self) -> bool:
        """See ``Owner``."""
        finished, self._finished = self._finished, False
        return finished

    def next_piece(self, member: int) -> tuple[int, int, int, bytes]:
        """See ``Owner``."""
        assert self._reader is not None, "a log is cut only behind a snapshot"
        index = self._reader.point.index
        at, piece = self._cursors.get(member, (index, 0))
        if at != index or piece >= self._reader.piece_count:
            piece = 0
        self._cursors[member] = (index, piece)
        return index, piece, self._reader.piece_count, self._reader.read_piece(piece)

    def restore(self) -> tuple[LibraryEntry, LibraryEntry]:
        """See ``Owner``."""
        reader = self._reader
        assert reader is not None, "there is a snapshot to load"
        before, last = decode_anchor(reader.read_piece(0))
        if not self._fed:
            self._feed(reader)
        self._fed = False
        self.applied_index = reader.point.index
        return last, before

    def _feed(self, reader: SnapshotFileReader) -> None:
        """Restores the state machine from a snapshot.

        Raises:
            SnapshotInvalidError: the state machine refuses it.
            LogDamagedError: a piece does not match its checksum.
        """
        self._machine.restore_begin()
        for number in range(1, reader.piece_count):
            self._machine.restore_piece(reader.read_piece(number))
        self._machine.restore_end(LogPosition(index=reader.point.index, epoch=reader.point.epoch))

    # --- inputs

    def restore_job(self) -> Job | None:
        """See ``EngineNode``."""
        return LoadSnapshot(self._load) if self._reader is not None else None

    def _load(self) -> None:
        assert self._reader is not None, "there is a snapshot to load"
        self.library.load_snapshot()

    def prepare(self, envelope: Envelope, payload_format: int, payload: Payload) -> Callable[[float], None]:
        """See ``EngineNode``."""
        self.identity.check(envelope)
        if payload_format != PYSYNCOBJ_FORMAT:
            raise MessageError(f"node {envelope.sender} runs another engine: format {payload_format}")
        if envelope.sender not in self.library.member_nodes:
            raise MessageError(f"node {envelope.sender} is no voter")
        term, sequence, message = decode(payload)

        def take(now_ms: float) -> None:
            self._check_plausible(envelope.sender, message)
            self._received += 1
            self._take(envelope.sender, term, sequence, message, now_ms)

        return take

    def envelope(self, recipient: int) -> Envelope:
        """See ``EngineNode``."""
        return self.identity.envelope(recipient)

    def _check_plausible(self, sender: int, message: LibraryMessage) -> None:
        """Checks that a member of this quorum can have sent the message.

        Raises:
            MessageError: no member can have sent it.
        """
        kind, own_term, leader = message["type"], self.library.term, self.library.leader
        term = message.get("term", own_term)
        if 0 < own_term < term - EPOCH_STEP_MAX:
            raise MessageError(f"node {sender} speaks of epoch {term}; this node is in {own_term}")
        if kind in ("append_entries", "snapshot") and term == own_term and leader not in (None, sender):
            raise MessageError(f"nodes {leader} and {sender} both claim to lead epoch {term}")
        if kind == "append_entries" and term >= own_term:
            self._check_agreement(sender, message)
        elif kind == "next_node_idx" and message["next_node_idx"] > self._journal.entry(-1)[1] + 1:
            raise MessageError(f"node {sender} wants entry {message['next_node_idx']}, which does not exist")
        elif kind == "snapshot" and message["piece"] == 0:
            self._check_anchor(sender, message)

    def _check_agreement(self, sender: int, message: LibraryMessage) -> None:
        first, commit_index = self._journal.entry(0)[1], self.library.commit_index
        positions = [(message["prevLogIdx"], message["prevLogTerm"]), *(entry[1:] for entry in message["entries"])]
        for index, term in positions:
            if index > commit_index:
                return
            if index >= first and self._journal.entry(index - first)[2] != term:
                raise MessageError(f"node {sender} has epoch {term} at {index}, where another one is committed")

    @staticmethod
    def _check_anchor(sender: int, message: LibraryMessage) -> None:
        try:
            _, last = decode_anchor(message["data"])
        except ValueError as error:
            raise MessageError(f"node {sender}: {error}") from error
        if last[1] != message["index"] or last[2] > message["term"]:
            raise MessageError(f"node {sender} sends a snapshot of {message['index']} that ends with {last[1:]}")

    def _take(self, sender: int, term: int, sequence: int, message: LibraryMessage, now_ms: float) -> None:
        self._now_ms = max(self._now_ms, now_ms)
        self._answering = (sender, sequence)
        if message["type"] == "snapshot_ack":
            self._piece_acknowledged(sender, message)
        elif message["type"] == "snapshot" and message["term"] >= self.library.term:
            self._piece_received(sender, message)
        else:
            self.library.receive(sender, term, sequence, message, self._now_ms)
        self._answering = None
        self._tick_wanted = True

    def _piece_acknowledged(self, sender: int, message: LibraryMessage) -> None:
        index, _ = self._cursors.get(sender, (0, 0))
        if index == message["index"] and self.library.leads:
            self._cursors[sender] = (index, message["next"])
            self.library.snapshot_acknowledged(sender, self._now_ms)

    def _piece_received(self, sender: int, message: LibraryMessage) -> None:
        self.library.snapshot_heard(sender, message["term"], self._now_ms)
        index, piece = message["index"], message["piece"]
        if index <= self.library.last_applied:
            self._acknowledge_snapshot(sender, self.library.last_applied)
            return
        if piece == 0:
            if self._writer is not None:
                self._writer.abandon()
            _, last = decode_anchor(message["data"])
            point = SnapshotPoint(index=last[1], epoch=last[2], configuration=self.configuration)
            self._writer = SnapshotWriter(self._disk, self._directory, point, "receiving")
        writer = self._writer
        wanted = writer.piece_count if writer is not None and writer.point.index == index else 0
        if writer is not None and wanted == piece:
            writer.add(message["data"])
            wanted += 1
            if wanted == message["count"]:
                self._writer = None
                self._install(sender, writer)
                return
        self.send_message(sender, {"type": "snapshot_ack", "index": index, "next": wanted})

    def _install(self, sender: int, writer: SnapshotWriter) -> None:
        """Makes the snapshot durable, loads it, and answers; in one step, as the library does it.

        The state machine takes it before it gets its name: one that is refused is never found again.
        """
        writer.seal()
        try:
            reader = SnapshotFileReader(self._disk, writer.part_path, writer.point)
            try:
                self._feed(reader)
            finally:
                reader.close()
        except (SnapshotInvalidError, LogDamagedError) as error:
            writer.abandon()
            self._snapshots_refused += 1
            self.snapshot_refusal = f"snapshot of {writer.point.index}, epoch {writer.point.epoch}: {error}"
            return
        writer.place()
        self._replace_reader(writer)
        assert self._reader is not None, "it was just put in place"
        self._installed += 1
        self._since_snapshot = [0, 0]
        self._journal.anchor(*decode_anchor(self._reader.read_piece(0)))
        self._fed = True
        self.library.snapshot_stored(self._now_ms)
        self._proposals.replaced_by_snapshot(self.applied_index)
        self._acknowledge_snapshot(sender, self.applied_index)

    def _acknowledge_snapshot(self, sender: int, index: int) -> None:
        self.send_message(
            sender, {"type": "next_node_idx", "next_node_idx": index + 1, "reset": False, "success": True}
        )

    def tick(self, now_ms: float) -> None:
        """See ``EngineNode``."""
        self._now_ms = max(self._now_ms, now_ms)
        self._tick_wanted = True

    def next_deadline_ms(self) -> float:
        """See ``EngineNode``."""
        return self._now_ms + TICK_MS

    def peer_refused(self, peer: int, now_ms: float) -> None:
        """See ``EngineNode``. There is no pre-vote: a host that refused wrongly would lose its leadership."""
        self._now_ms = max(self._now_ms, now_ms)
        self.library.hasten_election(peer, self._now_ms)

    def propose(self, data: bytes, *, epoch: int, notify: Callable[[], None]) -> Pending:
        """See ``EngineNode``."""
        limits = self._config.limits
        if len(data) > limits.entry_bytes_max:
            raise ProposalTooLargeError(f"a proposal of {len(data)} bytes, at most {limits.entry_bytes_max} allowed")
        if not self.leadership.active or self.leadership.epoch != epoch:
            raise NotLeaderError(self.leadership.leader_id, self.library.term)
        return self._append(DATA + data, notify)

    def _append(self, command: bytes, notify: Callable[[], None]) -> Pending:
        if not self.library.leads or self.library.term != self.leadership.epoch:
            raise NotLeaderError(self.leadership.leader_id, self.library.term)
        self._proposals.check_room(len(command))
        index = self.library.append(command, self._now_ms)
        self._appended = True
        return self._proposals.add(LogPosition(index=index, epoch=self.library.term), len(command), notify)

    def read(self, notify: Callable[[], None]) -> Pending:
        """Commits an entry without effect: what is applied then is all that was committed before."""
        if not self.leadership.active:
            raise NotLeaderError(self.leadership.leader_id, self.library.term)
        return self._append(NOOP, notify)

    def change_configuration(self, configuration: Configuration, *, notify: Callable[[], None]) -> Pending:
        """Refuses: the library's way of changing the voters is not safe."""
        raise MembershipChangeError("with metadata.quorum.engine=pysyncobj the voters are fixed")

    def transfer(self, target: int) -> None:
        """See ``EngineNode``."""
        if not self.library.leads:
            raise NotLeaderError(self.leadership.leader_id, self.library.term)
        self.library.hand_over(target, self._now_ms)

    # --- processing

    def process(self) -> None:
        """See ``EngineNode``."""
        if self._appended:
            self._appended = False
            self.library.send_appends(self._now_ms)
        clean = self._syncs.is_clean
        if clean and self._wal.wants_rotation:
            self._wal.rotate()
            clean = False
        if clean and self._tick_wanted:
            self._tick_wanted = False
            self._maybe_compact()
            self.library.step(self._now_ms)
            self._settle_leadership()
        self._syncs.written += 1
        if self._syncs.is_clean:
            self._release(self._syncs.written)

    def _maybe_compact(self) -> None:
        limits = self._config.limits
        entries, size = self._since_snapshot
        if not self._taking and (entries >= limits.snapshot_after_entries or size >= limits.snapshot_after_bytes):
            self.take_snapshot()

    def take_snapshot(self) -> None:
        """Begins a snapshot at the next step, unless one is being taken."""
        if not self._taking and self.applied_index > 2 and self._since_snapshot[0]:
            self._taking = True
            self._since_snapshot = [0, 0]
            self.library.compact()
            self._tick_wanted = True

    def _release(self, number: int) -> None:
        while self._deferred and self._deferred[0][0] <= number:
            _, recipient, body = self._deferred.popleft()
            self._outbox.append((recipient, body))

    def take_outbox(self) -> list[tuple[int, bytes]]:
        """See ``EngineNode``."""
        outbox, self._outbox = self._outbox, []
        return outbox

    @property
    def wants_sync(self) -> bool:
        """See ``EngineNode``."""
        return self._syncs.is_wanted

    def begin_sync(self) -> SyncWork | None:
        """See ``EngineNode``."""
        return self._syncs.begin()

    def sync_done(self, work: SyncWork) -> None:
        """See ``EngineNode``."""
        self._release(self._syncs.done(work))
        self._tick_wanted = True

    @property
    def has_more(self) -> bool:
        """See ``EngineNode``. The library applies all that is committed in one step."""
        return False

    @property
    def has_job(self) -> bool:
        """See ``EngineNode``."""
        return bool(self._jobs)

    def take_job(self) -> Job | None:
        """See ``EngineNode``."""
        return self._jobs.popleft() if self._jobs else None

    # --- leadership

    def _notice_lost_leadership(self) -> None:
        if self.leadership.active and not (self.library.leads and self.library.term == self.leadership.epoch):
            self._report_leadership(active=False)

    def _settle_leadership(self) -> None:
        self._notice_lost_leadership()
        library = self.library
        self._proposals.leadership_settled(library.term if library.leads else None)
        self._report_leadership(active=library.leads and library.last_applied >= library.first_own_index > 0)

    def _report_leadership(self, *, active: bool) -> None:
        leader = self.library.leader
        leadership = Leadership(leader_id=leader if leader is not None else -1, epoch=self.library.term, active=active)
        if leadership != self.leadership:
            self.leadership = leadership
            self._machine.leadership_changed(leadership)

    # --- looking

    @property
    def epoch(self) -> int:
        """See ``EngineNode``."""
        return self.library.term

    @property
    def log_start_index(self) -> int:
        """See ``EngineNode``."""
        return self._journal.entry(0)[1]

    def member_match(self, member: int) -> int | None:
        """See ``EngineNode``."""
        if not self.library.leads:
            raise NotLeaderError(self.leadership.leader_id, self.library.term)
        return self.library.match_index(member)

    def read_committed(self, from_index: int, bytes_max: int) -> CommittedRange:
        """See ``EngineNode``."""
        start = self.log_start_index
        if from_index < start:
            raise OffsetOutOfRangeError(from_index, start)
        entries: list[CommittedEntry] = []
        size, next_index = 0, max(from_index, 1)
        for position in range(from_index - start, self.applied_index - start + 1):
            command, index, term = self._journal.entry(position)
            size += len(command) + ENTRY_OVERHEAD_BYTES
            if entries and size > bytes_max:
                break
            next_index = index + 1
            if command[:1] == DATA:
                entries.append(CommittedEntry(index=index, epoch=term, data=command[1:]))
        return CommittedRange(entries=tuple(entries), next_index=next_index, high_watermark=self.applied_index)

    def open_snapshot(self) -> PublicSnapshot | None:
        """See ``EngineNode``."""
        if self._reader is None:
            return None
        return PublicSnapshot(SnapshotFileReader(self._disk, self._reader.path))

    def status(self, now_ms: float, wall_ms: int) -> QuorumStatus:
        """See ``EngineNode``."""
        library, rows = self.library, []
        last_index = self._journal.entry(-1)[1]
        for member in self.configuration.members():
            end, fetched, caught_up = -1, -1, -1
            if library.leads and member.voter_id == self._config.node_id:
                end, fetched, caught_up = last_index, wall_ms, wall_ms
            elif library.leads:
                end = library.match_index(member.voter_id)
                fetched = wall_ms - round(now_ms - library.last_response_ms(member.voter_id))
                caught_up = fetched if end == last_index else -1
            rows.append(
                VoterStatus(
                    voter=member,
                    log_end_offset=end,
                    last_fetch_timestamp_ms=fetched,
                    last_caught_up_timestamp_ms=caught_up,
                )
            )
        return QuorumStatus(
            leader_id=self.leadership.leader_id,
            epoch=library.term,
            high_watermark=self.applied_index,
            log_start_index=self.log_start_index,
            log_end_index=last_index,
            snapshot_index=self._reader.point.index if self._reader is not None else 0,
            replicas=tuple(rows),
        )

    def statistics(self) -> NodeStatistics:
        """See ``EngineNode``."""
        return NodeStatistics(
            messages_received=self._received,
            entries_applied=self._applied,
            snapshots_taken=self._taken,
            snapshots_installed=self._installed,
            snapshots_refused=self._snapshots_refused,
            torn_bytes=self._wal.torn_bytes,
        )

    def close(self) -> None:
        """See ``EngineNode``."""
        self._proposals.close()
        self._wal.close()
        if self._reader is not None:
            self._reader.close()
        if self._writer is not None:
            self._writer.abandon()
