"""Checkpoints of groups, and which translated offsets a target's groups get. Pure.

The rules are MirrorMaker's: a checkpoint is written when it is the first of its partition, when the group went back in
the source, or when its offset in the target grows. Beyond that, one is written when the copy was created again or cut.
Committed offsets are written to the target only for a group that has no members there, and only forwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.cluster.committed import CommittedOffset
from moldau.cluster.metadata import TopicPartition
from moldau.mirror.core.formats import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

IDLE_STATES = ("Empty", "Dead")
"""States of a group without members: it exists, or it does not."""


class CheckpointBook:
    """The newest checkpoint of each group and partition of the target."""

    def __init__(self) -> None:
        """Knows none."""
        self._newest: dict[str, dict[TopicPartition, Checkpoint]] = {}

    def add(self, checkpoint: Checkpoint) -> None:
        """Takes a checkpoint that was read from the topic of checkpoints, or written to it."""
        self._newest.setdefault(checkpoint.group, {})[checkpoint.partition] = checkpoint

    def went_back(self, partition: TopicPartition, end: int) -> None:
        """Forgets checkpoints behind ``end`` of a copy whose log went back to there: they are of records that are gone.

        The next ones may then lie before them. Without this, a group that moves would skip what the copy got since.
        """
        for checkpoints in self._newest.values():
            if partition in checkpoints and checkpoints[partition].downstream > end:
                del checkpoints[partition]

    def of_group(self, group: str) -> dict[TopicPartition, Checkpoint]:
        """Returns the newest checkpoints of a group."""
        return dict(self._newest.get(group, {}))

    def groups(self) -> list[str]:
        """Returns the groups with checkpoints, by name."""
        return sorted(self._newest)

    def due(
        self,
        group: str,
        committed: Mapping[TopicPartition, CommittedOffset],
        translate: Callable[[TopicPartition, int], int | None],
        remote_topic: Callable[[str], str],
    ) -> list[Checkpoint]:
        """Returns the checkpoints to write for the offsets that a group has committed in the source."""
        known = self._newest.get(group, {})
        found: list[Checkpoint] = []
        for source, offset in committed.items():
            downstream = translate(source, offset.offset)
            if downstream is None:
                continue
            partition = TopicPartition(remote_topic(source.topic), source.partition)
            checkpoint = Checkpoint(group, partition, offset.offset, downstream, offset.metadata)
            if _is_news(checkpoint, known.get(partition)):
                found.append(checkpoint)
        return found


def _is_news(checkpoint: Checkpoint, last: Checkpoint | None) -> bool:
    if last is None or checkpoint.upstream < last.upstream:
        return True
    return checkpoint.downstream > last.downstream


def offsets_to_sync(
    checkpoints: Mapping[TopicPartition, Checkpoint], target: Mapping[TopicPartition, CommittedOffset]
) -> dict[tuple[str, int], CommittedOffset]:
    """Returns the offsets to commit in the target for a group without members there.

    ``target`` holds what the group has committed there. An offset never goes back, and keeps the text with which the
    group has committed it in the source.
    """
    return {
        partition: CommittedOffset(checkpoint.downstream, metadata=checkpoint.metadata)
        for partition, checkpoint in checkpoints.items()
        if partition not in target or target[partition].offset < checkpoint.downstream
    }
