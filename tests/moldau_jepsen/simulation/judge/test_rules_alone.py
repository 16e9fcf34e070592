"""Every rule and every checker has a planted bug that it convicts alone; how one is asked alone.

The names are read off the sources, so that a new rule without a trial fails here. That each trial ends in a conviction
is measured by ``moldau sim mutants`` (docs/mutants.md); some that are quick are run here.
"""

import ast
import re
from pathlib import Path

import pytest

import moldau_jepsen
from moldau_jepsen.checkers import AnomalyKind
from moldau_jepsen.checkers.group.share import ShareAnomalyKind
from moldau_jepsen.checkers.group.streams import StreamsAnomalyKind
from moldau_jepsen.checkers.quotas import EXCEEDED, TOO_LONG, WITHOUT_LIMIT
from moldau_jepsen.checkers.rights import DENIED, PERMITTED
from moldau_jepsen.simulation.campaign.options import RunOptions
from moldau_jepsen.simulation.judge.invariants import ClusterInvariants
from moldau_jepsen.simulation.mutants import mutants
from moldau_jepsen.simulation.mutants.judged import ALONE
from moldau_jepsen.simulation.mutants.mutants import MUTANTS, run_mutant, run_trial

SOURCES = Path(moldau_jepsen.__file__).parent
FIGURES = {"G0"}
"""Anomalies that every configuration allows."""
OF_THE_KIT = {"kit-failed"}
"""Rules whose violation convicts the kit and no cluster."""


def names_in(source):
    """Yields the rules whose violations a module reports, and the checkers that it names at the end of a run."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="violated" | "_violated"), args=[ast.Constant(value=str(name)), *_]):
                yield name
            case ast.Call(func=ast.Name(id="found_by"), args=[ast.Constant(value=str(name)), *_]):
                yield name
            case ast.Constant(value=str(text)):
                yield from re.findall(r"^at the end: ([a-z-]+):", text)


def test_every_rule_and_checker_has_a_trial():
    found = {name for path in SOURCES.rglob("*.py") for name in names_in(path.read_text())}
    assert {"one-controller", "watermark-monotone", "topic-recreated", "stuck"} <= found
    found |= {kind.value for kinds in (AnomalyKind, ShareAnomalyKind, StreamsAnomalyKind) for kind in kinds}
    found |= {PERMITTED, DENIED, EXCEEDED, WITHOUT_LIMIT, TOO_LONG}
    assert found - FIGURES - OF_THE_KIT == set(ALONE)


def test_every_trial_names_a_planted_bug():
    assert {trial.mutant for trial in ALONE.values()} <= set(MUTANTS)


def test_a_judge_of_one_rule_skips_the_others():
    """A judge that is made for one rule skips the other rules."""
    judge = ClusterInvariants(lambda: 1.0, {"one-leader"})
    judge.violated("one-controller", "two")
    judge.violated("one-leader", "two")
    assert [violation.invariant for violation in judge.violations] == ["one-leader"]


def test_options_without_a_choice_ask_everything():
    assert RunOptions().may_convict("stuck")
    assert RunOptions(only=frozenset({"stuck"})).may_convict("stuck")
    assert not RunOptions(only=frozenset({"stuck"})).may_convict("unseen")


@pytest.mark.proof
def test_findings_of_other_rules_are_ignored():
    """The bug lets every acknowledgement leave too early; two leaders of one epoch it does not make."""
    assert not run_mutant(MUTANTS["acknowledged-at-once"], [1], rule="one-leader").found


@pytest.mark.proof
@pytest.mark.parametrize("rule", ["partition-state", "elr-entry-valid", "isr-change-asked"])
def test_rules_that_convict_alone_at_once(rule):
    """The others are measured by ``moldau sim mutants``, which takes longer."""
    verdict = run_trial(rule, range(1, 5))
    assert verdict.found, f"{rule} convicted no run in {verdict.seeds} seeds"
    assert verdict.found_by == rule


def test_an_unknown_rule_is_refused():
    with pytest.raises(KeyError):
        run_trial("no-rule", [1])
    with pytest.raises(KeyError):
        next(mutants.run_mutants([], rules=["no-rule"]))
