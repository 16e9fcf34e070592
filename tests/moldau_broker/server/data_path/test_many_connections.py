"""Goal: a small produce on one of many connections costs little more than one of many on the same connection, and the
fetches that wait for it leave without a step of a task for each.

Method: a broker on a virtual network without jitter, so that requests of all connections arrive in one instant. The
tests count calls of Moldau's functions, steps of tasks, and writes; they measure no time.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.implementation import EXTENSIONS
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import IMPLEMENTATION
from moldau.runtime.net.receive_buffer import ReceiveBuffer
from moldau.runtime.net.serving.connection_loop import LARGE_BUFFER_MS
from moldau.runtime.net.serving.turns import CONNECTIONS_MAX
from moldau_jepsen.world.disk.disk import VirtualFile
from moldau_jepsen.world.network.network import NetworkProfile
from support.cluster.broker_cluster import Cluster, batch, frame, read_frame, run_cluster

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Connection

CONNECTIONS = 2 * CONNECTIONS_MAX
ROUNDS = 4
CONSUMERS = 20
RECORDS = 9
LARGE_BYTES = 16 * 1024
"""Size of a first receive buffer."""
FETCH_CALLS = 102
"""Of Moldau's functions, for a fetch that waits for a batch, from its arrival to its answer; with its part of the
produce."""
FETCH_STEPS = 2
"""Of tasks, for the answers to all fetches that one batch ends: turns for the fetches and for the produce."""
CALLS = 31
"""Of Moldau's functions, for one request from its arrival to its answer."""
STEPS_PER_TURN = 2
"""Of tasks: the one of the turn, its wake-up, and what the broker does besides."""

BUILT = all(importlib.util.find_spec(name) is not None for name in EXTENSIONS)
compiled = pytest.mark.skipif(
    IMPLEMENTATION == "python" or not BUILT, reason="the bounds are those of the compiled loops, which were not built"
)


class Work(trio.abc.Instrument):
    """Counts calls of Moldau's functions outside the simulated world, and steps of the broker's tasks."""

    def __init__(self) -> None:
        self.own = trio.lowlevel.current_task()
        self.calls = self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += task.name.startswith("moldau.runtime.net") or "ConnectionLoop" in task.name

    def note(self, called: Any, event: str, _: object) -> None:
        if event == "call":
            name = called.f_code.co_filename
            if "/moldau" in name and "/moldau_jepsen/" not in name and "/tests/" not in name:
                self.calls += 1


def request(records: int = RECORDS) -> bytes:
    partition = PartitionProduceData(index=0, records=batch(*[b"x" * 100] * records))
    topic = TopicProduceData(name="t", partition_data=[partition])
    return frame(ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[topic]), 12)


def wait_at(offset: int) -> bytes:
    """A fetch without a session that waits for the record at ``offset``."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[wanted])]
    return frame(FetchRequest(max_wait_ms=30_000, min_bytes=1, max_bytes=1 << 20, topics=topics), 12)


async def ask_all(connections: list[Connection], asked: bytes) -> None:
    """Sends a request on each connection in the same instant, and receives the answers."""
    for connection in connections:
        connection.send_nowait([asked])
    for connection in connections:
        assert await read_frame(connection) is not None


@compiled
def test_work_of_a_produce_on_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = 0
    append = VirtualFile.append

    def counted(self: VirtualFile, buffers: Any) -> int:
        nonlocal writes
        writes += "/t-0/" in self.path
        return append(self, buffers)

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        await cluster.leader("t")
        connections = [await cluster.client(1).raw() for _ in range(CONNECTIONS)]
        asked = request()
        await ask_all(connections, asked)
        monkeypatch.setattr(VirtualFile, "append", counted)
        work = Work()
        trio.lowlevel.add_instrument(work)
        sys.setprofile(work.note)
        try:
            for _ in range(ROUNDS):
                await ask_all(connections, asked)
        finally:
            sys.setprofile(None)
            trio.lowlevel.remove_instrument(work)
        requests, turns = CONNECTIONS * ROUNDS, math.ceil(CONNECTIONS / CONNECTIONS_MAX) * ROUNDS

        assert work.calls <= CALLS * requests, work.calls / requests
        assert work.steps <= STEPS_PER_TURN * turns, work.steps / turns
        assert turns / 2 <= writes <= 2 * turns, f"{writes} writes in {turns} turns"
        for connection in connections:
            connection.close()

    run_cluster(scenario, profile=NetworkProfile(delay_jitter=0.0, spike_probability=0.0, fragment_probability=0.0))


def test_busy_connections_keep_their_large_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request beyond the first buffer makes it grow once, not once a second; a quiet connection gives it back."""
    grown = 0
    enlarge = ReceiveBuffer._enlarge

    def counted(self: ReceiveBuffer, size: int) -> None:
        nonlocal grown
        grown += size > LARGE_BYTES
        enlarge(self, size)

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        await cluster.leader("t")
        connection = await cluster.client(1).raw()
        asked = request(2 * LARGE_BYTES // 100)
        monkeypatch.setattr(ReceiveBuffer, "_enlarge", counted)
        await ask_all([connection], asked)
        assert (first := grown) > 0
        for _ in range(5):
            await trio.sleep(2)  # of virtual time: the sweeper has looked at all connections
            await ask_all([connection], asked)
        assert grown == first
        await trio.sleep(2 * LARGE_BUFFER_MS / 1000)
        await ask_all([connection], asked)
        assert grown == 2 * first
        connection.close()

    run_cluster(scenario)


@compiled
def test_waiting_fetches_leave_in_the_turn_of_the_produce() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        await cluster.leader("t")
        producer = await cluster.client(1).raw()
        consumers = [await cluster.client(1).raw() for _ in range(CONSUMERS)]
        asked = request()
        work = Work()

        async def round_of(offset: int) -> None:
            fetch = wait_at(offset)
            for consumer in consumers:
                consumer.send_nowait([fetch])
            await trio.sleep(0.01)  # of virtual time: all fetches wait
            await ask_all([producer], asked)
            for consumer in consumers:
                assert len(await read_frame(consumer)) > RECORDS * 100

        await round_of(0)
        trio.lowlevel.add_instrument(work)
        sys.setprofile(work.note)
        try:
            for number in range(1, 1 + ROUNDS):
                await round_of(RECORDS * number)
        finally:
            sys.setprofile(None)
            trio.lowlevel.remove_instrument(work)
        fetches = CONSUMERS * ROUNDS
        assert work.calls <= FETCH_CALLS * fetches, work.calls / fetches
        assert work.steps <= FETCH_STEPS * ROUNDS, work.steps / ROUNDS
        for connection in (producer, *consumers):
            connection.close()

    run_cluster(scenario, profile=NetworkProfile(delay_jitter=0.0, spike_probability=0.0, fragment_probability=0.0))
