"""Goal: rates are what was written between two samples, and memory is bounded. Method: samples made by hand."""

from itertools import product

import pytest

from moldau_cli.console.core.rates import FRESH_MS, POINTS_MAX, TOPICS_MAX, RateHistory, Sample
from moldau_cli.console.data.cluster import points


def sample(seconds, ends, sizes=None):
    return Sample(now_ms=seconds * 1000, ends=ends, sizes=sizes or {})


def test_growth_is_divided_by_time():
    history = RateHistory()
    history.observe(sample(0, {("t", 0): 10, ("t", 1): 5}, {("t", 0): 100}))
    history.observe(sample(2, {("t", 0): 30, ("t", 1): 6}, {("t", 0): 1100}))
    assert history.latest("t", 2_000).records == 10.5
    assert history.latest("t", 2_000).bytes == 500
    assert [point.records for point in history.total] == [10.5]


def test_a_first_sample_says_nothing():
    history = RateHistory()
    history.observe(sample(0, {("t", 0): 1_000_000}))
    assert history.total == []
    assert history.latest("t", 2_000) is None


def test_a_partition_that_was_unreachable_is_no_burst():
    history = RateHistory()
    history.observe(sample(0, {("t", 0): 100, ("t", 1): 1000}))
    history.observe(sample(1, {("t", 0): 110}))
    history.observe(sample(2, {("t", 0): 120, ("t", 1): 1500}))
    assert [point.records for point in history.total] == [10, 10]


def test_deleted_records_are_no_negative_rate():
    history = RateHistory()
    history.observe(sample(0, {("t", 0): 100}, {("t", 0): 5000}))
    history.observe(sample(1, {("t", 0): 0}, {("t", 0): 0}))
    assert (history.total[-1].records, history.total[-1].bytes) == (0, 0)


@pytest.mark.parametrize("changes", list(product((-50, 0, 10), repeat=3)))
def test_a_falling_partition_hides_no_other(changes):
    """Retention makes one partition smaller while the others of the topic are written to."""
    before = {("t", number): 100 for number in range(3)}
    after = {("t", number): 100 + change for number, change in enumerate(changes)}
    history = RateHistory()
    history.observe(sample(0, before, before))
    history.observe(sample(1, after, after))
    grown = sum(max(0, change) for change in changes)
    assert [(point.records, point.bytes) for point in (*history.topic("t"), *history.total)] == [(grown, grown)] * 2


def test_a_deleted_topic_is_forgotten():
    history = RateHistory()
    history.observe(sample(0, {("t", 0): 1, ("u", 0): 1}))
    history.observe(sample(1, {("t", 0): 2, ("u", 0): 2}))
    history.observe(sample(2, {("t", 0): 3}))
    assert history.topic("u") == []


def test_history_is_bounded():
    history = RateHistory()
    for second in range(POINTS_MAX + 20):
        history.observe(sample(second, {("t", 0): second}))
    assert len(history.total) == len(history.topic("t")) == POINTS_MAX


def test_a_busy_topic_displaces_a_silent_one():
    history = RateHistory()
    silent = {(f"a{number:04}", 0): 1 for number in range(TOPICS_MAX)}
    history.observe(sample(0, {**silent, ("z", 0): 0}))
    history.observe(sample(1, {**silent, ("z", 0): 9}))
    assert history.latest("z", 1_000).records == 9
    assert sum(bool(history.topic(name)) for name, _ in [*silent, ("z", 0)]) == TOPICS_MAX


def test_a_topic_that_fell_silent_gives_way():
    history = RateHistory()
    before, after = ({(f"a{number:04}", 0): count for number in range(TOPICS_MAX)} for count in (1, 2))
    for second, ends in enumerate((before, after, after)):
        history.observe(sample(second, {**ends, ("z", 0): 0}))
    history.observe(sample(3, {**after, ("z", 0): 9}))
    assert history.latest("z", 3_000).records == 9


def test_the_same_time_twice_is_ignored():
    history = RateHistory()
    history.observe(sample(1, {("t", 0): 1}))
    history.observe(sample(1, {("t", 0): 2}))
    assert history.total == []


def test_old_rates_are_not_shown_as_present():
    """Samples end while no page is open: the next page showed the rates of an hour ago, and then their mean."""
    history = RateHistory()
    for second in (0, 2):
        history.observe(sample(second, {("t", 0): 100 * second}))
    assert history.latest("t", 2_000 + FRESH_MS).records == 100
    assert history.latest("t", 2_001 + FRESH_MS) is None
    assert points(history.total, 3_000) == [[1_000, 100, 0]]
    assert points(history.total, 3_600_000) == []
    history.observe(sample(3_600, {("t", 0): 1_000_000}))
    assert len(history.total) == 1, "the mean of an hour is no rate"
    history.observe(sample(3_602, {("t", 0): 1_000_020}))
    assert history.latest("t", 3_602_000).records == 10
