"""Measures what producers cost per record, in client and broker, beside librdkafka and aiokafka on the same broker.

    python -m benchmarks.producer [--records N] [--rounds R] [--json] [--output DIR]

- defaults: each client's own defaults (Moldau's batches hold 64 KiB, librdkafka's up to 1 MB)
- 64 KiB: both clients with ``batch.size=65536`` and ``linger.ms=20``
- keys: as 64 KiB, and each record has one of a thousand keys, so that batches of all partitions grow side by side

Every client sends values of 100 B to four partitions with acks=all, in a loop that makes one call for each record
(``send_many``: for a thousand), and flushes. ``--output`` writes the table and a bar chart. The clients take turns in
one process; the processor time of a round is that of all threads of this process, and that of the broker. Broker and
clients share this machine's cores: what counts is the ratio to librdkafka in the same round, and processor time
rather than records per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import aiokafka
import confluent_kafka
import trio
from benchmarks.client import results

import moldau.blocking
from moldau import Admin, Producer
from moldau.admin import NewTopic
from moldau_jepsen.launcher.process import cpu_ms
from moldau_jepsen.testing import cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PARTITIONS = 4
VALUE = b"x" * 100
KEYS = [b"key-%d" % number for number in range(1000)]
TOPIC = "produced"
LARGE = {"batch.size": 64 * 1024, "linger.ms": 20}
CASES: Mapping[str, tuple[Mapping[str, object], Sequence[bytes | None]]] = {
    "defaults": ({}, [None]),
    "64 KiB": (LARGE, [None]),
    "keys": (LARGE, KEYS),
}
REFERENCE = "librdkafka"


class Cost(NamedTuple):
    """The cost of one round, per record: seconds of wall clock, of the client's processors and of the broker's."""

    wall_s: float
    client_s: float
    broker_s: float


def _config(bootstrap: str, settings: Mapping[str, object]) -> dict[str, object]:
    return {"bootstrap.servers": bootstrap, "acks": "all", **settings}


async def _produce(bootstrap: str, settings: Mapping[str, object], keys: Sequence[bytes | None], count: int) -> None:
    async with Producer(_config(bootstrap, settings)) as producer:
        for _ in range(count // len(keys)):
            for key in keys:
                last = await producer.send(TOPIC, VALUE, key)
        await producer.flush()
        last.result()


def produce_moldau(bootstrap: str, settings: Mapping[str, object], keys: Sequence[bytes | None], count: int) -> None:
    """Moldau's producer for trio."""
    trio.run(_produce, bootstrap, settings, keys, count)


