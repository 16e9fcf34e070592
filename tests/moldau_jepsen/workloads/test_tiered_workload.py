"""Goal: campaigns draw tiered topics and shift no other draw; their runs are clean, and not empty.

Method: the draws of many seeds, and runs of the profile whose situations are counted.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau_jepsen.coverage.coverage import SITUATIONS
from moldau_jepsen.coverage.situations import Situation
from moldau_jepsen.simulation.campaign.later_profiles import TIERED
from moldau_jepsen.simulation.campaign.options import Result, RunOptions
from moldau_jepsen.simulation.campaign.profiles import drawn_options, drawn_profile
from moldau_jepsen.simulation.campaign.runner import run_seed
from moldau_jepsen.simulation.inject.faults import NEEDS_STORE
from moldau_jepsen.workloads.tiered.workload import TieredWorkload

SEEN_ALWAYS = {Situation.SEGMENT_COPIED, Situation.LOCAL_SEGMENT_DELETED, Situation.REMOTE_READ}


def situations_of(result: Result) -> dict[Situation, int]:
    """Returns the counted situations of a run."""
    found = {one.after: count for one, count in result.coverage.transitions.items() if one.machine == SITUATIONS}
    return {situation: found.get(situation.value, 0) for situation in Situation}


def test_some_seeds_of_a_campaign_have_tiered_topics() -> None:
    seeds = range(400)
    assert 4 < sum(drawn_profile(seed) is TIERED for seed in seeds) < 40
    assert all(drawn_options(seed).tiered is (drawn_profile(seed) is TIERED) for seed in seeds)
    assert not RunOptions().tiered


def test_the_profile_strikes_the_store() -> None:
    drawn = {fault.kind for seed in range(20) for fault in TIERED.of_seed(seed).faults or ()}
    assert drawn >= set(NEEDS_STORE)


def test_a_short_run_copies_deletes_and_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[TieredWorkload] = []
    verdict = TieredWorkload.verdict

    def observed(self: TieredWorkload) -> list[str]:
        seen.append(self)
        return verdict(self)

    monkeypatch.setattr(TieredWorkload, "verdict", observed)
    result = run_seed(3, replace(TIERED.of_seed(3), fault_seconds=3.5, faults=(), core_first=False))
    assert result.violations == ()
    counted = situations_of(result)
    assert all(counted[situation] for situation in SEEN_ALWAYS), counted
    (workload,) = seen
    notes = workload.notes
    assert {read.is_committed for read in notes.reads} == {True, False}
    assert sum(len(read.records) for read in notes.reads) > 200
    assert {write.fate.value for write in notes.writes} >= {"committed", "aborted"}


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(1, 9))
def test_runs_with_faults_are_clean(seed: int) -> None:
    result = run_seed(seed, TIERED.of_seed(seed))
    assert result.violations == ()
    assert all(situations_of(result)[situation] for situation in SEEN_ALWAYS)
