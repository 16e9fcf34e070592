"""Decides in which order, and in which portions, parallel pytest processes get the tests.

One process gets all tests of a file, so that the tests share its fixtures. Files that take long go first: a long file
that is begun last would keep one process busy while the others have nothing left to do. Tests of files in ``SPREAD``
share nothing and take long, so each of them is a portion of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SECONDS: dict[str, float] = {}
"""Seconds that a file takes, or each of its tests if it is in ``SPREAD``. Only their order matters."""

SPREAD: frozenset[str] = frozenset()

TOGETHER: dict[str, str] = {}
"""Files that share a fixture of the session, by the name of their portion."""


def portion_of(nodeid: str) -> str:
    """Returns the name of the portion that a test belongs to."""
    file = nodeid.partition("::")[0]
    return nodeid if file in SPREAD else TOGETHER.get(file, file)


def longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests in the order of their portions, the longest first; equals keep their order."""

    def shortness(item: pytest.Item) -> float:
        file = item.nodeid.partition("::")[0]
        return -SECONDS.get(TOGETHER.get(file, file), 0.0)

    return sorted(items, key=shortness)


def scheduler_of(config: pytest.Config, log: object) -> object:
    """Returns a scheduler that hands out portions in the order of the collected tests."""
    from xdist.scheduler import LoadScopeScheduling

    class LongestFirst(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return portion_of(nodeid)

    config.option.loadscopereorder = False  # xdist would begin with the files that have the most tests
    return LongestFirst(config, log)
