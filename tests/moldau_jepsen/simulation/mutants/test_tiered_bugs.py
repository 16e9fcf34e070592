"""Goal: planted bugs of tiered storage are found, and each rule on tiered partitions convicts one alone.

Method: a short hunt here; all of them in ``make test-proof``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.later_profiles import TIERED
from moldau_jepsen.simulation.mutants.judged import ALONE
from moldau_jepsen.simulation.mutants.mutants import MUTANTS, run_mutant, run_trial
from moldau_jepsen.simulation.mutants.planted.registry.tiered import TIERED as BUGS

AWAY = (PlannedFault(kind=FaultKind.STORE_AWAY, begin=0.3, end=2.0, number=0),)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "faults", "rule"),
    [("local-deletion-without-copy", AWAY, "local-range-copied"), ("remote-aborts-omitted", (), "tiered-read")],
)
def test_planted_bugs_are_found_in_short_runs(name: str, faults: tuple[PlannedFault, ...], rule: str) -> None:
    options = replace(TIERED.of_seed(2), fault_seconds=2.0, faults=faults, core_first=False)
    verdict = run_mutant(MUTANTS[name], [2], options=options, passes=lambda seed, options: True)
    assert verdict.found_by == rule, verdict


@pytest.mark.proof
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_planted_bug_is_found(bug) -> None:
    assert run_mutant(bug, range(1, 41)).found


@pytest.mark.proof
@pytest.mark.parametrize("rule", [rule for rule, trial in ALONE.items() if trial.mutant in {bug.name for bug in BUGS}])
def test_each_rule_convicts_alone(rule: str) -> None:
    assert run_trial(rule, range(1, 41)).found
