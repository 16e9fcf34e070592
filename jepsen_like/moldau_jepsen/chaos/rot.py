"""Damage to closed files of a stopped broker: flipped bits, cut ends, missing indexes.

A closed segment is one that is not the last of its partition: nothing is ever written to its files again. Indexes and
producer snapshots can be made again from the records, so a broker must come back from their damage by itself. Damaged
records cannot be made again: the broker must refuse them, and its operator replaces the disk, after which the records
come from the other replicas.
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
RECORDS_SHARE = 0.5
"""Share of damages that strike records; the others strike what can be made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What was done."""

    path: str
    text: str
    records: bool
    """Records were damaged: only another replica has them now."""


def closed_files(data: Path) -> list[Path]:
    """Files of closed segments below a log directory, sorted."""
    found: list[Path] = []
    for partition in sorted(path for path in data.iterdir() if path.is_dir()):
        segments = sorted(path.stem for path in partition.glob(f"*{LOG}"))
        found += [
            path
            for path in sorted(partition.iterdir())
            if path.stem in segments[:-1] and path.suffix in (LOG, *DERIVED) and path.stat().st_size > 0
        ]
    return found


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
