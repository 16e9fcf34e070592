"""A load of consumers that wait at the end of one partition: ``python -m benchmarks.broker.many.consumers JOB``.

Each consumer fetches in a session of its own, as librdkafka does. A producer on one more connection sends a batch when
all consumers have received the one before, so that each batch ends the waits of all. Runs in a process of its own until
it is killed; the broker counts the fetches.
"""

from __future__ import annotations

import json
import socket
import struct
import sys

from benchmarks.broker.load import FETCH_VERSION, produce_frame

from moldau.protocol.framing import decode_response, encode_request
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.protocol.messages.produce import ProduceResponse

WAIT_MS = 30_000


class Peer:
    """A connection with one request in flight."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, frame: bytes) -> bytes:
        """Sends a request and returns its answer."""
        self.socket.sendall(frame)
        return self.answer()

    def answer(self) -> bytes:
        """Returns the next answer, without its size."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        data = self.socket.recv(count, socket.MSG_WAITALL)
        if len(data) < count:
            raise EOFError("the broker closed a connection")
        return data


def fetch_frame(topic: str, session_id: int, epoch: int, offset: int) -> bytes:
    """A fetch of a session that moves its one partition to ``offset``; it waits for a byte, but the first does not."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=WAIT_MS if session_id else 0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    return encode_request(request, FETCH_VERSION, 1, "tails")


def consume(host: str, port: int, topic: str, consumers: int, batch_bytes: int) -> None:
    """Produces batches and lets all consumers fetch each of them, until the process is killed."""
    producer = Peer(host, port)
    produced, records = produce_frame(topic, 0, 100, batch_bytes, 1)
    peers = [Peer(host, port) for _ in range(consumers)]
    _, first = decode_response(ProduceResponse, 11, producer.ask(produced))
    result = first.responses[0].partition_responses[0]
    assert not result.error_code, result
    offset = result.base_offset + records
    sessions = []
    for peer in peers:
        _, opened = decode_response(FetchResponse, FETCH_VERSION, peer.ask(fetch_frame(topic, 0, 0, offset)))
        assert opened.session_id, opened
        sessions.append(opened.session_id)
    epoch = 0
    while True:
        epoch += 1
        for peer, session in zip(peers, sessions, strict=True):
            peer.socket.sendall(fetch_frame(topic, session, epoch, offset))
        producer.ask(produced)
        offset += records
        for peer in peers:
            assert len(peer.answer()) > batch_bytes, "an answer without the batch"


if __name__ == "__main__":
    consume(**json.loads(sys.argv[1]))
