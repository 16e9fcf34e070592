"""The rate of the metadata quorum on this machine: three real processes on loopback, real files, real fdatasync.

    python benchmarks/quorum/raft.py [--engine raft|pysyncobj] [--kills 10] [--directory D]

Measured: committed operations per second and latency with 1 and with 64 in flight (100-byte commands, proposed on the
leader), and the time from ``kill -9`` of the leader to the next operation that is committed by its successor. Prints a
table for docs/benchmarks; ``--json`` prints one object.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from moldau.protocol.framing import decode_request_header
from moldau.runtime.net.serving.answers import CloseConnection
from moldau.runtime.net.serving.server import ServerLimits, serve
from moldau.runtime.ports.real import real_environment
from moldau_quorum.log.factory import metadata_log
from moldau_quorum.log.port import (
    CommittedEntry,
    EngineName,
    Leadership,
    LogPosition,
    MetadataLog,
    MetadataLogConfig,
    MetadataLogError,
    QuorumMessageRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = b"x" * 100


class Machine:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, entry: CommittedEntry) -> None:
        self.count += 1

    def leadership_changed(self, leadership: Leadership) -> None:
        pass

    def snapshot_pieces(self) -> Iterator[bytes]:
        return iter([b"%d" % self.count])

    def restore_begin(self) -> None:
        pass

    def restore_piece(self, piece: bytes) -> None:
        self.count = int(piece)

    def restore_end(self, position: LogPosition) -> None:
        pass


class Handler:
    """Hands the messages of the other voters over."""

    def __init__(self, log: MetadataLog) -> None:
        self._session = log.accept_session()

    def handle(self, frame: memoryview) -> None:
        try:
            self._session.handle(frame[decode_request_header(frame, 0).body_offset :])
        except QuorumMessageRefusedError as error:  # a voter that has yet to open its log
            raise CloseConnection(str(error), is_logged=True) from error

    def flush(self) -> None:
        pass

    def closed(self) -> None:
        self._session.close()


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


async def node(number: int, voters: dict[int, tuple[str, int]], directory: str, engine: EngineName) -> None:
    """One voter; obeys lines ``load IN_FLIGHT COUNT`` on its standard input while it leads."""
    environment = real_environment()
    config = MetadataLogConfig(node_id=number, directory=f"{directory}/{number}", voters=voters)
    log = metadata_log(engine, environment, config, Machine())
    listener = await environment.network.listen(*voters[number])
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, environment, listener, lambda connection: Handler(log), ServerLimits()))
        await nursery.start(log.run)
        nursery.start_soon(announce, log)
        stdin = trio.lowlevel.FdStream(os.dup(0))
        buffer = b""
        async for chunk in stdin:
            buffer += chunk
            while b"\n" in buffer:
                line, buffer = buffer.split(b"\n", 1)
                _, in_flight, count = line.split()
                await load(log, int(in_flight), int(count))
        nursery.cancel_scope.cancel()


async def announce(log: MetadataLog) -> None:
    """Reports when this node has become the leader and has committed an operation."""
    seen = Leadership()
    while True:
        seen = await log.wait_leadership_change(seen)
        if seen.active:
            try:
                await log.propose(COMMAND, epoch=seen.epoch)
            except MetadataLogError:
                continue
            say(event="active", node=log.node_id, at=time.monotonic())


async def load(log: MetadataLog, in_flight: int, count: int) -> None:
    """Proposes ``count`` operations."""
    latencies = []
    epoch = log.leadership.epoch
    left = count

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            begin = time.perf_counter()
            await log.propose(COMMAND, epoch=epoch)
            latencies.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(worker)
    seconds = time.perf_counter() - begin
    latencies.sort()
    say(
        event="load",
        in_flight=in_flight,
        operations_per_second=round(len(latencies) / seconds),
        median_ms=round(latencies[len(latencies) // 2] * 1000, 2),
        p99_ms=round(latencies[len(latencies) * 99 // 100] * 1000, 2),
    )


class Cluster:
    """Three processes and what they say."""

    def __init__(self, directory: str, engine: str, base_port: int) -> None:
        self.directory, self.engine = directory, engine
        self.voters = {number: ("127.0.0.1", base_port + number) for number in (1, 2, 3)}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        voters = ",".join(f"{key}@{host}:{port}" for key, (host, port) in self.voters.items())
        self.processes[number] = subprocess.Popen(
            [
                *(sys.executable, __file__, "--node", str(number), "--voters", voters),
                *("--directory", self.directory, "--engine", self.engine),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        output = self.processes[number].stdout
        assert output is not None
        os.set_blocking(output.fileno(), False)

    def wait_event(self, kind: str, seconds: float = 30.0) -> dict[str, Any]:
        """The next event of a kind from any node."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for process in self.processes.values():
                assert process.stdout is not None
                line = process.stdout.readline()
                if line:
                    event: dict[str, Any] = json.loads(line)
                    if event["event"] == kind:
                        return event
            time.sleep(0.001)
        raise TimeoutError(f"no {kind} event within {seconds} s")

    def load(self, leader: int, in_flight: int, count: int) -> dict[str, Any]:
        commands = self.processes[leader].stdin
        assert commands is not None
        commands.write(b"load %d %d\n" % (in_flight, count))
        commands.flush()
        return self.wait_event("load", 120.0)

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def fdatasync_ms(directory: str) -> float:
    """Median time of an append of 200 bytes with fdatasync."""
    path = pathlib.Path(directory) / "probe"
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(200):
            begin = time.perf_counter()
            file.write(b"x" * 200)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begin)
    path.unlink()
    return round(statistics.median(times) * 1000, 3)


