"""Goal: a silent broker counts as unreachable only when other hosts answer, and only after several rounds in a row.

Method: rounds with made results, then drawn ones against a naive model.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau_quorum.controller.cluster.suspects import ROUNDS, Suspects


def judged(*rounds: tuple[list[int], dict[int, bool]]) -> list[int]:
    """Returns the verdict after the last round."""
    suspects, found = Suspects(), []
    for silent, accepted in rounds:
        found = suspects.judge(silent, accepted)
    return found


CUT = ([1], {1: False, 2: True})
PAUSED = ([1], {1: True, 2: True})
NO_NETWORK = ([1], {1: False, 2: False})
HEARD = ([], {2: True})
NO_ADDRESS = ([1], {2: True})


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        ([CUT] * ROUNDS, [1]),
        ([CUT] * (ROUNDS - 1), []),
        ([PAUSED] * 10, []),
        ([NO_NETWORK] * 10, []),
        ([CUT, CUT, NO_NETWORK, CUT, CUT], []),
        ([CUT, CUT, PAUSED, CUT, CUT], []),
        ([CUT, CUT, HEARD, CUT, CUT], []),
        ([NO_ADDRESS] * 10, []),
        ([([1, 2], {1: False, 2: True})] * ROUNDS, [1]),  # after an election all are silent, and one answers
    ],
)
def test_a_verdict_needs_rounds_with_proof(rounds, verdict):
    assert judged(*rounds) == verdict


ROUND = st.tuples(
    st.lists(st.integers(1, 3), unique=True, max_size=3).map(sorted),
    st.dictionaries(st.integers(1, 4), st.booleans(), max_size=4),
)


@given(st.lists(ROUND, max_size=12))
def test_any_history_agrees_with_the_model(rounds):
    """The model looks back from the end for each broker."""
    if not rounds:
        return
    expected = []
    for broker in rounds[-1][0]:
        failed = 0
        for silent, accepted in reversed(rounds):
            if broker not in silent or accepted.get(broker, True) or not any(accepted.values()):
                break
            failed += 1
        if failed >= ROUNDS:
            expected.append(broker)
    assert judged(*rounds) == expected
