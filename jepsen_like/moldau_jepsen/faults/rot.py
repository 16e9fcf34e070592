"""Damage to closed files of a stopped node: flipped bits, cut ends, missing indexes.

The closed segments of a broker are all but the last of each partition; their files are never written again. A broker
can rebuild indexes and producer snapshots from the records, so it must recover from their damage by itself. It cannot
rebuild damaged records: it must refuse them, the operator replaces the disk, and the records come from other replicas.

The closed files of a controller are its newest snapshot and the segments of the metadata log before the last one; they
are never written again. A controller must not start with a damaged snapshot, nor with a damaged segment unless the
damage is behind the synced part. The operator removes it from the voters, replaces the disk and adds it again, because
an empty disk lacks the votes and the entries that the controller had confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

LOG = ".log"
DERIVED = (".index", ".timeindex", ".txnindex", ".snapshot")
SNAPSHOT = ".snap"
RECORDS_SHARE = 0.5
"""Share of damages that strike records; the others strike what can be made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """The damage to a file."""

    path: str
    text: str
    records: bool
    """Records were damaged: only another replica has them now."""
    refused: bool = False
    """The node must not start with it."""


def closed_files(data: Path) -> list[Path]:
    """Files of closed segments below a log directory, sorted."""
    found: list[Path] = []
    for partition in sorted(data.glob("*/")):
        segments = sorted(path.stem for path in partition.glob(f"*{LOG}"))
        found += [
            path
            for path in sorted(partition.iterdir())
            if path.stem in segments[:-1] and path.suffix in (LOG, *DERIVED) and path.stat().st_size > 0
        ]
    return found


def closed_metadata_files(data: Path) -> list[Path]:
    """Returns closed files of the metadata log of a controller whose directory is ``data``, sorted."""
    found: list[Path] = []
    for directory in sorted(data.glob("__cluster_metadata/*/")):
        found += sorted(directory.glob("log-*.wal"))[:-1]
        found += sorted(directory.glob("snapshot-*.snap"))[-1:]
    return found


def damage_metadata(data: Path, draw: random.Random) -> Damage | None:
    """Damages one closed file of a controller under the conditions of ``damage``; returns None if there is none."""
    files = closed_metadata_files(data)
    if not files:
        return None
    path = draw.choice(files)
    what = _strike(path, draw, ("bit", "bit", "cut"))
    return Damage(path=str(path), text=f"{path.name}: {what}", records=True, refused=path.suffix == SNAPSHOT)


def damage(data: Path, draw: random.Random) -> Damage | None:
    """Damages one closed file below ``data``; returns None where there is none.

    The node must not run, and must have ended in order, because closed files must be synced.
    """
    files = closed_files(data)
    wanted = draw.random() < RECORDS_SHARE
    candidates = [path for path in files if (path.suffix == LOG) is wanted] or files
    if not candidates:
        return None
    path = draw.choice(candidates)
    what = _strike(path, draw, ("bit", "bit", "cut") if path.suffix == LOG else ("bit", "cut", "gone"))
    return Damage(path=str(path), text=f"{path.parent.name}/{path.name}: {what}", records=path.suffix == LOG)


def _strike(path: Path, draw: random.Random, ways: Sequence[str]) -> str:
    size = path.stat().st_size
    match draw.choice(ways):
        case "bit":
            position, bit = draw.randrange(size), draw.randrange(8)
            with path.open("r+b") as stream:
                stream.seek(position)
                (byte,) = stream.read(1)
                stream.seek(position)
                stream.write(bytes([byte ^ 1 << bit]))
            return f"bit {bit} of byte {position} flipped"
        case "cut":
            left = draw.randrange(size)
            with path.open("r+b") as stream:
                stream.truncate(left)
            return f"cut from {size} to {left} bytes"
        case _:
            path.unlink()
            return "removed"
