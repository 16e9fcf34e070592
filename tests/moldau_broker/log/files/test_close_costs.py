"""Goal: closing a log syncs only files with new writes: a stop closes thousands of logs, most of them idle.

Method: a log manager on a virtual disk whose syncs are counted, and a loss of power after the stop.
"""

from __future__ import annotations

import pytest

from moldau.runtime.ports.descriptors import DescriptorBudget
from moldau_broker.log.files.handle import SharedFile
from moldau_broker.log.files.open_files import OpenFiles
from moldau_broker.log.files.transaction_index import AbortedEntry, TransactionIndex
from moldau_broker.log.values import TopicPartition
from moldau_jepsen.world.disk.disk import VirtualFile
from support.log.lab import create, open_manager, put
from support.log.model import VirtualMachine

LOGS = 20


class Syncs:
    """Counts the syncs of files by the end of their names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        sync = VirtualFile.sync

        def counted(file: VirtualFile) -> None:
            self.paths.append(file.path)
            sync(file)

        monkeypatch.setattr(VirtualFile, "sync", counted)

    def of_logs(self) -> list[str]:
        return [path for path in self.paths if "/t-" in path]


def test_logs_without_records_are_closed_without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine, ("/d1",))
    for number in range(LOGS):
        create(manager, TopicPartition("t", number))
    syncs = Syncs(monkeypatch)
    manager.close()
    assert syncs.of_logs() == []
    machine.boot(power_lost=True)
    opened = open_manager(machine, ("/d1",))
    assert len(opened.logs) == LOGS
    assert all(report.clean and not report.problems for report in opened.reports.values())


def test_a_log_that_was_written_is_durable_after_its_close(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine, ("/d1",))
    idle, busy = TopicPartition("t", 0), TopicPartition("t", 1)
    create(manager, idle)
    put(create(manager, busy), count=3)
    syncs = Syncs(monkeypatch)
    manager.close()
    assert any(path.endswith("t-1/00000000000000000000.log") for path in syncs.paths)
    assert not any("t-0/" in path for path in syncs.paths)
    machine.boot(power_lost=True)
    opened = open_manager(machine, ("/d1",))
    assert opened.get(busy).log_end_offset == 3
    assert opened.reports[busy].clean
    assert not opened.reports[busy].problems


class FailingOnce:
    """A file whose next sync fails."""

    def __init__(self) -> None:
        self.syncs = self.size = 0
        self.fails = True

    def append(self, buffers) -> int:
        return 1

    def truncate(self, size: int) -> None:
        self.size = size

    def sync(self) -> None:
        self.syncs += 1
        if self.fails:
            self.fails = False
            raise OSError("no")

    def close(self) -> None:
        pass


def test_a_sync_that_failed_does_not_count() -> None:
    inner = FailingOnce()
    file = SharedFile(inner, DescriptorBudget(), is_new=True)
    file.sync()
    assert inner.syncs == 0, "a file that was just created holds nothing"
    file.append([b"x"])
    with pytest.raises(OSError, match="no"):
        file.sync()
    file.sync()
    file.sync()
    assert inner.syncs == 2, "one sync failed, one succeeded, and the last one had nothing to sync"


def test_a_write_during_a_sync_needs_the_next_sync() -> None:
    """A flush syncs in a thread, and the leader appends meanwhile: that sync may not cover the new bytes."""
    inner = FailingOnce()
    inner.fails = False
    file = SharedFile(inner, DescriptorBudget(), is_new=True)
    file.append([b"x"])
    sync = inner.sync
    inner.sync = lambda: (sync(), file.append([b"y"]))
    file.sync()
    inner.sync = sync
    file.sync()
    file.sync()
    assert inner.syncs == 2


def test_a_cut_needs_a_sync() -> None:
    """A truncation is durable when it returns: else a loss of power brings the removed batches back."""
    inner = FailingOnce()
    inner.fails = False
    file = SharedFile(inner, DescriptorBudget(), is_new=True)
    file.append([b"xy"])
    file.sync()
    file.truncate(1)
    file.sync()
    file.sync()
    assert inner.syncs == 2


def test_a_file_found_on_disk_counts_as_unsynced() -> None:
    inner = FailingOnce()
    inner.fails = False
    SharedFile(inner, DescriptorBudget()).sync()
    assert inner.syncs == 1


def test_an_abort_noted_during_a_sync_needs_the_next_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is closed in between: whether it must be synced is not known from an open descriptor alone."""
    machine = VirtualMachine(1)
    machine.disk.make_directories("/d1")
    index = TransactionIndex(machine.disk, "/d1/0.txnindex", 0, OpenFiles(machine.disk))
    entries = [AbortedEntry(7, 0, 1, 2), AbortedEntry(7, 2, 3, 4)]
    index.append(entries[0])
    sync, syncs = VirtualFile.sync, 0

    def late(file: VirtualFile) -> None:
        nonlocal syncs
        sync(file)
        syncs += 1
        if syncs == 1:
            index.append(entries[1])

    monkeypatch.setattr(VirtualFile, "sync", late)
    for expected in (1, 2, 2):
        index.sync()
        index.close()
        assert syncs == expected
    assert list(index.entries()) == entries
