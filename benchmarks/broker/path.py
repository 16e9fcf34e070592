"""The cost of one request for a broker between its frame and its answer:

    python -m benchmarks.broker.path [--requests N] [--case NAME] [--authorizer] [--profile]
    python -m benchmarks.broker.path --connections N | --consumers N [--requests N] [--profile]

A broker and a controller run in this process, on real files in memory and real clocks. The program hands the frames of
one connection to its handler in a loop, as the connection loop does, and reports the processor time, the calls of
Python functions and the calls of C functions per request. With ``--connections`` a load generator in a process of its
own keeps one Produce of 1 KiB in flight on each of N connections instead, and the whole way from socket to socket
counts, the operating system's part included. With ``--consumers`` N consumers wait in fetch sessions for each batch of
one partition, and the cost is that of a fetch and its part of the produce. Under ``valgrind --tool=callgrind`` the
difference of two runs with different ``--requests`` is a count of instructions, which other load does not change.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import os
import pstats
import socket
import sys
import tempfile
import time
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import trio
from benchmarks.broker.load import FETCH_VERSION, PRODUCE_VERSION, fetch_frame, produce_frame

from moldau.protocol.framing import decode_response, encode_request
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.runtime.config import BROKER_CONFIG
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.net.serving.request_times import RequestTimes
from moldau.runtime.ports.real import real_environment
from moldau.runtime.sasl.core.identity import Identity
from moldau_broker.server import run_broker
from moldau_broker.server.data_path.connection import BrokerConnection, listener_services
from moldau_broker.server.handlers.apis import BASE_APIS, api_table
from moldau_quorum.node.server import run_controller

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.config import Config
    from moldau.runtime.net.serving.answers import Answer, Preparation
    from moldau_broker.server.handlers.context import BrokerContext
    from moldau_broker.server.lifecycle.broker import Broker

KIB = 1024
PARTITIONS = 100
TOPIC = "path"
WARM_UP = 200


def free_ports(count: int) -> list[int]:
    """Ports without a listener."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def produce_frames(partitions: int, batch_bytes: int) -> list[bytearray]:
    """Frames without their size prefix, as the connection loop hands them over."""
    frames = [produce_frame(TOPIC, index, 100, batch_bytes, 1)[0] for index in range(partitions)]
    return [bytearray(frame[4:]) for frame in frames]


def session_frame(session_id: int, session_epoch: int, partitions: int, offset: int) -> bytearray:
    """A fetch of a session over ``partitions`` partitions, or of none."""
    wanted = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20) for index in range(partitions)
    ]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=TOPIC, partitions=wanted)] if wanted else [],
    )
    return bytearray(encode_request(request, FETCH_VERSION, 1, "path")[4:])


class Driver:
    """Drives the handler of one connection."""

    def __init__(self, context: BrokerContext) -> None:
        services = listener_services(context, "PLAINTEXT", api_table(BASE_APIS))
        connection: Any = SimpleNamespace(peer_address=("127.0.0.1", 1))
        identity = Identity(
            principal="User:ANONYMOUS", host="127.0.0.1", listener_name="PLAINTEXT", security_protocol="PLAINTEXT"
        )
        peer: Any = SimpleNamespace(identity=identity)
        self.context = context
        self.handler = BrokerConnection(services, connection, peer)

    def answer(self, frame: bytearray) -> Answer | Preparation:
        """Returns the answer to one frame, after a flush of its own."""
        answer = self.handler.handle(memoryview(frame))
        self.handler.flush()
        return answer

    def produce(self, partitions: int, batch_bytes: int) -> Callable[[int], None]:
        """Produces to ``partitions`` in turn, a batch in each request."""
        frames = produce_frames(partitions, batch_bytes)

        def run(count: int) -> None:
            for number in range(count):
                assert isinstance(self.answer(frames[number % len(frames)]), tuple)

        return run

    def fetch(self) -> Callable[[int], None]:
        """Fetches 16 KiB from the start of a partition, without a session."""
        self.produce(1, 16 * KIB)(8)
        frame = bytearray(fetch_frame(TOPIC, 0, 0, 16 * KIB, 0)[4:])

        def run(count: int) -> None:
            for _ in range(count):
                assert isinstance(self.answer(frame), list | tuple)

        return run

    def idle_session(self, busy: int = 0) -> Callable[[int], None]:
        """Fetches in a session of many partitions; ``busy`` of them have records behind the position."""
        replicas = self.context.replicas
        end = max(int(replicas.partitions[TOPIC, index].log.log_end_offset) for index in range(PARTITIONS))
        assert not end, "the case runs on empty partitions"
        first = self.answer(session_frame(0, 0, PARTITIONS, 0))
        assert isinstance(first, list)
        data = b"".join(part for part in first if isinstance(part, bytes))
        _, opened = decode_response(FetchResponse, FETCH_VERSION, memoryview(data)[4:])
        epoch = [0]
        if busy:
            self.produce(busy, 16 * KIB)(busy)

        def run(count: int) -> None:
            for _ in range(count):
                epoch[0] += 1
                self.answer(session_frame(opened.session_id, epoch[0], 0, 0))

        return run


