"""Negative controls that lie outside of the distribution: what is on trial must not be within reach of users.

Stock pysyncobj as the metadata quorum is one: it loses acknowledged commands (ADR 0001), so no package may be able to
run it, and its harness is a module of the test tree. A campaign in a working copy of the sources finds that module by
its path, and runs it beside the other controls; an installed Moldau has no test tree, and says so instead.

A plug-in is a module with ``convict(seed)``, which returns the rule that was broken and how, or None. Only the
absence of the module, or of a library that it needs, is a reason to skip it: a module that is there and breaks is a
defect of the kit.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import moldau_jepsen

if TYPE_CHECKING:
    from collections.abc import Callable

    Convict = Callable[[int], tuple[str, str] | None]

TEST_TREE = Path(moldau_jepsen.__file__).resolve().parents[2] / "tests"
"""Where the tests of a working copy lie, seen from the package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideControl:
    """One negative control whose harness is not part of the distribution."""

    name: str
    text: str
    module: str
    """A module of the test tree, dotted."""
    needs: tuple[str, ...]
    """Packages without which the module cannot be imported."""
    convicted_by: tuple[str, ...]
    """Rules that may convict it; anything else is a defect."""
    seeds_max: int

    def missing(self) -> str:
        """Why it cannot be run here, in one line; empty if it can."""
        path = f"{self.module.replace('.', '/')}.py"
        if not (TEST_TREE / path).is_file():
            return f"its harness, {path}, belongs to the tests of a working copy of the sources"
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"not installed: {', '.join(absent)}" if absent else ""

    def harness(self) -> Convict:
        """Returns the harness; it must not be missing. Puts the test tree behind all else on the import path."""
        if str(TEST_TREE) not in sys.path:
            sys.path.append(str(TEST_TREE))
        return cast("Convict", importlib.import_module(self.module).convict)


STOCK_PYSYNCOBJ = OutsideControl(
    name="stock-pysyncobj",
    text="a quorum on pysyncobj as it is applies entries that are not the committed ones",
    module="support.raft.stock_pysyncobj",
    needs=("pysyncobj",),
    convicted_by=("state-machine-safety", "leader-completeness", "election-safety", "log-matching", "acknowledgements"),
    seeds_max=60,
)

OUTSIDE_CONTROLS: dict[str, OutsideControl] = {STOCK_PYSYNCOBJ.name: STOCK_PYSYNCOBJ}