async def _produce_many(
    bootstrap: str, settings: Mapping[str, object], keys: Sequence[bytes | None], count: int
) -> None:
    block = list(keys) * (1000 // len(keys))
    async with Producer(_config(bootstrap, settings)) as producer:
        for _ in range(count // len(block)):
            deliveries = await producer.send_many(TOPIC, [VALUE] * len(block), keys=block)
        await producer.flush()
        deliveries[-1].result()


def produce_many(bootstrap: str, settings: Mapping[str, object], keys: Sequence[bytes | None], count: int) -> None:
    """Moldau's producer for trio, with one call for a thousand records."""
    trio.run(_produce_many, bootstrap, settings, keys, count)


async def _produce_aiokafka(
    bootstrap: str, settings: Mapping[str, object], keys: Sequence[bytes | None], count: int
) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        max_batch_size=int(str(settings.get("batch.size", 16384))),
        linger_ms=int(str(settings.get("linger.ms", 0))),
    )
    async with producer:
        for _ in range(count // len(keys)):
            for key in keys:
                last = await producer.send(TOPIC, VALUE, key)
        await producer.flush()
        await last


def produce_aiokafka(bootstrap: str, settings: Mapping[str, object], keys: Sequence[bytes | None], count: int) -> None:
    """aiokafka's producer."""
    asyncio.run(_produce_aiokafka(bootstrap, settings, keys, count))


def produce_blocking(bootstrap: str, settings: Mapping[str, object], keys: Sequence[bytes | None], count: int) -> None:
    """Moldau's producer for threads."""
    with moldau.blocking.Producer(_config(bootstrap, settings)) as producer:
        for _ in range(count // len(keys)):
            for key in keys:
                last = producer.send(TOPIC, VALUE, key)
        producer.flush()
        last.result()


def produce_librdkafka(
    bootstrap: str, settings: Mapping[str, object], keys: Sequence[bytes | None], count: int
) -> None:
    """librdkafka through confluent-kafka, with ``poll`` for each record, as its documentation advises."""
    producer = confluent_kafka.Producer({**_config(bootstrap, settings), "enable.idempotence": True})
    for _ in range(count // len(keys)):
        for key in keys:
            while True:
                try:
                    producer.produce(TOPIC, VALUE, key)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
    if left := producer.flush(60):
        raise TimeoutError(f"{left} records were not delivered in 60 s")


CLIENTS: Mapping[str, Callable[[str, Mapping[str, object], Sequence[bytes | None], int], None]] = {
    "moldau": produce_moldau,
    "moldau.send_many": produce_many,
    "moldau.blocking": produce_blocking,
    REFERENCE: produce_librdkafka,
    "aiokafka": produce_aiokafka,
}


def measure(bootstrap: str, pids: Sequence[int], case: str, count: int, rounds: int) -> dict[str, dict[str, float]]:
    """Returns the medians of each client, and the medians of its ratios to librdkafka in the same round."""
    settings, keys = CASES[case]
    costs: dict[str, list[Cost]] = {name: [] for name in CLIENTS}
    for number in range(rounds):
        names = list(CLIENTS) if number % 2 == 0 else list(CLIENTS)[::-1]
        for name in names:
            broker, client, wall = sum(map(cpu_ms, pids)), time.process_time(), time.perf_counter()
            CLIENTS[name](bootstrap, settings, keys, count)
            wall, client = time.perf_counter() - wall, time.process_time() - client
            costs[name].append(Cost(wall / count, client / count, (sum(map(cpu_ms, pids)) - broker) / 1000 / count))
    found: dict[str, dict[str, float]] = {}
    for name, own in costs.items():
        medians = Cost(*(statistics.median(column) for column in zip(*own, strict=True)))
        ratios = [
            [mine / max(other, 1e-12) for mine, other in zip(each, reference, strict=True)]
            for each, reference in zip(own, costs[REFERENCE], strict=True)
        ]
        wall_ratio, client_ratio, broker_ratio = (statistics.median(column) for column in zip(*ratios, strict=True))
        found[name] = {
            "records_s": round(1 / medians.wall_s),
            "client_us": round(medians.client_s * 1e6, 2),
            "broker_us": round(medians.broker_s * 1e6, 2),
            "wall_ratio": round(wall_ratio, 2),
            "client_ratio": round(client_ratio, 2),
            "broker_ratio": round(broker_ratio, 2),
        }
    return found


def main() -> None:
    """Runs the rounds and prints the figures."""
    parser = argparse.ArgumentParser(description="Processor time of producers, in client and broker.")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", metavar="DIR", help="where to write producer.md and producer.png")
    options = parser.parse_args()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with cluster(brokers=1, controllers=1, links=False, settings={"log.retention.bytes": 200_000_000}) as running:
        pids = [node.pid for node in running.nodes if node.role == "broker"]

        async def prepare() -> None:
            async with Admin({"bootstrap.servers": running.bootstrap}) as admin:
                await admin.create_topics([NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=1)])

        trio.run(prepare)
        for produce in CLIENTS.values():  # compiled codecs and warm caches, on both sides
            produce(running.bootstrap, {}, [None], options.records // 10)
        for case in CASES:
            figures[case] = measure(running.bootstrap, pids, case, options.records, options.rounds)
            sys.stderr.write(f"{case}: {figures[case]}\n")
    if options.json:
        print(json.dumps(figures))
        return
    columns = ["case", "client", "records/s", "client, us per record", "ratio", "broker, us per record", "ratio"]
    rows = [
        [
            case,
            name,
            f"{row['records_s']:,.0f}",
            *(f"{row[each]:.2f}" for each in ("client_us", "client_ratio", "broker_us", "broker_ratio")),
        ]
        for case, found in figures.items()
        for name, row in found.items()
    ]
    text = results.table(columns, rows)
    print(text)
    if options.output:
        costs = {case: {name: row["client_us"] for name, row in found.items()} for case, found in figures.items()}
        results.write(options.output, "producer", text, "client CPU, us per record", costs)


if __name__ == "__main__":
    main()
