"""Goal: a machine that loses power keeps all that was synced, forgets some of the rest, and invents nothing.

Method: random writes, truncations, renames, removals and syncs go through the node's disk in a directory of the test;
beside it stands what is certain of each file (its content at the last sync) and what was written since. The loss is
then held against both. Names are held against the states that the directory has gone through since its last sync.
"""

import errno
import os
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.ports.real import RealDisk
from moldau_jepsen.launcher import hostile
from moldau_jepsen.launcher.control import CONTROL, HEALTHY, Control, ControlReader, ControlWriter
from moldau_jepsen.launcher.hostile import HostileDisk, SkewedClock, hostile_environment
from moldau_jepsen.launcher.undo import JOURNAL, PAGE_BYTES, TRASH, UndoJournal, compact, lose_power

SEEDS = 25


class Machine:
    """A disk of a node in ``data``, the harness's files in ``hostile``."""

    def __init__(self, home: Path) -> None:
        self.data, self.hostile = home / "data", home / "hostile"
        for directory in (self.data, self.hostile):
            directory.mkdir(parents=True)
        self.writer = ControlWriter(self.hostile / CONTROL)
        self.start()

    def start(self) -> None:
        reader = ControlReader(self.hostile / CONTROL)
        compact(self.hostile)
        journal = UndoJournal(self.hostile)
        weakref.finalize(journal, os.close, journal._descriptor)  # a node keeps it open until its process ends
        self.disk = HostileDisk(RealDisk(), journal, reader, random.Random(1))

    def path(self, name: str) -> str:
        return str(self.data / name)

    def put(self, name: str, content: bytes, *, sync: bool = True, names: bool = True) -> None:
        file = self.disk.open(self.path(name), OpenMode.WRITE)
        file.append([content])
        if sync:
            file.sync()
        file.close()
        if names:
            self.disk.sync_directory(str(self.data))

    def lose_power(self, seed: int) -> None:
        lose_power([self.data], self.hostile, seed)
        self.start()

    def tree(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.data)): path.read_bytes() for path in self.data.rglob("*") if path.is_file()}


