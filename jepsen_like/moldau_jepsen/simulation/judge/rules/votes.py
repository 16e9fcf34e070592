"""Judges the quorum's voters: votes must be kept, and committed entries must be durable on a majority."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

NO_VOTE = -1


class VoteRules:
    """Judges the votes of all voters over all their lives."""

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._violated = violated
        self._promised: dict[int, tuple[int, int]] = {}

    def promised(self, node: int, epoch: int, voted_for: int) -> None:
        """``node`` takes this epoch and vote (``NO_VOTE``: none) as durable: its messages may have named them."""
        before = self._promised.get(node)
        if before is not None and not _follows(before, (epoch, voted_for)):
            self._violated("one-vote", f"voter {node} has {_vote(epoch, voted_for)} after {_vote(*before)}")
        self._promised[node] = (epoch, voted_for)

    def replaced(self, node: int) -> None:
        """``node`` runs on another disk: it is another voter, which has promised nothing yet."""
        self._promised.pop(node, None)

    def started(self, node: int, epoch: int, voted_for: int) -> None:
        """A process of ``node`` begins with what it found on its disk."""
        before = self._promised.get(node)
        if before is not None and not _follows(before, (epoch, voted_for)):
            self._violated(
                "vote-kept", f"voter {node} starts with {_vote(epoch, voted_for)}, it had {_vote(*before)} durable"
            )
        self._promised[node] = (epoch, voted_for)


def _follows(before: tuple[int, int], after: tuple[int, int]) -> bool:
    if after[0] != before[0]:
        return after[0] > before[0]
    return before[1] in (NO_VOTE, after[1])


def _vote(epoch: int, voted_for: int) -> str:
    return f"no vote in epoch {epoch}" if voted_for == NO_VOTE else f"its vote for {voted_for} in epoch {epoch}"


class CommitRules:
    """Judges what a leader of the quorum counts as committed."""

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._violated = violated
        self._durable: dict[int, int] = {}

    def durable(self, node: int, index: int) -> None:
        """The log of ``node`` is durable up to ``index``. Of a node that is down the last word counts."""
        self._durable[node] = index

    def committed(
        self,
        leader: int,
        index: int,
        epoch: int,
        voters: Mapping[int, int | None],
        without: Collection[int] = (),
    ) -> None:
        """``leader`` counts the entry at ``index`` (of ``epoch``) as committed.

        ``voters`` maps each voter to the epoch of its own entry at that index; None where that is unknown: it is
        down, or has the entry in a snapshot. ``without``: those whose disk does not have it, whatever they say.
        """
        holders = [
            node
            for node, held in voters.items()
            if held in (None, epoch) and self._durable.get(node, 0) >= index and node not in without
        ]
        if len(holders) < len(voters) // 2 + 1:
            self._violated(
                "committed-is-durable",
                f"leader {leader} commits index {index} of epoch {epoch}, which is durable on {holders} "
                f"of voters {sorted(voters)}",
            )
