"""Goal: the controller refuses changes whose effective configuration is invalid on a node."""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import alter_configs as full
from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.runtime.config import BROKER_CONFIG, TOPIC_CONFIG, topic_config
from moldau_quorum.metadata.records import ConfigRecord, FeatureLevelRecord
from support.controller.model import CONFIG, ModelController

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
SET, DELETE = 0, 1
Resource = tuple[int, str, dict[str, str | None]]


@pytest.fixture
def controller() -> ModelController:
    controller = ModelController()
    controller.join(1, 2, 3)
    controller.create("t")
    return controller


def alter(controller: ModelController, *resources: Resource) -> list[tuple[int, str | None]]:
    """Sets values (None deletes) of each resource; returns codes and messages."""
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    incremental.AlterableConfig(
                        name=key, config_operation=DELETE if value is None else SET, value=value
                    )
                    for key, value in values.items()
                ],
            )
            for kind, name, values in resources
        ],
        validate_only=False,
    )
    return [(entry.error_code, entry.error_message) for entry in controller.handle(request).responses]


def plant(controller: ModelController, kind: int, name: str, **values: str) -> None:
    """Commits values that this version refuses, as an older version might have done."""
    controller.apply(
        ConfigRecord(resource_type=kind, resource_name=name, name=key.replace("_", "."), value=value)
        for key, value in values.items()
    )


def test_broker_keys_have_the_ranges_of_their_topic_twins():
    for key in TOPIC_CONFIG.keys.values():
        for synonym in key.synonyms:
            twin = BROKER_CONFIG.key(synonym.name)
            if synonym.factor != 1:
                continue  # other units; negative ones count as -1
            assert (twin.type, twin.choices) == (key.type, key.choices), synonym.name
            assert (twin.minimum, twin.maximum) == (key.minimum, key.maximum), synonym.name
            assert twin.excluded == key.excluded, synonym.name


