"""Goal: a broker that no controller hears is fenced in time, whether its process is down, stands still or is cut off.

Method: whole runs with one long fault each, and a planted bug: a session ends only where its connection was closed. The
connections of such brokers stay open, so the rule must judge by the heartbeats at the controllers.
"""

from dataclasses import replace

import pytest

from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.profiles import OUTAGES
from moldau_jepsen.simulation.campaign.seed import run_seed
from moldau_jepsen.simulation.mutants.mutants import planted
from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS
from support.kit.small_run import SMALL_RUN

ALONE = replace(
    OUTAGES.options,
    only=frozenset({"session-timeout-enforced"}),
    fault_seconds=12.5,
    config_changes_per_second=1.0,
    workload=SMALL_RUN.workload,
)
HOW = {FaultKind.POWER: "is down", FaultKind.PAUSE: "is paused", FaultKind.BLIND: "is cut off"}


@pytest.mark.proof
@pytest.mark.parametrize("kind", HOW, ids=lambda kind: kind.value)
def test_a_broker_without_heartbeats_is_fenced(kind):
    fault = PlannedFault(kind=kind, begin=1.0, end=12.0, number=0)
    options = replace(ALONE, faults=(fault,))
    result = run_seed(1, options)
    assert result.passed, result.violations
    assert any("fencing" in line for line in result.timeline), "the fault took effect"
    with planted(MUTANTS["silent-session-kept"]):
        violations = run_seed(1, options).violations
    assert violations
    for violation in violations:  # the rule may look again before the run ends
        assert "session-timeout-enforced" in violation
        assert f"{HOW[kind]}, nothing was heard of it since " in violation
