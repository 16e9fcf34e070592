"""The value that consumers, producers and the admin client commit for a partition, and its absence. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.cluster.metadata import TopicPartition
    from moldau.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed offset, with the leader epoch of the record before it and a text of the application."""

    offset: int
    leader_epoch: int = -1
    """-1 where the epoch is unknown."""
    metadata: str = ""


class OffsetsUnknownError(KafkaError):
    """Reports that the coordinator did not give the committed offsets of some partitions.

    ``errors`` has the code of each of them, ``found`` the committed offsets of the others.
    """

    def __init__(
        self,
        group_id: str,
        errors: Mapping[TopicPartition, KafkaError],
        found: Mapping[TopicPartition, CommittedOffset],
    ) -> None:
        names = "; ".join(f"{partition}: {error}" for partition, error in errors.items())
        super().__init__(next(iter(errors.values())).code, f"group {group_id}: {names}")
        self.errors: dict[TopicPartition, ErrorCode] = {partition: error.code for partition, error in errors.items()}
        self.found = dict(found)
