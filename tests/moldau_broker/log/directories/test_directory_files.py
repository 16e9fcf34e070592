"""Goal: ``cleaner-offset-checkpoint`` and ``meta.properties`` have Kafka's format, and damage is detected.

Method: golden bytes of what a running manager leaves; every kind of damage (bits flipped, cut short, emptied, bytes
added, lost), after a clean stop, where checksums detect it, and after a crash, where none do.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.files.checkpoint import decode_meta_properties, read_file, uuid_to_text
from moldau_broker.log.values import run_work
from support.log.lab import A, create, new_manager, open_manager
from support.log.model import START_MS, VirtualMachine, all_rows, make_batch
from support.proof import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau_broker.log.directories.manager import LogManager

CLEANER = "/d1/cleaner-offset-checkpoint"
META = "/d1/meta.properties"
WRONG_CHECKPOINTS = (
    b"",
    b"0\n1\na 0 6",
    b"0\n1\na 0 \xb60\n",
    b"8\n1\na 0 60\n",
    b"p\n1\na 0 60\n",
    b"0\n1\na 0p60\n",
    b"0\n1\na 0 v0\n",
    b"0\n3\na 0 60\n",
    b"0\n1\nq 0 60\n",
    b"0\n1\na 0 75\n",
    b"0\n1\na 0 999999\n",
    b"0\n1\na 0 -60\n",
    b"0\n1\na 0 0\n",
)
"""One of each kind: cut, not text, another version, columns, count or topic, and offsets where no cleaning ended."""
COMPACT = {"compact": True, "delete": False, "min_cleanable_dirty_ratio": 0.0, "segment_bytes": 400}


def write(log, first: int, last: int) -> None:
    for number in range(first, last):
        data = make_batch([(START_MS, b"k%d" % (number % 7), b"v%d" % number)])
        log.append_as_leader(memoryview(data), leader_epoch=1, now_ms=START_MS)
    log.storage.roll(log.log_end_offset, START_MS)
    log.update_high_watermark(log.log_end_offset)


def look_after(manager: LogManager, now_ms: int) -> int:
    """Flushes, checkpoints and cleans until there is nothing left to clean; returns the time then."""
    for log in manager.logs.values():
        log.flush()
    idle = 0
    for _ in range(200):
        now_ms += 6000
        works = manager.tick(now_ms, now_ms)
        for work in works:
            run_work(work)
        idle = 0 if any(work.name.startswith("clean") for work in works) else idle + 1
        if idle == 6:  # the cleaner looks again after log.cleaner.backoff.ms, and what it did is noted by the next tick
            return now_ms
    raise AssertionError("the cleaner never ends")


def cleaned(*directories: str) -> VirtualMachine:
    """A machine with a log that was cleaned up to offset 60 and holds dirty records above it."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, directories or ("/d1",), **COMPACT)
    log = create(manager)
    write(log, 0, 60)
    look_after(manager, START_MS)
    write(log, 60, 90)
    log.flush()
    return stopped(machine, manager)


def stopped(machine: VirtualMachine, manager: LogManager) -> VirtualMachine:
    manager.close(7)
    machine.boot(power_lost=False)
    return machine


def overwrite(machine: VirtualMachine, path: str, content: bytes) -> None:
    machine.disk.remove(path)
    file = machine.disk.open(path, OpenMode.CREATE)
    file.append([content])
    file.sync()


def damaged(content: bytes) -> Iterator[bytes]:
    """Every single bit flipped, every length, nothing at all, bytes added."""
    for position in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[position] ^= 1 << bit
            yield bytes(changed)
    for size in range(len(content)):
        yield content[:size]
    yield content + b"\0"
    yield content + b"topic 1 5\n"
    yield content + content


def test_golden_bytes_of_a_running_manager() -> None:
    machine = cleaned()
    assert read_file(machine.disk, CLEANER) == b"0\n1\na 0 60\n"
    meta = read_file(machine.disk, META)
    directory_id = uuid_to_text(decode_meta_properties(META, meta).directory_id)
    assert meta == f"#\ncluster.id=c\ndirectory.id={directory_id}\nnode.id=1\nversion=1\n".encode()


@pytest.mark.drawn
@pytest.mark.parametrize("clean_stop", [True, False])
def test_a_damaged_cleaner_checkpoint_costs_work_and_no_records(clean_stop: bool) -> None:
    """Where cleaning begins is a hint: whatever it says, the last value of each key stays, and cleaning goes on."""
    rnd = random.Random(4)
    original = read_file(cleaned().disk, CLEANER)
    choices = list(damaged(original))
    for content in [*WRONG_CHECKPOINTS, *rnd.sample(choices, examples(24))]:
        machine = cleaned()
        overwrite(machine, CLEANER, content)
        if not clean_stop:
            machine.disk.remove("/d1/.kafka_cleanshutdown")
        manager = open_manager(machine, ["/d1"], **COMPACT)
        log = manager.logs[A]
        write(log, 90, 120)
        now_ms = look_after(manager, START_MS + 100_000)
        values = {row.key: row.value for row in all_rows(log)}
        assert values == {b"k%d" % (number % 7): b"v%d" % number for number in range(113, 120)}, content
        if clean_stop:
            assert manager.cleaner.clean_offsets == {A: 120}, content
            assert len(all_rows(log)) <= 10, content
        stopped(machine, manager)
        again = open_manager(machine, ["/d1"], **COMPACT).logs[A]
        again.update_high_watermark(again.log_end_offset)
        assert {row.key: row.value for row in all_rows(again)} == values
        assert now_ms > START_MS


