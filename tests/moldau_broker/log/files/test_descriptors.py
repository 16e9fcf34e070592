"""Goal: a broker short of file descriptors refuses requests that need more of them, and fails no directory.

Method: logs over a virtual disk that opens a bounded number of files. Segments are closed one after the other; then the
bound is lowered to the open files, so that the next open of any kind fails with EMFILE. ``support.log.model`` does the
same at random (``make campaign-log``).
"""

from __future__ import annotations

import errno
import random
import uuid
from functools import partial

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.runtime.ports.descriptors import DescriptorBudget, is_shortage
from moldau_broker.log.config import LogConfig
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.log.errors import DescriptorsShortError, LogStorageError
from moldau_broker.log.files.open_files import OpenFiles
from moldau_broker.log.files.transaction_index import AbortedEntry, TransactionIndex
from moldau_broker.log.values import TopicPartition, run_work
from moldau_jepsen.world.disk.disk import NodeDisk
from moldau_jepsen.world.disk.disk_profile import OPEN_FILES_MAX
from support.log.cleaner_lab import DAY, NOW, Lab
from support.log.model import PARTITION, VirtualMachine, all_rows, make_batch
from support.proof import all_examples

LIMIT = 256


class Machine:
    """A log manager whose process may have ``LIMIT`` files and connections open."""

    def __init__(self, limit: int = LIMIT, **config: object) -> None:
        self.machine = VirtualMachine(1)
        self.machine.virtual_disk.profile.open_files_max = limit
        self.now = NOW
        self.budget = DescriptorBudget(limit)
        self.config = LogConfig(**{"segment_bytes": 1000, **config})
        self.open()

    def open(self) -> None:
        self.manager = LogManager(
            self.machine.disk,
            ["/data"],
            node_id=1,
            cluster_id="c",
            random=random.Random(1),
            default_config=self.config,
            descriptors=self.budget,
        )
        self.manager.start(self.now)
        self.manager.recover_all()
        self.manager.begin_discarding(self.now)

    def log(self, number: int = 0):
        key = TopicPartition("topic", number)
        return self.manager.get_or_create(key, topic_id=uuid.UUID(int=1), now_ms=self.now)

    def append(self, log) -> int:
        batch = make_batch([(self.now, b"key", b"x" * 600)])
        return log.append_as_leader(memoryview(batch), leader_epoch=1, now_ms=self.now).first_offset

    def append_until_refused(self, log) -> None:
        while True:
            self.append(log)

    def create_until_refused(self, first: int = 0, batches: int = 0) -> None:
        for number in range(first, LIMIT):
            log = self.log(number)
            for _ in range(batches):
                self.append(log)

    def tick(self) -> None:
        self.now += 1000
        for work in self.manager.tick(self.now, self.now):
            run_work(work)

    def take_all_but(self, count: int) -> None:
        self.machine.virtual_disk.profile.open_files_max = self.machine.disk.open_files + count

    def give_back(self) -> None:
        self.machine.virtual_disk.profile.open_files_max = OPEN_FILES_MAX


def test_many_segments_need_few_descriptors() -> None:
    """As many segments as 336 batches that claim giant offset spans roll, and more, with a limit of 256."""
    machine = Machine()
    log = machine.log()
    for number in range(1000):
        assert machine.append(log) == number
        if number % 10 == 9:
            machine.tick()
    assert log.storage.segments.count == 1000
    assert machine.machine.disk.open_files < LIMIT // 2
    log.update_high_watermark(1000)
    assert [row.offset for row in all_rows(log)] == list(range(1000))
    assert all(log.offset_for_timestamp(segment.first_timestamp()) is not None for segment in log.segments[::50])
    assert machine.machine.disk.open_files < LIMIT // 2
    machine.manager.close()
    machine.budget = DescriptorBudget(LIMIT)
    machine.machine.boot(power_lost=True)
    machine.open()
    assert machine.log().log_end_offset == 1000
    assert machine.machine.disk.open_files < LIMIT // 2


def test_a_start_after_a_crash_needs_few_descriptors() -> None:
    """All segments are suspect, because the recovery point was never checkpointed; they are read, and synced."""
    machine = Machine()
    log = machine.log()
    for number in range(300):
        machine.append(log)
        if number % 10 == 9:
            log.flush()
    machine.machine.boot(power_lost=False)
    machine.budget = DescriptorBudget(LIMIT)
    machine.open()
    assert machine.manager.start_shortage is None
    log = machine.log()
    assert (log.log_end_offset, log.storage.segments.count) == (300, 300)
    assert machine.machine.disk.open_files < LIMIT
    machine.tick()
    machine.append(log)


