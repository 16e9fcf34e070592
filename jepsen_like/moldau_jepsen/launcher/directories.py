"""Directories of local clusters: which may be used, by one command at a time, and none that is half made."""

from __future__ import annotations

import fcntl
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from moldau_jepsen.launcher.secured import SecuredFiles
from moldau_jepsen.launcher.spec import FILE_NAME, LauncherError, LauncherUsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moldau_jepsen.launcher.spec import Node

LINK_FILES = frozenset({"links.json", "links.log"})
"""Files in the cluster's directory that belong to proxies, which start before the nodes."""


def draft_of(path: Path) -> Path:
    """Returns the file that takes the new content of ``path`` until it is complete."""
    return path.with_suffix(".tmp")


def refuse_used(directory: Path) -> None:
    """Refuses a directory that holds other files than the lock and the links of a cluster that is about to start.

    Raises:
        LauncherUsageError: It holds others, or is none, or its name is not UTF-8 as the nodes' files are.
    """
    if str(directory).encode("utf-8", "replace").decode() != str(directory):
        raise LauncherUsageError(f"{str(directory)!r} is not UTF-8; give another --dir")
    if directory.exists() and not directory.is_dir():
        raise LauncherUsageError(f"{directory} is not a directory")
    if directory.is_dir() and any(one.name not in LINK_FILES for one in directory.iterdir()):
        raise LauncherUsageError(f"{directory} is not empty and holds no {FILE_NAME}; give another --dir")


def refuse_moved(directory: Path, nodes: Sequence[Node]) -> None:
    """Refuses to start nodes from a copy of their directory, or after it was moved.

    Their files name each other by absolute paths: nodes of a copy would use the data of the original.

    Raises:
        LauncherUsageError: The nodes are in another directory; the message says what to do.
    """
    for node in nodes:
        home = Path(node.config).parent.parent
        if home == directory or not (directory / Path(node.config).parent.name).is_dir():
            continue
        if not home.is_dir():
            raise LauncherUsageError(f"{directory} was moved from {home}, which its files name: move it back there")
        if not home.samefile(directory):
            raise LauncherUsageError(f"{directory} is a copy of {home}, whose data its nodes would use: start {home}")


@contextmanager
def made_whole(directory: Path, nodes: Sequence[Node]) -> Iterator[None]:
    """Removes the files of a new cluster if the block, which makes them, raises: they would keep the next start away.

    Raises:
        LauncherUsageError: The block has raised an ``OSError``.
    """
    existed = directory.exists()
    try:
        yield
    except BaseException as error:
        for node in nodes:
            shutil.rmtree(Path(node.directory).parent, ignore_errors=True)
        state = directory / FILE_NAME
        for path in (*SecuredFiles(directory).shared, draft_of(state), state):
            with suppress(OSError):  # absent, or on a disk that takes no changes
                path.unlink()
        if not existed:
            with suppress(OSError):
                directory.rmdir()
        if isinstance(error, OSError):
            raise LauncherUsageError(f"cannot write {error.filename or directory}: {error.strerror}") from error
        raise


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Keeps other commands from changing the cluster of ``directory`` for the length of the block.

    The lock file is beside the directory, so that an empty directory stays empty. A link and its target have one lock.

    Raises:
        LauncherError: Another command holds the lock; raised without waiting.
    """
    path = directory.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = (path.parent / f".{path.name}.lock").open("ab")
    except OSError as error:
        raise LauncherUsageError(f"cannot use {directory}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LauncherError(f"another command is changing the cluster in {directory}") from None
        yield
