"""Goal: records for a consumer that catches up go unchanged from the page cache to its socket.

Method: a real controller and a real broker in this process, on real sockets and files, with a disk that counts the
reads of each ``.log`` file, and a count of every sendfile. The test compares the received records with the produced
ones, also for a consumer that reads some thousand bytes at a time, so that the broker's sends end inside a batch.
"""

from __future__ import annotations

import random
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import decode_response
from moldau.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import iterate_batches
from moldau.runtime.config import BROKER_CONFIG
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.ports.real import RealConnection, real_environment
from moldau_broker.server import run_broker
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_quorum.node.server import run_controller
from support.cluster.broker_cluster import batch, frame
from support.proof import proof_beyond

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TOPIC = "backlog"
SEGMENT_BYTES = 1024 * 1024
BATCH_BYTES = 100_000
BATCHES = 36  # three closed segments and a large part of the active one
SCAN_BYTES_MAX = 8192
"""Of a log file for one fetch: where the index does not say it exactly, headers of batches are read."""


class CountingFile:
    """A ``File`` port that counts the bytes read from the file."""

    def __init__(self, file, reads: list[int]) -> None:
        self._file, self._reads = file, reads

    def __getattr__(self, name: str):
        return getattr(self._file, name)

    def read(self, position: int, count: int) -> bytes:
        found = self._file.read(position, count)
        self._reads.append(len(found))
        return found

    def read_into(self, buffers, position: int) -> int:
        found = self._file.read_into(buffers, position)
        self._reads.append(found)
        return found


class CountingDisk:
    """A ``Disk`` port; ``reads`` has the size of each read of a log file."""

    def __init__(self, disk) -> None:
        self._disk = disk
        self.reads: list[int] = []

    def __getattr__(self, name: str):
        return getattr(self._disk, name)

    def open(self, path: str, mode):
        file = self._disk.open(path, mode)
        return CountingFile(file, self.reads) if f"/{TOPIC}-0/" in path and path.endswith(".log") else file


class Broker:
    """The parts that a test inspects."""

    def __init__(self, disk: CountingDisk, address: tuple[str, int], directory, sent: list[tuple[int, int]]) -> None:
        self.disk, self.address, self.directory = disk, address, directory
        self.sent = sent  # of each sendfile: bytes asked for, bytes taken

    async def connection(self) -> RpcConnection:
        return await RpcConnection.open(real_environment(2), *self.address, "test")


def with_broker(
    monkeypatch, directory, test: Callable[[Broker], Awaitable[None]], *, socket_send_bytes: int = 0
) -> None:
    """``socket_send_bytes``: what the kernel takes of the broker's before its peer has read it; 0 leaves it to it."""
    sent: list[tuple[int, int]] = []
    send_file = RealConnection.send_file_nowait

    def counted(connection: RealConnection, file, position: int, count: int) -> int:
        if socket_send_bytes:
            connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, socket_send_bytes)
        taken = send_file(connection, file, position, count)
        sent.append((count, taken))
        return taken

    monkeypatch.setattr(RealConnection, "send_file_nowait", counted)
    (port,) = take_free_ports(1)
    shared = {
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"101@127.0.0.1:{port}",
        "broker.heartbeat.interval.ms": "100",
    }
    controller = BROKER_CONFIG.parse(
        {
            "process.roles": "controller",
            "node.id": "101",
            "listeners": f"CONTROLLER://127.0.0.1:{port}",
            "log.dirs": str(directory / "controller"),
            **shared,
        }
    )
    broker = BROKER_CONFIG.parse(
        {
            "process.roles": "broker",
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory / "broker"),
            **shared,
        }
    )
    environment = real_environment(1)
    disk = CountingDisk(environment.disk)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: run_controller(environment, controller, task_status=task_status))
            running = await nursery.start(
                lambda task_status: run_broker(
                    replace(environment, disk=disk), broker, shutdown=trio.Event(), task_status=task_status
                )
            )
            with trio.fail_after(60):
                await test(Broker(disk, running.addresses["PLAINTEXT"], directory / "broker", sent))
            nursery.cancel_scope.cancel()

    trio.run(main)


async def fill(broker: Broker) -> list[bytes]:
    """Creates the topic and sends the batches; returns the sent bytes."""
    draw = random.Random(9)
    batches = [batch(draw.randbytes(BATCH_BYTES)) for _ in range(BATCHES)]
    connection = await broker.connection()
    configs = [CreatableTopicConfig(name="segment.bytes", value=str(SEGMENT_BYTES))]
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, configs=configs)
    made = await connection.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), timeout_ms=20_000)
    assert made.topics[0].error_code == ErrorCode.NONE
    for offset, records in enumerate(batches):
        data = [TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=records)])]
        code = None
        while code in (None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            await trio.lowlevel.checkpoint()
            answer = await connection.request(
                ProduceRequest(acks=-1, timeout_ms=5000, topic_data=data), 9, timeout_ms=20_000
            )
            code = answer.responses[0].partition_responses[0].error_code
        assert (code, answer.responses[0].partition_responses[0].base_offset) == (ErrorCode.NONE, offset)
    connection.close()
    return batches


def fetch_request(offset: int, count: int) -> bytes:
    wanted = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=count)]
    topics = [FetchTopic(topic=TOPIC, partitions=wanted)]
    return frame(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, topics=topics), 11)


