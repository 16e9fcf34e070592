"""Goal: the checks of quotas notice the bugs that they exist for.

Method: each bug is planted, and its check must fail.
"""

from __future__ import annotations

import pytest
import trio

from moldau_jepsen.planted_bug import planted
from support.quotas.mutants import BUGS, CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_checks_pass_without_a_bug(name):
    CHECKS[name]()


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_planted_bug_is_found(bug):
    (judge,) = bug.judges
    with planted(bug), pytest.raises((AssertionError, trio.TooSlowError, ExceptionGroup)) as found:
        CHECKS[judge]()
    if isinstance(found.value, ExceptionGroup):
        assert found.group_contains((AssertionError, trio.TooSlowError))
