"""Rows that are measured on one configuration of clusters, each on every peer in turn, several times.

Peers run side by side and take turns row by row, so that the noise of the machine meets all of them; a figure is the
median of its rounds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.broker import java_tools, librdkafka_tool
from benchmarks.broker.many.cores import starting_on
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from moldau_jepsen.launcher.process import cpu_ms, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.broker.peers import Peer

KIB = 1024
MIB = 1024 * 1024
BATCH_SIZES = (16 * KIB, 128 * KIB, 1_000_000)  # the largest stays under the default max.message.bytes
RECORD_SIZES = (100, 1024)
SHARES = (0.1, 0.5, 0.9)
PACED_BATCH_BYTES = 16 * KIB
PACED_BYTES_PER_SECOND = 256 * MIB
"""More than a paced load writes in a second."""
TOUCHED_MIB = 768
JAVA_RECORDS_PER_SECOND = 400_000
"""How many records Kafka's tools get per second of a measurement."""
TOOL_RECORDS_PER_SECOND = 500_000
"""How many records librdkafka's tool gets per second of a measurement."""
TOOL_CONSUMERS = 20
LEADING_TIMEOUT_S = 30.0
CONSUME_TIMEOUT_S = 60.0
NOT_YET_LEADING = "answered a produce request with error 6"


def touch_memory(directory: Path) -> None:
    """Writes and removes a file. A virtual machine gives free memory back to its host, and the first touch of a page
    afterwards is slow (measured: 0.5 GB/s instead of 3 GB/s); no peer may pay that for the other.
    """
    path, block = directory / "moldau-bench-touch", b"\0" * MIB
    with path.open("wb") as file:
        for _ in range(TOUCHED_MIB):
            file.write(block)
    path.unlink()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement of one peer."""

    records_per_second: float
    megabytes_per_second: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    broker_cores: float
    requests_per_second: float
    load_cores: float = -1.0
    """How much of a core the load generator used; -1 if it was not measured."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of the report; ``samples`` holds the rounds of each peer by its name."""

    section: str
    what: str
    record_bytes: int
    batch_bytes: int
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def median(self, peer: str, name: str) -> float | None:
        """Median of a figure over the rounds; None when the peer was not measured."""
        samples = self.samples.get(peer)
        return statistics.median(getattr(sample, name) for sample in samples) if samples else None


