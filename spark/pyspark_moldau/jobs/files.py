"""Small files in which jobs note what must survive a crash."""

from __future__ import annotations

import os
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
