"""Goal: a forwarded change has time to be decided, and a broker judges alone what concerns itself.

Method: the handlers alone, with a controller that answers at once.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_configs import AlterableConfig as FullConfig
from moldau.protocol.messages.alter_configs import AlterConfigsResource as FullResource
from moldau.protocol.messages.alter_configs import AlterConfigsResourceResponse as FullAnswer
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
)
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from moldau.runtime.config import BROKER_CONFIG, CORDONED_LOG_DIRS
from moldau_broker.server.handlers.forwarded import handle_create_topics, handle_delete_topics, handle_update_features
from moldau_broker.server.handlers.own_configs import without_refused
from moldau_quorum.controller.entities.configs import APPEND, DELETE, SET, SUBTRACT
from moldau_quorum.controller.entities.loggers import NodeLoggers
from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_BROKER_LOGGER, MetadataImage

CALL: Any = SimpleNamespace(version=7, forwarded=None)
CONFIG = BROKER_CONFIG.parse(
    {
        "process.roles": "broker",
        "node.id": "1",
        "listeners": "PLAINTEXT://b1:9092",
        "controller.quorum.voters": "101@c:9093",
        "log.dirs": "/d1,/d2",
    }
)


@pytest.mark.parametrize(("timeout_ms", "waits_ms"), [(0, 30_000), (20, 1_000), (5_000, 5_000), (90_000, 30_000)])
def test_a_client_that_does_not_wait_leaves_time_to_decide(timeout_ms: int, waits_ms: int) -> None:
    """The default of librdkafka is 0. While a controller is elected, a short time would fail the change."""
    waited: list[float] = []

    async def request(*_: object, timeout_ms: float, **__: object) -> CreateTopicsResponse:
        await trio.lowlevel.checkpoint()
        waited.append(timeout_ms)
        return CreateTopicsResponse(topics=[])

    context: Any = SimpleNamespace(controller=SimpleNamespace(request=request), config=CONFIG)
    trio.run(handle_create_topics, context, CreateTopicsRequest(timeout_ms=timeout_ms, validate_only=True), CALL)
    assert waited == [waits_ms]


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (1, ErrorCode.INVALID_REQUEST),
        (2, ErrorCode.INVALID_REQUEST),
        (3, ErrorCode.TOPIC_DELETION_DISABLED),
        (5, ErrorCode.TOPIC_DELETION_DISABLED),
    ],
)
def test_each_topic_hears_once_that_none_is_deleted(version: int, code: ErrorCode) -> None:
    """Clients of the first versions do not know the code; version 5 names topics as they do, and counts as later."""
    context: Any = SimpleNamespace(config=CONFIG.with_values({"delete.topic.enable": "false"}))
    call: Any = SimpleNamespace(version=version, forwarded=None)
    response = trio.run(handle_delete_topics, context, DeleteTopicsRequest(topic_names=["a", "b"]), call)
    assert [(each.name, each.error_code) for each in response.responses] == [("a", code), ("b", code)]


@pytest.mark.parametrize(("operation", "is_refused"), [(SET, True), (APPEND, True), (SUBTRACT, False), (DELETE, False)])
def test_a_directory_that_does_not_exist_is_not_cordoned(operation: int, is_refused: bool) -> None:
    """A value that cordons is checked, with any operation; one that lifts a cordon is not."""
    change = AlterableConfig(name=CORDONED_LOG_DIRS, config_operation=operation, value="/gone")
    resource = AlterConfigsResource(resource_type=RESOURCE_BROKER, resource_name="1", configs=[change])
    context: Any = SimpleNamespace(broker_id=1, config=CONFIG)
    forwarded, refused = without_refused(context, [resource], AlterConfigsResourceResponse)
    assert forwarded == ([] if is_refused else [resource])
    assert [each.error_code for each in refused] == ([ErrorCode.INVALID_CONFIG] if is_refused else [])


SECURED = BROKER_CONFIG.parse(
    {
        "process.roles": "broker",
        "node.id": "1",
        "listeners": "SASL_PLAINTEXT://b1:9092",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "controller.quorum.voters": "101@c:9093",
        "log.dirs": "/d1",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "sasl.jaas.config": 'ScramLoginModule required username="node" password="secret";',
    }
)


@pytest.mark.parametrize(
    ("broker", "key", "value", "reason"),
    [
        ("1", "sasl.enabled.mechanisms", "PLAIN", "listener SASL_PLAINTEXT must offer SCRAM-SHA-512"),
        ("1", "sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-512", ""),
        ("1", "sasl.jaas.config", "garbage", "does not end with a semicolon"),
        ("1", "sasl.mechanism.inter.broker.protocol", "PLAIN", ""),  # the controller says that it cannot be changed
        ("1", "log.retention.ms", "1", ""),
        ("2", "sasl.enabled.mechanisms", "PLAIN", ""),  # another broker, which is down: its file is not known here
    ],
)
@pytest.mark.parametrize("kind", [AlterConfigsResourceResponse, FullAnswer])
def test_a_broker_refuses_security_that_does_not_fit_its_file(
    kind: Any, broker: str, key: str, value: str, reason: str
) -> None:
    """Peers could not log in any more, or the value would have no effect; the controller has not the file."""
    context: Any = SimpleNamespace(
        broker_id=1, static_config=SECURED, environment=None, metadata=SimpleNamespace(image=MetadataImage())
    )
    resource: Any
    if kind is FullAnswer:
        resource = FullResource(
            resource_type=RESOURCE_BROKER, resource_name=broker, configs=[FullConfig(name=key, value=value)]
        )
    else:
        change = AlterableConfig(name=key, config_operation=SET, value=value)
        resource = AlterConfigsResource(resource_type=RESOURCE_BROKER, resource_name=broker, configs=[change])
    forwarded, refused = without_refused(context, [resource], kind)
    assert forwarded == ([] if reason else [resource])
    assert [each.error_code for each in refused] == ([ErrorCode.INVALID_CONFIG] if reason else [])
    assert all(reason in str(each.error_message) for each in refused)


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_trial_changes_no_level(validate_only: bool) -> None:
    """Both a level that is set and one that is deleted are only checked."""
    changed: list[str] = []
    levels: Any = SimpleNamespace(
        names=lambda: ["root", "a", "b"], set=lambda name, _: changed.append(name), reset=changed.append
    )
    loggers = NodeLoggers("broker", 1, levels)
    changes = [
        AlterableConfig(name="a", config_operation=SET, value="DEBUG"),
        AlterableConfig(name="b", config_operation=DELETE, value=None),
    ]
    resource = AlterConfigsResource(resource_type=RESOURCE_BROKER_LOGGER, resource_name="1", configs=changes)
    (response,) = loggers.alter([resource], validate_only=validate_only)
    assert response.error_code == ErrorCode.NONE
    assert changed == ([] if validate_only else ["a", "b"])


@pytest.mark.parametrize(("path", "jaas", "reason"), [("/d1", "garbage", "semicolon"), ("/gone", None, "log.dirs")])
def test_each_kind_of_value_is_checked_beside_the_other(path: str, jaas: str | None, reason: str) -> None:
    """A change may cordon a directory and set a key of SASL at once."""
    changes = [
        AlterableConfig(name=CORDONED_LOG_DIRS, config_operation=SET, value=path),
        AlterableConfig(name="sasl.jaas.config", config_operation=SET if jaas else DELETE, value=jaas),
    ]
    context: Any = SimpleNamespace(
        broker_id=1,
        config=SECURED,
        static_config=SECURED,
        environment=None,
        metadata=SimpleNamespace(image=MetadataImage()),
    )
    for configs in (changes, changes[::-1]):
        resource = AlterConfigsResource(resource_type=RESOURCE_BROKER, resource_name="1", configs=configs)
        forwarded, (refused,) = without_refused(context, [resource], AlterConfigsResourceResponse)
        assert (forwarded, refused.error_code) == ([], ErrorCode.INVALID_CONFIG)
        assert reason in str(refused.error_message)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.FEATURE_UPDATE_FAILED])
def test_all_features_have_the_outcome_of_their_request(code: ErrorCode) -> None:
    """The controller changes all levels or none, and clients of old versions look at the single results alone."""

    async def request(*_: object, **__: object) -> UpdateFeaturesResponse:
        await trio.lowlevel.checkpoint()
        return UpdateFeaturesResponse(error_code=code, error_message="why", results=[])

    updates = [FeatureUpdateKey(feature=name, max_version_level=1) for name in ("a", "b")]
    context: Any = SimpleNamespace(controller=SimpleNamespace(request=request))
    response = trio.run(handle_update_features, context, UpdateFeaturesRequest(feature_updates=updates), CALL)
    assert [(each.feature, each.error_code, each.error_message) for each in response.results] == [
        ("a", code, "why"),
        ("b", code, "why"),
    ]
