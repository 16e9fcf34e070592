"""Finds committed offsets of deleted topics, and the tombstones that remove them. Pure.

Records of commits contain the topic id, which identifies a topic: a topic that is deleted and created again under the
same name has another id. An id that the metadata do not have belongs to a deleted topic, never to a topic that this
broker does not know yet. A leader writes to a partition only while its newest metadata name it as the leader
(``InternalLog.append``), so records of earlier leaders were checked against older metadata than those that made this
broker the leader.

Records without an id (of a commit with its own expiry, or of an older broker) are identified by name alone. Their topic
counts as deleted when no topic has the name, or when the deletion is observed. A deletion stays unnoticed if a topic
with the same name is created before the deletion is observed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.core.records import offset_record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from moldau_broker.coordinator.group.core.offsets.committed import FullKey, OffsetStore
    from moldau_broker.coordinator.group.core.records import CommittedOffset, OffsetRecord
    from moldau_broker.coordinator.runtime.effects import StateRecord
    from moldau_broker.coordinator.runtime.ports import TopicNames

BATCH_BYTES_MAX = 1 << 18
"""The size of the keys in one batch of tombstones; group ids may be long, and the log refuses too large batches.

Tombstones may be divided anywhere, so this limits the batch itself; they have no values to count. The records of an
operation on a group must stay together: ``served_groups.WRITE_BYTES_MAX`` limits what is added to those of others.
"""


def is_gone(topics: TopicNames, topic: str, committed: CommittedOffset) -> bool:
    """Returns whether the topic of an offset is deleted, as far as the present metadata show."""
    topic_id = topics.topic_id(topic)
    return topic_id is None or (committed.topic_id is not None and committed.topic_id != topic_id)


class GoneOffsets:
    """Offsets of deleted topics whose tombstones are not committed yet.

    ``_waiting`` maps each key without a tombstone in flight to the offset without a topic id that the deletion was
    observed for, or to None. ``_in_flight`` does the same for the keys whose tombstone is in flight.
    """

    def __init__(self, store: OffsetStore, topics: TopicNames) -> None:
        """Starts empty; `look` adds offsets."""
        self._store = store
        self._topics = topics
        self._waiting: dict[FullKey, CommittedOffset | None] = {}
        self._in_flight: dict[FullKey, CommittedOffset | None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def look(self, in_flight: Sequence[OffsetRecord], deleted: Collection[str] | None = None) -> None:
        """Finds offsets to remove; ``deleted`` are the names of topics whose deletion is observed now.

        With None, all offsets are checked and no deletion is observed. ``in_flight`` are records that are written but
        not committed, in the order of the log.
        """
        found = list(self._store.entries())
        found += [(_key_of(record), record.committed) for record in in_flight if record.committed is not None]
        for key, committed in found:
            topic = key[1]
            if deleted is not None and topic not in deleted:
                continue
            if deleted is not None and committed.topic_id is None:
                self._waiting[key] = committed
            elif is_gone(self._topics, topic, committed):
                self._waiting.setdefault(key, None)

    def take(
        self, in_flight: Sequence[OffsetRecord], records_max: int
    ) -> tuple[tuple[StateRecord, ...], dict[FullKey, CommittedOffset | None]]:
        """Returns tombstones for the next batch, and the keys for `written` or `put_back` when its outcome is known.

        An offset that a pending commit for the present topic will replace waits for the outcome of that commit: a
        tombstone would remove both.
        """
        written: dict[FullKey, list[CommittedOffset | None]] = {}
        for record in in_flight:
            written.setdefault(_key_of(record), []).append(record.committed)
        records: list[StateRecord] = []
        taken: dict[FullKey, CommittedOffset | None] = {}
        size = 0
        for key in list(self._waiting):
            if len(records) >= records_max or size >= BATCH_BYTES_MAX:
                break
            later = written.get(key, [])
            if later and later[-1] is None:
                continue  # its tombstone is in flight, and may fail
            group_id, topic, partition = key
            entries = [*self._store.of(key), *(each for each in later if each is not None)]
            gone = [self.is_gone(key, each) for each in entries]
            if not any(gone):
                del self._waiting[key]
            elif all(gone):
                taken[key] = self._waiting.pop(key)
                records.append(offset_record(group_id, topic, partition, None))
                size += len(records[-1].key)
        self._in_flight |= taken
        return tuple(records), taken

    def written(self, keys: Iterable[FullKey]) -> None:
        """Forgets the keys of a batch that is committed."""
        for key in keys:
            self._in_flight.pop(key, None)

    def put_back(self, keys: Mapping[FullKey, CommittedOffset | None]) -> None:
        """Adds the keys of a batch again that was not written, or whose outcome is unknown."""
        self.written(keys)
        for key, unnamed in keys.items():
            self._waiting.setdefault(key, unnamed)

    def is_gone(self, key: FullKey, committed: CommittedOffset) -> bool:
        """Returns whether the topic of an offset is deleted: its deletion was observed, or the metadata show it."""
        observed = self._waiting.get(key), self._in_flight.get(key)
        return committed in observed or is_gone(self._topics, key[1], committed)


def _key_of(record: OffsetRecord) -> FullKey:
    return record.group_id, record.topic, record.partition
