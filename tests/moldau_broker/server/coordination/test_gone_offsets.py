"""Goal: groups of a topic that was deleted and recreated start over at once, whatever happened to the coordinator.

Method: Moldau's own clients against whole brokers in virtual time. The leader epoch of the former topic is raised above
that of the new one: a consumer waits for the leader of a committed offset's epoch, and that leader would never come.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from moldau import Consumer, Producer
from moldau.admin import Admin, NewTopic
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_broker.coordinator.runtime.partitioning import partition_for
from moldau_broker.server.coordination.internal_log import InternalTopicLog
from support.cluster.broker_cluster import batch, run_cluster
from support.proof import proof_beyond

OFFSETS_TOPIC = "__consumer_offsets"
PLAIN, TRANSACTIONAL = "plain", "transactional"
OFFSETS_PARTITIONS = 2
AT_ONCE_S = 10
"""Far less than ``default.api.timeout.ms``."""


def client(cluster, kind, **config):
    servers = ",".join(f"b{broker_id}:9092" for broker_id in cluster.broker_ids)
    given = {"bootstrap.servers": servers, **{key.replace("_", "."): value for key, value in config.items()}}
    return kind(given, environment=cluster.client_environment)


def reader(cluster, group: str) -> Consumer:
    return client(cluster, Consumer, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False)


async def written(cluster, count: int, text: str) -> None:
    async with client(cluster, Producer) as producer:
        for number in range(count):
            await (await producer.send("t", f"{text} {number}".encode(), partition=0))


async def first_value(cluster, group: str) -> bytes:
    """Returns the first value that a new member of the group reads."""
    async with reader(cluster, group) as consumer:
        consumer.subscribe(["t"])
        with trio.fail_after(AT_ONCE_S):
            while True:
                for batch in await consumer.poll(200):
                    return bytes(batch.records[0].value)


async def commit_all(cluster, producer: Producer) -> None:
    """Both groups read and commit all records; the transaction of the second one stays open."""
    async with reader(cluster, PLAIN) as consumer:
        consumer.subscribe(["t"])
        with trio.fail_after(30):
            while not await consumer.poll(200):
                pass
        await consumer.commit()
    await producer.init_transactions()
    async with reader(cluster, TRANSACTIONAL) as consumer:
        consumer.subscribe(["t"])
        offsets = {}
        with trio.fail_after(30):
            while not offsets:
                for batch in await consumer.poll(200):
                    offsets[batch.topic, batch.partition] = batch.records[-1].offset + 1
        producer.begin_transaction()
        await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())


async def raise_leader_epoch(cluster) -> None:
    """Stops and starts the leader until the partition has had several leader epochs."""
    while cluster.partition_image("t").leader_epoch < 4:
        leader = await cluster.leader("t")
        await cluster.stop(leader)
        await cluster.leader("t", other_than=leader)
        cluster.start_broker(leader)
        await cluster.until(lambda: len(cluster.running) == len(cluster.broker_ids))
        await cluster.until(lambda: len(cluster.partition_image("t").isr) == len(cluster.broker_ids))


async def is_clean(cluster) -> None:
    async with client(cluster, Admin) as admin:
        for group in (PLAIN, TRANSACTIONAL):
            assert await admin.list_group_offsets(group) == {}, group


async def coordinator_fails_over(cluster) -> None:
    for index in range(OFFSETS_PARTITIONS):
        leader = await cluster.leader(OFFSETS_TOPIC, index)
        cluster.kill(leader)
        await cluster.leader(OFFSETS_TOPIC, index, other_than=leader)
        cluster.start_broker(leader)
        await cluster.until(lambda: len(cluster.running) == len(cluster.broker_ids))
        await cluster.until(
            lambda index=index: len(cluster.partition_image(OFFSETS_TOPIC, index).isr) == len(cluster.broker_ids)
        )


async def everybody_restarts(cluster) -> None:
    for broker_id in cluster.broker_ids:
        cluster.kill(broker_id)
    for broker_id in cluster.broker_ids:
        cluster.start_broker(broker_id)
    await cluster.until(lambda: len(cluster.running) == len(cluster.broker_ids))
    for index in range(OFFSETS_PARTITIONS):
        await cluster.leader(OFFSETS_TOPIC, index)


async def made_again(cluster) -> None:
    async with client(cluster, Admin) as admin:
        former = cluster.image().topics_by_name.get("t").topic_id
        await admin.delete_topics(["t"])
        await admin.create_topics([NewTopic(name="t", partitions=1, replication_factor=len(cluster.broker_ids))])
        await cluster.until(
            lambda: all(
                "t" in broker.metadata.image.topics_by_name
                and broker.metadata.image.topics_by_name.get("t").topic_id != former
                for broker in cluster.running.values()
            )
        )


async def prepared(cluster, producer: Producer, *, commit: bool = True) -> None:
    """Creates the topic and the offsets of two groups, the second in a transaction that ends with ``commit``."""
    async with client(cluster, Admin) as admin:
        await admin.create_topics([NewTopic(name="t", partitions=1, replication_factor=len(cluster.broker_ids))])
    await written(cluster, 5, "former")
    await raise_leader_epoch(cluster)
    await written(cluster, 5, "former")
    await commit_all(cluster, producer)
    if commit:
        await producer.commit_transaction()


def transactional(cluster) -> Producer:
    return client(cluster, Producer, transactional_id="x")


@pytest.mark.parametrize("happens", proof_beyond(2, [None, coordinator_fails_over, everybody_restarts]))
def test_groups_of_a_recreated_topic_start_over_at_once(happens) -> None:
    async def scenario(cluster) -> None:
        async with transactional(cluster) as producer:
            await prepared(cluster, producer)
        async with client(cluster, Admin) as admin:
            for group in (PLAIN, TRANSACTIONAL):
                (offset,) = (await admin.list_group_offsets(group)).values()
                assert offset.offset > 0
        await made_again(cluster)
        await written(cluster, 20, "new")
        await is_clean(cluster)
        if happens is not None:
            await happens(cluster)
            await is_clean(cluster)
        for group in (PLAIN, TRANSACTIONAL):
            assert await first_value(cluster, group) == b"new 0"

    run_cluster(scenario, brokers=3)


def test_a_deletion_that_no_coordinator_saw() -> None:
    """The only replica of the groups' topic is down during the deletion."""

    async def scenario(cluster) -> None:
        async with transactional(cluster) as producer:
            await prepared(cluster, producer)
        away = await cluster.leader(OFFSETS_TOPIC)
        await cluster.stop(away)
        async with client(cluster, Admin) as admin:
            await admin.delete_topics(["t"])
            await admin.create_topics([NewTopic(name="t", partitions=1, replication_factor=2)])
        cluster.start_broker(away)
        await cluster.until(lambda: len(cluster.running) == len(cluster.broker_ids))
        await cluster.leader(OFFSETS_TOPIC)
        await written(cluster, 20, "new")
        await is_clean(cluster)
        for group in (PLAIN, TRANSACTIONAL):
            assert await first_value(cluster, group) == b"new 0"
        core = cluster.running[away].context.groups._shards[0].core
        assert core.offsets.group_ids() == [], "removed, and not only hidden"

    run_cluster(scenario, brokers=3, offsets_topic_replication_factor="1", offsets_topic_num_partitions="1")


