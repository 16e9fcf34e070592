"""Writes what the workers of a Spark cluster need of Moldau into one archive.

The archive holds the packages ``moldau`` and ``pyspark_moldau``, with the compiled record codec if there is one, and
the installed distributions that they import in tasks. Spark unpacks it on each executor (``spark.archives``), and the
executors find it by ``PYTHONPATH``. Python does not load compiled modules out of a zip file, so ``--py-files``, which
does not unpack, would leave the slow codec. PySpark, PyArrow and pandas are not in the archive: a Spark cluster has
them.

The archive fits workers with the same operating system, processor and minor version of Python as this process.
"""

from __future__ import annotations

import os
import re
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

import moldau
import pyspark_moldau

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = "moldau"
"""The folder on the executors, below their working directory."""
ROOTS: Final = ("trio", "lz4", "crc32c", "cramjam", "fastavro", "fastjsonschema", "protobuf", "cryptography")
"""Distributions that tasks import, with those that they need; a missing one was not installed for jobs.

Tasks need the last one if their keys of TLS name stores of type PKCS12.
"""
PROVIDED: Final = frozenset(("pyspark", "pyarrow", "pandas", "numpy", "moldau"))
_LEFT_OUT: Final = ("__pycache__", ".pyx", ".pxi", ".pxd", ".c")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_WRITTEN: Final = (1980, 1, 1, 0, 0, 0)
"""Equal contents give equal archives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPackage:
    """A written archive. ``settings`` are those of the session that uses it."""

    path: Path
    files: int
    size_bytes: int
    distributions: tuple[str, ...]
    settings: dict[str, str]


def write_package(path: Path) -> WorkerPackage:
    """Writes the archive; an existing file is replaced once the new one is whole.

    Raises:
        OSError: The file cannot be written.
    """
    found = needed_distributions()
    contents: dict[str, Path] = {}
    for package in (moldau, pyspark_moldau):
        root = Path(str(package.__file__)).parent
        contents |= {f"{root.name}/{name}": file for name, file in _files_below(root)}
    for distribution in found.values():
        contents |= dict(files_of(distribution))
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(contents):
                entry = zipfile.ZipInfo(name, _WRITTEN)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, contents[name].read_bytes())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return WorkerPackage(
        path=path,
        files=len(contents),
        size_bytes=path.stat().st_size,
        distributions=tuple(f"{name} {found[name].version}" for name in sorted(found)),
        settings=session_settings(path),
    )


def session_settings(path: Path) -> dict[str, str]:
    """Returns the settings of Spark that bring the archive to the executors."""
    plain = str(path.absolute())
    uri = path.absolute().as_uri()
    # Spark divides the setting at commas, and finds the folder's name in a URI only, which a path with a space is not.
    place = plain if uri == f"file://{plain}" else uri
    return {"spark.archives": f"{place}#{FOLDER}", "spark.executorEnv.PYTHONPATH": f"./{FOLDER}"}


def needed_distributions() -> dict[str, metadata.Distribution]:
    """Returns the installed distributions of ``ROOTS`` and what these need, by their names.

    A requirement that is not installed here is one of another platform or Python.
    """
    found: dict[str, metadata.Distribution] = {}
    pending = list(ROOTS)
    for name in pending:
        if name in PROVIDED or name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for requirement in found[name].requires or ():
            needed = _NAME.match(requirement)
            if needed is not None and "extra ==" not in requirement:
                pending.append(needed[0].lower().replace("_", "-"))
    return found


def _files_below(root: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(root.rglob("*")):
        name = file.relative_to(root).as_posix()
        if file.is_file() and not _is_left_out(name):
            yield name, file


def files_of(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yields the files of an installed distribution that workers need, by their names in the archive."""
    if distribution.files is None:  # systems' own packages of Python have no list
        yield from _files_of_modules(distribution)
        return
    for file in distribution.files:
        name = file.as_posix()
        place = Path(str(distribution.locate_file(file)))
        # Images are often made smaller by removing tests and the like.
        if not name.startswith("..") and not _is_left_out(name) and place.is_file():
            yield name, place


def _files_of_modules(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yields the files of a distribution's top-level modules and packages."""
    for module in (distribution.read_text("top_level.txt") or "").split():
        root = Path(str(distribution.locate_file(module)))
        if root.is_dir():
            yield from ((f"{module}/{name}", file) for name, file in _files_below(root))
            continue
        for file in sorted(root.parent.glob(f"{root.name}.*")):
            if file.is_file() and not _is_left_out(file.name):
                yield file.name, file


def _is_left_out(name: str) -> bool:
    return "__pycache__" in name or name.endswith(_LEFT_OUT)
