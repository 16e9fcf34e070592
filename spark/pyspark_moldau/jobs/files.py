"""Small files in which jobs note what must survive a crash."""

from __future__ import annotations

import os
import re
import uuid
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

OWNER: Final = "_moldau_table.json"
"""The file in the folder of a table that says whose it is."""


def write_atomically(path: Path, text: str) -> None:
    """Replaces a small file; readers see the old text or the new one, also after a crash."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_first(path: Path, text: str) -> bool:
    """Writes a small file as a whole, unless it is there; returns whether this call has made it.

    Of several processes that do it at the same time, one makes the file. File systems without hard links cannot tell.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    write_atomically(temporary, text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        os.replace(temporary, path)
        return True
    finally:
        temporary.unlink(missing_ok=True)
    return True


_NOT_FOR_DELTA: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|\\\x00-\x1f\x7f]")
"""Parts of paths that deltalake misreads: it unquotes the first ones, and fails or panics at the others."""


def delta_problem(path: Path) -> str | None:
    """Returns why no Delta table can be in a folder; None if one can."""
    found = _NOT_FOR_DELTA.search(str(path.absolute()))
    if found is None:
        return None
    return (
        f"{path}: the path of a Delta table must not contain {found[0]!r}; rename the folder, or write format parquet"
    )
