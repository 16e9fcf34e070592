"""Goal: deleting, moving or setting aside a log while it is cleaned only ends its cleaning.

Method: cleanings over a virtual disk with two logs; at each step, and at each opening of a file within one, the log
goes away.
"""

from __future__ import annotations

import errno
import itertools
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from moldau_broker.log.cleaner import cleaner
from moldau_broker.log.cleaner import manager as cleaner_manager
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.batches import BatchReader
from moldau_broker.log.values import TopicPartition, run_work
from moldau_jepsen.world.disk.disk import NodeDisk
from support.log.cleaner_lab import Lab
from support.log.lab import A, create, new_manager, open_manager, put
from support.log.model import START_MS, VirtualMachine, all_rows

if TYPE_CHECKING:
    from collections.abc import Callable

B = TopicPartition("b", 0)
SEGMENTS = {"compact": True, "delete": False, "min_cleanable_dirty_ratio": 0.0, "segment_bytes": 1000}


def filled(manager, partition: TopicPartition, directory: str):
    """A log of many small closed segments, all of which can be cleaned."""
    log = create(manager, partition, directory=directory)
    for number in range(60):
        put(log, b"%d" % number + bytes(50), count=1)
    log.storage.roll(log.log_end_offset, START_MS)
    log.flush()
    manager._store.directories[directory].recovery_points.write_now(
        {key: each.log_end_offset for key, each in manager.logs.items() if each.parent_directory == directory}
    )
    return log


def opened():
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1", "/d2"], **SEGMENTS)
    return machine, manager, filled(manager, A, "/d1")


def delete(manager) -> None:
    assert manager.delete(A)


def make_again(manager) -> None:
    """The new log has the path of the old one."""
    delete(manager)
    put(manager.get_or_create(A, topic_id=uuid.UUID(int=10), now_ms=START_MS, directory="/d1"), b"new")


def take_over(manager) -> None:
    """A topic of the same name claims the name."""
    assert manager.claim(A, uuid.UUID(int=10)) is None


def set_aside(manager) -> None:
    assert len(list(manager.set_aside_unclaimed(lambda key: key == B))) == 1


def move(manager) -> None:
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    while not manager.copy_to_future(A, START_MS):
        pass
    manager.replace_current_with_future(A)


WAYS = [delete, make_again, take_over, set_aside, move]


def clean(manager, now_ms: int = START_MS + 100_000) -> int:
    """Lets the cleaner work until it is idle; returns the number of steps."""
    for steps in range(1000):
        now_ms += 20_000
        works = manager.cleaner_works(now_ms)
        if not works:
            return steps
        for work in works:
            run_work(work)
    raise AssertionError("the cleaner never ends")


def check_after(machine: VirtualMachine, manager, go_away) -> None:
    """All directories work, others are cleaned, and a start finds nothing damaged."""
    assert manager.online_directories == ["/d1", "/d2"]
    assert not manager.cleaner.uncleanable
    other = filled(manager, B, "/d1")
    clean(manager)
    assert len(all_rows(other)) < 60
    manager.close()
    machine.boot(power_lost=False)
    again = new_manager(machine, ["/d1", "/d2"], **SEGMENTS)
    again.start(START_MS)
    again.recover_all()
    assert again.online_directories == ["/d1", "/d2"]
    kept = {make_again: [b"new"], move: [b"59" + bytes(50)]}.get(go_away)
    log = again.get(A)
    assert (log is None) == (kept is None)
    if log is not None and kept is not None:
        assert [row.value for row in all_rows(log)][-1:] == kept
        assert not [name for name in machine.disk.list_directory(log.directory) if name.endswith(".cleaned")]


@pytest.mark.parametrize("go_away", WAYS)
@pytest.mark.parametrize("when", ["before the step", "after the step"])
def test_a_log_that_goes_away_between_steps(go_away, when: str) -> None:
    steps = 0
    while True:
        machine, manager, _ = opened()
        for _ in range(steps):
            for work in manager.cleaner_works(START_MS + 20_000):
                run_work(work)
        works = manager.cleaner_works(START_MS + 20_000)
        if not works:
            break
        (work,) = works
        if when == "after the step":
            work.run()
            go_away(manager)
            work.complete()
        else:
            go_away(manager)
            run_work(work)
        check_after(machine, manager, go_away)
        steps += 1
    assert steps > 3, "some groups were swapped, others not"


