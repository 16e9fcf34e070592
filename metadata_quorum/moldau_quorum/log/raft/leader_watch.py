"""Decides when a voter reports that it knows no leader, and which voters the report names.

A voter that misses the others repeats its pre-votes without end. They change neither epoch nor leader, so nothing else
shows that it waits. The first report is due when no leader has been known for ``patience_ms``. The pause before the
next one doubles, up to ``PAUSE_MS_MAX``: about sixty reports an hour.

A report names the voters from which no message has come since the report before, so it names one that was lost later,
too. A voter that hears a leader answers no pre-vote, and is named as well. The list is empty if all voters answer and
elect no leader all the same.

The driver of the node has the time. It wakes for each round of an election, so the watch needs no timer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.values import join_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_quorum.log.raft.core.types import Configuration

PAUSE_MS_MAX: Final = 60_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingLeader:
    """A report."""

    silent_ms: int
    """How long no leader has been known."""
    votes_needed: int
    """With the node's own."""
    unanswered: tuple[str, ...]
    """``id@host:port`` of the voters that did not answer, in order of their ids."""


class LeaderWatch:
    """The silence of one node's quorum."""

    def __init__(self, patience_ms: float) -> None:
        """Begins as if a leader were known."""
        self.due_ms = math.inf
        """When ``report`` is to be called. Invariant: infinite exactly while a leader is known."""
        self._patience_ms = patience_ms
        self._pause_ms = patience_ms
        self._since_ms = self._reported_ms = -math.inf

    def leader_changed(self, leader_id: int, now_ms: float) -> None:
        """Takes the leader, -1 if none is known. A new epoch without a leader prolongs the silence."""
        if leader_id >= 0:
            self.due_ms = math.inf
        elif self.due_ms == math.inf:
            self._pause_ms = self._patience_ms
            self._since_ms = self._reported_ms = now_ms
            self.due_ms = now_ms + self._pause_ms

    def report(
        self, now_ms: float, *, node_id: int, configuration: Configuration, heard_ms: Mapping[int, float], founds: bool
    ) -> MissingLeader | None:
        """Returns the report that is due, and decides when the next one is.

        Returns None for a node without a vote: it waits to be added, or was removed, and no election is its own.

        ``heard_ms`` has the times of the voters' last messages. ``founds`` holds if the quorum has no entry yet, as far
        as the node knows, so that its first election needs all voters (``directories``).
        """
        assert now_ms >= self.due_ms, "no report is due"
        before_ms, self._reported_ms = self._reported_ms, now_ms
        self._pause_ms = min(PAUSE_MS_MAX, 2 * self._pause_ms)
        self.due_ms = now_ms + self._pause_ms
        voters = configuration.voters
        if node_id not in voters:
            return None
        return MissingLeader(
            silent_ms=round(now_ms - self._since_ms),
            votes_needed=len(voters) if founds else configuration.quorum,
            unanswered=tuple(
                f"{voter_id}@{join_address(voter.host, voter.port)}"
                for voter_id, voter in sorted(voters.items())
                if voter_id != node_id and heard_ms.get(voter_id, -math.inf) <= before_ms
            ),
        )
