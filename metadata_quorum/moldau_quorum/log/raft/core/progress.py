"""A leader's view of one other member, and the amount that it may send to it.

    PROBE      the leader does not know where the logs agree: one message with entries at a time
    REPLICATE  the logs agree up to ``match``: messages are sent ahead of their answers, bounded by count and bytes
    SNAPSHOT   the entries that the member needs are gone: pieces of a snapshot are sent, one at a time

(As in etcd-io/raft ``tracker/progress.go``.) A lost message is noticed by the next heartbeat, which follows it in the
log: the member refuses it, and the leader probes.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau_quorum.log.raft.core.types import SnapshotPoint


class ProgressState(enum.Enum):
    """The way in which a leader serves a member."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True, kw_only=True)
class Progress:
    """Invariant: ``match < next``; in flight are messages that end at or after ``match``, in order."""

    next: int
    """The index of the next entry to send."""
    match: int = 0
    """The last index that is known to be durable there and to agree."""
    state: ProgressState = ProgressState.PROBE
    last_seen_ms: float
    """When the member last answered in this epoch (or when the epoch began)."""
    last_sent_ms: float = float("-inf")
    last_caught_up_ms: float = float("-inf")
    """When it was last known to hold all that the leader held."""
    leader_end: tuple[int, float] = (0, float("-inf"))
    """The leader's last index at the member's last acceptance, and the time of that."""
    answered: bool = False
    """Whether it has answered in this epoch."""
    read_sequence: int = 0
    """Highest read sequence that it has echoed."""
    probe_sent: bool = False
    """PROBE: entries are on their way; wait for the answer or the next heartbeat."""
    commit_sent: int = 0
    """Highest commit index that was sent behind entries that the member may hold."""
    snapshot: SnapshotPoint | None = None
    """SNAPSHOT: what is being sent, also when a newer one has been taken meanwhile; else None."""
    snapshot_piece: int = 0
    """SNAPSHOT: the piece that is on its way or due."""
    piece_sent_ms: float = float("-inf")
    _in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    """(last index, bytes) of each message without an answer."""
    _in_flight_bytes: int = 0

    def room(self, messages_max: int, bytes_max: int) -> bool:
        """Returns whether another message with entries may be sent now."""
        if self.state is ProgressState.PROBE:
            return not self.probe_sent
        if self.state is ProgressState.REPLICATE:
            return len(self._in_flight) < messages_max and self._in_flight_bytes < bytes_max
        return False

    def sent(self, last_index: int, size_bytes: int) -> None:
        """Counts a message with entries up to ``last_index`` as sent."""
        if self.state is ProgressState.PROBE:
            self.probe_sent = True
            return
        assert self.state is ProgressState.REPLICATE, "no entries are sent beside a snapshot"
        assert last_index >= self.next, "a message with entries moves the sender on"
        self.next = last_index + 1
        self._in_flight.append((last_index, size_bytes))
        self._in_flight_bytes += size_bytes

    def accepted(self, match_index: int) -> bool:
        """Notes that the member agrees up to ``match_index``; returns whether that raises ``match``."""
        while self._in_flight and self._in_flight[0][0] <= match_index:
            self._in_flight_bytes -= self._in_flight.popleft()[1]
        advanced = match_index > self.match
        self.match = max(self.match, match_index)
        self.next = max(self.next, self.match + 1)
        if self.state is ProgressState.PROBE:
            self.become_replicate()
        return advanced

    def compare_with_leader(self, last_index: int, now_ms: float) -> None:
        """Notes whether the member has all of the leader's log now, or all that it had at the last acceptance.

        Under steady writes a member never has all that the leader has by the time its answer arrives.
        """
        if self.match >= last_index:
            self.last_caught_up_ms = now_ms
        elif self.match >= self.leader_end[0]:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.leader_end[1])
        self.leader_end = (last_index, now_ms)

    def become_replicate(self) -> None:
        """Sends on from ``match``, up to which the logs agree."""
        self._change(ProgressState.REPLICATE)
        self.next = self.match + 1

    def become_probe(self, next_index: int) -> None:
        """Probes at ``next_index``, because the point where the logs agree is unknown."""
        self._change(ProgressState.PROBE)
        self.next = max(self.match + 1, next_index)

    def become_snapshot(self, point: SnapshotPoint) -> None:
        """Sends a snapshot, because the log no longer has the next entries."""
        self._change(ProgressState.SNAPSHOT)
        self.snapshot = point
        self.snapshot_piece = 0

    def retry(self, now_ms: float, piece_timeout_ms: float) -> None:
        """Allows messages without an answer to be sent again, after a heartbeat interval."""
        if self.state is not ProgressState.SNAPSHOT or now_ms - self.piece_sent_ms >= piece_timeout_ms:
            self.probe_sent = False

    def _change(self, state: ProgressState) -> None:
        self.state = state
        self.probe_sent = False
        self.snapshot = None
        self._in_flight.clear()
        self._in_flight_bytes = 0
