"""Goal: positions mean what kcat and rpk mean by them. Method: pure functions on logs given as offsets."""

import pytest

from moldau import TopicPartition
from moldau_cli.errors import UsageError
from moldau_cli.records.core.positions import LogRange, Origin, Span, parse_span, parse_when_ms, starts, stops

NOW_MS = 1_700_000_000_000
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
LOGS = {ONE: LogRange(begin=10, end=50), TWO: LogRange(begin=0, end=5)}


def span(*words, default=Origin.LATEST):
    return parse_span(words, NOW_MS, default=default)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ((), [50, 5]),
        (("beginning",), [10, 0]),
        (("earliest",), [10, 0]),
        (("end",), [50, 5]),
        (("20",), [20, 5]),
        (("3",), [10, 3]),
        (("-100",), [10, 0]),
        (("-2",), [48, 3]),
        (("-0",), [50, 5]),
        (("+2",), [12, 2]),
        (("+100",), [50, 5]),
        (("20:",), [20, 5]),
        ((":30",), [10, 0]),
        ((":end",), [10, 0]),
        (("s@1000",), [30, 5]),
    ],
)
def test_beginnings(words, first):
    assert list(starts(span(*words), LOGS, {ONE: 30, TWO: -1}).values()) == first


def test_a_named_partition_keeps_an_offset_outside_its_log():
    assert starts(span("99"), {ONE: LOGS[ONE]}, {}, within=False) == {ONE: 99}


def test_committed_offsets_have_no_beginning_here():
    assert starts(span("stored"), LOGS, {}) == {}


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (("20:30",), [30, 5]),
        ((":20",), [20, 5]),
        (("3:end",), [50, 5]),
        ((":end",), [50, 5]),
        (("e@1000",), [30, 5]),
        (("beginning", "e@1000"), [30, 5]),
    ],
)
def test_ends_are_exclusive(words, last):
    assert list(stops(span(*words), LOGS, {ONE: 30, TWO: -1}).values()) == last


def test_the_first_end_counts():
    assert stops(Span(to_time_ms=9, to_offset=20), LOGS, {ONE: 30, TWO: 4}) == {ONE: 20, TWO: 4}
    assert stops(Span(to_time_ms=9), LOGS, {ONE: 30, TWO: 0}) == {ONE: 30, TWO: 0}, "the first record is late enough"
    assert stops(Span(), LOGS, {}) == {}


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("5000", 5000),
        ("2023-11-14T22:13:20", NOW_MS),
        ("1h30m", NOW_MS - 5_400_000),
        ("-10s", NOW_MS - 10_000),
        ("PT1H", NOW_MS - 3_600_000),
        ("1969-01-01", 0),  # before all records; it was refused as another text than the one given
    ],
)
def test_times_and_durations(text, at):
    assert parse_when_ms(text, NOW_MS, "--from") == at


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("middle",), "expected beginning"),
        (("30:20",), "expected beginning"),
        ((":",), "expected beginning"),
        (("+",), "expected beginning"),
        (("1:x",), "expected beginning"),
        (("s@noon",), "expected a time"),
        (("1", "2"), "one beginning"),
        (("1:2", "e@5"), "one end"),
    ],
)
def test_wrong_positions(words, reason):
    with pytest.raises(UsageError, match=reason):
        span(*words)


@pytest.mark.parametrize("number", ["9" * 5000, str(2**63)], ids=len)
@pytest.mark.parametrize("word", ["{}", "-{}", "+{}", "{}:", ":{}", "1:{}", "{}:end"])
def test_offsets_that_no_log_has_are_refused(word, number):
    with pytest.raises(UsageError, match="expected beginning"):
        span(word.format(number))
