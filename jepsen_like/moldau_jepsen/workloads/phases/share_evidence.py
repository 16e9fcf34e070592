"""Asks a cluster what a history of a share group cannot tell: its lock, and the records that its coordinator gave up.

A record that was delivered as often as the group allows is archived without any answer to a client. The deliveries need
not have reached a member: a broker counts one when it acquires a record for a fetch, even if the answer is lost or the
member dies with it. The coordinator stores the state of each record in ``__share_group_state``, so its log tells a
record that was given up from one that was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin, ConfigResource, ResourceType
from moldau.consumer import Consumer
from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import KafkaError
from moldau_broker.coordinator.share.core.batches import ARCHIVED, ARCHIVING, AVAILABLE
from moldau_broker.coordinator.share.core.records import parse_change
from moldau_broker.coordinator.share.core.state import Snapshot
from moldau_jepsen.checkers.group.share import CLOCK_RATE_MAX, Archived
from moldau_jepsen.checkers.log.reach import GAP_MAX
from moldau_jepsen.history import TopicPartition
from moldau_quorum.metadata.internal_topics import SHARE_STATE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from moldau.records import Record
    from moldau.runtime.ports.environment import Environment
    from moldau_broker.coordinator.share.core.batches import StateBatch
    from moldau_jepsen.checkers.group.share import Place

RETRY_S = 0.2
POLL_MS = 500.0


class PrunedLogError(Exception):
    """A coordinator's log does not tell any more which records were given up."""


async def group_times_ms(reach: Mapping[str, str], environment: Environment, group: str) -> tuple[int, int]:
    """Returns the lock duration and the session timeout that brokers use for a share group.

    They are the group's own settings, or else those of a broker. Asks until there is an answer. ``reach`` is the
    configuration of a client.
    """
    resource = ConfigResource(ResourceType.GROUP, group)
    names = ("share.record.lock.duration.ms", "share.session.timeout.ms")
    async with Admin(reach, environment=environment) as admin:
        while True:
            try:
                cluster = await admin.describe_cluster()
                broker = ConfigResource(ResourceType.BROKER, str(min(node.node_id for node in cluster.brokers)))
                found = await admin.describe_configs([resource, broker])
            except KafkaError:
                await trio.sleep(RETRY_S)  # bounded by the caller's deadline
                continue
            own, general = found[resource], found[broker]
            entries = [
                own[name] if name in own and not own[name].is_default else general[f"group.{name}"] for name in names
            ]
            lock_ms, session_ms = (int(entry.value or 0) for entry in entries)
            return lock_ms, session_ms


async def archived_records(
    reach: Mapping[str, str],
    environment: Environment,
    group: str,
    topic: str,
    lock_ms: float,
    *,
    topic_id: UUID | None = None,
) -> list[Archived]:
    """Returns all records of a group that its coordinators have stored as archived, by rejection or by the limit.

    ``lock_ms`` is how long the group's locks last; see ``StoredStates``. With a ``topic_id`` only states of that topic
    count.
    Bounded by the caller's deadline.

    Raises:
        DecodeError: The log holds a record of another form.
        PrunedLogError: The beginning of the log is gone (``share.coordinator.state.topic.prune.interval.ms``).
    """
    config = {
        **reach,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_uncommitted",
        "enable.auto.commit": False,
    }
    states = StoredStates(group, topic, lock_ms, topic_id)
    async with Admin(reach, environment=environment) as admin:
        description = (await admin.describe_topics([SHARE_STATE_TOPIC]))[SHARE_STATE_TOPIC]
    partitions = [(SHARE_STATE_TOPIC, partition.partition) for partition in description.partitions]
    async with Consumer(config, environment=environment) as consumer:
        consumer.assign(partitions)
        for where, start in (await consumer.beginning_offsets(partitions)).items():
            if start > 0:
                raise PrunedLogError(f"{where.topic}-{where.partition} begins at offset {start}")
        ends = {(where.topic, where.partition): end for where, end in (await consumer.end_offsets(partitions)).items()}
        while any((consumer.position_nowait(where) or 0) < end for where, end in ends.items()):
            for batch in await consumer.poll(POLL_MS):
                states.take(batch.records)
    return states.archived()


