"""One border of a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

Found = frozenset[str] | set[str]
"""The rules that a history breaks, by name."""


@dataclass(frozen=True, slots=True)
class Border:
    """The two sides of a border, a step apart; each judges its history when it is called."""

    rule: str
    where: str
    wrong: Callable[[], Found]
    sound: Callable[[], Found]
