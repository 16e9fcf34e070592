"""The kit itself is on trial: planted bugs must be convicted."""

from dataclasses import replace

import pytest

from moldau_jepsen.simulation import run_seed
from moldau_jepsen.simulation.campaign.shrink import shrink_seed
from moldau_jepsen.simulation.mutants.mutants import MUTANTS, finder_of, owner_of, planted, run_mutant

pytestmark = pytest.mark.proof

FIRST_SEEDS = {"metadata-configuration-late": 9}
"""Of those that show soon, but not within the first seeds."""
SEEDS_MAX = 8
FAULT_SECONDS = 3.0
"""Virtual seconds of faults. Most of these bugs show soon, and the same seed without the bug is run to its end."""
FULL_LENGTH = ("metadata-configuration-late", "retention-deletes-active-segment", "answers-sent-ahead")
"""Bugs that need the whole time of a run."""


@pytest.fixture(scope="module")
def passes():
    """Returns whether a seed passes without any bug; it runs each seed once for all mutants of a profile."""
    known = {}

    def ask(seed, options):
        key = (seed, repr(options))
        if key not in known:
            known[key] = run_seed(seed, options).passed
        return known[key]

    return ask


@pytest.mark.parametrize(
    ("name", "found_by"),
    [
        ("raft-vote-not-persisted", {"vote-kept"}),
        ("raft-answers-before-durable", {"committed-is-durable"}),
        ("raft-commits-on-one", {"committed-is-durable"}),
        ("metadata-out-of-order", {"node-failed"}),
        ("metadata-configuration-late", {"metadata-not-linearizable"}),
        ("elr-ignored", {"elr-kept"}),
        ("elr-member-without-its-data", {"unclean-restart"}),
        ("last-known-leader-too-early", {"clean-election"}),
        ("fenced-broker-may-lead", {"fenced-not-in-isr"}),
        ("watermark-without-isr", {"isr-holds"}),
        ("follower-acks-before-append", {"isr-holds"}),
        ("lagging-follower-counts-as-caught-up", {"isr-holds"}),
        ("acknowledged-at-once", {"acked-is-committed"}),
        ("produce-completed-twice", {"node-failed"}),
        ("cleaner-drops-last-value", {"compaction-keeps"}),
        ("retention-deletes-active-segment", {"retention-keeps"}),
        ("marker-written-twice", {"producer-epoch", "transaction-outcome"}),
        ("decision-forgotten", {"transaction-state"}),
        ("answers-sent-ahead", {"answered-once"}),
        ("given-before-released", {"one-owner"}),
        ("consumer-skips", {"unseen", "lost-write", "poll-skip", "int-poll-skip"}),
    ],
)
def test_mutants_that_show_at_once(name, found_by, passes):
    """Mutants that take longer are hunted by ``moldau sim mutants``, and kept as cases of the corpus."""
    mutant, first = MUTANTS[name], FIRST_SEEDS.get(name, 1)
    for seed in range(first, first + SEEDS_MAX):
        options = mutant.run_of(seed)
        if name not in FULL_LENGTH:
            options = replace(options, fault_seconds=FAULT_SECONDS)
        verdict = run_mutant(mutant, [seed], options=options, passes=passes)
        if verdict.found:
            assert verdict.found_by in found_by, verdict.detail
            return
    pytest.fail(f"{name} survived {SEEDS_MAX} seeds; of the last, {verdict.spoiled} fails without it: {verdict.detail}")


def test_planting_leaves_nothing_behind():
    for mutant in MUTANTS.values():
        patches = [(owner_of(given, name), name) for given, name, _ in mutant.patches()]
        before = [(owner, attribute, vars(owner)[attribute]) for owner, attribute in patches]
        with planted(mutant):
            assert all(vars(owner)[attribute] is not original for owner, attribute, original in before), mutant.name
        assert all(vars(owner)[attribute] is original for owner, attribute, original in before), mutant.name


def test_a_failing_seed_shrinks_to_fewer_faults():
    mutant = MUTANTS["watermark-without-isr"]
    with planted(mutant):
        shrunk = shrink_seed(1, attempts_max=8)
    assert shrunk is not None
    assert shrunk.faults == ()
    assert finder_of(shrunk.result.violations[0]) == "isr-holds"
