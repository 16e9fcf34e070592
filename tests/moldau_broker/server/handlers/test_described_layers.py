"""Goal: a described value is the one that the broker uses.

Method: the handler alone, with metadata that hold a value which this broker cannot use.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio

from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.runtime.config import BROKER_CONFIG, ConfigSource
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.server.handlers.configs import handle_describe_configs
from moldau_broker.server.lifecycle.dynamic_config import DynamicConfig
from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC, MetadataImage
from moldau_quorum.metadata.records import ConfigRecord, TopicRecord

KEY = "max.connection.creation.rate"
STATIC = BROKER_CONFIG.parse(
    {
        "process.roles": "broker",
        "node.id": "1",
        "listeners": "PLAINTEXT://b1:9092",
        "controller.quorum.voters": "101@c:9093",
        KEY: "7",
    }
)


@pytest.mark.parametrize("layer", ["", "1"], ids=["all brokers", "one broker"])
def test_a_value_that_is_left_out_is_not_described(layer: str) -> None:
    record = ConfigRecord(resource_type=RESOURCE_BROKER, resource_name=layer, name=KEY, value="-100")
    image = MetadataImage(offset=0).apply([record], offset=1, epoch=1).image
    dynamic = DynamicConfig(STATIC, 1, EventLogger("test"))
    config = dynamic.follow(image)
    assert config.get_int(KEY) == 7
    context: Any = SimpleNamespace(
        broker_id=1, config=config, static_config=STATIC, dynamic=dynamic, metadata=SimpleNamespace(image=image)
    )
    wanted = DescribeConfigsResource(resource_type=RESOURCE_BROKER, resource_name="1", configuration_keys=[KEY])
    request = DescribeConfigsRequest(resources=[wanted], include_synonyms=True)
    (entry,) = trio.run(handle_describe_configs, context, request, None).results[0].configs
    assert (entry.value, entry.config_source) == ("7", ConfigSource.STATIC_BROKER)
    assert [each.value for each in entry.synonyms if each.value == "-100"] == []


def described(keys: list[str] | None, kind: int = RESOURCE_TOPIC, **static: str) -> Any:
    """Returns the configuration of a topic or a group on a broker with these keys in its file."""
    file = STATIC.with_values({name.replace("_", "."): value for name, value in static.items()})
    image = MetadataImage(offset=0).apply([TopicRecord(name="t", topic_id=UUID(int=1))], offset=1, epoch=1).image
    dynamic = DynamicConfig(file, 1, EventLogger("test"))
    context: Any = SimpleNamespace(
        broker_id=1, config=file, static_config=file, dynamic=dynamic, metadata=SimpleNamespace(image=image)
    )
    wanted = DescribeConfigsResource(resource_type=kind, resource_name="t", configuration_keys=keys)
    request = DescribeConfigsRequest(resources=[wanted], include_synonyms=True)
    return trio.run(handle_describe_configs, context, request, None).results[0].configs


@pytest.mark.parametrize(
    ("key", "static", "value"),
    [
        ("retention.ms", {"log_retention_hours": "2"}, "7200000"),
        ("retention.ms", {"log_retention_minutes": "3", "log_retention_hours": "2"}, "180000"),
        ("retention.ms", {"log_retention_hours": "-1"}, "-1"),
        ("segment.ms", {"log_roll_hours": "1"}, "3600000"),
        ("segment.jitter.ms", {"log_roll_jitter_hours": "1"}, "3600000"),
    ],
)
def test_a_topic_has_its_values_in_the_unit_of_its_key(key: str, static: dict[str, str], value: str) -> None:
    """Kafka's own server.properties has ``log.retention.hours``; a synonym is shown as the file has it."""
    (entry,) = described([key], **static)
    assert (entry.value, entry.config_source) == (value, ConfigSource.STATIC_BROKER)
    first = next(iter(static))
    assert (entry.synonyms[0].name, entry.synonyms[0].value) == (first.replace("_", "."), static[first])


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("cleanup.policy", [("log.cleanup.policy", "delete")]),
        ("min.insync.replicas", [("min.insync.replicas", "1")]),
        ("retention.ms", []),  # log.retention.ms has no default
        ("leader.replication.throttled.replicas", []),  # no broker key
    ],
)
def test_a_default_has_the_name_of_the_broker_key(key: str, default: list[tuple[str, str]]) -> None:
    """As in Kafka: tools show which key of the brokers is in force."""
    (entry,) = described([key])
    assert entry.config_source == ConfigSource.DEFAULT
    assert [(each.name, each.value) for each in entry.synonyms] == default


def test_the_default_of_hours_follows_a_retention_in_ms() -> None:
    (entry,) = described(["retention.ms"], log_retention_ms="5")
    assert [(each.name, each.value) for each in entry.synonyms] == [
        ("log.retention.ms", "5"),
        ("log.retention.hours", "168"),
    ]


@pytest.mark.parametrize("key", [KEY, f"listener.name.plaintext.{KEY}"])
def test_the_default_of_all_brokers_has_only_what_is_set(key: str) -> None:
    """The file of this broker has a key of a listener, whose fallback is the plain key."""
    file = STATIC.with_values({f"listener.name.plaintext.{KEY}": "5"})
    record = ConfigRecord(resource_type=RESOURCE_BROKER, resource_name="", name=key, value="100")
    image = MetadataImage(offset=0).apply([record], offset=1, epoch=1).image
    dynamic = DynamicConfig(file, 1, EventLogger("test"))
    context: Any = SimpleNamespace(
        broker_id=1,
        config=dynamic.follow(image),
        static_config=file,
        dynamic=dynamic,
        metadata=SimpleNamespace(image=image),
    )
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=RESOURCE_BROKER, resource_name="", configuration_keys=None)]
    )
    entries = trio.run(handle_describe_configs, context, request, None).results[0].configs
    assert [(each.name, each.value) for each in entries] == [(key, "100")]


def test_a_group_key_without_a_broker_key_is_its_own_synonym() -> None:
    [entry] = described(["share.auto.offset.reset"], RESOURCE_GROUP)
    [synonym] = entry.synonyms
    assert (synonym.name, synonym.value, synonym.source) == (
        "share.auto.offset.reset",
        "latest",
        ConfigSource.DEFAULT,
    )


def test_an_empty_list_of_keys_means_all() -> None:
    """As in Kafka, and as a controller answers."""
    assert {entry.name for entry in described([])} == {entry.name for entry in described(None)}


def test_a_secret_is_described_in_no_layer() -> None:
    """Neither the value in force nor those that it hides."""
    key = "ssl.keystore.password"
    file = STATIC.with_values({key: "secret of the file"})
    context: Any = SimpleNamespace(
        broker_id=1,
        config=file,
        static_config=file,
        dynamic=DynamicConfig(file, 1, EventLogger("test")),
        metadata=SimpleNamespace(image=MetadataImage()),
    )
    wanted = DescribeConfigsResource(resource_type=RESOURCE_BROKER, resource_name="1", configuration_keys=[key])
    request = DescribeConfigsRequest(resources=[wanted], include_synonyms=True)
    (entry,) = trio.run(handle_describe_configs, context, request, None).results[0].configs
    assert (entry.value, entry.is_sensitive, entry.synonyms[0].name) == (None, True, key)
    assert [each.value for each in entry.synonyms] == [None] * len(entry.synonyms)
