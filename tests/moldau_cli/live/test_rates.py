"""Goal: rates, lag and the pace of requests are right. Method: pure functions at given times."""

from hypothesis import given
from hypothesis import strategies as st

from moldau_cli.live.core.rates import KEPT_MS, Meter, Pace, seconds_left
from moldau_cli.live.group import GroupRates, Taken


def test_rates_are_per_second():
    meter = Meter()
    assert meter.rates({"a": 10, "b": None}, 1000) == {"a": None, "b": None}
    assert meter.rates({"a": 25, "b": 1}, 1500) == {"a": 30.0, "b": None}
    assert meter.rates({"a": 25}, 2500) == {"a": 0.0}


def test_each_counter_has_the_time_at_which_it_was_read():
    meter = Meter()
    meter.rates({"slow": 10, "quick": 10}, 0, {"slow": 8000})
    assert meter.rates({"slow": 30, "quick": 30}, 10_000) == {"slow": 10.0, "quick": 2.0}


def test_a_counter_that_went_back_has_no_rate():
    meter = Meter()
    meter.rates({"a": 10}, 0)
    assert meter.rates({"a": 5}, 1000) == {"a": None}
    assert meter.rates({"a": 6}, 2000) == {"a": 1.0}


def test_a_counter_that_was_missing_begins_again():
    meter = Meter()
    meter.rates({"a": 10}, 0)
    meter.rates({"a": None}, 1000)
    assert meter.rates({"a": 30}, 2000) == {"a": None}


def test_a_counter_that_was_left_out_is_kept_for_a_while():
    meter = Meter()
    meter.rates({"a": 10, "b": 10}, 0)
    meter.rates({"b": 11}, 1000)
    assert meter.rates({"a": 30}, 2000) == {"a": 10.0}
    assert meter.rates({}, 1000 + KEPT_MS) == {}
    assert meter.rates({"b": 20}, 2000 + KEPT_MS) == {"b": None}


@given(limit=st.integers(1, 5), waits=st.lists(st.floats(0, 1500), max_size=40))
def test_no_second_holds_more_requests_than_the_limit(limit, waits):
    pace, now, sent = Pace(limit), 0.0, []
    for wait in waits:
        now += wait
        at = pace.next_ms(now)
        assert at >= now
        sent.append(at)
    assert sent == sorted(sent)
    assert all(later - earlier >= 1000 - 1e-6 for earlier, later in zip(sent, sent[limit:], strict=False))
    assert pace.total == len(waits)


def test_time_to_catch_up():
    assert seconds_left(100, 30.0, 10.0) == 5.0
    assert seconds_left(100, 10.0, 10.0) is None
    assert seconds_left(0, 0.0, 5.0) == 0.0
    assert seconds_left(5, None, 1.0) is None


def test_rows_of_a_group_get_rates():
    rates = GroupRates()

    def row(offset, end):
        lag = None if offset is None else end - offset
        return {"topic": "t", "partition": 0, "offset": offset, "log_end_offset": end, "lag": lag, "member": None}

    (first,) = rates.rows([row(0, 100)], Taken(0.0, {}))
    assert (first["consumed_per_s"], first["produced_per_s"], first["seconds_left"]) == (None, None, None)
    (second,) = rates.rows([row(30, 110)], Taken(2.0, {}))
    assert (second["consumed_per_s"], second["produced_per_s"], second["seconds_left"]) == (15.0, 5.0, 8)
    (third,) = rates.rows([row(None, 110)], Taken(3.0, {}))
    assert (third["consumed_per_s"], third["produced_per_s"], third["seconds_left"]) == (None, 0.0, None)
