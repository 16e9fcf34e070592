"""Goal: a scrape gets each metric once, under one kind, and quantiles from the bucket that holds them.

Method: a naive model of buckets for drawn values, and every pair of kinds and labels.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.runtime.telemetry.metrics import Counter, Gauge, Histogram, Registry, Series

BOUNDS = (1.0, 2.0, 5.0, 10.0)
VALUES = st.one_of(st.sampled_from((0.0, *BOUNDS, 11.0)), st.floats(0, 20))


@given(st.lists(VALUES, min_size=1, max_size=12), st.integers(1, 12))
def test_a_quantile_lies_in_the_bucket_of_its_observation(values: list[float], rank: int) -> None:
    """The 2nd of 4 observations is the median: the values below it say nothing about the bucket of the 3rd."""
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    rank = min(rank, len(values))
    truth = sorted(values)[rank - 1]
    bucket = bisect_left(BOUNDS, truth)
    lower, upper = (0.0, *BOUNDS)[bucket], (*BOUNDS, max(values))[bucket]
    found = histogram.quantile(rank / len(values))
    assert lower <= found <= min(upper, max(values)) or math.isclose(found, lower)
    assert (histogram.count, histogram.maximum) == (len(values), max(values))
    assert math.isclose(histogram.total, sum(values), abs_tol=1e-9)
    assert [sum(histogram.counts[: index + 1]) for index in range(len(BOUNDS))] == [
        sum(value <= bound for value in values) for bound in BOUNDS
    ]


def test_a_quantile_between_two_bounds_is_interpolated() -> None:
    histogram = Histogram(BOUNDS)
    for _ in range(4):
        histogram.observe(5.0)
    assert [histogram.quantile(part / 4) for part in range(5)] == [2.0, 2.75, 3.5, 4.25, 5.0]
    histogram.observe(8.0)
    assert histogram.quantile(1) == 8.0, "the largest value bounds its bucket"


KINDS = {"counter": Registry.counter, "gauge": Registry.gauge, "histogram": Registry.histogram}


@pytest.mark.parametrize(("first", "second"), list(itertools.product(KINDS, KINDS)))
def test_a_name_has_one_kind_and_one_set_of_labels(first: str, second: str) -> None:
    registry = Registry()
    made = KINDS[first](registry, "x", "Text.", "a")
    if first == second:
        assert KINDS[second](registry, "x", "Other text.", "a") is made
    else:
        with pytest.raises(ValueError, match=f"metric x exists as {first} with labels"):
            KINDS[second](registry, "x", "Text.", "a")
    with pytest.raises(ValueError, match=f"metric x exists as {first} with labels"):
        KINDS[second](registry, "x", "Text.", "b")


def series(name: str, kind: str, value: float, **labels: str) -> Series:
    return Series(name=name, kind=kind, text=f"Text of {kind}.", labels=tuple(labels.items()), value=value)


def test_series_of_sources_do_not_collide() -> None:
    """A client that pushes a metric under the name of one of the broker's must not spoil the whole scrape."""
    registry = Registry()
    registry.gauge("taken", "Own.").labels().set(1)
    registry.add_source(lambda: [series("taken", "gauge", 2), series("b", "counter", 3, x='q"\\\n')])
    registry.add_source(
        lambda: [series("b", "gauge", 4), series("b", "counter", math.inf, x="2"), series("a", "gauge", 0.5)]
    )
    assert registry.expose().splitlines() == [
        "# HELP taken Own.",
        "# TYPE taken gauge",
        "taken 1",
        "# HELP a Text of gauge.",
        "# TYPE a gauge",
        "a 0.5",
        "# HELP b Text of counter.",
        "# TYPE b counter",
        'b{x="q\\"\\\\\\n"} 3',
        'b{x="2"} +Inf',
    ]
    assert registry.expose().endswith("\n")
    assert Registry().expose() == ""


def test_updates_come_before_what_they_change() -> None:
    registry = Registry()
    family = registry.gauge("x", "Text.", "n")
    looks = itertools.count(1)
    registry.on_expose(lambda: family.labels("b").set(next(looks)))
    assert registry.expose().splitlines()[2:] == ['x{n="b"} 1']
    family.labels("a").add(-2.25)
    assert registry.expose().splitlines()[2:] == ['x{n="a"} -2.25', 'x{n="b"} 2']
    family.clear()
    assert registry.expose().splitlines()[2:] == ['x{n="b"} 3']


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (2.0, "2"), (-0.5, "-0.5"), (1e20, "1" + "0" * 20), (0.1 + 0.2, "0.30000000000000004")),
        *((math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")),
    ],
)
def test_each_number_is_written_as_prometheus_reads_it(value: float, text: str) -> None:
    """A gauge of which nothing was observed is NaN; it must not spoil the scrape."""
    registry = Registry()
    registry.gauge("x", "Text.").labels().set(value)
    assert registry.expose().splitlines()[2] == f"x {text}"
    assert float(text) == value or math.isnan(value)


def test_an_attached_child_takes_the_place_of_another() -> None:
    """Its owner counts into it; what was counted under these labels before is no longer shown."""
    family = Registry().counter("x", "Text.", "n")
    own = Counter()
    own.add(5)
    family.labels("a").add(3)
    family.attach(own, "a")
    own.add()
    assert [(labels, child.value) for labels, child in family.children()] == [(("a",), 6)]
    assert family.labels("a") is own


def test_a_gauge_reads_its_source_each_time() -> None:
    gauge, values = Gauge(), [3, 2]
    gauge.set(7)
    gauge.add(-9)
    assert gauge.value == -2
    gauge.read_from(lambda: values.pop())
    assert [gauge.value, gauge.value] == [2, 3]
