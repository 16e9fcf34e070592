"""Measures what many partitions cost three local brokers: creation, rest, failover, controlled stop, restart.

    python -m benchmarks.partitions [--counts 2000,20000] [--factors 1,3] [--idle 20] [--out docs/benchmarks]

Each row starts three controllers and three brokers as processes and creates the partitions in topics of 1,000.
Processor time is what the nodes used (user and system, ``/proc/PID/stat``); it depends less on other work of the
machine than times do. Rest is measured over ``--idle`` seconds without any client, beside the same cluster without
partitions.
``--out`` writes ``partitions.json``, ``partitions.md`` and ``partitions.svg``; other rows of the JSON file are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from benchmarks.partitions.page import Row, write_page

from moldau.admin import Admin, AdminError, NewTopic
from moldau.protocol.errors import ErrorCode
from moldau_jepsen.launcher import ClusterSpec, LauncherError, start_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau.admin import TopicDescription
    from moldau_jepsen.launcher import LocalCluster

TOPIC_PARTITIONS_MAX = 1000
TIMEOUT_S = 1200.0
POLL_S = 1.0
SETTLED_CORES = 0.03
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STOPPED = 2
"""The broker that is killed, started again, and stopped."""


def cpu_s(pid: int) -> float:
    """Returns the processor time of a process so far; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * PAGE_BYTES


class Bench:
    """A running cluster with its partitions."""

    def __init__(self, cluster: LocalCluster, row: Row) -> None:
        self.cluster = cluster
        self.row = row

    def pids(self, role: str) -> list[int]:
        """Returns the processes of a role."""
        nodes = self.cluster.brokers if role == "broker" else self.cluster.controllers
        return [node.pid for node in nodes if node.pid is not None]

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Adds the duration of a block, and the processor time of brokers and controllers that live at its end."""
        before = {pid: cpu_s(pid) for role in ("broker", "controller") for pid in self.pids(role)}
        begun = time.monotonic()
        yield
        self.row.figures[f"{name}_s"] = round(time.monotonic() - begun, 2)
        for role in ("broker", "controller"):
            used = sum(max(0.0, cpu_s(pid) - before.get(pid, 0.0)) for pid in self.pids(role))
            self.row.figures[f"{name}_{role}_cpu_s"] = round(used, 2)

    def idle(self, seconds: float) -> dict[str, float]:
        """Returns the cores that brokers and controllers use while nothing happens."""
        begun = time.monotonic()
        before = {role: sum(map(cpu_s, self.pids(role))) for role in ("broker", "controller")}
        time.sleep(seconds)
        took = time.monotonic() - begun
        return {role: (sum(map(cpu_s, self.pids(role))) - used) / took for role, used in before.items()}

    def settle(self) -> None:
        """Returns when the nodes' use of the processor no longer falls."""
        last = sum(self.idle(3).values())
        for _ in range(40):
            now = sum(self.idle(3).values())
            if now > last - SETTLED_CORES:
                return
            last = now

    def note_idle(self, name: str, seconds: float) -> None:
        """Adds the cores and the memory of a cluster at rest."""
        for role, cores in self.idle(seconds).items():
            self.row.figures[f"{name}_{role}_cores"] = round(cores, 4)
        for role in ("broker", "controller"):
            largest = max(map(resident_bytes, self.pids(role)))
            self.row.figures[f"{name}_{role}_mb"] = round(largest / 1e6, 1)

    def create(self, admin_of: Callable[[], Admin]) -> None:
        """Creates the partitions."""

        async def work() -> None:
            async with admin_of() as admin:
                left, number = self.row.partitions, 0
                while left > 0:
                    count = min(left, TOPIC_PARTITIONS_MAX)
                    topic = NewTopic(f"many-{number}", partitions=count, replication_factor=self.row.factor)
                    try:
                        await admin.create_topics([topic])
                    except AdminError as error:
                        # A broker that is busy with logs answered too late, and the client asked again.
                        if {each.code for each in error.failures.values()} != {ErrorCode.TOPIC_ALREADY_EXISTS}:
                            raise
                    left, number = left - count, number + 1

        trio.run(work)

    def wait(self, admin_of: Callable[[], Admin], condition: Callable[[dict[str, TopicDescription]], bool]) -> None:
        """Returns when the partitions are as ``condition`` wants."""

        async def work() -> None:
            async with admin_of() as admin:
                with trio.fail_after(TIMEOUT_S):
                    while not condition(await described(admin)):  # noqa: ASYNC110 - no event reports it
                        await trio.sleep(POLL_S)

        trio.run(work)

    def wait_logs(self, admin_of: Callable[[], Admin]) -> None:
        """Returns when all brokers have the logs of all their replicas."""
        wanted = self.row.partitions * self.row.factor

        async def work() -> None:
            async with admin_of() as admin:
                with trio.fail_after(TIMEOUT_S):
                    while await logs(admin) < wanted:  # noqa: ASYNC110 - no event reports it
                        await trio.sleep(POLL_S)

        trio.run(work)


