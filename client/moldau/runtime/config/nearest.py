"""Finds the known name that looks most like an unknown one, cheaply enough for names that strangers send.

Comparing two texts letter by letter is dear, and there are hundreds of keys. So the names that share the most runs of
three letters with the unknown one are looked up in an index first, and only those few are compared.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME_LENGTH_MAX: Final = 100
"""A longer text cannot be a misspelt key."""
_CANDIDATES: Final = 6
_CUTOFF: Final = 0.6


def _runs(name: str) -> set[str]:
    padded = f" {name} "
    return {padded[at : at + 3] for at in range(len(padded) - 2)}


class NearestNames:
    """An index over names that does not change."""

    def __init__(self, names: Iterable[str]) -> None:
        """Builds the index."""
        self._holders: dict[str, list[str]] = {}
        for name in names:
            for run in sorted(_runs(name)):
                self._holders.setdefault(run, []).append(name)

    def find(self, name: str) -> str | None:
        """Returns the name that looks most like ``name``, None where none does."""
        if len(name) > NAME_LENGTH_MAX:
            return None
        shared: dict[str, int] = {}
        for run in sorted(_runs(name)):
            for holder in self._holders.get(run, ()):
                shared[holder] = shared.get(holder, 0) + 1
        best = sorted(shared, key=lambda holder: (-shared[holder], len(holder), holder))[:_CANDIDATES]
        import difflib  # most programs make no mistake

        close = difflib.get_close_matches(name, best, n=1, cutoff=_CUTOFF)
        return close[0] if close else None


@lru_cache(maxsize=16)
def nearest_names(names: tuple[str, ...]) -> NearestNames:
    """Returns the index of these names, built once."""
    return NearestNames(names)