def test_a_transaction_ending_after_its_topic_restores_nothing() -> None:
    """The end of a transaction after the deletion of its topic does not bring offsets back."""

    async def scenario(cluster) -> None:
        async with transactional(cluster) as producer:
            await prepared(cluster, producer, commit=False)
            await made_again(cluster)
            await written(cluster, 20, "new")
            await producer.commit_transaction()
        await is_clean(cluster)
        await coordinator_fails_over(cluster)
        await is_clean(cluster)
        for group in (PLAIN, TRANSACTIONAL):
            assert await first_value(cluster, group) == b"new 0"

    run_cluster(scenario, brokers=3)


def test_the_log_of_the_groups_has_the_tombstones() -> None:
    async def scenario(cluster) -> None:
        async with transactional(cluster) as producer:
            await prepared(cluster, producer)
        await made_again(cluster)
        for group in (PLAIN, TRANSACTIONAL):
            index = partition_for(group, OFFSETS_PARTITIONS)
            leader = await cluster.leader(OFFSETS_TOPIC, index)
            core = cluster.running[leader].context.groups._shards[index].core
            await cluster.until(lambda core=core, group=group: not core.offsets.committed(group))

    run_cluster(scenario, brokers=3)


def test_a_replaced_coordinator_writes_nothing() -> None:
    """A coordinator writes nothing once its metadata name another one.

    So no record names a topic that the metadata which elect the next coordinator do not contain yet.
    """
    written = []
    led = SimpleNamespace(is_leader=True, replica=SimpleNamespace(state=SimpleNamespace(leader_epoch=3)))
    replicas = SimpleNamespace(
        partitions={(OFFSETS_TOPIC, 0): led},
        append_now=lambda found, data, **_: written.append(data) or SimpleNamespace(next_offset=7),
    )
    newest = SimpleNamespace(leader_epoch=3)
    metadata = SimpleNamespace(partition=lambda topic, partition: newest)
    log = InternalTopicLog(OFFSETS_TOPIC, replicas, metadata)  # type: ignore[arg-type]
    assert log.append(0, 3, batch(b"first")) == 7
    newest.leader_epoch = 4
    with pytest.raises(KafkaError) as refused:
        log.append(0, 3, batch(b"second"))
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    newest = None
    with pytest.raises(KafkaError):
        log.append(0, 3, batch(b"third"))
    assert len(written) == 1
