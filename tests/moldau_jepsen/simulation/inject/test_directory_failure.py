"""Goal: a run in which a log directory fails that no fault affected is a failed run.

Method: a fault fails a directory, and the kit is made to forget that it did.
"""

from dataclasses import replace

import pytest

from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.seed import run_seed
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.simulation.mutants.mutants import finder_of
from support.kit.small_run import SMALL_RUN

FAULTS = (PlannedFault(kind=FaultKind.DIRECTORY, begin=0.5, end=1.5, number=0),)
OPTIONS = replace(SMALL_RUN, directories=2, fault_seconds=1.5, fault_scope=FaultScope.BROKERS, faults=FAULTS)


@pytest.mark.proof
def test_a_directory_that_fails_of_itself_convicts(monkeypatch):
    explained = run_seed(3, OPTIONS)
    assert explained.passed, explained.violations
    monkeypatch.setattr(FaultInjector, "may_fail", lambda *_: [])
    result = run_seed(3, OPTIONS)
    assert not result.passed
    assert {finder_of(violation) for violation in result.violations} == {"directory-failed"}
    assert "which no fault affected" in result.violations[0]
