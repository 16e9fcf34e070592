"""Goal: a plan shrinks to the faults that matter, simple ones, that fail in the same way, within the runs allowed.

Method: runs whose outcome is a function of the plan, so that thousands of them cost nothing. The command's test shrinks
a planted bug in real runs.
"""

import random
from dataclasses import replace

import pytest

from moldau_jepsen.faults.kinds import SIMULATED_KINDS, FaultKind, PlannedFault
from moldau_jepsen.simulation import Result, RunOptions
from moldau_jepsen.simulation.campaign import runner, shrink
from moldau_jepsen.simulation.campaign.runner import examine, in_detail, kit_findings, run_seeds
from moldau_jepsen.simulation.campaign.shrink import LENGTHS_SECONDS, shrink_seed
from support.proof import proof_beyond

BLANK = Result(
    seed=1,
    trace_hash="",
    violations=(),
    timeline=(),
    virtual_seconds=1.0,
    wall_seconds=1.0,
    steps=1,
    events=1,
    faults=0,
    acknowledged=0,
    polled=0,
)
LOST = "at the end: lost-write: gone"


def plan(count, draw):
    faults = []
    for number in range(count):
        begin = draw.uniform(0, 12)
        kind = draw.choice(list(SIMULATED_KINDS))
        faults.append(PlannedFault(kind=kind, begin=begin, end=begin + draw.uniform(0.3, 6), number=number))
    return tuple(sorted(faults, key=lambda fault: fault.begin))


@pytest.fixture
def judged(monkeypatch):
    """Makes a function of the plan the outcome of runs; returns how to set it, and the plans that were run."""
    ran = []

    def judge_by(outcome):
        def run(seed, options):
            ran.append(options.faults)
            found = outcome(options.faults)
            return replace(BLANK, seed=seed, violations=(found,) if found else ())

        monkeypatch.setattr(shrink, "run_seed", run)
        return ran

    return judge_by


@pytest.mark.parametrize("seed", proof_beyond(2, range(8)))
@pytest.mark.parametrize("needed", [1, 2, 3])
def test_needed_faults_remain_and_are_simple(seed, needed, judged):
    draw = random.Random(seed * 10 + needed)
    faults = plan(20, draw)
    wanted = frozenset(fault.number for fault in draw.sample(faults, needed))
    ran = judged(lambda tried: LOST if wanted <= {fault.number for fault in tried} else "")
    shrunk = shrink_seed(5, RunOptions(faults=faults), attempts_max=400)
    assert {fault.number for fault in shrunk.faults} == wanted
    assert all(fault.begin == int(fault.begin) for fault in shrunk.faults)
    own = {fault.number: fault.end - fault.begin for fault in faults}
    for fault in shrunk.faults:
        assert fault.end - fault.begin == pytest.approx(min(LENGTHS_SECONDS[0], own[fault.number]))
    assert shrunk.attempts == len(ran) == len(set(ran)) <= 200
    assert (shrunk.faults_before, shrunk.found_by) == (20, "lost-write")


def test_times_that_matter_are_kept(judged):
    fault = PlannedFault(kind=FaultKind.CUT, begin=3.625, end=9.25, number=4)
    other = PlannedFault(kind=FaultKind.KILL, begin=1.0, end=2.0, number=0)
    judged(lambda tried: LOST if any(one.number == 4 and one.end > 7 and one.begin > 3.5 for one in tried) else "")
    shrunk = shrink_seed(5, RunOptions(faults=(other, fault)))
    assert [one.number for one in shrunk.faults] == [4]
    assert 3.5 < shrunk.faults[0].begin < 3.63
    assert shrunk.faults[0].end == pytest.approx(shrunk.faults[0].begin + 4.0)


def test_another_failure_is_not_this_one(judged):
    faults = plan(6, random.Random(1))

    def outcome(tried):
        if len(tried) >= 4:
            return LOST
        return "1.0 s: one-leader: brokers 1 and 2 lead"

    judged(outcome)
    shrunk = shrink_seed(5, RunOptions(faults=faults), attempts_max=100)
    assert len(shrunk.faults) == 4
    assert shrunk.result.violations == (LOST,)


def test_runs_are_bounded_and_reported(judged):
    faults = plan(20, random.Random(2))
    ran = judged(lambda tried: LOST if len(tried) >= 2 else "")
    reported = []
    shrunk = shrink_seed(5, RunOptions(faults=faults), attempts_max=6, on_attempt=lambda *words: reported.append(words))
    assert len(ran) == shrunk.attempts == 6
    assert reported == [(number + 1, size) for number, (_, size) in enumerate(reported)]
    assert reported[-1][1] == len(shrunk.faults) < 20