class Trap:
    """Lets something happen when a step uses the disk for the n-th time."""

    def __init__(self, number: int, happens: Callable[[], None]) -> None:
        self.number = number
        self.happens = happens
        self.stepping = False

    @property
    def is_sprung(self) -> bool:
        return self.number < 0

    def spring(self, path: str) -> None:
        if self.stepping and path.startswith("/d1/a-0/") and self.number >= 0:
            self.number -= 1
            if self.number < 0:
                self.happens()


def trapped(trap: Trap, name: str):
    method = getattr(NodeDisk, name)

    def called(disk: NodeDisk, path: str, *arguments):
        trap.spring(path)
        return method(disk, path, *arguments)

    return called


@pytest.mark.parametrize("go_away", WAYS)
def test_a_log_that_goes_away_within_a_step(go_away) -> None:
    """The step found its directory renamed; the directory of all logs, often the only one, was taken offline."""
    for number in itertools.count(0, 7):
        machine, manager, _ = opened()
        trap = Trap(number, partial(go_away, manager))
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "exists"):
                patch.setattr(NodeDisk, name, trapped(trap, name))
            while not trap.is_sprung and (works := manager.cleaner_works(START_MS + 20_000)):
                (work,) = works
                trap.stepping = True
                try:
                    work.run()
                except OSError as error:
                    work.failed(error)
                else:
                    trap.stepping = False
                    work.complete()
        if not trap.is_sprung:
            break
        check_after(machine, manager, go_away)
    assert number > 30


def test_truncating_a_segment_being_cleaned_is_not_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader of the segment met its new end in the middle of a batch; the log was never cleaned again."""
    monkeypatch.setattr(cleaner_manager, "STEP_BYTES", 100)
    monkeypatch.setattr(cleaner, "BatchReader", partial(BatchReader, chunk_bytes=200))
    for steps in itertools.count():
        _, manager, log = opened()
        for _ in range(steps):
            works = manager.cleaner_works(START_MS + 20_000)
            for work in works:
                run_work(work)
        if not works_left(manager):
            break
        for end in (40, 21, 3):
            log.truncate_to(end)
            log.update_high_watermark(log.log_end_offset)
            for work in manager.cleaner_works(START_MS + 20_000):
                with suppress(CorruptLogFileError):  # the reader's opinion
                    run_work(work)
        assert not manager.cleaner.uncleanable
        assert manager.online_directories == ["/d1", "/d2"]
        assert [row.value[:1] for row in all_rows(log)][-1:] in ([b"2"], [b"1"], [b"0"], [])
    assert steps > 50


def failing(disk: NodeDisk, path: str) -> None:
    raise OSError(errno.EIO, "Input/output error", path)


def works_left(manager) -> bool:
    return manager.cleaner.statistics().current is not None or manager.cleaner.statistics().cleanings == 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_cleaned_group_that_cannot_be_removed_is_survived(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """A log that failed while its group was made ready: removing the group raised in the event loop."""
    _, manager, log = opened()
    cleaning = None
    while cleaning is None or cleaning.ready is None:
        (work,) = manager.cleaner_works(START_MS + 20_000)
        cleaning = manager.cleaner._current
        work.run()
        if cleaning.ready is None:
            work.complete()
    log.storage.failed = True
    if fails:
        monkeypatch.setattr(NodeDisk, "remove", failing)
    work.complete()
    assert manager.offline_directories == (["/d1"] if fails else [])
    assert cleaning.done
    assert manager.cleaner.statistics().current is None


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("short_at", range(1, 5))
def test_a_swap_without_a_descriptor_loses_no_record(
    monkeypatch: pytest.MonkeyPatch, short_at: int, power_lost: bool
) -> None:
    """Each sync of the directory may lack one. The next cleaning renamed its own segment away with the former one."""
    lab = Lab()
    for number in range(60):
        lab.put(b"%d" % (number % 5), b"%d" % number)
    lab.put(b"once", b"kept")
    lab.fill()
    sync, count = NodeDisk.sync_directory, itertools.count(1)

    def short(disk: NodeDisk, path: str) -> None:
        if next(count) == short_at:
            raise OSError(errno.EMFILE, "Too many open files")
        sync(disk, path)

    with monkeypatch.context() as patch:
        patch.setattr(NodeDisk, "sync_directory", short)
        lab.clean()
    for number in range(20):
        lab.put(b"%d" % (number % 5), b"new %d" % number)
    lab.fill()
    values = lab.values()
    lab.clean()
    for seconds in (0, 100):
        for work in lab.manager.tick(lab.now, lab.now + seconds * 1_000):
            run_work(work)
    assert (lab.values(), lab.manager.directories[0].online) == (values, True)
    lab.restart(power_lost=power_lost)
    assert lab.values() == values
