"""Goal: no folder of a cluster outlives its process for long. Method: processes that end without their last lines."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from moldau_jepsen.testing.folders import PREFIX, temporary_folder

KILLED = """
import os
from moldau_jepsen.testing.folders import temporary_folder
with temporary_folder() as folder:
    (folder / "broker-1").mkdir()
    (folder / "broker-1" / "records").write_text("x")
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def run_killed(folder: Path) -> Path:
    """Runs a process that is killed, and returns the folder that it has left."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    (left,) = folder.glob(f"{PREFIX}*")
    return left


def test_the_folder_goes_with_its_block(own_tmp: Path) -> None:
    with temporary_folder() as folder:
        (folder / "records").write_text("x")
    assert not list(own_tmp.iterdir())


def test_the_next_cluster_removes_what_was_left(own_tmp: Path) -> None:
    left = run_killed(own_tmp)
    assert (left / "broker-1" / "records").exists()
    with temporary_folder() as folder:
        assert list(own_tmp.iterdir()) == [folder]


def test_folders_in_use_and_of_others_stay(own_tmp: Path) -> None:
    kept, target = own_tmp / "moldau-kept", own_tmp / "target"
    for each in (kept, target):
        each.mkdir()
    link, file = own_tmp / f"{PREFIX}link", own_tmp / f"{PREFIX}file"
    link.symlink_to(target)
    file.write_text("x")
    with temporary_folder() as first, temporary_folder() as second:
        assert set(own_tmp.iterdir()) == {kept, target, link, file, first, second}


def test_a_folder_that_vanishes_is_replaced(own_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may remove a folder before the lock is on it."""
    made = []

    def make(**words: str) -> str:
        made.append(real(**words))
        return made[-1]

    def lock(descriptor: int, _: int) -> None:
        if len(made) == 1:
            os.rmdir(made[0])

    real = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", make)
    monkeypatch.setattr("fcntl.flock", lock)
    with temporary_folder() as folder:
        assert [str(folder)] == made[1:]
        assert folder.is_dir()
