"""Goal: a topic becomes tiered, is changed, and ceases to be tiered only as Kafka allows it (KIP-405, KIP-950).

Method: a controller in virtual time gets CreateTopics, IncrementalAlterConfigs and AlterConfigs.
"""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import alter_configs
from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.runtime.config import BROKER_CONFIG, ConfigError, parse_server_config
from moldau_quorum.metadata.records import METADATA_LEVEL_TIERED, METADATA_VERSION, ConfigRecord
from support.controller.model import CONFIG, ModelController

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
ENABLE, DISABLE_COPY = "remote.storage.enable", "remote.log.copy.disable"
DELETE_ON_DISABLE = "remote.log.delete.on.disable"
TIERED = {ENABLE: "true"}


def new_controller(*, is_enabled: bool = True) -> ModelController:
    static = {"remote.log.storage.system.enable": is_enabled}
    controller = ModelController(broker_config=BROKER_CONFIG.parse({**CONFIG.explicit(), **static}))
    controller.join(1, 2, 3)
    return controller


def alter(controller: ModelController, kind: int, name: str, values: dict[str, str | None]) -> tuple[int, str]:
    """Sets values (None deletes); returns code and message."""
    configs = [
        incremental.AlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
        for key, value in values.items()
    ]
    resource = incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    (entry,) = controller.handle(request).responses
    return entry.error_code, entry.error_message or ""


def replace_all(controller: ModelController, name: str, values: dict[str, str]) -> int:
    configs = [alter_configs.AlterableConfig(name=key, value=value) for key, value in values.items()]
    resource = alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=configs)
    request = alter_configs.AlterConfigsRequest(resources=[resource], validate_only=False)
    (entry,) = controller.handle(request).responses
    code: int = entry.error_code
    return code


def create(controller: ModelController, name: str, values: dict[str, str]) -> tuple[int, str]:
    result = controller.create(name, **{key.replace(".", "_"): value for key, value in values.items()})
    return result.error_code, result.error_message or ""


