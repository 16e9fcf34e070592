"""Temporary folders of clusters, which the next cluster removes if nothing else has.

A folder goes with its cluster. A process that ends without its last statements (SIGTERM, SIGKILL, the method ``thread``
of pytest-timeout) leaves it behind, and the nodes, which end soon afterwards, cannot remove it either. So each process
holds a lock on its folders, which ends with the process, and a later one removes folders without a lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "moldau-cluster-"
"""Begins the names of these folders only: others, such as those that are kept, are never removed."""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Provides a folder for the length of the block, and removes those that ended processes of this user have left."""
    _remove_left(Path(tempfile.gettempdir()))
    folder, lock = _locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder() -> tuple[Path, int]:
    """Returns a new folder, and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # a file system without locks; there nothing is removed
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder, lock
        os.close(lock)  # another process has removed the folder before it was locked


def _remove_left(parent: Path) -> None:
    """Removes the folders that no process has locked."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another's, no folder, or removed meanwhile
            if folder.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
