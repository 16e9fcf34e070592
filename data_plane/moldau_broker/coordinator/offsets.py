"""Committed offsets of groups: what is durable, what waits for the end of a transaction, what has expired. Pure.

`replay_offset` and `replay_marker` are the only mutators and are deterministic: the state is a function of the
committed log. A transactional commit (KIP-98) is kept beside the committed offsets until the marker of its producer
arrives; a reader who asks for stable offsets (KIP-447) is told to come back meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moldau_broker.coordinator.group_records import CommittedOffset, OffsetRecord

TopicPartition = tuple[str, int]


class OffsetStore:
    """Offsets of all groups of one partition of ``__consumer_offsets``.

    Invariants: no group has an empty entry; ``_pending_count[group, topic, partition]`` is the number of producers
    with an open commit for it.
    """

    def __init__(self) -> None:
        """No offsets."""
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[int, dict[tuple[str, str, int], CommittedOffset]] = {}
        self._pending_count: dict[tuple[str, str, int], int] = {}

    # Mutators

    def replay_offset(self, record: OffsetRecord, producer_id: int | None) -> None:
        """Applies a committed record; one written by a transactional producer waits for its marker."""
        key = (record.topic, record.partition)
        if producer_id is not None and record.committed is not None:
            pending = self._pending.setdefault(producer_id, {})
            full_key = (record.group_id, *key)
            if full_key not in pending:
                self._pending_count[full_key] = self._pending_count.get(full_key, 0) + 1
            pending[full_key] = record.committed
            return
        if record.committed is None:
            offsets = self._committed.get(record.group_id)
            if offsets is not None and offsets.pop(key, None) is not None and not offsets:
                del self._committed[record.group_id]
            return
        self._committed.setdefault(record.group_id, {})[key] = record.committed

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Ends a producer's transaction: its offsets count from now on, or never did."""
        for (group_id, topic, partition), committed in self._pending.pop(producer_id, {}).items():
            full_key = (group_id, topic, partition)
            left = self._pending_count[full_key] - 1
            if left:
                self._pending_count[full_key] = left
            else:
                del self._pending_count[full_key]
            if commit:
                self._committed.setdefault(group_id, {})[topic, partition] = committed

    # Readers

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """The offsets of a group."""
        return self._committed.get(group_id, {})

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction that commits an offset of the partition is open."""
        return (group_id, topic, partition) in self._pending_count

    def has_pending(self, group_id: str) -> bool:
        """Whether a transaction that commits any offset of the group is open."""
        return any(key[0] == group_id for key in self._pending_count)

    def pending_keys(self, group_id: str) -> list[TopicPartition]:
        """Partitions of a group with an open transactional commit."""
        return [(topic, partition) for group, topic, partition in self._pending_count if group == group_id]

    def group_ids(self) -> list[str]:
        """Groups that have offsets."""
        return list(self._committed)

    def expired(
        self, group_id: str, wall_ms: int, retention_ms: int, idle_since_ms: int | None
    ) -> Iterator[TopicPartition]:
        """Offsets that have outlived their time (KIP-211).

        Args:
            group_id: the group.
            wall_ms: now, Unix milliseconds.
            retention_ms: how long an offset is kept.
            idle_since_ms: when the group lost its last member; the retention counts from then. None counts from each
            commit, which is the rule for groups without members ever.
        """
        for key, committed in self.committed(group_id).items():
            if (group_id, *key) in self._pending_count:
                continue
            if committed.expire_ms != -1:
                due = committed.expire_ms
            elif idle_since_ms is None:
                due = committed.commit_ms + retention_ms
            else:
                due = max(committed.commit_ms, idle_since_ms) + retention_ms
            if due <= wall_ms:
                yield key
