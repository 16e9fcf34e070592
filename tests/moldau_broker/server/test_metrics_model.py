"""Goal: the numbers that brokers export are those that follow from what was sent, read, killed and started again.

Method: three simulated brokers under a known load. Each number is compared with one that the test computes from the
records that it sent, or from the metadata; both sides share no code.
"""

import pytest
import trio

from moldau import Consumer, Producer
from moldau_broker.server.lifecycle.phases import BrokerState, Recovered, Recovering, state_of
from support.cluster.broker_cluster import run_cluster
from support.metrics_samples import scrape
from support.proof import proof_beyond

TOPICS = {"sent": 3, "again": 2}
TRAFFIC = "kafka_server_brokertopicmetrics_"
REPLICAS = "kafka_server_replicamanager_"


def summed(cluster, name):
    return sum(scrape(broker).get(name, 0.0) for broker in cluster.running.values())


def of_topic(cluster, name, topic):
    return summed(cluster, f'{TRAFFIC}{name}_total{{topic="{topic}"}}')


async def send(cluster, records):
    config = {"bootstrap.servers": "b1:9092,b2:9092,b3:9092", "acks": "all", "compression.type": "none"}
    async with Producer(config, environment=cluster.client_environment) as producer:
        for topic, partition, value in records:
            await producer.send(topic, value, partition=partition)
        await producer.flush()


