"""Goal: groups, client metrics, loggers and Kafka's unserved broker keys are configured as in Kafka.

Method: requests of administrators to whole brokers on virtual time, compared with Kafka's codes and sources.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_configs import AlterableConfig as FullConfig
from moldau.protocol.messages.alter_configs import AlterConfigsRequest
from moldau.protocol.messages.alter_configs import AlterConfigsResource as FullResource
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.list_config_resources import ListConfigResourcesRequest
from moldau.runtime.config import ConfigSource
from moldau.runtime.telemetry.log_levels import LEVELS
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    import pytest

    from support.cluster.broker_cluster import Client, Cluster

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2
NONE, INVALID_CONFIG, INVALID_REQUEST = ErrorCode.NONE, ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST
Change = tuple[str, int, str | None]


def resource(kind: int, name: str, *changes: Change) -> AlterConfigsResource:
    configs = [AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    return AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


async def alter(client: Client, *resources: AlterConfigsResource, validate_only: bool = False) -> list[int]:
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    return [entry.error_code for entry in (await client.request(request)).responses]


async def described(client: Client, kind: int, name: str, *keys: str) -> dict[str, tuple[str | None, int]]:
    wanted = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)
    (result,) = (await client.request(DescribeConfigsRequest(resources=[wanted], include_synonyms=True))).results
    assert result.error_code == NONE, result
    return {entry.name: (entry.value, entry.config_source) for entry in result.configs}


def test_groups_have_configurations_of_their_own() -> None:
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        assert (await described(client, GROUP, "g"))[session] == ("45000", ConfigSource.DEFAULT)
        assert (await described(client, GROUP, "g", heartbeat)) == {heartbeat: ("6000", ConfigSource.STATIC_BROKER)}
        assert await alter(client, resource(GROUP, "g", (session, SET, "50000"), (heartbeat, SET, "7000"))) == [NONE]
        shown = await described(client, GROUP, "g", session, heartbeat)
        assert shown == {session: ("50000", 8), heartbeat: ("7000", 8)}
        assert (await described(client, GROUP, "other", session)) == {session: ("45000", ConfigSource.DEFAULT)}
        for change in (
            (session, SET, "44999"),  # below group.consumer.min.session.timeout.ms
            (heartbeat, SET, "15001"),
            ("consumer.assignment.interval.ms", SET, "15001"),
            ("share.assignment.interval.ms", SET, "15001"),
            ("streams.assignment.interval.ms", SET, "-1"),
            ("share.record.lock.duration.ms", SET, "14999"),
            ("share.delivery.count.limit", SET, "11"),
            ("share.partition.max.record.locks", SET, "4001"),
            (session, SET, "long"),
            ("retention.ms", SET, "1"),
            ("share.auto.offset.reset", SET, "by_chance"),
            ("share.isolation.level", SET, "none"),
            (session, APPEND, "1"),
        ):
            assert await alter(client, resource(GROUP, "g", change)) == [INVALID_CONFIG], change
        assert await alter(client, resource(GROUP, "", (session, SET, "50000"))) == [INVALID_REQUEST]
        assert await alter(client, resource(GROUP, "g", (session, DELETE, None))) == [NONE]
        assert (await described(client, GROUP, "g", session)) == {session: ("45000", ConfigSource.DEFAULT)}

    run_cluster(scenario, group_consumer_heartbeat_interval_ms="6000")


def test_metrics_subscriptions_are_kept_and_listed() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        pattern = "client_id=app-.*,client_software_version=11.1.*"
        wanted = resource(METRICS, "s", ("metrics", SET, "a.,b."), ("match", SET, pattern), ("interval.ms", SET, "100"))
        assert await alter(client, wanted, validate_only=True) == [NONE]
        assert (await client.request(ListConfigResourcesRequest(), 0)).config_resources == ()
        assert await alter(client, wanted, resource(GROUP, "g", ("share.isolation.level", SET, "read_committed"))) == [
            NONE,
            NONE,
        ]
        assert await described(client, METRICS, "s") == {
            "metrics": ("a.,b.", 7),
            "interval.ms": ("100", 7),
            "match": (pattern, 7),
        }
        assert await alter(client, resource(METRICS, "s", ("metrics", APPEND, "c."))) == [NONE]
        assert (await described(client, METRICS, "s", "metrics")) == {"metrics": ("a.,b.,c.", 7)}
        for change in (
            ("interval.ms", SET, "99"),
            ("interval.ms", SET, "3600001"),
            ("match", SET, "colour=red"),
            ("match", SET, "client_id"),
            ("match", SET, "client_id=["),
            ("match", SET, "client_id=" + "(" * 5000),
            ("match", SET, "client_id=a{99999999999999999999}"),
            ("nonsense", SET, "1"),
        ):
            assert await alter(client, resource(METRICS, "s", change)) == [INVALID_CONFIG], change
        listed = (await client.request(ListConfigResourcesRequest(), 0)).config_resources
        assert [(entry.resource_name, entry.resource_type) for entry in listed] == [("s", METRICS)]
        everything = (await client.request(ListConfigResourcesRequest(), 1)).config_resources
        found = [(entry.resource_name, entry.resource_type) for entry in everything]
        assert found == [("1", BROKER), ("1", LOGGER), ("s", METRICS), ("g", GROUP)]
        some = await client.request(ListConfigResourcesRequest(resource_types=[GROUP, GROUP]), 1)
        assert [entry.resource_name for entry in some.config_resources] == ["g"]
        wrong = await client.request(ListConfigResourcesRequest(resource_types=[3]), 1)
        assert wrong.error_code == ErrorCode.UNSUPPORTED_VERSION

    run_cluster(scenario)


def test_levels_of_loggers_change_at_once_and_come_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        logger = logging.getLogger("moldau.kind-a.b")
        shown = await described(client, LOGGER, "1")
        assert {"root", "moldau", "moldau.kind-a", "moldau.kind-a.b", "moldau.broker"} <= shown.keys()
        assert {source for _, source in shown.values()} == {6}
        assert {level for level, _ in shown.values()} <= LEVELS.keys()
        before = shown["moldau.kind-a.b"]
        assert await alter(client, resource(LOGGER, "1", ("moldau.kind-a", SET, "TRACE")), validate_only=True) == [NONE]
        assert not logger.isEnabledFor(logging.DEBUG)
        assert await alter(client, resource(LOGGER, "1", ("moldau.kind-a", SET, "DEBUG"))) == [NONE]
        assert logger.isEnabledFor(logging.DEBUG)
        assert await described(client, LOGGER, "1", "moldau.kind-a.b") == {"moldau.kind-a.b": ("DEBUG", 6)}
        assert await alter(client, resource(LOGGER, "1", ("moldau.kind-a.b", SET, "OFF"))) == [NONE]
        assert not logger.isEnabledFor(logging.CRITICAL)
        changes = (("moldau.kind-a", DELETE, None), ("moldau.kind-a.b", DELETE, None))
        assert await alter(client, resource(LOGGER, "1", *changes)) == [NONE]
        assert await described(client, LOGGER, "1", "moldau.kind-a.b") == {"moldau.kind-a.b": before}

    run_cluster(scenario)


def test_wrong_changes_of_loggers_are_refused_as_a_whole() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        good = ("moldau.kind-a", SET, "DEBUG")
        for name, changes, code in (
            ("1", [good, ("moldau", SET, "LOUD")], INVALID_CONFIG),
            ("1", [good, ("moldau", SET, None)], INVALID_CONFIG),
            ("1", [good, ("no.such.logger", SET, "INFO")], INVALID_CONFIG),
            ("1", [good, ("root", DELETE, None)], INVALID_REQUEST),
            ("1", [good, ("moldau", APPEND, "INFO")], INVALID_REQUEST),
            ("1", [good, good], INVALID_REQUEST),
            ("2", [good], INVALID_REQUEST),
            ("", [good], INVALID_REQUEST),
        ):
            assert await alter(client, resource(LOGGER, name, *changes)) == [code], (name, changes)
        assert await alter(client, resource(LOGGER, "1", good), resource(LOGGER, "1", good)) == [INVALID_REQUEST] * 2
        full = FullResource(resource_type=LOGGER, resource_name="1", configs=[FullConfig(name="moldau", value="INFO")])
        (entry,) = (await client.request(AlterConfigsRequest(resources=[full]))).responses
        assert entry.error_code == INVALID_REQUEST
        assert not logging.getLogger("moldau.kind-a").isEnabledFor(logging.DEBUG)
        topic = resource(TOPIC, "t", ("retention.ms", SET, "7"))
        await client.create_topic("t")
        assert sorted(await alter(client, resource(LOGGER, "1", good), topic)) == [NONE, NONE], "each goes its way"
        assert (await described(client, TOPIC, "t", "retention.ms")) == {"retention.ms": ("7", 1)}
        assert logging.getLogger("moldau.kind-a").isEnabledFor(logging.DEBUG)
        reset = ("moldau.kind-a", DELETE, None)  # loggers belong to the process, which runs other tests
        assert await alter(client, resource(LOGGER, "1", reset)) == [NONE]

    run_cluster(scenario)


def test_levels_of_a_simulated_cluster_end_with_it() -> None:
    """Its brokers share the process with the test that started them, and with the next test's."""

    async def scenario(cluster: Cluster) -> None:
        changes = (("root", SET, "TRACE"), ("moldau.kind-a", SET, "TRACE"))
        assert await alter(cluster.client(1), resource(LOGGER, "1", *changes)) == [NONE]
        assert [logging.getLogger(name).level for name in (None, "moldau.kind-a")] == [5, 5]

    before = [logging.getLogger(name).level for name in (None, "moldau.kind-a")]
    run_cluster(scenario)
    assert [logging.getLogger(name).level for name in (None, "moldau.kind-a")] == before


