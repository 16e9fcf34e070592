"""How a test session imports Moldau: without pytest's compilation, and with an error that names a missing extra.

Imports nothing of Moldau, because every pytest run of an environment with Moldau loads it.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

PACKAGES = frozenset({"moldau", "moldau_broker", "moldau_cli", "moldau_jepsen", "moldau_quorum", "pyspark_moldau"})
KIT_NEEDS = ("msgpack", "xxhash", "h11")
"""Modules without which no node starts; ``pip install moldau`` alone installs the clients."""


class PlainImports:
    """Finds Moldau's modules as Python does, before pytest's own finder sees their names.

    Pytest compiles all modules of a distribution that has a plugin by itself, so that a failed ``assert`` shows its
    values. For Moldau's thousand modules that takes seconds in every session that cannot keep what was compiled (a
    fresh container, PYTHONDONTWRITEBYTECODE), and only the user's assertions are of interest.
    """

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder``."""
        return PathFinder.find_spec(fullname, path, target) if fullname.partition(".")[0] in PACKAGES else None


def use_plain_imports() -> None:
    """Makes later imports of Moldau plain ones; has no effect if they are already."""
    if PlainImports not in sys.meta_path:
        sys.meta_path.insert(0, PlainImports)


def end_plain_imports() -> None:
    """Takes back what ``use_plain_imports`` did."""
    if PlainImports in sys.meta_path:
        sys.meta_path.remove(PlainImports)


def require_kit() -> None:
    """Checks that the packages are installed that every cluster and history needs.

    Raises:
        ImportError: One is missing; the message names it and says what to install.
    """
    absent = [name for name in KIT_NEEDS if importlib.util.find_spec(name) is None]
    if absent:
        raise ImportError(
            f"clusters and histories of tests need {', '.join(absent)}: pip install 'moldau[kit]'", name=absent[0]
        )
