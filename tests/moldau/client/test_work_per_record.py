"""Goal: a change that makes clients slower fails here, on any machine. Method: count work on virtual time, not seconds.

Python calls of the client's own packages and memory blocks are counted for plain records. Bounds are a little above the
counts of the day on which they were set. Plain-Python loops count their own work, so the extension must be there.
"""

import gc
import sys
from collections import Counter
from pathlib import Path

import pytest

from moldau import Producer
from moldau.records import IMPLEMENTATION
from moldau_jepsen.world.world import run_world
from support.client.consumer_stories import fill
from support.client.consumer_stories import simulate as simulate_consumer
from support.client.fake_cluster import FakeCluster, batch_count

pytestmark = pytest.mark.skipif(IMPLEMENTATION != "cython", reason="the extension was not built")

RECORDS = 4096
BATCHES_MAX = 14
"""Four partitions have 64 KiB batches of about 600 records, and a flush ends the last ones."""
COUNTED = tuple(f"/moldau/{package}/" for package in ("producer", "consumer", "cluster"))


class Calls:
    """Counts the calls of Python functions in the client's own packages, while it is open."""

    def __init__(self):
        self.by_function = Counter()

    def __enter__(self):
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, frame, event, argument):
        del argument
        path = frame.f_code.co_filename
        if event == "call" and any(package in path for package in COUNTED):
            self.by_function[f"{Path(path).name}:{frame.f_code.co_name}"] += 1

    def per_record(self, records=RECORDS):
        return sum(self.by_function.values()) / records


def produced(send, **config):
    """Runs ``send(producer)`` with a producer that has begun; returns the calls."""

    async def main(world):
        cluster = FakeCluster(world, 1)
        cluster.start()
        parts = cluster.add_topic("t", 4)
        given = {"bootstrap.servers": cluster.bootstrap} | config
        async with Producer(given, environment=world.node("client").environment) as producer:
            await producer.send("t", b"first")
            await producer.flush()
            with Calls() as calls:
                await send(producer)
                await producer.flush()
        assert sum(len(part.records()) for part in parts) == RECORDS + 1
        assert sum(map(batch_count, parts)) <= BATCHES_MAX
        return calls

    return run_world(main, 1)


@pytest.mark.parametrize(("key", "calls_max"), [(None, 1.5), (b"key", 1.4)])
def test_send_is_one_call_for_a_record(key, calls_max):
    async def send(producer):
        for _ in range(RECORDS):
            await producer.send("t", b"x" * 100, key)

    calls = produced(send, **{"batch.size": 65536})
    assert RECORDS <= calls.by_function["producer.py:send"] <= 1.1 * RECORDS
    assert calls.per_record() <= calls_max


def test_send_many_makes_no_call_for_a_record():
    async def send(producer):
        await producer.send_many("t", [b"x" * 100] * RECORDS)

    calls = produced(send, **{"batch.size": 65536})
    assert calls.per_record() <= 0.36


def test_delivery_is_one_block_of_memory():
    async def send(producer):
        kept = [None] * RECORDS
        value = b"x" * 100
        gc.collect()
        before = sys.getallocatedblocks()
        for number in range(RECORDS):
            kept[number] = producer.send_nowait("t", value)
        blocks.append((sys.getallocatedblocks() - before) / RECORDS)
        tracked.append(any(map(gc.is_tracked, kept[:10])))

    blocks, tracked = [], []
    produced(send, **{"batch.size": 65536})
    assert blocks[0] <= 1.2
    assert tracked[0] < 100, "the garbage collector visits few deliveries: those that began or filled a batch"


def consumed(read):
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, RECORDS, size=256)
        async with open_consumer() as consumer:
            consumer.assign([("t", 0)])
            await consumer.position(("t", 0))
            with Calls() as calls:
                assert await read(consumer) == RECORDS
        return calls

    return simulate_consumer(scenario)


def test_poll_makes_no_call_for_a_record():
    async def read(consumer):
        got = 0
        while got < RECORDS:
            got += sum(len(batch.records) for batch in await consumer.poll())
        return got

    calls = consumed(read)
    assert calls.per_record() <= 0.2


def test_iteration_is_few_calls_for_a_record():
    async def read(consumer):
        got = 0
        async for _ in consumer:
            got += 1
            if got == RECORDS:
                return got

    calls = consumed(read)
    assert calls.per_record() <= 16
