"""Goal: an instance gets its subscriptions, its interval and its errors as with Kafka, and memory stays bounded.

Method: the pure core on chosen times; tables of errors; Hypothesis for the bound of series.
"""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.errors import ErrorCode
from moldau_broker.server.client_metrics.core.instances import (
    INTERVAL_MS_DEFAULT,
    Client,
    Instances,
    Merged,
    Push,
    Subscription,
    id_text,
    merge,
)
from moldau_broker.server.client_metrics.core.series import CLIENT_SERIES_MAX, Budget, ClientSeries, Point

ID, OTHER = UUID(int=7 << 64 | 9), UUID(int=8)
CLIENT = Client(
    client_id="app",
    client_software_name="librdkafka",
    client_software_version="2.16.0",
    client_source_address="10.0.0.1",
    client_source_port="4000",
)
ALL = Subscription(metrics=("*",), interval_ms=1000)
CODECS = (0, 1, 2, 3, 4)


def instances(*subscriptions, **options):
    found = Instances(**options)
    found.replace_subscriptions(subscriptions)
    return found


def pushed(known, now_ms, *, instance_id=ID, subscription_id=None, terminating=False, codec=4, size=10):
    if subscription_id is None:
        subscription_id = merge(instance_id, [ALL]).subscription_id
    push = Push(
        instance_id=instance_id,
        subscription_id=subscription_id,
        terminating=terminating,
        compression_type=codec,
        size=size,
    )
    return known.push(push, CLIENT, now_ms, bytes_max=100, codecs=CODECS)


def test_matching_subscriptions_are_merged() -> None:
    """The metrics are united, the smallest interval counts, and no interval is above the default one."""
    slow = Subscription(metrics=("b.", "a."), interval_ms=3_600_000)
    fast = Subscription(metrics=("b.", "c."), interval_ms=500)
    assert merge(ID, []).metrics == ()
    assert merge(ID, [slow]).interval_ms == INTERVAL_MS_DEFAULT
    both = merge(ID, [slow, fast])
    assert (both.metrics, both.interval_ms) == (("a.", "b.", "c."), 500)
    assert merge(ID, [fast, slow]) == both
    assert merge(ID, [slow, ALL]).metrics == ("*",)
    different = {merge(ID, []), both, merge(ID, [fast]), merge(OTHER, [fast])}
    assert len({merged.subscription_id for merged in different}) == 4
    assert all(-(1 << 31) <= merged.subscription_id < 1 << 31 for merged in different)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("client_id", "app"),
        ("client_instance_id", id_text(ID)),
        ("client_software_name", "librdkafka"),
        ("client_software_version", "2.16.0"),
        ("client_source_address", "10.0.0.1"),
        ("client_source_port", "4000"),
    ],
)
def test_each_field_selects(field, value) -> None:
    chosen = Subscription(metrics=("a.",), interval_ms=1000, match=((field, value.__eq__),))
    other = replace(chosen, match=((field, value.__eq__), ("client_id", "another".__eq__)))
    assert chosen.selects(ID, CLIENT)
    assert not other.selects(ID, CLIENT)


def test_pushes_wait_for_the_interval() -> None:
    """The first push after a get may come at once; a terminating push may always come."""
    known = instances(ALL)
    assert isinstance(known.get(ID, CLIENT, 0), Merged)
    assert known.get(ID, CLIENT, 999) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert pushed(known, 10) is ErrorCode.NONE
    assert pushed(known, 1009) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert pushed(known, 1010) is ErrorCode.NONE
    assert known.get(ID, CLIENT, 2009) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert pushed(known, 1020, terminating=True) is ErrorCode.NONE
    assert pushed(known, 9000) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"subscription_id": 1}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({"codec": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"codec": -1}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"size": 101}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"instance_id": UUID(int=0)}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": UUID(int=1)}, ErrorCode.INVALID_REQUEST),
        ({"size": 100}, ErrorCode.NONE),
        ({"codec": 0}, ErrorCode.NONE),
    ],
)
def test_bad_pushes_have_kafkas_errors(change, error) -> None:
    known = instances(ALL)
    known.get(ID, CLIENT, 0)
    assert pushed(known, 1, **change) is error
    if error in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
        assert isinstance(known.get(ID, CLIENT, 2), Merged), "such a client may ask again at once"


def test_a_changed_subscription_is_reported_at_once() -> None:
    known = instances(ALL)
    first = known.get(ID, CLIENT, 0)
    known.replace_subscriptions([Subscription(metrics=("a.",), interval_ms=1000)])
    assert pushed(known, 1) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    second = known.get(ID, CLIENT, 2)
    assert second.metrics == ("a.",)
    assert second.subscription_id != first.subscription_id


