"""Kills parts of a running pipeline and proves that a reader of committed data sees each row once.

    PYTHONPATH=tests python -m support.spark.sink_campaign --kills 30 --seed 1

The pipeline: a feeder writes numbered rows to the topic ``in``. Streaming queries in a driver process of their own copy
them: one to the topic ``out``, exactly once, and one to a table of each format, as the job ``load`` does. At random
moments a part dies by SIGKILL: the driver with its JVM, its Python processes, the leader of a partition of ``out``, or
the transaction coordinator of the query. The part is started again, and a driver that starts compacts the tables. At
the end the queries catch up for as long as they make progress. Then every row must be there once: in ``out`` for a
``read_committed`` reader, in the tables for PyArrow and delta-rs, which know nothing of Spark.
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

KINDS = ("driver", "python", "leader", "coordinator", "python")
"""Drawn with these weights: a driver takes minutes of a busy machine until it works again."""
ROWS_PER_S = 150
WAIT_S = 900
TOPIC = "topic"
TABLES = ("parquet", "delta")


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

    def __init__(self, bootstrap: str, home: Path, tables: Sequence[str]) -> None:
        self._arguments = [bootstrap, "in", "out", str(home), ",".join(tables)]
        self._home = home
        self._checkpoints = {TOPIC: home / "checkpoint"} | {name: home / f"checkpoint-{name}" for name in tables}
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

    def progress(self) -> dict[str, tuple[int, int]]:
        """Returns the number of the last batch in Spark's commit log, and of the last one that is planned."""
        return {
            name: (_last(folder / "commits"), _last(folder / "offsets")) for name, folder in self._checkpoints.items()
        }

    def wait_progress(self, name: str) -> None:
        """Waits until a query has begun or finished a batch since now, so that a kill strikes it at work."""
        before = self.progress()[name]
        self.ensure_running()
        wait_until(lambda: self.progress()[name] != before or self.process.poll() is not None, f"{name} works", WAIT_S)

    def at_work(self) -> list[str]:
        """Returns the queries that have a planned batch which is not in Spark's commit log."""
        return [name for name, (done, planned) in self.progress().items() if planned > done]

    def kill(self) -> None:
        kill_all([self.process.pid, *descendants(self.process.pid)])
        self.process.wait(30)

    def kill_python(self) -> None:
        """Kills the Python processes of the JVM: tasks, and those that plan and commit."""
        pids = descendants(self.process.pid)
        kill_all([pid for pid in pids if "pyspark" in command_of(pid) and "java" not in command_of(pid)[:60]])


def _last(log: Path) -> int:
    """Returns the highest batch in a log of a checkpoint; Spark removes old ones."""
    numbers = [int(file.name) for file in log.glob("[0-9]*") if file.name.isdigit()] if log.exists() else []
    return max(numbers, default=-1)


def table_values(path: Path, table_format: str) -> Counter[int]:
    """Reads a table as readers without Spark do."""
    if not path.exists():
        return Counter()
    if table_format == "delta":
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(path)):
            return Counter()
        table = DeltaTable(str(path)).to_pyarrow_table(columns=["value"])
    else:
        import pyarrow.dataset

        table = pyarrow.dataset.dataset(path, format="parquet", partitioning="hive").to_table(columns=["value"])
    return Counter(int(value) for value in table.column("value").to_pylist())


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
    tables: Sequence[str] = TABLES,
    minutes: float = 600,
) -> dict[str, object]:
    """Runs a campaign of at most ``minutes`` and returns its figures.

    Raises:
        AssertionError: a row is missing or there twice.
    """
    draw = random.Random(seed)
    counts: Counter[str] = Counter()
    affected: Counter[str] = Counter()
    targets = (TOPIC, *tables)
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="moldau-sink-") as name, cluster(brokers=3, links=False) as brokers:
        home = Path(name)
        create_topic(brokers.bootstrap, "in", 3, 3)
        create_topic(brokers.bootstrap, "out", 3, 3)
        feeder = Feeder(brokers.bootstrap)
        feeder.start()
        query = Query(brokers.bootstrap, home, tables)
        try:
            for number in range(kills):
                if time.monotonic() >= end:
                    break
                query.ensure_running()
                query.wait_progress(targets[number % len(targets)])
                time.sleep(draw.uniform(*settle_s))
                kind = kinds[number % len(kinds)] if number < len(kinds) else draw.choice(kinds)
                counts[kind] += 1
                at_work = query.at_work()
                affected.update(at_work)
                victim = strike(kind, brokers, query, draw)
                print(f"{_now()} kill {number + 1}: {kind} {victim or ''}, at work {at_work}", flush=True)
            rows = feeder.finish()
            seen = _caught_up(query, brokers.bootstrap, home, tables, rows)
        finally:
            query.kill()
        twice = {name: sorted(value for value, count in found.items() if count > 1) for name, found in seen.items()}
        missing = {name: sorted(set(range(rows)).difference(found)) for name, found in seen.items()}
        figures = {
            "kills": sum(counts.values()),
            "by_kind": dict(counts),
            "kills_within_a_batch_of": dict(affected),
            "rows": rows,
            "twice": {name: len(values) for name, values in twice.items()},
            "missing": {name: len(values) for name, values in missing.items()},
            "driver_starts": query.starts,
            "query_failures": query.failures(),
            "seed": seed,
        }
        print(json.dumps(figures), flush=True)
        for line, count in Counter(each[:200] for each in query.failure_lines()).most_common():
            print(count, line, flush=True)
        if any(twice.values()) or any(missing.values()):
            for log in sorted(home.glob("driver-*.log")):
                print(log.name, log.read_text(errors="replace")[-3000:], flush=True)
        for name in targets:
            assert not twice[name], f"{name}: rows twice: {twice[name][:20]}"
            assert not missing[name], f"{name}: rows missing: {missing[name][:20]}"
        return figures


def _caught_up(query: Query, bootstrap: str, home: Path, tables: Sequence[str], rows: int) -> dict[str, Counter[int]]:
    """Waits until every copy has ``rows`` different rows, or none makes progress; returns what readers find then."""

    def table(name: str, *, is_final: bool) -> Counter[int]:
        try:
            return table_values(home / name, name)
        except (OSError, ValueError):  # a batch was being replaced
            if is_final:
                raise
            return Counter()

    def read(timeout_s: float, *, is_final: bool) -> dict[str, Counter[int]]:
        return {TOPIC: committed_values(bootstrap, timeout_s, rows)} | {
            name: table(name, is_final=is_final) for name in tables
        }

    last, deadline = -1, time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        query.ensure_running()
        copies = {name: len(found) for name, found in read(20, is_final=False).items()}
        print(f"{_now()} {copies} of {rows} rows, {query.progress()}", flush=True)
        if min(copies.values()) >= rows:
            break
        if sum(copies.values()) > last:  # a query that is behind catches up
            last, deadline = sum(copies.values()), time.monotonic() + WAIT_S
    return read(60, is_final=True)


def _now() -> str:
    return time.strftime("%H:%M:%S")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600, help="time for the kills; the proof comes after it")
    given = parser.parse_args()
    run(given.kills, given.seed, minutes=given.minutes)
