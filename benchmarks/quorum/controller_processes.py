"""Measures three controllers as real processes on this machine: committed changes per second, latency, failover.

    python benchmarks/quorum/controller_processes.py [SECONDS]

A change is an AlterClientQuotas request with one value, sent to the active controller and answered when it is durable
on a majority (fdatasync). Failover is the time from kill -9 of the active controller to the next change that is
answered, seen by a client that tries the others.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    OpData,
)
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.ports.real import real_environment
from moldau_quorum.broker_side.controller_client import ControllerClient

FAILOVERS = 7


def free_ports(count: int) -> list[int]:
    """Ports without a listener."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Quorum:
    """Three controller processes."""

    def __init__(self, directory: Path) -> None:
        """Writes the configuration files."""
        self.directory = directory
        self.voters = {101 + n: ("127.0.0.1", port) for n, port in enumerate(free_ports(3))}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for node_id, (host, port) in self.voters.items():
            lines = [
                "process.roles=controller",
                f"node.id={node_id}",
                f"listeners=CONTROLLER://{host}:{port}",
                "controller.listener.names=CONTROLLER",
                "controller.quorum.voters=" + ",".join(f"{n}@{h}:{p}" for n, (h, p) in self.voters.items()),
                f"log.dirs={directory}/{node_id}",
            ]
            (directory / f"{node_id}.properties").write_text("\n".join(lines))

    def start(self, node_id: int) -> None:
        """Starts one controller."""
        with (self.directory / f"{node_id}.log").open("ab") as output:
            self.processes[node_id] = subprocess.Popen(
                [sys.executable, "-m", "moldau_cli", "server", str(self.directory / f"{node_id}.properties")],
                stdout=output,
                stderr=output,
            )

    def kill(self, node_id: int) -> None:
        """kill -9."""
        process = self.processes.pop(node_id)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Ends all."""
        for node_id in list(self.processes):
            self.kill(node_id)


def change(number: int) -> AlterClientQuotasRequest:
    """A change of one value."""
    entity = AlterClientQuotasRequestEntityData(entity_type="user", entity_name=f"user-{number % 64}")
    operation = OpData(key="producer_byte_rate", value=float(number + 1))
    return AlterClientQuotasRequest(entries=[AlterClientQuotasRequestEntryData(entity=[entity], ops=[operation])])


async def load(connection: RpcConnection, in_flight: int, seconds: float) -> dict[str, object]:
    """Keeps ``in_flight`` changes under way."""
    latencies: list[float] = []
    ends = time.perf_counter() + seconds

    async def worker(first: int) -> None:
        number = first
        while time.perf_counter() < ends:
            number += in_flight
            began = time.perf_counter()
            response = await connection.request(change(number))
            assert isinstance(response, AlterClientQuotasResponse)
            assert response.entries[0].error_code == ErrorCode.NONE, response
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number in range(in_flight):
            nursery.start_soon(worker, number)
    elapsed = time.perf_counter() - began
    latencies.sort()
    return {
        "in_flight": in_flight,
        "changes_per_second": round(len(latencies) / elapsed),
        "latency_ms_median": round(latencies[len(latencies) // 2] * 1000, 2),
        "latency_ms_p99": round(latencies[int(len(latencies) * 0.99)] * 1000, 2),
    }


async def run(quorum: Quorum, seconds: float) -> None:
    """Prints the figures."""
    environment = real_environment()
    for node_id in quorum.voters:
        quorum.start(node_id)
    client = ControllerClient(environment, quorum.voters, client_id="benchmark")
    await client.request(change(0), AlterClientQuotasResponse, timeout_ms=60_000)
    host, port = quorum.voters[client.active_controller_id]
    for in_flight in (1, 64):
        connection = await RpcConnection.open(environment, host, port, "benchmark")
        print(json.dumps(await load(connection, in_flight, seconds)))
        connection.close()
    times: list[float] = []
    for number in range(FAILOVERS):
        await client.request(change(number), AlterClientQuotasResponse, timeout_ms=60_000)
        victim = client.active_controller_id
        began = time.perf_counter()
        quorum.kill(victim)
        await client.request(change(number + 1), AlterClientQuotasResponse, timeout_ms=60_000)
        times.append(time.perf_counter() - began)
        quorum.start(victim)
        await trio.sleep(4)
    print(
        json.dumps(
            {
                "failovers": len(times),
                "median_seconds": round(statistics.median(times), 3),
                "longest_seconds": round(max(times), 3),
                "all_seconds": [round(t, 3) for t in times],
            }
        )
    )


def main() -> None:
    """Runs the benchmark in a temporary directory."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    with tempfile.TemporaryDirectory(dir=os.environ.get("MOLDAU_BENCH_DIR")) as name:
        quorum = Quorum(Path(name))
        try:
            trio.run(run, quorum, seconds)
        except BaseException:
            for log in sorted(Path(name).glob("*.log")):
                print(log.name, log.read_text()[-2000:], file=sys.stderr)
            raise
        finally:
            quorum.stop()


if __name__ == "__main__":
    main()
