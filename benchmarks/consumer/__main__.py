"""Measures how fast a consumer reads partitions of unequal load, beside its peers on the same broker.

    python -m benchmarks.consumer [--records N] [--idle 0,1,9,99] [--rounds R] [--json] [--output DIR]

- busy and idle: one partition holds all records, the others of the same leader hold none
- skewed: eight partitions of one leader; each holds half as many records as the one before, and values of 10 B to 10 kB
  turn, so that some answers are full of small records and others hold a few large ones

The clients are Moldau's consumers for trio, threads and asyncio, librdkafka through confluent-kafka, and aiokafka.
One at a time is in the process, assigned by hand, starts at the first offset and ends with the last record. The
application looks at each value and takes 500 records a poll, so that it, and not the fetching, sets the pace.
Processor time, per record, is that of all threads of the process, from opening to closing. Broker and clients share
this machine's cores: what counts is the ratio to librdkafka in the same round. ``--output`` writes the table and a
bar chart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING

import aiokafka
import confluent_kafka
import trio
from benchmarks.client import results

import moldau.aio
import moldau.blocking
from moldau import Admin, Consumer, Producer
from moldau.admin import NewTopic
from moldau_jepsen.testing import cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

SKEWED_PARTITIONS = 8
SKEWED_BYTES = (100, 10, 1000, 100, 10_000, 10, 100, 1000)
VALUE_BYTES = 100
POLL_RECORDS = 500
"""The most that one poll of both clients returns: the default of Moldau's and of the Java client."""
READ_TIMEOUT_S = 120.0


async def fill(bootstrap: str, topic: str, partitions: int, records: Mapping[int, tuple[int, int]]) -> None:
    """Makes the topic; ``records`` gives number and size of the values of each partition that has any."""
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        await admin.create_topics([NewTopic(name=topic, partitions=partitions, replication_factor=1)])
    async with Producer({"bootstrap.servers": bootstrap, "batch.size": 64 * 1024, "linger.ms": 20}) as producer:
        for partition, (count, size) in records.items():
            value = b"x" * size
            for _ in range(count):
                await producer.send(topic, value, partition=partition)
        await producer.flush()


CONFIG = {"auto.offset.reset": "earliest", "enable.auto.commit": False}


async def _drain(consumer: Consumer | moldau.aio.Consumer, topic: str, records: Mapping[int, int]) -> float:
    """Reads as many records of each partition as ``records`` says; returns the seconds that it took."""
    wanted, got, size = sum(records.values()), 0, 0
    consumer.assign([(topic, partition) for partition in records])
    begin = time.perf_counter()
    while got < wanted:
        for batch in await consumer.poll(1000):
            for record in batch.records:
                size += len(record.value or b"")
            got += len(batch.records)
    return time.perf_counter() - begin


async def _read(bootstrap: str, topic: str, records: Mapping[int, int]) -> float:
    async with Consumer({"bootstrap.servers": bootstrap, **CONFIG}) as consumer:
        with trio.fail_after(READ_TIMEOUT_S):
            return await _drain(consumer, topic, records)


def read_moldau(bootstrap: str, topic: str, records: Mapping[int, int]) -> float:
    """Seconds that Moldau's own consumer takes."""
    return trio.run(_read, bootstrap, topic, records)


def read_librdkafka(bootstrap: str, topic: str, records: Mapping[int, int]) -> float:
    """Seconds that librdkafka takes through confluent-kafka."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    wanted, got, size = sum(records.values()), 0, 0
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in records])
        begin = time.perf_counter()
        while got < wanted:
            messages = consumer.consume(min(POLL_RECORDS, wanted - got), 1.0)
            if messages and (error := messages[0].error()):
                raise RuntimeError(f"reading failed: {error}")
            for message in messages:
                size += len(message.value() or b"")
            got += len(messages)
            if time.perf_counter() - begin > READ_TIMEOUT_S:
                raise TimeoutError(f"{got} of {wanted} records came in {READ_TIMEOUT_S:g} s")
        return time.perf_counter() - begin
    finally:
        consumer.close()


def read_blocking(bootstrap: str, topic: str, records: Mapping[int, int]) -> float:
    """Seconds that Moldau's consumer for threads takes."""
    wanted, got, size = sum(records.values()), 0, 0
    with moldau.blocking.Consumer({"bootstrap.servers": bootstrap, **CONFIG}) as consumer:
        consumer.assign([(topic, partition) for partition in records])
        begin = time.perf_counter()
        while got < wanted:
            for batch in consumer.poll(1000):
                for record in batch.records:
                    size += len(record.value or b"")
                got += len(batch.records)
            if time.perf_counter() - begin > READ_TIMEOUT_S:
                raise TimeoutError(f"{got} of {wanted} records came in {READ_TIMEOUT_S:g} s")
        return time.perf_counter() - begin


