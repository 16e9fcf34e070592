"""Goal: a process knows its limit of open files, raises it, and completes an operation even if none are left.

Method: the tests start processes with a low limit.
"""

from __future__ import annotations

import errno
import subprocess
import sys

from moldau.runtime.ports.descriptors import DescriptorBudget, is_shortage

RAISES = """
import resource
from moldau.runtime.ports.real import RealDisk, raise_open_files_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
assert RealDisk().open_files_max() == 100
assert raise_open_files_limit() == 300
assert RealDisk().open_files_max() == 300
assert raise_open_files_limit() == 300
"""
FINISHES = """
import os, resource, sys
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.ports.real import RealDisk
disk, path = RealDisk(), sys.argv[1]
disk.sync_directory(path)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    assert error.errno == 24, error
try:
    disk.open(path + "/file", OpenMode.WRITE)
except OSError as error:
    assert error.errno == 24, error
else:
    raise AssertionError("there was a descriptor left")
for _ in range(50):
    disk.sync_directory(path)
    assert disk.list_directory(path) == []
"""


def run(program: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_limit_is_raised_as_far_as_it_may() -> None:
    run(RAISES)


def test_names_are_synced_without_descriptors_left(tmp_path) -> None:
    run(FINISHES, str(tmp_path))


def test_a_shortage_is_known_by_its_cause() -> None:
    shortage = OSError(errno.EMFILE, "Too many open files")
    assert is_shortage(shortage)
    assert is_shortage(OSError(errno.ENFILE, "Too many open files in system"))
    wrapped = ValueError("creating failed")
    wrapped.__cause__ = shortage
    assert is_shortage(wrapped)
    assert not is_shortage(OSError(errno.EIO, "Input/output error"))
    assert not is_shortage(None)


def test_files_are_counted() -> None:
    budget = DescriptorBudget(100)
    for _ in range(5):
        budget.file_opened()
    budget.file_closed()
    assert budget.files == 4
