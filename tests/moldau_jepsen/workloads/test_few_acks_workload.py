"""Goal: campaigns draw producers with acks=0 and acks=1 and shift no other draw; their runs are clean, and not empty.

Method: the draws of many seeds, and short runs of the profile.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau_jepsen.simulation.campaign.later_profiles import FEW_ACKS
from moldau_jepsen.simulation.campaign.options import RunOptions, drawn_few_acks, drawn_streams
from moldau_jepsen.simulation.campaign.profiles import drawn_options, drawn_profile
from moldau_jepsen.simulation.campaign.runner import run_seed
from moldau_jepsen.simulation.mutants.mutants import MUTANTS, run_mutant, run_trial
from moldau_jepsen.workloads.acknowledgements.few_acks import FewAcksWorkload


def test_some_seeds_of_a_campaign_have_few_acknowledgements() -> None:
    seeds = range(400)
    assert 40 < sum(drawn_few_acks(seed, drawn_options(seed)) for seed in seeds) < 120
    assert 3 < sum(drawn_profile(seed) is FEW_ACKS for seed in seeds) < 30


def test_a_written_out_run_has_none_and_shifts_no_draw() -> None:
    assert not any(drawn_few_acks(seed, RunOptions()) for seed in range(50))
    beside = replace(RunOptions(), few_acks=True, streams=None)
    alone = replace(beside, few_acks=False)
    assert [drawn_streams(seed, beside) for seed in range(50)] == [drawn_streams(seed, alone) for seed in range(50)]


@pytest.mark.proof
def test_a_short_run_has_producers_of_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[FewAcksWorkload] = []
    verdict = FewAcksWorkload.verdict

    def observed(self: FewAcksWorkload) -> list[str]:
        seen.append(self)
        return verdict(self)

    monkeypatch.setattr(FewAcksWorkload, "verdict", observed)
    result = run_seed(3, replace(FEW_ACKS.of_seed(3), fault_seconds=4.0, faults=()))
    assert result.violations == ()
    (workload,) = seen
    kinds = {(each.acks, each.retries, each.in_flight) for each in workload.sends}
    assert len(kinds) >= 3, kinds
    assert {each.acks for each in workload.sends if each.is_acknowledged} == {0, 1}
    assert workload.reads
    assert sum(len(read.records) for read in workload.final) > 100


@pytest.mark.proof
def test_the_rule_convicts_alone() -> None:
    assert run_trial("few-acks", range(1, 4)).found


@pytest.mark.proof
@pytest.mark.parametrize("name", ["one-acknowledgement-before-the-append", "batch-without-answer-sent-again"])
def test_planted_bugs_are_found_by_this_rule_alone(name: str) -> None:
    assert run_mutant(MUTANTS[name], range(1, 4)).found_by == "few-acks"
