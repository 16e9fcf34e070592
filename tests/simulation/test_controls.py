"""Goal: configurations that promise less are convicted, or a campaign would acquit anything.

Method: each negative control is run as a campaign runs it, and convicted within a few seeds by a checker of histories
that may.
"""

from dataclasses import replace

import pytest

from moldau_jepsen.checkers import Anomaly, AnomalyKind
from moldau_jepsen.simulation import run_seed
from moldau_jepsen.simulation.campaign import controls, outside_controls
from moldau_jepsen.simulation.campaign.clients import VIOLATIONS_SHOWN_MAX as SHOWN_MAX
from moldau_jepsen.simulation.campaign.clients import shown_of
from moldau_jepsen.simulation.campaign.controls import CONTROLS, control_names, judge_control, run_controls
from moldau_jepsen.simulation.campaign.outside_controls import OUTSIDE_CONTROLS, STOCK_PYSYNCOBJ
from moldau_jepsen.simulation.campaign.seed import kit_failed
from moldau_jepsen.simulation.mutants.mutants import finder_of

pytestmark = pytest.mark.proof


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


def test_rules_convict_an_unclean_election_before_clients():
    """Rules would convict an unclean election before any client saw it."""
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
    """A cluster whose nodes refuse their input convicts nothing, and looks like an acquittal."""
    short = replace(CONTROLS[name].options, fault_seconds=0.1, faults=())
    assert not [found for found in run_seed(seed, short).violations if "node-failed" in found]


def test_a_control_that_keeps_its_promise_is_acquitted():
    """Runs the same faults on a correct cluster: without it a conviction would prove nothing."""
    verdicts = [judge_control_as_promised(name) for name in ("acks-1", "no-idempotence")]
    assert verdicts == [(), ()]


def judge_control_as_promised(name):

    options = CONTROLS[name].options
    return run_seed(1, replace(options, workload=replace(options.workload, producer={}))).violations


def test_many_findings_do_not_hide_those_that_convict():
    """Many findings of one kind do not hide the findings that convict."""
    others = [
        Anomaly(kind=AnomalyKind.DUPLICATE, allowed=False, text=f"value {number}") for number in range(2 * SHOWN_MAX)
    ]
    lost = [Anomaly(kind=AnomalyKind.LOST_WRITE, allowed=False, text=f"value {number}") for number in (50, 51)]
    shown = shown_of([*others, *lost])
    assert shown == [*others[: SHOWN_MAX - 1], lost[0]]
    result = replace(kit_failed(1, LookupError()), violations=tuple(f"at the end: {one.kind.value}: " for one in shown))
    assert controls._convicting(CONTROLS["acks-1"], result) is not None
    assert shown_of(others) == others[:SHOWN_MAX]
    assert shown_of([others[0], *lost]) == [others[0], *lost]
    assert shown_of([]) == []


def test_verdicts_are_json_values_and_unknown_names_are_refused():
    verdict = next(run_controls(["unclean-election"], seeds_max=4, processes=1))
    assert verdict.to_json()["name"] == "unclean-election"
    assert verdict.convicted
    with pytest.raises(KeyError):
        list(run_controls(["nothing"]))


# --- controls that are plugged in


def test_stock_pysyncobj_is_convicted_in_every_campaign():
    """It is one of the controls of a campaign, and a worker process of a campaign convicts it, from seed 1 on."""
    assert "stock-pysyncobj" in control_names()
    (verdict,) = run_controls(["stock-pysyncobj"], processes=1)
    assert verdict.convicted, verdict
    assert verdict.convicted_by == "state-machine-safety"
    assert verdict.seeds <= STOCK_PYSYNCOBJ.seeds_max
    assert verdict.detail.startswith(f"seed {verdict.seeds}: at ")
    assert "applies" in verdict.detail
    assert not verdict.skipped


def test_moldau_without_its_test_tree_reports_the_skip(monkeypatch, tmp_path):
    """An installed Moldau without the test tree reports why it skips."""
    monkeypatch.setattr(outside_controls, "TEST_TREE", tmp_path)
    verdict = judge_control("stock-pysyncobj")
    assert not verdict.convicted
    assert verdict.seeds == 0
    assert "support/raft/stock_pysyncobj.py, belongs to the tests of a working copy" in verdict.skipped


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    lacking = replace(STOCK_PYSYNCOBJ, needs=("pysyncobj", "no_such_library"))
    monkeypatch.setitem(OUTSIDE_CONTROLS, "stock-pysyncobj", lacking)
    assert judge_control("stock-pysyncobj").skipped == "not installed: no_such_library"


@pytest.mark.parametrize(
    ("body", "convicted", "said"),
    [
        ("return ('state-machine-safety', f'forked at {seed}') if seed == 3 else None", True, "seed 3: forked at 3"),
        ("return ('stuck', 'no leader')", False, ""),
        ("return None", False, ""),
        ("raise LookupError('gremlin')", False, "at the end: kit-failed: LookupError: gremlin"),
    ],
)
def test_only_the_rules_of_an_outside_control_convict_it(monkeypatch, tmp_path, body, convicted, said):
    module = f"harness_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(f"def convict(seed):\n    {body}\n")
    monkeypatch.setattr(outside_controls, "TEST_TREE", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(OUTSIDE_CONTROLS, "stock-pysyncobj", replace(STOCK_PYSYNCOBJ, module=module))
    verdict = judge_control("stock-pysyncobj", seeds_max=5)
    assert (verdict.convicted, verdict.detail) == (convicted, said)
    assert not verdict.skipped


def test_a_kit_that_breaks_in_a_control_convicts_no_run(monkeypatch):
    def broken(*_):
        raise LookupError("gremlin")

    monkeypatch.setattr(controls, "run_seed", broken)
    verdict = judge_control("acks-1")
    assert not verdict.convicted
    assert verdict.detail == "seed 1: at the end: kit-failed: LookupError: gremlin"
    assert verdict.seeds == 1
