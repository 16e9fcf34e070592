"""Committed offsets of groups: what is durable, what waits for the end of a transaction, what has expired. Pure.

`replay_offset` and `replay_marker` are the only mutators and are deterministic: the state is a function of the
committed log. A transactional commit (KIP-98) is kept beside the committed offsets until the marker of its producer
arrives; a reader who asks for stable offsets (KIP-447) is told to come back meanwhile. Of two records for a partition
that count, the later one in the log wins, whenever its transaction ended: that is the one which compaction leaves. So
what the log says later of a partition undoes what is kept beside, if it counts: a commit without a transaction, one
whose transaction is committed, a tombstone. A commit that names another topic by its id undoes it at once: the former
topic is gone then, and the end of the transaction does not bring its offset back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from moldau_broker.coordinator.group_records import CommittedOffset, OffsetRecord

TopicPartition = tuple[str, int]
FullKey = tuple[str, str, int]
"""Group, topic and partition."""


class OffsetStore:
    """Offsets of all groups of one partition of ``__consumer_offsets``.

    Invariants: no group has an empty entry; ``_open[group, topic, partition]`` has the open commits for it by producer,
    which ``_pending`` has by producer first, in the order in which the log has them.
    """

    def __init__(self) -> None:
        """No offsets."""
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[int, dict[FullKey, CommittedOffset]] = {}
        self._open: dict[FullKey, dict[int, CommittedOffset]] = {}

    # Mutators

    def replay_offset(self, record: OffsetRecord, producer_id: int | None) -> None:
        """Applies a committed record; one written by a transactional producer waits for its marker."""
        key = (record.topic, record.partition)
        full_key = (record.group_id, *key)
        if producer_id is not None and record.committed is not None:
            self._drop_former(full_key, producer_id, record.committed)
            self._pending.setdefault(producer_id, {})[full_key] = record.committed
            self._open.setdefault(full_key, {})[producer_id] = record.committed
            return
        self._close_older(full_key)
        if record.committed is None:
            offsets = self._committed.get(record.group_id)
            if offsets is not None and offsets.pop(key, None) is not None and not offsets:
                del self._committed[record.group_id]
            return
        self._committed.setdefault(record.group_id, {})[key] = record.committed

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Ends a producer's transaction: its offsets count from now on, or never did."""
        for full_key, committed in list(self._pending.get(producer_id, {}).items()):
            if commit:
                self._close_older(full_key, producer_id)
            self._close(full_key, producer_id)
            if commit:
                group_id, topic, partition = full_key
                self._committed.setdefault(group_id, {})[topic, partition] = committed

    def _drop_former(self, full_key: FullKey, committing_id: int, committed: CommittedOffset) -> None:
        """Ends open commits that one of the same producer, or for another topic of that name, follows in the log."""
        for producer_id, pending in list(self._open.get(full_key, {}).items()):
            ids = {pending.topic_id, committed.topic_id}
            if producer_id == committing_id or (None not in ids and len(ids) > 1):
                self._close(full_key, producer_id)

    def _close_older(self, full_key: FullKey, than: int | None = None) -> None:
        """Ends open commits that the log has before a record that counts: the one of a producer, or a new one."""
        for producer_id in list(self._open.get(full_key, {})):
            if producer_id == than:
                return
            self._close(full_key, producer_id)

    def _close(self, full_key: FullKey, producer_id: int) -> None:
        producers, keys = self._open[full_key], self._pending[producer_id]
        del producers[producer_id], keys[full_key]
        if not producers:
            del self._open[full_key]
        if not keys:
            del self._pending[producer_id]

    # Readers

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """The offsets of a group."""
        return self._committed.get(group_id, {})

    def pending(self, group_id: str, topic: str, partition: int) -> Iterable[CommittedOffset]:
        """The offsets that open transactions commit for a partition."""
        return self._open.get((group_id, topic, partition), {}).values()

    def of(self, full_key: FullKey) -> list[CommittedOffset]:
        """All offsets of one group for one partition: the committed one, if any, and those of open transactions."""
        group_id, topic, partition = full_key
        committed = self.committed(group_id).get((topic, partition))
        return [*([] if committed is None else [committed]), *self.pending(group_id, topic, partition)]

    def entries(self) -> Iterator[tuple[FullKey, CommittedOffset]]:
        """All offsets, also those of open transactions."""
        for group_id, offsets in self._committed.items():
            for (topic, partition), committed in offsets.items():
                yield (group_id, topic, partition), committed
        for full_key, pending in self._open.items():
            for committed in pending.values():
                yield full_key, committed

    def has_pending(self, group_id: str) -> bool:
        """Whether a transaction that commits any offset of the group is open."""
        return any(key[0] == group_id for key in self._open)

    def pending_keys(self, group_id: str) -> list[TopicPartition]:
        """Partitions of a group with an open transactional commit."""
        return [(topic, partition) for group, topic, partition in self._open if group == group_id]

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
            if (group_id, *key) in self._open:
                continue
            if committed.expire_ms != -1:
                due = committed.expire_ms
            elif idle_since_ms is None:
                due = committed.commit_ms + retention_ms
            else:
                due = max(committed.commit_ms, idle_since_ms) + retention_ms
            if due <= wall_ms:
                yield key