def test_unserved_keys_of_kafka_are_kept_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka's tests set such a key; Kafka's own lists decide which can be changed at run time."""
    caplog.set_level(logging.WARNING)
    key = "sasl.kerberos.min.time.before.relogin"

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        assert await alter(client, resource(BROKER, "1", (key, SET, "58000"))) == [NONE]
        await cluster.until(lambda: "keys-not-served" in caplog.text)
        assert await described(client, BROKER, "1", key) == {key: ("58000", ConfigSource.DYNAMIC_BROKER)}
        assert await alter(client, resource(BROKER, "", ("metric.reporters", SET, "x"))) == [NONE]
        assert await alter(client, resource(BROKER, "", (key, SET, "58000"))) == [INVALID_REQUEST], "of one broker only"
        readonly = resource(BROKER, "1", ("remote.log.storage.manager.class.name", SET, "x"))
        assert await alter(client, readonly) == [INVALID_REQUEST]
        assert await alter(client, resource(BROKER, "1", ("sasl.kerberos.min.time", SET, "1"))) == [INVALID_CONFIG]
        assert await alter(client, resource(BROKER, "1", (key, DELETE, None))) == [NONE]
        await cluster.until(lambda: not cluster.running[1].context.config.is_set(key))

    run_cluster(scenario)
    warnings = [record.getMessage() for record in caplog.records if "keys-not-served" in record.getMessage()]
    assert any(key in line for line in warnings)
    assert len(warnings) == len(set(warnings))
