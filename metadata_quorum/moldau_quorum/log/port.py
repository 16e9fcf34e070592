"""The port behind which the replicated metadata log stands, with two engines (``raft`` and ``pysyncobj``).

A ``MetadataLog`` is a sequence of entries, numbered from 1, that a majority of the voters holds durably. An entry is
written by ``propose`` on the leader, is committed once and for all, and is then applied, on every node, in order and
exactly once per life of the node, to a ``StateMachine``. Entries of the log itself (the empty one with which a leader
opens its epoch, membership changes) have indexes too but are never applied, so the indexes that a state machine sees
grow but are not dense.

All calls of the state machine happen in the engine's task, never inside a call of the port, and must not wait:

    restore (0 or more pieces)  ->  apply, apply, leadership_changed, apply ...

``leadership_changed`` with ``active`` set is called after every entry that any earlier leader may have committed has
been applied: from then on the state machine is what the log says, and the node may decide. A node that hears that it
is no longer active must drop what it has decided and not yet proposed. Every proposal names the epoch it was decided
in, so that a deposed leader that was elected again cannot write with stale knowledge.

The engine owns no listening socket: the server that accepts connections of controllers hands the bodies of requests
with key ``QUORUM_MESSAGE_KEY`` to the session of their connection (``accept_session``); there is no response. The
engine makes its own connections to the other voters, by ``MetadataLogConfig.connect``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    import trio

    from moldau.runtime.ports.environment import Connection, Environment
    from moldau.values import Buffer

QUORUM_MESSAGE_KEY: Final = 20_000
"""API key of messages between voters: Kafka framing (request header version 1), body msgpack, no response."""
QUORUM_MESSAGE_VERSION: Final = 1

FIRST_INDEX: Final = 1
"""Index of the first entry of every log; 0 stands for "before the log"."""

VOTER_ID_MAX: Final = (1 << 31) - 1
"""Node ids are non-negative 32-bit integers, as everywhere in Kafka's protocol."""
HOST_CHARACTERS_MAX: Final = 255
PORT_MAX: Final = 65_535


class MetadataLogError(Exception):
    """The base of the errors that callers of a metadata log must expect."""


class NotLeaderError(MetadataLogError):
    """The node is not the leader of the named epoch (any more): nothing was written. Ask ``leader_id`` instead."""

    def __init__(self, leader_id: int, epoch: int) -> None:
        """``leader_id`` is -1 when no leader is known."""
        super().__init__(f"not the leader of the metadata log; epoch {epoch}, leader {leader_id}")
        self.leader_id = leader_id
        self.epoch = epoch


class OutcomeUnknownError(MetadataLogError):
    """The proposal was written, but leadership was lost before it was committed.

    It may still be committed, or never.
    """


class LogBusyError(MetadataLogError):
    """The log accepts no proposals for a while; try again soon.

    Too many proposals, or too many bytes of them, wait to be committed, or the leadership is being handed over.
    """


class ProposalTooLargeError(MetadataLogError):
    """An entry is larger than ``entry_bytes_max``."""


class OffsetOutOfRangeError(MetadataLogError):
    """The wanted index is below the start of the log: read the snapshot first."""

    def __init__(self, wanted: int, log_start: int) -> None:
        """``log_start`` is the first index that can be read."""
        super().__init__(f"index {wanted} of the metadata log is gone, it starts at {log_start}")
        self.wanted = wanted
        self.log_start = log_start


class MembershipChangeError(MetadataLogError):
    """A change of the voters is refused; the text says why."""


class MembershipBusyError(MembershipChangeError):
    """Another change of the voters, or a hand-over of the leadership, is under way; try again soon."""


class MembershipTimeoutError(MembershipChangeError):
    """A node that was to vote did not answer, or did not catch up, in time."""


class LogDamagedError(MetadataLogError):
    """The files of this node are damaged where a torn write cannot explain it. The text names file and position.

    The node must not vote with what is left: see ``replacement_advice``.
    """


def replacement_advice(node_id: int) -> str:
    """Returns the remedies for a voter that lost its log, and with it its promises to other voters.

    A voter is replaced by the others: if no majority of them has its log, there is no leader who could do it.
    """
    return (
        "restore the directory as it was, or, while a majority of the voters has its log, let another voter take its "
        f"place: moldau quorum remove-voter {node_id}, delete the directory, start the node, moldau quorum add-voter "
        f"{node_id} HOST:PORT"
    )


class SnapshotInvalidError(MetadataLogError):
    """A state machine does not take a snapshot: it is damaged, incomplete, of another cluster, or older than the state.

    The state is what it was before ``restore_begin``.
    """


class QuorumMessageRefusedError(MetadataLogError):
    """A message of another controller is refused; the connection that it came over is to be closed."""


