"""Goal: rights, passwords and tokens that change under load are obeyed, and the run convicts a broker that errs.

Method: simulated clusters with an authorizer, node identities and logins; planted bugs in the brokers.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from moldau_jepsen.simulation.campaign.options import SECURITY_PROBABILITY, RunOptions, drawn_security
from moldau_jepsen.simulation.campaign.profiles import drawn_options
from moldau_jepsen.simulation.campaign.run import Run
from moldau_jepsen.simulation.campaign.runner import run_seed
from moldau_jepsen.simulation.judge.watch import LogLines
from moldau_jepsen.simulation.mutants.mutants import MUTANTS, run_mutant
from moldau_jepsen.simulation.mutants.pressed import RIGHTS
from moldau_jepsen.workloads.access.rights import TOPICS, drawn_entry, opposite_of
from moldau_jepsen.world.world import run_world


@pytest.mark.proof
def test_changing_rights_are_obeyed_under_faults(monkeypatch):
    """Both answers are frequent, and no answer contradicts what its broker knew."""
    verdicts = []
    judge = Run.collect

    def collect(run):
        judge(run)
        verdicts.append(run.clients.rights.verdict)

    monkeypatch.setattr(Run, "collect", collect)
    result = run_seed(1, RIGHTS.of_seed(1))
    assert result.violations == ()
    assert result.draws["security"] is True
    assert min(verdicts[-1].permitted, verdicts[-1].denied) > 50, verdicts[-1]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("acl-deny-ignored", " of guarded"),
        ("token-never-expires", "login of "),
        ("session-outlives-token", "in a session whose token had expired"),
    ],
)
def test_bugs_of_brokers_are_found(name, place):
    verdict = run_mutant(MUTANTS[name], range(1, 9))
    assert verdict.found, verdict
    assert verdict.found_by == "permitted-though-denied"
    assert place in verdict.detail


@pytest.mark.proof
@pytest.mark.parametrize("name", [bug.name for bug in MUTANTS.values() if bug.area == "security"])
def test_every_bug_of_security_is_found(name):
    assert run_mutant(MUTANTS[name], range(1, 9)).found


def test_a_campaign_draws_security_for_some_seeds():
    """The draw has a stream of its own, so that it shifts no other draw."""
    assert all(drawn_options(seed).security is None for seed in range(40))
    assert RunOptions().security is False
    options = RunOptions(security=None)
    drawn = [drawn_security(seed, options) for seed in range(2_000)]
    assert abs(sum(drawn) / len(drawn) - SECURITY_PROBABILITY) < 0.03

    async def both(world):
        secured, open_ = (Run(world, replace(options, security=each), LogLines()).drawn() for each in (True, False))
        return {key for key in secured if secured[key] != open_[key]}

    assert run_world(both, 3, None) == {"security"}


def test_no_drawn_acl_stops_other_workloads():
    """Their clients have no users of their own, so what forbids all users all names would stop them too."""
    draw = random.Random(1)
    entries = [drawn_entry(draw) for _ in range(10_000)]
    denials = [entry for entry in (*entries, *map(opposite_of, entries)) if entry.permission == "deny"]
    assert {entry.name for entry in denials if entry.principal == "User:*"} > set(TOPICS)
    assert all(entry.name != "*" for entry in denials if entry.principal == "User:*")
    assert any(entry.name == "*" for entry in denials)
