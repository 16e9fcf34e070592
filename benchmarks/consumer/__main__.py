"""Measures how fast a consumer reads partitions of unequal load, beside librdkafka on the same broker.

    python -m benchmarks.consumer [--records N] [--idle 0,1,9,99] [--rounds R] [--json]

- busy and idle: one partition holds all records, the others of the same leader hold none
- skewed: eight partitions of one leader; each holds half as many records as the one before, and values of 10 B to 10 kB
  turn, so that some answers are full of small records and others hold a few large ones

Both clients are in one process at a time, assigned by hand, start at the first offset and end with the last record. The
application looks at each value and takes 500 records a poll, so that it, and not the fetching, sets the pace. Processor
time, per record, is that of all threads of the process, from opening to closing. Broker and clients share this
machine's cores: what counts is the ratio of the two in the same round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING

import confluent_kafka
import trio

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


async def _read(bootstrap: str, topic: str, records: Mapping[int, int]) -> float:
    config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    wanted, got, size = sum(records.values()), 0, 0
    async with Consumer(config) as consumer:
        consumer.assign([(topic, partition) for partition in records])
        begin = time.perf_counter()
        with trio.fail_after(READ_TIMEOUT_S):
            while got < wanted:
                for batch in await consumer.poll(1000):
                    for record in batch.records:
                        size += len(record.value or b"")
                    got += len(batch.records)
        return time.perf_counter() - begin


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


CLIENTS = {"moldau": read_moldau, "librdkafka": read_librdkafka}


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
    row = {name: round(statistics.median(found)) for name, found in rates.items()}
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
    print("| partitions | Moldau, records/s | librdkafka | ratio | Moldau, us of CPU | librdkafka | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, row in figures.items():
        print(
            f"| {name} | {row['moldau']:,.0f} | {row['librdkafka']:,.0f} | {row['ratio']:.2f} "
            f"| {row['moldau_cpu_us']:.2f} | {row['librdkafka_cpu_us']:.2f} | {row['cpu_ratio']:.2f} |"
        )


if __name__ == "__main__":
    main()
