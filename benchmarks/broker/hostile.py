"""One broker among bad clients: ``python -m benchmarks.broker.hostile [--idle 3000] [--slow 300] [--seconds 20]``.

While a well-behaved idempotent producer writes with acks=all, the broker gets: connections that say nothing,
connections that announce large frames and send them byte by byte, connections that ask for large answers and never read
them, frames of random bytes, oversized frames, requests with huge array lengths, and compressed batches that would
unpack to a thousand times their size. Prints what the good producer saw (errors, latency) next to what it sees in
peace, and the broker's memory before, at worst and after. Exit code 1 when the good producer saw an error or the memory
passed ``--memory-max``.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import selectors
import socket
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.broker.load import fetch_frame
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from moldau.protocol.framing import encode_request
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import Compression, encode_batch
from moldau_jepsen.launcher import ClusterSpec, start_cluster
from moldau_jepsen.launcher.process import resident_bytes

TOPIC = "good"
VALUE_BYTES = 50_000  # more than a receive buffer begins with: the good producer needs its share of memory, too
MIB = 1024 * 1024


class Good(threading.Thread):
    """The producer that must not notice anything."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        self.errors: list[str] = []
        self.latencies: list[float] = []
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            begin = time.perf_counter()

            def delivered(error: object, message: Message, begin: float = begin) -> None:
                if error is not None:
                    self.errors.append(str(error))
                self.latencies.append(time.perf_counter() - begin)

            self._producer.produce(TOPIC, b"x" * VALUE_BYTES, callback=delivered)
            self._producer.poll(0.01)
            time.sleep(0.002)
        self.errors += ["not delivered"] * self._producer.flush(30)

    def summary(self) -> str:
        """Since the last call."""
        taken, self.latencies = sorted(self.latencies), []
        if not taken:
            return "nothing delivered"
        at = [taken[min(len(taken) - 1, int(len(taken) * share))] * 1000 for share in (0.5, 0.99, 1)]
        return f"{len(taken)} delivered, p50 {at[0]:.1f} ms, p99 {at[1]:.1f} ms, worst {at[2]:.1f} ms"


def bomb() -> bytes:
    """A Produce request whose batch unpacks to 64 MiB."""
    records = encode_batch([(0, None, bytes(MIB), ())] * 64, compression=Compression.GZIP)
    return encode_request(
        ProduceRequest(
            acks=1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=records)])],
        ),
        9,
        1,
        "bomb",
    )


class Bad:
    """All the bad clients, driven by one selector."""

    def __init__(self, address: tuple[str, int], idle: int, slow: int) -> None:
        self.address = address
        self.idle = [self._connect() for _ in range(idle)]
        self.slow = [self._connect() for _ in range(slow)]
        self.deaf = [self._connect() for _ in range(slow // 4)]
        self.draw = random.Random(1)
        self.bomb = bomb()
        for sock in self.slow:
            self._try(sock, struct.pack(">i", 64 * MIB))
        for sock in self.deaf:
            self._try(sock, fetch_frame(TOPIC, 0, 0, 8 * MIB) * 20)
        self.thrown = 0

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(self.address)
        sock.setblocking(False)
        return sock

    def _try(self, sock: socket.socket, data: bytes) -> None:
        try:
            sock.send(data)
        except OSError:
            return  # cut off or full: both are what a broker may do to such a client

    def round(self) -> None:
        """One second's worth of mischief."""
        for sock in self.slow:
            self._try(sock, b"\0")
        for _ in range(20):
            with socket.create_connection(self.address) as sock:
                sock.setblocking(False)
                kind = self.draw.randrange(5)
                if kind == 0:
                    body = self.draw.randbytes(self.draw.randrange(8, 4000))
                    self._try(sock, struct.pack(">i", len(body)) + body)
                elif kind == 1:
                    self._try(sock, struct.pack(">i", 0x7FFFFFFF) + b"x" * 100)
                elif kind == 2:
                    body = struct.pack(">hhihi", 3, 5, 1, -1, 0x7FFFFFFF) + b"x" * 20
                    self._try(sock, struct.pack(">i", len(body)) + body)
                elif kind == 3:
                    self._try(sock, self.bomb)
                else:
                    self._try(sock, struct.pack(">ihhih", 10, self.draw.randrange(-5, 90), 99, 1, -1))
                self.thrown += 1
                selector = selectors.DefaultSelector()
                selector.register(sock, selectors.EVENT_READ)
                selector.select(0.01)

    def close(self) -> None:
        """All of them leave."""
        for sock in (*self.idle, *self.slow, *self.deaf):
            sock.close()


def main() -> int:
    """Peace, war, peace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=3000)
    parser.add_argument("--slow", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--memory-max", type=int, default=300, help="in MB")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        cluster = start_cluster(Path(directory) / "cluster", ClusterSpec(controllers=1, brokers=1))
        try:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
            broker = cluster.brokers[0]
            memory = [resident_bytes(broker.pid)]
            good = Good(cluster.bootstrap)
            good.start()
            time.sleep(5)
            print(f"in peace:  {good.summary()}; memory {memory[0] / 1e6:.0f} MB", flush=True)
            bad = Bad(("127.0.0.1", broker.port), arguments.idle, arguments.slow)
            end = time.monotonic() + arguments.seconds
            while time.monotonic() < end:
                bad.round()
                memory.append(resident_bytes(broker.pid))
                time.sleep(0.5)
            worst = max(memory)
            print(
                f"in war:    {good.summary()}; memory {worst / 1e6:.0f} MB, {bad.thrown} hostile requests", flush=True
            )
            bad.close()
            time.sleep(5)
            print(f"afterwards: {good.summary()}; memory {resident_bytes(broker.pid) / 1e6:.0f} MB", flush=True)
            good.stopping = True
            good.join(40)
            print(f"errors of the good producer: {good.errors[:3] or 'none'}")
            return 1 if good.errors or worst > arguments.memory_max * 1e6 else 0
        finally:
            cluster.shut_down()


if __name__ == "__main__":
    sys.exit(main())
