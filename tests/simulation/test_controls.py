"""Goal: configurations that promise less are convicted, or a campaign would acquit anything.

Method: each negative control is run as a campaign runs it, and convicted within a few seeds by a checker of histories
that may.
"""

from dataclasses import replace

import pytest

from moldau_jepsen.checkers import AnomalyKind
from moldau_jepsen.simulation import run_seed
from moldau_jepsen.simulation.controls import CONTROLS, judge_control, run_controls
from moldau_jepsen.simulation.mutants import finder_of


@pytest.mark.parametrize("name", list(CONTROLS))
def test_each_control_is_convicted(name):
    verdict = judge_control(name, seeds_max=4)
    assert verdict.convicted, f"{name} was acquitted in {verdict.seeds} seeds"
    assert verdict.convicted_by in CONTROLS[name].convicted_by
    assert verdict.detail.startswith("seed ")


def test_checkers_of_histories_are_on_trial_and_nothing_else():
    checkers = {kind.value for kind in AnomalyKind} - {AnomalyKind.STUCK.value}
    for control in CONTROLS.values():
        assert set(control.convicted_by) <= checkers, control.name
        assert control.options.by_history, control.name


def test_rules_would_convict_an_unclean_election_before_any_client_saw_it():
    options = CONTROLS["unclean-election"].options
    by_rule = run_seed(1, replace(options, by_history=False)).violations
    by_history = run_seed(1, options)
    assert finder_of(by_rule[0]) in ("clean-election", "leader-completeness", "log-agreement")
    assert {finder_of(violation) for violation in by_history.violations} == {
        anomaly.kind.value for anomaly in by_history.anomalies
    }


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("name", list(CONTROLS))
def test_the_nodes_of_a_control_take_their_settings(name, seed):
    """A cluster whose nodes refuse what they are given convicts nothing, and looks like an acquittal."""
    short = replace(CONTROLS[name].options, fault_seconds=0.1, faults=())
    assert not [found for found in run_seed(seed, short).violations if "node-failed" in found]


def test_a_control_that_keeps_its_promise_is_acquitted():
    """Otherwise a conviction would say nothing: the same faults with everything as it should be."""
    verdicts = [judge_control_as_promised(name) for name in ("acks-1", "no-idempotence")]
    assert verdicts == [(), ()]


def judge_control_as_promised(name):

    options = CONTROLS[name].options
    return run_seed(1, replace(options, workload=replace(options.workload, producer={}))).violations


def test_verdicts_are_json_values_and_unknown_names_are_refused():
    verdict = next(run_controls(["unclean-election"], seeds_max=4, processes=1))
    assert verdict.to_json()["name"] == "unclean-election"
    assert verdict.convicted
    with pytest.raises(KeyError):
        list(run_controls(["nothing"]))
