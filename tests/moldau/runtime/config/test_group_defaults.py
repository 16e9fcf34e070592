"""Goal: a broker whose groups would have values outside its own bounds does not start, as with Kafka."""

import pytest

from moldau.runtime.config import BROKER_CONFIG, GROUP_CONFIG, ConfigError

BROKER = {
    "process.roles": "broker",
    "node.id": "1",
    "listeners": "PLAINTEXT://h:9092",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "101@c:9093",
    "log.dirs": "/data",
}


def problems(**given):
    with pytest.raises(ConfigError) as caught:
        BROKER_CONFIG.parse({**BROKER, **{key.replace("_", "."): value for key, value in given.items()}})
    return list(caught.value.problems)


def test_the_defaults_of_groups_are_within_their_bounds():
    BROKER_CONFIG.parse(BROKER)


@pytest.mark.parametrize("kind", ["consumer", "share", "streams"])
def test_a_default_outside_its_bounds_is_named_with_the_range(kind):
    keys = f"(group.{kind}.min.session.timeout.ms and group.{kind}.max.session.timeout.ms)"
    for value in ("6000", "60001"):
        assert problems(**{f"group.{kind}.session.timeout.ms": value}) == [
            f"group.{kind}.session.timeout.ms = {value}: must be from 45000 to 60000 {keys}"
        ]
    assert (
        f"group.{kind}.heartbeat.interval.ms = 20000: must be from 5000 to 15000"
        in problems(**{f"group.{kind}.heartbeat.interval.ms": "20000"})[0]
    )
    BROKER_CONFIG.parse(
        {**BROKER, f"group.{kind}.min.session.timeout.ms": "6000", f"group.{kind}.session.timeout.ms": "6000"}
    )


def test_bounds_in_the_wrong_order_are_an_error():
    assert problems(group_consumer_min_session_timeout_ms="70000") == [
        "group.consumer.min.session.timeout.ms = 70000: must not be above group.consumer.max.session.timeout.ms = 60000"
    ]


def test_a_session_is_longer_than_a_heartbeat():
    found = problems(
        group_share_min_session_timeout_ms="5000",
        group_share_session_timeout_ms="5000",
    )
    assert found == ["group.share.session.timeout.ms = 5000: must be above group.share.heartbeat.interval.ms = 5000"]


def test_other_defaults_of_groups_are_checked():
    lock = "group.share.record.lock.duration.ms = 1000: must be from 15000 to 60000"
    assert problems(group_share_record_lock_duration_ms="1000")[0].startswith(lock)
    assert problems(group_streams_num_standby_replicas="3") == [
        "group.streams.num.standby.replicas = 3: must be at most 2 (group.streams.max.standby.replicas)"
    ]
    assert problems(group_streams_task_offset_interval_ms="1000") == [
        "group.streams.task.offset.interval.ms = 1000: must be at least 15000 "
        "(group.streams.min.task.offset.interval.ms)"
    ]


@pytest.mark.parametrize(
    "reset", ["by_duration:Pfoo", "by_duration:P", "by_duration:PT-1H", "PT1H", "by_duration:P1Y", "none"]
)
def test_a_share_group_needs_a_place_to_begin(reset):
    """A duration that cannot be parsed must not wait for the first member of the group."""
    with pytest.raises(ConfigError, match="must be earliest, latest or by_duration"):
        GROUP_CONFIG.parse({"share.auto.offset.reset": reset})
    with pytest.raises(ConfigError, match="must be earliest, latest or by_duration"):
        GROUP_CONFIG.parse({"share.auto.offset.reset": f"by_duration:P{'9' * 400}D"})
    GROUP_CONFIG.parse({"share.auto.offset.reset": "by_duration:P3DT1H30M2.5S"})


def test_a_dead_letter_queue_is_a_topic_that_may_exist():
    """A name that no topic can have would be noticed with the first record that is given up (KIP-1191)."""
    key = "errors.deadletterqueue.topic.name"
    for name in ("", "dlq.orders", "_x", ".a", "d" * 249):
        assert GROUP_CONFIG.parse({key: name}).get_str(key) == name
    for name in ("__orders", ".", "..", "a b", "d" * 250, "a/b"):
        with pytest.raises(ConfigError) as raised:
            GROUP_CONFIG.parse({key: name})
        assert raised.value.problems == (
            f"{key} = {name!r}: must be empty or a topic name that does not begin with __",
        )


@pytest.mark.parametrize(
    "key",
    [
        "streams.num.warmup.replicas",
        "streams.acceptable.recovery.lag",
        "streams.assignor.name",
        "streams.rack.aware.assignment.tags",
    ],
)
def test_keys_that_are_not_served_are_no_misspellings(key):
    """The answer was a similar key, such as ``streams.num.standby.replicas``, which means something else."""
    with pytest.raises(ConfigError) as raised:
        GROUP_CONFIG.parse({key: "1"})
    (problem,) = raised.value.problems
    assert problem.startswith(f"{key}: a group configuration key of Kafka that Moldau does not serve: ")
    assert "did you mean" not in problem
