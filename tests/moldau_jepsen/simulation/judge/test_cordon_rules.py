"""Goal: the rule on cordoned directories convicts a new replica in one of them, and nothing else.

Method: stories of one broker by hand, one step after the other.
"""

from __future__ import annotations

import pytest

from moldau_jepsen.simulation.judge.rules.cordons import CordonRules, CordonsSeen

OLD, NEW = ("flights", 0), ("flights", 1)


def judged(*steps, recorded=()):
    """Returns the violations of a broker that takes these steps, each with the fields that differ."""
    found = []
    rules = CordonRules(lambda rule, text: found.append((rule, text)))
    state = {"process": "first", "cordoned": frozenset({"/d1"}), "has_choice": True, "held": frozenset({OLD})}
    for step in steps:
        state |= step
        if state["cordoned"]:
            rules.look(1, CordonsSeen(**state, is_recorded=lambda replica: replica in recorded))
        else:
            rules.calm(1)
    return found


def test_a_new_replica_in_a_cordoned_directory_is_convicted():
    ((rule, text),) = judged({}, {}, {"held": frozenset({OLD, NEW})}, {})
    assert rule == "cordon-kept"
    assert text == "broker 1 started a replica of ('flights', 1) in a cordoned directory, of /d1"


@pytest.mark.parametrize(
    "steps",
    [
        [{}, {"held": frozenset()}, {}],
        [{"held": frozenset({OLD, NEW})}],
        [{}, {"held": frozenset({OLD, NEW}), "process": "second"}],
        [{}, {"held": frozenset({OLD, NEW}), "cordoned": frozenset({"/d2"})}],
        [{}, {"cordoned": frozenset()}, {"held": frozenset({OLD, NEW}), "cordoned": frozenset({"/d1"})}],
        [{"has_choice": False}, {"held": frozenset({OLD, NEW})}],
        [{}, {"held": frozenset({OLD, NEW}), "has_choice": False}],
    ],
    ids=["leaves", "was-there", "restart", "other-cordon", "uncordoned", "no-choice", "no-choice-any-more"],
)
def test_what_explains_a_replica_is_no_violation(steps):
    assert judged(*steps) == []


def test_a_replica_whose_place_is_recorded_may_start_there():
    """The metadata already name the directory, for example after the loss of its disk."""
    assert judged({}, {"held": frozenset({OLD, NEW})}, recorded={NEW}) == []
