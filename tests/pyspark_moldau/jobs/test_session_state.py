"""Goal: the sessions of a key are those of the sorted events, however the events are cut into steps.

Method: random events with bounded disorder are given in random portions, and compared with a plain sort and split.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_moldau.jobs.queries.session_state import SessionTooLargeError, advance, deadline_ms

GAP, DELAY = 10, 25


def sessions_of(events):
    found = []
    for event in sorted(events):
        if found and event[0] - found[-1][-1][0] < GAP:
            found[-1].append(event)
        else:
            found.append([event])
    return found


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, DELAY)), max_size=40),
    st.lists(st.integers(1, 5), min_size=1, max_size=10),
)
def test_sessions_do_not_depend_on_portions(steps, portions):
    """Disorder is smaller than the delay of the watermark, so no event is late."""
    now, events = 0, []
    for number, (progress, disorder) in enumerate(steps):
        now += progress
        events.append((max(0, now - disorder), ("t", 0, number), (number,)))
    closed, kept, at, watermark, highest = [], [], 0, 0, 0
    while at < len(events):
        size = portions[at % len(portions)]
        step = advance(kept, events[at : at + size], watermark_ms=watermark, gap_ms=GAP, events_max=1000)
        assert step.late == 0
        closed, kept, at = closed + step.closed, step.open, at + size
        highest = max([highest, *(event[0] for event in events[:at])])
        watermark = max(watermark, highest - DELAY)
    closed += advance(kept, [], watermark_ms=10_000, gap_ms=GAP, events_max=1000).closed
    assert closed == sessions_of(events)


def test_late_events_are_counted_and_left_out():
    step = advance([], [(5, ("t", 0, 0), ()), (20, ("t", 0, 1), ())], watermark_ms=20, gap_ms=GAP, events_max=9)
    assert (step.late, step.closed, step.open) == (1, [], [[(20, ("t", 0, 1), ())]])
    assert deadline_ms(step.open, GAP) == 30
    assert advance(step.open, [], watermark_ms=29, gap_ms=GAP, events_max=9).closed == []
    assert advance(step.open, [], watermark_ms=30, gap_ms=GAP, events_max=9).open == []
    assert deadline_ms([], GAP) is None


def test_the_state_of_a_key_is_bounded():
    events = [(n, ("t", 0, n), ()) for n in range(5)]
    with pytest.raises(SessionTooLargeError, match="5 events are open, and events_max is 4"):
        advance([], events, watermark_ms=0, gap_ms=GAP, events_max=4)
    before = advance([], events[:3], watermark_ms=0, gap_ms=GAP, events_max=4).open
    with pytest.raises(SessionTooLargeError, match="5 events are open, and events_max is 4"):
        advance(before, events[3:], watermark_ms=0, gap_ms=GAP, events_max=4)