def test_a_default_that_no_topic_could_have_is_refused(controller):
    before = controller.image
    ((code, message),) = alter(controller, (BROKER, "", {"log.flush.interval.ms": "-1"}))
    assert code == ErrorCode.INVALID_CONFIG
    assert message is not None
    assert "log.flush.interval.ms = '-1'" in message
    lags = {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"}
    assert alter(controller, (BROKER, "", lags))[0][0] == ErrorCode.INVALID_CONFIG
    assert controller.image is before


def test_a_default_that_breaks_a_topic_is_refused_by_its_name(controller):
    """The controller refuses a default that is not valid for one topic, and names the topic."""
    assert alter(controller, (TOPIC, "t", {"max.compaction.lag.ms": "1000"}))[0][0] == ErrorCode.NONE
    for broker in ("", "1"):
        ((code, message),) = alter(controller, (BROKER, broker, {"log.cleaner.min.compaction.lag.ms": "60000"}))
        assert code == ErrorCode.INVALID_CONFIG
        assert message == (
            "log.cleaner.min.compaction.lag.ms = '60000' is not valid for topic 't': "
            "min.compaction.lag.ms = 60000: must not be above max.compaction.lag.ms = 1000"
        )
    assert alter(controller, (BROKER, "", {"log.cleaner.min.compaction.lag.ms": "1000"}))[0][0] == ErrorCode.NONE


def test_a_topic_is_checked_with_every_brokers_values(controller):
    """The controller checks a topic's overrides together with the dynamic values of every broker."""
    assert alter(controller, (BROKER, "2", {"log.cleaner.min.compaction.lag.ms": "60000"}))[0][0] == ErrorCode.NONE
    ((code, message),) = alter(controller, (TOPIC, "t", {"max.compaction.lag.ms": "1000"}))
    assert (code, message) == (
        ErrorCode.INVALID_CONFIG,
        "topic 't': min.compaction.lag.ms = 60000: must not be above max.compaction.lag.ms = 1000",
    )
    own = {"max.compaction.lag.ms": "1000", "min.compaction.lag.ms": "0"}
    assert alter(controller, (TOPIC, "t", own))[0][0] == ErrorCode.NONE


def test_a_default_is_checked_with_every_brokers_values(controller):
    """For broker 1 nothing changes, because it has a value of its own; with that of broker 2 no topic can be."""
    assert alter(controller, (BROKER, "1", {"log.cleaner.max.compaction.lag.ms": "5000"}))[0][0] == ErrorCode.NONE
    assert alter(controller, (BROKER, "2", {"log.cleaner.min.compaction.lag.ms": "1000"}))[0][0] == ErrorCode.NONE
    before = controller.image
    ((code, _),) = alter(controller, (BROKER, "", {"log.cleaner.max.compaction.lag.ms": "500"}))
    assert code == ErrorCode.INVALID_CONFIG
    assert controller.image is before
    assert alter(controller, (BROKER, "", {"log.cleaner.max.compaction.lag.ms": "1000"}))[0][0] == ErrorCode.NONE


def test_resources_of_one_request_are_judged_together(controller):
    outcome = alter(
        controller,
        (BROKER, "", {"log.cleaner.min.compaction.lag.ms": "60000"}),
        (TOPIC, "t", {"max.compaction.lag.ms": "1000"}),
    )
    assert [code for code, _ in outcome] == [ErrorCode.NONE, ErrorCode.INVALID_CONFIG]
    topic_config(CONFIG.with_values(controller.image.config(BROKER, "")), controller.image.topic_config("t"))


def test_earlier_wrong_values_block_no_change(controller):
    plant(controller, BROKER, "", log_cleaner_min_compaction_lag_ms="60000", max_connection_creation_rate="5")
    plant(controller, TOPIC, "t", max_compaction_lag_ms="1000")
    assert alter(controller, (TOPIC, "t", {"retention.ms": "7"}))[0][0] == ErrorCode.NONE
    assert alter(controller, (BROKER, "", {"log.retention.ms": "7"}))[0][0] == ErrorCode.NONE
    assert alter(controller, (TOPIC, "t", {"max.compaction.lag.ms": "999"}))[0][0] == ErrorCode.INVALID_CONFIG
    assert alter(controller, (BROKER, "", {"max.connection.creation.rate": None}))[0][0] == ErrorCode.NONE
    wrong = {"max.connections.per.ip.overrides": "10.0.0.1:5,localhost:9"}
    assert alter(controller, (BROKER, "", wrong))[0][0] == ErrorCode.INVALID_CONFIG
    assert alter(controller, (TOPIC, "t", {"max.compaction.lag.ms": None}))[0][0] == ErrorCode.NONE


def test_a_bound_that_admits_no_address_is_refused(controller):
    """Brokers and administrators would be shut out as well; Kafka takes 0 beside exceptions only."""
    none, some = {"max.connections.per.ip": "0"}, {"max.connections.per.ip.overrides": "10.0.0.1:5"}
    ((code, message),) = alter(controller, (BROKER, "", none))
    assert (code, "needs max.connections.per.ip.overrides" in message) == (ErrorCode.INVALID_CONFIG, True)
    assert alter(controller, (BROKER, "", none | some))[0][0] == ErrorCode.NONE


@pytest.mark.parametrize("key", ["max.connections", "max.connection.creation.rate"])
def test_a_bound_of_no_connection_is_refused(controller, key):
    """A file may say 0; at run time Kafka refuses it, because no client could connect to take it back."""
    for broker in ("", "1"):
        for name in (key, f"listener.name.plaintext.{key}"):
            ((code, message),) = alter(controller, (BROKER, broker, {name: "0"}))
            assert (code, f"{name} = 0 would admit no connection" in str(message)) == (ErrorCode.INVALID_CONFIG, True)
            assert alter(controller, (BROKER, broker, {name: "1"})) == [(0, None)]
            assert alter(controller, (BROKER, broker, {name: None})) == [(0, None)]


def test_read_only_keys_are_refused_but_may_be_removed(controller):
    """Keys that nodes read only at the start are refused; one that is set already may be removed."""
    for name, value in (
        ("listeners", "PLAINTEXT://:1"),
        ("advertised.listeners", "PLAINTEXT://a:1"),
        ("log.cleaner.enable", "false"),
        ("num.recovery.threads.per.data.dir", "1"),
    ):
        for broker in ("", "1"):
            ((code, message),) = alter(controller, (BROKER, broker, {name: value}))
            assert code == ErrorCode.INVALID_REQUEST
            assert message == f"{name} cannot be changed while brokers run"
    plant(controller, BROKER, "1", advertised_listeners="PLAINTEXT://a:1")
    assert alter(controller, (BROKER, "1", {"leader.replication.throttled.rate": "5"}))[0][0] == ErrorCode.NONE
    assert alter(controller, (BROKER, "1", {"advertised.listeners": None}))[0][0] == ErrorCode.NONE
    assert controller.image.config(BROKER, "1") == {"leader.replication.throttled.rate": "5"}


def test_only_some_keys_have_values_of_single_listeners(controller):
    """A key may be set for one listener only if brokers look it up for each listener."""
    before = controller.image
    for key, value in (("min.insync.replicas", "2"), ("log.retention.ms", "7"), ("max.connections.per.ip", "5")):
        for broker in ("", "1"):
            ((code, message),) = alter(controller, (BROKER, broker, {f"listener.name.plaintext.{key}": value}))
            assert code == ErrorCode.INVALID_CONFIG
            assert f"{key} cannot be set for a single listener" in str(message)
    assert controller.image is before
    for broker, key, value in (
        ("", "max.connections", "9"),
        ("", "max.connection.creation.rate", "20"),
        ("1", "ssl.client.auth", "required"),
        ("1", "sasl.enabled.mechanisms", "PLAIN"),
        ("1", "plain.sasl.jaas.config", 'PlainLoginModule required user_alice="a";'),
    ):
        assert alter(controller, (BROKER, broker, {f"listener.name.plaintext.{key}": value})) == [(0, None)]


def test_no_broker_has_a_minimum_of_its_own_with_elr() -> None:
    """A leader whose minimum is below the controller's acknowledges records that an eligible replica may lack."""
    key, feature = "min.insync.replicas", "eligible.leader.replicas.version"
    controller = ModelController(elr=False)
    controller.join(1, 2, 3)
    assert alter(controller, (BROKER, "", {key: "2"}), (BROKER, "3", {key: "1"})) == [(0, None)] * 2
    enable = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature=feature, max_version_level=1)])
    refused = controller.handle(enable)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert f"{key} is set for broker 3" in refused.error_message
    assert feature not in controller.image.features
    assert alter(controller, (BROKER, "3", {key: None})) == [(0, None)]
    assert controller.handle(enable).error_code == ErrorCode.NONE
    assert alter(controller, (BROKER, "3", {key: "1"}))[0][0] == ErrorCode.INVALID_CONFIG


