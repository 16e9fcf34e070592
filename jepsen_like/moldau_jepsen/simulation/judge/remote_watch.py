"""Watches tiered partitions of a simulated cluster, and the object store of its world, after every step.

Most steps change nothing: a few numbers of each replica, and the number of effects on the store, are compared first. A
replica is looked at when the beginning of its log or of its files has moved, all leaders when objects were written or
deleted. ``rules.remote`` judges. Nothing is changed, drawn or booked, so a run with this watch is the same run.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import trio

from moldau.records import iterate_batches
from moldau.records.batch import batch_crc
from moldau.runtime.ports.objects import StoredObject
from moldau_broker.log.files.batches import CONTROL_BIT
from moldau_broker.remote_log.core.names import LOG, segments_of, topic_of
from moldau_broker.remote_log.core.plans import PROOFS_KEPT
from moldau_jepsen.simulation.judge.invariants import BatchSeen, PartitionKey
from moldau_jepsen.simulation.judge.rules.producers import ProducerBatch
from moldau_jepsen.simulation.judge.rules.remote import CommittedBatches, RemoteRules, SegmentSeen, unneeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.replication.replica import Role
    from moldau_broker.server.lifecycle.broker import Broker
    from moldau_broker.server.replicas.partition import Partition
    from moldau_jepsen.cluster.simulated import SimulatedCluster
    from moldau_jepsen.simulation.judge.invariants import ClusterInvariants

POLL_SECONDS = 0.5
SHOWN_MAX = 5
"""Objects that one finding names."""

_Seen = tuple["Role | None", int, int, int]
"""Role, log start offset, base offset of the first file, and log end offset of a replica."""
_Folder = tuple[str, int]
"""Topic id, as hexadecimal digits, and partition."""


class RemoteWatch:
    """Watches one cluster for one judge."""

    def __init__(self, cluster: SimulatedCluster, judge: ClusterInvariants) -> None:
        """The observer of the cluster must look at each step before this watch does."""
        self._cluster = cluster
        self._judge = judge
        self._store = cluster.world.objects
        self._agenda = cluster.world.agenda
        self._node_ids = {machine.name: node_id for node_id, machine in cluster.machines.items()}
        self._rules = RemoteRules(judge.violated)
        self._effects = 0  # puts and deletes that were looked at
        self._finished: dict[_Folder, dict[str, SegmentSeen]] = {}
        self._seen: dict[Partition, _Seen] = {}
        self._committed: dict[PartitionKey, CommittedBatches] = {}
        self._floors: dict[PartitionKey, int] = {}  # the highest log start offset of all leaders
        self.counts: Counter[str] = Counter()
        """Events: ``copied`` and ``deleted`` segments, ``local deletion`` and ``started behind`` of replicas."""

    def turn_ended(self) -> None:
        """Looks at what a step has changed."""
        effects = self._store.counts["put"] + self._store.counts["delete"]
        if effects != self._effects:
            self._effects = effects
            self._look_at_store()
        brokers = self._cluster.brokers
        for name in self._agenda.ran:
            node_id = self._node_ids.get(name)
            if node_id in brokers:
                self._look_at_broker(node_id, brokers[node_id])

    def _look_at_broker(self, node_id: int, broker: Broker) -> None:
        """Compares a few numbers of each replica with those of the last look."""
        if not broker.is_built:
            return
        for partition in broker.context.replicas.partitions.values():
            storage = partition.log.storage
            now = (
                partition.replica.role,
                storage.log_start_offset,
                storage.segments.first_base_offset,
                storage.log_end_offset,
            )
            before = self._seen.get(partition)
            if before == now:
                continue
            self._seen[partition] = now
            is_same = before is not None and before[:3] == now[:3]
            if not is_same and partition.log.is_remote and not partition.log.failed:
                self._look_at_replica(node_id, partition, before)

    def _tiered(self, node_id: int) -> Iterator[Partition]:
        broker = self._cluster.brokers.get(node_id)
        if broker is None or not broker.is_built:
            return
        for partition in broker.context.replicas.partitions.values():
            if partition.log.is_remote and not partition.log.failed:
                yield partition

    def _batches(self, key: PartitionKey) -> CommittedBatches:
        found = self._committed.get(key)
        if found is None:
            found = self._committed[key] = CommittedBatches(self._judge.partition(key).committed)
        return found

    def finished(self, key: PartitionKey) -> list[SegmentSeen]:
        """Returns the finished segments of a partition, by base offset."""
        return sorted(self._finished.get((key.topic_id, key.partition), {}).values())

    def _is_deleted(self, key: PartitionKey) -> bool:
        """Returns whether the topic is deleted, by the newest metadata; brokers may have to learn of it yet."""
        images = [controller.machine.image for controller in self._cluster.controllers.values()]
        images += [broker.metadata.image for broker in self._cluster.brokers.values()]
        newest = max(images, key=lambda image: image.offset, default=None)
        return newest is not None and all(topic.topic_id.hex != key.topic_id for topic in newest.topics_by_id.values())

    # --- replicas

    def _look_at_replica(self, node_id: int, partition: Partition, before: _Seen | None) -> None:
        """The role of a replica, or the beginning of its log or of its files, is not what it was."""
        log = partition.log
        key = PartitionKey(partition.key.topic, partition.key.partition, partition.topic_id.hex)
        if partition.replica.is_leader:
            self._floors[key] = max(self._floors.get(key, 0), log.log_start_offset)
            if before is not None and before[1] < log.log_start_offset:
                size = self._retained_bytes(key, log)
                # A former leader may have counted its active segment whole, with records that were never committed.
                kept = log.config.retention_bytes - log.config.segment_bytes if log.config.delete else -1
                self._rules.log_start_moved(key, node_id, log.log_start_offset, size, kept)
        start = log.local_log_start_offset
        if start <= log.log_start_offset or self._is_deleted(key):
            return
        needed_from = max(log.log_start_offset, self._floors.get(key, 0))
        self._rules.lacks_locally(key, node_id, needed_from, start, self.finished(key), self._batches(key))
        if before is None or before[2] == start:
            return
        if start == log.log_end_offset and before[3] < start:
            self.counts["started behind"] += 1
            self._look_at_start(key, node_id, log)
        else:
            self.counts["local deletion"] += 1

    def _retained_bytes(self, key: PartitionKey, log: PartitionLog) -> int:
        """Returns the bytes of a log on its broker's disk and of the segments in the store before these."""
        size, batches = log.size_bytes, self._batches(key)
        position: int = log.log_start_offset
        named = self._finished.get((key.topic_id, key.partition), {})
        for segment, name in sorted((segment, name) for name, segment in named.items()):
            is_new = segment.last_offset >= position and segment.base_offset < log.local_log_start_offset
            if is_new and batches.belongs(segment):
                size += len(self._store.content(name))
                position = segment.last_offset + 1
        return size

    def _look_at_start(self, key: PartitionKey, node_id: int, log: PartitionLog) -> None:
        epochs = [(entry.leader_epoch, entry.start_offset) for entry in log.epochs.entries]
        entries = log.storage.producer_state.describe()
        producers = {each.producer_id: (each.producer_epoch, each.last_sequence) for each in entries}
        start = max(log.log_start_offset, self._floors.get(key, 0))
        self._rules.started(key, node_id, start, log.log_end_offset, epochs, producers, self._batches(key))

    # --- the store

    def _objects(self) -> dict[_Folder, list[StoredObject]]:
        """Returns all objects of partitions by folder, without a request that the store would count."""
        found: dict[_Folder, list[StoredObject]] = {}
        for name in self._store.names():
            parts = name.split("/")
            topic_id = topic_of(parts[1]) if len(parts) == 4 else None
            if topic_id is not None and parts[2].isdecimal():
                item = StoredObject(name, len(self._store.content(name)), 0)
                found.setdefault((topic_id.hex, int(parts[2])), []).append(item)
        return found

    def _look_at_store(self) -> None:
        keys = {(key.topic_id, key.partition): key for key in self._judge.partitions}
        objects = self._objects()
        shrunk: list[PartitionKey] = []
        for folder in {**objects, **self._finished}:
            before = self._finished.get(folder, {})
            items = objects.get(folder, [])
            prefix = items[0].name.rpartition("/")[0] if items else ""
            now = {
                f"{prefix}/{each.name}{LOG}": SegmentSeen(each.base_offset, each.last_offset, each.last_epoch)
                for each in segments_of(items).segments
            }
            self._finished[folder] = now
            key = keys.get(folder)
            if key is None:
                continue
            for name, segment in now.items():
                if name not in before:
                    self.counts["copied"] += 1
                    self._look_at_copy(key, name, segment)
            if before.keys() - now.keys():
                self.counts["deleted"] += len(before.keys() - now.keys())
                if not self._is_deleted(key):
                    shrunk.append(key)
        for key in shrunk:
            self._look_at_leader(key)

    def _look_at_copy(self, key: PartitionKey, name: str, segment: SegmentSeen) -> None:
        record = self._judge.partition(key)
        batches = list(batches_of(self._store.content(name)))
        life = next(each for each in reversed(self._store.lives) if each.name == name)
        end = max(record.end, record.watermark)
        self._rules.copied(key, life.put_by, segment, batches, self._batches(key), end)

    def _look_at_leader(self, key: PartitionKey) -> None:
        """Objects of a partition have left the store: what its newest leader lacks on its disk must still be there."""
        found: tuple[int, int, Partition] | None = None
        for node_id in self._cluster.broker_ids:
            for partition in self._tiered(node_id):
                if partition.topic_id.hex != key.topic_id or partition.key.partition != key.partition:
                    continue
                if partition.replica.is_leader and (found is None or partition.replica.state.leader_epoch > found[0]):
                    found = (partition.replica.state.leader_epoch, node_id, partition)
        if found is None:
            return
        _, node_id, partition = found
        log = partition.log
        self._floors[key] = max(self._floors.get(key, 0), log.log_start_offset)
        start = log.local_log_start_offset
        self._rules.left_store(key, node_id, self._floors[key], start, self.finished(key), self._batches(key))

    # --- the end

    async def wait_tidy(self, seconds: float) -> None:
        """Waits until the store holds nothing that is not needed; convicts if that takes longer than ``seconds``."""
        left: list[str] = []
        for _ in range(math.ceil(seconds / POLL_SECONDS)):
            left = self._untidy()
            if not left:
                return
            await trio.sleep(POLL_SECONDS)
        more = f" and {len(left) - SHOWN_MAX} more" if len(left) > SHOWN_MAX else ""
        shown = "; ".join(left[:SHOWN_MAX])
        self._judge.violated("remote-orphan", f"{seconds:g} s after all was healed the store has {shown}{more}")

    def _untidy(self) -> list[str]:
        """Returns what the store has and no log needs."""
        image = self._cluster.newest_image()
        if image is None:
            return ["what nothing can judge without an active controller"]
        topics = {topic.topic_id.hex: topic for topic in image.topics_by_name.values()}
        found: list[str] = []
        for (topic_id, number), items in self._objects().items():
            topic = topics.get(topic_id)
            if topic is None:
                found += [f"{item.name} of a deleted topic" for item in items]
                continue
            listing = segments_of(items)
            found += [f"{item.name}, which is unfinished" for item in listing.unfinished]
            leader = self._cluster.brokers.get(topic.partitions[number].leader)
            partition = None
            if leader is not None and leader.is_built:
                partition = leader.context.replicas.partitions.get((topic.name, number))
            if partition is None:
                found.append(f"{topic.name}-{number} without a leader")
                continue
            key = PartitionKey(topic.name, number, topic_id)
            past = [each for each in listing.proofs if each.end_offset <= partition.log.log_start_offset]
            found += [f"{key}: {each.name}, which a later one makes needless" for each in past[:-PROOFS_KEPT]]
            segments = [SegmentSeen(each.base_offset, each.last_offset, each.last_epoch) for each in listing.segments]
            found += [
                f"{key}: {text}" for text in unneeded(segments, partition.log.log_start_offset, self._batches(key))
            ]
        return found


def batches_of(data: bytes) -> Iterable[BatchSeen]:
    """Yields the batches of a segment's file, each with the CRC that its bytes have."""
    for position, header in iterate_batches(data):
        producer = ProducerBatch(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_sequence,
            bool(header.attributes & CONTROL_BIT),
        )
        crc = batch_crc(data, position, header)
        yield BatchSeen(header.base_offset, header.last_offset, header.partition_leader_epoch, crc, producer)
