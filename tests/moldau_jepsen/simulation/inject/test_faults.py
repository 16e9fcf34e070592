"""Fault plans: the same seed gives the same plan, every fault lies within the run, swarms differ."""

import random

from moldau_jepsen.faults.kinds import SIMULATED_KINDS, FaultKind
from moldau_jepsen.simulation.inject.faults import plan_faults


def test_plans_are_reproducible_and_within_bounds():
    kinds_seen = set()
    sizes = set()
    for seed in range(200):
        plan = plan_faults(random.Random(seed), 20.0)
        assert plan == plan_faults(random.Random(seed), 20.0)
        assert plan, "a run without any fault proves little"
        assert [fault.begin for fault in plan] == sorted(fault.begin for fault in plan)
        assert all(0 <= fault.begin < fault.end <= 20.0 for fault in plan)
        assert len({fault.number for fault in plan}) == len(plan)
        kinds_seen.add(frozenset(fault.kind for fault in plan))
        sizes.add(len(plan))
    assert len(kinds_seen) > 150
    assert set().union(*kinds_seen) == set(SIMULATED_KINDS)
    assert min(sizes) <= 16 < 60 < max(sizes)


def test_only_enabled_kinds_are_planned():
    for seed in range(50):
        plan = plan_faults(random.Random(seed), 20.0, (FaultKind.KILL, FaultKind.CUT))
        assert {fault.kind for fault in plan} <= {FaultKind.KILL, FaultKind.CUT}
