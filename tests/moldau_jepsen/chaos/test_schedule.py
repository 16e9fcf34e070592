"""Goal: the plan of faults is repeatable, keeps to its windows, leaves calm ones, and strikes the nodes that it names.

Method: properties over drawn seeds and sizes.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau_jepsen.chaos.nemesis.schedule import CHURN, TARGETS, choose_nodes, plan_faults
from moldau_jepsen.faults.kinds import CHAOS_KINDS, FaultKind, Target


@given(st.integers(0, 2**32), st.lists(st.sampled_from(CHAOS_KINDS), unique=True))
def test_a_seed_names_one_plan_and_faults_stay_in_their_windows(seed: int, kinds: list[FaultKind]) -> None:
    plan = plan_faults(random.Random(seed), duration_ms=300_000, kinds=kinds)
    assert plan == plan_faults(random.Random(seed), duration_ms=300_000, kinds=kinds)
    assert bool(plan) == bool(kinds)
    for fault in plan:
        assert fault.kind in kinds
        assert fault.target in TARGETS[fault.kind]
        assert fault.begin < fault.end
        assert fault.begin // 30 == fault.end // 30


@given(
    st.integers(0, 2**32),
    st.floats(1_000, 200_000),
    st.lists(st.sampled_from(CHAOS_KINDS), unique=True, min_size=1),
    st.booleans(),
)
def test_no_run_is_calm_from_end_to_end(seed: int, duration_ms: float, kinds: list[FaultKind], churn: bool) -> None:
    plan = plan_faults(random.Random(seed), duration_ms=duration_ms, kinds=kinds, churn=churn)
    assert plan
    assert all(0 <= fault.begin < fault.end <= duration_ms / 1000 for fault in plan)
    if churn and set(kinds) - set(CHURN):
        assert {fault.kind for fault in plan} - set(CHURN), "what lasts is no reason for calm windows"


def test_calm_alone_is_what_was_asked_for() -> None:
    assert plan_faults(random.Random(1), duration_ms=90_000, kinds=list(CHAOS_KINDS), calm_share=1.0) == ()
    assert plan_faults(random.Random(1), duration_ms=90_000, kinds=[]) == ()
    assert plan_faults(random.Random(1), duration_ms=0, kinds=list(CHAOS_KINDS)) == ()


def test_a_quarter_of_the_windows_is_calm() -> None:
    plan = plan_faults(random.Random(1), duration_ms=30_000 * 2_000, kinds=list(CHAOS_KINDS))
    affected = len({fault.begin // 30 for fault in plan})
    assert 0.70 < affected / 2_000 < 0.80


@pytest.mark.parametrize("calm_share", [-0.1, 1.1])
def test_impossible_shares_are_refused(calm_share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        plan_faults(random.Random(1), duration_ms=1, kinds=[], calm_share=calm_share)


@given(st.integers(1, 9), st.sampled_from(Target), st.integers(0, 1000))
def test_targets_have_the_size_they_are_named_for(count: int, target: Target, seed: int) -> None:
    nodes = list(range(1, count + 1))
    chosen = choose_nodes(target, nodes, [count], random.Random(seed))
    sizes = {
        Target.ONE: 1,
        Target.LEADERS: 1,
        Target.MINORITY: max(1, (count - 1) // 2),
        Target.MAJORITY: count // 2 + 1,
        Target.RING: count,
        Target.ALL: count,
    }
    assert len(set(chosen)) == len(chosen) == sizes[target]
    assert set(chosen) <= set(nodes)
    if target is Target.LEADERS:
        assert chosen == [count]
