"""Goal: a run that is made shorter than its plan of faults heals, and is judged, without further faults.

Method: the smallest run, with one fault within its time and one after it.
"""

from __future__ import annotations

from dataclasses import replace

from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation import run_seed
from support.kit.small_run import SMALL_RUN


def test_no_fault_strikes_after_the_healing_began() -> None:
    """A kind of run plans for its own length: later faults ended brokers that the final reads needed."""
    faults = tuple(
        PlannedFault(kind=kind, begin=begin, end=begin + 5.0, number=number)
        for number, (kind, begin) in enumerate([(FaultKind.SLOW, 0.1), (FaultKind.KILL, 0.5), (FaultKind.KILL, 2.0)])
    )
    result = run_seed(1, replace(SMALL_RUN, fault_seconds=0.5, faults=faults))
    assert result.planned_by_kind == {"slow": 1}
    assert result.plan == faults[:1]
    assert result.passed, result.violations
