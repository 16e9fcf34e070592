"""The offsets of groups: committed ones, and those of open transactions. Pure.

`replay_offset` and `replay_marker` are the only mutators and are deterministic: the state is a function of the
committed log. A transactional commit (KIP-98) is pending until the marker of its producer arrives; meanwhile a reader
that requires stable offsets (KIP-447) gets UNSTABLE_OFFSET_COMMIT.

A record is effective if it is a commit without a transaction, a commit of a committed transaction, or a tombstone. Of
two effective records for a partition the later one in the log wins, whenever its transaction ended, because compaction
keeps the later one. So an effective record drops the pending commits for its partition that precede it in the log. A
commit with another topic id drops them at once: the former topic is deleted, and the end of the transaction must not
restore its offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from moldau_broker.coordinator.group.core.records import CommittedOffset, OffsetRecord

TopicPartition = tuple[str, int]
FullKey = tuple[str, str, int]
"""Group id, topic and partition."""


class OffsetStore:
    """The offsets of all groups of one partition of ``__consumer_offsets``.

    Invariants: no group has an empty entry; ``_open[group][topic, partition]`` holds the pending commits by producer,
    in the order of the log; ``_pending`` holds the same commits by producer first.
    """

    def __init__(self) -> None:
        """Starts without offsets."""
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[int, dict[FullKey, CommittedOffset]] = {}
        self._open: dict[str, dict[TopicPartition, dict[int, CommittedOffset]]] = {}

    # Mutators

    def replay_offset(self, record: OffsetRecord, producer_id: int | None) -> None:
        """Applies a committed record; a commit of a transactional producer stays pending until its marker."""
        key = (record.topic, record.partition)
        full_key = (record.group_id, *key)
        if producer_id is not None and record.committed is not None:
            self._drop_former(full_key, producer_id, record.committed)
            self._pending.setdefault(producer_id, {})[full_key] = record.committed
            self._open.setdefault(record.group_id, {}).setdefault(key, {})[producer_id] = record.committed
            return
        self._close_older(full_key)
        if record.committed is None:
            offsets = self._committed.get(record.group_id)
            if offsets is not None and offsets.pop(key, None) is not None and not offsets:
                del self._committed[record.group_id]
            return
        self._committed.setdefault(record.group_id, {})[key] = record.committed

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Ends a producer's transaction: its offsets become committed, or are dropped."""
        for full_key, committed in list(self._pending.get(producer_id, {}).items()):
            if commit:
                self._close_older(full_key, producer_id)
            self._close(full_key, producer_id)
            if commit:
                group_id, topic, partition = full_key
                self._committed.setdefault(group_id, {})[topic, partition] = committed

    def _drop_former(self, full_key: FullKey, committing_id: int, committed: CommittedOffset) -> None:
        """Drops pending commits that precede a commit of the same producer, or of another topic of that name."""
        for producer_id, pending in list(self._producers(full_key).items()):
            ids = {pending.topic_id, committed.topic_id}
            if producer_id == committing_id or (None not in ids and len(ids) > 1):
                self._close(full_key, producer_id)

    def _close_older(self, full_key: FullKey, than: int | None = None) -> None:
        """Drops pending commits that precede an effective record: the commit of producer ``than``, or a new record."""
        for producer_id in list(self._producers(full_key)):
            if producer_id == than:
                return
            self._close(full_key, producer_id)

    def _close(self, full_key: FullKey, producer_id: int) -> None:
        group_id, topic, partition = full_key
        of_group, keys = self._open[group_id], self._pending[producer_id]
        producers = of_group[topic, partition]
        del producers[producer_id], keys[full_key]
        if not producers:
            del of_group[topic, partition]
        if not of_group:
            del self._open[group_id]
        if not keys:
            del self._pending[producer_id]

    def _producers(self, full_key: FullKey) -> Mapping[int, CommittedOffset]:
        """Returns the pending commits for one key, by producer, in the order of the log."""
        group_id, topic, partition = full_key
        return self._open.get(group_id, {}).get((topic, partition), {})

    # Readers

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Returns the committed offsets of a group."""
        return self._committed.get(group_id, {})

    def pending(self, group_id: str, topic: str, partition: int) -> Iterable[CommittedOffset]:
        """Returns the offsets that open transactions commit for a partition."""
        return self._producers((group_id, topic, partition)).values()

    def of(self, full_key: FullKey) -> list[CommittedOffset]:
        """Returns all offsets of a group for a partition: the committed one, if any, and the pending ones."""
        group_id, topic, partition = full_key
        committed = self.committed(group_id).get((topic, partition))
        return [*([] if committed is None else [committed]), *self.pending(group_id, topic, partition)]

    def entries(self) -> Iterator[tuple[FullKey, CommittedOffset]]:
        """Yields all offsets, also those of open transactions."""
        for group_id, offsets in self._committed.items():
            for (topic, partition), committed in offsets.items():
                yield (group_id, topic, partition), committed
        for group_id, of_group in self._open.items():
            for (topic, partition), pending in of_group.items():
                for committed in pending.values():
                    yield (group_id, topic, partition), committed

    def has_pending(self, group_id: str) -> bool:
        """Returns whether an open transaction commits any offset of the group."""
        return group_id in self._open

    def pending_keys(self, group_id: str) -> list[TopicPartition]:
        """Returns the partitions of a group with a pending commit."""
        return list(self._open.get(group_id, {}))

    def keys(self, group_id: str) -> list[TopicPartition]:
        """Returns the partitions for which a group has a committed or a pending offset."""
        return list(dict.fromkeys([*self.committed(group_id), *self.pending_keys(group_id)]))

    def has_group(self, group_id: str) -> bool:
        """Returns whether the group has any offset; a pending one is enough, as in Kafka."""
        return group_id in self._committed or group_id in self._open

    def group_ids(self) -> list[str]:
        """Returns the groups that have offsets, also those with pending offsets only."""
        return list(dict.fromkeys([*self._committed, *self._open]))

    def expired(
        self, group_id: str, wall_ms: int, retention_ms: int, idle_since_ms: int | None
    ) -> Iterator[TopicPartition]:
        """Yields the partitions of expired offsets (KIP-211).

        Args:
            group_id: the group.
            wall_ms: now, Unix milliseconds.
            retention_ms: how long an offset is kept.
            idle_since_ms: when the group lost its last member; the retention starts then. With None it starts at each
                commit, which is the rule for groups that never had members.
        """
        pending = self._open.get(group_id, {})
        for key, committed in self.committed(group_id).items():
            if key in pending:
                continue  # the tombstone would drop the pending commit
            if committed.expire_ms != -1:
                due = committed.expire_ms
            elif idle_since_ms is None:
                due = committed.commit_ms + retention_ms
            else:
                due = max(committed.commit_ms, idle_since_ms) + retention_ms
            if due <= wall_ms:
                yield key
