"""Goal: records that a face has fetched ahead of its loop set no position and no commit in another cluster (KIP-1242).

Method: a small cluster on a real socket, which another one with other records replaces behind the same address.
"""

import asyncio
import contextlib

import pytest

from moldau import aio, blocking
from moldau.consumer import CommitFailedError
from support.client.socket_cluster import WAIT_S, cluster

GROUP = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": "false", "metadata.max.age.ms": "100"}


def filled(fake, name, count):
    """Makes the topic that of cluster ``name``, with new records, as a failover by DNS does."""
    fake.topics.clear()
    fake.add_topic("t")
    fake.cluster_id = name
    with blocking.Producer({"bootstrap.servers": fake.bootstrap}) as producer:
        for number in range(count):
            producer.send("t", b"%s%d" % (name.encode(), number)).result(1000 * WAIT_S)


class Blocking:
    """The blocking consumer, called as that for asyncio is."""

    def __init__(self, config):
        self._consumer = blocking.Consumer(config)

    async def __aenter__(self):
        self._consumer.__enter__()
        return self

    async def __aexit__(self, *error):
        self._consumer.__exit__(*error)

    def __getattr__(self, name):
        called = getattr(self._consumer, name)

        async def call(*args, **more):
            return called(*args, **more)

        return call if name in ("poll", "commit", "committed", "position") else called

    async def __anext__(self):
        return next(iter(self._consumer))


@contextlib.asynccontextmanager
async def moved(face):
    """A consumer that has read the first of five records, and whose address leads to another cluster since."""
    with cluster() as fake:
        filled(fake, "red", 5)
        async with face({"bootstrap.servers": fake.bootstrap, **GROUP}) as consumer:
            consumer.assign([("t", 0)])
            assert (await consumer.__anext__()).value == b"red0"
            assert consumer.position_nowait(("t", 0)) == 1
            await asyncio.to_thread(filled, fake, "blue", 9)
            async with asyncio.timeout(WAIT_S):
                while not consumer.clusters_left:  # noqa: ASYNC110 - the client has no event for it
                    await asyncio.sleep(0.02)
            yield consumer


@pytest.mark.parametrize("face", [Blocking, aio.Consumer])
def test_positions_do_not_go_to_another_cluster(face):
    async def main():
        async with moved(face) as consumer:
            values = []
            async with asyncio.timeout(WAIT_S):
                while not values:
                    values = [record.value for batch in await consumer.poll(1000) for record in batch.records]
            assert values[0] == b"blue0"

    asyncio.run(main())


@pytest.mark.parametrize("face", [Blocking, aio.Consumer])
def test_commits_do_not_go_to_another_cluster(face):
    async def main():
        async with moved(face) as consumer:
            assert await consumer.position(("t", 0)) == 0
            await consumer.commit()
            assert {each.offset for each in (await consumer.committed([("t", 0)])).values()} <= {0}
            assert {each.offset for each in consumer.offsets_to_commit().values()} <= {0}

    asyncio.run(main())


@pytest.mark.parametrize("face", [Blocking, aio.Consumer])
def test_offsets_that_name_their_cluster_hold_there_alone(face):
    async def main():
        async with moved(face) as consumer:
            assert await consumer.position(("t", 0)) == 0
            with pytest.raises(LookupError, match="gone to another cluster"):
                consumer.seek(("t", 0), 3, cluster=0)
            with pytest.raises(CommitFailedError, match="another cluster"):
                await consumer.commit({("t", 0): 3}, cluster=0)
            assert await consumer.position(("t", 0)) == 0
            assert await consumer.committed([("t", 0)]) == {}
            consumer.seek(("t", 0), 3, cluster=1)
            (batch,) = await consumer.poll(10_000)
            assert (batch.records[0].value, batch.cluster) == (b"blue3", 1)
            await consumer.commit({("t", 0): 3}, cluster=batch.cluster)
            assert (await consumer.committed([("t", 0)]))["t", 0].offset == 3

    asyncio.run(main())


async def send_blocking(config, change):
    with blocking.Producer(config) as producer:
        producer.send("t", b"before").result(1000 * WAIT_S)
        change()
        return [producer.send("t", b"%d" % number) for number in range(3)][-1].result(1000 * WAIT_S)


async def send_asyncio(config, change):
    async with aio.Producer(config) as producer:
        await (await producer.send("t", b"before"))
        await asyncio.to_thread(change)
        return await [await producer.send("t", b"%d" % number) for number in range(3)][-1]


@pytest.mark.parametrize("send", [send_blocking, send_asyncio])
def test_a_producer_goes_on_in_another_cluster(send):
    """Its numbers of records begin again there, and no record counts as a copy of another one."""
    with cluster() as fake:
        filled(fake, "red", 0)
        config = {"bootstrap.servers": fake.bootstrap, "metadata.max.age.ms": "100"}
        metadata = asyncio.run(send(config, lambda: filled(fake, "blue", 1)))
        (part,) = fake.topics["t"]
        assert metadata.offset == 3
        assert [record.value for record in part.records()] == [b"blue0", b"0", b"1", b"2"]
