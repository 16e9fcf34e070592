"""Measures the broker's data path: ``python -m benchmarks.broker [--quick] [--output docs/benchmarks/broker.md]``.

Load comes from ``benchmarks.broker.load`` (prepared frames, almost free) and, as the client that users have, from
librdkafka through confluent-kafka. All processes share this machine's cores: a row says what was reached and how much
of a core the brokers used for it. Data goes to the directory given by ``--directory``, by default memory (/dev/shm)
where there is one, so that the disk of the day is not what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from moldau_jepsen.launcher import ClusterSpec, LocalCluster, start_cluster
from moldau_jepsen.launcher.process import cpu_ms, resident_bytes

KIB = 1024
MIB = 1024 * 1024
SETTINGS = {"log.retention.check.interval.ms": "1000", "log.segment.delete.delay.ms": "0"}


@dataclass
class Row:
    """One line of the report."""

    what: str
    record_bytes: int
    batch_bytes: int
    records_per_second: float
    megabytes_per_second: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    broker_cores: float


class Bench:
    """A running cluster and the rows measured on it."""

    def __init__(self, cluster: LocalCluster, seconds: float) -> None:
        self.cluster = cluster
        self.seconds = seconds
        self.rows: list[Row] = []
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self._topics = 0

    def topic(self, partitions: int = 1, replicas: int = 1) -> str:
        """A new topic whose partitions all have leaders; bounded in size, for memory is finite."""
        self._topics += 1
        name = f"bench-{self._topics}"
        config = {"retention.bytes": str(256 * MIB), "segment.bytes": str(64 * MIB), "min.insync.replicas": "1"}
        self.admin.create_topics([NewTopic(name, partitions, replicas, config=config)])[name].result(30)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            metadata = self.admin.list_topics(name, timeout=10).topics[name]
            if len(metadata.partitions) == partitions and all(p.leader >= 0 for p in metadata.partitions.values()):
                return name
            time.sleep(0.05)
        raise TimeoutError(f"{name} has no leaders")

    def drop(self, name: str) -> None:
        """Deletes a topic."""
        self.admin.delete_topics([name])[name].result(30)

    def leader_port(self, topic: str) -> tuple[str, int]:
        """Where partition 0 is led."""
        metadata = self.admin.list_topics(topic, timeout=10)
        broker = metadata.brokers[metadata.topics[topic].partitions[0].leader]
        return str(broker.host), broker.port

    def cpu(self) -> float:
        """Processor seconds of all brokers."""
        return sum(cpu_ms(node.pid) for node in self.cluster.brokers) / 1000

    def load(self, what: str, topic: str, *, api: str = "produce", **more: float) -> dict[str, float]:
        """Runs the load generator and adds a row."""
        host, port = self.leader_port(topic)
        sizes = {"record_bytes": 100, "batch_bytes": 16 * KIB, "fetch_bytes": MIB}
        sizes.update((name, int(more[name])) for name in sizes if name in more)
        job: dict[str, object] = {
            "api": api,
            "topic": topic,
            "host": host,
            "port": port,
            "connections": 1,
            "partitions": 1,
            "offset": 0,
            "acks": 1,
            "window": 5,
            "rate": 0,
            "seconds": self.seconds,
            **more,
            **sizes,
        }
        before = self.cpu()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.broker.load", json.dumps(job)],
            check=True,
            capture_output=True,
            text=True,
        )
        result: dict[str, float] = json.loads(done.stdout)
        cores = (self.cpu() - before) / result["seconds"]
        size = result["sent_bytes"] if api == "produce" else result["received_bytes"]
        row = Row(
            what,
            sizes["record_bytes"],
            sizes["batch_bytes" if api == "produce" else "fetch_bytes"],
            result["records"] / result["seconds"] if api == "produce" else 0.0,
            size / result["seconds"] / 1e6,
            result["p50_ms"],
            result["p99_ms"],
            result["p999_ms"],
            cores,
        )
        self.rows.append(row)
        print(_line(row), flush=True)
        return result

    # --- what is measured ------------------------------------------------------------------------------------------

    def produce_and_consume(self, what: str, replicas: int, acks: int, sizes: list[tuple[int, int]]) -> None:
        """Throughput for record and batch sizes."""
        for record_bytes, batch_bytes in sizes:
            topic = self.topic(replicas=replicas)
            self.load(f"produce, {what}", topic, record_bytes=record_bytes, batch_bytes=batch_bytes, acks=acks)
            if batch_bytes == 128 * KIB:
                consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": topic})
                _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
                consumer.close()
                offset = max(0, end - 16 * MIB // record_bytes)  # retention must not pass it meanwhile
                self.load(f"fetch, {what}", topic, api="fetch", record_bytes=record_bytes, offset=offset)
            self.drop(topic)

    def latency(self, what: str, replicas: int, acks: int) -> None:
        """Produce to acknowledgement at shares of what the same load reached unpaced."""
        topic = self.topic(replicas=replicas)
        peak = self.load(f"peak, {what}", topic, acks=acks)
        peak_rate = peak["requests"] / peak["seconds"]
        for share in (0.1, 0.5, 0.9):
            self.load(f"{share:.0%} of peak, {what}", topic, acks=acks, rate=peak_rate * share)
        self.drop(topic)

    def connections(self, counts: list[int]) -> None:
        """Many connections to one broker."""
        for count in counts:
            topic = self.topic()
            self.load(f"produce, {count} connections", topic, connections=count, window=1)
            self.drop(topic)

    def librdkafka(self, what: str, replicas: int, acks: str) -> None:
        """The client that users have; its Python face makes the load generator the bottleneck."""
        topic = self.topic(replicas=replicas)
        producer = Producer(
            {"bootstrap.servers": self.cluster.bootstrap, "acks": acks, "linger.ms": 5, "batch.size": MIB}
        )
        value, sent, before, begin = b"x" * 100, 0, self.cpu(), time.perf_counter()
        while time.perf_counter() - begin < self.seconds:
            for _ in range(1000):
                while True:
                    try:
                        producer.produce(topic, value)
                        break
                    except BufferError:
                        producer.poll(0.01)
                sent += 1
            producer.poll(0)
        assert producer.flush(60) == 0
        elapsed = time.perf_counter() - begin
        self._client_row(f"librdkafka produce, {what}", sent, elapsed, before)
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": topic})
        consumer.assign([TopicPartition(topic, 0, self.first_offset(consumer, topic))])
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        got, before, begin = 0, self.cpu(), time.perf_counter()
        while got < high - low and time.perf_counter() - begin < 60:
            got += len(consumer.consume(10_000, 1.0))
        self._client_row(f"librdkafka consume, {what}", got, time.perf_counter() - begin, before)
        consumer.close()
        self.drop(topic)

    def first_offset(self, consumer: Consumer, topic: str) -> int:
        """Where the log begins."""
        offset: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[0]
        return offset

    def _client_row(self, what: str, records: int, elapsed: float, cpu_before: float) -> None:
        cores = (self.cpu() - cpu_before) / elapsed
        row = Row(what, 100, 0, records / elapsed, records * 100 / elapsed / 1e6, -1, -1, -1, cores)
        self.rows.append(row)
        print(_line(row), flush=True)


def _line(row: Row) -> str:
    rate = f"{row.records_per_second:,.0f}" if row.records_per_second else ""
    latency = [f"{value:.2f}" if value >= 0 else "" for value in (row.p50_ms, row.p99_ms, row.p999_ms)]
    batch = f"{row.batch_bytes // KIB} KiB" if row.batch_bytes else ""
    cells = [row.what, f"{row.record_bytes} B", batch, rate, f"{row.megabytes_per_second:,.0f}", *latency]
    return "| " + " | ".join([*cells, f"{row.broker_cores:.2f}"]) + " |"


HEAD = (
    "| what | record | batch or fetch | records/s | MB/s | p50 ms | p99 ms | p99.9 ms | cores of all brokers |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def report(sections: list[tuple[str, list[Row]]], memory_bytes: list[int]) -> str:
    """The document."""
    lines = [
        "# What a broker does",
        "",
        f"Written by `python -m benchmarks.broker` on {platform.machine()}, {os.cpu_count()} cores, Python",
        f"{platform.python_version()}. Load generator, clients, controllers and brokers share these cores.",
        "Latency is from request to answer over loopback. Trust ratios and cores per megabyte more than",
        f"absolute figures. Load average of the machine at the end: {os.getloadavg()[0]:.0f}.",
        "",
    ]
    for title, rows in sections:
        lines += [f"## {title}", "", HEAD, *map(_line, rows), ""]
    lines += [
        f"Resident memory of the brokers after the load: {', '.join(f'{m / 1e6:.0f} MB' for m in memory_bytes)}.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measures, prints rows as they come, writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs, fewer sizes")
    parser.add_argument("--output", type=Path, default=None, help="where to write the report (Markdown)")
    parser.add_argument("--directory", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    arguments = parser.parse_args()
    seconds = 2.0 if arguments.quick else 6.0
    sizes = [(100, 16 * KIB), (100, 128 * KIB), (1024, 128 * KIB), (1024, 900 * KIB)]
    sections: list[tuple[str, list[Row]]] = []
    print(HEAD)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for brokers, replicas, acks in ((1, 1, 1), (3, 3, -1)):
            spec = ClusterSpec(
                controllers=1,
                brokers=brokers,
                settings=SETTINGS,
            )
            cluster = start_cluster(Path(directory) / f"cluster-{brokers}", spec)
            try:
                name = "acks=1" if acks == 1 else "RF 3, acks=all"
                bench = Bench(cluster, seconds)
                bench.produce_and_consume(name, replicas, acks, sizes[1:3] if arguments.quick else sizes)
                bench.latency(name, replicas, acks)
                if brokers == 1:
                    bench.connections([1, 100] if arguments.quick else [1, 100, 1000])
                bench.librdkafka(name, replicas, "1" if acks == 1 else "all")
                memory = [resident_bytes(node.pid) for node in cluster.brokers]
                sections.append((f"{brokers} broker{'s' if brokers > 1 else ''}, {name}", bench.rows))
            finally:
                cluster.shut_down()
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(report(sections, memory))


if __name__ == "__main__":
    main()
