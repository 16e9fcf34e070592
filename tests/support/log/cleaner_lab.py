"""A log manager over a virtual disk whose cleaner works step by step."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from moldau.values import LeaderEpoch
from moldau_broker.log.config import LogConfig, LogManagerSettings
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.values import TopicPartition, run_work
from support.log.model import PARTITION, Row, VirtualMachine, all_rows, committed_rows, make_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_broker.log.partition.partition_log import PartitionLog

NOW = 1_000_000
DAY = 24 * 3600 * 1000


class Lab:
    """A manager over a virtual disk, and a clock."""

    def __init__(
        self, *, settings: LogManagerSettings | None = None, directories: Sequence[str] = ("/data",), **config: Any
    ) -> None:
        self.now = NOW
        self.directories = directories
        fields: dict[str, Any] = {
            "compact": True,
            "delete": False,
            "segment_bytes": 1000,
            "min_cleanable_dirty_ratio": 0.0,
            **config,
        }
        self.config = LogConfig(**fields)
        self.machine = VirtualMachine(1)
        self.settings = settings or LogManagerSettings(
            cleaner_dedupe_buffer_size=24 * 1000,
            cleaner_backoff_ms=0,
            flush_offset_checkpoint_interval_ms=1,
        )
        self.manager = self.open()
        self.log = self.create(PARTITION)
        self.sequences: dict[int, int] = {}

    def open(self) -> LogManager:
        manager = LogManager(
            self.machine.disk,
            self.directories,
            node_id=1,
            cluster_id="c",
            random=random.Random(1),
            settings=self.settings,
            default_config=self.config,
        )
        manager.start(self.now)
        manager.recover_all()
        manager.begin_discarding(self.now)
        return manager

    def create(self, partition: TopicPartition) -> PartitionLog:
        return self.manager.get_or_create(partition, topic_id=uuid.UUID(int=1), now_ms=self.now)

    def put(self, key: bytes, value: bytes | None, log: PartitionLog | None = None, **batch: Any) -> int:
        log = log or self.log
        data = make_batch([(self.now, key, value)], **batch)
        info = log.append_as_leader(memoryview(data), leader_epoch=LeaderEpoch(1), now_ms=self.now)
        log.update_high_watermark(log.log_end_offset)
        return info.first_offset

    def fill(self, log: PartitionLog | None = None) -> None:
        """Closes the active segment, so that all before it can be cleaned, and makes that durable."""
        log = log or self.log
        log.storage.roll(log.log_end_offset, self.now)
        log.update_high_watermark(log.log_end_offset)
        log.flush()
        self.manager.directories[0].recovery_points.write_now(
            {key: each.log_end_offset for key, each in self.manager.logs.items()}
        )

    def clean(self) -> int:
        """Lets the cleaner work until it is idle; returns how many steps it took."""
        steps = 0
        for _ in range(10_000):
            self.now += 1
            works = self.manager.cleaner_works(self.now)
            if not works:
                return steps
            steps += 1
            for work in works:
                try:
                    run_work(work)
                except CorruptLogFileError:
                    continue  # the log is marked as uncleanable, the cleaner goes on with others
        raise AssertionError("the cleaner never ends")

    def begin(self, producer: int, rows: dict[bytes, bytes | None]) -> None:
        """Appends one batch of a transaction of a producer, which stays open."""
        data = make_batch(
            [(self.now, key, value) for key, value in rows.items()],
            producer=(producer, 0, self.sequences.get(producer, 0)),
            transactional=True,
        )
        self.sequences[producer] = self.sequences.get(producer, 0) + len(rows)
        self.log.append_as_leader(memoryview(data), leader_epoch=LeaderEpoch(1), now_ms=self.now)
        self.log.update_high_watermark(self.log.log_end_offset)

    def end(self, producer: int, *, commit: bool) -> None:
        """Ends the producer's open transaction."""
        self.log.append_end_transaction_marker(
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=commit,
            leader_epoch=LeaderEpoch(1),
            now_ms=self.now,
        )
        self.log.update_high_watermark(self.log.log_end_offset)

    def transaction(self, producer: int, rows: dict[bytes, bytes | None], *, commit: bool) -> None:
        """A whole transaction."""
        self.begin(producer, rows)
        self.end(producer, commit=commit)

    def rows(self) -> list[Row]:
        """The records of the log as a reader of uncommitted data sees them, without markers."""
        return [row for row in all_rows(self.log) if not row.control]

    def committed(self) -> dict[bytes | None, bytes | None]:
        """The last committed value of each key; None where that is a tombstone."""
        return {row.key: row.value for row in committed_rows(self.log)}

    def values(self, log: PartitionLog | None = None) -> dict[bytes | None, bytes | None]:
        return {row.key: row.value for row in all_rows(log or self.log) if not row.control}

    def tick(self) -> None:
        """Writes all checkpoints as they are due; cleans nothing."""
        self.now += 10 * 60 * 1000
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.manager.cleaner, "works", lambda *arguments: [])
            for work in self.manager.tick(self.now, self.now):
                run_work(work)

    def restart(self, *, power_lost: bool) -> None:
        """The broker's next run on the same disk."""
        if not power_lost:
            self.manager.close()
        self.machine.boot(power_lost=power_lost)
        self.manager = self.open()
        self.log = self.manager.logs[PARTITION]