REFUSED = [
    ({"cleanup.policy": "compact"}, "cleanup.policy = compact: must be delete"),
    ({"cleanup.policy": "compact,delete"}, "cleanup.policy = compact,delete: must be delete"),
    ({"retention.ms": "1000", "local.retention.ms": "1001"}, "local.retention.ms = 1001: must not be above"),
    ({"retention.ms": "1000", "local.retention.ms": "-1"}, "local.retention.ms = -1: must not be above"),
    ({"retention.bytes": "1000", "local.retention.bytes": "1001"}, "local.retention.bytes = 1001: must not be above"),
    ({"retention.bytes": "1000", "local.retention.bytes": "-1"}, "local.retention.bytes = -1: must not be above"),
    ({DISABLE_COPY: "true", "local.retention.ms": "5"}, "local.retention.ms = 5: must be -2 (or 604800000"),
    ({DISABLE_COPY: "true", "local.retention.bytes": "5"}, "local.retention.bytes = 5: must be -2 (or -1, the value"),
]
ALLOWED: list[dict[str, str]] = [
    {},
    {"cleanup.policy": "delete"},
    {"retention.ms": "1000", "local.retention.ms": "1000"},
    {"retention.ms": "-1", "local.retention.ms": "-1"},
    {"retention.ms": "-1", "local.retention.ms": "5"},
    {"retention.bytes": "1000", "local.retention.bytes": "-2"},
    {DISABLE_COPY: "true", "retention.ms": "1000", "local.retention.ms": "1000", "local.retention.bytes": "-1"},
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_settings_that_do_not_fit_are_refused(values: dict[str, str], message: str) -> None:
    controller = new_controller()
    code, found = create(controller, "t", {**TIERED, **values})
    assert code == ErrorCode.INVALID_CONFIG
    assert found.startswith(message)
    assert create(controller, "plain", values) == (ErrorCode.NONE, ""), "only tiered topics are restricted"
    assert alter(controller, TOPIC, "plain", TIERED)[0] == ErrorCode.INVALID_CONFIG
    assert create(controller, "tiered", TIERED) == (ErrorCode.NONE, "")
    code, found = alter(controller, TOPIC, "tiered", dict(values))
    assert code == ErrorCode.INVALID_CONFIG
    assert message in found
    assert replace_all(controller, "tiered", {**TIERED, **values}) == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("values", ALLOWED)
def test_settings_that_fit_are_taken(values: dict[str, str]) -> None:
    controller = new_controller()
    assert create(controller, "t", {**TIERED, **values}) == (ErrorCode.NONE, "")
    assert create(controller, "plain", values) == (ErrorCode.NONE, "")
    assert alter(controller, TOPIC, "plain", TIERED) == (ErrorCode.NONE, "")


def test_topics_are_tiered_only_where_nodes_can() -> None:
    controller = new_controller(is_enabled=False)
    code, message = create(controller, "t", TIERED)
    assert code == ErrorCode.INVALID_CONFIG
    assert "remote.log.storage.system.enable = true" in message
    assert create(controller, "t", {ENABLE: "false"}) == (ErrorCode.NONE, "")
    assert alter(controller, TOPIC, "t", TIERED)[0] == ErrorCode.INVALID_CONFIG


def test_a_tiered_topic_can_be_changed_without_the_node_key() -> None:
    """An operator who starts controllers without the key can still change other settings of the topic."""
    controller = new_controller(is_enabled=False)
    create(controller, "t", {})
    controller.apply([ConfigRecord(resource_type=TOPIC, resource_name="t", name=ENABLE, value="true")])
    assert alter(controller, TOPIC, "t", {"max.message.bytes": "1000"}) == (ErrorCode.NONE, "")
    assert alter(controller, TOPIC, "t", {ENABLE: "false"})[0] == ErrorCode.INVALID_CONFIG
    assert alter(controller, TOPIC, "t", {ENABLE: "false", DELETE_ON_DISABLE: "true"}) == (ErrorCode.NONE, "")


@pytest.mark.parametrize("off", ["false", None, "replaced"])
def test_disabling_deletes_and_says_so(off: str | None) -> None:
    controller = new_controller()
    create(controller, "t", TIERED)

    def disable(**values: str) -> int:
        more = {key.replace("_", "."): value for key, value in values.items()}
        return (
            replace_all(controller, "t", more)
            if off == "replaced"
            else alter(controller, TOPIC, "t", {ENABLE: off, **more})[0]
        )

    assert disable() == ErrorCode.INVALID_CONFIG
    assert disable(remote_log_delete_on_disable="false") == ErrorCode.INVALID_CONFIG
    assert disable(remote_log_delete_on_disable="true") == ErrorCode.NONE
    assert alter(controller, TOPIC, "t", {DELETE_ON_DISABLE: None}) == (ErrorCode.NONE, "")
    assert alter(controller, TOPIC, "t", TIERED) == (ErrorCode.NONE, "")


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
def test_internal_topics_are_never_tiered(topic: str) -> None:
    controller = new_controller()
    code, message = create(controller, topic, {**TIERED, "cleanup.policy": "delete"})
    assert code == ErrorCode.INVALID_CONFIG
    assert "internal topic" in message
    assert create(controller, topic, {}) == (ErrorCode.NONE, "")
    code, _ = alter(controller, TOPIC, topic, {**TIERED, "cleanup.policy": "delete"})
    assert code == ErrorCode.INVALID_CONFIG


def test_defaults_that_break_a_tiered_topic_are_refused() -> None:
    controller = new_controller()
    create(controller, "plain", {"retention.ms": "1000"})
    assert alter(controller, BROKER, "", {"log.local.retention.ms": "5000"}) == (ErrorCode.NONE, "")
    assert create(controller, "t", {**TIERED, "retention.ms": "1000"})[0] == ErrorCode.INVALID_CONFIG
    assert create(controller, "t", {**TIERED, "retention.ms": "5000"}) == (ErrorCode.NONE, "")
    code, message = alter(controller, BROKER, "", {"log.local.retention.ms": "5001"})
    assert code == ErrorCode.INVALID_CONFIG
    assert "is not valid for topic 't'" in message
    code, message = alter(controller, BROKER, "2", {"log.cleanup.policy": "compact"})
    assert code == ErrorCode.INVALID_CONFIG
    assert "must be delete with remote.storage.enable" in message
    assert alter(controller, BROKER, "", {"log.local.retention.ms": "4000"}) == (ErrorCode.NONE, "")
    assert alter(controller, BROKER, "", {"log.local.retention.ms": str(8 * 86_400_000)})[0] == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_file_with_local_retention_above_retention_is_refused(is_enabled: bool) -> None:
    text = (
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9093\n"
        "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\nlog.retention.ms=5\n"
        f"log.local.retention.ms=6\nremote.log.storage.system.enable={str(is_enabled).lower()}\n"
    )
    if is_enabled:
        with pytest.raises(ConfigError, match=r"local\.retention\.ms = 6: must not be above retention\.ms = 5"):
            parse_server_config(text, "server.properties", {})
    else:
        assert parse_server_config(text, "server.properties", {}).get_int("log.local.retention.ms") == 6


@pytest.mark.parametrize("unsafe", [False, True])
def test_tiered_topics_need_their_level(unsafe: bool) -> None:
    """Nodes of the version before know neither level nor key: they would hide what only the object store has."""
    controller = new_controller()
    controller.create("t", remote_storage_enable="true")
    kind = 3 if unsafe else 2
    level = METADATA_LEVEL_TIERED - 1
    update = FeatureUpdateKey(feature=METADATA_VERSION, max_version_level=level, upgrade_type=kind)
    answer = controller.handle(UpdateFeaturesRequest(feature_updates=[update]))
    if not unsafe:
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "would forget the remote records of topic 't'" in answer.error_message
        return
    assert answer.error_code == ErrorCode.NONE
    assert alter(controller, TOPIC, "t", {"retention.ms": "5"})[0] == ErrorCode.NONE
    controller.create("v")
    for code, message in (create(controller, "u", TIERED), alter(controller, TOPIC, "v", {ENABLE: "true"})):
        assert code == ErrorCode.INVALID_CONFIG
        assert message.startswith("remote.storage.enable = true: needs metadata.version 4; the cluster is at 3")