def test_a_dead_letter_queue_needs_its_level_of_features() -> None:
    """Below it brokers write no dead letters, so rejected records would be lost without a line of the log."""
    key, feature = "errors.deadletterqueue.topic.name", "share.version"
    controller = ModelController()
    controller.join(1, 2, 3)

    def change(level: int, upgrade_type: int) -> str | None:
        update = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=upgrade_type)
        answer = controller.handle(UpdateFeaturesRequest(feature_updates=[update]))
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION)
        return answer.error_message

    controller.apply([FeatureLevelRecord(name=feature, level=1)])
    needs = f"{key} = 'dlq.t': needs share.version 2; the cluster is at 1"
    assert alter(controller, (GROUP, "g", {key: "dlq.t"})) == [(ErrorCode.INVALID_CONFIG, needs)]
    assert alter(controller, (GROUP, "g", {key: ""})) == [(0, None)]
    assert change(2, upgrade_type=1) is None
    assert alter(controller, (GROUP, "g", {key: "dlq.t"})) == [(0, None)]
    assert "level 1 would end the dead letter queue of group 'g'" in str(change(1, upgrade_type=2))
    assert change(1, upgrade_type=3) is None
    other = "share.delivery.count.limit"
    assert alter(controller, (GROUP, "g", {other: "3"})) == [(0, None)], "what is set already blocks no other key"
    assert alter(controller, (GROUP, "g", {key: None})) == [(0, None)]


