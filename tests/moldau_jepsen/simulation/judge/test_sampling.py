"""Goal: a run that is looked at over time is the same run, and its picture shows what happened in it.

Method: short runs with drawn and with chosen faults; the trace with a sampler is compared with the trace without one,
the picture with the plan, the trace's notes and what the judge saw.
"""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation import RunOptions, run_seed
from moldau_jepsen.simulation.campaign.runner import examine
from moldau_jepsen.simulation.campaign.seed import RunSampler
from moldau_jepsen.simulation.campaign.tally import findings_of
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.judge.sampling import SAMPLE_SECONDS
from support.kit.small_run import SMALL_RUN

KILL = PlannedFault(kind=FaultKind.KILL_LEADER, begin=1.0, end=3.0, number=0)
CUT = PlannedFault(kind=FaultKind.HALVES, begin=2.0, end=2.5, number=1)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.proof)])
@pytest.mark.proof
def test_a_run_with_a_sampler_is_the_same_run(seed):
    options = RunOptions(fault_seconds=4.0)
    plain, sampled = run_seed(seed, options, sampled=False), run_seed(seed, options)
    assert sampled.trace_hash == plain.trace_hash
    assert sampled.events == plain.events
    assert sampled.steps == plain.steps
    assert plain.series is None
    assert sampled.series is not None


def test_the_picture_shows_what_happened():
    options = RunOptions(
        fault_seconds=3.5,
        faults=(KILL, CUT),
        pipe=True,
        fault_scope=FaultScope.BROKERS,
        transactions=False,
        synced=True,
    )
    result = run_seed(3, options)
    assert result.passed, result.violations
    series = result.series
    phases = ["faults", "healing", "healthy", "group read readers-at-the-end", "final read"]
    assert [name for _, name in series.phases] == phases
    began = series.phases[0][0]
    assert [(fault.kind, fault.begin_s, fault.end_s) for fault in series.faults] == [
        ("kill-leader", pytest.approx(began + 1), pytest.approx(began + 3, abs=0.001)),
        ("halves", pytest.approx(began + 2), pytest.approx(began + 2.5, abs=0.001)),
    ]
    killed = series.faults[0].detail
    assert series.down == ((killed, pytest.approx(began + 1), pytest.approx(began + 3)),)
    assert series.faults[1].detail == "", "the trace does not name the ends of cut links"
    assert series.until_s == pytest.approx(result.virtual_seconds)

    topics = [(options.workload.topic, options.workload.partitions)]
    topics += [
        (topic, options.pipe_options.partitions) for topic in (options.pipe_options.source, options.pipe_options.target)
    ]
    names = [one.name for one in series.partitions]
    assert names == [f"{topic}-{number}" for topic, count in sorted(topics) for number in range(count)]
    number = int(killed.removeprefix("broker-"))
    led = [
        one
        for one in series.partitions
        if any(state.leader == number for state in one.states if state.since_s < began + 1)
    ]
    assert led, "a leader was killed"
    for one in led:
        assert any(len(state.isr) < state.replicas for state in one.states), "it left the in-sync set"
    for one in series.partitions:
        assert [state.since_s for state in one.states] == sorted(state.since_s for state in one.states)
        assert len(one.states[-1].isr) == one.states[-1].replicas, "all is healed"
        reported = [offset for _, offset in one.high_watermarks if offset is not None]
        assert reported[-1] == max(reported)
    acknowledged = sum(rate for _, rate in series.load.acknowledged) * series.load.acknowledged[1][0]
    assert acknowledged == pytest.approx(result.figures.acknowledged)
    assert series.active[-1].controller >= 0


def test_faults_without_a_target_are_not_drawn():
    """Every broker is killed; who is to be killed next is down already."""
    kills = [PlannedFault(kind=FaultKind.KILL, begin=1.0, end=2.0, number=number) for number in range(8)]
    late = PlannedFault(kind=FaultKind.KILL, begin=2.5, end=2.8, number=8)  # the first in the plan, the last in time
    options = replace(SMALL_RUN, fault_seconds=3.0, faults=(late, *kills), fault_scope=FaultScope.BROKERS, synced=True)
    result = run_seed(3, options)
    drawn = Counter(fault.kind for fault in result.series.faults)
    assert drawn == Counter(result.faults_by_kind)
    assert 0 < drawn["kill"] < result.planned_by_kind["kill"]
    assert {fault.detail for fault in result.series.faults} <= {"broker-1", "broker-2", "broker-3"}
    assert all(fault.detail for fault in result.series.faults), "each names the affected nodes"


@pytest.mark.proof
def test_a_failed_seed_with_a_counting_bug_is_the_same_run_again():
    """The bug skips each tenth chunk of records: planted once for both runs, it strikes elsewhere in the second."""
    result = examine(3, RunOptions(fault_seconds=2.0, faults=()), mutant="consumer-skips")
    assert not result.passed
    found = findings_of(result)
    assert "not-repeatable" not in [finding.kind for finding in found]
    assert len(found) == len(result.anomalies)
    assert all(finding.operations for finding in found)
    assert result.series is not None


@pytest.mark.proof
def test_a_cluster_is_looked_at_ten_times_a_second_and_no_more(monkeypatch):
    looks = []
    look = RunSampler._look_at_controllers
    monkeypatch.setattr(RunSampler, "_look_at_controllers", lambda self, now: (looks.append(now), look(self, now)))
    result = run_seed(4, RunOptions(fault_seconds=3.0))
    assert result.steps > 20 * len(looks)
    assert all(after - before >= SAMPLE_SECONDS * 0.999 for before, after in itertools.pairwise(looks))
    assert len(looks) > 3.0 / SAMPLE_SECONDS / 2