class StoredStates:
    """The states of a group's records, as its coordinators have stored them one after the other.

    Brokers of Kafka store a record as archived, and then move the start offset of the share-partition. Those of Moldau
    move it at once: a record that the start offset has passed while it was available after ``count`` deliveries was
    archived with a delivery that followed. Usually that is the next one. While a write was under way, locks may have
    expired several times, and only the outcome was written; so each lock that fits between the two writes may have been
    a delivery. A clock may run at twice the rate.
    """

    def __init__(self, group: str, topic: str, lock_ms: float, topic_id: UUID | None = None) -> None:
        """Knows nothing of the group, which reads one topic and whose locks last for ``lock_ms``."""
        self._topic_id = topic_id
        self._group = group
        self._topic = topic
        self._lock_ms = lock_ms / CLOCK_RATE_MAX
        self._archived: dict[Place, int] = {}
        self._available: dict[Place, tuple[int, int]] = {}
        """Deliveries of records that were available in their last state, and the time of its write."""
        self._starts: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        """The state epoch of each partition: an administrator raises it with a new start offset."""

    def take(self, records: Iterable[Record[bytes, bytes]]) -> None:
        """Takes the next records of a coordinator's log.

        Raises:
            DecodeError: A record has another form, or names more offsets than a share-partition can have in flight.
        """
        for record in records:
            change = parse_change(record.key, record.value)
            if change is None:
                raise DecodeError("a record of a share coordinator has an unknown version")
            if change.key.group_id != self._group or self._topic_id not in (None, change.key.topic_id):
                continue
            if isinstance(change, Snapshot):
                self._begin_again(change)
            stored = change.state if isinstance(change, Snapshot) else change
            if stored is not None:
                partition = TopicPartition(self._topic, change.key.partition)
                for batch in stored.batches:
                    self._take_batch(partition, batch, record.timestamp)
                self._pass(partition, stored.start_offset, record.timestamp)

    def _begin_again(self, change: Snapshot) -> None:
        """Forgets a state that an administrator has deleted or replaced."""
        number = change.key.partition
        epoch = None if change.state is None else change.state.state_epoch
        if epoch is not None and epoch == self._epochs.setdefault(number, epoch):
            return
        self._starts.pop(number, None)
        self._epochs.pop(number, None)
        if epoch is not None:
            self._epochs[number] = epoch
        for place in [each for each in (*self._archived, *self._available) if each[0].partition == number]:
            self._archived.pop(place, None)
            self._available.pop(place, None)

    def _pass(self, partition: TopicPartition, start_offset: int, now_ms: int) -> None:
        """Archives the available records that a new start offset has passed."""
        if start_offset <= self._starts.get(partition.partition, 0):
            return
        self._starts[partition.partition] = start_offset
        for place in [each for each in self._available if each[0] == partition and each[1] < start_offset]:
            count, written_ms = self._available.pop(place)
            self._archived[place] = count + 1 + int(max(0, now_ms - written_ms) / self._lock_ms)

    def _take_batch(self, partition: TopicPartition, batch: StateBatch, now_ms: int) -> None:
        if not 0 <= batch.last_offset - batch.first_offset < GAP_MAX:
            raise DecodeError(f"a state of {partition} has the offsets {batch.first_offset} to {batch.last_offset}")
        for offset in range(batch.first_offset, batch.last_offset + 1):
            place = partition, offset
            self._available.pop(place, None)
            if batch.delivery_state == AVAILABLE:
                self._available[place] = batch.delivery_count, now_ms
            elif batch.delivery_state in (ARCHIVING, ARCHIVED):
                self._archived[place] = batch.delivery_count

    def archived(self) -> list[Archived]:
        """Returns the archived records with the most deliveries that can have counted then."""
        return [Archived(place, count) for place, count in sorted(self._archived.items())]
