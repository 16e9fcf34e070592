"""Goal: configurations that promise less are convicted, or a campaign would acquit anything.

Method: each negative control is run as a campaign runs it, and convicted within a few seeds by a checker that may.
"""

from dataclasses import replace

import pytest

from moldau_jepsen.simulation import run_seed
from moldau_jepsen.simulation.controls import CONTROLS, judge_control, run_controls


@pytest.mark.parametrize("name", list(CONTROLS))
def test_each_control_is_convicted(name):
    verdict = judge_control(name, seeds_max=4)
    assert verdict.convicted, f"{name} was acquitted in {verdict.seeds} seeds"
    assert verdict.convicted_by in CONTROLS[name].convicted_by
    assert verdict.detail.startswith("seed ")


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
