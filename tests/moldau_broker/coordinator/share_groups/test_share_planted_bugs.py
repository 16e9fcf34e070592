"""Goal: share coordinator and share groups keep their rules in random histories, and the rules notice planted bugs.

Method: seeded campaigns against the pure cores; each bug is planted, and its campaign must fail.
"""

from __future__ import annotations

import pytest

from moldau_jepsen.planted_bug import planted
from support.coordinator.share_mutants import BUGS, CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_campaigns_pass_without_a_bug(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_planted_bug_is_found(bug) -> None:
    (judge,) = bug.judges
    with planted(bug), pytest.raises(AssertionError):
        CHECKS[judge]()
