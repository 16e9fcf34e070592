"""Goal: what has ended leaves nothing behind in a node, so that one that runs for months does not grow.

Method: a broker and a controller on virtual time, with Moldau's own clients. Moldau's live objects are counted by type
after a first round, and after more rounds of the same work: what grows with the rounds must be known to be bounded.
"""

import gc
from collections import Counter

import trio

from moldau import Admin, Consumer, NewTopic, Producer
from support.cluster.broker_cluster import run_cluster

ROUNDS = 5
REST_S = 70
"""Longer than deleted files and ended sessions stay."""
BOUNDED = {
    "Entry": "the metadata log in memory, until a snapshot",
    "ProducerEntry": "until producer.id.expiration.ms",
    "BatchMetadata": "of such a producer",
    **dict.fromkeys(("_Instance", "Client", "Merged", "ClientSeries"), "metrics of a client, until it was silent"),
}


def live_objects():
    """Moldau's live objects by type."""
    for _ in range(2):
        gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    return Counter(kind for kind in kinds if str(kind.__module__).startswith("moldau"))


async def topics(config, environment, number):
    async with Admin(config, environment=environment) as admin:
        await admin.create_topics([NewTopic(f"t-{number}", 2, 1)])
        await admin.delete_topics([f"t-{number}"])


async def producers(config, environment, number):
    async with Producer(config, environment=environment) as producer:
        await (await producer.send("kept", b"value"))


async def transactions(config, environment, number):
    async with Producer({**config, "transactional.id": "one"}, environment=environment) as producer:
        await producer.init_transactions()
        for ends in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            await producer.send("kept", b"value")
            await ends()


async def members(config, environment, number):
    for protocol in ("classic", "consumer"):
        own = {**config, "group.id": f"group-{protocol}", "group.protocol": protocol}
        async with Consumer(own, environment=environment) as consumer:
            consumer.subscribe(["kept"])
            with trio.move_on_after(5):
                await consumer.poll()


def test_ended_work_leaves_no_objects():
    async def scenario(cluster):
        await cluster.client(1).create_topic("kept")
        await cluster.leader("kept")
        config = {"bootstrap.servers": "b1:9092"}

        async def rounds(numbers):
            for number in numbers:
                for work in (topics, producers, transactions, members):
                    await work(config, cluster.client_environment, number)
            await trio.sleep(REST_S)
            return live_objects()

        before, after = await rounds(range(ROUNDS)), await rounds(range(ROUNDS, 2 * ROUNDS))
        return {
            kind.__qualname__: more
            for kind, count in after.items()
            if (more := count - before[kind]) >= ROUNDS and kind.__name__ not in BOUNDED
        }

    grown, _ = run_cluster(scenario)
    assert not grown
