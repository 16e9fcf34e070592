"""Positions in the committed metadata log, and the check that a log contains a position that was applied before.

Committed entries never change: each controller of a cluster has the same entry at the same offset. A log that ends
before a position that a broker has applied, or has another epoch there, is therefore not the log that the broker
followed. Its controllers have lost their data, or run on an old copy of them.

Raft's own entries hold no command and move only the offset. The epoch of a position is that of the last command at or
below its offset.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MetadataPosition:
    """A position in the metadata log."""

    offset: int
    """The last offset that is included."""
    epoch: int
    """The Raft epoch of the last command at or below ``offset``."""

    def refuses_entry(self, offset: int, epoch: int) -> str | None:
        """Returns why a log with this position cannot have a command of ``epoch`` at ``offset``; None if it can."""
        if offset <= self.offset and epoch > self.epoch:
            return f"offset {offset} has epoch {epoch}, later than epoch {self.epoch} of offset {self.offset}"
        if offset >= self.offset and epoch < self.epoch:
            return f"offset {offset} has epoch {epoch}, earlier than epoch {self.epoch} of offset {self.offset}"
        return None

    def refuses_content(self, epoch: int) -> str | None:
        """Returns why ``epoch`` cannot be that of the last command at or below ``offset``; None if it can."""
        if epoch == self.epoch:
            return None
        return f"offset {self.offset} has epoch {epoch} instead of {self.epoch}"
