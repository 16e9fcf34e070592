"""The engine behind the shell, without an event loop: ``RaftNode`` or the hardened pysyncobj."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_quorum.log.port import CommittedRange, Leadership, QuorumStatus, SnapshotReader
    from moldau_quorum.log.raft.core.types import Configuration
    from moldau_quorum.log.raft.envelope import Envelope, Identity, Payload
    from moldau_quorum.log.raft.storage.snapshot_jobs import Job
    from moldau_quorum.log.raft.storage.wal import SyncWork
    from moldau_quorum.log.raft.waiting import Pending


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatistics:
    """Counters since the node was opened."""

    messages_received: int
    entries_applied: int
    snapshots_taken: int
    snapshots_installed: int
    snapshots_refused: int
    torn_bytes: int


class EngineNode(Protocol):
    """See ``RaftNode``, whose methods these are, for what they do."""

    leadership: Leadership
    applied_index: int
    identity: Identity
    snapshot_refusal: str | None

    @property
    def epoch(self) -> int:
        """The present epoch."""
        ...

    @property
    def configuration(self) -> Configuration:
        """The membership in force; another object when it has changed."""
        ...

    @property
    def log_start_index(self) -> int:
        """The first index that can be read."""
        ...

    @property
    def wants_sync(self) -> bool:
        """Whether ``begin_sync`` has work."""
        ...

    @property
    def has_job(self) -> bool:
        """Whether ``take_job`` has work."""
        ...

    def restore_job(self) -> Job | None:
        """Returns the job that comes before everything else; None without one."""
        ...

    def prepare(self, envelope: Envelope, payload_format: int, payload: Payload) -> Callable[[float], None]:
        """Checks a message and returns the function that takes it at a given time.

        Raises:
            MessageError: this call, or that of the returned function, refuses the message.
        """
        ...

    def envelope(self, recipient: int) -> Envelope:
        """Returns the envelope of the next message to a member."""
        ...

    def tick(self, now_ms: float) -> None:
        """Acts on timers that are due at a time."""
        ...

    def next_deadline_ms(self) -> float:
        """Returns the time at which ``tick`` has work."""
        ...

    def peer_refused(self, peer: int, now_ms: float) -> None:
        """Notes that the host of a peer refuses connections."""
        ...

    def process(self) -> None:
        """Carries out what follows from the inputs."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether ``process`` has left committed entries for the next turn, in which it can apply more of them."""
        ...

    def take_outbox(self) -> list[tuple[int, bytes]]:
        """Returns recipients and bodies of the messages that may be sent now, and forgets them."""
        ...

    def begin_sync(self) -> SyncWork | None:
        """Returns the work that makes all writes durable."""
        ...

    def sync_done(self, work: SyncWork) -> None:
        """Ends a sync whose ``run`` has returned."""
        ...

    def take_job(self) -> Job | None:
        """Returns long work on snapshots; None without any."""
        ...

    def propose(self, data: bytes, *, epoch: int, notify: Callable[[], None]) -> Pending:
        """Appends an entry."""
        ...

    def read(self, notify: Callable[[], None]) -> Pending:
        """Begins a linearizable read."""
        ...

    def change_configuration(self, configuration: Configuration, *, notify: Callable[[], None]) -> Pending:
        """Appends a membership."""
        ...

    def transfer(self, target: int) -> None:
        """Begins to hand the leadership over."""
        ...

    def member_match(self, member: int) -> int | None:
        """Returns the index up to which another member is known to have the log."""
        ...

    def read_committed(self, from_index: int, bytes_max: int) -> CommittedRange:
        """Returns committed entries."""
        ...

    def open_snapshot(self) -> SnapshotReader | None:
        """Opens the newest durable snapshot; None without one."""
        ...

    def status(self, now_ms: float, wall_ms: int) -> QuorumStatus:
        """Returns the state of the quorum."""
        ...

    def statistics(self) -> NodeStatistics:
        """Returns counters."""
        ...

    def close(self) -> None:
        """Closes the files without syncing."""
        ...
