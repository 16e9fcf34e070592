"""Goal: a client does not go on asking for a topic that is absent once no call and no record waits for it.

Method: a small cluster on virtual time, which counts the requests for metadata.
"""

import pytest
import trio

from moldau import KafkaError, Producer, TopicPartition
from moldau.admin import AdminError
from moldau.protocol.api import ApiKey
from moldau_jepsen.world.world import run_world
from support.client import admin_stories, consumer_stories
from support.client.fake_cluster import FakeCluster


async def asked_in_a_minute(cluster):
    before = len(cluster.requests)
    await trio.sleep(60)
    return sum(key == ApiKey.METADATA for _, key, _ in cluster.requests[before:])


def test_an_admin_client_forgets_a_topic_that_is_deleted():
    """It asked ten times a second for good, because it had listed offsets of the topic once."""

    async def scenario(cluster, admin):
        cluster.add_topic("gone", 1)
        wanted = {("gone", 0): -1}
        assert await admin.list_offsets(wanted) == {TopicPartition("gone", 0): (0, -1)}
        del cluster.topics["gone"]
        with pytest.raises(AdminError, match="gone"):
            await admin.within(5_000).list_offsets(wanted)
        assert await asked_in_a_minute(cluster) <= 1
        cluster.add_topic("gone", 1)
        assert await admin.list_offsets(wanted) == {TopicPartition("gone", 0): (0, -1)}

    admin_stories.simulate(scenario, {})


def test_a_consumer_forgets_a_topic_that_it_did_not_find():
    """With ``allow.auto.create.topics`` each request would create a topic again that was deleted."""

    async def scenario(cluster, open_consumer):
        cluster.add_topic("t")
        async with open_consumer(default_api_timeout_ms=3000) as consumer, trio.open_nursery() as nursery:
            consumer.assign([("t", 0)])
            with pytest.raises(trio.TooSlowError):
                await consumer.partitions_for("none")
            assert await asked_in_a_minute(cluster) <= 1

            async def create():
                await trio.sleep(2)
                cluster.add_topic("none", 4)

            nursery.start_soon(create)
            assert len(await consumer.partitions_for("none")) == 4

    consumer_stories.simulate(scenario)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_producer_forgets_a_topic_to_which_nothing_is_sent(is_deleted):
    """``metadata.max.idle.ms`` ended the requests for topics alone that the producer had found and not lost."""

    async def main(world):
        cluster = FakeCluster(world, 1)
        cluster.start()
        config = {"max.block.ms": 2000, "metadata.max.idle.ms": 5000}
        config |= {"request.timeout.ms": 1000, "delivery.timeout.ms": 3000, "bootstrap.servers": cluster.bootstrap}
        async with Producer(config, environment=world.node("client").environment) as producer:
            if is_deleted:
                cluster.add_topic("none", 1)
                await (await producer.send("none", b"1"))
                del cluster.topics["none"]
                with pytest.raises(KafkaError):
                    await (await producer.send("none", b"2"))
            with pytest.raises(KafkaError):
                await producer.send("none", b"3")
            await trio.sleep(10)
            assert await asked_in_a_minute(cluster) <= 1
            cluster.add_topic("none", 1)
            assert (await (await producer.send("none", b"4"))).offset == 0

    run_world(main, 1)
