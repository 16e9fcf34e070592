"""Planted bugs of the Raft core that the short histories of a small quorum find."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from moldau_quorum.log.raft.core.messages import AppendRequest
from moldau_quorum.log.raft.core.raft_core import RaftCore
from moldau_quorum.log.raft.core.writes import Writes

if TYPE_CHECKING:
    from moldau_jepsen.planted_bug import Patch
    from moldau_quorum.log.raft.core.messages import AppendResponse, SnapshotRequest


def sync_covers_what_is_not_written() -> list[Patch]:
    """A sync makes durable what the log holds now, not what it held when the sync was asked for."""

    def synced(self: Writes, number: int) -> None:
        self.synced_number = max(self.synced_number, number)
        if self._handed_out:
            self.durable_index = self._handed_out[-1][1]
        while self._handed_out and self._handed_out[0][0] <= number:
            self._handed_out.popleft()

    return [(Writes, "synced", synced)]


def truncated_write_counts() -> list[Patch]:
    """A write in progress counts in full after the log was truncated below its end."""

    def truncated(self: Writes, last_index: int) -> None:
        self.durable_index = min(self.durable_index, last_index)
        self.entries_changed(last_index + 1)

    return [(Writes, "truncated", truncated)]


def durable_index_kept() -> list[Patch]:
    """A truncation leaves the durable index where it was."""

    def truncated(self: Writes, last_index: int) -> None:
        self._handed_out = deque((number, min(index, last_index)) for number, index in self._handed_out)
        self.entries_changed(last_index + 1)

    return [(Writes, "truncated", truncated)]


def early_answer_counts_all() -> list[Patch]:
    """A heartbeat is answered at once with what is written, durable or not."""
    original = RaftCore._acceptance

    def acceptance(self: RaftCore, request: AppendRequest | SnapshotRequest, match_index: int) -> AppendResponse:
        if isinstance(request, AppendRequest) and not request.entries:
            match_index = max(match_index, request.prev_index)
        return original(self, request, match_index)

    return [(RaftCore, "_acceptance", acceptance)]


def heartbeat_counts_all() -> list[Patch]:
    """A heartbeat is answered with all that is durable, also entries that the leader has not compared."""
    original = RaftCore._acceptance

    def acceptance(self: RaftCore, request: AppendRequest | SnapshotRequest, match_index: int) -> AppendResponse:
        if isinstance(request, AppendRequest) and not request.entries:
            match_index = self.durable_index
        return original(self, request, match_index)

    return [(RaftCore, "_acceptance", acceptance)]


def votes_of_the_last_election() -> list[Patch]:
    """Votes of an earlier election count in the next one."""
    original = RaftCore._campaign

    def campaign(self: RaftCore, *, pre_vote: bool) -> None:
        votes = dict(self._votes)
        original(self, pre_vote=pre_vote)
        for voter, granted in votes.items():
            if voter != self.node_id:
                self._votes.setdefault(voter, granted)

    return [(RaftCore, "_campaign", campaign)]
