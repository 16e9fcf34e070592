"""Goal: settings of groups and of subscriptions to client metrics are checked against all that they depend on.

Method: values at and beyond each bound; the defaults are those of Kafka 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moldau.runtime.config import BROKER_CONFIG, CLIENT_METRICS_CONFIG, GROUP_CONFIG, Config, ConfigError, group_config
from moldau.runtime.config.keys.groups.group import BOUNDED_KEYS, MATCH_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

KAFKA_DEFAULTS = {
    **{f"{kind}.session.timeout.ms": 45_000 for kind in ("consumer", "share", "streams")},
    **{f"{kind}.heartbeat.interval.ms": 5_000 for kind in ("consumer", "share", "streams")},
    **{f"{kind}.assignment.interval.ms": 1_000 for kind in ("consumer", "share", "streams")},
    "share.record.lock.duration.ms": 30_000,
    "share.delivery.count.limit": 5,
    "share.partition.max.record.locks": 2_000,
    "share.auto.offset.reset": "latest",
    "share.isolation.level": "read_uncommitted",
    "streams.num.standby.replicas": 0,
    "streams.initial.rebalance.delay.ms": 3_000,
}


def broker(**changes: object) -> Config:
    return BROKER_CONFIG.parse(
        {
            "process.roles": "broker",
            "node.id": 1,
            "listeners": "PLAINTEXT://h:9092",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "101@c:9093",
            **{name.replace("_", "."): value for name, value in changes.items()},
        }
    )


def reported(call: Callable[..., object], *arguments: object) -> list[str]:
    try:
        call(*arguments)
    except ConfigError as error:
        return list(error.problems)
    return []


def problems(given: dict[str, object], node: Config) -> list[str]:
    return reported(group_config, node, {name: str(value) for name, value in given.items()})


def test_groups_have_the_defaults_of_kafka() -> None:
    config = GROUP_CONFIG.parse({})
    assert {name: config.get(name) for name in KAFKA_DEFAULTS} == KAFKA_DEFAULTS
    assert problems({}, broker()) == []


@pytest.mark.parametrize("name", BOUNDED_KEYS)
def test_a_group_keeps_to_the_bounds_of_its_brokers(name: str) -> None:
    node = broker()
    kind, _, key = name.partition(".")
    least, most = f"group.{kind}.min.{key}", f"group.{kind}.max.{key}"
    low, high = node.get_int(least), node.get_int(most)
    assert low < high
    room = {f"{kind}.heartbeat.interval.ms": 5_000} if "session" in key else {}
    for value in (low, high):
        assert problems({**room, name: value}, node) == []
    for value in (low - 1, high + 1):
        if value >= GROUP_CONFIG.keys[name].minimum:
            expected = f"{name} = {value}: must be from {low} to {high} ({least} and {most})"
            assert problems({**room, name: value}, node) == [expected]


def test_streams_groups_keep_to_the_limits_of_their_brokers() -> None:
    replicas, interval = "streams.num.standby.replicas", "streams.task.offset.interval.ms"
    node = broker()
    most, least = (
        node.get_int("group.streams.max.standby.replicas"),
        node.get_int("group.streams.min.task.offset.interval.ms"),
    )
    assert problems({replicas: most, interval: least}, node) == []
    assert problems({replicas: most + 1, interval: least - 1}, node) == [
        f"{replicas} = {most + 1}: must be at most {most} (group.streams.max.standby.replicas)",
        f"{interval} = {least - 1}: must be at least {least} (group.streams.min.task.offset.interval.ms)",
    ]


@pytest.mark.parametrize(("least", "most", "is_right"), [(6_000, 6_000, True), (6_000, 5_999, False)])
def test_classic_sessions_have_bounds_in_order(least: int, most: int, is_right: bool) -> None:
    given = {"group_min_session_timeout_ms": least, "group_max_session_timeout_ms": most}
    wrong = ["group.min.session.timeout.ms: must not be above group.max.session.timeout.ms"]
    assert reported(lambda: broker(**given)) == ([] if is_right else wrong)


@pytest.mark.parametrize("key", ["assignment.interval.ms", "initial.rebalance.delay.ms", "num.standby.replicas"])
def test_what_may_be_left_out_may_be_zero(key: str) -> None:
    for name in (name for name in GROUP_CONFIG.keys if name.endswith(f".{key}")):
        assert reported(GROUP_CONFIG.parse, {name: 0}) == []
        assert reported(GROUP_CONFIG.parse, {name: -1}) == [f"{name} = -1: must be {GROUP_CONFIG.keys[name].allowed()}"]


@pytest.mark.parametrize("kind", ["consumer", "share", "streams"])
@pytest.mark.parametrize(("session_ms", "is_right"), [(45_001, True), (45_000, False)])
def test_a_heartbeat_fits_into_its_session(kind: str, session_ms: int, is_right: bool) -> None:
    session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
    wrong = [f"{session} = {session_ms}: must be above {heartbeat} = 45000"]
    assert reported(GROUP_CONFIG.parse, {session: session_ms, heartbeat: 45_000}) == ([] if is_right else wrong)


MATCHES = [
    *((f"{field}=a.*", None) for field in MATCH_FIELDS),
    *((f" {field} = a.* ", None) for field in MATCH_FIELDS),
    ("client_id=a=b", None),
    ("client_id", "must be FIELD=EXPRESSION"),
    ("client_id=", "must be FIELD=EXPRESSION"),
    ("client_id= ", "must be FIELD=EXPRESSION"),
    ("=a", "must be FIELD=EXPRESSION"),
    ("client=a", "must be FIELD=EXPRESSION"),
    ("client_id=(", "no regular expression: "),
    ("client_id=[", "no regular expression: "),
    ("client_id=a{99999999999}", "no regular expression: "),
]


@pytest.mark.parametrize(("pattern", "problem"), MATCHES)
def test_a_subscription_names_fields_and_expressions(pattern: str, problem: str | None) -> None:
    """A pattern that no client can match would look like a subscription of clients that push nothing."""
    for given in ([pattern], ["client_id=ok", pattern]):
        found = reported(CLIENT_METRICS_CONFIG.parse, {"match": given})
        assert len(found) == (problem is not None)
        assert all(each.startswith(f"match = {pattern!r}: {problem}") for each in found)
