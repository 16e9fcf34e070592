"""Goal: brokers that are short of file descriptors continue to serve their partitions.

Method: brokers on virtual disks that open a bounded number of files; a client makes them roll segments, create
partitions and accept connections until they refuse.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.runtime.tasks.exceptions import leaves
from moldau.values import BrokerId
from moldau_broker.log.errors import DescriptorsShortError
from moldau_broker.log.values import TopicPartition
from moldau_broker.server.replicas.log_changes import LogChanges
from moldau_jepsen.world.world import run_world
from support.cluster.broker_cluster import Cluster, batch, values_of

LIMIT = 256


def run_limited(scenario, *, brokers: int = 1, **settings) -> None:
    """Runs a scenario against brokers whose processes may have ``LIMIT`` descriptors."""

    async def main(world) -> None:
        cluster = Cluster(world, brokers=brokers, **settings)
        for broker_id in cluster.broker_ids:
            world.node(f"b{broker_id}").disk.profile.open_files_max = LIMIT
        await cluster.start()
        await scenario(cluster)
        assert world.failures == []
        for broker in cluster.running.values():
            assert broker.context.logs.offline_directories == []

    run_world(main, 1)


async def produce_all(client, topic: str, count: int) -> None:
    """Appends ``count`` batches, one segment each; retries a batch that the leader refused."""
    appended = 0
    with trio.fail_after(600):
        while appended < count:
            answer = await client.produce(topic, batch(b"%d" % appended, b"x" * 700))
            if answer.error_code == ErrorCode.NONE:
                appended += 1
            else:
                assert answer.error_code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)
                await trio.sleep(0.1)


def test_a_client_that_rolls_segments_kills_no_broker() -> None:
    """A leader and its followers roll twice as many segments as there are descriptors, faster than they sync."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("calm", replicas=3)
        await client.create_topic("t", replicas=3, segment_bytes="1024")
        calm = cluster.client(await cluster.leader("calm"))
        leader = cluster.client(await cluster.leader("t"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce_all, leader, "t", 2 * LIMIT)
            for _ in range(20):
                assert (await calm.produce("calm", batch(b"v"))).error_code == ErrorCode.NONE
                await trio.sleep(0.2)
        for index in range(0, 2 * LIMIT, 37):
            part = await leader.fetch("t", 2 * index)
            assert values_of(part.records)[0] == b"%d" % index
        for broker_id in cluster.broker_ids:
            log = cluster.replica(broker_id, "t").log
            assert log.storage.segments.count >= 2 * LIMIT
            assert cluster.world.node(f"b{broker_id}").environment.disk.open_files < LIMIT
        for each in (client, calm, leader):
            each.close()

    run_limited(scenario, brokers=3)


def test_connections_are_refused_before_files_are_short() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        assert (await client.produce("t", batch(b"v"))).error_code == ErrorCode.NONE
        opened = [await client.raw() for _ in range(LIMIT)]
        broker = cluster.running[1]
        await cluster.until(lambda: sum(server.refused for _, server in broker.listening.servers()) > LIMIT // 4)
        assert LIMIT // 4 < broker.listening.servers()[0][1].tally.total < LIMIT - broker.context.logs.files.kept
        await client.create_topic("later")
        assert (await client.produce("later", batch(b"v"))).error_code == ErrorCode.NONE
        for connection in opened:
            connection.close()
        client.close()

    run_limited(scenario)


def test_partitions_wait_for_descriptors() -> None:
    """A replica that cannot be created is offline; it is created when another topic is deleted."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("first", partitions=60)
        await client.create_topic("second", partitions=LIMIT - 60)
        logs = cluster.running[1].context.logs
        created = len(logs.logs)
        assert 60 < created < LIMIT
        last = LIMIT - 61
        assert cluster.replica(1, "second", last) is None
        assert (await client.produce("second", batch(b"v"), partition=last)).error_code in (
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
        assert (await client.produce("second", batch(b"v"), partition=0)).error_code == ErrorCode.NONE
        await client.request(
            DeleteTopicsRequest(topics=[DeleteTopicState(name="first")], topic_names=["first"], timeout_ms=10_000)
        )
        await cluster.until(lambda: len(logs.logs) > created - 60 + 20, timeout_ms=120_000)
        client.close()

    run_limited(scenario, replica_lag_time_max_ms="2000")


def test_a_postponed_replica_that_is_gone_is_not_created() -> None:
    """Its topic was deleted, or it was moved away, while descriptors were short."""
    key, topic_id = TopicPartition("t", 0), UUID(int=7)

    def short(*_: object, **__: object) -> None:
        raise DescriptorsShortError("/logs", "none is left")

    def nothing(*_: object, **__: object) -> None:
        """Does nothing."""

    logs: Any = SimpleNamespace(claim=nothing, get_or_create=short, has_room=True)
    directories: Any = SimpleNamespace(place=nothing, went_offline=nothing, reconcile=nothing)
    topics = {topic_id: SimpleNamespace(partitions={0: None})}
    owner: Any = SimpleNamespace(
        image=SimpleNamespace(topics_by_id=topics), topic_settings=nothing, directory_failed=nothing
    )
    clock: Any = SimpleNamespace(wall_ms=lambda: 0)
    changes = LogChanges(clock, BrokerId(1), logs, directories, owner)
    changes.create(key, topic_id, is_new=True)
    changes.step()
    assert changes.retry_postponed()
    changes.step()
    changes.withdraw(key, topic_id)
    assert not changes.retry_postponed()
    assert len(changes) == 0


def test_a_start_that_cannot_open_its_logs_says_so() -> None:
    limit = 20

    async def main(world) -> None:
        cluster = Cluster(world)
        await cluster.start()
        client = cluster.client(1)
        await client.create_topic("t", partitions=40)
        for index in range(40):
            assert (await client.produce("t", batch(b"v"), partition=index)).error_code == ErrorCode.NONE
        client.close()
        await cluster.stop(1)
        world.node("b1").disk.profile.open_files_max = limit
        cluster.start_broker(1)
        await cluster.until(lambda: world.failures)
        world.node("b1").disk.profile.open_files_max = 1 << 20
        ((_, failure),) = world.failures
        (cause,) = leaves(failure)
        assert f"a limit of {limit} open files: raise it" in str(cause)
        world.failures.clear()
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        assert len(cluster.running[1].context.logs.logs) >= 40

    run_world(main, 1)