def test_a_lost_cleaner_checkpoint_is_made_again() -> None:
    machine = cleaned()
    machine.disk.remove(CLEANER)
    manager = open_manager(machine, ["/d1"], **COMPACT)
    write(manager.logs[A], 90, 91)
    look_after(manager, START_MS + 100_000)
    assert read_file(machine.disk, CLEANER) == b"0\n1\na 0 91\n"


@pytest.mark.drawn
def test_damaged_meta_properties_are_refused_after_a_clean_stop() -> None:
    """The checksum detects it: no other identity may be accepted, and no new one written over the logs."""
    content = read_file(cleaned().disk, META)
    for changed in random.Random(5).sample(list(damaged(content)), examples(160)):
        machine = cleaned()
        overwrite(machine, META, changed)
        with pytest.raises(LogStorageError, match="no log directory works"):
            open_manager(machine, ["/d1"], **COMPACT)
        assert read_file(machine.disk, META) == changed, "an unreadable file is not overwritten"


def test_damaged_meta_properties_are_refused_or_harmless() -> None:
    """There are no checksums then, as in Kafka: only unreadable files and those of other nodes can be refused."""
    content = read_file(cleaned().disk, META)
    original = decode_meta_properties(META, content)
    machine = cleaned()
    machine.disk.remove("/d1/.kafka_cleanshutdown")
    refused = 0
    for changed in damaged(content):
        overwrite(machine, META, changed)
        try:
            manager = open_manager(machine, ["/d1"], **COMPACT)
        except (LogStorageError, ValueError):
            refused += 1
            machine.boot(power_lost=False)
            continue
        found = manager.directories[0].directory_id
        if b"directory.id=" + uuid_to_text(original.directory_id).encode() in changed:
            assert found == original.directory_id
        assert manager.logs[A].log_end_offset == 90
        machine.boot(power_lost=False)
    assert refused > len(content) * 3


@pytest.mark.parametrize("content", [b"", b"version=1\n", b"#\ncluster.id=c\n"])
@pytest.mark.parametrize("clean_stop", [True, False])
def test_a_directory_without_identity_is_offline_alone(content: bytes, clean_stop: bool) -> None:
    machine = cleaned("/d1", "/d2")
    where = "/d1" if machine.disk.exists("/d1/a-0") else "/d2"
    other = "/d2" if where == "/d1" else "/d1"
    overwrite(machine, f"{other}/meta.properties", content)
    if not clean_stop:
        for path in ("/d1", "/d2"):
            machine.disk.remove(f"{path}/.kafka_cleanshutdown")
    manager = open_manager(machine, ["/d1", "/d2"], **COMPACT)
    assert manager.offline_directories == [other]
    assert manager.logs[A].log_end_offset == 90


def test_a_copy_is_refused_before_its_logs_are_deleted() -> None:
    """Both had a log of each partition. One of them was deleted, and the controller refused the broker."""
    machine = cleaned("/d1", "/d2")
    overwrite(machine, "/d2/meta.properties", read_file(machine.disk, META))
    for path in ("/d1", "/d2"):
        machine.disk.remove(f"{path}/.kafka_cleanshutdown")
    with pytest.raises(ValueError, match=r"/d1 and /d2 have the same directory.id .* name only one of them"):
        open_manager(machine, ["/d1", "/d2"], **COMPACT)


def test_damage_is_found_again_after_a_start_that_ended() -> None:
    """A start that ends before it opened the logs gives the marker of the clean stop back, and no new checksums.

    They would take a damaged file for sound: here a wrong log start offset, which hides records.
    """
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    write(log, 0, 20)
    log.delete_records(1)
    manager.close(7)
    path = "/d1/log-start-offset-checkpoint"
    content = machine.virtual_disk.lookup(path).content
    content[content.index(b"a 0 1") + 4] = ord("9")
    for _ in range(3):
        machine.boot(power_lost=False)
        manager = new_manager(machine, ["/d1"])
        manager.start(START_MS)
        assert manager.directories[0].damaged == (path,)
        manager.give_back()
        manager.directories[0].release()
    machine.boot(power_lost=False)
    manager = open_manager(machine, ["/d1"])
    assert (manager.directories[0].broker_epoch, manager.logs[A].log_start_offset) == (7, 0)
