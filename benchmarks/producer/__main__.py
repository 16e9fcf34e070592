"""Measures what producers cost per record, in the client and in the broker, beside librdkafka on the same broker.

    python -m benchmarks.producer [--records N] [--rounds R] [--json]

- defaults: each client's own defaults (Moldau's batches hold 16 KiB, as the Java client's; librdkafka's up to 1 MB)
- 64 KiB: both clients with ``batch.size=65536`` and ``linger.ms=20``
- keys: as 64 KiB, and each record has one of a thousand keys, so that batches of all partitions grow side by side

Every client sends values of 100 B to four partitions with acks=all, in a loop that makes one call for each record, and
flushes. The clients take turns in one process; the processor time of a round is that of all threads of this process,
and that of the broker. Broker and clients share this machine's cores: what counts is the ratio to librdkafka in the
same round, and processor time rather than records per second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import confluent_kafka
import trio

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
    "moldau.blocking": produce_blocking,
    REFERENCE: produce_librdkafka,
}


def measure(bootstrap: str, pids: Sequence[int], case: str, count: int, rounds: int) -> dict[str, dict[str, float]]:
    """Returns the medians of each client, and the medians of its ratios to librdkafka in the same round."""
    settings, keys = CASES[case]
    costs: dict[str, list[Cost]] = {name: [] for name in CLIENTS}
    for number in range(rounds):
        names = list(CLIENTS) if number % 2 == 0 else list(reversed(CLIENTS))
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
    print("| case | client | records/s | client, us per record | ratio | broker, us per record | ratio |")
    print("|---|---|---|---|---|---|---|")
    for case, rows in figures.items():
        for name, row in rows.items():
            print(
                f"| {case} | {name} | {row['records_s']:,.0f} | {row['client_us']:.2f} | {row['client_ratio']:.2f} "
                f"| {row['broker_us']:.2f} | {row['broker_ratio']:.2f} |"
            )


if __name__ == "__main__":
    main()
