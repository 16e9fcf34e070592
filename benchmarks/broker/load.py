"""A load generator that costs next to nothing: it sends the same prepared request frames again and again and counts
answers.

Runs in a process of its own (``python -m benchmarks.broker.load JOB``, a JSON object). It prints ``BEGUN`` when it
begins to measure, and one JSON object at the end. Each connection of a produce has got an answer before: the cost of
accepting connections is not in the figures. The frame is built once, so that what is measured is the broker. A rate of
0 sends as fast as the window of requests in flight allows; otherwise requests leave on a fixed schedule, and latency
counts from the moment a request was due (no coordinated omission).
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moldau.protocol.framing import decode_response, encode_request
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RECORD_OVERHEAD_BYTES = 8
RECEIVE_BYTES = 1 << 20
PRODUCE_VERSION = 11
FETCH_VERSION = 12
TAIL_FETCH_BYTES = 8 << 20
BEGUN = "begun"
"""The line that says that the measurement begins."""


class LoadError(Exception):
    """The broker answered with an error code."""


@dataclass
class Peer:
    """One connection."""

    sock: socket.socket
    frames: list[memoryview]  # sent in turn
    error_position: int  # of the error code in an answer, counted from its correlation id; -1: not looked at
    turn: int = 0
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    due: list[float] = field(default_factory=list)  # of the requests in flight, oldest first
    header: bytearray = field(default_factory=bytearray)
    left: int = 0  # bytes of the present answer that have not come
    answer: bytearray = field(default_factory=bytearray)  # what has come of it, as far as the error code
    waits_to_send: bool = False  # the selector reports when it can


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
    return encode_request(request, PRODUCE_VERSION, 1, "load"), count


def produce_error_position(topic: str) -> int:
    """Where the error code of the one partition stands in a Produce answer: behind the correlation id (4), the header's
    tags (1), the length of the topics (1), the name with its length (1 + n), the length of the partitions (1) and the
    index (4).
    """
    return 4 + 1 + 1 + 1 + len(topic) + 1 + 4


def fetch_frame(topic: str, partition: int, offset: int, fetch_bytes: int, max_wait_ms: int = 100) -> bytes:
    """A Fetch request from ``offset`` on."""
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=fetch_bytes,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=fetch_bytes)],
            )
        ],
    )
    return encode_request(request, FETCH_VERSION, 1, "load")


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
        self.free = list(peers)  # those that may have room in their windows

    def run(self) -> dict[str, float]:
        """Sends and receives; returns counts, times, and the processor time that it took here."""
        cpu_before = time.process_time()
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
                    free, self.free = self.free, []
                    for peer in free:
                        while len(peer.due) < self.window and not peer.unsent:
                            self._issue(peer, time.perf_counter())
                            issued += 1
            for key, events in self.selector.select(0.0005 if self.rate else 0.05):
                if events & selectors.EVENT_WRITE:
                    self._send(key.data)
                if events & selectors.EVENT_READ:
                    self._receive(key.data)
        elapsed = time.perf_counter() - begin
        return {
            "requests": len(self.latencies),
            "seconds": elapsed,
            "cpu_s": time.process_time() - cpu_before,
            "received_bytes": self.received,
            **percentiles(self.latencies),
        }

    def _issue(self, peer: Peer, due: float) -> None:
        peer.due.append(due)
        frame = peer.frames[peer.turn]
        peer.turn = (peer.turn + 1) % len(peer.frames)
        peer.unsent = memoryview(bytes(peer.unsent) + bytes(frame)) if peer.unsent else frame
        self._send(peer)

    def _send(self, peer: Peer) -> None:
        while peer.unsent:
            try:
                peer.unsent = peer.unsent[peer.sock.send(peer.unsent) :]
            except BlockingIOError:
                self.selector.modify(peer.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
                peer.waits_to_send = True
                return
        if peer.waits_to_send:
            self.selector.modify(peer.sock, selectors.EVENT_READ, peer)
            peer.waits_to_send = False
            self.free.append(peer)

    def _receive(self, peer: Peer) -> None:
        count = peer.sock.recv_into(self.buffer)
        if count == 0:
            raise ConnectionError("the broker closed the connection")
        self.received += count
        self.free.append(peer)
        position = 0
        while position < count:
            if peer.left:
                taken = min(peer.left, count - position)
                if (wanted := peer.error_position + 2 - len(peer.answer)) > 0 and peer.error_position >= 0:
                    peer.answer += self.buffer[position : position + min(taken, wanted)]
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
                if peer.answer:
                    check_produced(peer.answer, peer.error_position)
                    peer.answer.clear()


def open_all(peers: Sequence[Peer]) -> None:
    """Sends one Produce on each connection and receives the answers.

    Raises:
        LoadError: the broker answered with an error code.
    """
    for peer in peers:
        peer.sock.sendall(peer.frames[0])
    for peer in peers:
        answer = b""
        for size in (4, None):
            wanted = struct.unpack(">i", answer)[0] if size is None else size
            answer = peer.sock.recv(wanted, socket.MSG_WAITALL)
            if len(answer) < wanted:
                raise ConnectionError("the broker closed the connection")
        check_produced(answer, peer.error_position)


def check_produced(answer: bytes | bytearray, position: int) -> None:
    """Checks the error code at ``position`` of an answer to Produce.

    Raises:
        LoadError: it is not 0.
    """
    (error,) = struct.unpack_from(">h", answer, position)
    if error:
        raise LoadError(f"the broker answered a produce request with error {error}")


class EndToEnd:
    """Paced batches of one size to one partition, and a consumer at its end."""

    def __init__(self, job: dict[str, Any]) -> None:
        frame, self.records = produce_frame(job["topic"], 0, job["record_bytes"], job["batch_bytes"], job["acks"])
        self.job = job
        self.frame = frame
        self.producer = connect(job)
        self.consumer = connect(job)
        self.offset = int(job["offset"])
        self.due: list[float] = []
        self.seen = 0
        self.latencies: list[float] = []
        self.received = 0

    def run(self) -> dict[str, float]:
        """Sends for the job's seconds, then waits for what has not arrived."""
        selector = selectors.DefaultSelector()
        self.producer.setblocking(False)
        self.consumer.setblocking(False)
        selector.register(self.producer, selectors.EVENT_READ)
        selector.register(self.consumer, selectors.EVENT_READ)
        answers, fetched, unsent = bytearray(), bytearray(), bytearray()
        begin = time.perf_counter()
        end, rate = begin + self.job["seconds"], self.job["rate"]
        position = produce_error_position(self.job["topic"])
        self._fetch()
        while True:
            now = time.perf_counter()
            if now >= end and self.seen == len(self.due):
                break
            if now >= end + 30:
                raise LoadError(f"{len(self.due) - self.seen} batches did not arrive within 30 s")
            while now < end and len(self.due) < (now - begin) * rate:
                self.due.append(begin + len(self.due) / rate)
                unsent += self.frame
            if unsent:
                with contextlib.suppress(BlockingIOError):
                    del unsent[: self.producer.send(unsent)]
            for key, _ in selector.select(0.0005):
                into = answers if key.fileobj is self.producer else fetched
                chunk = key.fileobj.recv(RECEIVE_BYTES)  # type: ignore[union-attr]
                if not chunk:
                    raise ConnectionError("the broker closed the connection")
                into += chunk
            for answer in frames_of(answers):
                check_produced(answer, position)
            for answer in frames_of(fetched):
                self._arrived(answer)
        return {
            "requests": len(self.latencies),
            "seconds": time.perf_counter() - begin,
            "received_bytes": self.received,
            "records": len(self.latencies) * self.records,
            "sent_bytes": len(self.due) * len(self.frame),
            **percentiles(self.latencies),
        }

    def _fetch(self) -> None:
        self.consumer.sendall(fetch_frame(self.job["topic"], 0, self.offset, TAIL_FETCH_BYTES, 500))

    def _arrived(self, answer: bytes) -> None:
        now = time.perf_counter()
        _, response = decode_response(FetchResponse, FETCH_VERSION, answer)
        part = response.responses[0].partitions[0]
        if response.error_code or part.error_code:
            raise LoadError(f"the broker answered a fetch with error {response.error_code or part.error_code}")
        size = len(part.records) if part.records is not None else 0
        self.received += size
        at = 0
        while size - at >= 12:
            length = 12 + struct.unpack_from(">i", part.records, at + 8)[0]  # type: ignore[arg-type]
            if size - at < length:
                break  # the broker cut the last batch at the limit; the next fetch brings it whole
            self.latencies.append(now - self.due[self.seen])
            self.seen += 1
            self.offset += self.records
            at += length
        self._fetch()


