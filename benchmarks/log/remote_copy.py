"""Measures the check of a segment before its copy to the object store, beside the copy itself.

One command, one table: ``python benchmarks/log/remote_copy.py [--directory DIR]``. A copy reads the files beside the
segment, encodes them, and puts both objects into a directory store, which syncs its files. The check reads the whole
segment. Rounds of the two alternate, and the best of each counts, because other work may share the machine; the segment
is in the page cache, as it is soon after it was closed. Besides the time of the clock, the processor time of the check
is given: on a busy machine they differ much.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio

from moldau.records import BatchBuilder
from moldau.runtime.ports.real import real_environment
from moldau.values import LeaderEpoch
from moldau_broker.log.config import LogConfig, LogManagerSettings
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.log.remote.segment_check import SegmentCheck
from moldau_broker.log.values import TopicPartition
from moldau_broker.remote_log.core.auxiliary import encode_auxiliary
from moldau_broker.remote_log.storage.directory import DirectoryStore
from moldau_broker.server.remote_log.copier import BytesContent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.runtime.ports.environment import Environment
    from moldau_broker.log.partition.partition_log import PartitionLog

MIB = 1 << 20
SEGMENT_BYTES = 64 * MIB
RECORD_BYTES = 1_000
BATCHES = (1, 16, 64, 900)
"""Records of a batch."""
ROUNDS = 7
PARTITION = TopicPartition("bench", 0)
PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
PARSER.add_argument("--directory", type=Path, help="Where log and store are. Default: that of temporary files.")


class Cost(NamedTuple):
    """The time of one round, in seconds."""

    wall: float
    processor: float


def log_of(directory: Path, records: int) -> PartitionLog:
    """Returns a log with one closed segment of batches of so many records."""
    manager = LogManager(
        real_environment(1).disk,
        (str(directory),),
        node_id=1,
        cluster_id="c",
        random=random.Random(1),
        settings=LogManagerSettings(cleaner_enable=False),
        default_config=LogConfig(segment_bytes=SEGMENT_BYTES, remote_storage_enable=True),
    )
    now_ms = time.time_ns() // 1_000_000
    manager.start(now_ms)
    manager.recover_all()
    log = manager.get_or_create(PARTITION, topic_id=uuid.uuid4(), now_ms=now_ms)
    log.begin_leader_epoch(LeaderEpoch(1))
    value = random.Random(2).randbytes(RECORD_BYTES)
    while len(log.segments) < 2:
        builder = BatchBuilder(2 * MIB)
        for _ in range(records):
            builder.append(now_ms, None, value)
        log.append_as_leader(memoryview(builder.build()), leader_epoch=LeaderEpoch(1), now_ms=now_ms)
    log.flush()
    log.update_high_watermark(log.log_end_offset)
    return log


async def timed(work: Callable[[], Awaitable[object]]) -> Cost:
    """Returns the cost of some work."""
    wall, processor = time.perf_counter(), time.process_time()
    await work()
    return Cost(time.perf_counter() - wall, time.process_time() - processor)


async def measured(environment: Environment, log: PartitionLog, store: DirectoryStore) -> tuple[int, Cost, Cost]:
    """Returns the bytes of the segment and the least costs of its check and its copy."""
    (found,) = log.closed_segments(0)

    async def check() -> None:
        wanted = SegmentCheck(found)
        while not wanted.is_complete:
            await environment.disk.offload(lambda: wanted.step(found))

    async def copy() -> None:
        auxiliary = await environment.disk.offload(lambda: encode_auxiliary(found.parts()))
        await store.put("a.aux", BytesContent(auxiliary))
        await store.put("a.log", found.content)

    await check()
    checks, copies = [], []
    for _ in range(ROUNDS):
        checks.append(await timed(check))
        copies.append(await timed(copy))
        await store.delete(["a.aux", "a.log"])
    return found.size_bytes, _best(checks), _best(copies)


def _best(costs: list[Cost]) -> Cost:
    return Cost(min(each.wall for each in costs), min(each.processor for each in costs))


def main() -> None:
    """Prints the table."""
    chosen = PARSER.parse_args()
    print("| records of a batch | check, MB/s | MB for a second of a processor | copy, MB/s | check : copy |")
    print("|---|---|---|---|---|")
    for records in BATCHES:
        with tempfile.TemporaryDirectory(dir=chosen.directory) as folder:
            for name in ("log", "store"):
                Path(folder, name).mkdir()
            environment = real_environment(1)
            store = DirectoryStore(environment, f"{folder}/store")
            size, check, copy = trio.run(measured, environment, log_of(Path(folder, "log"), records), store)
            print(
                f"| {records} | {size / check.wall / 1e6:.0f} | {size / check.processor / 1e6:.0f} | "
                f"{size / copy.wall / 1e6:.0f} | {check.wall / copy.wall:.2f} |"
            )


if __name__ == "__main__":
    main()