class EngineName(enum.Enum):
    """Values of ``metadata.quorum.engine``."""

    RAFT = "raft"
    PYSYNCOBJ = "pysyncobj"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterEndpoint:
    """One member of the quorum."""

    voter_id: int
    directory_id: uuid.UUID = ZERO_UUID
    """Identity of the voter's disk (KIP-853); zero in clusters configured by ``controller.quorum.voters`` alone."""
    host: str
    port: int

    def problem(self) -> str | None:
        """Returns why this cannot be a member of the quorum; None if it can."""
        if not 0 <= self.voter_id <= VOTER_ID_MAX:
            return f"voter id {self.voter_id} is outside 0..{VOTER_ID_MAX}"
        if not 0 < len(self.host) <= HOST_CHARACTERS_MAX:
            return f"the host of node {self.voter_id} has {len(self.host)} characters, not 1..{HOST_CHARACTERS_MAX}"
        if not 0 < self.port <= PORT_MAX:
            return f"port {self.port} of node {self.voter_id} is outside 1..{PORT_MAX}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """The position of an entry in the log."""

    index: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """The leadership as this node knows it; two values are equal if nothing has changed."""

    leader_id: int = -1
    """-1 while unknown."""
    epoch: int = 0
    """Never falls."""
    active: bool = False
    """This node leads, and has applied all entries before its own epoch: it may decide and propose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEntry:
    """A committed proposal."""

    index: int
    epoch: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedRange:
    """An answer of ``read_committed``."""

    entries: tuple[CommittedEntry, ...]
    """In order of index; entries of the log itself are left out."""
    next_index: int
    """Where to go on reading; larger than the last entry's index, also when ``entries`` is empty."""
    high_watermark: int
    """Index of the last entry that this node knows to be committed and has applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """The newest durable snapshot of this node."""

    index: int
    """Last entry that the snapshot contains."""
    epoch: int
    piece_count: int
    size_bytes: int


class SnapshotReader(Protocol):
    """An open snapshot. It stays readable when a newer one replaces it."""

    @property
    def info(self) -> SnapshotInfo:
        """The snapshot that is read."""
        ...

    def read_pieces(self, first: int, bytes_max: int) -> tuple[bytes, ...]:
        """Pieces from number ``first`` on, at least one if there is one, together about ``bytes_max`` bytes.

        Raises:
            LogDamagedError: a piece does not match its checksum.
        """
        ...

    def close(self) -> None:
        """Closes the file; idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterStatus:
    """The leader's knowledge of one voter or observer (a row of DescribeQuorum)."""

    voter: VoterEndpoint
    log_end_offset: int
    """Index of the last entry that the replica is known to hold durably; -1 unknown."""
    last_fetch_timestamp_ms: int = -1
    """Wall-clock time of its last answer, -1 none in this epoch; the leader's own is now."""
    last_caught_up_timestamp_ms: int = -1
    """Wall-clock time at which the replica was last known to hold all that the leader held; -1 never."""
    is_voter: bool = True
    """False for a learner that is being caught up before it may vote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatus:
    """State of the quorum. Rows of other nodes are known to the leader only."""

    leader_id: int
    epoch: int
    high_watermark: int
    log_start_index: int
    log_end_index: int
    snapshot_index: int
    replicas: tuple[VoterStatus, ...]
    """Sorted by id. On a node that does not lead, offsets and times are -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionTiming:
    """Times of elections in milliseconds. A voter that hears nothing waits a drawn time within the range."""

    election_timeout_ms_min: float = 300.0
    election_timeout_ms_max: float = 600.0
    heartbeat_interval_ms: float = 75.0
    refused_grace_ms: float = 60.0
    """Waits at most about this long (drawn) when the leader's host refuses connections: its process is dead."""

    def __post_init__(self) -> None:
        """Refuses times under which no leader can stay."""
        if not 0 < self.heartbeat_interval_ms * 2 <= self.election_timeout_ms_min < self.election_timeout_ms_max:
            raise ValueError(
                "election times must obey 2 * heartbeat <= shortest election timeout < longest election timeout, not "
                f"{self.heartbeat_interval_ms}, {self.election_timeout_ms_min}, {self.election_timeout_ms_max} ms"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Bounds of memory and disk."""

    entry_bytes_max: int = 8 * 1024 * 1024
    """Largest proposal."""
    proposals_in_flight_max: int = 10_000
    proposal_bytes_in_flight_max: int = 64 * 1024 * 1024
    append_bytes_max: int = 512 * 1024
    """Entries of one message; a larger single entry travels alone."""
    append_messages_in_flight_max: int = 32
    append_bytes_in_flight_max: int = 8 * 1024 * 1024
    segment_bytes: int = 16 * 1024 * 1024
    snapshot_after_bytes: int = 20 * 1024 * 1024
    """A snapshot is taken when so many bytes were applied since the last (``metadata.log.max.record.bytes...``)."""
    snapshot_after_entries: int = 200_000
    log_bytes_kept: int = 8 * 1024 * 1024
    """Bytes of entries before the newest snapshot that are kept for slow followers."""
    peer_queue_messages_max: int = 256
    peer_queue_bytes_max: int = 32 * 1024 * 1024
    """Messages beyond are dropped: Raft repeats what matters."""
    inbox_bytes_max: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLogConfig:
    """The configuration of an engine."""

    node_id: int
    directory: str
    """Absolute path; created if missing; owned by the engine. One engine per directory."""
    voters: Mapping[int, tuple[str, int]]
    """``controller.quorum.voters``: id to host and port. The membership of a log that is still empty; later changes
    are in the log itself and win."""
    directory_id: uuid.UUID = ZERO_UUID
    cluster_id: Callable[[], str] = str
    """Returns the id of this node's cluster, empty while it does not know any. Messages of others are refused."""
    connect: Callable[[str, int], Awaitable[Connection]] | None = None
    """Opens an authenticated connection to a controller listener; plain TCP if None."""
    timing: ElectionTiming = field(default_factory=ElectionTiming)
    limits: LogLimits = field(default_factory=LogLimits)
    sync_patience_ms: float = 0.0
    """How long a sync of a leader may take before it hands the leadership over; 0: for ever."""
    joins: bool = False
    """The node is not part of a fixed set: it starts without a log and waits to be added (``add_voter``)."""
    log_exists: bool = False
    """There has been a log in the directory: it is damaged if it is not there."""
    on_opened: Callable[[], object] | None = None
    """Called in a thread when the files are there and before anything is promised: from then on they must not vanish.
    """


class StateMachine(Protocol):
    """The state machine that applies entries: deterministic, called from one task, and never waiting.

    Only ``restore_piece`` and ``restore_end`` may raise, and nothing but ``SnapshotInvalidError``.
    """

    def apply(self, entry: CommittedEntry) -> bool | None:
        """Takes the next committed entry; True requests a snapshot soon.

        The snapshot spares other nodes the entries so far, which an older version of the program may not understand.
        """
        ...

    def leadership_changed(self, leadership: Leadership) -> None:
        """Reports a change of leader, epoch or this node's right to decide, as of the entries applied so far."""
        ...

    def snapshot_pieces(self) -> Iterator[bytes]:
        """Returns the present state as pieces (each at most 1 MiB, some 50 kB is good).

        The iterator is advanced later, piece by piece, between further calls of ``apply``, and must give the state of
        the moment of this call all the same. It may be dropped before its end.
        """
        ...

    def restore_begin(self) -> None:
        """Begins to replace the state by a snapshot, whose pieces follow; another call may break it off."""
        ...

    def restore_piece(self, piece: bytes) -> None:
        """Takes the next piece of the snapshot.

        Raises:
            SnapshotInvalidError: the piece, or the snapshot so far, cannot be used.
        """
        ...

    def restore_end(self, position: LogPosition) -> None:
        """Ends a restore: the snapshot is the state after the entry at ``position``.

        Raises:
            SnapshotInvalidError: it is not; the state is unchanged.
        """
        ...


class Proposal(Protocol):
    """A proposal under way."""

    @property
    def position(self) -> LogPosition:
        """The position that the entry gets if it is committed."""
        ...

    async def wait_committed(self) -> LogPosition:
        """Waits until the entry is committed and applied on this node. The caller sets the deadline.

        May be called by several tasks. After cancellation the outcome is open, and can be waited for again.

        Raises:
            OutcomeUnknownError: leadership was lost first.
            NotLeaderError: another entry was committed in its place; this one never will be.
        """
        ...


class QuorumSession(Protocol):
    """The messages of one accepted connection. The first one names the sender, from which all others must come."""

    def handle(self, body: Buffer) -> None:
        """Takes a message, which is borrowed for the call. A message that does not fit into the inbox is dropped.

        Raises:
            QuorumMessageRefusedError: the connection is to be closed.
        """
        ...

    def close(self) -> None:
        """Ends the session of a connection that has ended; idempotent."""
        ...


class MetadataLog(Protocol):
    """One node's end of the replicated log. All calls come from the event loop that runs ``run``."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Opens the directory, restores the state machine, takes part in the quorum until cancelled.

        Started when the local snapshot has been restored and messages may come in.

        Raises:
            LogDamagedError: the local files cannot be trusted.
            OSError: the disk failed; nothing that was not durable has been promised to anyone.
        """
        ...

    def accept_session(self, refusal: Callable[[str], str | None] | None = None) -> QuorumSession:
        """Returns what takes the quorum messages of one accepted connection.

        ``refusal`` says why the peer of that connection cannot be the controller at a host, None if it can.
        """
        ...

    @property
    def peers(self) -> Mapping[int, tuple[str, int]]:
        """Host and port of every other controller that may speak to this node."""
        ...

    def learn_voters(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        """Looks for voters at the addresses that another voter names, and accepts their connections.

        An address counts until the log says something else about that voter than it says now.
        """
        ...

    @property
    def node_id(self) -> int:
        """Id of this node."""
        ...

    @property
    def leadership(self) -> Leadership:
        """As last reported to the state machine."""
        ...

    async def wait_leadership_change(self, seen: Leadership) -> Leadership:
        """Waits until ``leadership`` differs from ``seen``, and returns it."""
        ...

    def propose_nowait(self, data: bytes, *, epoch: int) -> Proposal:
        """Writes an entry to the leader's log (not yet durable) and returns at once; order of calls is log order.

        Raises:
            NotLeaderError: this node is not active in ``epoch``.
            ProposalTooLargeError: larger than ``entry_bytes_max``.
            LogBusyError: the bounds of proposals in flight are reached, or the leadership is being handed over.
        """
        ...

    async def propose(self, data: bytes, *, epoch: int) -> LogPosition:
        """Writes an entry like ``propose_nowait``; waits for room, and for the commit.

        Raises:
            NotLeaderError: nothing was written, or another entry was committed in its place.
            OutcomeUnknownError: leadership was lost meanwhile.
            ProposalTooLargeError: larger than ``entry_bytes_max``.
        """
        ...

    async def read_barrier(self) -> int:
        """Waits until this node has applied all that was committed anywhere when the call began (ReadIndex).

        Returns the applied index. Served by the leader only; costs one round of messages, shared by all that wait.

        Raises:
            NotLeaderError: this node does not lead, or ceased to.
        """
        ...

    @property
    def high_watermark(self) -> int:
        """Index of the last entry known to be committed and applied here."""
        ...

    @property
    def log_start_index(self) -> int:
        """First index that ``read_committed`` can read."""
        ...

    @property
    def hangs(self) -> bool:
        """Whether a sync has not returned for ``sync_patience_ms``; meanwhile nothing is applied here."""
        ...

    async def wait_for_commit(self, index: int) -> int:
        """Waits until ``high_watermark`` is at least ``index``, and returns it. The caller sets the deadline."""
        ...

    def read_committed(self, from_index: int, bytes_max: int) -> CommittedRange:
        """Returns committed entries from ``from_index`` on, about ``bytes_max`` bytes, at least one if there is one.

        Raises:
            OffsetOutOfRangeError: ``from_index`` is below ``log_start_index``.
        """
        ...

    def open_snapshot(self) -> SnapshotReader | None:
        """Opens the newest durable snapshot; None if none was taken yet. The caller closes it."""
        ...

    def status(self) -> QuorumStatus:
        """Returns leader, epoch, high watermark and replicas."""
        ...

    @property
    def voters(self) -> Mapping[int, VoterEndpoint]:
        """The membership in force, by id."""
        ...

    async def add_voter(self, voter: VoterEndpoint) -> None:
        """Catches the node up as a learner, then lets it vote; returns when that is committed (KIP-853).

        Raises:
            NotLeaderError: this node does not lead, or ceased to.
            MembershipChangeError: another change is under way, the id votes already, the endpoint is no valid one, or
                the node does not answer or catch up.
        """
        ...

    async def remove_voter(self, voter_id: int, directory_id: uuid.UUID = ZERO_UUID) -> None:
        """Takes the vote from a node; returns when that is committed. The leader may remove itself, and then resigns.

        Raises:
            NotLeaderError: this node does not lead, or ceased to.
            MembershipChangeError: another change is under way, the id or its directory is unknown, or it is the last.
        """
        ...

    async def update_voter(self, voter: VoterEndpoint) -> None:
        """Takes over host and port of a voter that has moved; returns when that is committed (KIP-853).

        Raises:
            NotLeaderError: this node does not lead, or ceased to.
            MembershipChangeError: another change is under way, or the id or its directory is unknown.
        """
        ...

    async def transfer_leadership(self, target_id: int | None = None) -> None:
        """Hands the leadership to ``target_id``, and returns when it has moved.

        None chooses the voter that is furthest, of those that answered lately. Until it has moved, or an election
        timeout has passed, nothing can be proposed (``LogBusyError``).

        Raises:
            NotLeaderError: this node does not lead.
            MembershipChangeError: the target is no voter, or it did not take over within an election timeout.
        """
        ...


class MetadataLogFactory(Protocol):
    """Makes an engine; ``factory.metadata_log`` chooses by name."""

    def __call__(self, environment: Environment, config: MetadataLogConfig, machine: StateMachine) -> MetadataLog:
        """Returns an engine, which does nothing before ``run``."""
        ...
