"""Kills parts of a running pipeline and proves that a reader of committed data sees each row once.

    PYTHONPATH=tests python -m support.spark.sink_campaign --kills 30 --seed 1

The pipeline: a feeder writes numbered rows to the topic ``in``, a streaming query (a driver process of its own) copies
them to the topic ``out``, exactly once. At random moments a part dies by SIGKILL: the driver with its JVM, its Python
processes, the leader of a partition of ``out``, or the transaction coordinator of the query. What died is started
again. At the end the query catches up for as long as it makes progress, and then every row must be in ``out`` once for
a ``read_committed`` reader.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.blocking import Admin
from moldau_jepsen.testing import cluster
from support.interop.clients import create_topic, wait_for, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from confluent_kafka import KafkaError, Message

    from moldau_jepsen.testing.local import TestCluster

KINDS = ("driver", "python", "leader", "coordinator")
ROWS_PER_S = 150
WAIT_S = 240


class Feeder(threading.Thread):
    """Writes numbered rows until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Producer

        self.count = 0
        self._stop_wanted = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 120_000}
        )
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._stop_wanted.wait(1 / ROWS_PER_S):
            self._producer.produce("in", b"%d" % self.count, key=b"%d" % (self.count % 97), on_delivery=self._delivered)
            self.count += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))

    def finish(self) -> int:
        """Stops and returns how many rows were written."""
        self._stop_wanted.set()
        self.join()
        assert self._producer.flush(120) == 0
        assert self.failures == []
        return self.count


def parents() -> dict[int, int]:
    """Returns the parent of every process."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                stat = Path("/proc", name, "stat").read_text()
                found[int(name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def descendants(pid: int) -> list[int]:
    """Returns the processes below one, in no order."""
    of = parents()
    found = [pid]
    for each in found:
        found += [child for child, parent in of.items() if parent == each]
    return found[1:]


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Query:
    """The driver process."""

    def __init__(self, bootstrap: str, home: Path) -> None:
        self._arguments = [bootstrap, "in", "out", str(home / "checkpoint")]
        self._home = home
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.log = self._home / f"driver-{self.starts}.log"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "support.spark.sink_query", *self._arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def ensure_running(self) -> None:
        """Starts the driver again if it is dead."""
        if self.process.poll() is not None:
            self.start()

    def failures(self) -> int:
        """Returns how often the query failed and was started again inside its driver."""
        return len(self.failure_lines())

    def failure_lines(self) -> list[str]:
        """Returns the first line of each failure."""
        texts = [log.read_text(errors="replace") for log in sorted(self._home.glob("driver-*.log"))]
        return [line for text in texts for line in text.splitlines() if line.startswith("failed ")]

    def query_id(self) -> str:
        metadata = self._home / "checkpoint" / "metadata"
        return str(json.loads(metadata.read_text())["id"])

    def progress(self) -> list[int]:
        """Returns how many batches are in Spark's commit log, and how many are planned."""
        logs = [self._home / "checkpoint" / name for name in ("commits", "offsets")]
        return [len(list(log.glob("[0-9]*"))) if log.exists() else 0 for log in logs]

    def wait_progress(self) -> None:
        """Waits until the query has begun or finished a batch since now, so that a kill strikes it at work."""
        before = self.progress()
        self.ensure_running()
        wait_until(lambda: self.progress() != before or self.process.poll() is not None, "the query works", WAIT_S)

    def kill(self) -> None:
        kill_all([self.process.pid, *descendants(self.process.pid)])
        self.process.wait(30)

    def kill_python(self) -> None:
        """Kills the Python processes of the JVM: tasks, and those that plan and commit."""
        pids = descendants(self.process.pid)
        kill_all([pid for pid in pids if "pyspark" in command_of(pid) and "java" not in command_of(pid)[:60]])


