"""Goal: the disk and the clocks of a node behave as the control file says, at once, and no clock goes back.

Method: any sequence of changes of the file, with the time of the machine in the hands of the test.
"""

from __future__ import annotations

import dataclasses
import errno
import random
import struct
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.ports.real import real_environment
from moldau_jepsen.launcher import control, hostile
from moldau_jepsen.launcher.control import CONTROL, HEALTHY, Control, ControlReader, ControlWriter
from moldau_jepsen.launcher.hostile import HostileDisk, SkewedClock
from moldau_jepsen.launcher.undo import UndoJournal

if TYPE_CHECKING:
    from pathlib import Path

CONTROLS = st.builds(Control, **{field.name: st.floats(0, 1e9) for field in dataclasses.fields(Control)})


@pytest.fixture
def writer(tmp_path: Path) -> ControlWriter:
    return ControlWriter(tmp_path / CONTROL)


@given(data=st.data())
def test_a_node_reads_what_was_written_last(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also what an earlier process of the harness left; a file that is there is not made healthy."""
    path = tmp_path_factory.mktemp("hostile") / CONTROL
    with pytest.raises(FileNotFoundError):
        ControlReader(path)
    first = ControlWriter(path)
    reader = ControlReader(path)
    assert (first.read(), reader.read()) == (HEALTHY, HEALTHY)
    for wanted in data.draw(st.lists(CONTROLS, max_size=4)):
        first.write(wanted)
        assert (first.read(), reader.read(), ControlReader(path).read()) == (wanted, wanted, wanted)
    last = first.read()
    first.close()
    second = ControlWriter(path)
    assert (second.read(), reader.read()) == (last, last)
    second.write(HEALTHY)
    assert reader.read() == HEALTHY


def test_a_file_that_stays_half_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that died in the middle would hold up every look at a clock for ever."""
    writer = ControlWriter(tmp_path / CONTROL)
    reader = ControlReader(tmp_path / CONTROL)
    monkeypatch.setattr(control, "READ_TRIES", 3)
    writer._map[:8] = struct.pack("<Q", 99)
    for end in (writer, reader):
        with pytest.raises(OSError, match="always being written"):
            end.read()


STEPS = st.lists(st.tuples(st.floats(0, 1000), st.floats(0.1, 10), st.floats(-1e6, 1e6)), max_size=8)


@given(steps=STEPS)
def test_a_clock_runs_at_its_rate_and_never_goes_back(
    steps: list[tuple[float, float, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The monotonic clock is the sum of the times at each rate; the wall clock drifts with it, and has its offset."""
    path = tmp_path_factory.mktemp("hostile") / CONTROL
    writer = ControlWriter(path)
    clock = SkewedClock(ControlReader(path))
    real_s, node_ms = 1000.0, 1_000_000.0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: real_s)
        patched.setattr(time, "time_ns", lambda: round(real_s * 1e9) + 10**18)
        before = clock.monotonic_ms()
        assert before == node_ms
        for passed_ms, rate, offset_ms in steps:
            state = Control(rate=rate, rate_since_ms=real_s * 1000, rate_base_ms=node_ms, wall_offset_ms=offset_ms)
            writer.write(state)
            real_s += passed_ms / 1000
            node_ms += passed_ms * rate
            now = clock.monotonic_ms()
            assert now >= before
            assert now == pytest.approx(node_ms)
            before = now
            drift_ms = node_ms - real_s * 1000
            assert clock.wall_ms() == pytest.approx(10**12 + real_s * 1000 + drift_ms + offset_ms, abs=2)
            assert clock.wall_ns() == clock.wall_ms() * 1_000_000
        writer.write(Control(rate_base_ms=-1e9))
        assert clock.monotonic_ms() == before, "a base of the past moves no clock back"


def disk_of(folder: Path) -> HostileDisk:
    (folder / "journal-of-node").mkdir()
    reader = ControlReader(folder / CONTROL)
    return HostileDisk(real_environment().disk, UndoJournal(folder / "journal-of-node"), reader, random.Random(1))


def errors_of(disk: HostileDisk, folder: Path) -> dict[str, int]:
    """Returns the error number of each change that a disk can make; 0: it was made."""
    (folder / "old").write_bytes(b"12345")
    (folder / "gone").touch()
    (folder / "tree").mkdir()
    file = disk.open(str(folder / "old"), OpenMode.WRITE)
    changes = {
        "append": lambda: file.append([b"x"]),
        "write": lambda: file.write_at(0, b"y"),
        "preallocate": lambda: file.preallocate(100),
        "make": lambda: disk.open(str(folder / "new"), OpenMode.WRITE).close(),
        "make directory": lambda: disk.make_directory(str(folder / "folder")),
        "truncate": lambda: file.truncate(2),
        "rename": lambda: disk.rename(str(folder / "old"), str(folder / "renamed")),
        "remove": lambda: disk.remove(str(folder / "gone")),
        "remove tree": lambda: disk.remove_tree(str(folder / "tree")),
        "sync": file.sync,
        "sync directory": lambda: disk.sync_directory(str(folder)),
        "read": lambda: file.read(0, 1),
    }
    found = {}
    for name, change in changes.items():
        try:
            change()
            found[name] = 0
        except OSError as error:
            found[name] = error.errno or -1
    file.close()
    return found


WRITES = ("append", "write", "preallocate", "make", "make directory")
CHANGES = ("truncate", "rename", "remove", "remove tree")
SYNCS = ("sync", "sync directory")


@pytest.mark.parametrize(
    ("state", "number", "refused"),
    [
        (HEALTHY, 0, ()),
        (Control(disk_full=1.0), errno.ENOSPC, WRITES),  # what needs no space goes on
        (Control(write_error_share=1.0), errno.EIO, WRITES + CHANGES),
        (Control(sync_error_share=1.0), errno.EIO, SYNCS),
    ],
)
def test_each_trouble_strikes_what_it_names(
    state: Control, number: int, refused: tuple[str, ...], writer: ControlWriter, tmp_path: Path
) -> None:
    disk = disk_of(tmp_path)
    writer.write(state)
    folder = tmp_path / "data"
    folder.mkdir()
    found = errors_of(disk, folder)
    assert {name: code for name, code in found.items() if code} == dict.fromkeys(refused, number)
    assert (disk.free_bytes(str(folder)) == 0) is bool(state.disk_full)
    assert disk.total_bytes(str(folder)) > 0
    writer.write(HEALTHY)
    (tmp_path / "again").mkdir()
    assert set(errors_of(disk, tmp_path / "again").values()) == {0}, "the trouble is over at once"


def test_delays_hold_up_what_they_name(writer: ControlWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that needs space waits for a disk that takes nothing, and a sync for one that is slow."""
    slept: list[float] = []
    monkeypatch.setattr(hostile.time, "sleep", slept.append)
    disk = disk_of(tmp_path)
    for state, wanted in ((HEALTHY, []), (Control(write_delay_ms=250.0), [0.25] * len(WRITES))):
        writer.write(state)
        folder = tmp_path / f"data{len(wanted)}"
        folder.mkdir()
        assert set(errors_of(disk, folder).values()) == {0}
        assert slept == wanted
    slept.clear()
    writer.write(Control(sync_delay_ms=70.0))
    (tmp_path / "syncs").mkdir()
    errors_of(disk, tmp_path / "syncs")
    assert slept == [0.07] * len(SYNCS)


def test_the_trash_is_emptied_when_a_removal_is_durable(writer: ControlWriter, tmp_path: Path) -> None:
    """Until then a loss of power may bring the names back; afterwards they would only fill the disk."""
    disk = disk_of(tmp_path)
    trash = disk.journal.trash
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        for name in ("gone", "old", "new"):
            (folder / name).write_bytes(name.encode())
        (folder / "tree" / "inner").mkdir(parents=True)
    for folder in (first, second):
        disk.remove(str(folder / "gone"))
        disk.rename(str(folder / "new"), str(folder / "old"))
        disk.remove_tree(str(folder / "tree"))
    assert len(list(trash.iterdir())) == 6
    writer.write(Control(sync_error_share=1.0))
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_directory(str(first))
    assert len(list(trash.iterdir())) == 6, "a sync that failed makes nothing durable"
    writer.write(HEALTHY)
    disk.sync_directory(str(first))
    assert len(list(trash.iterdir())) == 3, "names of another directory are not durable yet"
    disk.remove(str(second / "old"))
    disk.sync_directory(str(second))
    assert list(trash.iterdir()) == []
