"""Goal: filters that are handed to a batch query drop no row that passes them, and say truly which Spark must apply.

Method: random filters over a small table of rows, compared with what the filters mean row by row.
"""

from __future__ import annotations

import datetime
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringContains,
)

from pyspark_moldau.source.core.filters import Narrowing, narrow

ROWS = [
    {"topic": topic, "partition": number, "offset": offset}
    for topic in "ab"
    for number in range(3)
    for offset in range(8)
]
MEANINGS = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
COLUMNS = {"topic": st.sampled_from("abc"), "partition": st.integers(-1, 3), "offset": st.integers(-2, 9)}
FILTERS = st.one_of(
    st.builds(lambda kind, value, name: kind((name,), value), st.sampled_from(list(MEANINGS)), values, st.just(name))
    for name, values in COLUMNS.items()
) | st.one_of(
    st.builds(lambda values, name: In((name,), tuple(values)), st.lists(values, max_size=3), st.just(name))
    for name, values in COLUMNS.items()
)


def passes(row: dict[str, object], one: object) -> bool:
    found = row[one.attribute[0]]
    return found in one.value if isinstance(one, In) else MEANINGS[type(one)](found, one.value)


def is_left(row: dict[str, object], left: Narrowing) -> bool:
    first, end = left.clip(0, 8)
    return left.admits((row["topic"], row["partition"])) and first <= row["offset"] < end


@given(st.lists(FILTERS, max_size=4))
def test_no_row_that_passes_is_dropped(filters) -> None:
    """And a row that is left passes, once Spark has applied what was handed back."""
    left, unsupported = narrow(filters)
    assert all(one in filters for one in unsupported)
    for row in ROWS:
        wanted = all(passes(row, one) for one in filters)
        assert is_left(row, left) or not wanted
        assert wanted == (is_left(row, left) and all(passes(row, one) for one in unsupported))


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (EqualTo(("topic",), "a"), Narrowing(topics=frozenset("a"))),
        (In(("topic",), ("a", "b")), Narrowing(topics=frozenset("ab"))),
        (In(("partition",), (0, 2)), Narrowing(numbers=frozenset((0, 2)))),
        (EqualTo(("offset",), 5), Narrowing(low=5, high=6)),
        (In(("offset",), (4, 5)), Narrowing(low=4, high=6)),
        (GreaterThan(("offset",), 5), Narrowing(low=6)),
        (GreaterThanOrEqual(("offset",), 5), Narrowing(low=5)),
        (LessThan(("offset",), 5), Narrowing(high=5)),
        (LessThanOrEqual(("offset",), 5), Narrowing(high=6)),
        (IsNotNull(("timestamp",)), Narrowing()),
    ],
)
def test_what_a_log_answers_is_not_left_to_spark(one, expected) -> None:
    assert narrow([one]) == (expected, [])


@pytest.mark.parametrize(
    "one",
    [
        IsNotNull(("key",)),
        IsNotNull(("value", "topic")),
        EqualTo(("value", "topic"), "a"),
        EqualTo(("topic",), None),
        In(("topic",), ("a", None)),
        EqualTo(("partition",), None),
        EqualTo(("offset",), 5.5),
        GreaterThan(("offset",), 5.5),
        GreaterThan(("topic",), "a"),
        LessThan(("partition",), 1),
        EqualTo(("key",), b"k"),
        StringContains(("topic",), "a"),
    ],
)
def test_other_filters_are_left_to_spark(one) -> None:
    assert narrow([one]) == (Narrowing(), [one])


def test_offsets_with_gaps_are_narrowed_and_left_to_spark() -> None:
    one = In(("offset",), (2, 5))
    assert narrow([one]) == (Narrowing(low=2, high=6), [one])


MOMENT = datetime.datetime(2026, 11, 28, 1, 2, 3, 456_789, tzinfo=datetime.UTC)
MOMENT_MS = 1_795_827_723_456


@pytest.mark.parametrize("kind", [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual])
def test_a_time_limits_where_reading_starts(kind) -> None:
    """Spark still looks at each row: records of a log are not in the order of their timestamps."""
    one = kind(("timestamp",), MOMENT)
    assert narrow([one]) == (Narrowing(since_ms=MOMENT_MS), [one])
    earlier = kind(("timestamp",), MOMENT - datetime.timedelta(hours=1))
    assert narrow([one, earlier])[0] == narrow([earlier, one])[0] == Narrowing(since_ms=MOMENT_MS)


@pytest.mark.parametrize(
    "one",
    [
        LessThan(("timestamp",), MOMENT),
        LessThanOrEqual(("timestamp",), MOMENT),
        GreaterThan(("timestamp",), MOMENT.replace(tzinfo=None)),
        EqualTo(("timestamp",), None),
        GreaterThanOrEqual(("timestamp",), datetime.datetime(1969, 12, 31, tzinfo=datetime.UTC)),
        EqualTo(("timestamp",), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=datetime.UTC)),
    ],
)
def test_other_times_limit_nothing(one) -> None:
    assert narrow([one]) == (Narrowing(), [one])