def committed_values(bootstrap: str, timeout_s: float, wanted: int) -> Counter[int]:
    """Reads ``out`` as a reader of committed data, until each row was seen and for a while longer."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "proof",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition("out", partition, 0) for partition in range(3)])
    seen: Counter[int] = Counter()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            seen[int(message.value() or b"")] += 1
        elif message is None and len(seen) >= wanted:
            break
    consumer.close()
    return seen


def coordinator_of(bootstrap: str, query_id: str) -> int:
    name = f"moldau-spark-{query_id}-driver"
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        return admin.describe_transactions([name])[name].coordinator


def strike(kind: str, brokers: TestCluster, query: Query, draw: random.Random) -> int | None:
    """Kills a part; returns what has to be started again, and when."""
    if kind == "driver":
        query.kill()
        return None
    if kind == "python":
        query.kill_python()
        return None
    if kind == "leader":
        victim = wait_for(lambda: brokers.partition_leader("out", draw.randrange(3)), "out has a leader")
    else:
        try:
            victim = coordinator_of(brokers.bootstrap, query.query_id())
        except Exception as error:  # noqa: BLE001 - the query has no transaction yet: any broker serves
            print(f"  no coordinator yet: {error}", flush=True)
            victim = draw.choice([1, 2, 3])
    brokers.kill(victim)
    time.sleep(draw.uniform(0.2, 3))
    brokers.start_node(victim)
    return victim


def run(
    kills: int,
    seed: int,
    *,
    settle_s: tuple[float, float] = (0.0, 3.0),
    kinds: Sequence[str] = KINDS,
    minutes: float = 600,
) -> dict[str, object]:
    """Runs a campaign of at most ``minutes`` and returns its figures.

    Raises:
        AssertionError: a row is missing or there twice.
    """
    draw = random.Random(seed)
    counts: Counter[str] = Counter()
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="moldau-sink-") as name, cluster(brokers=3, links=False) as brokers:
        home = Path(name)
        create_topic(brokers.bootstrap, "in", 3, 3)
        create_topic(brokers.bootstrap, "out", 3, 3)
        feeder = Feeder(brokers.bootstrap)
        feeder.start()
        query = Query(brokers.bootstrap, home)
        try:
            for number in range(kills):
                if time.monotonic() >= end:
                    break
                query.ensure_running()
                query.wait_progress()
                time.sleep(draw.uniform(*settle_s))
                kind = kinds[number % len(kinds)] if number < len(kinds) else draw.choice(kinds)
                counts[kind] += 1
                victim = strike(kind, brokers, query, draw)
                print(f"{time.strftime('%H:%M:%S')} kill {number + 1}: {kind} {victim or ''}", flush=True)
            rows = feeder.finish()
            seen: Counter[int] = Counter()
            last, deadline = -1, time.monotonic() + WAIT_S
            while len(seen) < rows and time.monotonic() < deadline:
                query.ensure_running()
                seen = committed_values(brokers.bootstrap, 20, rows)
                if len(seen) > last:  # a query that is behind catches up
                    last, deadline = len(seen), time.monotonic() + WAIT_S
                print(f"{time.strftime('%H:%M:%S')} {len(seen)} of {rows} rows, {query.progress()}", flush=True)
            seen = committed_values(brokers.bootstrap, 60, rows)
        finally:
            query.kill()
        twice = sorted(value for value, count in seen.items() if count > 1)
        missing = sorted(set(range(rows)).difference(seen))
        figures = {
            "kills": sum(counts.values()),
            "by_kind": dict(counts),
            "rows": rows,
            "twice": len(twice),
            "missing": len(missing),
            "driver_starts": query.starts,
            "query_failures": query.failures(),
            "seed": seed,
        }
        print(json.dumps(figures), flush=True)
        for line, count in Counter(each[:200] for each in query.failure_lines()).most_common():
            print(count, line, flush=True)
        if twice or missing:
            for log in sorted(home.glob("driver-*.log")):
                print(log.name, log.read_text(errors="replace")[-3000:], flush=True)
        assert not twice, f"rows twice: {twice[:20]}"
        assert not missing, f"rows missing: {missing[:20]}"
        return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600, help="time for the kills; the proof comes after it")
    given = parser.parse_args()
    run(given.kills, given.seed, minutes=given.minutes)