def percentiles(latencies: list[float]) -> dict[str, float]:
    """Median and tails in milliseconds; -1 when there was nothing."""
    ordered = sorted(latencies)
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3) if ordered else -1.0
        for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999))
    }


def frames_of(buffer: bytearray) -> Iterator[bytes]:
    """Takes the whole frames (without their sizes) out of what was received."""
    while len(buffer) >= 4:
        end = 4 + struct.unpack_from(">i", buffer)[0]
        if len(buffer) < end:
            return
        frame = bytes(buffer[4:end])
        del buffer[:end]
        yield frame


def connect(job: dict[str, Any], partition: int = 0) -> socket.socket:
    """A connection to the leader of a partition: ``job["leaders"]`` names them, else one leads all."""
    leaders = job.get("leaders") or [(job["host"], job["port"])]
    host, port = leaders[partition % len(leaders)]
    sock = socket.create_connection((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def main() -> None:
    """Runs one job from the command line."""
    job = json.loads(sys.argv[1])
    if job["api"] == "end-to-end":
        print(BEGUN, flush=True)
        print(json.dumps(EndToEnd(job).run()))
        return
    connections, partitions = int(job["connections"]), int(job["partitions"])
    topic, records = str(job["topic"]), 1
    error_position = produce_error_position(topic) if job["api"] == "produce" else -1
    frames: list[memoryview] = []
    for partition in range(partitions):
        if job["api"] == "produce":
            frame, records = produce_frame(topic, partition, job["record_bytes"], job["batch_bytes"], job["acks"])
        else:
            frame = fetch_frame(topic, partition, job["offset"], job["fetch_bytes"])
        frames.append(memoryview(frame))
    # Connections share the partitions out; one connection alone writes to all of them in turn.
    peers = [
        Peer(
            connect(job, number % partitions),
            frames[number % partitions :: min(connections, partitions)],
            error_position,
        )
        for number in range(connections)
    ]
    if job["api"] == "produce":
        open_all(peers)
    print(BEGUN, flush=True)
    result = Load(peers, job["window"], job["rate"], job["seconds"]).run()
    result["records"] = result["requests"] * records
    result["sent_bytes"] = result["requests"] * len(frames[0])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
