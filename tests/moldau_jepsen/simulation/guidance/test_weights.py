"""Goal: the choice among kinds of runs follows rare transitions per unit of work, starves none, and ignores the order.

Method: the pure function alone, with records by hand.
"""

from itertools import permutations

import pytest

from moldau_jepsen.simulation.guidance.core.weights import RARE_SHARE, Record, rare_values, weights_of

COMMON = [f"common {number}" for number in range(20)]


def record(*runs: tuple[int, list[str]]) -> Record:
    found = Record()
    for work, reached in runs:
        found.add(work, reached)
    return found


def test_without_runs_all_kinds_weigh_the_same() -> None:
    assert weights_of({"a": Record(), "b": Record()}) == {"a": 0.5, "b": 0.5}


def test_a_rare_transition_is_worth_more_than_many_common_ones() -> None:
    records = {
        "common": record(*[(100, COMMON)] * 10),
        "rare": record(*[(100, ["rare"])] * 3),
        "nothing": record(*[(100, COMMON[:1])] * 3),
    }
    weights = weights_of(records)
    assert weights["rare"] > 4 * weights["nothing"] > 4 * weights["common"]
    assert rare_values(records) == {"rare": 1 / 3}


def test_half_the_work_is_twice_the_weight() -> None:
    """The runs of all kinds count for one run of each kind, so it is a little less with few runs."""
    records = {kind: record(*[(work, [kind])] * 100) for kind, work in (("cheap", 100), ("dear", 200))}
    records |= {"other": record(*[(150, [])] * 300)}
    weights = weights_of(records)
    assert weights["cheap"] / weights["dear"] == pytest.approx(2, rel=0.02)


def test_what_has_become_common_attracts_no_more() -> None:
    """A transition is rare up to a quarter of the runs, and its value falls with each run that reaches it."""
    others = record(*[(100, [])] * 100)
    weights = [
        weights_of({"kind": record(*[(100, ["rare"])] * count, *[(100, [])] * (40 - count)), "others": others})["kind"]
        for count in (1, 20, 35, 36, 40)
    ]
    assert RARE_SHARE * 140 == 35
    assert weights[2] > weights[3] == weights[4]
    values = [rare_values({"kind": record(*[(1, ["rare"])] * count), "others": others})["rare"] for count in (1, 5)]
    assert values == [1, 1 / 5]


def test_a_kind_without_runs_is_a_usual_one() -> None:
    weights = weights_of({"new": Record(), "dull": record(*[(100, [])] * 9), "rare": record(*[(100, ["rare"])] * 2)})
    assert weights["rare"] > 2 * weights["new"] > 10 * weights["dull"] > 0
    assert sum(weights.values()) == pytest.approx(1)


def test_without_rare_transitions_the_work_decides() -> None:
    weights = weights_of({"cheap": record(*[(100, COMMON)] * 50), "dear": record(*[(300, COMMON)] * 50)})
    assert weights["cheap"] == pytest.approx(0.75, rel=0.01)


def test_the_order_of_results_makes_no_difference() -> None:
    runs = [("a", 100, ["x"]), ("b", 70, ["y", "z"]), ("a", 130, ["z"]), ("c", 10, [])]
    found = []
    for ordered in permutations(runs):
        records = {"c": Record(), "a": Record(), "b": Record()}
        for kind, work, reached in ordered:
            records[kind].add(work, reached)
        found.append(weights_of(records))
    assert all(weights == found[0] for weights in found)
    assert list(found[0]) == ["a", "b", "c"]


def test_runs_that_failed_at_once_count_as_cheap_and_not_as_free() -> None:
    """A run that the kit did not finish has no turns."""
    weights = weights_of({"broken": record(*[(0, [])] * 5), "sound": record(*[(100, ["x"])] * 5)})
    assert 0 < weights["broken"] < 1