def test_the_first_push_of_a_changed_subscription_is_taken() -> None:
    """Clients spread it from half of the interval on, also when they ask again after a refused push."""
    changed = Subscription(metrics=("a.",), interval_ms=1000)
    wanted = merge(ID, [changed]).subscription_id
    known = instances(ALL)
    known.get(ID, CLIENT, 0)
    assert pushed(known, 1000) is ErrorCode.NONE
    known.replace_subscriptions([changed])
    assert pushed(known, 2000) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert isinstance(known.get(ID, CLIENT, 2001), Merged)
    assert known.get(ID, CLIENT, 2002) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert pushed(known, 2501, subscription_id=wanted) is ErrorCode.NONE
    assert pushed(known, 3500, subscription_id=wanted) is ErrorCode.THROTTLING_QUOTA_EXCEEDED


def point(number, value=1.0, *, is_counter=False, is_delta=False, name="m"):
    return Point(name=name, labels=(("n", str(number)),), is_counter=is_counter, is_delta=is_delta, value=value)


def test_silent_and_surplus_instances_free_their_series() -> None:
    known = instances(ALL, capacity=2)
    for number in range(3):
        instance_id = UUID(int=10 + number)
        known.get(instance_id, CLIENT, number)
        assert known.series(instance_id).store([point(1)]) == 0
    assert (len(known), known.budget.used, UUID(int=10) in known) == (2, 2, False)
    known.expire(59_000)
    assert len(known) == 2
    known.expire(70_000)
    assert (len(known), known.budget.used) == (0, 0)


def test_a_changed_subscription_keeps_the_series() -> None:
    """Their room is given back once, when the instance is forgotten."""
    known = instances(ALL)
    known.get(ID, CLIENT, 0)
    assert known.series(ID).store([point(1), point(2)]) == 0
    for changes in range(3):
        known.replace_subscriptions([ALL])
        known.get(ID, CLIENT, 1 + changes)
        assert (len(known.series(ID)), known.budget.used) == (2, 2)
    known.expire(70_000)
    assert known.budget.used == 0


@pytest.mark.parametrize(
    ("metrics", "kept"),
    [
        (("*",), ["client_app_total", "org_apache_kafka_consumer_lag", "org_apache_kafka_producer_sends_total"]),
        (("org.apache.kafka.consumer.", "none."), ["org_apache_kafka_consumer_lag"]),
        (("org.apache.",), ["org_apache_kafka_consumer_lag", "org_apache_kafka_producer_sends_total"]),
        (("app",), ["client_app_total"]),
        ((), []),
    ],
)
def test_series_end_with_the_subscription_to_them(metrics, kept) -> None:
    """They would show old values and hold room as long as their client lives."""
    names = ["org_apache_kafka_consumer_lag", "org_apache_kafka_producer_sends_total", "client_app_total"]
    known = instances(ALL)
    known.get(ID, CLIENT, 0)
    known.series(ID).store([point(number, name=name) for name in names for number in range(2)])
    known.replace_subscriptions([Subscription(metrics=metrics, interval_ms=1000)] if metrics else [])
    known.get(ID, CLIENT, 1000)
    assert sorted({found.name for found in known.series(ID).points()}) == kept
    assert known.budget.used == len(known.series(ID)) == 2 * len(kept)


def test_changes_add_up_and_values_replace() -> None:
    series = ClientSeries(Budget())
    for value in (2.0, 3.0):
        assert series.store([point(1, value, is_counter=True, is_delta=True), point(1, value, name="g")]) == 0
    assert [found.value for found in series.points()] == [5.0, 3.0]
    refused = [
        point(1, -1.0, is_counter=True, is_delta=True),
        point(2, float("nan"), is_counter=True, is_delta=True),
        point(2, 1.0),
    ]
    assert series.store(refused) == 3
    assert len(series) == 2


@given(st.lists(st.lists(st.integers(0, 2 * CLIENT_SERIES_MAX), max_size=40), max_size=8), st.integers(0, 60))
def test_series_never_exceed_their_budget(pushes, limit) -> None:
    budget = Budget(limit=limit)
    clients = [ClientSeries(budget), ClientSeries(budget)]
    for turn, numbers in enumerate(pushes):
        client = clients[turn % 2]
        left_out = client.store([point(number) for number in numbers])
        assert left_out <= len(numbers)
        assert budget.used == sum(map(len, clients)) <= limit
    for client in clients:
        client.clear()
    assert budget.used == 0


def test_labels_of_a_client_follow_its_last_push() -> None:
    series = ClientSeries(Budget())
    series.store([point(1), replace(point(2), labels=(("group_id", "own"),))])
    series.client_labels = (("group_id", "g"), ("group_member_id", "m1"))
    series.client_labels = (("group_id", "g"), ("group_member_id", "m2"))
    first, second = (dict(each.labels) for each in series.points())
    assert first.items() >= {"group_id": "g", "group_member_id": "m2"}.items()
    assert second == {"group_id": "own", "group_member_id": "m2"}
    assert len(series) == 2