async def fetch(client: trio.SocketStream, offset: int, count: int, *, at_a_time: int) -> bytes:
    """Returns the records of one answer, received ``at_a_time`` bytes in each turn of the event loop."""
    await client.send_all(fetch_request(offset, count))
    received = bytearray()
    while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4]):
        part = await client.receive_some(at_a_time)
        assert part, "the broker has closed the connection"
        received += part
        await trio.lowlevel.checkpoint()
    _, answer = decode_response(FetchResponse, 11, memoryview(received)[4:])
    (found,) = answer.responses[0].partitions
    assert (answer.error_code, found.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    return bytes(found.records)


async def slow_client(address: tuple[str, int]) -> trio.SocketStream:
    """A client whose kernel buffers little."""
    sock = trio.socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await sock.connect(address)
    return trio.SocketStream(sock)


def without_what_the_broker_writes(records: bytes) -> bytes:
    """Batches without base offset and leader epoch, which the leader fills in; the CRC does not cover them."""
    cleared = bytearray(records)
    position = 0
    while position < len(cleared):
        size = 12 + int.from_bytes(cleared[position + 8 : position + 12])
        cleared[position : position + 8] = bytes(8)
        cleared[position + 12 : position + 16] = bytes(4)
        position += size
    return bytes(cleared)


@pytest.mark.parametrize(
    ("reader", "fetch_bytes"),
    proof_beyond(2, [("quick", 1_048_576), ("slow", 300_000), ("slow", 1_048_576), ("quick", 300_000)]),
)
def test_a_consumer_that_catches_up_is_served_by_sendfile_alone(monkeypatch, tmp_path, reader, fetch_bytes) -> None:
    async def test(broker: Broker) -> None:
        sent = await fill(broker)
        stored = b"".join(path.read_bytes() for path in sorted((broker.directory / f"{TOPIC}-0").glob("*.log")))
        assert len(list((broker.directory / f"{TOPIC}-0").glob("*.log"))) == 4, "closed segments and the active one"
        client = await slow_client(broker.address) if reader == "slow" else await trio.open_tcp_stream(*broker.address)
        broker.disk.reads.clear()
        broker.sent.clear()
        taken, fetched_bytes, fetches, offset = [], 0, 0, 0
        async with client:
            while offset < BATCHES:
                records = await fetch(client, offset, fetch_bytes, at_a_time=3_000 if reader == "slow" else 1 << 20)
                whole = [header for _, header in iterate_batches(memoryview(records))]
                assert whole, "each fetch returns a batch"
                offset = whole[-1].last_offset + 1
                taken.append(records[: sum(header.size_bytes for header in whole)])  # the last may be cut (KIP-74)
                fetched_bytes += len(records)
                fetches += 1
        received = b"".join(taken)
        assert received == stored, "what is on disk is what is sent"
        assert without_what_the_broker_writes(received) == without_what_the_broker_writes(b"".join(sent))
        assert sum(count for _, count in broker.sent) == fetched_bytes, "each record byte went by sendfile"
        assert sum(broker.disk.reads) <= fetches * SCAN_BYTES_MAX, "nothing but headers of batches was read"
        assert all(count < BATCH_BYTES for count in broker.disk.reads)
        partial = sum(asked > count for asked, count in broker.sent)
        if reader == "slow":
            assert partial > 10, "sends were cut"

    with_broker(monkeypatch, tmp_path, test, socket_send_bytes=8192 if reader == "slow" else 0)


def test_the_newest_records_of_many_small_fetches_are_gathered(monkeypatch, tmp_path) -> None:
    """The counters are not blind: what is small is read, and sent in one call with what stands around it."""

    async def test(broker: Broker) -> None:
        await fill(broker)
        connection = await broker.connection()
        data = [TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch(b"small"))])]
        await connection.request(ProduceRequest(acks=1, timeout_ms=5000, topic_data=data), 9, timeout_ms=20_000)
        connection.close()
        client = await trio.open_tcp_stream(*broker.address)
        broker.disk.reads.clear()
        broker.sent.clear()
        async with client:
            records = await fetch(client, BATCHES, 1 << 20, at_a_time=1 << 20)
        assert without_what_the_broker_writes(records) == without_what_the_broker_writes(batch(b"small"))
        assert broker.sent == []
        assert sum(broker.disk.reads) >= len(records)

    with_broker(monkeypatch, tmp_path, test)
