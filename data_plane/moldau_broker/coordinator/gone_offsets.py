"""Committed offsets of topics that were deleted: which they are, and which tombstones remove them. Pure.

A topic is known again by its id, which records of commits carry: one that was deleted and made again under its name is
another one. An id that the metadata does not have is that of a deleted topic, not of one that this broker has yet to
hear of: whoever leads a partition writes to it only while its newest metadata say so (``InternalLog.append``), so what
was written under an earlier leader was checked against older metadata than those that made this broker the leader.

Records without an id (of a commit that brings its own expiry, or of an older broker) are known by the name alone. They
are gone when no topic has the name, or when the deletion is observed; one that nobody has observed before another
topic has the name goes unnoticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.coordinator.group_records import offset_record

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from moldau_broker.coordinator.effects import StateRecord
    from moldau_broker.coordinator.group_records import CommittedOffset, OffsetRecord
    from moldau_broker.coordinator.offsets import FullKey, OffsetStore
    from moldau_broker.coordinator.ports import TopicNames

BATCH_BYTES_MAX = 1 << 18
"""Keys of the tombstones of one batch; group ids may be long, and a batch that is too large would never be written."""


def is_gone(topics: TopicNames, topic: str, committed: CommittedOffset) -> bool:
    """Whether an offset is of a topic that is no more, as far as it can be told without having seen its deletion."""
    topic_id = topics.topic_id(topic)
    return topic_id is None or (committed.topic_id is not None and committed.topic_id != topic_id)


class GoneOffsets:
    """Offsets of deleted topics whose tombstones have yet to be written.

    ``_waiting`` has them by key, with the offset without a topic id that was there when the deletion was observed.
    """

    def __init__(self, store: OffsetStore, topics: TopicNames) -> None:
        """Nothing waits before `look`."""
        self._store = store
        self._topics = topics
        self._waiting: dict[FullKey, CommittedOffset | None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def look(self, in_flight: Sequence[OffsetRecord], deleted: Collection[str] | None = None) -> None:
        """Finds what there is to remove; ``deleted`` are the names of topics whose deletion is observed now.

        None looks at all offsets, with no deletion observed. ``in_flight`` are records that are written but not
        committed, in the order of the log.
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
        """Tombstones for the next batch, and what to `put_back` if it is not written.

        An offset that a commit for the topic of now will replace waits for the outcome of that: a tombstone would
        remove both.
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
                continue  # its tombstone is on its way, and may fail
            group_id, topic, partition = key
            entries = [*self._store.of(key), *(each for each in later if each is not None)]
            gone = [self._is_gone(key, each) for each in entries]
            if not any(gone):
                del self._waiting[key]
            elif all(gone):
                taken[key] = self._waiting.pop(key)
                records.append(offset_record(group_id, topic, partition, None))
                size += len(records[-1].key)
        return tuple(records), taken

    def put_back(self, keys: Mapping[FullKey, CommittedOffset | None]) -> None:
        """A batch was not written, or it is not known whether it was."""
        for key, unnamed in keys.items():
            self._waiting.setdefault(key, unnamed)

    def _is_gone(self, key: FullKey, committed: CommittedOffset) -> bool:
        observed = committed.topic_id is None and committed == self._waiting.get(key)
        return observed or is_gone(self._topics, key[1], committed)


def _key_of(record: OffsetRecord) -> FullKey:
    return record.group_id, record.topic, record.partition
