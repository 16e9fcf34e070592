"""Goal: librdkafka's share consumers work with our brokers, alone and in one group with ours.

Method: real processes; the cluster of all clients.
"""

from __future__ import annotations

import asyncio
import time

import pytest
from confluent_kafka import AcknowledgeType as TheirType
from confluent_kafka import Producer, ShareConsumer

import moldau.aio
import moldau.blocking
from moldau import AcknowledgeType
from moldau.admin import ConfigAlteration, ConfigResource, ResourceType

pytestmark = pytest.mark.processes
LIMIT_S = 60


@pytest.fixture
def group(bootstrap, topic):
    """A fresh share group that begins with the first record."""
    name = f"share-{topic}"
    with moldau.blocking.Admin({"bootstrap.servers": bootstrap}) as admin:
        resource = ConfigResource(ResourceType.GROUP, name)
        admin.alter_configs({resource: [ConfigAlteration(name="share.auto.offset.reset", value="earliest")]})
    return name


def produce(bootstrap, topic, count):
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=number % 3)
    assert producer.flush(30) == 0


def theirs(bootstrap, group, **settings):
    config = {"bootstrap.servers": bootstrap, "group.id": group}
    return ShareConsumer(config | {key.replace("_", "."): value for key, value in settings.items()})


def polled(consumer, count):
    found = []
    until = time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} records"
        for message in consumer.poll(1.0):
            assert message.error() is None
            found.append(message)
    return found


def test_implicit_mode_of_librdkafka(bootstrap, topic, group):
    """Every record arrives once, and nothing is left for the next member."""
    produce(bootstrap, topic, 30)
    consumer = theirs(bootstrap, group)
    consumer.subscribe([topic])
    assert sorted(int(each.value()) for each in polled(consumer, 30)) == list(range(30))
    assert all(error is None for error in consumer.commit_sync().values())
    consumer.close()
    with moldau.blocking.ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group}) as ours:
        ours.subscribe([topic])
        assert ours.poll(3_000) == []


def test_explicit_mode_of_librdkafka(bootstrap, topic, group):
    """Released records come again, to our consumer, with a higher delivery count; rejected ones do not."""
    produce(bootstrap, topic, 9)
    consumer = theirs(bootstrap, group, share_acknowledgement_mode="explicit")
    consumer.subscribe([topic])
    seen = set()
    until = time.monotonic() + LIMIT_S
    while len(seen) < 9:
        assert time.monotonic() < until, seen
        for message in consumer.poll(1.0):
            number = int(message.value())
            seen.add(number)
            consumer.acknowledge(message, (TheirType.ACCEPT, TheirType.RELEASE, TheirType.REJECT)[number // 3])
    consumer.commit_sync()
    consumer.close()
    config = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    with moldau.blocking.ShareConsumer(config) as ours:
        ours.subscribe([topic])
        found = {}
        until = time.monotonic() + LIMIT_S
        while len(found) < 3:
            assert time.monotonic() < until, found
            for record in ours.poll(1_000):
                found[int(record.value)] = record.delivery_count
                ours.acknowledge(record, AcknowledgeType.ACCEPT)
        assert found.keys() == {3, 4, 5}
        assert min(found.values()) >= 2
        assert all(error is None for error in ours.commit().values())


def test_both_clients_share_a_group(bootstrap, topic, group):
    """Members of both clients together receive each record once."""
    config = {"bootstrap.servers": bootstrap, "group.id": group, "max.poll.records": "5"}
    their = theirs(bootstrap, group)
    their.subscribe([topic])
    seen = []
    with moldau.blocking.ShareConsumer(config | {"share.acquire.mode": "record_limit"}) as ours:
        ours.subscribe([topic])
        ours.poll(1_000)
        their.poll(1.0)
        until = time.monotonic() + LIMIT_S
        produce(bootstrap, topic, 60)
        while len(seen) < 60:
            assert time.monotonic() < until, f"{len(seen)} of 60 records"
            seen += [int(record.value) for record in ours.poll(200)]
            seen += [int(message.value()) for message in their.poll(0.2)]
        ours.commit()
    their.close()
    assert sorted(seen) == list(range(60))


def test_asyncio_face(bootstrap, topic, group):
    """The asyncio consumer polls, iterates, acknowledges and reports outcomes in the event loop."""
    produce(bootstrap, topic, 6)
    outcomes = []

    async def main():
        config = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
        loop = asyncio.get_running_loop()

        def note(partition, offsets, error):
            assert asyncio.get_running_loop() is loop
            outcomes.append((partition, offsets, error))

        async with moldau.aio.ShareConsumer(config, on_acknowledged=note) as consumer:
            consumer.subscribe([topic])
            seen = []
            async with asyncio.timeout(LIMIT_S):
                async for record in consumer:
                    seen.append(int(record.value))
                    consumer.acknowledge(record)
                    if len(seen) == 6:
                        break
                waiting = asyncio.ensure_future(consumer.poll(30_000))
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await consumer.commit()
            assert sorted(seen) == list(range(6))
        await asyncio.sleep(0)

    asyncio.run(main())
    assert sorted(offset for _, offsets, _ in outcomes for offset in offsets) == [0, 0, 0, 1, 1, 1]
    assert all(error is None for _, _, error in outcomes)
