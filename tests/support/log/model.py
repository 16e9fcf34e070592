"""A naive model of a partition's log, and a driver that applies the same actions to the model and to the real log.

The driver is used by Hypothesis (random histories, shrunk), by seeded runs, and by the planted bugs: each must make
it fail. It runs over a virtual disk, where power can fail after any write, and over a real directory, where the
process can be killed.
"""

from __future__ import annotations

import itertools
import random
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.records import (
    BatchBuilder,
    Compression,
    batch_crc_valid,
    decode_records,
    iterate_batches,
)
from moldau.runtime.ports.descriptors import UNLIMITED, DescriptorBudget, is_shortage
from moldau.runtime.ports.real import RealDisk
from moldau.values import LeaderEpoch
from moldau_broker.log.config import LogConfig, LogManagerSettings
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.log.errors import DescriptorsShortError, LogError
from moldau_broker.log.values import TopicPartition, run_work
from moldau_jepsen.world.disk.disk import NodeDisk
from moldau_jepsen.world.disk.disk_profile import OPEN_FILES_MAX, DiskProfile
from moldau_jepsen.world.disk.virtual_disk import VirtualDisk
from moldau_jepsen.world.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import AppendInfo, ReadResult, Work

PARTITION = TopicPartition("topic", 0)
TOPIC_ID = uuid.UUID(int=0xFEED)
START_MS = 1_000_000


class PowerLoss(BaseException):
    """The machine stops in the middle of a call."""


class VirtualMachine:
    """A machine with a virtual disk; the process on it can be killed, or its power can fail."""

    can_lose_power = True

    def __init__(self, seed: int) -> None:
        self.virtual_disk = VirtualDisk("m", random.Random(seed), Trace(lambda: 0.0), DiskProfile())
        self.disk = NodeDisk(self.virtual_disk)
        self.root = "/data"

    def arm(self, writes: int) -> None:
        """Lets the power fail just after a number of writes from now."""

        def fail() -> None:
            raise PowerLoss

        self.disk.crash_after_writes(writes, fail)

    def boot(self, *, power_lost: bool) -> None:
        self.disk.freeze()
        if power_lost:
            self.virtual_disk.lose_power()
        self.disk = NodeDisk(self.virtual_disk)


class RealMachine:
    """A real directory; only the process can end."""

    can_lose_power = False

    def __init__(self, root: str) -> None:
        self.disk = RealDisk()
        self.root = root

    def boot(self, *, power_lost: bool) -> None:
        assert not power_lost, "a real disk keeps its power"
        self.disk = RealDisk()


Machine = VirtualMachine | RealMachine

Unsent = tuple[int, "bytes | None", "bytes | None"]
"""Timestamp, key and value of a record before it is sent."""


