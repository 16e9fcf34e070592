"""Measures how fast a mirror copies one partition between two clusters of one broker each.

    python -m benchmarks.mirror [--records N] [--rounds R] [--json]

- whole: batches pass without being decoded (default policy, at least once)
- exactly once: the same, in transactions
- encoded again: the identity policy adds a header to each record, so batches are decoded, encoded and compressed
- record by record: a loop of ``Consumer.poll`` and ``Producer.send``, without a mirror, for comparison

Records have 100 bytes, in batches of 64 KiB compressed with lz4. Both clusters and the mirror share this machine's
cores, so only the ratios of one round count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import trio

from moldau import Admin, Consumer, Producer, TopicPartition
from moldau.admin import NewTopic
from moldau.mirror.core.settings import parse_settings
from moldau.mirror.mirror import Mirror
from moldau.runtime.ports.real import real_environment
from moldau_jepsen.testing import cluster

WAYS = ("whole", "exactly once", "encoded again", "record by record")
SOURCE = {"batch.size": 64 * 1024, "linger.ms": 20, "compression.type": "lz4"}
TIMEOUT_S = 300.0
SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


async def fill(bootstrap: str, topic: str, count: int) -> None:
    """Creates the topic and produces its records."""
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    async with Producer({"bootstrap.servers": bootstrap, **SOURCE}) as producer:
        for number in range(count):
            await producer.send(topic, b"%020d" % number * 5, key=b"%d" % number, partition=0)


async def mirrored(source: str, target: str, topic: str, count: int, way: str) -> float:
    """Returns the seconds from the first to the last record that the target acknowledged."""
    policy = "IdentityReplicationPolicy" if way == "encoded again" else "DefaultReplicationPolicy"
    mode = "enabled" if way == "exactly once" else "disabled"
    text = f"""target = "t"
topics = ["{topic}"]
name = "{topic}"
"allow.cycles" = true
"heartbeats.replication.enabled" = false
"replication.policy.class" = "{policy}"
"exactly.once.source.support" = "{mode}"
[clusters.t]
"bootstrap.servers" = "{target}"
[clusters.s]
"bootstrap.servers" = "{source}"
[sources.s]
"""
    mirror = Mirror(real_environment(), parse_settings(text, "benchmark.toml"))
    (numbers,) = mirror.statistics
    begun = 0.0
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mirror.run)
            while numbers.records < count:
                await trio.sleep(0.002)
                if not begun and numbers.is_running:
                    begun = time.perf_counter()
            seconds = time.perf_counter() - begun
            mirror.stop.set()
    return seconds


async def copied(source: str, target: str, topic: str, count: int) -> float:
    """Returns the seconds that a loop over single records takes."""
    async with Admin({"bootstrap.servers": target}) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    async with (
        Consumer({"bootstrap.servers": source}) as consumer,
        Producer({"bootstrap.servers": target, **SOURCE}) as producer,
    ):
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        await producer.partitions_for(topic)
        begun, done = time.perf_counter(), 0
        with trio.fail_after(TIMEOUT_S):
            while done < count:
                for batch in await consumer.poll(1000, 5000):
                    for each in batch.records:
                        await producer.send(
                            topic,
                            each.value,
                            each.key,
                            headers=each.headers,
                            partition=batch.partition,
                            timestamp=each.timestamp,
                        )
                    done += len(batch.records)
            await producer.flush()
        return time.perf_counter() - begun


async def rounds(source: str, target: str, count: int, repetitions: int) -> dict[str, float]:
    """Returns the median of records a second of each way."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(repetitions):
        for index, way in enumerate(WAYS):
            topic = f"load-{number}-{index}"
            await fill(source, topic, count)
            seconds = (
                await copied(source, target, topic, count)
                if way == "record by record"
                else await mirrored(source, target, topic, count, way)
            )
            found[way].append(count / seconds)
    return {way: statistics.median(rates) for way, rates in found.items()}


def main() -> None:
    """Runs the benchmark and prints records a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with (
        cluster(brokers=1, controllers=1, settings=SETTINGS, links=False) as source,
        cluster(brokers=1, controllers=1, settings=SETTINGS, links=False) as target,
    ):
        found = trio.run(rounds, source.bootstrap, target.bootstrap, given.records, given.rounds)
    if given.json:
        print(json.dumps(found))
        return
    for way, rate in found.items():
        print(f"{way:20} {rate:12,.0f} records/s")


if __name__ == "__main__":
    main()