def counted(run: Callable[[int], None], count: int) -> tuple[float, float]:
    """Calls of Python functions and of C functions per request."""
    calls = {"call": 0, "c_call": 0}

    def note(_frame: object, event: str, _arg: object) -> None:
        if event in calls:
            calls[event] += 1

    sys.setprofile(note)
    try:
        run(count)
    finally:
        sys.setprofile(None)
    return calls["call"] / count, calls["c_call"] / count


def measure(name: str, run: Callable[[int], None], options: argparse.Namespace) -> None:
    """Reports one case."""
    run(WARM_UP)
    begin = time.process_time()
    run(options.requests)
    cpu_us = (time.process_time() - begin) / options.requests * 1e6
    calls, c_calls = counted(run, 200)
    sys.stdout.write(f"{name}: {cpu_us:.1f} us, {calls:.1f} Python calls, {c_calls:.1f} C calls per request\n")
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(run, options.requests)
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


async def measure_connections(port: int, options: argparse.Namespace, answered: Callable[[], int]) -> None:
    """Reports the cost of requests that arrive on many connections, one in flight on each.

    The measurement begins when each connection has had some answers, so that it leaves out the cost of connecting.
    """
    job = {
        "api": "produce",
        "topic": TOPIC,
        "host": "127.0.0.1",
        "port": port,
        "connections": options.connections,
        "partitions": options.partitions,
        "record_bytes": 100,
        "batch_bytes": options.batch_bytes,
        "acks": 1,
        "window": 1,
        "rate": 0,
        "seconds": 3_600.0,
    }
    command = [sys.executable, "-m", "benchmarks.broker.load", json.dumps(job)]
    await measure_load(command, 10 * options.connections, f"{options.connections} connections", options, answered)


async def measure_consumers(port: int, options: argparse.Namespace, answered: Callable[[], int]) -> None:
    """Reports what a fetch costs that waits for the next batch of a partition, together with those of others."""
    count = options.consumers
    job = {"topic": TOPIC, "host": "127.0.0.1", "port": port, "consumers": count, "batch_bytes": options.batch_bytes}
    command = [sys.executable, "-m", "benchmarks.broker.many.consumers", json.dumps(job)]
    await measure_load(command, 10 * count, f"{count} waiting consumers", options, answered)


async def run_load(command: list[str]) -> None:
    """Runs a load until cancelled.

    Raises:
        RuntimeError: the load has ended, for example because the broker refused a request.
    """
    ended = await trio.run_process(command, check=False)
    raise RuntimeError(f"the load ended with code {ended.returncode}")


async def measure_load(
    command: list[str], warm_up: int, name: str, options: argparse.Namespace, answered: Callable[[], int]
) -> None:
    """Reports what the requests of a load cost that runs in a process of its own."""
    profile = cProfile.Profile()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_load, command)
        while answered() < warm_up:  # noqa: ASYNC110
            await trio.sleep(0.05)  # no event reports it
        for _ in range(options.rounds):
            begin, before = os.times(), answered()
            if options.profile:
                profile.enable()
            while answered() < before + options.requests:  # noqa: ASYNC110
                await trio.sleep(0.05)
            profile.disable()
            end, requests = os.times(), answered() - before
            own = (end.user - begin.user) / requests * 1e6
            kernel = (end.system - begin.system) / requests * 1e6
            sys.stdout.write(
                f"{name}: {own + kernel:.1f} us per request, {kernel:.1f} of them in the "
                f"kernel ({requests} requests in {end.elapsed - begin.elapsed:.1f} s)\n"
            )
            sys.stdout.flush()
        nursery.cancel_scope.cancel()
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(60)


