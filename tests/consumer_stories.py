"""A consumer and a small cluster on virtual time, for tests of what the consumer does."""

import trio

from client_fake_cluster import FakeCluster
from moldau import Consumer
from moldau.records import encode_batch
from moldau_jepsen.simulation.world import run_world


def simulate(scenario, seed=1, brokers=2):
    """Runs ``scenario(cluster, open_consumer)`` in a simulated world."""

    async def main(world):
        cluster = FakeCluster(world, brokers)
        cluster.start()
        environment = world.node("client").environment

        def consumer(callbacks=None, **config):
            given = {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest"}
            given |= {key.replace("_", "."): value for key, value in config.items()}
            return Consumer(given, environment=environment, **(callbacks or {}))

        return await scenario(cluster, consumer)

    return run_world(main, seed)


def fill(part, start, end, *, size=10, **options):
    """Appends the records ``start`` .. ``end`` in batches of ``size``; timestamp and value are the number."""
    for first in range(start, end, size):
        numbers = range(first, min(first + size, end))
        part.append(encode_batch([(number, None, b"%d" % number, ()) for number in numbers], **options))


async def take(consumer, count):
    """Polls until ``count`` values have come, in the order in which they came."""
    values = []
    with trio.fail_after(60):
        while len(values) < count:
            for batch in await consumer.poll(500):
                values += [record.value for record in batch.records]
    return values


def numbers(start, end):
    return [b"%d" % number for number in range(start, end)]
