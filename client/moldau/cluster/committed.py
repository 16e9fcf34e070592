"""The value that consumers, producers and the admin client commit for a partition. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed offset, with the leader epoch of the record before it and a text of the application."""

    offset: int
    leader_epoch: int = -1
    """-1 where the epoch is unknown."""
    metadata: str = ""