@dataclass(frozen=True)
class Row:
    """A record in the model."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    epoch: int
    producer_id: int
    control: bool


def make_batch(
    rows: Iterable[Unsent],
    *,
    codec: Compression = Compression.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytearray:
    """One batch from (timestamp, key, value) rows, as a client sends it."""
    builder = BatchBuilder(1 << 24, compression=codec, is_transactional=transactional)
    for timestamp, key, value in rows:
        builder.append(timestamp, key, value)
    return builder.build(producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2])


def read_rows(
    log: PartitionLog, offset: int, *, max_bytes: int = 1 << 20, upper: int | None = None
) -> tuple[ReadResult, list[Row], int | None]:
    """Returns the checked records of one read, and the offset of the next read (None at the end)."""
    upper = log.log_end_offset if upper is None else upper
    result = log.read(offset, max_bytes=max_bytes, upper_bound_offset=upper, min_one_batch=True)
    rows: list[Row] = []
    following = None
    for piece in result.ranges:
        data = piece.file.read(piece.position, piece.count)
        assert len(data) == piece.count
        for position, header in iterate_batches(data):
            assert batch_crc_valid(data, position, header), f"a damaged batch was served at offset {header.base_offset}"
            assert header.base_offset < upper, "a batch at or above the upper bound was served"
            for record in decode_records(data, position, header):
                fields = (record.offset, record.timestamp, record.key, record.value)
                rows += [Row(*fields, header.partition_leader_epoch, header.producer_id, header.is_control)]
            following = header.next_offset
    return result, rows, following


def all_rows(log: PartitionLog, *, max_bytes: int = 1 << 20, upper: int | None = None) -> list[Row]:
    """Returns all records that a ``read_uncommitted`` consumer sees."""
    upper = log.log_end_offset if upper is None else upper
    rows: list[Row] = []
    offset: int = log.log_start_offset
    while offset < upper:
        _, found, following = read_rows(log, offset, max_bytes=max_bytes, upper=upper)
        if following is None:
            break
        assert following > offset, "a read did not advance"
        rows += [row for row in found if row.offset >= offset]
        offset = following
    return rows


def committed_rows(log: PartitionLog, *, max_bytes: int = 700) -> list[Row]:
    """Returns the records that a ``read_committed`` consumer sees, filtered as in its client."""
    rows: list[Row] = []
    offset: int = log.log_start_offset
    upper = log.last_stable_offset
    while offset < upper:
        result, found, following = read_rows(log, offset, max_bytes=max_bytes, upper=upper)
        if following is None:
            break
        aborted = sorted((entry.first_offset, entry.producer_id) for entry in log.aborted_transactions(result, upper))
        active: dict[int, None] = {}
        for row in found:
            while aborted and aborted[0][0] <= row.offset:
                active[aborted.pop(0)[1]] = None
            if row.control:
                active.pop(row.producer_id, None)
            elif row.producer_id not in active and row.offset >= offset:
                rows.append(row)
        offset = following
    return rows


class Driver:
    """Applies random actions to a log and to its model.

    Every action takes a ``random.Random``; every difference is an assertion.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        compact: bool = False,
        seed: int = 0,
        config: LogConfig | None = None,
        map_slots: int = 11,
    ) -> None:
        self.map_slots = map_slots
        self.machine = machine
        self.compact = compact
        self.seed = seed
        self.config = config or LogConfig(
            segment_bytes=3000,
            segment_index_bytes=12 * 40,
            index_interval_bytes=300,
            segment_ms=50_000,
            retention_ms=-1 if compact else 100_000,
            retention_bytes=-1 if compact else 15_000,
            file_delete_delay_ms=1000,
            compact=compact,
            delete=not compact,
            min_cleanable_dirty_ratio=0.01,
            delete_retention_ms=20_000,
            message_timestamp_after_max_ms=1 << 60,
        )
        self.now = START_MS
        self.counter = 0
        self.epoch = LeaderEpoch(1)
        self.history: dict[int, Row] = {}  # all rows of this lineage, removed ones too
        self.durable_end = 0
        self.floor_offset = 0  # log start offset as given to the log
        self.sequences: dict[int, int] = {}
        self.last_batch: dict[int, tuple[bytes, int]] = {}
        self.open: dict[int, int] = {}  # producer -> first offset
        self.transactions: list[tuple[int, int, int, bool]] = []  # producer, first, marker offset, committed
        self.ever_aborted: dict[int, None] = {}
        self.start()

    KEYS = 12
    TOMBSTONES = 0.2
    recovery_checkpoint_ms = 1000
    shortages = False
    open_files_max = UNLIMITED

    # Life of the process ---------------------------------------------------------------------------------------------

    check_indexes = True
    ended_are_known = True
    committed = 0
    writes = 0
    """After how many writes the power fails, in histories that stop at each write."""

    def start(self) -> None:
        self.ended_are_known = False
        self.manager = LogManager(
            self.machine.disk,
            [self.machine.root],
            node_id=1,
            cluster_id="cluster",
            random=random.Random(self.seed),
            settings=LogManagerSettings(
                cleaner_dedupe_buffer_size=24 * self.map_slots,
                cleaner_backoff_ms=0,
                retention_check_interval_ms=1000,
                producer_id_expiration_ms=1 << 60,
                high_watermark_checkpoint_interval_ms=1000,
                flush_offset_checkpoint_interval_ms=self.recovery_checkpoint_ms,
                flush_start_offset_checkpoint_interval_ms=1000,
            ),
            default_config=self.config,
            descriptors=DescriptorBudget(self.open_files_max),
        )
        self.manager.start(self.now)
        self.manager.recover_all()
        self.manager.begin_discarding(self.now)
        self.log = log = self.manager.get_or_create(PARTITION, topic_id=TOPIC_ID, now_ms=self.now)
        if log.log_start_offset < log.high_watermark < log.log_end_offset:
            # A checkpoint may be older than a loss of data that no second replica of this model brings back.
            piece = log.read(log.high_watermark, max_bytes=1, upper_bound_offset=1 << 60, min_one_batch=True).ranges[0]
            first = next(iter(iterate_batches(piece.file.read(piece.position, piece.count))))[1].base_offset
            log.update_high_watermark(min(first, log.high_watermark))

    @property
    def virtual_machine(self) -> VirtualMachine:
        """The machine of a history in which power or file descriptors can fail."""
        assert isinstance(self.machine, VirtualMachine)
        return self.machine

    @property
    def rows(self) -> list[Row]:
        return [row for offset, row in sorted(self.history.items()) if offset >= self.log.log_start_offset]

    def restart_clean(self, rnd: random.Random) -> None:
        before = (self.log.log_end_offset, self.log.log_start_offset, self.log.high_watermark, all_rows(self.log))
        producers = self.log.producer_state.describe()
        self.manager.close(5)
        self.machine.boot(power_lost=self.machine.can_lose_power and rnd.random() < 0.5)
        self.start()
        after = (self.log.log_end_offset, self.log.log_start_offset, self.log.high_watermark, all_rows(self.log))
        assert before == after, "a clean restart changed the log"
        assert self.log.producer_state.describe() == producers, "a clean restart changed the producers"
        assert self.manager.recovery_progress.recovered_bytes == 0, "a clean start scanned the log"
        self.durable_end = self.log.log_end_offset

    def kill(self, rnd: random.Random) -> None:
        end = self.log.log_end_offset
        producers = self.log.producer_state.describe()
        for directory in self.manager.directories:
            directory.release()  # the operating system does that for a dead process
        self.machine.boot(power_lost=False)
        self.start()
        assert self.log.log_end_offset == end, "a killed process lost what was in the page cache"
        assert self.log.producer_state.describe() == producers, (
            f"recovery changed the producers from {producers} to {self.log.producer_state.describe()}"
        )
        self._reconcile(end)

    def lose_power(self, rnd: random.Random) -> None:
        if self.machine.can_lose_power:
            self.machine.boot(power_lost=True)
            self.start()
            self._reconcile(self.durable_end)

    def crash_in(self, rnd: random.Random, action: str) -> None:
        """Lets the power fail, or the process end, in the middle of another action."""
        if not self.machine.can_lose_power:
            return
        floor = self.durable_end
        machine = self.virtual_machine
        machine.arm(rnd.randint(1, 25))
        try:
            getattr(self, action)(rnd)
        except PowerLoss:
            power_lost = rnd.random() < 0.7
            if action in ("truncate", "restart_at"):
                floor = min(floor, self.cut_to)
            self.machine.boot(power_lost=power_lost)
            self.start()
            self._reconcile(floor, restarted=action == "restart_at")
        else:
            machine.disk.crash_after_writes(1 << 60, lambda: None)

    def _reconcile(self, floor: int, *, restarted: bool = False) -> None:
        """Checks after a crash that the log is a prefix of the model with all durable records; adapts the model."""
        log = self.log
        end = log.log_end_offset
        assert end >= floor, f"the log ends at {end}, but {floor} was durable"
        found = all_rows(log)
        for row in found:
            assert self.history.get(row.offset) == row, f"recovered {row}, wrote {self.history.get(row.offset)}"
        if not self.compact:
            expected = [self.history[offset] for offset in sorted(self.history) if log.log_start_offset <= offset < end]
            assert found == expected, "recovery left a hole"
        self.history = {offset: row for offset, row in self.history.items() if offset < end}
        if restarted and all(offset < log.segments[0].base_offset for offset in self.history):
            self.history = {}
        self._forget_from(end)
        self.floor_offset = log.log_start_offset
        self.durable_end = min(self.durable_end, end)
        self.check(random.Random(end))

    def _forget_from(self, end: int) -> None:
        """Removes from the model's producers all batches at or above ``end``."""
        self.open = {}
        kept = []
        for producer, first, marker, committed in self.transactions:
            if marker < end:
                kept.append((producer, first, marker, committed))
        self.transactions = kept
        described = {row.producer_id: row for row in self.log.producer_state.describe()}
        for producer, row in described.items():
            if row.current_transaction_start_offset >= 0:
                self.open[producer] = row.current_transaction_start_offset
        for producer, first in self._open_by_history().items():
            if first < self.log.log_start_offset:
                continue  # its data is deleted; the snapshot that knew it may be lost
            assert self.open.get(producer) == first, (
                f"transaction of {producer}: {self.open.get(producer)}, not {first}"
            )
        self.sequences = {producer: row.last_sequence + 1 for producer, row in described.items()}
        self.last_batch = {}
        # What lost its abort marker and is still there may be committed yet; what the cleaner took away is gone.
        aborted, present = self._aborted_offsets(), dict.fromkeys(row.offset for row in all_rows(self.log))
        self.ever_aborted = {offset: None for offset in self.ever_aborted if offset in aborted or offset not in present}

    def _open_by_history(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for _, row in sorted(self.history.items()):
            if row.control:
                found.pop(row.producer_id, None)
            elif row.producer_id >= 100:
                found.setdefault(row.producer_id, row.offset)
        return found

    # Actions ---------------------------------------------------------------------------------------------------------

    def _rows_for(self, rnd: random.Random) -> list[Unsent]:
        count = rnd.choice((1, 1, 2, 3, 8))
        rows: list[Unsent] = []
        for _ in range(count):
            self.counter += 1
            self.now += rnd.randint(0, 40)
            key = b"k%d" % rnd.randrange(self.KEYS) if self.compact or rnd.random() < 0.5 else None
            empty = rnd.random() < self.TOMBSTONES
            value = None if empty else b"%d-" % self.counter + b"x" * rnd.choice((0, 20, 200))
            rows.append((self.now - rnd.choice((0, 0, 0, 500)), key, value))
        return rows

    def _append(self, rows: Sequence[Unsent], batch: bytearray, producer_id: int) -> AppendInfo:
        base = self.log.staged_end_offset
        for delta, (timestamp, key, value) in enumerate(rows):
            # Noted before: a crash in the middle may leave it in the log.
            self.ever_aborted.pop(base + delta, None)
            self.history[base + delta] = Row(base + delta, timestamp, key, value, self.epoch, producer_id, False)
        info = self.log.stage_as_leader(memoryview(batch), leader_epoch=self.epoch, now_ms=self.now)
        assert not info.duplicate
        assert (info.first_offset, info.last_offset) == (base, base + len(rows) - 1), "offsets are dense"
        return info

    def append(self, rnd: random.Random) -> None:
        for _ in range(rnd.choice((1, 1, 3))):
            rows = self._rows_for(rnd)
            self._append(rows, make_batch(rows, codec=rnd.choice(list(Compression))), -1)
        end = self.log.staged_end_offset
        self.log.flush_staged()
        assert self.log.log_end_offset == end

    def append_idempotent(self, rnd: random.Random) -> None:
        producer = rnd.randrange(3)
        if producer in self.last_batch and rnd.random() < 0.3:
            sent, base = self.last_batch[producer]
            end = self.log.log_end_offset
            info = self.log.append_as_leader(memoryview(bytearray(sent)), leader_epoch=self.epoch, now_ms=self.now)
            assert info.duplicate, "a batch that was sent again was appended again"
            assert info.first_offset == base
            assert self.log.log_end_offset == end
            return
        sequence = self.sequences.get(producer, 0)
        rows = self._rows_for(rnd)
        batch = make_batch(rows, producer=(producer, 0, sequence))
        if rnd.random() < 0.2 and producer in self.sequences and sequence > 0:
            self._refused(
                make_batch(rows, producer=(producer, 0, sequence + 7)), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            )
        sent = bytes(batch)
        info = self._append(rows, batch, producer)
        self.log.flush_staged()
        self.sequences[producer] = sequence + len(rows)
        self.last_batch[producer] = (sent, info.first_offset)

    def append_transactional(self, rnd: random.Random) -> None:
        producer = 100 + rnd.randrange(3)
        sequence = self.sequences.get(producer, 0)
        rows = self._rows_for(rnd)
        batch = make_batch(rows, producer=(producer, 0, sequence), transactional=True)
        self.open.setdefault(producer, self.log.log_end_offset)
        self._append(rows, batch, producer)
        self.log.flush_staged()
        self.sequences[producer] = sequence + len(rows)

    def end_transaction(self, rnd: random.Random) -> None:
        if not self.open:
            return
        producer = rnd.choice(sorted(self.open))
        commit = rnd.random() < 0.5
        offset = self.log.log_end_offset
        key = b"\0\0\0\1" if commit else b"\0\0\0\0"
        self.history[offset] = Row(offset, self.now, key, b"\0\0" + (3).to_bytes(4, "big"), self.epoch, producer, True)
        first = self.open[producer]
        self.transactions.append((producer, first, offset, commit))
        self.log.append_end_transaction_marker(
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=3,
            commit=commit,
            leader_epoch=self.epoch,
            now_ms=self.now,
        )
        del self.open[producer]

    def append_damaged(self, rnd: random.Random) -> None:
        batch = make_batch(self._rows_for(rnd), codec=rnd.choice(list(Compression)))
        position = rnd.randrange(16, len(batch))
        batch[position] ^= 1 << rnd.randrange(8)
        self._refused(batch, None)

    def _refused(self, batch: bytearray, code: ErrorCode | None) -> None:
        end, size = self.log.log_end_offset, self.log.size_bytes
        with pytest.raises(LogError) as caught:
            self.log.append_as_leader(memoryview(batch), leader_epoch=self.epoch, now_ms=self.now)
        assert code is None or caught.value.code == code
        assert (self.log.log_end_offset, self.log.size_bytes) == (end, size), "a refused batch changed the log"

    def new_epoch(self, rnd: random.Random) -> None:
        self.epoch = self.newest_epoch = LeaderEpoch(max(self.epoch, self.newest_epoch) + rnd.randint(1, 3))
        if rnd.random() < 0.5:
            self.log.begin_leader_epoch(self.epoch)

    def advance_watermark(self, rnd: random.Random) -> None:
        log = self.log
        if log.high_watermark == log.log_end_offset:
            return
        # Replicas end where a batch ends, and so does the high watermark.
        _, _, following = read_rows(log, rnd.randrange(log.high_watermark, log.log_end_offset), max_bytes=1)
        log.update_high_watermark(rnd.choice((log.log_end_offset, following or log.log_end_offset)))
        self.committed = max(self.committed, log.high_watermark)

    def flush(self, rnd: random.Random) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.log.log_end_offset
        self.durable_end = self.log.log_end_offset

    def truncate(self, rnd: random.Random) -> None:
        log = self.log
        low: int = max(log.log_start_offset, log.high_watermark)
        if self.compact:
            low = max(low, log.storage.segments.active.base_offset, self.committed)  # what the cleaner saw stays
        target = rnd.randint(min(low, log.log_end_offset), log.log_end_offset)
        self.cut_to = min([target, *self._batch_starts_around(target)])
        log.truncate_to(target)
        self.ended_are_known = False
        end = log.log_end_offset
        assert end <= target
        self.durable_end = min(self.durable_end, end)
        self.history = {offset: row for offset, row in self.history.items() if offset < end}
        self._forget_from(end)
        if self.history and rnd.random() < 0.3:
            # The new leader has nothing of its own epoch yet: what follows here is of the epoch that was cut.
            self.epoch = LeaderEpoch(self.history[max(self.history)].epoch)
        else:
            self.epoch = self.newest_epoch = LeaderEpoch(max(self.epoch, self.newest_epoch) + 1)

    newest_epoch = LeaderEpoch(0)

    def _batch_starts_around(self, target: int) -> list[int]:
        if target >= self.log.log_end_offset:
            return []
        result, _, _ = read_rows(self.log, max(target, self.log.log_start_offset), max_bytes=1)
        return [
            header.base_offset
            for piece in result.ranges
            for _, header in iterate_batches(piece.file.read(piece.position, piece.count))
        ][:1]

    cut_to = 0

    def restart_at(self, rnd: random.Random) -> None:
        if self.compact:
            return
        target = self.log.log_end_offset + rnd.randint(0, 50)
        self.cut_to = 0
        self.log.truncate_fully_and_start_at(target, self.now)
        self.history = {}
        self.durable_end = target
        self.floor_offset = target
        assert (self.log.log_start_offset, self.log.log_end_offset) == (target, target)
        self._forget_from(0)
        self.sequences = {}

    def delete_records(self, rnd: random.Random) -> None:
        if self.compact:
            return
        log = self.log
        target = rnd.randint(log.log_start_offset, log.high_watermark)
        assert log.delete_records(target) == target
        self.floor_offset = target

    def _run(self, works: Iterable[Work]) -> None:
        """Runs the works; if descriptors are short, each of them may fail for that reason."""
        for work in works:
            try:
                run_work(work)
            except OSError as error:
                if not (self.is_short and is_shortage(error)):
                    raise

    def tick(self, rnd: random.Random) -> None:
        self.now += rnd.choice((1001, 1001, 5000, 30_000))
        start, watermark = self.log.log_start_offset, self.log.high_watermark
        self._run(self.manager.tick(self.now, self.now))
        assert start <= self.log.log_start_offset <= max(start, watermark), "retention went above the high watermark"

    def clean(self, rnd: random.Random) -> None:
        for _ in range(40):
            self.now += 1
            works = self.manager.tick(self.now, self.now)
            self._run(works)
            if not any(work.name.startswith("clean") for work in works):
                break

    # Checks ----------------------------------------------------------------------------------------------------------

    def check(self, rnd: random.Random) -> None:
        log = self.log
        rows = all_rows(log, max_bytes=rnd.choice((1, 500, 1 << 20)))
        if self.compact:
            self._check_compacted(rows)
        else:
            assert rows == self.rows, "the log does not hold what was appended"
        self._check_lookups(rnd, rows)
        self._check_epochs(rnd, rows)
        self._check_transactions()
        if self.check_indexes:
            self._check_indexes()

    def _check_compacted(self, rows: list[Row]) -> None:
        log = self.log
        offsets = [row.offset for row in rows]
        assert offsets == sorted(set(offsets)), "order or offsets changed"
        for row in rows:
            assert self.history.get(row.offset) == row, f"{row} was changed from {self.history.get(row.offset)}"
        # Aborted data may be gone though a crash took the marker that was not durable here: the leader has it.
        self.ever_aborted.update(self._aborted_offsets())
        aborted = self.ever_aborted
        last: dict[bytes, Row] = {}
        for _, row in sorted(self.history.items()):
            if not row.control and row.key is not None and row.offset not in aborted:
                last[row.key] = row
        present = dict.fromkeys(offsets)
        for row in last.values():
            if row.value is not None:
                assert row.offset in present, f"the last value of {row.key!r} at {row.offset} is gone"
            elif self.now < row.timestamp + self.config.delete_retention_ms - 1000:
                assert row.offset in present, f"the tombstone of {row.key!r} at {row.offset} went early"
        self._check_newest_of_keys(last, aborted)
        for offset in self.history:
            if offset >= log.storage.segments.active.base_offset:
                assert offset in present, f"offset {offset} of the active segment is gone"

    def _check_newest_of_keys(self, last: dict[bytes, Row], aborted: dict[int, None]) -> None:
        """Checks that a ``read_committed`` consumer finds the last record of each key, and none of a deleted key.

        A tombstone may go, but what it deleted must be gone by then.
        """
        found: dict[bytes, Row] = {}
        for row in committed_rows(self.log):
            if row.key is not None and row.offset not in aborted:
                found[row.key] = row
        for key, row in found.items():
            newest = last[key]
            if newest.offset < self.log.last_stable_offset:
                assert row == newest, f"{key!r} is back at {row.offset}: its last record was {newest}"

    def _check_lookups(self, rnd: random.Random, rows: list[Row]) -> None:
        log = self.log
        for _ in range(3):
            if log.log_end_offset > log.log_start_offset:
                offset = rnd.randrange(log.log_start_offset, log.log_end_offset)
                expected = next((row for row in rows if row.offset >= offset), None)
                position = offset
                found = None
                while found is None and position < log.log_end_offset:
                    _, some, following = read_rows(log, position, max_bytes=1)
                    if following is None:
                        break
                    found = next((row for row in some if row.offset >= offset), None)
                    position = following
                assert found == expected, f"a read at {offset} found {found}, not {expected}"
            if rows:
                wanted = rnd.choice(rows).timestamp + rnd.choice((-1, 0, 1))
                later = next((row for row in rows if row.timestamp >= wanted), None)
                answer = log.offset_for_timestamp(max(0, wanted))
                assert (answer.offset if answer else None) == (later.offset if later else None), f"time {wanted}"
                newest = max(row.timestamp for row in rows)
                top = log.offset_for_timestamp(-3)
                if not self.compact and log.segments[0].base_offset == log.log_start_offset:
                    assert top is not None
                    assert top.timestamp_ms == newest

    def _check_epochs(self, rnd: random.Random, rows: list[Row]) -> None:
        for row in rnd.sample(rows, min(3, len(rows))):
            assert self.log.epochs.epoch_for_offset(row.offset) == row.epoch
            end = self.log.end_offset_for_epoch(row.epoch)
            after = [other.offset for other in rows if other.epoch > row.epoch]
            if after:
                assert row.offset < end.end_offset <= after[0]

    def _aborted_offsets(self) -> dict[int, None]:
        gone: dict[int, None] = {}
        for producer, first, marker, committed in self.transactions:
            if not committed:
                for offset, row in self.history.items():
                    if first <= offset < marker and row.producer_id == producer:
                        gone[offset] = None
        return gone

    def _check_transactions(self) -> None:
        log = self.log
        ended = [first for _, first, marker, _ in self.transactions if marker >= log.high_watermark]
        if not ended:
            self.ended_are_known = True
        highest = max(min([*self.open.values(), log.high_watermark]), log.log_start_offset)
        lowest = max(min([*ended, highest]), log.log_start_offset)
        if self.ended_are_known:
            assert log.last_stable_offset == lowest, "the last stable offset is wrong"
        # A start does not know which transactions ended just before it; they are decided, so the result is the same.
        assert lowest <= log.last_stable_offset <= highest, "the last stable offset is out of bounds"
        if log.last_stable_offset <= log.log_start_offset:
            return
        visible = [row.offset for row in committed_rows(log)]
        gone = self._aborted_offsets()
        if self.compact:
            assert not [offset for offset in visible if offset in gone], (
                "a reader of committed data saw aborted records"
            )
            return
        expected = [
            row.offset
            for row in self.rows
            if row.offset < log.last_stable_offset and not row.control and row.offset not in gone
        ]
        assert visible == expected, "committed data differs"

    def _check_indexes(self) -> None:
        """Checks that entries rise in both columns and point to batches that end with their offsets (L4)."""
        for segment in self.log.segments:
            data = segment.file.read(0, segment.size)
            starts = dict(iterate_batches(data))
            index = segment.offset_index
            entries = [index.entry(number) for number in range(index.count)]
            for before, after in itertools.pairwise(entries):
                assert before.offset < after.offset
                assert before.position < after.position
            for entry in entries:
                assert entry.position in starts, f"no batch begins at {entry.position}"
                assert starts[entry.position].last_offset == entry.offset
            largest = max((header.max_timestamp for header in starts.values()), default=-1)
            assert segment.max_entry().timestamp_ms == largest
            times = segment.time_index
            stamps = [times.entry(number) for number in range(times.count)]
            for earlier, later in itertools.pairwise(stamps):
                assert earlier.timestamp_ms < later.timestamp_ms
                assert earlier.offset < later.offset
            gaps = [0, *(entry.position for entry in entries), segment.size]
            widest = max((header.size_bytes for header in starts.values()), default=0)
            for low, high in itertools.pairwise(gaps):
                assert high - low <= self.config.index_interval_bytes + 2 * widest, (
                    "an interval of the index is too wide"
                )

    PLAIN_ACTIONS: tuple[str, ...] = (
        *("append",) * 6,
        *("append_idempotent",) * 3,
        *("append_transactional",) * 3,
        *("end_transaction",) * 2,
        "append_damaged",
        "new_epoch",
        *("advance_watermark",) * 3,
        *("flush",) * 2,
        "truncate",
        "restart_at",
        "delete_records",
        *("tick",) * 3,
        "restart_clean",
        "kill",
        "lose_power",
    )
    COMPACT_ACTIONS: tuple[str, ...] = (
        *("append",) * 8,
        "append_idempotent",
        *("append_transactional",) * 2,
        *("end_transaction",) * 2,
        "new_epoch",
        *("advance_watermark",) * 4,
        *("flush",) * 2,
        "truncate",
        "tick",
        *("clean",) * 3,
        "restart_clean",
        "kill",
        "lose_power",
    )
    CRASHING: tuple[str, ...] = (
        "append",
        "append_transactional",
        "end_transaction",
        "flush",
        "truncate",
        "restart_at",
        "tick",
        "clean",
    )

    def step(self, rnd: random.Random) -> str:
        """Performs one random action, then all checks."""
        action = rnd.choice(self.COMPACT_ACTIONS if self.compact else self.PLAIN_ACTIONS)
        if self.shortages and action in self.SHORT and rnd.random() < 0.4:
            self.perform_short(action, rnd)
        else:
            self.perform(action, rnd, crash=rnd.random() < 0.12)
        return action

    def perform(self, action: str, rnd: random.Random, *, crash: bool) -> None:
        if crash and action in self.CRASHING:
            self.crash_in(rnd, action)
        else:
            getattr(self, action)(rnd)
        self.check(rnd)

    # Short of file descriptors ---------------------------------------------------------------------------------------

    is_short = False

    def perform_short(self, action: str, rnd: random.Random) -> None:
        """Performs an action while other files and connections use all descriptors but a few.

        It may be refused. Then nothing has failed, and the log holds a prefix of what was to be appended.
        """
        machine = self.virtual_machine
        profile = machine.virtual_disk.profile
        profile.open_files_max = machine.disk.open_files + rnd.choice((0, 0, 1, 2, 3))
        self.is_short = True
        try:
            getattr(self, action)(rnd)
        except (DescriptorsShortError, OSError) as error:
            if not isinstance(error, DescriptorsShortError) and not is_shortage(error):
                raise
            self.log.flush_staged()
            profile.open_files_max = OPEN_FILES_MAX  # the model reads the log below
            end = self.log.log_end_offset
            self.durable_end = min(self.durable_end, end)
            self.history = {offset: row for offset, row in self.history.items() if offset < end}
            self._forget_from(end)
        finally:
            self.is_short = False
            profile.open_files_max = OPEN_FILES_MAX
        assert not self.log.failed, "a log that found no descriptors counts as failed"
        assert self.manager.offline_directories == [], "a directory whose log found no descriptors is offline"
        self.check(rnd)

    SHORT: tuple[str, ...] = (
        "append",
        "append_idempotent",
        "append_transactional",
        "end_transaction",
        "flush",
        "tick",
        "clean",
    )


class TransactionsDriver(Driver):
    """A compacted log of few keys that are mostly written and deleted in transactions, and cleaned after each wait.

    A cleaning often comes between two transactions of one producer, and the next one after ``delete.retention.ms``.
    """

    KEYS = 4
    TOMBSTONES = 0.4

    def __init__(self, machine: Machine, *, seed: int = 0) -> None:
        # With odd seeds the cleaner has to ask for the checkpoints that it waits for.
        self.recovery_checkpoint_ms = 1_000_000 if seed % 2 else 1000
        super().__init__(machine, compact=True, seed=seed, map_slots=seed % 3 * 20 + 4)

    def whole_transaction(self, rnd: random.Random) -> None:
        self.append_transactional(rnd)
        self.end_transaction(rnd)

    def clean_all(self, rnd: random.Random) -> None:
        """Cleans up to the active segment, often after the retention of what was cleaned before."""
        self.now += rnd.choice((0, 0, self.config.delete_retention_ms // 2, self.config.delete_retention_ms + 1))
        self.log.update_high_watermark(self.log.log_end_offset)
        self.committed = max(self.committed, self.log.high_watermark)
        if rnd.random() < 0.7:
            self.log.storage.roll(self.log.log_end_offset, self.now)
        self.flush(rnd)
        self.now += 1001
        self.clean(rnd)

    COMPACT_ACTIONS = (
        *("append",) * 2,
        *("append_transactional",) * 3,
        *("whole_transaction",) * 6,
        *("end_transaction",) * 3,
        "advance_watermark",
        "flush",
        "truncate",
        *("clean_all",) * 6,
        "restart_clean",
        "kill",
        "lose_power",
    )
    CRASHING = ("append_transactional", "end_transaction", "whole_transaction", "truncate", "clean", "clean_all")


class ShortDriver(TransactionsDriver):
    """Runs ``TransactionsDriver`` with few descriptors, and at times with none left."""

    shortages = True
    open_files_max = 200
    SHORT = (*Driver.SHORT, "whole_transaction", "clean_all", "truncate")


KINDS: dict[str, Callable[..., Driver]] = {
    "plain": Driver,
    "compacted": partial(Driver, compact=True),
    "transactions": TransactionsDriver,
    "short": ShortDriver,
}


def run_seed(machine: Machine, *, seed: int, steps: int, kind: str) -> Driver:
    """Runs a random history from one seed."""
    rnd = random.Random(seed)
    driver = KINDS[kind](machine, seed=seed)
    for number in range(steps):
        try:
            action = driver.step(rnd)
        except AssertionError as error:
            error.add_note(f"seed {seed}, step {number}")
            raise
        del action
    return driver


# Crash points

WRITES_MAX = 120


def prepare(compact: bool, seed: int) -> tuple[Driver, random.Random]:
    """Returns the driver of a log with several segments, partly durable, with checkpoints written."""
    driver = Driver(VirtualMachine(seed), compact=compact, seed=seed, map_slots=64)
    rnd = random.Random(seed)
    for action in ("append",) * 12 + ("append_transactional", "end_transaction", "append") + ("append",) * 6:
        getattr(driver, action)(rnd)
    while driver.log.storage.segments.count < 4:
        driver.append(rnd)
    driver.log.update_high_watermark(driver.log.log_end_offset)
    driver.committed = driver.log.high_watermark
    driver.flush(rnd)
    for _ in range(2):
        driver.now += 1001
        for work in driver.manager.tick(driver.now, driver.now):
            if not work.name.startswith("clean"):
                run_work(work)
            else:
                driver.manager.cleaner._stepping = False
    return driver, rnd


def roll(driver: Driver, rnd: random.Random) -> None:
    count = driver.log.storage.segments.count
    while driver.log.storage.segments.count == count:
        driver.append(rnd)


def truncate(driver: Driver, rnd: random.Random) -> None:
    driver.append(rnd)
    driver.log.update_high_watermark(driver.log.log_start_offset)
    driver.committed = 0
    driver.truncate(rnd)


def swap(driver: Driver, rnd: random.Random) -> None:
    # A first cleaning leaves small segments, so that the second one makes one of several.
    driver.clean(rnd)
    while driver.log.storage.segments.count < 7:
        driver.append(rnd)
    checkpoint(driver, rnd)
    driver.virtual_machine.arm(driver.writes)
    cleanings = driver.manager.cleaner.statistics().cleanings
    driver.clean(rnd)
    assert driver.manager.cleaner.statistics().cleanings > cleanings, "nothing was cleaned"


def checkpoint(driver: Driver, rnd: random.Random) -> None:
    driver.append(rnd)
    driver.log.update_high_watermark(driver.log.log_end_offset)
    driver.flush(rnd)
    driver.now += 1001
    for work in driver.manager.tick(driver.now, driver.now):
        run_work(work)


def retention(driver: Driver, rnd: random.Random) -> None:
    driver.now += 200_000
    for work in driver.manager.tick(driver.now, driver.now):
        run_work(work)
    driver.now += 2000
    for work in driver.manager.tick(driver.now, driver.now):
        run_work(work)


def restart_at(driver: Driver, rnd: random.Random) -> None:
    driver.restart_at(rnd)


def close(driver: Driver, rnd: random.Random) -> None:
    driver.manager.close(3)
    driver.machine.boot(power_lost=True)
    driver.start()


def crash_after_each_write(
    operation: Callable[[Driver, random.Random], None], *, compact: bool, power_lost: bool, step: int = 1
) -> int:
    """Lets the power fail after the first, second ... write of an operation; returns how many writes it has.

    A larger ``step`` leaves out writes between.
    """
    for writes in range(1, WRITES_MAX, step):
        driver, rnd = prepare(compact, seed=writes % 3)
        driver.writes = writes
        floor = driver.durable_end
        if operation is not swap:
            driver.virtual_machine.arm(writes)
        try:
            operation(driver, rnd)
        except PowerLoss:
            if operation in (truncate, restart_at):
                floor = min(floor, driver.cut_to)
            driver.machine.boot(power_lost=power_lost)
            driver.start()
            driver._reconcile(floor, restarted=operation is restart_at)
            # The log goes on from there.
            driver.append(rnd)
            driver.check(rnd)
        else:
            driver.check(rnd)
            return writes
    raise AssertionError(f"{operation.__name__} needed more than {WRITES_MAX} writes")
