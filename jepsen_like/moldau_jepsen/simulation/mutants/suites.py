"""The planted bugs of the suites of single parts, loaded from a working copy: wheels hold no tests."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from moldau_jepsen.planted_bug import PlantedBug

_MODULES = (
    ("quorum", "support.raft.mutants"),
    ("controller", "support.controller.mutants"),
    ("log", "support.log.mutants"),
    ("quotas", "support.quotas.mutants"),
    ("share groups", "support.coordinator.share_mutants"),
    ("short histories", "support.histories.bugs"),
)
"""Area and module below ``tests``; the module names its bugs in ``BUGS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The planted bugs of one part."""

    area: str
    path: str
    bugs: tuple[PlantedBug, ...]


def load_suites(root: Path) -> list[Suite]:
    """Returns the suites of the working copy at ``root``.

    Raises:
        OSError: A suite does not exist there.
        ValueError: A suite plants no bug.
    """
    found = []
    for area, module in _MODULES:
        path = f"tests/{module.replace('.', '/')}.py"
        if not (root / path).is_file():
            raise FileNotFoundError(f"{path} does not exist")
        found.append(Suite(area=area, path=path, bugs=_bugs_of(root, module)))
        if not found[-1].bugs:
            raise ValueError(f"{path} plants no bug")
    return found


def _bugs_of(root: Path, module: str) -> tuple[PlantedBug, ...]:
    tests = str(root / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    bugs: tuple[PlantedBug, ...] = importlib.import_module(module).BUGS
    return bugs
