"""Damage to closed files of a stopped node: flipped bits, cut ends, missing indexes.

Of a broker: a closed segment is one that is not the last of its partition: nothing is ever written to its files again.
Indexes and producer snapshots can be made again from the records, so a broker must come back from their damage by
itself. Damaged records cannot be made again: the broker must refuse them, and its operator replaces the disk, after
which the records come from the other replicas.

Of a controller: its newest snapshot, and the segments of the metadata log before the last, neither of which is written
to again. It must not start with a damaged snapshot; with a damaged segment neither, unless nothing that counts was hit
(behind what had been synced). Its operator takes its vote away, replaces the disk and gives the vote back: an empty
disk has forgotten what the controller had voted and confirmed.
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
    """What was done."""

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
    """Closed files of the metadata log of a controller whose directory is ``data``, sorted."""
    found: list[Path] = []
    for directory in sorted(data.glob("__cluster_metadata/*/")):
        found += sorted(directory.glob("log-*.wal"))[:-1]
        found += sorted(directory.glob("snapshot-*.snap"))[-1:]
    return found


def damage_metadata(data: Path, draw: random.Random) -> Damage | None:
    """Damages one closed file of a controller; returns None where there is none. As for ``damage`` otherwise."""
    files = closed_metadata_files(data)
    if not files:
        return None
    path = draw.choice(files)
    what = _strike(path, draw, ("bit", "bit", "cut"))
    return Damage(path=str(path), text=f"{path.name}: {what}", records=True, refused=path.suffix == SNAPSHOT)


def damage(data: Path, draw: random.Random) -> Damage | None:
    """Damages one closed file below ``data``; returns None where there is none.

    The node must not run, and must have ended in order: what was not synced is no closed file.
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
