"""Goal: a leader that a late answer names (KIP-951) counts only for the topic that was asked about.

A topic that was deleted and created again begins with leader epoch 0. The epoch of its predecessor would be newer than
that of each leader to come. Method: scripted brokers in a simulated world; one of them holds an answer back.
"""

import pytest
import trio

from moldau import Consumer, Producer, TopicPartition
from moldau.cluster.metadata import NO_TOPIC_ID
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import fetch as f
from moldau.protocol.messages import produce as pr
from moldau.records import encode_batch
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

T0 = TopicPartition("t", 0)


class Cluster(FakeCluster):
    """Broker 1, which leads the topic in epoch 5, holds its first answer back: broker 2 leads in epoch 6."""

    def __init__(self, world):
        super().__init__(world, 3)
        self.released, self.is_held = trio.Event(), False
        (part,) = self.add_topic("t")
        part.epoch = 5
        self.topic_id = self.ids["t"]
        self.start()

    async def recreate(self):
        """Deletes the topic and creates it again, led by broker 3; returns its partition when clients know it."""
        (part,) = self.add_topic("t")
        part.leader = 3
        await trio.sleep(3)
        return part

    def hold(self, key, response):
        """Lets broker 1 hold its first answer to requests of a kind."""
        ordinary = getattr(self, f"on_{key.name.lower()}")

        async def wait():
            await self.released.wait()
            return response

        def handle(broker, request):
            if broker != 1 or self.is_held:
                return ordinary(broker, request)
            self.is_held = True
            return wait

        self.handlers[key] = handle


async def first_values(consumer):
    """The values of the first records that come; none if none come within a minute."""
    found = []
    with trio.move_on_after(60):
        while not found:
            found = [record.value for each in await consumer.poll(500) for record in each.records]
    return found


def test_a_consumer_reads_the_new_topic_of_a_name():
    async def main(world):
        cluster = Cluster(world)
        answer = f.PartitionData(
            partition_index=0,
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            current_leader=f.LeaderIdAndEpoch(leader_id=2, leader_epoch=6),
            records=b"",
        )
        topic = f.FetchableTopicResponse(topic_id=cluster.topic_id, partitions=[answer])
        cluster.hold(ApiKey.FETCH, f.FetchResponse(responses=[topic]))
        config = {"bootstrap.servers": cluster.bootstrap, "metadata.max.age.ms": 1000}
        async with Consumer(config, environment=world.node("client").environment) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 0)
            await consumer.poll(1000)
            assert cluster.is_held
            part = await cluster.recreate()
            cluster.released.set()
            await consumer.poll(1000)
            part.append(encode_batch([(1_000, None, b"new", ())]))
            assert await first_values(consumer) == [b"new"]

    run_world(main, 1)


def test_a_producer_asks_past_a_broker_that_lags_behind():
    """The client knows the new topic, the broker does not: up to version 12 it answers about the former one.

    The former leader's epoch counted, so that the client refused the leaders of the new topic until it was restarted.
    """

    async def main(world):
        cluster = Cluster(world)
        cluster.max_versions[ApiKey.PRODUCE] = 12
        (part,) = cluster.add_topic("t")  # created again; broker 1 leads it in epoch 0

        def of_the_former_topic(broker, request):
            part.leader, part.epoch = 3, 1
            if broker == 3:
                return cluster.on_produce(broker, request)
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            leader = pr.LeaderIdAndEpoch(leader_id=2, leader_epoch=6) if broker == 1 else pr.LeaderIdAndEpoch()
            answer = pr.PartitionProduceResponse(index=0, error_code=code, base_offset=-1, current_leader=leader)
            return pr.ProduceResponse(responses=[pr.TopicProduceResponse(name="t", partition_responses=[answer])])

        cluster.handlers[ApiKey.PRODUCE] = of_the_former_topic
        config = {"bootstrap.servers": cluster.bootstrap, "metadata.max.age.ms": 1000}
        async with Producer(config, environment=world.node("client").environment) as producer:
            delivery = await producer.send("t", b"new")
            with trio.fail_after(60):
                await delivery
        assert part.values() == [b"new"]

    run_world(main, 1)


def test_a_consumer_asks_past_a_broker_that_lags_behind():
    """As above, up to version 12 of Fetch."""

    async def main(world):
        cluster = Cluster(world)
        cluster.max_versions[ApiKey.FETCH] = 12
        (part,) = cluster.add_topic("t")  # created again; broker 1 leads it in epoch 0
        part.append(encode_batch([(1_000, None, b"new", ())]))

        def of_the_former_topic(broker, request):
            part.leader, part.epoch = 3, 1
            if broker == 3:
                return cluster.on_fetch(broker, request)
            leader = f.LeaderIdAndEpoch(leader_id=2, leader_epoch=6) if broker == 1 else f.LeaderIdAndEpoch()
            answer = f.PartitionData(
                partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=leader, records=b""
            )
            return f.FetchResponse(responses=[f.FetchableTopicResponse(topic="t", partitions=[answer])])

        cluster.handlers[ApiKey.FETCH] = of_the_former_topic
        config = {"bootstrap.servers": cluster.bootstrap, "metadata.max.age.ms": 1000}
        async with Consumer(config, environment=world.node("client").environment) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 0)
            assert await first_values(consumer) == [b"new"]

    run_world(main, 1)


@pytest.mark.parametrize("version", [11, 13])
def test_a_producer_writes_to_the_new_topic_of_a_name(version):
    """Up to version 12 of Produce, requests and answers hold no topic ids."""

    async def main(world):
        cluster = Cluster(world)
        cluster.max_versions[ApiKey.PRODUCE] = version
        answer = pr.PartitionProduceResponse(
            index=0,
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            base_offset=-1,
            current_leader=pr.LeaderIdAndEpoch(leader_id=2, leader_epoch=6),
        )
        topic_id = cluster.topic_id if version > 12 else NO_TOPIC_ID
        topic = pr.TopicProduceResponse(
            name="" if version > 12 else "t", topic_id=topic_id, partition_responses=[answer]
        )
        cluster.hold(ApiKey.PRODUCE, pr.ProduceResponse(responses=[topic]))
        config = {"bootstrap.servers": cluster.bootstrap, "metadata.max.age.ms": 1000}
        async with Producer(config, environment=world.node("client").environment) as producer:
            delivery = await producer.send("t", b"new")
            await trio.sleep(1)
            assert cluster.is_held
            part = await cluster.recreate()
            cluster.released.set()
            with trio.fail_after(60):
                await delivery
            assert part.values() == [b"new"]

    run_world(main, 1)
