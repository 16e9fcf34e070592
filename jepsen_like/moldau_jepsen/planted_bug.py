"""Planted bugs: what they break, which checks must find them, and the one mechanism that plants them.

A planted bug replaces functions of production code for the length of a block; production code has no switch for it. The
suites of single parts (quorum, controller, log, quotas) plant their bugs in the same way as the simulation of whole
clusters.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Patch = tuple[object, str, object]
"""Owner, attribute, replacement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedBug:
    """One planted bug."""

    name: str
    area: str
    text: str
    """The defect, in one line."""
    patches: Callable[[], list[Patch]]
    """The replacements, made when the bug is planted."""
    judges: tuple[str, ...] = ()
    """The rules, checkers or tests that must find it."""


@contextlib.contextmanager
def planted(bug: PlantedBug) -> Iterator[None]:
    """Plants the bug for the length of the block."""
    undo: list[tuple[object, str, object]] = []
    try:
        for given, name, replacement in bug.patches():
            owner = owner_of(given, name)
            undo.append((owner, name, vars(owner)[name]))
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in reversed(undo):
            setattr(owner, name, original)


def owner_of(given: object, name: str) -> object:
    """Returns the class that defines an attribute of ``given``, or ``given`` itself if it is a module.

    Raises:
        AttributeError: The attribute does not exist: the rule that the bug breaks has moved.
    """
    for owner in given.__mro__ if isinstance(given, type) else (given,):
        if name in vars(owner):
            return owner
    raise AttributeError(f"{given!r} has no {name!r}: the rule that the mutant breaks has moved")