async def _read_aio(bootstrap: str, topic: str, records: Mapping[int, int]) -> float:
    async with moldau.aio.Consumer({"bootstrap.servers": bootstrap, **CONFIG}) as consumer:
        return await _drain(consumer, topic, records)


def read_aio(bootstrap: str, topic: str, records: Mapping[int, int]) -> float:
    """Seconds that Moldau's consumer for asyncio takes."""
    return asyncio.run(asyncio.wait_for(_read_aio(bootstrap, topic, records), READ_TIMEOUT_S))


async def _read_aiokafka(bootstrap: str, topic: str, records: Mapping[int, int]) -> float:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    wanted, got, size = sum(records.values()), 0, 0
    async with consumer:
        consumer.assign([aiokafka.TopicPartition(topic, partition) for partition in records])
        begin = time.perf_counter()
        while got < wanted:
            for messages in (await consumer.getmany(timeout_ms=1000, max_records=POLL_RECORDS)).values():
                for message in messages:
                    size += len(message.value or b"")
                got += len(messages)
        return time.perf_counter() - begin


def read_aiokafka(bootstrap: str, topic: str, records: Mapping[int, int]) -> float:
    """Seconds that aiokafka takes."""
    return asyncio.run(asyncio.wait_for(_read_aiokafka(bootstrap, topic, records), READ_TIMEOUT_S))


CLIENTS = {
    "moldau": read_moldau,
    "moldau.blocking": read_blocking,
    "moldau.aio": read_aio,
    "librdkafka": read_librdkafka,
    "aiokafka": read_aiokafka,
}


def measure(bootstrap: str, topic: str, records: Mapping[int, int], rounds: int) -> dict[str, float]:
    """Records per second and processor time of each client (medians), and the medians of the rounds' ratios."""
    count = sum(records.values())
    rates: dict[str, list[float]] = {name: [] for name in CLIENTS}
    costs: dict[str, list[float]] = {name: [] for name in CLIENTS}
    for number in range(rounds):
        names = list(CLIENTS) if number % 2 == 0 else list(reversed(CLIENTS))
        for name in names:
            used = time.process_time()
            rates[name].append(count / CLIENTS[name](bootstrap, topic, records))
            costs[name].append((time.process_time() - used) * 1e6 / count)
    row: dict[str, float] = {name: round(statistics.median(found)) for name, found in rates.items()}
    row |= {f"{name}_cpu_us": round(statistics.median(found), 3) for name, found in costs.items()}
    for label, found in [("ratio", rates), ("cpu_ratio", costs)]:
        ratios = [own / other for own, other in zip(found["moldau"], found["librdkafka"], strict=True)]
        row[label] = round(statistics.median(ratios), 3)
    return row


def main() -> None:
    """Runs the rounds and prints the figures."""
    parser = argparse.ArgumentParser(description="Throughput of a consumer with unequally loaded partitions.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--idle", default="0,1,9,99", metavar="COUNTS", help="numbers of idle partitions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", metavar="DIR", help="where to write consumer.md and consumer.png")
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with cluster(brokers=1, controllers=1, links=False) as running:
        bootstrap = running.bootstrap
        for idle in map(int, options.idle.split(",")):
            topic = f"idle-{idle}"
            trio.run(fill, bootstrap, topic, idle + 1, {0: (options.records, VALUE_BYTES)})
            records = dict.fromkeys(range(idle + 1), 0) | {0: options.records}
            figures[f"1 busy, {idle} idle"] = measure(bootstrap, topic, records, options.rounds)
            sys.stderr.write(f"1 busy, {idle} idle: {figures[f'1 busy, {idle} idle']}\n")
        counts = [max(options.records // 2 ** (number + 2), 1) for number in range(SKEWED_PARTITIONS)]
        filled = dict(enumerate(zip(counts, SKEWED_BYTES, strict=True)))
        trio.run(fill, bootstrap, "skewed", SKEWED_PARTITIONS, filled)
        figures["skewed"] = measure(bootstrap, "skewed", dict(enumerate(counts)), options.rounds)
    if options.json:
        print(json.dumps(figures))
        return
    columns = ["partitions", *(f"{name}, records/s" for name in CLIENTS), *(f"{name}, us of CPU" for name in CLIENTS)]
    rows = [
        [case, *(f"{row[name]:,.0f}" for name in CLIENTS), *(f"{row[f'{name}_cpu_us']:.2f}" for name in CLIENTS)]
        for case, row in figures.items()
    ]
    text = results.table(columns, rows)
    print(text)
    if options.output:
        costs = {case: {name: row[f"{name}_cpu_us"] for name in CLIENTS} for case, row in figures.items()}
        results.write(options.output, "consumer", text, "client CPU, us per record", costs)


if __name__ == "__main__":
    main()
