"""Measures the log: append, read, recovery, cleaning, memory; beside a bare ``os.write`` loop and a plain file copy.

One command, one table: ``python benchmarks/log/run.py`` (``--quick`` leaves out 10 GB). The figures go to standard
output and to ``docs/benchmarks/log.md`` and ``log.json``. Nothing is synced in the append figures, neither in the log
nor in the bare loop: both write to the page cache, as Kafka does by default. Rounds of the two alternate, and the
best of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.records import BatchBuilder
from moldau.runtime.ports.real import RealDisk
from moldau.values import LeaderEpoch
from moldau_broker.log.cleaner.cleaner import LogCleaning, plan_cleaning
from moldau_broker.log.cleaner.manager import STEP_BYTES
from moldau_broker.log.cleaner.offset_map import OffsetMap
from moldau_broker.log.config import LogConfig, LogManagerSettings
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.log.partition.loader import LoadRequest, load_log
from moldau_broker.log.values import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.partition.segmented_log import SegmentedLog

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PARTS = ["append", "recovery", "cleaning", "growth"]
PARTITION = TopicPartition("bench", 0)
EPOCH = LeaderEpoch(1)
DISK = RealDisk()


class NoCheckpoints:
    """Stands in for the directory's checkpoints, which these measurements do not touch."""

    def lower_to(self, log: SegmentedLog, offset: int) -> None:
        """Nothing to do."""

    def lower_watermark(self, log: SegmentedLog, offset: int) -> None:
        """Nothing to do."""

    def restart_at(self, log: SegmentedLog, offset: int, log_start_offset: int) -> None:
        """Nothing to do."""


def open_log(directory: str, config: LogConfig | None = None, **request: object) -> PartitionLog:
    """Opens the log in a directory."""
    fields = {"now_ms": 1, **request}
    log, _ = load_log(
        DISK,
        LoadRequest(
            directory=directory,
            topic_partition=PARTITION,
            config=config or LogConfig(max_message_bytes=8 * MIB, message_timestamp_after_max_ms=1 << 60),
            checkpoints=NoCheckpoints(),
            **fields,  # type: ignore[arg-type]
        ),
    )
    return log


def close(log: PartitionLog) -> None:
    """Closes the files of a log."""
    log.storage.segments.close()


def make_batch(size: int, record_bytes: int = 1000) -> bytearray:
    """A batch of about ``size`` bytes."""
    builder = BatchBuilder(16 * MIB, initial_capacity=size)
    value = os.urandom(max(1, min(record_bytes, size - 80)))
    index = 0
    while builder.size_bytes + len(value) + 20 < size or index == 0:
        builder.append(1000 + index, None, value)
        index += 1
    return builder.build()


def timed(work: Callable[[], object]) -> float:
    """Seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def processor(work: Callable[[], object]) -> float:
    """Seconds of processor time that ``work`` takes: what other processes do meanwhile does not count."""
    start = time.process_time()
    work()
    return time.process_time() - start


def resident_mib() -> float:
    """Resident memory of this process now."""
    with Path("/proc/self/statm").open() as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def bare_writes(path: str, batch: bytearray, count: int) -> float:
    """Processor seconds of a bare loop of ``os.write``."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        return processor(lambda: [os.write(descriptor, batch) for _ in range(count)])
    finally:
        os.close(descriptor)
        os.remove(path)


