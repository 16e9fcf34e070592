"""Goal: the exhaustive checks of short histories find the bugs that close reading finds.

Method: each bug of ``support.histories.bugs`` replaces one function of a core; the histories that are meant for it must
break a rule, and must keep all rules without the bug (which the tests of the cores show).
"""

from __future__ import annotations

import pytest

from support.histories.bugs import BUGS, HUNTS

SLOW = (
    "former-leader-writes",
    "lost-partitions-are-free",
    "repeated-end-believed",
    "replaced-member-commits",
    "sync-covers-what-is-not-written",
    "truncated-write-counts",
)
"""Others of the same explorations are found in less than half a second."""


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, id=bug.name, marks=[pytest.mark.proof] * (bug.name in SLOW)) for bug in BUGS]
)
def test_a_short_history_shows_the_bug(bug):
    assert HUNTS[bug.name].find(bug), f"{bug.name}: {bug.text} is not found"
