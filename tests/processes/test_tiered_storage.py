"""Goal: records that only an object store has are read exactly once, also after kill -9 of the leader that copies them.

Method: real processes, once with a directory and once with a small S3 server. A librdkafka producer fills small
segments; the leader is killed while it copies. When the brokers' disks have only the end of the log, librdkafka reads
all from the beginning. At last the topic is deleted, and nothing of it is left in the store.
"""

import os
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from moldau import TopicPartition
from moldau.admin import EARLIEST, EARLIEST_LOCAL, LATEST
from moldau.blocking import Admin
from moldau_jepsen.testing import cluster
from support.interop.clients import WAIT_S, ConfluentClient, create_topic, wait_until
from support.objects.s3_server import s3_server
from support.objects.stores import keys_of

pytestmark = pytest.mark.processes

RECORDS = 300  # of each half
TOPIC = "tiered"
SETTINGS = {
    "remote.log.storage.system.enable": True,
    "remote.log.manager.task.interval.ms": 200,
    "log.retention.check.interval.ms": 300,
    "log.initial.task.delay.ms": 0,
    "log.segment.delete.delay.ms": 0,
    "min.insync.replicas": 1,
}
CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "16384",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}


@contextmanager
def directory(tmp_path):
    root = tmp_path / "store"
    root.mkdir()

    def objects():
        """Without temporary files: that of a killed broker goes when it is an hour old."""
        # Not `Path.rglob`, which fails if a folder is deleted while it is listed.
        return [name for _, _, names in os.walk(root) for name in names if "~" not in name]

    yield {"remote.log.storage.url": root.as_uri()}, objects


@contextmanager
def bucket(tmp_path):
    with s3_server() as server:
        yield {"remote.log.storage.url": "s3://bucket/prefix", **keys_of(server.url)}, lambda: list(server.objects)


@pytest.fixture(params=[directory, bucket], ids=["directory", "bucket"])
def store(request, tmp_path):
    """The keys of a store, and a function that returns the names of its objects."""
    with request.param(tmp_path) as found:
        yield found


def produce(bootstrap, values):
    """Appends in batches that are smaller than a segment, as they must be."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "batch.size": 8000})
    failures = []
    for value in values:
        producer.produce(TOPIC, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(WAIT_S) == 0
    assert failures == []


def values(half):
    return [b"%06d" % number + bytes(1000) for number in range(half * RECORDS, (half + 1) * RECORDS)]


def test_tiered_records_survive_a_killed_leader(store):
    keys, objects = store
    with cluster(brokers=2, controllers=1, links=False, settings={**SETTINGS, **keys}) as running:
        create_topic(running.bootstrap, TOPIC, 1, 2, configs=CONFIGS)
        produce(running.bootstrap, values(0))
        wait_until(objects, "a segment is copied")
        victim = running.partition_leader(TOPIC, 0)
        running.kill(victim)
        produce(running.bootstrap, values(1))
        running.start_node(victim)

        partition = TopicPartition(TOPIC, 0)
        with Admin({"bootstrap.servers": running.bootstrap}) as admin:

            def offset(time):
                return admin.list_offsets({partition: time})[partition][0]

            wait_until(lambda: offset(EARLIEST_LOCAL) > 2 * RECORDS - 50, "the disks have only the end of the log")
            assert offset(EARLIEST) == 0
            end = offset(LATEST)
            found = ConfluentClient(running.bootstrap).consume(TOPIC, 1, end)
            assert [value for _, _, _, value, _ in found] == values(0) + values(1)
            admin.delete_topics([TOPIC])
        wait_until(lambda: not objects(), "the store has nothing of the deleted topic")
