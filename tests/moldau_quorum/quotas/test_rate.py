"""Goal: rates, buckets and pauses are Kafka's; sensors are bounded.

Method: tables whose figures follow from Kafka's formulas, a simulated client that obeys every pause, and a naive sum.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau_quorum.metadata.persistent_map import PersistentMap
from moldau_quorum.quotas.client_quotas import ClientQuotas
from moldau_quorum.quotas.connections import Arrival, ConnectionRates
from moldau_quorum.quotas.ledger import Ledger
from moldau_quorum.quotas.mutations import MutationQuotas
from moldau_quorum.quotas.precedence import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Limit,
    QuotaIndex,
)
from moldau_quorum.quotas.rate import Rate, Windows
from moldau_quorum.quotas.token_bucket import TokenBucket
from support.quotas.steady_rate import check_steady_rate

CREATE_TOPICS, METADATA = 19, 3


def limit(value, key=PRODUCER_BYTE_RATE):
    return Limit(key, value, "alice", "app")


def test_a_first_window_counts_as_all_but_one():
    rate = Rate(Windows(11, 1_000.0))
    rate.record(500, 7_000.0)
    assert rate.window_ms(7_000.0) == 10_000.0
    assert rate.per_second(7_000.0) == 50.0
    assert rate.window_ms(7_300.0) == 10_300.0  # the elapsed part of a window counts beside those that are missing


def test_an_idle_group_may_use_all_windows_but_one():
    """A single window is its own allowance, and every group may use at least one unit."""
    for number, burst in ((1, 200), (2, 200), (11, 2_000)):
        assert ClientQuotas(Windows(number, 2_000.0)).burst(limit(100.0)) == burst
    assert ClientQuotas(Windows(2, 1_000.0)).burst(limit(0.5)) == 1


def test_windows_that_are_too_old_do_not_count():
    rate = Rate(Windows(3, 1_000.0))
    for second in range(6):
        rate.record(10, 1_000.0 * second)
    assert rate.window_ms(5_999.0) == 2_999.0
    assert rate.total == 30
    assert rate.per_second(8_500.0) == 0.0
    assert rate.total == 0


def test_pause_until_the_rate_is_the_quota():
    """30 s worth of the quota in the first request: 20 s more than the windows allow."""
    rate = Rate(Windows(11, 1_000.0))
    rate.record(30_000, 0.0)
    assert rate.throttle_ms(1_000.0, 0.0) == 20_000
    assert rate.throttle_ms(3_000.0, 0.0) == 0


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 100)), max_size=60), st.integers(1, 5))
def test_total_is_the_sum_of_the_kept_windows(steps, number):
    rate, now, windows = Rate(Windows(number, 1_000.0)), 0, []
    for passed, amount in steps:
        now += passed
        rate.record(amount, float(now))
        if not windows or now - windows[-1][0] >= 1_000:
            windows.append([now, 0])
        windows[-1][1] += amount
        kept = [each for each in windows if now - each[0] < 1_000 * number][-number:]
        assert rate.total == sum(amount for _, amount in kept)
        elapsed = now - kept[0][0]
        assert rate.window_ms(float(now)) == max(1, elapsed + 1_000 * max(0, number - 1 - elapsed // 1_000))


@pytest.mark.parametrize("number", [2, 3, 11])
@pytest.mark.parametrize("amount", [100, 900])
def test_steady_rate_of_a_client_that_pauses(number, amount):
    check_steady_rate(number, amount)


def test_a_fetch_above_the_quota_is_taken_back():
    quotas, now, sent = ClientQuotas(Windows()), 0.0, 0
    wanted = limit(1_000.0, CONSUMER_BYTE_RATE)
    while now < 120_000:
        pause = quotas.charge_if_within(wanted, 400, now)
        if not pause and now >= 20_000:
            sent += 400
        now += 5 + pause
    assert sent / 100 == pytest.approx(1_000, rel=0.1)


def test_an_answer_above_the_whole_allowance_passes_alone():
    quotas = ClientQuotas(Windows())
    wanted = limit(10.0, CONSUMER_BYTE_RATE)
    assert quotas.charge_if_within(wanted, 5_000, 0.0) == 0
    assert quotas.charge_if_within(wanted, 1, 100.0) > 0
    assert quotas.charge_if_within(wanted, 5_000, 11_000.0) == 0


def test_time_of_handlers_pauses_one_window_at_most():
    quotas = ClientQuotas(Windows())
    assert quotas.charge(limit(1.0, REQUEST_PERCENTAGE), 500.0, 0.0) == 1_000
    ((_, sensor),) = quotas.sensors()
    assert sensor.throttle_time(0.0) == 1_000.0
    assert sensor.throttle_time(60_000.0) == 0.0
    assert quotas.throttled[REQUEST_PERCENTAGE] == 1


def test_a_pause_fits_into_an_answer():
    assert ClientQuotas(Windows()).charge(limit(1.0), 1e9, 0.0) == 2**31 - 1
    bucket = TokenBucket(Windows())
    bucket.take(10_000, 0.001, 0.0)
    assert bucket.throttle_ms(0.001, 0.0) == 2**31 - 1


def test_groups_do_not_disturb_each_other():
    quotas = ClientQuotas(Windows())
    other = Limit(PRODUCER_BYTE_RATE, 10.0, "bob", "app")
    assert quotas.charge(limit(10.0), 10_000, 0.0) > 0
    assert quotas.charge(other, 1, 0.0) == 0
    assert quotas.charge(limit(100_000.0), 1, 0.0) == 0  # the group's limit was raised; its use is remembered


def test_bucket_fills_at_the_rate_and_may_be_overdrawn():
    bucket = TokenBucket(Windows(11, 1_000.0))
    assert bucket.tokens(5.0, 0.0) == 55.0
    bucket.take(80, 5.0, 0.0)
    assert bucket.throttle_ms(5.0, 0.0) == 5_000
    assert bucket.throttle_ms(5.0, 5_000.0) == 0
    assert bucket.tokens(5.0, 100_000.0) == 55.0


def test_a_bucket_holds_no_more_than_a_lower_quota_allows():
    """An operator lowers the quota of a client that has saved up; a higher one fills up in its own time."""
    bucket = TokenBucket(Windows(11, 1_000.0))
    assert bucket.tokens(5.0, 0.0) == 55.0
    assert bucket.tokens(2.0, 0.0) == 22.0
    assert bucket.tokens(5.0, 0.0) == 22.0
    assert bucket.tokens(5.0, 1_000.0) == 27.0


def mutations(value=5.0):
    entity = (("user", "alice"),)
    editor = PersistentMap().edit()
    editor.set(entity, {CONTROLLER_MUTATION_RATE: value})
    return MutationQuotas(Windows()), QuotaIndex().changed(editor.finish(), [entity])


@pytest.mark.parametrize("version", [5, 6])
def test_mutations_above_the_quota(version):
    """Old versions are carried out with a throttle time; new ones are refused until the bucket is full enough."""
    quotas, index = mutations()

    def ask(now_ms):
        return quotas.allowance(index, "alice", "app", api_key=CREATE_TOPICS, version=version, now_ms=now_ms)

    first = ask(0.0)
    assert first.charge(60, 0.0)
    assert first.throttle_ms(0.0) == (0 if version >= 6 else 1_000)
    second = ask(100.0)
    assert second.charge(1, 100.0) == (version < 6)
    assert second.throttle_ms(100.0) == (900 if version >= 6 else 1_100)
    assert second.throttle_ms(400.0) == (600 if version >= 6 else 800)
    later = ask(2_000.0)
    assert later.charge(1, 2_000.0)
    assert later.throttle_ms(2_000.0) == 0


def test_mutations_without_a_quota():
    quotas, index = mutations()
    assert quotas.allowance(index, "bob", "app", api_key=CREATE_TOPICS, version=7, now_ms=0.0) is None
    assert quotas.allowance(index, "alice", "app", api_key=METADATA, version=7, now_ms=0.0) is None


def test_sensors_are_bounded_in_number_and_age():
    ledger = Ledger(list, sensors_max=3, unused_ms_max=1_000.0)
    for number in range(5):
        ledger.sensor(number, float(number))
    assert (len(ledger), ledger.evicted) == (3, 2)
    ledger.sensor(2, 900.0)
    ledger.sensor("new", 1_500.0)  # 3 and 4 are too old
    assert [group for group, _ in ledger.items()] == ["new", 2]
    assert ledger.evicted == 2


def test_connections_of_one_address():
    rates = ConnectionRates(Windows(2, 1_000.0))
    found = [rates.arrived("L", "10.0.0.1", 2.0, 0.0) for _ in range(4)]
    assert found == [Arrival(0, 0), Arrival(0, 0), Arrival(0, 500), Arrival(0, 500)]
    assert rates.arrived("L", "10.0.0.2", 2.0, 0.0) == Arrival(0, 0)
    assert rates.arrived("L", "10.0.0.1", None, 0.0) == Arrival(0, 0)
    assert rates.arrived("L", "10.0.0.1", 2.0, 2_000.0) == Arrival(0, 0)


def test_a_refused_connection_takes_nothing_from_others():
    """One address that opens too many must not make the whole broker wait."""
    rates = ConnectionRates(Windows(2, 1_000.0))
    rates.configure(4.0, {"L": 4.0}, None)
    assert [rates.arrived("L", "10.0.0.1", 1.0, 0.0).close_after_ms > 0 for _ in range(10)] == [False] + [True] * 9
    assert [rates.arrived("L", f"10.0.1.{host}", 1.0, 0.0) for host in range(3)] == [Arrival(0, 0)] * 3


def test_connections_of_a_listener_and_of_the_broker():
    rates = ConnectionRates(Windows(2, 1_000.0))
    rates.configure(4.0, {"OUTSIDE": 2.0}, "INSIDE")
    assert [rates.arrived("OUTSIDE", "h", None, 0.0)[0] for _ in range(3)] == [0, 0, 500]
    assert [rates.arrived("OTHER", "h", None, 0.0)[0] for _ in range(2)] == [0, 250]
    assert [rates.arrived("INSIDE", "h", 1.0, 0.0) for _ in range(9)] == [Arrival(0, 0)] * 9
    rates.configure(None, {}, None)
    assert rates.arrived("OUTSIDE", "h", None, 0.0) == Arrival(0, 0)
