"""Goal: a record whose topic goes while it waits fails, or is sent, as one that waits for metadata, and only once.

Method: a producer on virtual time. Records of a partition without a leader fill its memory; then the other topic goes.
Or a broker holds its answer back until metadata lack the topic.
"""

import pytest
import trio

from moldau import ErrorCode, KafkaError, Producer
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.metadata import MetadataResponseTopic
from moldau.records import encode_batch
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

SENDS = {
    "record": lambda producer: producer.send("t", b"row" * 300, partition=0),
    "batch": lambda producer: producer.send_encoded("t", 0, encode_batch([(1, None, b"row" * 300, ())])),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
@pytest.mark.parametrize("returns", [False, True])
def test_a_topic_that_goes_during_a_wait_for_memory(send, returns):
    async def main(world):
        cluster = FakeCluster(world, 1)
        cluster.start()
        cluster.add_topic("t")
        (full,) = cluster.add_topic("full")
        config = {"buffer.memory": 3000, "batch.size": 1000, "max.block.ms": 5000, "linger.ms": 0}
        outcomes = []

        async def sends(producer):
            began = trio.current_time()
            try:
                outcomes.append(await send(producer))
            except KafkaError as error:
                outcomes.append((error.code, round(trio.current_time() - began)))

        environment = world.node("client").environment
        async with Producer({"bootstrap.servers": cluster.bootstrap, **config}, environment=environment) as producer:
            await producer.partitions_for("t")
            await producer.partitions_for("full")
            full.leader = -1
            for _ in range(3):
                await producer.send("full", b"x" * 900)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sends, producer)
                await trio.sleep(0.5)
                topics = cluster.topics.pop("t")
                await trio.sleep(1)
                cluster.move("full", 0, 1)
                await trio.sleep(1)
                if returns:
                    cluster.topics["t"] = topics
            await producer.flush()
        return outcomes, len(topics[0].values())

    outcomes, written = run_world(main, 1)
    assert written == returns
    if not returns:
        assert outcomes == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 5)]


@pytest.mark.parametrize("version", [12, 13])
def test_an_answer_counts_though_metadata_lack_its_topic(version):
    """A broker that lags behind does not know the topic for a moment. From version 13 on, answers hold ids alone."""

    async def main(world):
        cluster = FakeCluster(world, 1)
        cluster.max_versions[ApiKey.PRODUCE] = version
        (part,) = cluster.add_topic("t")
        cluster.start()
        released = trio.Event()

        def produce(broker, request):
            answer = cluster.on_produce(broker, request)

            async def wait():
                await released.wait()
                return answer

            return wait

        def metadata(broker, request):
            answer = cluster.on_metadata(broker, request)
            if part.values() and not released.is_set():
                answer.topics = [MetadataResponseTopic(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
            return answer

        cluster.handlers = {ApiKey.PRODUCE: produce, ApiKey.METADATA: metadata}
        config = {"metadata.max.age.ms": 1000, "enable.idempotence": False, "acks": "1"}
        environment = world.node("client").environment
        async with Producer({"bootstrap.servers": cluster.bootstrap, **config}, environment=environment) as producer:
            delivery = await producer.send("t", b"once")
            await trio.sleep(3)
            released.set()
            with trio.fail_after(60):
                written = await delivery
        assert (written.offset, part.values()) == (0, [b"once"])

    run_world(main, 1)
