"""Whole record batches from a consumer to a producer: nothing is decoded, only the producer's fields change."""

import pytest
import trio

from moldau import Consumer, KafkaError, Producer
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.records import (
    Compression,
    InvalidRecordError,
    encode_batch,
    iterate_batches,
    parse_batch_header,
    renew_crc,
    set_max_timestamp,
)
from moldau.records.batch import TimestampType
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

T0 = ("t", 0)
HEADERS = (("h", b"1"), ("h", None))


def simulate(scenario, seed=1):
    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.start()
        environment = world.node("client").environment
        given = {"bootstrap.servers": cluster.bootstrap}

        def producer(**config):
            return Producer(given | {k.replace("_", "."): v for k, v in config.items()}, environment=environment)

        consumer = Consumer(given | {"auto.offset.reset": "earliest"}, environment=environment)
        return await scenario(cluster, consumer, producer)

    return run_world(main, seed)


def records(first, count):
    return [(1_000 + n, b"k%d" % n, b"v%d" % n * 20, HEADERS) for n in range(first, first + count)]


async def take(consumer, count, **limits):
    """Polls until batches with ``count`` records have come."""
    found = []
    with trio.fail_after(60):
        while sum(each.header.record_count for each in found) < count:
            for part in await consumer.poll_encoded(**limits):
                assert part.topic_partition == T0
                found += part.batches
    return found


def test_batches_pass_with_their_compression():
    async def scenario(cluster, consumer, open_producer):
        (source,) = cluster.add_topic("t")
        (target,) = cluster.add_topic("copy")
        codecs = [Compression.NONE, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY, Compression.GZIP]
        for number, codec in enumerate(codecs):
            fields = {"compression": codec, "producer_id": 77, "producer_epoch": 3, "base_sequence": number * 10}
            assert source.append(encode_batch(records(number * 10, 10), **fields)) == (ErrorCode.NONE, number * 10)
        async with consumer, open_producer() as producer:
            consumer.assign([T0])
            batches = await take(consumer, 50)
            offsets = [await (await producer.send_encoded("copy", 0, each.data)) for each in batches]
        assert [each.offset for each in offsets] == [0, 10, 20, 30, 40]
        assert target.records() == source.records()
        written = [header for _, header in iterate_batches(target.read(0, 1 << 20))]
        assert len({header.producer_id for header in written}) == 1
        assert [header.compression for header in written] == codecs
        assert {header.producer_id for header in written}.isdisjoint({77, -1})
        assert [header.base_sequence for header in written] == [0, 10, 20, 30, 40]

    simulate(scenario)


def test_batches_and_records_keep_their_order():
    """A record that follows a batch begins a batch of its own, and a retried batch keeps its place."""

    async def scenario(cluster, consumer, open_producer):
        (target,) = cluster.add_topic("copy")
        async with open_producer() as producer:
            await producer.send("copy", b"first", partition=0)
            cluster.fail_next(ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            await producer.send_encoded("copy", 0, encode_batch(records(0, 3)))
            await producer.send("copy", b"last", partition=0)
            await producer.flush()
        assert target.values() == [b"first", *[value for _, _, value, _ in records(0, 3)], b"last"]

    simulate(scenario)


def test_a_position_inside_a_batch_is_reported():
    async def scenario(cluster, consumer, open_producer):
        (source,) = cluster.add_topic("t")
        source.append(encode_batch(records(0, 10)))
        async with consumer:
            consumer.assign([T0])
            consumer.seek(T0, 4)
            (batch,) = await take(consumer, 10)
            assert (batch.header.base_offset, batch.first_offset) == (0, 4)
            consumer.seek(T0, 0)
            assert len((await consumer.poll(max_records=3))[0].records) == 3
            (again,) = await take(consumer, 10)
            assert again.first_offset == 3
            assert consumer.position_nowait(T0) == 10

    simulate(scenario)


def test_the_size_of_a_result_is_bounded():
    async def scenario(cluster, consumer, open_producer):
        (source,) = cluster.add_topic("t")
        for number in range(20):
            source.append(encode_batch(records(number, 1)))
        async with consumer:
            consumer.assign([T0])
            (part,) = await consumer.poll_encoded(max_bytes=1)
            assert len(part.batches) == 1
            assert part.next_offset == 1

    simulate(scenario)


def bad_batches():
    whole = encode_batch(records(0, 3))
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    stamped = bytearray(whole)
    set_max_timestamp(stamped, 0, 5, TimestampType.LOG_APPEND_TIME)
    return {
        "too short": b"x" * 10,
        "cut": whole[:-1],
        "two": whole + whole,
        "damaged": bytes(damaged),
        "a marker": encode_batch(records(0, 1), is_control=True),
        "a broker's times": bytes(stamped),
    }


@pytest.mark.parametrize("kind", bad_batches())
def test_a_producer_refuses_what_is_no_batch(kind):
    async def scenario(cluster, consumer, open_producer):
        (target,) = cluster.add_topic("copy")
        async with open_producer() as producer:
            with pytest.raises(InvalidRecordError):
                await producer.send_encoded("copy", 0, bad_batches()[kind])
            with pytest.raises(ValueError, match="partition"):
                await producer.send_encoded("copy", -1, encode_batch(records(0, 1)))
        assert target.records() == []

    simulate(scenario)


def test_gaps_and_too_large_batches_are_refused():
    async def scenario(cluster, consumer, open_producer):
        cluster.add_topic("copy")
        batch = bytearray(encode_batch(records(0, 3)))
        batch[23:27] = (5).to_bytes(4, "big")  # the last offset delta, as compaction leaves it
        renew_crc(batch, 0)
        assert parse_batch_header(batch).last_offset_delta == 5
        async with open_producer(buffer_memory=1000, batch_size=500) as producer:
            with pytest.raises(InvalidRecordError, match="3 records over 6 offsets"):
                await producer.send_encoded("copy", 0, batch)
            with pytest.raises(KafkaError, match=r"exceeds buffer\.memory") as caught:
                await producer.send_encoded("copy", 0, encode_batch([(1, None, b"x" * 2000, ())]))
            assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE

    simulate(scenario)


def test_full_memory_makes_batches_wait():
    async def scenario(cluster, consumer, open_producer):
        (target,) = cluster.add_topic("copy")
        async with open_producer(batch_size=500, buffer_memory=2000) as producer:
            with trio.fail_after(60):
                for number in range(30):
                    await producer.send_encoded("copy", 0, encode_batch(records(number * 5, 5)))
                    assert producer.pending_bytes <= 2000
        assert [record.value for record in target.records()] == [value for _, _, value, _ in records(0, 150)]

    simulate(scenario)
