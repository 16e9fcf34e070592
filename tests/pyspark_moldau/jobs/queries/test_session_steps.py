"""Goal: the rows of a key's sessions are those of a plain sort and split, as Spark gives its records and its timeouts.

Method: the function that runs in tasks, on random frames, with a state that is as strict as Spark's.
"""

import itertools

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_moldau.jobs.queries.session_state import SessionTooLargeError
from pyspark_moldau.jobs.queries.session_values import PLAIN, WHOLE
from pyspark_moldau.jobs.sessions import _step, milliseconds

GAP, DELAY, END = 10, 12, 10_000
KEY = ("N1", "JFK")


def known(found):
    return [each for each in found if each is not None]


FUNCTIONS = {
    "first": lambda found: found[0],
    "last": lambda found: found[-1],
    "list": lambda found: found,
    "count": lambda found: len(known(found)),
    "sum": lambda found: sum(known(found)) if known(found) else None,
    "min": lambda found: min(known(found), default=None),
    "max": lambda found: max(known(found), default=None),
}
COLUMNS = (*((name, WHOLE) for name in FUNCTIONS), ("list", PLAIN))
NAMES = ("plane", "origin", "session_start", "session_end", *(f"c{number}" for number in range(len(COLUMNS))))


class State:
    """The state of one key as Spark keeps it: it refuses what Spark refuses."""

    def __init__(self):
        self.held = None
        self.timeout_ms = None
        self.watermark_ms = 0

    @property
    def exists(self):
        return self.held is not None

    @property
    def get(self):
        assert self.exists
        return self.held

    def update(self, held):
        assert isinstance(held, tuple)
        self.held = held

    def remove(self):
        assert self.exists
        self.held = None

    def getCurrentWatermarkMs(self):
        return self.watermark_ms

    def setTimeoutTimestamp(self, timeout_ms):
        assert timeout_ms > self.watermark_ms
        self.timeout_ms = timeout_ms

    def step(self, *frames, events_max=1000):
        """Calls the function as Spark does: a timeout counts once, for a state that is there."""
        self.timeout_ms = None
        rows = []
        for frame in _step(GAP, events_max, NAMES, COLUMNS, "UTC", KEY, iter(frames), self):
            assert tuple(frame.columns) == NAMES
            rows += [tuple(row) for row in frame.itertuples(index=False)]
        assert self.exists == (self.timeout_ms is not None)
        return rows


def frame_of(events):
    """Returns events as Spark hands them to pandas: numbers of columns are texts, because a null would change them."""
    frame = pd.DataFrame(events, columns=["time", "topic", "partition", "offset", "value"])
    found = {
        "_moldau_millis": frame["time"],
        **{f"_moldau_{name}": frame[name] for name in ("topic", "partition", "offset")},
    }
    texts = [None if value is None else str(value) for *_, value in events]
    found |= {f"_moldau_{number}": pd.Series(texts, dtype=object) for number in range(len(COLUMNS))}
    return pd.DataFrame(found)


def rows_of(events):
    """Returns the rows of the sessions of all events."""
    found = []
    for event in sorted(events, key=lambda event: event[:4]):
        if found and event[0] - found[-1][-1][0] < GAP:
            found[-1].append(event)
        else:
            found.append([event])
    return [row_of(session) for session in found]


def row_of(session):
    values = [event[4] for event in session]
    texts = [None if value is None else str(value) for value in values]
    return (*KEY, session[0][0], session[-1][0], *(each(values) for each in FUNCTIONS.values()), texts)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, DELAY), st.integers(0, 2), st.none() | st.integers(-3, 2**54)),
        max_size=30,
    ),
    st.lists(st.integers(0, 4), min_size=2, max_size=10).filter(any),
)
def test_rows_do_not_depend_on_frames_and_triggers(steps, portions):
    """A session is written as soon as the watermark has passed it: at its timeout, or with records of its key."""
    now, events = 0, []
    for offset, (progress, disorder, partition, value) in enumerate(steps):
        now += progress
        events.append((max(0, now - disorder), "t", partition, offset, value))
    state, written, at = State(), [], 0
    for size in itertools.cycle(portions):
        cut = events[at : at + size]
        if cut or (state.exists and state.timeout_ms <= state.watermark_ms):
            written += state.step(*(frame_of([event]) for event in cut[:1]), *(frame_of(cut[1:]) for _ in cut[1:2]))
        at += size
        seen = events[:at]
        assert written == [row for row in rows_of(seen) if row[3] + GAP <= state.watermark_ms]
        state.watermark_ms = max([state.watermark_ms, *(event[0] - DELAY for event in seen)])
        if at >= len(events):
            break
    while state.exists:
        assert state.timeout_ms <= END, "an open session has a timeout"
        state.watermark_ms = max(state.timeout_ms, state.watermark_ms)
        written += state.step()
        assert written == [row for row in rows_of(events) if row[3] + GAP <= state.watermark_ms]
    assert written == rows_of(events)


def test_the_limit_of_events_is_that_of_one_key():
    state = State()
    events = [(number, "t", 0, number, number) for number in range(3)]
    state.step(frame_of(events[:2]), events_max=2)
    with pytest.raises(SessionTooLargeError, match="3 events are open, and events_max is 2"):
        state.step(frame_of(events[2:]), events_max=2)


def test_a_duration_has_its_milliseconds():
    units = {"second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
    for number, (unit, each) in itertools.product((1, 2, 90), units.items()):
        assert milliseconds(f"{number} {unit}") == milliseconds(f"{number} {unit}s") == number * each