def log_appends(directory: str, batch: bytearray, count: int, staged: int) -> float:
    """Processor seconds of ``count`` appends, ``staged`` of them in one write."""
    log = open_log(directory)
    copies = [memoryview(bytearray(batch)) for _ in range(staged)]

    def run() -> None:
        for _ in range(count // staged):
            for copy in copies:
                log.stage_as_leader(copy, leader_epoch=EPOCH, now_ms=1)
            log.flush_staged()

    seconds = processor(run) * count / (count // staged * staged)
    log.storage.segments.close()
    shutil.rmtree(directory)
    return seconds


def measure_append(root: str, rows: list[dict[str, object]]) -> None:
    """Append by batch size, against bare writes of the same bytes."""
    for size, total in ((KIB, 24 * MIB), (16 * KIB, 128 * MIB), (128 * KIB, 256 * MIB), (MIB, 512 * MIB)):
        batch = make_batch(size)
        count = total // len(batch)
        bare, single, staged = 1e9, 1e9, 1e9
        for _ in range(4):
            bare = min(bare, bare_writes(f"{root}/bare", batch, count))
            single = min(single, log_appends(f"{root}/append", batch, count, 1))
            staged = min(staged, log_appends(f"{root}/append", batch, count, 8))
        for seconds, label in ((single, "one append, one write"), (staged, "8 staged, one write")):
            rows.append(
                {
                    "what": f"append {size // KIB} KiB batches, {label}",
                    "MB per CPU s": round(count * len(batch) / seconds / 1e6),
                    "us": round(seconds / count * 1e6, 1),
                    "bare MB per CPU s": round(count * len(batch) / bare / 1e6),
                    "ratio": round(bare / seconds, 2),
                }
            )


def read_cost(log: PartitionLog, offsets: list[int], buffer: memoryview) -> float:
    """Processor microseconds of one read of 16 KiB: lookup and data."""
    start = time.process_time()
    for offset in offsets:
        result = log.read(offset, max_bytes=16 * KIB, upper_bound_offset=log.log_end_offset, min_one_batch=True)
        piece = result.ranges[0]
        piece.file.read_into([buffer[: piece.count]], piece.position)
    return (time.process_time() - start) / len(offsets) * 1e6


def measure_growth(root: str, rows: list[dict[str, object]], sizes: tuple[int, ...]) -> PartitionLog:
    """Append, tail and random read cost as one log grows, and memory."""
    directory = f"{root}/growth"
    log = open_log(directory)
    batch = memoryview(make_batch(16 * KIB))
    large = memoryview(make_batch(MIB))
    buffer = memoryview(bytearray(64 * KIB))
    rnd = random.Random(1)
    for size in sizes:
        while log.size_bytes < size:
            log.append_as_leader(large if size - log.size_bytes > 2 * MIB else batch, leader_epoch=EPOCH, now_ms=1)
        log.flush()  # else the kernel's writing back of what came before is charged to what is measured
        appended = min(processor(lambda: append_some(log, batch)) for _ in range(5)) / 500 * 1e6
        # What the kernel asks for pages of its cache depends on how full memory is: the bare loop pays it, too.
        bare = min(bare_writes(f"{root}/bare", bytearray(batch), 500) for _ in range(5)) / 500 * 1e6
        end = log.log_end_offset
        tail = min(read_cost(log, [end - 1 - rnd.randrange(50) for _ in range(2000)], buffer) for _ in range(3))
        anywhere = [rnd.randrange(end) for _ in range(2000)]
        first = read_cost(log, anywhere, buffer)
        again = min(read_cost(log, [rnd.randrange(end) for _ in range(2000)], buffer) for _ in range(3))
        rows.append(
            {
                "what": f"log of {size / 1e9:g} GB in {log.storage.segments.count} segments",
                "append 16 KiB us": round(appended, 1),
                "bare write us": round(bare, 1),
                "tail read us": round(tail, 1),
                "random read us": round(again, 1),
                "first random reads us": round(first, 1),
                "resident MiB": round(resident_mib()),
            }
        )
    return log


def append_some(log: PartitionLog, batch: memoryview) -> None:
    """500 appends."""
    for _ in range(500):
        log.append_as_leader(batch, leader_epoch=EPOCH, now_ms=1)


def measure_serving(log: PartitionLog, rows: list[dict[str, object]]) -> None:
    """A whole log read in order, 1 MiB at a time, as a catching-up consumer does."""
    buffer = memoryview(bytearray(2 * MIB))
    before = resident_mib()
    offset, total = 0, 0
    start, began = time.perf_counter(), time.process_time()
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes=MIB, upper_bound_offset=log.log_end_offset, min_one_batch=True)
        piece = result.ranges[0]
        count = piece.file.read_into([buffer[: piece.count]], piece.position)
        total += count
        offset = next_offset(buffer, count, offset)
    seconds, used = time.perf_counter() - start, time.process_time() - began
    rows.append(
        {
            "what": f"serving {total / 1e9:.1f} GB in order, 1 MiB a read",
            "MB/s": round(total / seconds / 1e6),
            "MB per CPU s": round(total / used / 1e6),
            "resident MiB before": round(before),
            "resident MiB after": round(resident_mib()),
            "peak MiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
    )


def next_offset(buffer: memoryview, count: int, offset: int) -> int:
    """Offset after the last whole batch in the buffer."""
    position = 0
    while position + 61 <= count:
        size = int.from_bytes(buffer[position + 8 : position + 12], "big") + 12
        if position + size > count:
            break
        base = int.from_bytes(buffer[position : position + 8], "big")
        offset = base + int.from_bytes(buffer[position + 23 : position + 27], "big") + 1
        position += size
    return offset


def measure_recovery(root: str, rows: list[dict[str, object]], total: int) -> None:
    """A start after a crash that has to verify everything, a clean one, and a plain copy of the same bytes."""
    directory = f"{root}/recovery"
    log = open_log(directory)
    batch = memoryview(make_batch(64 * KIB))
    while log.size_bytes < total:
        log.append_as_leader(batch, leader_epoch=EPOCH, now_ms=1)
    size, end = log.size_bytes, log.log_end_offset
    log.storage.seal()
    close(log)
    used = processor(lambda: close(open_log(directory)))
    crashed = timed(lambda: close(open_log(directory)))
    clean = timed(lambda: close(open_log(directory, clean=True, recovery_point=end)))
    target = f"{root}/copy"
    os.makedirs(target)

    def copy() -> None:
        for name in os.listdir(directory):
            if name.endswith(".log"):
                shutil.copyfile(f"{directory}/{name}", f"{target}/{name}")

    copied = timed(copy)
    shutil.rmtree(target)
    os.makedirs(target)
    copied_used = processor(copy)
    shutil.rmtree(target)
    shutil.rmtree(directory)
    rows.append(
        {
            "what": f"recovery of {size / 1e9:.1f} GB after a crash",
            "MB/s": round(size / crashed / 1e6),
            "MB per CPU s": round(size / used / 1e6),
        }
    )
    rows.append({"what": "clean start of the same log", "ms": round(clean * 1000, 1)})
    rows.append(
        {
            "what": "plain copy of the same files (the limit)",
            "MB/s": round(size / copied / 1e6),
            "MB per CPU s": round(size / copied_used / 1e6),
        }
    )


def measure_cleaning(root: str, rows: list[dict[str, object]], record_bytes: int, total: int) -> None:
    """Compaction of a log whose keys are written about ten times each."""
    config = LogConfig(compact=True, delete=False, segment_bytes=32 * MIB, message_timestamp_after_max_ms=1 << 60)
    log = open_log(f"{root}/clean-{record_bytes}", config)
    keys = total // record_bytes // 10
    rnd = random.Random(3)
    value = os.urandom(record_bytes - 20)
    while log.size_bytes < total:
        builder = BatchBuilder(MIB, initial_capacity=300 * KIB)
        while builder.size_bytes < 256 * KIB:
            builder.append(1, b"key-%08d" % rnd.randrange(keys), value)
        log.append_as_leader(memoryview(builder.build()), leader_epoch=EPOCH, now_ms=1)
    log.storage.roll(log.log_end_offset, 1)
    log.update_high_watermark(log.log_end_offset)
    log.flush()
    offset_map = OffsetMap(int(keys * 24 * 1.5))
    cleaning = LogCleaning(DISK, log, plan_cleaning(log, None, log.recovery_point, 10), offset_map, 10)
    longest = 0.0
    start = time.process_time()
    while not cleaning.done:
        began = time.process_time()
        cleaning.step(STEP_BYTES)
        if cleaning.ready is not None:
            cleaning.swap()
        longest = max(longest, time.process_time() - began)
    seconds = time.process_time() - start
    statistics = cleaning.statistics
    rows.append(
        {
            "what": f"cleaning records of {record_bytes} B",
            "MB per CPU s": round(statistics.map_bytes_read / seconds / 1e6),
            "us per record": round(seconds / statistics.records_read * 1e6, 2),
            "map bytes per key": round(24 * statistics.map_entries / statistics.map_entries, 1),
            "keys": statistics.map_entries,
            "kept": f"{statistics.records_kept / statistics.records_read:.0%}",
            "longest step ms": round(longest * 1000, 1),
        }
    )
    log.storage.segments.close()
    shutil.rmtree(f"{root}/clean-{record_bytes}")


def measure_many(root: str, rows: list[dict[str, object]], count: int) -> None:
    """A start with many small logs, after a crash and after a clean stop."""

    def manager() -> LogManager:
        made = LogManager(
            DISK,
            [f"{root}/many"],
            node_id=1,
            cluster_id="bench",
            random=random.Random(1),
            settings=LogManagerSettings(cleaner_enable=False),
        )
        made.start(1)
        return made

    first = manager()
    batch = memoryview(make_batch(16 * KIB))
    for number in range(count):
        log = first.get_or_create(TopicPartition("many", number), topic_id=uuid.UUID(int=1), now_ms=1)
        log.append_as_leader(batch, leader_epoch=EPOCH, now_ms=1)
    closing = timed(first.close)
    starting: list[float] = []
    second = manager()
    starting.append(timed(second.recover_all))
    for directory in second.directories:
        directory.release()
    third = manager()
    starting.append(timed(third.recover_all))
    third.close()
    rows.append(
        {
            "what": f"{count} small logs",
            "clean start ms": round(starting[0] * 1000),
            "start after a crash ms": round(starting[1] * 1000),
            "clean stop ms": round(closing * 1000),
        }
    )
    shutil.rmtree(f"{root}/many")


def table(rows: list[dict[str, object]]) -> list[str]:
    """Rows with the same columns as one markdown table each."""
    lines: list[str] = []
    columns: list[str] = []
    for row in rows:
        if list(row) != columns:
            columns = list(row)
            lines += ["", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines.append("| " + " | ".join(str(value) for value in row.values()) + " |")
    return lines


def main() -> int:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 GB instead of 10 GB, a tenth of the rest")
    parser.add_argument("--directory", help="where to write (default: a temporary directory)")
    parser.add_argument("--output", help="folder for log.md and log.json", default="docs/benchmarks")
    parser.add_argument("--note", help="remark for the report, e.g. what else ran on the machine", default="")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="measure these, keep the others")
    arguments = parser.parse_args()
    if arguments.directory is not None:
        Path(arguments.directory).mkdir(parents=True, exist_ok=True)
    root = tempfile.mkdtemp(prefix="moldau-bench-", dir=arguments.directory)
    sizes = (10**6, 10**9) if arguments.quick else (10**6, 10**9, 10**10)
    scale = 10 if arguments.quick else 1
    output = Path(arguments.output)
    before = output / "log.json"
    kept = json.loads(before.read_text())["parts"] if arguments.parts != PARTS and before.exists() else {}
    parts: dict[str, list[dict[str, object]]] = {name: kept.get(name, []) for name in PARTS}
    try:
        for name in arguments.parts:
            rows = parts[name] = []
            if name == "append":
                measure_append(root, rows)
            elif name == "recovery":
                measure_recovery(root, rows, 2 * GIB // scale)
                measure_many(root, rows, 500 // scale)
            elif name == "cleaning":
                for record_bytes in (100, 1000):
                    measure_cleaning(root, rows, record_bytes, 256 * MIB // scale)
            else:
                log = measure_growth(root, rows, sizes)
                measure_serving(log, rows)
                log.storage.segments.close()
    finally:
        shutil.rmtree(root)
    rows = [row for name in PARTS for row in parts[name]]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [
        "# Figures of the log",
        "",
        "Made by `python benchmarks/log/run.py`. Append figures do not sync; the bare loop is `os.write` of the same",
        "batch. us, ms of steps and ratios are of processor time (user and system), best of several rounds, so that",
        "what else runs on the machine counts little; MB/s is by the wall clock where it is not said otherwise.",
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load average at the end {load}.",
        arguments.note,
        *table(rows),
    ]
    print("\n".join(lines))
    output.mkdir(parents=True, exist_ok=True)
    (output / "log.md").write_text("\n".join(lines) + "\n")
    (output / "log.json").write_text(
        json.dumps({"load_average": load, "note": arguments.note, "parts": parts}, indent=1)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
