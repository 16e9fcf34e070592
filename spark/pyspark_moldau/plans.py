"""Tells the micro-batches of a query apart, from the files in its checkpoint.

Spark writes the offsets of a batch and the time of its planning into ``offsets/N`` before it runs the batch, and a
replay reads that file. So another file of the same number means that the checkpoint was set back, for example to a
copy, and that the batch was planned again, with other rows.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import unquote, urlsplit


def local_folder(checkpoint: str | None) -> Path | None:
    """Returns the folder of a checkpoint; None for one that is not on a file system of this machine."""
    if checkpoint is None:
        return None
    place = urlsplit(checkpoint)
    if place.scheme not in ("", "file"):
        return None
    return Path(unquote(place.path) if place.scheme else checkpoint)


def plan_of(checkpoint: str | Path | None, batch: int) -> str:
    """Returns a text of 16 letters that names the plan of a batch; empty where its file cannot be read here."""
    folder = checkpoint if isinstance(checkpoint, Path) else local_folder(checkpoint)
    if folder is None:
        return ""
    try:
        data = (folder / "offsets" / str(batch)).read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(data).hexdigest()[:16]
