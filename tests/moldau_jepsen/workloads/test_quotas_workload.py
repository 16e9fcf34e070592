"""Goal: quotas that change under load are obeyed, and the run convicts a broker that errs.

Method: simulated clusters whose clients use more than their quotas allow; planted bugs in the brokers.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau_jepsen.simulation.campaign.options import QUOTAS_PROBABILITY, RunOptions, drawn_quotas
from moldau_jepsen.simulation.campaign.profiles import drawn_options
from moldau_jepsen.simulation.campaign.run import Run
from moldau_jepsen.simulation.campaign.runner import run_seed
from moldau_jepsen.simulation.judge.watch import LogLines
from moldau_jepsen.simulation.mutants.mutants import MUTANTS, run_mutant
from moldau_jepsen.simulation.mutants.pressed import QUOTAS
from moldau_jepsen.world.world import run_world


@pytest.mark.proof
def test_changing_quotas_are_obeyed_under_faults(monkeypatch):
    """Clients are throttled often, and no answer contradicts what its broker knew."""
    verdicts = []
    judge = Run.collect

    def collect(run):
        judge(run)
        verdicts.append(run.clients.quotas.verdict)

    monkeypatch.setattr(Run, "collect", collect)
    result = run_seed(1, replace(QUOTAS.of_seed(1), fault_seconds=7.0))
    assert result.violations == ()
    assert result.draws["quotas"] is True
    assert verdicts[-1].throttled > 20, verdicts[-1].throttled
    assert verdicts[-1].accepted > 200_000, verdicts[-1].accepted


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("quota-pause-not-enforced", "quota-exceeded"),
        ("quota-pause-too-long", "paused-too-long"),
    ],
)
def test_bugs_of_brokers_are_found(name, rule):
    verdict = run_mutant(MUTANTS[name], range(1, 4))
    assert verdict.found, verdict
    assert verdict.found_by == rule


@pytest.mark.proof
@pytest.mark.parametrize("name", [bug.name for bug in MUTANTS.values() if bug.area == "quotas"])
def test_every_bug_of_quotas_is_found(name):
    assert run_mutant(MUTANTS[name], range(1, 9)).found


def test_a_campaign_draws_quotas_for_some_seeds():
    """The draw has a stream of its own, so that it shifts no other draw."""
    assert all(drawn_options(seed).quotas is None for seed in range(40))
    assert RunOptions().quotas is False
    options = RunOptions(quotas=None)
    drawn = [drawn_quotas(seed, options) for seed in range(2_000)]
    assert abs(sum(drawn) / len(drawn) - QUOTAS_PROBABILITY) < 0.03

    async def both(world):
        limited, open_ = (Run(world, replace(options, quotas=each), LogLines()).drawn() for each in (True, False))
        return {key for key in limited if limited[key] != open_[key]}

    assert run_world(both, 3, None) == {"quotas"}