def test_a_minimum_of_one_broker_can_always_be_removed(controller) -> None:
    """An earlier version turned eligible leader replicas on beside it."""
    plant(controller, BROKER, "3", min_insync_replicas="1")
    assert alter(controller, (BROKER, "3", {"min.insync.replicas": None})) == [(0, None)]
    assert not controller.image.config(BROKER, "3")


LISTS = [
    (TOPIC, "t", "cleanup.policy", "compact"),
    (BROKER, "", "log.cleanup.policy", "compact"),
    (CLIENT_METRICS, "m", "match", "client_id=a"),
]


@pytest.mark.parametrize(("kind", "name", "key", "element"), LISTS, ids=[key for _, _, key, _ in LISTS])
def test_an_empty_element_of_a_list_is_refused(controller, kind: int, name: str, key: str, element: str) -> None:
    """``cleanup.policy=,`` was neither of the policies, so that records stayed for ever."""
    for text in (",", " , ", f"{element},", f",{element}", f"{element},,{element}"):
        assert alter(controller, (kind, name, {key: text}))[0][0] == ErrorCode.INVALID_CONFIG, text
        assert replaced(controller, kind, name, key, text) == ErrorCode.INVALID_CONFIG, text
    for text in (element, f" {element} ", "", " "):
        assert alter(controller, (kind, name, {key: text}))[0][0] == ErrorCode.NONE, text
        assert replaced(controller, kind, name, key, text) == ErrorCode.NONE, text


def replaced(controller: ModelController, kind: int, name: str, key: str, value: str) -> int:
    resource = full.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[full.AlterableConfig(name=key, value=value)]
    )
    return controller.handle(full.AlterConfigsRequest(resources=[resource])).responses[0].error_code


def test_no_topic_is_made_with_an_empty_element(controller) -> None:
    created = controller.handle(
        CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name="u",
                    num_partitions=1,
                    replication_factor=1,
                    configs=[CreatableTopicConfig(name="cleanup.policy", value="compact,")],
                )
            ],
            timeout_ms=0,
        )
    )
    assert created.topics[0].error_code == ErrorCode.INVALID_CONFIG


def test_stored_lists_with_empty_elements_stay(controller) -> None:
    """An earlier version stored them; nodes go on with what they name, and other keys may change."""
    plant(controller, TOPIC, "t", cleanup_policy="compact,")
    assert alter(controller, (TOPIC, "t", {"retention.ms": "5"}))[0][0] == ErrorCode.NONE
    assert topic_config(CONFIG, controller.image.topic_config("t")).get_list("cleanup.policy") == ("compact",)


@pytest.mark.parametrize("level", ["-2", "-1", "0", "1", "9", "10"])
def test_gzip_has_the_levels_of_kafka(controller, level: str) -> None:
    wanted = ErrorCode.NONE if level in ("-1", "1", "9") else ErrorCode.INVALID_CONFIG
    key = "compression.gzip.level"
    assert [code for code, _ in alter(controller, (TOPIC, "t", {key: level}), (BROKER, "", {key: level}))] == [
        wanted,
        wanted,
    ]


@pytest.mark.parametrize("name", ["cordoned.log.dirs", "log.dirs", "log.retention.ms", "no.such.key"])
def test_a_key_that_is_not_set_may_be_deleted(controller, name: str) -> None:
    """As in Kafka, a deletion is judged by what is left."""
    before = controller.image
    for broker in ("", "1"):
        assert alter(controller, (BROKER, broker, {name: None}))[0][0] == ErrorCode.NONE
    assert controller.image is before
