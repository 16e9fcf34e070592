"""Configuration of topics, brokers, groups, loggers and subscriptions of metrics; quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.messages import alter_configs, incremental_alter_configs
from moldau.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from moldau.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.protocol.messages.list_config_resources import ListConfigResourcesRequest
from support.answers.topics import made

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.answers.session import AnswerSession

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
Change = tuple[str, int, str | None]
Entity = tuple[tuple[str, str | None], ...]
_TOPIC_CHANGES: Final[dict[str, list[Change]]] = {
    "set": [("retention.ms", SET, "1000")],
    "set to null": [("retention.ms", SET, None)],
    "set to nothing": [("retention.ms", SET, "")],
    "set to a word": [("retention.ms", SET, "x")],
    "set to ' 5 '": [("retention.ms", SET, " 5 ")],
    "set to +5": [("retention.ms", SET, "+5")],
    "set to 5_0": [("retention.ms", SET, "5_0")],
    "set to 5.0": [("retention.ms", SET, "5.0")],
    "set to TRUE": [("unclean.leader.election.enable", SET, "TRUE")],
    "set to yes": [("unclean.leader.election.enable", SET, "yes")],
    "set a policy to Compact": [("cleanup.policy", SET, "Compact")],
    "set a list with blanks": [("cleanup.policy", SET, " compact , delete ")],
    "set a list with a repetition": [("cleanup.policy", SET, "compact,compact")],
    "set a list to nothing": [("cleanup.policy", SET, "")],
    "set an unknown key": [("nope", SET, "5")],
    "delete": [("retention.ms", DELETE, None)],
    "delete what is not set": [("retention.ms", DELETE, None)],
    "delete with a value": [("retention.ms", DELETE, "5")],
    "delete an unknown key": [("nope", DELETE, None)],
    "append": [("cleanup.policy", APPEND, "compact")],
    "append again": [("cleanup.policy", APPEND, "compact")],
    "append to a number": [("retention.ms", APPEND, "5")],
    "subtract": [("cleanup.policy", SUBTRACT, "delete")],
    "subtract again": [("cleanup.policy", SUBTRACT, "delete")],
    "subtract the last": [("cleanup.policy", SUBTRACT, "compact")],
    "change one key twice": [("retention.ms", SET, "5"), ("retention.ms", SET, "6")],
    "set and delete one key": [("retention.ms", SET, "5"), ("retention.ms", DELETE, None)],
    "nothing": [],
    "no replica in sync": [("min.insync.replicas", SET, "0")],
    "more replicas in sync than there are": [("min.insync.replicas", SET, "5")],
    "lags in the wrong order": [("max.compaction.lag.ms", SET, "1"), ("min.compaction.lag.ms", SET, "5")],
    "throttle all": [("leader.replication.throttled.replicas", SET, "*")],
    "throttle a word": [("leader.replication.throttled.replicas", SET, "abc")],
    "throttle some": [("leader.replication.throttled.replicas", SET, "0:1,1:1")],
    "throttle one more": [("leader.replication.throttled.replicas", APPEND, "2:1")],
    "segments of 0 ms": [("segment.ms", SET, "0")],
    "more local than all": [("retention.bytes", SET, "10"), ("local.retention.bytes", SET, "20")],
    "gzip level 10": [("compression.gzip.level", SET, "10")],
    "zstd level -200000": [("compression.zstd.level", SET, "-200000")],
    "lz4 level 0": [("compression.lz4.level", SET, "0")],
}
_OTHER_CHANGES: Final[dict[str, tuple[int, str, list[Change]]]] = {
    "all brokers": (BROKER, "", [("log.retention.ms", SET, "86400000")]),
    "a fixed key of a broker": (BROKER, "1", [("log.dirs", SET, "/x")]),
    "the id of all brokers": (BROKER, "", [("broker.id", SET, "5")]),
    "a broker named x": (BROKER, "x", [("log.retention.ms", SET, "1")]),
    "addresses of all brokers": (BROKER, "", [("advertised.listeners", SET, "PLAINTEXT://a:1")]),
    "a password of all brokers": (BROKER, "", [("ssl.keystore.password", SET, "x")]),
    "a listener": (BROKER, "1", [("listener.name.plaintext.max.connections", SET, "100")]),
    "all brokers back": (BROKER, "", [("log.retention.ms", DELETE, None)]),
    "a group": (GROUP, "group", [("consumer.session.timeout.ms", SET, "50000")]),
    "a session too short": (GROUP, "group", [("consumer.session.timeout.ms", SET, "1")]),
    "heartbeats too rare": (GROUP, "group", [("consumer.heartbeat.interval.ms", SET, "60000")]),
    "an unknown key of a group": (GROUP, "group", [("x", SET, "1")]),
    "no group": (GROUP, "", [("consumer.session.timeout.ms", SET, "50000")]),
    "the start of a share group": (GROUP, "group", [("share.auto.offset.reset", SET, "earliest")]),
    "a bad start of a share group": (GROUP, "group", [("share.auto.offset.reset", SET, "middle")]),
    "a start by time": (GROUP, "group", [("share.auto.offset.reset", SET, "by_duration:PT1H")]),
    "a lock too short": (GROUP, "group", [("share.record.lock.duration.ms", SET, "1")]),
    "too many standbys": (GROUP, "group", [("streams.num.standby.replicas", SET, "99")]),
    "a subscription": (
        METRICS,
        "metrics",
        [("metrics", SET, "org.apache"), ("interval.ms", SET, "1000"), ("match", SET, "client_id=a.*")],
    ),
    "a subscription to nothing": (METRICS, "metrics", [("match", SET, "nope=a")]),
    "a bad pattern": (METRICS, "metrics", [("match", SET, "client_id=((")]),
    "no subscription": (METRICS, "", [("interval.ms", SET, "1000")]),
    "a level": (LOGGER, "1", [("root", SET, "INFO")]),
    "a bad level": (LOGGER, "1", [("root", SET, "LOUD")]),
    "an unknown logger": (LOGGER, "1", [("no.such.logger", SET, "DEBUG")]),
    "the root logger deleted": (LOGGER, "1", [("root", DELETE, None)]),
    "a logger of no broker": (LOGGER, "", [("root", SET, "INFO")]),
    "an unknown kind": (99, "x", [("a", SET, "b")]),
}


def change(
    kind: int, name: str, changes: Iterable[Change], *, validate: bool = False
) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
    """Returns a request that changes one resource."""
    configs = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate)


def description(
    kind: int, name: str, keys: list[str] | None = None, *, synonyms: bool = False
) -> DescribeConfigsRequest:
    """Returns a request for one resource."""
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    return DescribeConfigsRequest(resources=[resource], include_synonyms=synonyms)


async def settings(session: AnswerSession) -> None:
    """Describes and changes settings, then quotas."""
    name, _ = await made(session, "settings")
    for version in (1, 3, 4):
        await session.ask(f"describe with version {version}", description(TOPIC, name), version)
    described = {
        "some keys": description(TOPIC, name, ["retention.ms", "nope"], synonyms=True),
        "without keys": description(TOPIC, name, []),
        "an unknown topic": description(TOPIC, session.name("unknown")),
        "a bad name": description(TOPIC, "a/b"),
        "no topic": description(TOPIC, ""),
        "an unknown broker": description(BROKER, "9"),
        "a broker named x": description(BROKER, "x"),
        "loggers of an unknown broker": description(LOGGER, "9"),
        "loggers of no broker": description(LOGGER, ""),
        "no group": description(GROUP, ""),
        "a subscription that was not made": description(METRICS, session.name("metrics")),
        "no subscription": description(METRICS, ""),
        "an unknown kind": description(99, "a"),
        "nothing": DescribeConfigsRequest(resources=[]),
    }
    await session.ask_all("describe", described)
    await session.ask("change only checked", change(TOPIC, name, [("retention.ms", SET, "2000")], validate=True))
    await session.ask_all("change", {step: change(TOPIC, name, each) for step, each in _TOPIC_CHANGES.items()})
    topics = {"an unknown topic": session.name("unknown"), "a bad name": "a/b", "no topic": ""}
    set_ = [("retention.ms", SET, "5")]
    await session.ask_all("change of", {step: change(TOPIC, each, set_) for step, each in topics.items()})
    others = {
        step: change(kind, session.name(named) if named in ("group", "metrics") else named, each)
        for step, (kind, named, each) in _OTHER_CHANGES.items()
    }
    await session.ask_all("change of", others)
    await session.ask("change of nothing", incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[]))
    changed = {"topic": (TOPIC, name), "subscription": (METRICS, session.name("metrics"))}
    await session.ask_all(
        "describe a changed", {step: description(kind, each, synonyms=True) for step, (kind, each) in changed.items()}
    )
    await _replaced(session, name)
    await _quotas(session)


async def _replaced(session: AnswerSession, name: str) -> None:
    def replaced(
        kind: int, resource_name: str, *configs: tuple[str, str | None], validate: bool = False
    ) -> alter_configs.AlterConfigsRequest:
        values = [alter_configs.AlterableConfig(name=key, value=value) for key, value in configs]
        resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=resource_name, configs=values)
        return alter_configs.AlterConfigsRequest(resources=[resource], validate_only=validate)

    cases = {
        "all": replaced(TOPIC, name, ("segment.ms", "100000")),
        "by null": replaced(TOPIC, name, ("segment.ms", None)),
        "twice": replaced(TOPIC, name, ("segment.ms", "1"), ("segment.ms", "2")),
        "by nothing": replaced(TOPIC, name),
        "an unknown key": replaced(TOPIC, name, ("x", "1")),
        "of an unknown topic": replaced(TOPIC, session.name("unknown"), ("segment.ms", "1")),
        "of a broker by nothing": replaced(BROKER, "1"),
        "of loggers": replaced(LOGGER, "1", ("root", "INFO")),
        "an unknown key, only checked": replaced(TOPIC, name, ("x", "1"), validate=True),
    }
    await session.ask_all("replace", cases)
    await session.ask("describe a replaced topic", description(TOPIC, name, ["segment.ms", "retention.ms"]))
    for kind in (TOPIC, METRICS, GROUP, 99):
        step = f"list resources of kind {kind}"
        answer = await session.ask(step, ListConfigResourcesRequest(resource_types=[kind]), 1)
        mine = {session.name(word) for word in ("settings", "metrics", "group")}
        names = sorted(
            each.resource_name.split("-")[0] for each in answer.config_resources if each.resource_name in mine
        )
        session.answers[step] = {"error_code": answer.error_code, "names": names}


def quota(entity: Entity, *values: tuple[str, float, bool], validate: bool = False) -> AlterClientQuotasRequest:
    """Returns a request about one entity; each value is a key, a number, and whether it is removed."""
    entry = AlterClientQuotasRequestEntryData(
        entity=[AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[OpData(key=key, value=value, remove=remove) for key, value, remove in values],
    )
    return AlterClientQuotasRequest(entries=[entry], validate_only=validate)


async def _quotas(session: AnswerSession) -> None:
    name = session.name("user")
    user: Entity = (("user", name),)
    address: Entity = (("ip", "1.2.3.4"),)
    rate, connections = "producer_byte_rate", "connection_creation_rate"
    cases = {
        "of a user": quota(user, (rate, 1024.0, False)),
        "of all users": quota((("user", None),), (rate, 1e9, False)),
        "of a user's client": quota((("client-id", "c"), ("user", name)), ("consumer_byte_rate", 5.5, False)),
        "of an address": quota(address, (connections, 10.0, False)),
        "of no address": quota((("ip", "no such host.."),), (connections, 10.0, False)),
        "of an address and a user": quota((*address, *user), (connections, 10.0, False)),
        "of an address, with a user's key": quota(address, (rate, 10.0, False)),
        "of a user, with an address's key": quota(user, (connections, 10.0, False)),
        "0": quota(user, (rate, 0.0, False)),
        "-1": quota(user, (rate, -1.0, False)),
        "no number": quota(user, (rate, float("nan"), False)),
        "infinite": quota(user, (rate, float("inf"), False)),
        "1.5 bytes": quota(user, (rate, 1.5, False)),
        "1.5 changes": quota(user, ("controller_mutation_rate", 1.5, False)),
        "150.5 percent": quota(user, ("request_percentage", 150.5, False)),
        "1.5 connections": quota(address, (connections, 1.5, False)),
        "of an unknown key": quota(user, ("x", 1.0, False)),
        "of nothing": quota((), (rate, 1.0, False)),
        "of an unknown kind": quota((("galaxy", name),), (rate, 1.0, False)),
        "of a user without a name": quota((("user", ""),), (rate, 1.0, False)),
        "unchanged": quota(user),
        "twice": quota(user, (rate, 1.0, False), (rate, 2.0, False)),
        "only checked": quota(user, (rate, 7.0, False), validate=True),
        "removed that is not set": quota(user, ("consumer_byte_rate", 0.0, True)),
    }
    await session.ask_all("quota", cases)
    asked: dict[str, list[tuple[str, int, str | None]]] = {
        "of a user": [("user", 0, name)],
        "of all users": [("user", 1, None)],
        "of an address": [("ip", 0, "1.2.3.4")],
        "with an unknown match": [("user", 7, None)],
        "of two users": [("user", 0, "a"), ("user", 0, "b")],
        "of a user without a name": [("user", 0, None)],
        "of a kind without a name": [("", 0, "a")],
    }
    described = {
        step: DescribeClientQuotasRequest(
            components=[ComponentData(entity_type=kind, match_type=how, match=match) for kind, how, match in parts],
            strict=True,
        )
        for step, parts in asked.items()
    }
    await session.ask_all("quotas", described)
    removed = {
        "of all users": quota((("user", None),), (rate, 0.0, True)),
        "of an address": quota(address, (connections, 0.0, True)),
        "of a user": quota(
            user, *((key, 0.0, True) for key in (rate, "request_percentage", "controller_mutation_rate"))
        ),
    }
    await session.ask_all("quota removed", removed)