def node_settings(directory: str, *, authorizer: bool) -> tuple[Config, Config, int]:
    """Returns the settings of the controller and the broker, and the port of the broker."""
    controller_port, broker_port = free_ports(2)
    security = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:ANONYMOUS"}
    common = {
        **(security if authorizer else {}),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"101@127.0.0.1:{controller_port}",
    }
    controller = BROKER_CONFIG.parse(
        {
            **common,
            "process.roles": "controller",
            "node.id": "101",
            "listeners": f"CONTROLLER://127.0.0.1:{controller_port}",
            "log.dirs": f"{directory}/c",
        }
    )
    broker = BROKER_CONFIG.parse(
        {
            **common,
            "process.roles": "broker",
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{broker_port}",
            "log.dirs": f"{directory}/b",
            "log.segment.bytes": str(64 * KIB * KIB),
        }
    )
    return controller, broker, broker_port


async def measure_all(broker: Broker, broker_port: int, times: RequestTimes, options: argparse.Namespace) -> None:
    """Makes the topic and measures."""
    client = await RpcConnection.open(real_environment(), "127.0.0.1", broker_port, "path")
    topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    answer = await client.request_as(
        CreateTopicsResponse, CreateTopicsRequest(topics=[topic], timeout_ms=30_000), timeout_ms=30_000
    )
    client.close()
    assert not answer.topics[0].error_code, answer
    replicas = broker.context.replicas
    while sum(replica.is_leader for replica in replicas.partitions.values()) < PARTITIONS:  # noqa: ASYNC110
        await trio.sleep(0.01)  # no event reports it
    if options.connections:
        await measure_connections(broker_port, options, lambda: times.counts.get((0, PRODUCE_VERSION), 0))
        return
    if options.consumers:
        await measure_consumers(broker_port, options, lambda: times.counts.get((1, FETCH_VERSION), 0))
        return
    driver = Driver(broker.context)
    cases: dict[str, Callable[[], Callable[[int], None]]] = {
        "idle session": driver.idle_session,
        "busy session": lambda: driver.idle_session(busy=1),
        "produce 16 KiB": lambda: driver.produce(1, 16 * KIB),
        "produce 1 KiB": lambda: driver.produce(1, KIB),
        "produce 16 KiB, 100 partitions": lambda: driver.produce(PARTITIONS, 16 * KIB),
        "fetch": driver.fetch,
    }
    for name, prepare in cases.items():
        if options.case in (None, name):
            measure(name, prepare(), options)


async def in_one_process(options: argparse.Namespace, directory: str) -> None:
    """Starts the two nodes, measures, and stops the broker first, because it tells the controller."""
    controller, broker, broker_port = node_settings(directory, authorizer=options.authorizer)
    environment, times = real_environment(), RequestTimes()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_controller, environment, controller))
        async with trio.open_nursery() as brokers:
            running = await brokers.start(partial(run_broker, environment, broker, requests=times))
            await measure_all(running, broker_port, times, options)
            brokers.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


def main() -> None:
    """Runs all cases, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--case", default=None)
    parser.add_argument("--authorizer", action="store_true", help="check the rights of each request")
    parser.add_argument("--connections", type=int, default=0, help="connections with one request in flight each")
    parser.add_argument("--consumers", type=int, default=0, help="consumers that wait at the end of one partition")
    parser.add_argument("--partitions", type=int, default=1, help="partitions that the connections share out")
    parser.add_argument("--batch-bytes", type=int, default=KIB, help="bytes of a batch")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over connections")
    parser.add_argument("--profile", action="store_true", help="show where each case spends its time")
    parser.add_argument("--directory", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        trio.run(in_one_process, options, directory)


if __name__ == "__main__":
    main()