def test_rolls_wait_until_closed_segments_are_synced() -> None:
    """Unsynced segments keep their files; a leader that rolls faster than its disk syncs is refused, and goes on."""
    machine = Machine()
    log = machine.log()
    for _ in range(20):
        with pytest.raises(DescriptorsShortError) as caught:
            machine.append_until_refused(log)
        appended = log.log_end_offset
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not log.failed
        machine.tick()
    assert appended > LIMIT
    assert machine.manager.online_directories == ["/data"]


def test_the_bound_on_open_files_holds_partitions_back() -> None:
    """New partitions are refused while there are descriptors left for connections, and created when others go."""
    machine = Machine()
    with pytest.raises(DescriptorsShortError) as caught:
        machine.create_until_refused()
    created = len(machine.manager.logs)
    assert LIMIT // 4 < created < LIMIT
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert machine.budget.connections_max(machine.manager.files.kept) >= LIMIT // 4 - 4
    for number in range(10):
        machine.manager.delete(TopicPartition("topic", number))
    assert machine.log(LIMIT).log_end_offset == 0


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "crashed"])
@pytest.mark.parametrize("batches", [0, 3])
def test_all_logs_that_were_created_can_be_opened_again(batches: int, clean: bool) -> None:
    """A loaded log needs no more descriptors than a new one; refused logs can be created as before the restart."""
    machine = Machine(segment_bytes=100_000, index_interval_bytes=1)
    with pytest.raises(DescriptorsShortError) as caught:
        machine.create_until_refused(batches=batches)
    created = len(machine.manager.logs)
    assert LIMIT // 4 < created < LIMIT
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    kept = machine.manager.files.kept
    if clean:
        machine.manager.close()
    machine.machine.boot(power_lost=False)
    machine.budget = DescriptorBudget(LIMIT)
    machine.open()
    assert machine.manager.directories[0].clean == clean
    assert machine.manager.start_shortage is None
    assert len(machine.manager.logs) == created
    assert {log.log_end_offset for log in machine.manager.logs.values()} == {batches}
    assert machine.manager.files.kept <= kept
    assert machine.machine.disk.open_files < LIMIT * 3 // 4, "a quarter is left for connections"
    with pytest.raises(DescriptorsShortError):
        machine.create_until_refused(created)
    assert len(machine.manager.logs) <= created + 1
    for number in range(10):
        machine.manager.delete(TopicPartition("topic", number))
    assert machine.log(LIMIT).log_end_offset == 0