async def read(cluster, topic, count):
    config = {"bootstrap.servers": "b1:9092", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    async with Consumer(config, environment=cluster.client_environment) as consumer:
        consumer.assign([(topic, number) for number in range(TOPICS[topic])])
        got = 0
        while got < count:
            got += sum(len(batch.records) for batch in await consumer.poll(500))
        assert got == count


def caught_up(cluster):
    """Whether every running replica has all records of its partition."""
    ends = {}
    for broker in cluster.running.values():
        for key, partition in broker.context.replicas.partitions.items():
            ends.setdefault(key, set()).add(partition.log.log_end_offset)
    return all(len(found) == 1 for found in ends.values())


def led_without(cluster, broker_id):
    """The partitions that have a replica on the broker, by the metadata."""
    return [
        part
        for topic in cluster.image().topics_by_name.values()
        for part in topic.partitions.values()
        if broker_id in part.replicas
    ]


@pytest.mark.parametrize("seed", proof_beyond(1, [1, 2]))
def test_exported_numbers_follow_from_the_load(seed):
    async def scenario(cluster):
        client = cluster.client(1)
        for topic, partitions in TOPICS.items():
            await client.create_topic(topic, partitions=partitions, replicas=3, **{"min.insync.replicas": "2"})
        records = [("sent", number % 3, bytes(20 + number)) for number in range(90)]
        records += [("again", number % 2, b"x" * 50) for number in range(40)]
        await send(cluster, records)
        await cluster.until(lambda: caught_up(cluster))
        for topic in TOPICS:
            count = sum(one == topic for one, _, _ in records)
            payload = sum(len(value) for one, _, value in records if one == topic)
            bytes_in = of_topic(cluster, "bytesin", topic)
            assert of_topic(cluster, "messagesin", topic) == count
            assert bytes_in > payload, "batches have headers"
            assert of_topic(cluster, "replicationbytesin", topic) == 2 * bytes_in, "two followers have all"
            assert of_topic(cluster, "replicationbytesout", topic) == 2 * bytes_in
            assert of_topic(cluster, "bytesout", topic) == 0, "no client has read"
            await read(cluster, topic, count)
            assert of_topic(cluster, "bytesout", topic) >= bytes_in
            assert of_topic(cluster, "failedproducerequests", topic) == 0
            for broker in cluster.running.values():
                samples = scrape(broker)
                ends = [
                    samples[f'kafka_log_log_logendoffset{{topic="{topic}",partition="{number}"}}']
                    for number in range(TOPICS[topic])
                ]
                assert sum(ends) == count
        total = sum(of_topic(cluster, "messagesin", topic) for topic in TOPICS)
        assert of_topic(cluster, "messagesin", "") >= total, "internal topics may have records too"

        partitions = sum(len(topic.partitions) for topic in cluster.image().topics_by_name.values())
        assert summed(cluster, REPLICAS + "leadercount") == partitions
        assert summed(cluster, REPLICAS + "partitioncount") == sum(
            len(part.replicas)
            for topic in cluster.image().topics_by_name.values()
            for part in topic.partitions.values()
        )
        assert summed(cluster, REPLICAS + "underreplicatedpartitions") == 0
        assert summed(cluster, "moldau_replica_lag_max") == 0

        cluster.kill(3)
        lacking = led_without(cluster, 3)
        wanted = len(lacking)
        await cluster.until(lambda: summed(cluster, REPLICAS + "underreplicatedpartitions") == wanted)
        at_min = sum(len(topic.partitions) for name, topic in cluster.image().topics_by_name.items() if name in TOPICS)
        await cluster.until(lambda: summed(cluster, REPLICAS + "atminisrpartitioncount") >= at_min)
        assert summed(cluster, REPLICAS + "underminisrpartitioncount") == 0
        assert summed(cluster, REPLICAS + "leadercount") == partitions
        await send(cluster, [("sent", 0, b"while one is down")])

        cluster.start_broker(3)
        await cluster.until(lambda: len(cluster.running) == 3)
        await cluster.until(lambda: summed(cluster, REPLICAS + "underreplicatedpartitions") == 0)
        await cluster.until(lambda: caught_up(cluster))
        await cluster.until(lambda: summed(cluster, REPLICAS + "isrexpands_total") >= wanted)
        assert summed(cluster, "moldau_broker_fenced") == 0
        with trio.fail_after(60):
            await read(cluster, "sent", 91)

    run_cluster(scenario, seed=seed, brokers=3)


PURGATORY = "kafka_server_delayedoperationpurgatory_"


def test_requests_that_wait_are_counted():
    """A Produce waits for two followers that are cut off, a Fetch of two partitions for records."""

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", partitions=1, replicas=3)
        leader = await cluster.leader("t")

        def waiting(name, kind="Produce"):
            return scrape(cluster.running[leader])[f'{PURGATORY}{name}{{delayedOperation="{kind}"}}']

        await cluster.until(lambda: waiting("numdelayedoperations", "Fetch") >= 2)
        assert waiting("purgatorysize", "Fetch") >= waiting("numdelayedoperations", "Fetch"), "the followers"
        assert waiting("numdelayedoperations") == 0
        for follower in {1, 2, 3} - {leader}:
            cluster.world.network.cut(f"b{leader}", f"b{follower}")
        config = {"bootstrap.servers": f"b{leader}:9092", "acks": "all", "batch.size": 1}
        async with trio.open_nursery() as nursery, Producer(config, environment=cluster.client_environment) as producer:
            for number in range(3):
                nursery.start_soon(_deliver, await producer.send("t", b"%d" % number, partition=0))
            await cluster.until(lambda: waiting("purgatorysize") >= 1)
            assert waiting("numdelayedoperations") == waiting("purgatorysize"), "one partition each"
            for follower in {1, 2, 3} - {leader}:
                cluster.world.network.heal(f"b{leader}", f"b{follower}")
        assert waiting("purgatorysize") == 0

    run_cluster(scenario, brokers=3)


async def _deliver(delivery):
    await delivery


def test_the_state_of_a_broker_has_kafkas_numbers():
    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", partitions=1, replicas=1)
        assert scrape(cluster.running[1])["kafka_server_kafkaserver_brokerstate"] == BrokerState.RUNNING == 3
        seen, broker = [], cluster.running[1]
        cluster.stops[1].set()
        while broker.state is not BrokerState.SHUTTING_DOWN:
            if broker.state not in seen:
                seen.append(broker.state)
            await trio.sleep(0.001)
        assert seen[-1] is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        assert [int(state) for state in (*seen, broker.state)] in ([3, 6, 7], [6, 7])

    run_cluster(scenario)


def test_phases_of_a_start_have_states():
    assert state_of(None, is_serving=False) is BrokerState.STARTING
    assert state_of(Recovering(logs=None), is_serving=False) is BrokerState.RECOVERY
    assert state_of(Recovered(logs=None), is_serving=False) is BrokerState.STARTING
    assert state_of(None, is_serving=True) is BrokerState.RUNNING