def explained(found: bytes, durable: bytes, written: bytes, size_min: int | None = None) -> bool:
    """Every byte is the synced one, the written one, or, behind the synced ones, a zero that was never written.

    ``size_min`` is the smallest size since the sync, where the file was ever smaller than then and at last.
    """
    smallest = min(len(durable), len(written)) if size_min is None else size_min
    if not smallest <= len(found) <= max(len(durable), len(written)):
        return False
    return all(
        byte in durable[index : index + 1] + written[index : index + 1] or (byte == 0 and index >= len(durable))
        for index, byte in enumerate(found)
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_synced_data_stays_and_the_rest_follows_from_the_writes(tmp_path: Path, seed: int) -> None:
    """Synced data stays; the other content follows from the writes."""
    draw = random.Random(seed)
    machine = Machine(tmp_path)
    durable: dict[str, bytes] = {}
    written: dict[str, bytearray] = {}
    smallest = {f"f{number}": 0 for number in range(3)}
    for number in range(3):
        machine.put(f"f{number}", b"")
        durable[f"f{number}"], written[f"f{number}"] = b"", bytearray()
    for _ in range(draw.randint(1, 40)):
        name = draw.choice(sorted(written))
        file = machine.disk.open(machine.path(name), OpenMode.WRITE)
        content = written[name]
        match draw.randrange(5):
            case 0 | 1:
                data = draw.randbytes(draw.choice((10, 700, 9000)))
                assert file.append([data[:3], memoryview(data)[3:]]) == len(content) + len(data)
                content += data
            case 2:
                data, at = draw.randbytes(draw.randint(1, 5000)), draw.randint(0, len(content))
                file.write_at(at, data)
                content[at : at + len(data)] = data
            case 3:
                size = draw.randint(0, len(content))
                file.truncate(size)
                del content[size:]
                smallest[name] = min(size, smallest[name])
            case _:
                file.sync()
                durable[name], smallest[name] = bytes(content), len(content)
        assert file.read(0, len(content) + 1) == content
        file.close()
        if draw.random() < 0.1:
            machine.start()  # another process of the node: what the last one has not synced is still not synced
    machine.lose_power(seed)
    calm = machine.tree()
    assert sorted(calm) == sorted(durable)
    for name, found in calm.items():
        assert explained(found, durable[name], bytes(written[name]), smallest[name]), name
    machine.lose_power(seed + 1)
    assert machine.tree() == calm, "a loss of power makes durable what it leaves"


class Platters:
    """The certain state of one file: its durable content, and the pages that the next sync writes."""

    def __init__(self) -> None:
        self.durable, self.written = bytearray(), bytearray()
        self.dirty: set[int] = set()

    def change(self, start: int, end: int) -> None:
        self.dirty.update(range(start // PAGE_BYTES, (end + PAGE_BYTES - 1) // PAGE_BYTES))

    def sync(self, *, fails: bool) -> None:
        if not fails:
            size = len(self.written)
            self.durable = (self.durable + bytes(size))[:size]
            for page in self.dirty:
                at = slice(page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, size))
                self.durable[at] = self.written[at]
        self.dirty.clear()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_pages_of_a_failed_sync_are_durable_once_rewritten(tmp_path: Path, seed: int) -> None:
    """Pages of a failed sync are durable only after they were written again and synced."""
    draw = random.Random(seed)
    machine, model = Machine(tmp_path), Platters()
    machine.put("log", b"")
    for _ in range(draw.randint(1, 30)):
        file = machine.disk.open(machine.path("log"), OpenMode.WRITE)
        size = len(model.written)
        match draw.randrange(6):
            case 0 | 1:
                data = draw.randbytes(draw.choice((10, 700, 9000)))
                file.append([data])
                model.written += data
                model.change(size, size + len(data))
            case 2:
                data, at = draw.randbytes(draw.randint(1, 5000)), draw.randint(0, size)
                file.write_at(at, data)
                model.written[at : at + len(data)] = data
                model.change(at, at + len(data))
            case 3 | 4:
                machine.writer.write(Control(sync_error_share=1.0))
                with pytest.raises(OSError, match="Input/output"):
                    file.sync()
                machine.writer.write(HEALTHY)
                model.sync(fails=True)
            case _:
                file.sync()
                model.sync(fails=False)
        assert file.read(0, len(model.written) + 1) == model.written, "all of it can be read"
        file.close()
        if draw.random() < 0.1:
            machine.start()
    machine.lose_power(seed)
    found = machine.tree()["log"]
    assert explained(found, bytes(model.durable), bytes(model.written))
    whole = bytes(model.durable).ljust(len(found), b"\0")
    for page in set(range((len(found) + PAGE_BYTES - 1) // PAGE_BYTES)) - model.dirty:
        at = slice(page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(found)))
        assert found[at] == whole[at], page


def test_a_truncated_and_rewritten_file_may_have_any_former_size(tmp_path: Path) -> None:
    """After a power loss a truncated and rewritten file has one of the sizes that it had."""
    sizes = set()
    for seed in range(40):
        machine = Machine(tmp_path / str(seed))
        machine.put("log", b"d" * 50_000)
        file = machine.disk.open(machine.path("log"), OpenMode.WRITE)
        file.truncate(0)
        file.append([b"n" * 30_000])
        file.close()
        machine.lose_power(seed)
        sizes.add(len(machine.tree()["log"]))
    assert {0, 30_000, 50_000} < sizes
    assert any(0 < size < 30_000 for size in sizes)


def test_content_behind_a_sync_survives_every_loss(tmp_path: Path) -> None:
    for seed in range(20):
        machine = Machine(tmp_path / str(seed))
        machine.put("log", b"a" * 10_000)
        file = machine.disk.open(machine.path("log"), OpenMode.WRITE)
        file.append([b"b" * 10_000])
        machine.lose_power(seed)
        found = machine.tree()["log"]
        assert found[:8192] == b"a" * 8192, "whole pages of the sync"
        assert explained(found, b"a" * 10_000, b"a" * 10_000 + b"b" * 10_000)
        file.close()


def test_unsynced_content_is_lost_kept_and_torn_by_some_seeds(tmp_path: Path) -> None:
    fates = set()
    for seed in range(40):
        machine = Machine(tmp_path / str(seed))
        machine.put("log", b"")
        machine.put("log", b"x" * 4096, sync=False)
        machine.lose_power(seed)
        found = machine.tree()["log"].rstrip(b"\0")
        assert explained(found, b"", b"x" * 4096)
        fates.add("lost" if not found else "kept" if len(found) == 4096 else "torn")
    assert fates == {"lost", "kept", "torn"}


def test_overwritten_and_cut_content_comes_back_by_some_seeds(tmp_path: Path) -> None:
    found = set()
    for seed in range(40):
        machine = Machine(tmp_path / str(seed))
        machine.put("old", b"1" * 4096)
        machine.put("cut", b"2" * 4096)
        for name in ("old", "cut"):
            file = machine.disk.open(machine.path(name), OpenMode.WRITE)
            if name == "old":
                file.write_at(0, b"3" * 4096)
            else:
                file.truncate(0)
            file.close()
        machine.lose_power(seed)
        tree = machine.tree()
        found |= {("old", tree["old"][4095:]), ("cut", len(tree["cut"]))}
    assert {("old", b"1"), ("old", b"3"), ("cut", 0), ("cut", 4096)} <= found


def test_a_sync_covers_what_was_written_before_it_began(tmp_path: Path) -> None:
    """A write that another thread makes while a sync runs is not covered."""
    lost = 0
    for seed in range(20):
        machine = Machine(tmp_path / str(seed))
        machine.put("log", b"a" * 4096)
        journal = machine.disk.journal
        file = machine.disk.open(machine.path("log"), OpenMode.WRITE)
        at = journal.position
        file.append([b"b" * 4096])
        with journal.lock:  # the sync that began at ``at`` ends now
            journal.add("s", (machine.data / "log").stat().st_ino, at)
        machine.lose_power(seed)
        found = machine.tree()["log"]
        assert found[:4096] == b"a" * 4096
        lost += b"b" * 4096 not in found
        file.close()
    assert lost > 0


# -- names ------------------------------------------------------------------------------------------------------------


def test_names_are_those_of_a_moment_since_the_last_sync(tmp_path: Path) -> None:
    met: set[int] = set()
    for seed in range(40):
        machine = Machine(tmp_path / str(seed))
        disk = machine.disk
        for name in ("a", "b", "c"):
            machine.put(name, name.encode())
        states = [machine.tree()]
        for change in (
            lambda m=machine: m.put("new", b"new", names=False),
            lambda m=machine, d=disk: d.rename(m.path("a"), m.path("b")),
            lambda m=machine, d=disk: d.remove(m.path("c")),
            lambda m=machine, d=disk: d.rename(m.path("new"), m.path("a")),
            lambda m=machine, d=disk: d.make_directories(m.path("below/deep")),
            lambda m=machine, d=disk: d.make_directory(m.path("below/deep/one")),
        ):
            change()
            states.append(machine.tree())
        machine.lose_power(seed)
        assert machine.tree() in states
        met.add(states.index(machine.tree()))
        assert (machine.data / "below").exists() or not (machine.data / "below/deep").exists()
        assert not list((machine.hostile / TRASH).iterdir())
    assert len(met) >= 4


def test_synced_names_stay(tmp_path: Path) -> None:
    for seed in range(20):
        machine = Machine(tmp_path / str(seed))
        machine.put("checkpoint", b"1")
        machine.put("checkpoint.tmp", b"2", names=False)
        machine.disk.rename(machine.path("checkpoint.tmp"), machine.path("checkpoint"))
        machine.disk.make_directories(machine.path("topic-0"))
        machine.put("topic-0/log", b"3", names=False)
        machine.disk.sync_directory(machine.path("topic-0"))
        machine.disk.sync_directory(str(machine.data))
        machine.lose_power(seed)
        assert machine.tree() == {"checkpoint": b"2", "topic-0/log": b"3"}
        assert not (machine.hostile / JOURNAL).stat().st_size


def test_a_directory_that_another_thread_made_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads make it; one of them has synced it and what is in it while the other one still waits for the disk."""
    may_write = HostileDisk.may_write
    for seed in range(SEEDS):
        machine = Machine(tmp_path / str(seed))
        folder = machine.path("folder")
        waited = []

        def wait(disk: HostileDisk, path: str, machine: Machine = machine, waited: list[str] = waited) -> None:
            may_write(disk, path)
            if not waited:
                waited.append(path)
                disk.make_directories(path)
                machine.put("folder/kept", b"kept")
                for each in (path, str(machine.data)):
                    disk.sync_directory(each)

        monkeypatch.setattr(HostileDisk, "may_write", wait)
        machine.disk.make_directories(folder)
        monkeypatch.undo()
        machine.lose_power(seed)
        assert machine.tree() == {"folder/kept": b"kept"}


def test_a_removed_tree_comes_back_whole_or_not_at_all(tmp_path: Path) -> None:
    """A removed tree comes back with its content or not at all."""
    back = 0
    for seed in range(30):
        machine = Machine(tmp_path / str(seed))
        machine.disk.make_directories(machine.path("topic-0"))
        for name in ("topic-0/1.log", "topic-0/2.log"):
            machine.put(name, name.encode(), names=False)
        machine.disk.sync_directory(machine.path("topic-0"))
        machine.disk.sync_directory(str(machine.data))
        before = machine.tree()
        machine.disk.rename(machine.path("topic-0"), machine.path("topic-0-delete"))
        machine.disk.remove_tree(machine.path("topic-0-delete"))
        assert machine.tree() == {}
        machine.lose_power(seed)
        renamed = {name.replace("topic-0", "topic-0-delete"): content for name, content in before.items()}
        assert machine.tree() in ({}, before, renamed)
        back += machine.tree() != {}
    assert 0 < back < 30


def test_a_rename_between_directories_is_lost_as_a_whole(tmp_path: Path) -> None:
    for seed in range(30):
        machine = Machine(tmp_path / str(seed))
        for name in ("one", "two"):
            machine.disk.make_directories(machine.path(name))
        machine.disk.sync_directory(str(machine.data))
        machine.put("one/file", b"x", names=False)
        machine.disk.sync_directory(machine.path("one"))
        machine.disk.rename(machine.path("one/file"), machine.path("two/file"))
        machine.put("two/later", b"y", names=False)
        machine.lose_power(seed)
        assert machine.tree() in ({"one/file": b"x"}, {"two/file": b"x"}, {"two/file": b"x", "two/later": b"y"})


@pytest.mark.parametrize("synced", ["one", "two"])
def test_a_sync_of_either_directory_keeps_a_rename(tmp_path: Path, synced: str) -> None:
    """A journaling file system commits a rename whole, with all changes of both directories before it."""
    for seed in range(SEEDS):
        machine = Machine(tmp_path / str(seed))
        for name in ("one", "two"):
            machine.disk.make_directories(machine.path(name))
        machine.disk.sync_directory(str(machine.data))
        machine.put("one/before", b"w", names=False)
        machine.put("one/file", b"x", names=False)
        machine.disk.rename(machine.path("one/file"), machine.path("two/file"))
        machine.disk.sync_directory(machine.path(synced))
        machine.lose_power(seed)
        assert machine.tree() == {"one/before": b"w", "two/file": b"x"}


def test_a_reused_inode_number_is_not_taken_for_the_old_file(tmp_path: Path) -> None:
    """A reused inode number is not taken for the old file."""
    machine = Machine(tmp_path)
    for round_ in range(30):
        machine.put(f"f{round_}", b"unsynced" * 100, sync=False)
        machine.disk.remove(machine.path(f"f{round_}"))
        machine.disk.sync_directory(str(machine.data))
    machine.put("last", b"synced")
    machine.lose_power(3)
    assert machine.tree() == {"last": b"synced"}


def test_a_journal_with_a_partial_last_entry_is_read_up_to_it(tmp_path: Path) -> None:
    """A journal that was cut within an entry is read up to this entry."""
    machine = Machine(tmp_path)
    machine.put("log", b"a" * 4096)
    journal = machine.hostile / JOURNAL
    whole = journal.stat().st_size
    machine.put("more", b"b" * 4096)
    with journal.open("r+b") as stream:
        stream.truncate(whole + 3)
    machine.lose_power(1)
    assert machine.tree() == {"log": b"a" * 4096, "more": b"b" * 4096}


def test_a_journal_is_compacted_to_what_is_not_durable(tmp_path: Path) -> None:
    """The omitted entries change nothing: the unsynced end and the unsynced removal are still lost by some seeds."""
    ends, back = set(), set()
    for seed in range(10):
        machine = Machine(tmp_path / str(seed))
        journal, trash = machine.hostile / JOURNAL, machine.hostile / TRASH
        for number in range(10):
            machine.put("log", b"%04d" % number * 1024)
            machine.put("gone", b"g")
            machine.disk.remove(machine.path("gone"))
            machine.disk.sync_directory(str(machine.data))
        machine.put("other", b"o")
        before = journal.stat().st_size
        machine.start()
        assert before > 1_000
        assert (journal.stat().st_size, list(trash.iterdir())) == (0, [])
        machine.put("log", b"end!" * 1024, sync=False, names=False)
        machine.disk.remove(machine.path("other"))
        small = journal.stat().st_size
        for _ in range(2):
            machine.start()
            assert (journal.stat().st_size, len(list(trash.iterdir()))) == (small, 1)
        machine.put("log", b"more", sync=False, names=False)
        machine.lose_power(seed)
        tree = machine.tree()
        assert tree["log"][: 10 * 4096] == b"".join(b"%04d" % number * 1024 for number in range(10))
        ends.add(tree["log"][10 * 4096 :].count(b"end!") == 1024)
        back.add("other" in tree)
    assert ends == back == {True, False}


# -- errors on order, clocks -------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_writes_and_new_names(tmp_path: Path) -> None:
    """A full disk refuses writes and new names until it has space again."""
    machine = Machine(tmp_path)
    machine.put("log", b"a")
    file = machine.disk.open(machine.path("log"), OpenMode.WRITE)
    machine.writer.write(type(machine.writer.read())(disk_full=1.0))
    assert machine.disk.free_bytes(str(machine.data)) == 0
    for refused in (
        lambda: file.append([b"b"]),
        lambda: file.write_at(0, b"b"),
        lambda: file.preallocate(100_000),
        lambda: machine.disk.open(machine.path("new"), OpenMode.WRITE),
        lambda: machine.disk.make_directories(machine.path("new")),
    ):
        with pytest.raises(OSError, match="No space") as caught:
            refused()
        assert caught.value.errno == errno.ENOSPC
    machine.writer.write(type(machine.writer.read())())
    assert file.append([b"b"]) == 2
    file.close()


def test_a_sync_that_fails_makes_nothing_durable(tmp_path: Path) -> None:
    lost = 0
    for seed in range(20):
        machine = Machine(tmp_path / str(seed))
        machine.put("log", b"")
        machine.writer.write(type(machine.writer.read())(sync_error_share=1.0))
        file = machine.disk.open(machine.path("log"), OpenMode.WRITE)
        file.append([b"a" * 4096])
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.close()
        machine.lose_power(seed)
        lost += machine.tree()["log"] != b"a" * 4096
    assert lost > 0


def failures(calls: list[Callable[[], object]]) -> int:
    failed = 0
    for call in calls:
        try:
            call()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            failed += 1
    return failed


def test_a_share_of_the_writes_fails_without_effect(tmp_path: Path) -> None:
    """A share of the writes fails and leaves the file unchanged."""
    machine = Machine(tmp_path)
    machine.put("log", b"a" * 10)
    file = machine.disk.open(machine.path("log"), OpenMode.WRITE)
    machine.writer.write(Control(write_error_share=1.0))
    refused: list[Callable[[], object]] = [
        lambda: file.append([b"b"]),
        lambda: file.write_at(0, b"b"),
        lambda: file.preallocate(100_000),
        lambda: machine.disk.open(machine.path("new"), OpenMode.WRITE),
        lambda: machine.disk.make_directories(machine.path("new")),
        lambda: file.truncate(0),
        lambda: machine.disk.rename(machine.path("log"), machine.path("new")),
        lambda: machine.disk.remove(machine.path("log")),
        lambda: machine.disk.remove_tree(str(machine.data)),
    ]
    assert failures(refused) == len(refused)
    assert machine.tree() == {"log": b"a" * 10}
    file.sync()  # writes alone were to fail
    machine.writer.write(Control(write_error_share=0.3))
    failed = failures([lambda: file.append([b"b"])] * 1000)
    assert 200 < failed < 400
    assert machine.tree() == {"log": b"a" * 10 + b"b" * (1000 - failed)}
    machine.writer.write(HEALTHY)
    assert failures([lambda: file.append([b"c"])] * 100) == 0
    file.close()


def test_every_sync_takes_the_set_delay_and_blocks_no_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sync takes the delay of the control file and blocks no write."""
    machine, slept = Machine(tmp_path), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert file.append([b"b"]) == 1 + len(slept), "others write while a sync waits"

    monkeypatch.setattr(hostile, "time", SimpleNamespace(sleep=sleep))
    machine.put("log", b"a")
    file = machine.disk.open(machine.path("log"), OpenMode.WRITE)
    file.sync()
    assert slept == []
    machine.writer.write(Control(sync_delay_ms=250.0))
    file.sync()
    machine.disk.sync_directory(str(machine.data))
    assert slept == [0.25, 0.25]
    machine.writer.write(HEALTHY)
    file.sync()
    assert slept == [0.25, 0.25]
    file.close()


def test_a_clock_drifts_and_jumps_without_going_back(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    clock = SkewedClock(ControlReader(machine.hostile / CONTROL))
    healthy = machine.writer.read()
    before, wall = clock.monotonic_ms(), clock.wall_ms()
    machine.writer.write(type(healthy)(rate=2.0, rate_since_ms=before, rate_base_ms=before, wall_offset_ms=3_600_000.0))
    first, second = clock.monotonic_ms(), clock.monotonic_ms()
    assert before <= first <= second
    assert clock.wall_ms() - wall >= 3_600_000
    machine.writer.write(type(healthy)(rate=0.5, rate_since_ms=second, rate_base_ms=second - 60_000.0))
    assert clock.monotonic_ms() >= second, "a monotonic clock never goes back, whatever is written"


def test_a_hostile_environment_needs_a_control_file(tmp_path: Path) -> None:
    """The environment of a hostile node is refused without a control file."""
    with pytest.raises(FileNotFoundError):
        hostile_environment(tmp_path)
    Machine(tmp_path)
    environment = hostile_environment(tmp_path / "hostile")

    async def main() -> None:
        assert await environment.disk.offload(lambda: environment.disk.exists(str(tmp_path))) is True

    trio.run(main)
    assert abs(environment.clock.wall_ms() - RealDisk().modified_ms(str(tmp_path / "data"))) < 60_000