def test_indexes_of_active_segments_are_closed_for_others() -> None:
    """Busy logs write their indexes; a roll syncs what was written into an index that is closed meanwhile."""
    machine = Machine(segment_bytes=1 << 30, index_interval_bytes=1)
    logs = [machine.log(number) for number in range(LIMIT // 4)]
    for log in logs:
        for _ in range(3):
            machine.append(log)
        log.segments[-1].spill_indexes()
    assert machine.manager.files.kept == len(logs)
    assert machine.machine.disk.open_files <= len(logs) + LIMIT // 8
    for log in logs:
        log.storage.roll(3, machine.now)
        log.flush()
    machine.machine.boot(power_lost=True)
    machine.budget = DescriptorBudget(LIMIT)
    machine.open()
    for log in machine.manager.logs.values():
        assert [segment.offset_index.count for segment in log.segments] == [2, 0]
        log.update_high_watermark(3)
        assert [row.offset for row in all_rows(log)] == [0, 1, 2]


def test_connections_and_files_leave_each_other_room() -> None:
    budget = DescriptorBudget(1024)
    assert budget.files_max == 1024 - 64 - 128 - 256
    assert budget.connections_max(0) == 1024 - 64 - 128 - 256
    budget.connections = lambda: 500
    assert budget.files_max == 1024 - 64 - 128 - 500
    assert budget.connections_max(500) == 1024 - 64 - 128 - 500
    assert budget.connections_max(budget.files_max) == 500, "together they do not take more than there is"
    for limit in (64, 256, 1024, 4096, 1 << 20):
        small = DescriptorBudget(limit)
        assert small.files_max + limit // 4 + small.cached_max < limit


def refusals(machine: Machine, operation) -> int:
    """How much of an operation and of the housekeeping after it is refused for a shortage; nothing else may fail."""
    refused = 0
    try:
        operation()
    except (DescriptorsShortError, OSError) as error:
        if not is_shortage(error) and not isinstance(error, DescriptorsShortError):
            raise
        refused += 1
    machine.now += 70_000
    for work in machine.manager.tick(machine.now, machine.now):
        try:
            run_work(work)
        except OSError as error:
            if not is_shortage(error):
                raise
            refused += 1
    return refused


@pytest.mark.drawn
def test_no_operation_takes_a_shortage_for_a_failed_disk() -> None:
    """Append, roll, look-up, flush, retention, checkpoints, cleaning, truncation, creation: with nothing left."""
    machine = Machine(OPEN_FILES_MAX, compact=True, min_cleanable_dirty_ratio=0.0)
    log = machine.log()
    for _ in range(6):
        machine.append(log)
    log.update_high_watermark(6)
    machine.tick()
    refused = 0
    for spare in range(0, 6, 1 if all_examples() else 2):
        for operation in (
            lambda: [machine.append(log) for _ in range(3)],
            lambda: log.storage.roll(log.log_end_offset, machine.now),
            lambda: all_rows(log),
            lambda: log.flush(),
            lambda: log.truncate_to(log.log_end_offset - 1),
            partial(machine.log, 100 + spare),
            machine.manager.cleaner.look_again,
        ):
            machine.take_all_but(spare)
            refused += refusals(machine, operation)
            assert machine.manager.online_directories == ["/data"]
            assert not log.failed
            machine.give_back()
            end = log.log_end_offset
            assert machine.append(log) == end
            machine.tick()
            log.update_high_watermark(log.log_end_offset)
    assert refused > 20
    rows = all_rows(log)
    log.flush()
    machine.machine.boot(power_lost=True)
    machine.budget = DescriptorBudget(OPEN_FILES_MAX)
    machine.open()
    assert all_rows(machine.log()) == rows


def test_a_start_without_descriptors_is_no_empty_broker() -> None:
    """Logs that could not be opened are not missing: the broker must not begin them again (it does not start)."""
    machine = Machine()
    for number in range(20):
        machine.append(machine.log(number))
    machine.manager.close()
    machine.machine.boot(power_lost=False)
    machine.machine.virtual_disk.profile.open_files_max = 12
    machine.budget = DescriptorBudget(12)
    machine.open()
    assert isinstance(machine.manager.start_shortage, OSError)
    assert machine.manager.start_shortage.errno == errno.EMFILE
    assert machine.manager.online_directories == ["/data"]


def test_a_stop_without_descriptors_is_not_clean() -> None:
    """The next start reads a segment again that could not be sealed."""
    machine = Machine(OPEN_FILES_MAX)
    log = machine.log()
    machine.append(log)
    machine.take_all_but(0)
    machine.manager.close()
    machine.give_back()
    machine.machine.boot(power_lost=False)
    machine.open()
    assert not machine.manager.directories[0].clean
    assert machine.log().log_end_offset == 1


def test_another_error_of_the_disk_is_still_one() -> None:
    machine = Machine(segment_bytes=500_000)
    log = machine.log()
    machine.append(log)
    machine.machine.virtual_disk.profile.write_error_probability = 1.0
    with pytest.raises(LogStorageError) as caught:
        machine.append(log)
    assert not isinstance(caught.value, DescriptorsShortError)
    machine.manager.fail_directory("/data", caught.value)
    assert machine.manager.offline_directories == ["/data"]


@pytest.mark.parametrize("power_lost", [True, False])
def test_aborted_transactions_are_not_forgotten_in_a_shortage(power_lost: bool) -> None:
    """The index of aborted transactions is written later; a reader of committed data knows of them at once.

    A start after a loss of power reads them from the batches again. After a clean stop only the index has them.
    """
    lab = Lab(delete_retention_ms=DAY, segment_bytes=100_000)
    kept = lab.put(b"key", b"kept")
    lab.begin(7, {b"key": b"aborted"})
    lab.machine.virtual_disk.profile.open_files_max = lab.machine.disk.open_files
    lab.end(7, commit=False)
    assert lab.committed() == {b"key": b"kept"}
    lab.machine.virtual_disk.profile.open_files_max = OPEN_FILES_MAX
    lab.fill()
    lab.restart(power_lost=power_lost)
    assert lab.log is lab.manager.logs[PARTITION]
    lab.log.update_high_watermark(lab.log.log_end_offset)
    assert all_rows(lab.log)[0].offset == kept
    assert lab.committed() == {b"key": b"kept"}


def test_an_abort_that_a_shortage_kept_goes_with_its_marker() -> None:
    """It was not written when the log was cut before its marker; else the next sync would write it after all."""
    machine = VirtualMachine(1)
    machine.disk.make_directories("/d")
    index = TransactionIndex(machine.disk, "/d/0.txnindex", 0, OpenFiles(machine.disk))
    machine.virtual_disk.profile.open_files_max = machine.disk.open_files
    index.append(AbortedEntry(7, 0, 1, 2))
    machine.virtual_disk.profile.open_files_max = OPEN_FILES_MAX
    index.truncate_to_offset(1)
    index.append(AbortedEntry(8, 1, 2, 3))
    index.sync()
    again = TransactionIndex(machine.disk, "/d/0.txnindex", 0, OpenFiles(machine.disk))
    assert [entry.producer_id for entry in again.entries()] == [8]


@pytest.mark.parametrize("free", range(6))
def test_a_restart_of_a_log_does_all_or_nothing(free: int) -> None:
    """A follower starts over at its leader's log start while few descriptors are free, and the process dies later.

    The removed segment frees no descriptor, because its indexes are closed and a reader still sends its bytes.
    """
    machine = Machine()
    log = machine.log()
    machine.append(log)
    log.flush()
    before = all_rows(log)
    reader = log.segments[-1].file
    log.segments[-1].files.close_indexes()
    machine.take_all_but(free)
    try:
        log.truncate_fully_and_start_at(40, machine.now)
    except DescriptorsShortError:
        assert free < 3, "three descriptors are enough"
        assert (log.log_start_offset, log.log_end_offset) == (0, 1)
    machine.give_back()
    assert not log.failed
    assert reader.size > 0
    del reader
    if log.log_end_offset == 1:
        assert all_rows(log) == before
        assert machine.append(log) == 1
        log.truncate_fully_and_start_at(40, machine.now)
    assert machine.append(log) == 40
    log.flush()
    machine.machine.boot(power_lost=True)
    machine.budget = DescriptorBudget(LIMIT)
    machine.open()
    log = machine.log()
    assert (log.log_start_offset, log.log_end_offset) == (40, 41)
    assert not [name for name in machine.machine.disk.list_directory(log.directory) if name.endswith(".tmp")]


@pytest.mark.parametrize("free", range(9))
def test_a_cut_of_a_log_does_all_or_nothing(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """A follower cuts its log while few descriptors are free; to sync or list a directory takes one, too.

    Half cut, a log that led next gave the next record the offset of its former end, and did not know its producers.
    """
    machine = Machine()
    log = machine.log()
    for sequence in range(8):
        batch = make_batch([(machine.now, b"key", b"x" * 300)], producer=(7, 0, sequence))
        log.append_as_leader(memoryview(batch), leader_epoch=1, now_ms=machine.now)
    log.flush()
    for segment in log.segments:
        segment.files.close_indexes()
    before = all_rows(log)
    machine.take_all_but(free)
    disk, profile = machine.machine.disk, machine.machine.virtual_disk.profile

    def needing_one(name: str) -> None:
        inherited = getattr(NodeDisk, name)

        def method(self: NodeDisk, path: str) -> object:
            if disk.open_files >= profile.open_files_max:
                raise OSError(errno.EMFILE, "Too many open files", path)
            return inherited(self, path)

        monkeypatch.setattr(NodeDisk, name, method)

    for name in ("sync_directory", "list_directory"):
        needing_one(name)
    try:
        log.truncate_to(3)
    except DescriptorsShortError:
        assert free < 8
        assert (log.log_end_offset, log.failed) == (8, False)
        machine.give_back()
        assert all_rows(log) == before
        log.truncate_to(3)
    machine.give_back()
    entry = log.producer_state.get(7)
    assert entry is not None
    assert (log.log_end_offset, entry.last_sequence) == (3, 2)
    assert all_rows(log) == before[:3]
    assert machine.append(log) == 3
    assert [row.offset for row in all_rows(log)] == [0, 1, 2, 3]