class Bench:
    """Peers of one configuration and the rows measured on them."""

    def __init__(
        self,
        section: str,
        peers: Sequence[Peer],
        *,
        replicas: int,
        acks: int,
        seconds: float,
        directory: Path,
        libraries: Path | None = None,
        load_cores: frozenset[int] | None = None,
    ) -> None:
        """``directory`` is on the disk, or in the memory, of the peers' data; ``libraries`` has Kafka's jars; the load
        generator runs on ``load_cores`` only.
        """
        self.libraries = libraries
        self.load_cores = load_cores
        self.section = section
        self.peers = peers
        self.replicas = replicas
        self.acks = acks
        self.seconds = seconds
        self.directory = directory
        self.rows: dict[tuple[str, int, int], Row] = {}
        self.admins = {peer.name: AdminClient({"bootstrap.servers": peer.bootstrap}) for peer in peers}
        self._topics = 0

    # --- topics ------------------------------------------------------------------------------------------------------

    def topic(self, peer: Peer, partitions: int = 1, *, bounded: bool = True, kept_bytes: int = 64 * MIB) -> str:
        """A new topic whose partitions all have leaders; it keeps about ``kept_bytes`` if ``bounded``, for memory is
        finite.
        """
        self._topics += 1
        name, admin = f"bench-{self._topics}", self.admins[peer.name]
        size = max(4 * MIB, kept_bytes // partitions)
        config = {"segment.bytes": str(size // 4), "min.insync.replicas": "1"}
        if bounded:
            config["retention.bytes"] = str(size)
        admin.create_topics([NewTopic(name, partitions, self.replicas, config=config)])[name].result(60)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            metadata = admin.list_topics(name, timeout=10).topics[name]
            if len(metadata.partitions) == partitions and all(
                p.leader >= 0 and len(p.isrs) == self.replicas for p in metadata.partitions.values()
            ):
                return name
            time.sleep(0.05)
        raise TimeoutError(f"{name} has no leaders on {peer.name}")

    def drop(self, peer: Peer, name: str) -> None:
        """Deletes a topic; that it is gone already is the answer to a request that the client sent twice."""
        try:
            self.admins[peer.name].delete_topics([name])[name].result(60)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise

    def leader_addresses(self, peer: Peer, topic: str) -> list[tuple[str, int]]:
        """Where each partition is led."""
        metadata = self.admins[peer.name].list_topics(topic, timeout=10)
        partitions = sorted(metadata.topics[topic].partitions.items())
        brokers = [metadata.brokers[partition.leader] for _, partition in partitions]
        return [(str(broker.host), broker.port) for broker in brokers]

    def end_offset(self, peer: Peer, topic: str) -> int:
        """High watermark of partition 0."""
        consumer = Consumer({"bootstrap.servers": peer.bootstrap, "group.id": topic})
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])
        finally:
            consumer.close()

    # --- one measurement ---------------------------------------------------------------------------------------------

    def load(self, peer: Peer, topic: str, api: str = "produce", /, **more: float) -> Sample:
        """Runs the load generator: with one partition for each connection at most, against the leaders of the
        partitions, else against that of partition 0.
        """
        leaders = self.leader_addresses(peer, topic)
        figures: dict[str, float] = {
            "connections": 1,
            "partitions": 1,
            "offset": 0,
            "acks": self.acks,
            "window": 5,
            "rate": 0,
            "seconds": self.seconds,
            "record_bytes": 100,
            "batch_bytes": PACED_BATCH_BYTES,
            "fetch_bytes": MIB,
            **more,
        }
        job = {"api": api, "topic": topic, "host": leaders[0][0], "port": leaders[0][1], **figures}
        if figures["connections"] >= figures["partitions"] > 1:
            job["leaders"] = leaders
        deadline = time.monotonic() + LEADING_TIMEOUT_S
        while True:
            touch_memory(self.directory)
            command = [sys.executable, "-m", "benchmarks.broker.load", json.dumps(job)]
            with (
                starting_on(self.load_cores),
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
            ):
                assert process.stdout is not None
                process.stdout.readline()  # ``load.BEGUN``
                before = self._cpu_s(peer)
                printed = process.stdout.readline()
                used_s = self._cpu_s(peer) - before
                _, errors = process.communicate()
            if NOT_YET_LEADING not in errors or time.monotonic() > deadline:
                break  # a leader that metadata names already may still be taking over its many partitions
        if process.returncode:
            raise RuntimeError(f"load on {peer.name} failed: {errors.strip().splitlines()[-1]}")
        result: dict[str, float] = json.loads(printed)
        seconds = result["seconds"]
        size = result["received_bytes"] if api == "fetch" else result["sent_bytes"]
        return Sample(
            records_per_second=size / figures["record_bytes"] / seconds
            if api == "fetch"
            else result["records"] / seconds,
            megabytes_per_second=size / seconds / 1e6,
            p50_ms=result["p50_ms"],
            p99_ms=result["p99_ms"],
            p999_ms=result["p999_ms"],
            broker_cores=used_s / seconds,
            requests_per_second=result["requests"] / seconds,
            load_cores=result.get("cpu_s", -seconds) / seconds,
        )

    def _cpu_s(self, peer: Peer) -> float:
        return sum(cpu_ms(pid) for pid in peer.broker_pids().values()) / 1000

    def keep(self, peer: Peer, what: str, record_bytes: int, batch_bytes: int, sample: Sample) -> None:
        """Adds a sample to its row and shows it."""
        row = self.rows.setdefault(
            (what, record_bytes, batch_bytes),
            Row(section=self.section, what=what, record_bytes=record_bytes, batch_bytes=batch_bytes),
        )
        row.samples.setdefault(peer.name, []).append(sample)
        sys.stderr.write(
            f"  {self.section}: {what}, {record_bytes} B in {batch_bytes} B, {peer.name}: "
            f"{sample.records_per_second:,.0f} records/s, {sample.megabytes_per_second:,.0f} MB/s, "
            f"p99 {sample.p99_ms:.2f} ms, {sample.broker_cores:.2f} cores\n"
        )

    # --- what is measured --------------------------------------------------------------------------------------------

    def warm_up(self, seconds: float) -> None:
        """Load that is not counted: a JVM compiles what it runs often."""
        for peer in self.peers:
            topic = self.topic(peer)
            for batch_bytes in BATCH_SIZES[:2]:
                self.load(peer, topic, batch_bytes=batch_bytes, seconds=seconds)
                self.load(peer, topic, "fetch", offset=max(0, self.end_offset(peer, topic) - 1000), seconds=seconds)
            self.drop(peer, topic)

    def throughput(self) -> None:
        """Produce and fetch for record and batch sizes, as fast as five requests in flight go."""
        for record_bytes in RECORD_SIZES:
            for batch_bytes in BATCH_SIZES:
                for peer in self.peers:
                    topic = self.topic(peer)
                    sizes = {"record_bytes": record_bytes, "batch_bytes": batch_bytes}
                    self.keep(peer, "produce", record_bytes, batch_bytes, self.load(peer, topic, **sizes))
                    # Retention, which goes by time, must not pass what is read meanwhile.
                    offset = max(0, self.end_offset(peer, topic) - 16 * MIB // record_bytes)
                    sample = self.load(peer, topic, "fetch", offset=offset, fetch_bytes=MIB, **sizes)
                    self.keep(peer, "fetch", record_bytes, batch_bytes, sample)
                    self.drop(peer, topic)

    def latency(self) -> None:
        """Produce to acknowledgement, and to arrival at a consumer, at shares of the slower peer's peak: all peers get
        the same rates.
        """
        # A consumer that falls behind must not be passed by retention: a peer that sends a deleted file fails.
        kept = int(self.seconds * PACED_BYTES_PER_SECOND)
        topics = {peer.name: self.topic(peer, kept_bytes=kept) for peer in self.peers}
        peaks = {}
        for peer in self.peers:
            sample = self.load(peer, topics[peer.name])
            self.keep(peer, "peak of the paced load", 100, PACED_BATCH_BYTES, sample)
            peaks[peer.name] = sample.requests_per_second
        peak = min(peaks.values())
        for share in SHARES:
            for peer in self.peers:
                sample = self.load(peer, topics[peer.name], rate=peak * share)
                self.keep(peer, f"produce to ack at {share:.0%}", 100, PACED_BATCH_BYTES, sample)
                end = self.end_offset(peer, topics[peer.name])
                sample = self.load(peer, topics[peer.name], "end-to-end", rate=peak * share, offset=end)
                self.keep(peer, f"end to end at {share:.0%}", 100, PACED_BATCH_BYTES, sample)
        for peer in self.peers:
            self.drop(peer, topics[peer.name])

    def spread(self, connections: Sequence[int], partitions: Sequence[int]) -> None:
        """Many connections to one broker, and many partitions over one connection."""
        for count in connections:
            self.connections(count)
        for count in partitions:
            self._each("produce, 1 partition" if count == 1 else f"produce, {count:,} partitions", count, 1, 5)

    def connections(self, count: int, batch_bytes: int = PACED_BATCH_BYTES, partitions: int = 1) -> None:
        """``count`` connections with one Produce in flight on each, which share the partitions out."""
        what = "produce, 1 connection" if count == 1 else f"produce, {count:,} connections"
        self._each(what, partitions, count, 1, batch_bytes)

    def _each(
        self, what: str, partitions: int, connections: int, window: int, batch_bytes: int = PACED_BATCH_BYTES
    ) -> None:
        for peer in self.peers:
            topic = self.topic(peer, partitions)
            sample = self.load(
                peer, topic, connections=connections, partitions=partitions, window=window, batch_bytes=batch_bytes
            )
            self.keep(peer, what, 100, batch_bytes, sample)
            self.drop(peer, topic)

    def librdkafka(self) -> None:
        """The client that users have; its Python face is the bottleneck of this row."""
        for peer in self.peers:
            topic = self.topic(peer, bounded=False)  # nothing may go while it is read back from the beginning
            for what, run in (("librdkafka produce", self._librdkafka_produce), ("librdkafka consume", self._consume)):
                self._client(peer, what, topic, run)
            self.drop(peer, topic)

    def librdkafka_tool(self) -> None:
        """librdkafka's performance tool, if it is there: one producer, one consumer, and many that catch up at once."""
        try:
            tool = librdkafka_tool.find_tool()
        except librdkafka_tool.ToolError:
            return  # the caller reports it
        count = int(self.seconds * TOOL_RECORDS_PER_SECOND)
        for peer in self.peers:
            topic = self.topic(peer, self.replicas, bounded=False)
            before, begin = self._cpu_s(peer), time.perf_counter()
            rate = librdkafka_tool.produce(tool, peer.bootstrap, topic, count, self.acks)
            cores = (self._cpu_s(peer) - before) / (time.perf_counter() - begin)
            self._keep_client(peer, "librdkafka's tool produces", rate, cores)
            for consumers in (1, TOOL_CONSUMERS):
                what = f"librdkafka's tool, {consumers} consumer{'s' if consumers > 1 else ''}"
                before, begin = self._cpu_s(peer), time.perf_counter()
                rate = librdkafka_tool.consume(tool, peer.bootstrap, topic, self.replicas, count, consumers)
                self._keep_client(peer, what, rate, (self._cpu_s(peer) - before) / (time.perf_counter() - begin))
            self.drop(peer, topic)

    def java_tools(self) -> None:
        """Kafka's own tools, if they are there: the clients that most users of Kafka have."""
        libraries = self.libraries
        if libraries is None or not java_tools.has_tools(libraries):
            return
        count = int(self.seconds * JAVA_RECORDS_PER_SECOND)
        for peer in self.peers:
            topic = self.topic(peer, bounded=False)
            before = self._cpu_s(peer)
            rate = java_tools.produce(libraries, peer.bootstrap, topic, count, self.acks)
            self._keep_client(peer, "Kafka's producer tool", rate, (self._cpu_s(peer) - before) / (count / rate))
            before = self._cpu_s(peer)
            rate = java_tools.consume(libraries, peer.bootstrap, topic, count)
            self._keep_client(peer, "Kafka's consumer tool", rate, (self._cpu_s(peer) - before) / (count / rate))
            self.drop(peer, topic)

    def _client(self, peer: Peer, what: str, topic: str, run: Callable[[Peer, str], int]) -> None:
        before, begin = self._cpu_s(peer), time.perf_counter()
        records = run(peer, topic)
        elapsed = time.perf_counter() - begin
        self._keep_client(peer, what, records / elapsed, (self._cpu_s(peer) - before) / elapsed)

    def _keep_client(self, peer: Peer, what: str, rate: float, broker_cores: float) -> None:
        sample = Sample(
            records_per_second=rate,
            megabytes_per_second=rate * 100 / 1e6,
            p50_ms=-1,
            p99_ms=-1,
            p999_ms=-1,
            broker_cores=broker_cores,
            requests_per_second=-1,
        )
        self.keep(peer, what, 100, 0, sample)

    def _librdkafka_produce(self, peer: Peer, topic: str) -> int:
        acks = "all" if self.acks == -1 else str(self.acks)
        producer = Producer({"bootstrap.servers": peer.bootstrap, "acks": acks, "linger.ms": 5, "batch.size": MIB})
        value, sent, end = b"x" * 100, 0, time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            for _ in range(1000):
                while True:
                    try:
                        producer.produce(topic, value)
                        break
                    except BufferError:
                        producer.poll(0.01)
                sent += 1
            producer.poll(0)
        if unsent := producer.flush(60):
            raise RuntimeError(f"{unsent} records were not acknowledged by {peer.name} within 60 s")
        return sent

    def _consume(self, peer: Peer, topic: str) -> int:
        consumer = Consumer({"bootstrap.servers": peer.bootstrap, "group.id": topic, "auto.offset.reset": "error"})
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
            consumer.assign([TopicPartition(topic, 0, low)])
            got, end = 0, time.perf_counter() + CONSUME_TIMEOUT_S
            while got < high - low:
                # Never more than there is to come: for a full list the client would wait.
                messages = consumer.consume(min(10_000, high - low - got), 1.0)
                if messages and (error := messages[0].error()):
                    raise RuntimeError(f"reading from {peer.name} failed: {error}")
                got += len(messages)
                if time.perf_counter() > end:
                    raise TimeoutError(f"{peer.name} gave {got} of {high - low} records in {CONSUME_TIMEOUT_S:g} s")
        finally:
            consumer.close()
        return got

    def memory_megabytes(self) -> dict[str, float]:
        """Mean resident memory of a broker of each peer, now."""
        return {
            peer.name: statistics.mean(resident_bytes(pid) / 1e6 for pid in peer.broker_pids().values())
            for peer in self.peers
        }