def test_faults_that_are_not_needed_at_all(judged):
    judged(lambda _: LOST)
    shrunk = shrink_seed(5, RunOptions(faults=plan(9, random.Random(3))))
    assert shrunk.faults == ()
    assert shrunk.attempts == 2


def test_a_run_that_passes_is_not_shrunk(judged):
    judged(lambda _: "")
    assert shrink_seed(5, RunOptions(faults=plan(9, random.Random(3)))) is None


def test_a_failed_seed_is_run_again_in_detail_with_equal_hashes(monkeypatch):
    """A failed seed is run again in detail, and must be the same run."""
    hashes = ["one", "one", "one", "other"]

    def run(seed, _, *, detailed=False):
        return replace(BLANK, seed=seed, violations=(LOST,), trace_hash=hashes.pop(0), timeline=(str(detailed),))

    monkeypatch.setattr(runner, "run_seed", run)
    same = examine(1)
    assert (same.violations, same.timeline) == ((LOST,), ("True",))
    other = examine(1)
    assert other.violations == (LOST, "at the end: not-repeatable: traces one and other of one seed")


def test_findings_survive_a_broken_detailed_run(monkeypatch):
    def run(seed, _, *, detailed=False):
        if detailed:
            raise LookupError("no such\nwitness")
        return replace(BLANK, seed=seed, violations=(LOST,), trace_hash="one", timeline=("began",))

    monkeypatch.setattr(runner, "run_seed", run)
    found = examine(1)
    assert found.violations == (LOST, "at the end: kit-failed: LookupError: no such witness")
    assert found.trace_hash == "one"
    assert found.timeline[0] == "began"
    assert any("Traceback" in line for line in found.timeline)
    assert kit_findings(found) == ["at the end: kit-failed: LookupError: no such witness"]


def test_a_detailed_run_that_passes_is_not_the_same_run(monkeypatch):
    monkeypatch.setattr(runner, "run_seed", lambda seed, _, **__: replace(BLANK, seed=seed, trace_hash="other"))
    again = in_detail(replace(BLANK, violations=(LOST,), trace_hash="one"), RunOptions())
    assert again.violations == (LOST, "at the end: not-repeatable: traces one and other of one seed")
    assert kit_findings(again) == [again.violations[1]]


def test_a_broken_search_returns_its_smallest_plan(judged, monkeypatch):
    def give_up(search):
        raise AssertionError("Hypothesis gave up")

    monkeypatch.setattr(shrink, "_simplify", give_up)
    faults = plan(9, random.Random(3))
    judged(lambda tried: LOST if faults[0] in tried else "")
    shrunk = shrink_seed(5, RunOptions(faults=faults))
    assert shrunk.faults == faults[:1]
    assert shrunk.result.violations == (LOST, "at the end: kit-failed: AssertionError: Hypothesis gave up")


def test_a_simple_beginning_wins_though_its_length_is_rounded_up(judged):
    begin, simple = 3.992342224321549, LENGTHS_SECONDS[0]
    assert (begin + simple) - begin < simple
    judged(lambda tried: LOST if tried else "")
    shrunk = shrink_seed(5, RunOptions(faults=(PlannedFault(kind=FaultKind.CUT, begin=begin, end=7.0, number=0),)))
    assert [(fault.begin, fault.end) for fault in shrunk.faults] == [(3.0, 3.0 + simple)]


def test_an_unchanged_plan_is_equal_despite_rounded_sums(judged):
    """A fault may end at a number that its beginning and its length do not add up to."""
    begin, end = 0.2, 0.9
    assert begin + (end - begin) != end
    fault = PlannedFault(kind=FaultKind.CUT, begin=begin, end=end, number=0)
    judged(lambda tried: LOST if tried == (fault,) else "")
    shrunk = shrink_seed(5, RunOptions(faults=(fault,)))
    assert shrunk.faults == (fault,)
    assert shrunk.result.violations == (LOST,)


def test_a_run_that_raises_is_a_finding(monkeypatch):
    def run(*_, **__):
        raise LookupError("no such node")

    monkeypatch.setattr(runner, "run_seed", run)
    found = examine(4, mutant="sequence-numbers-ignored")
    assert found.violations == ("at the end: kit-failed: LookupError: no such node",)
    assert any("no such node" in line for line in found.timeline)
    assert found.replay_command == "moldau sim run --seed 4 --mutant sequence-numbers-ignored"
    with pytest.raises(KeyError):
        examine(4, mutant="gremlin")


def test_seeds_run_in_workers_that_end_when_the_rest_is_dropped():
    """Seeds run in other processes, which end when the remaining seeds are dropped."""
    options = RunOptions(fault_seconds=0.5, kinds=(FaultKind.SLOW,))
    results = run_seeds(iter(range(1, 10**9)), processes=1, options=options)
    assert next(results).seed == 1
    results.close()
    assert [result.seed for result in run_seeds((), processes=1)] == []