def measure(directory: str, engine: str, kills: int, base_port: int) -> dict[str, Any]:
    cluster = Cluster(directory, engine, base_port)
    try:
        for number in cluster.voters:
            cluster.start(number)
        leader = cluster.wait_event("active")["node"]
        cluster.load(leader, 16, 2000)
        loads = [cluster.load(leader, 1, 1500), cluster.load(leader, 64, 20_000 if engine == "raft" else 5_000)]
        failovers = []
        for _ in range(kills):
            begin = time.monotonic()
            cluster.processes[leader].send_signal(signal.SIGKILL)
            cluster.processes[leader].wait()
            dead = leader
            del cluster.processes[dead]
            event = cluster.wait_event("active")
            failovers.append((event["at"] - begin) * 1000)
            leader = event["node"]
            cluster.start(dead)
            time.sleep(1.5)
    finally:
        cluster.stop()
    failovers.sort()
    return {
        "engine": engine,
        "loads": loads,
        "failover_ms": {
            "median": round(statistics.median(failovers)),
            "min": round(failovers[0]),
            "max": round(failovers[-1]),
            "kills": kills,
        },
        "fdatasync_ms": fdatasync_ms(directory),
        "machine": f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {platform.system()}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=[name.value for name in EngineName], default="raft")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--directory")
    parser.add_argument("--base-port", type=int, default=28_300)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--node", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--voters", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node is not None:
        voters = {}
        for part in options.voters.split(","):
            identifier, address = part.split("@")
            host, port = address.rsplit(":", 1)
            voters[int(identifier)] = (host, int(port))
        trio.run(node, options.node, voters, options.directory, EngineName(options.engine))
        return
    directory = options.directory or tempfile.mkdtemp(prefix="moldau-quorum-", dir=pathlib.Path.home())
    try:
        result = measure(directory, options.engine, options.kills, options.base_port)
    finally:
        if not options.directory:
            shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        print(json.dumps(result))
        return
    one, many = result["loads"]
    failover = result["failover_ms"]
    print("| engine | ops/s, 1 in flight | median, p99 | ops/s, 64 in flight | median, p99 | kill -9 to next commit |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {result['engine']} | {one['operations_per_second']:,} | {one['median_ms']}, {one['p99_ms']} ms "
        f"| {many['operations_per_second']:,} | {many['median_ms']}, {many['p99_ms']} ms "
        f"| {failover['median']} ms ({failover['min']} to {failover['max']}, {failover['kills']} kills) |"
    )
    print(f"\n{result['machine']}; one fdatasync of 200 bytes takes {result['fdatasync_ms']} ms here.")


if __name__ == "__main__":
    main()
