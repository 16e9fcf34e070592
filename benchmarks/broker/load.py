"""A load generator that costs next to nothing: it sends the same prepared request frames again and again and counts
answers.

Runs in a process of its own (``python -m benchmarks.broker.load JOB``, a JSON object) and prints one JSON object. The
frame is built once, so that what is measured is the broker. A rate of 0 sends as fast as the window of requests in
flight allows; otherwise requests leave on a fixed schedule, and latency counts from the moment a request was due (no
coordinated omission).
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import sys
import time
from dataclasses import dataclass, field

from moldau.protocol.framing import encode_request
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import encode_batch

RECORD_OVERHEAD_BYTES = 8
RECEIVE_BYTES = 1 << 20


@dataclass
class Peer:
    """One connection."""

    sock: socket.socket
    frame: memoryview
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    due: list[float] = field(default_factory=list)  # of the requests in flight, oldest first
    header: bytearray = field(default_factory=bytearray)
    left: int = 0  # bytes of the present answer that have not come


def produce_frame(topic: str, partition: int, record_bytes: int, batch_bytes: int, acks: int) -> tuple[bytes, int]:
    """A Produce request with one batch, and how many records it holds."""
    count = max(1, batch_bytes // (record_bytes + RECORD_OVERHEAD_BYTES))
    now_ms = int(time.time() * 1000)
    records = encode_batch([(now_ms, None, b"x" * record_bytes, ())] * count)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=records)])
        ],
    )
    return encode_request(request, 11, 1, "load"), count


def fetch_frame(topic: str, partition: int, offset: int, fetch_bytes: int) -> bytes:
    """A Fetch request from ``offset`` on."""
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=fetch_bytes,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=fetch_bytes)],
            )
        ],
    )
    return encode_request(request, 12, 1, "load")


class Load:
    """Sends on all connections until the time is over, then waits for the answers that are still due."""

    def __init__(self, peers: list[Peer], window: int, rate: float, seconds: float) -> None:
        self.peers = peers
        self.window = window
        self.rate = rate
        self.seconds = seconds
        self.latencies: list[float] = []
        self.received = 0
        self.selector = selectors.DefaultSelector()
        self.buffer = bytearray(RECEIVE_BYTES)

    def run(self) -> dict[str, float]:
        for peer in self.peers:
            peer.sock.setblocking(False)
            self.selector.register(peer.sock, selectors.EVENT_READ, peer)
        begin = time.perf_counter()
        end = begin + self.seconds
        issued, turn = 0, 0
        while True:
            now = time.perf_counter()
            if now >= end and not any(peer.due for peer in self.peers):
                break
            if now < end:
                if self.rate:
                    while issued < (now - begin) * self.rate:
                        peer = self.peers[turn % len(self.peers)]
                        turn += 1
                        self._issue(peer, begin + issued / self.rate)
                        issued += 1
                else:
                    for peer in self.peers:
                        while len(peer.due) < self.window and not peer.unsent:
                            self._issue(peer, time.perf_counter())
                            issued += 1
            for key, events in self.selector.select(0.0005 if self.rate else 0.05):
                if events & selectors.EVENT_WRITE:
                    self._send(key.data)
                if events & selectors.EVENT_READ:
                    self._receive(key.data)
        elapsed = time.perf_counter() - begin
        ordered = sorted(self.latencies)
        return {
            "requests": len(ordered),
            "seconds": elapsed,
            "received_bytes": self.received,
            **{
                name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3) if ordered else -1.0
                for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999))
            },
        }

    def _issue(self, peer: Peer, due: float) -> None:
        peer.due.append(due)
        peer.unsent = memoryview(bytes(peer.unsent) + bytes(peer.frame)) if peer.unsent else peer.frame
        self._send(peer)

    def _send(self, peer: Peer) -> None:
        while peer.unsent:
            try:
                peer.unsent = peer.unsent[peer.sock.send(peer.unsent) :]
            except BlockingIOError:
                self.selector.modify(peer.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
                return
        self.selector.modify(peer.sock, selectors.EVENT_READ, peer)

    def _receive(self, peer: Peer) -> None:
        count = peer.sock.recv_into(self.buffer)
        if count == 0:
            raise ConnectionError("the broker closed the connection")
        self.received += count
        position = 0
        while position < count:
            if peer.left:
                taken = min(peer.left, count - position)
                peer.left -= taken
                position += taken
            else:
                taken = min(4 - len(peer.header), count - position)
                peer.header += self.buffer[position : position + taken]
                position += taken
                if len(peer.header) < 4:
                    break
                (peer.left,) = struct.unpack(">i", peer.header)
                peer.header.clear()
            if not peer.left:
                self.latencies.append(time.perf_counter() - peer.due.pop(0))


def main() -> None:
    """Runs one job from the command line."""
    job = json.loads(sys.argv[1])
    peers: list[Peer] = []
    records = 1
    for number in range(job["connections"]):
        partition = number % job["partitions"]
        if job["api"] == "produce":
            frame, records = produce_frame(
                job["topic"], partition, job["record_bytes"], job["batch_bytes"], job["acks"]
            )
        else:
            frame = fetch_frame(job["topic"], partition, job["offset"], job["fetch_bytes"])
        sock = socket.create_connection((job["host"], job["port"]))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peers.append(Peer(sock, memoryview(frame)))
    result = Load(peers, job["window"], job["rate"], job["seconds"]).run()
    result["records"] = result["requests"] * records
    result["sent_bytes"] = result["requests"] * len(peers[0].frame)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
