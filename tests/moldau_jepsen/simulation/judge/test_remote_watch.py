"""Goal: the watch of tiered partitions reports what brokers and the store have, and spares deleted topics.

Method: a store with objects by hand, and a cluster of stubs with one replica.
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest

from moldau.records import encode_batch
from moldau_broker.remote_log.core.names import AUXILIARY, LOG, RemoteSegment, partition_folder
from moldau_broker.replication.replica import Role
from moldau_jepsen.simulation.judge.invariants import ClusterInvariants, PartitionKey
from moldau_jepsen.simulation.judge.remote_watch import RemoteWatch, batches_of
from moldau_jepsen.world.objects import SimulatedStore

TOPIC = uuid.UUID(int=77)
KEY = PartitionKey("tiered", 0, TOPIC.hex)
FOLDER = partition_folder("cluster", TOPIC, 0)


def batch(base, count, epoch=1):
    records = [(100, None, b"record %d" % number, ()) for number in range(count)]
    return encode_batch(records, base_offset=base, partition_leader_epoch=epoch)


FILES = [batch(0, 3) + batch(3, 2), batch(5, 4), batch(9, 1, 2)]
SEGMENTS = [
    RemoteSegment(base, last, epoch, 100, False, uuid.UUID(int=number), len(FILES[number]))
    for number, (base, last, epoch) in enumerate(((0, 4, 1), (5, 8, 1), (9, 9, 2)))
]


class World:
    """A cluster of one broker that leads the partition, and the store."""

    def __init__(self):
        clock = SimpleNamespace(now=1.0)
        self.store = SimulatedStore(SimpleNamespace(clock=clock), None, SimpleNamespace(event=lambda *_: None))
        self.log = SimpleNamespace(
            is_remote=True,
            failed=False,
            log_start_offset=0,
            local_log_start_offset=0,
            log_end_offset=10,
            size_bytes=1_000,
            config=SimpleNamespace(retention_bytes=-1, delete=True, segment_bytes=10),
            storage=SimpleNamespace(
                log_start_offset=0, log_end_offset=10, segments=SimpleNamespace(first_base_offset=0)
            ),
        )
        replica = SimpleNamespace(is_leader=True, role=Role.LEADER, state=SimpleNamespace(leader_epoch=2))
        partition = SimpleNamespace(
            log=self.log, replica=replica, topic_id=TOPIC, key=SimpleNamespace(topic="tiered", partition=0)
        )
        self.topic = SimpleNamespace(name="tiered", topic_id=TOPIC, partitions={0: SimpleNamespace(leader=1)})
        self.image = SimpleNamespace(offset=5, topics_by_name={"tiered": self.topic}, topics_by_id={TOPIC: self.topic})
        replicas = SimpleNamespace(partitions={("tiered", 0): _Hashable(partition)})
        broker = SimpleNamespace(
            is_built=True, context=SimpleNamespace(replicas=replicas), metadata=SimpleNamespace(image=self.image)
        )
        cluster = SimpleNamespace(
            world=SimpleNamespace(objects=self.store, agenda=SimpleNamespace(ran=["broker-1"])),
            machines={1: SimpleNamespace(name="broker-1")},
            brokers={1: broker},
            controllers={},
            broker_ids=[1],
            newest_image=lambda: self.image,
        )
        self.judge = ClusterInvariants(lambda: 1.0)
        record = self.judge.partition(KEY)
        for each in (found for data in FILES for found in batches_of(data)):
            record.committed[each.base_offset] = each
        record.end = record.watermark = 10
        self.watch = RemoteWatch(cluster, self.judge)

    def copy(self, number, data=None, suffixes=(AUXILIARY, LOG)):
        for suffix in suffixes:
            content = b"aux" if suffix == AUXILIARY else FILES[number] if data is None else data
            self.store.put("broker-1", f"{FOLDER}{SEGMENTS[number].name}{suffix}", content)
            self.watch.turn_ended()

    def delete(self, number):
        self.store.delete("broker-1", f"{FOLDER}{SEGMENTS[number].name}{LOG}")
        self.watch.turn_ended()

    def begin_locally_at(self, offset):
        self.log.local_log_start_offset = self.log.storage.segments.first_base_offset = offset
        self.watch.turn_ended()

    def drop_topic(self):
        self.image.topics_by_name.clear()
        self.image.topics_by_id.clear()

    @property
    def found(self):
        return [violation.invariant for violation in self.judge.violations]


class _Hashable(SimpleNamespace):
    def __init__(self, content):
        super().__init__(**vars(content))

    __hash__ = object.__hash__


def test_copies_and_deletions_in_order_are_acquitted():
    world = World()
    world.watch.turn_ended()
    world.copy(0)
    world.begin_locally_at(5)
    world.copy(1)
    world.begin_locally_at(9)
    world.log.log_start_offset = world.log.storage.log_start_offset = 5
    world.watch.turn_ended()
    world.delete(0)
    assert world.found == []
    assert world.watch.counts == {"copied": 2, "deleted": 1, "local deletion": 2}
    assert world.watch._untidy() == [f"{FOLDER}{SEGMENTS[0].name}{AUXILIARY}, which is unfinished"]


@pytest.mark.parametrize("suffixes", [(), (AUXILIARY,), (LOG,)])
def test_a_deletion_before_the_copy_is_finished_convicts(suffixes):
    world = World()
    world.watch.turn_ended()
    world.copy(0, suffixes=suffixes)
    world.begin_locally_at(5)
    assert world.found == ["local-range-copied"]


def test_a_segment_that_leaves_the_store_convicts():
    world = World()
    world.copy(0)
    world.begin_locally_at(5)
    world.delete(0)
    assert world.found == ["remote-range-kept"]


def test_a_deleted_topic_needs_nothing():
    world = World()
    world.copy(0)
    world.begin_locally_at(5)
    world.drop_topic()
    world.delete(0)
    world.begin_locally_at(9)
    assert world.found == []
    (left,) = world.watch._untidy()
    assert left.endswith(".aux of a deleted topic")


def test_a_copy_with_other_bytes_convicts():
    world = World()
    damaged = bytearray(FILES[0])
    damaged[-1] ^= 1
    world.copy(0, bytes(damaged))
    assert world.found == ["remote-copy-committed"]


def test_retention_counts_both_places():
    world = World()
    world.watch.turn_ended()
    world.copy(0)
    world.copy(1)
    world.begin_locally_at(9)
    world.log.config.retention_bytes = 1_010 + len(FILES[1])
    world.log.log_start_offset = world.log.storage.log_start_offset = 5
    world.watch.turn_ended()
    assert world.found == []
    world.log.log_start_offset = world.log.storage.log_start_offset = 9
    world.watch.turn_ended()
    assert world.found == ["retention-keeps"]
