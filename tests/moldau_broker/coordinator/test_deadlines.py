"""Goal: deadlines fall due in their order, each at its last time, and never without need.

Method: random calls, beside a dictionary of keys and times.
"""

from __future__ import annotations

import random

import pytest

from moldau_broker.coordinator.runtime.timers import Deadlines

KEYS = [(name,) for name in "abcd"]


def test_a_renewal_is_taken_back_unless_it_is_not_the_last() -> None:
    """A deadline that has gone, or was moved forward meanwhile, stays as it is."""
    deadlines: Deadlines[tuple[str, ...]] = Deadlines()
    former = deadlines.renew(("a",), 500, now_ms=100)
    assert former == 100, "it had none"
    former = deadlines.renew(("a",), 900, now_ms=200)
    deadlines.put_back(("a",), former)
    assert deadlines.get(("a",)) == 500
    deadlines.set(("a",), 300)
    deadlines.put_back(("a",), former)
    assert deadlines.get(("a",)) == 300
    deadlines.cancel(("a",))
    deadlines.put_back(("a",), former)
    assert deadlines.get(("a",)) is None
    assert deadlines.next_ms() is None


@pytest.mark.parametrize("seed", range(20))
def test_deadlines_are_those_of_a_dictionary(seed: int) -> None:
    draw = random.Random(seed)
    deadlines: Deadlines[tuple[str, ...]] = Deadlines()
    model: dict[tuple[str, ...], int] = {}
    now_ms = 0
    for _ in range(300):
        key, time_ms = draw.choice(KEYS), now_ms + draw.randrange(-5, 20)
        match draw.randrange(6):
            case 0:
                deadlines.set(key, time_ms)
                model[key] = time_ms
            case 1:
                assert deadlines.renew(key, time_ms, now_ms) == model.get(key, now_ms)
                model[key] = time_ms
            case 2:
                deadlines.put_back(key, time_ms)
                if key in model:
                    model[key] = min(model[key], time_ms)
            case 3:
                deadlines.cancel(key)
                model.pop(key, None)
            case _:
                now_ms += draw.randrange(4)
                due = {each for each, at_ms in model.items() if at_ms <= now_ms and at_ms == min(model.values())}
                found = deadlines.pop_due(now_ms)
                assert found in due if due else found is None
                model.pop(found or (), None)
        assert len(deadlines) == len(model)
        assert deadlines.next_ms() == min(model.values(), default=None)
        assert [deadlines.get(each) for each in KEYS] == [model.get(each) for each in KEYS]