async def described(admin: Admin) -> dict[str, TopicDescription]:
    """Returns all topics of the benchmark."""
    return await admin.describe_topics([one.name for one in await admin.list_topics() if one.name.startswith("many-")])


async def logs(admin: Admin) -> int:
    """Returns the number of logs of all brokers."""
    live = [one.node_id for one in (await admin.describe_cluster()).brokers]
    found = await admin.describe_log_dirs(live)
    return sum(len(directory.partitions) for directories in found.values() for directory in directories)


def parts(topics: dict[str, TopicDescription]) -> list[tuple[int, int, int]]:
    """Returns leader, number of replicas and number of replicas in sync of each partition."""
    return [(part.leader, len(part.replicas), len(part.isr)) for one in topics.values() for part in one.partitions]


def measure(partitions: int, factor: int, idle_s: float) -> Row:
    """Measures one cluster."""
    row = Row(partitions=partitions, factor=factor)
    settings = {"offsets.topic.replication.factor": "1", "node.watchdog.ms": "0"}
    with tempfile.TemporaryDirectory(prefix="moldau-bench-", ignore_cleanup_errors=True) as directory:
        cluster = start_cluster(Path(directory) / "cluster", ClusterSpec(settings=settings))
        try:
            _measure(Bench(cluster, row), idle_s)
        finally:
            for node in [*cluster.brokers, *cluster.controllers]:
                with suppress(LauncherError):  # it has ended, if a step failed
                    cluster.kill(node.node_id)
    return row


def _measure(bench: Bench, idle_s: float) -> None:
    cluster, row = bench.cluster, bench.row
    servers = {"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": 600_000, "request.timeout.ms": 300_000}

    def admin() -> Admin:
        return Admin(servers)

    def all_led(topics: dict[str, TopicDescription]) -> bool:
        found = parts(topics)
        return len(found) == row.partitions and all(leader > 0 and isr == count for leader, count, isr in found)

    def moved(topics: dict[str, TopicDescription]) -> bool:
        return all(leader != STOPPED for leader, _, _ in parts(topics))

    bench.settle()
    bench.note_idle("empty", idle_s)
    with bench.measured("create"):
        bench.create(admin)
        bench.wait(admin, all_led)
        bench.wait_logs(admin)
    report(row, "create")
    bench.settle()
    bench.note_idle("idle", idle_s)
    report(row, "idle")
    with bench.measured("failover"):
        cluster.kill(STOPPED)
        bench.wait(admin, moved)
    report(row, "failover")
    with bench.measured("recovery"):
        cluster.start_node(STOPPED, ready_timeout_ms=TIMEOUT_S * 1000)
        bench.wait(admin, all_led)
    report(row, "recovery")
    bench.settle()
    with bench.measured("stop"):
        in_order = cluster.stop_node(STOPPED)
    row.figures["stopped_in_order"] = float(in_order)
    report(row, "stop")
    with bench.measured("restart"):
        cluster.start_node(STOPPED, ready_timeout_ms=TIMEOUT_S * 1000)
        bench.wait(admin, all_led)
    report(row, "restart")


def report(row: Row, name: str) -> None:
    """Writes the figures of a step."""
    shown = " ".join(f"{key}={value}" for key, value in row.figures.items() if key.startswith((name, "empty")))
    sys.stderr.write(f"{row.partitions} partitions, factor {row.factor}: {shown}\n")


def main() -> None:
    """Measures all rows, and writes the page if it is wanted."""
    parser = argparse.ArgumentParser(description="What many partitions cost three local brokers.")
    parser.add_argument("--counts", default="2000,20000")
    parser.add_argument("--factors", default="1,3")
    parser.add_argument("--idle", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "cores": os.cpu_count() or 0,
    }
    for count in map(int, options.counts.split(",")):
        for factor in map(int, options.factors.split(",")):
            load = os.getloadavg()[0]
            row = measure(count, factor, options.idle)
            row.facts = {**facts, "load": round(load, 1)}
            print(json.dumps({"partitions": row.partitions, "factor": row.factor, **row.figures}))
            if options.out is not None:
                write_page(options.out, row)


if __name__ == "__main__":
    main()
