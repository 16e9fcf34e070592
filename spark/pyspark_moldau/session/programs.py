"""Small programs that a session writes before it starts Spark: a wrapper of Python, and the directory for wrappers.

Spark runs each of its Python processes with ``pyspark.zip`` of PySpark's installation first on the path. That archive
holds no compiled modules, so each process compiles PySpark's own modules again: a second of processor time at its
start, of the ten that the process of a stream's source has to connect. The wrapper takes the archive off the path, and
the process imports the same modules from the folder in which they are installed, where compiled ones are.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import os
import shlex
import shutil
import site
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
WRAPPER = """#!/bin/sh
# Spark's Python processes would compile PySpark from the source in these archives each time they start.
{lines}
exec {python} "$@"
"""
LINE = 'archive={archive}; export PYTHONPATH=${{PYTHONPATH#"$archive:"}}'


def own_directory() -> Path:
    """Returns a directory for wrappers that no other user can write to; it is created if need be.

    It has the same name for all processes of a user. If that name is taken, by another user for instance, this process
    has a directory of its own until it ends.
    """
    path = Path(tempfile.gettempdir()) / f"moldau-spark-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & WRITABLE_BY_OTHERS:
        return path
    return _directory_of_process()


@cache
def _directory_of_process() -> Path:
    path = Path(tempfile.mkdtemp(prefix="moldau-spark-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def place(path: Path, text: str, mode: int) -> None:
    """Creates a file atomically with its whole content, unless it exists."""
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(mode)
    with contextlib.suppress(FileExistsError):  # another process was faster
        path.hardlink_to(draft)
    draft.unlink()


def python_for_workers(directory: Path) -> str:
    """Returns the program for ``PYSPARK_PYTHON``: this Python, in a wrapper below ``directory`` where that helps.

    The wrapper's name holds its content, so that files never change while others start from them.
    """
    archives = _needless_archives()
    if not archives:
        return sys.executable
    lines = "\n".join(LINE.format(archive=shlex.quote(str(archive))) for archive in archives)
    text = WRAPPER.format(lines=lines, python=shlex.quote(sys.executable))
    mark = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = directory / f"python-{mark}"
    place(path, text, 0o755)
    return str(path) if os.access(path, os.X_OK) else sys.executable  # some directories for files run no programs


def _needless_archives() -> list[Path]:
    """Returns the archives that Spark puts first on the path, in that order.

    The list is empty unless each new process of this Python finds the same PySpark and Py4J in folders.
    """
    folders = {*site.getsitepackages(), site.getusersitepackages()}
    found = [importlib.util.find_spec(name) for name in ("pyspark", "py4j")]
    places = [Path(spec.origin).parent for spec in found if spec is not None and spec.origin is not None]
    if len(places) < len(found) or not {str(folder.parent) for folder in places} <= folders:
        return []
    home = places[0]
    if os.environ.get("SPARK_HOME", str(home)) != str(home):
        return []
    return [*home.glob("python/lib/pyspark.zip"), *home.glob("python/lib/py4j-*-src.zip")]
