"""Measures the checkers on a long history: time and greatest memory, in one process and as a Spark job.

One command: ``python benchmarks/checkers/run.py`` (``--operations`` for another length, ``--no-spark``). The history is
that of an honest cluster: senders that are acknowledged one record at a time, readers that poll some ten records, and
transactions of two sends and a poll. Each check runs in a process of its own; memory is that process's greatest
resident size, of Spark the sum over its workers at the greatest.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from moldau_jepsen.checkers import CheckOptions, check_history
from moldau_jepsen.history import HistoryFile, HistoryWriter, Kind, Operation, Poll, Send, Status, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATIONS = 10_000_000
PARTITIONS = 8
PROCESSES = 12
POLL_RECORDS_MAX = 20


def digest_of(value: int) -> int:
    """A number without a pattern, as digests are."""
    return (value * 2_654_435_761 + 1) & 0xFFFF_FFFF or 1


def honest_history(count: int, seed: int) -> Iterator[Operation]:
    """Yields ``count`` operations of a cluster without faults, then the final read."""
    draw = random.Random(seed)
    partitions = [TopicPartition("queue", number) for number in range(PARTITIONS)]
    ends = [0] * PARTITIONS
    positions = [[0] * PARTITIONS for _ in range(PROCESSES)]
    index = 0

    def operation(process: int, kind: Kind, *parts: Send | Poll, final: bool = False) -> Operation:
        nonlocal index
        index += 1
        now = index * 0.5
        return Operation(
            index=index - 1,
            process=process,
            kind=kind,
            status=Status.OK,
            begun_ms=now,
            ended_ms=now + draw.expovariate(0.1),
            operations=parts,
            final=final,
        )

    def send(number: int) -> Send:
        value = ends[number]
        ends[number] += 1
        return Send(partitions[number], value, value, digest_of(value))

    def records(number: int, start: int, end: int) -> Poll:
        pairs = tuple((offset, offset) for offset in range(start, end))
        return Poll(((partitions[number], pairs),), (tuple(map(digest_of, range(start, end))),))

    def poll(process: int, number: int) -> Poll:
        start = positions[process][number]
        end = min(ends[number], start + draw.randint(1, POLL_RECORDS_MAX))
        positions[process][number] = end
        return records(number, start, end)

    while index < count:
        fate, process = draw.random(), draw.randrange(PROCESSES)
        number = draw.randrange(PARTITIONS)
        if fate < 0.8:
            yield operation(100 + process, Kind.SEND, send(number))
        elif fate < 0.9:
            yield operation(process, Kind.POLL, poll(process, number))
        else:
            other = (number + 1) % PARTITIONS
            part = poll(process, number)
            yield operation(process, Kind.TRANSACTION, part, send(number), send(other))
    for number, end in enumerate(ends):
        for start in range(0, end, 1000):
            yield operation(999, Kind.POLL, records(number, start, min(end, start + 1000)), final=True)


def check(path: Path, *, spark: bool) -> None:
    """Checks the history and prints a line of JSON."""
    begun, cpu = time.perf_counter(), time.process_time()
    if spark:
        from moldau_jepsen.checkers.spark import check_history_with_spark
        from pyspark_moldau.session import local_session

        session = local_session("checkers", settings={"spark.driver.memory": "1g"})
        begun = time.perf_counter()
        verdict = check_history_with_spark(session, path, CheckOptions())
        seconds = time.perf_counter() - begun
        session.stop()
    else:
        verdict = check_history(HistoryFile(path), CheckOptions())
        seconds = time.perf_counter() - begun
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    result = {
        "valid": verdict.valid,
        "operations": verdict.figures.operations,
        "records_polled": verdict.figures.records_polled,
        "values": verdict.figures.values_seen,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "resident_mb": round(usage),
        "greatest_child_mb": round(children),
    }
    sys.stdout.write(json.dumps(result) + "\n")


def main() -> None:
    """Writes the history and checks it in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=OPERATIONS)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--check", choices=("process", "spark"))
    parser.add_argument("--history", type=Path)
    options = parser.parse_args()
    if options.check:
        check(options.history, spark=options.check == "spark")
        return
    with tempfile.TemporaryDirectory(prefix="moldau-checkers-") as directory:
        path = options.history or Path(directory) / "history"
        if not path.exists():
            with path.open("wb") as stream:
                writer = HistoryWriter(stream)
                for operation in honest_history(options.operations, 1):
                    writer.add(operation)
                writer.flush()
        sys.stdout.write(f"history: {path.stat().st_size / 1e6:,.0f} MB\n")
        for way in ("process",) if options.no_spark else ("process", "spark"):
            done = subprocess.run(
                [sys.executable, __file__, "--check", way, "--history", str(path)],
                check=True,
                capture_output=True,
                text=True,
            )
            sys.stdout.write(f"{way}: {done.stdout}")


if __name__ == "__main__":
    main()
