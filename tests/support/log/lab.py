"""A log manager on a virtual disk for tests, which call each step themselves."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Any

from moldau.values import LeaderEpoch
from moldau_broker.log.config import LogConfig, LogManagerSettings
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.log.values import TopicPartition, run_work
from support.log.model import START_MS, VirtualMachine, make_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import AppendInfo

A = TopicPartition("a", 0)
TOPIC_ID = uuid.UUID(int=9)


def new_manager(machine: VirtualMachine, directories: Sequence[str] = ("/d1", "/d2"), **config: Any) -> LogManager:
    return LogManager(
        machine.disk,
        directories,
        node_id=1,
        cluster_id="c",
        random=random.Random(" ".join(directories)),
        settings=LogManagerSettings(
            flush_offset_checkpoint_interval_ms=5000,
            flush_start_offset_checkpoint_interval_ms=5000,
            high_watermark_checkpoint_interval_ms=5000,
            retention_check_interval_ms=1000,
            cleaner_dedupe_buffer_size=24 * 1000,
        ),
        default_config=LogConfig(**{"segment_bytes": 1000, "file_delete_delay_ms": 2000, **config}),
    )


def open_manager(
    machine: VirtualMachine, directories: Sequence[str] = ("/d1", "/d2"), *, now: int = START_MS, **config: Any
) -> LogManager:
    manager = new_manager(machine, directories, **config)
    manager.start(now)
    manager.recover_all()
    manager.begin_discarding(now)
    return manager


def put(log: PartitionLog, value: bytes = b"v", *, now: int = START_MS, count: int = 1, **batch: Any) -> AppendInfo:
    data = make_batch([(now, b"k", value)] * count, **batch)
    info = log.append_as_leader(memoryview(data), leader_epoch=LeaderEpoch(1), now_ms=now)
    log.update_high_watermark(log.log_end_offset)
    return info


def tick(manager: LogManager, now: int) -> list[str]:
    works = manager.tick(now, now)
    for work in works:
        run_work(work)
    return [work.name for work in works]


def create(manager: LogManager, partition: TopicPartition = A, **where: Any) -> PartitionLog:
    return manager.get_or_create(partition, topic_id=TOPIC_ID, now_ms=START_MS, **where)
