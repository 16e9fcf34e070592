"""The task that follows the topics goes on when a cluster does not show a change at once.

Goal: partitions that the target has are mirrored, and what it did not take is offered again. Method: scripted admin
clients.
"""

from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from moldau.admin import Acl, AdminError, ConfigEntry
from moldau.mirror.core.settings import parse_settings
from moldau.mirror.topic_sync import TopicSync
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import ConfigSource
from moldau.runtime.telemetry.log import EventLogger

SETTINGS = (
    'target = "h"\n[clusters.h]\n"bootstrap.servers" = "h:1"\n[clusters.e]\n"bootstrap.servers" = "e:1"\n[sources.e]'
)


class Cluster:
    """An admin client: topics with numbers of partitions, which grow only in the next list."""

    def __init__(self, **topics):
        self.topics = topics
        self.grown = {}

    async def list_topics(self, *, include_internal=False):
        await trio.lowlevel.checkpoint()
        return [
            SimpleNamespace(name=name, topic_id=UUID(int=1), partition_count=count, is_internal=False)
            for name, count in self.topics.items()
        ]

    async def create_partitions(self, growth):
        await trio.lowlevel.checkpoint()
        self.grown.update(growth)


def test_a_topic_that_grows_is_mirrored_meanwhile(caplog):
    """The target's broker does not know the new partitions yet when it is asked for them."""
    source, target, wanted = Cluster(orders=2), Cluster(**{"e.orders": 2}), []
    (settings,) = parse_settings(SETTINGS, "mirror.toml").sources

    def want(topics):
        wanted.append({name: topic.partitions for name, topic in topics.items()})

    topics = TopicSync(settings, source, target, want, EventLogger("moldau.mirror"))
    trio.run(topics.refresh)
    source.topics["orders"] = 3
    trio.run(topics.refresh)
    assert target.grown == {"e.orders": 3}
    assert wanted == [{"orders": 2}], "the target has no third partition yet"
    assert any(line.startswith("target-partitions-missing") for line in caplog.messages)
    target.topics.update(target.grown)
    trio.run(topics.refresh)
    assert wanted == [{"orders": 2}, {"orders": 3}]


def test_a_topic_grows_although_another_one_is_refused():
    """A name that the target's policy refuses is refused in each look."""

    class Target(Cluster):
        async def create_topics(self, topics):
            await trio.lowlevel.checkpoint()
            raise AdminError({each.name: KafkaError(ErrorCode.POLICY_VIOLATION) for each in topics})

        async def create_partitions(self, growth):
            await super().create_partitions(growth)
            self.topics.update(growth)

    class Source(Cluster):
        async def describe_configs(self, resources):
            await trio.lowlevel.checkpoint()
            return {resource: {} for resource in resources}

    (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
    wanted = []
    topics = TopicSync(
        settings, Source(new=1, orders=3), Target(**{"e.orders": 2}), wanted.append, EventLogger("moldau.mirror")
    )
    trio.run(topics.refresh)
    assert [{name: topic.partitions for name, topic in each.items()} for each in wanted] == [{"orders": 3}]


class Rights:
    """An admin client with one ACL in the source; the target refuses the first request."""

    def __init__(self):
        self.created = []
        self.is_down = True
        self.acls = [Acl(resource="topic", name="orders", principal="User:ann", operation="read")]

    async def describe_acls(self, wanted):
        await trio.lowlevel.checkpoint()
        return self.acls

    async def create_acls(self, acls):
        await trio.lowlevel.checkpoint()
        if self.is_down:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        self.created += [str(each) for each in acls]


def test_acls_that_were_not_created_are_created_later():
    target = Rights()
    (settings,) = parse_settings(SETTINGS + "\ntopics = ['orders']", "mirror.toml").sources
    topics = TopicSync(settings, Rights(), target, lambda _: None, EventLogger("moldau.mirror"))
    with pytest.raises(KafkaError):
        trio.run(topics.sync_acls)
    target.is_down = False
    assert [trio.run(topics.sync_acls) for _ in range(2)] == [1, 0]
    assert target.created == ["allow User:ann read topic e.orders"]


def test_a_right_that_is_given_again_is_copied_again():
    """An operator took it in both clusters, because ACLs are only added; the mirror took it for copied since."""
    source, target = Rights(), Rights()
    target.is_down = False
    (settings,) = parse_settings(SETTINGS + "\ntopics = ['orders']", "mirror.toml").sources
    topics = TopicSync(settings, source, target, lambda _: None, EventLogger("moldau.mirror"))
    given = source.acls
    for acls, count in ((given, 1), (given, 0), ([], 0), (given, 1)):
        source.acls = acls
        assert trio.run(topics.sync_acls) == count
    assert target.created == ["allow User:ann read topic e.orders"] * 2


class Configured(Cluster):
    """An admin client: topics with a ``retention.ms``, which new ones get, too."""

    def __init__(self, value="", **topics):
        super().__init__(**topics)
        self.value = value

    async def describe_configs(self, resources):
        await trio.lowlevel.checkpoint()
        entry = ConfigEntry(
            name="retention.ms",
            value=self.value,
            source=ConfigSource.DYNAMIC_TOPIC,
            is_read_only=False,
            is_sensitive=False,
        )
        return {resource: {"retention.ms": entry} for resource in resources if resource.name in self.topics}

    async def alter_configs(self, changes):
        await trio.lowlevel.checkpoint()
        for resource, alterations in changes.items():
            assert resource.name in self.topics
            (self.value,) = [each.value for each in alterations]

    async def create_topics(self, topics):
        await trio.lowlevel.checkpoint()
        self.topics |= {each.name: each.partitions for each in topics}


def test_a_new_topic_is_mirrored_at_once():
    """The next look at the topics comes after ten minutes."""
    (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
    wanted = []
    topics = TopicSync(settings, Configured("5", orders=2), Configured(), wanted.append, EventLogger("moldau.mirror"))
    trio.run(topics.refresh)
    assert [list(each) for each in wanted] == [["orders"]]


def test_a_configuration_reaches_the_copy():
    """The copy has another name."""
    (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
    source, target = Configured("5", orders=2), Configured("7", **{"e.orders": 2})
    topics = TopicSync(settings, source, target, lambda _: None, EventLogger("moldau.mirror"))
    trio.run(topics.refresh)
    assert trio.run(topics.sync_configs) == 1
    assert target.value == "5"
    assert trio.run(topics.sync_configs) == 0


class Choosy(Cluster):
    """An admin client: topics with configurations; as a target it takes known keys only, and no ``retention.ms`` of 9.

    As Kafka does, it refuses all keys of a topic if it refuses one.
    """

    KNOWN = ("cleanup.policy", "retention.ms")

    def __init__(self, configs):
        super().__init__(**dict.fromkeys(configs, 1))
        self.configs = configs

    async def describe_configs(self, resources):
        await trio.lowlevel.checkpoint()
        found = {each: self.configs[each.name] for each in resources if each.name in self.configs}
        return {
            each: {
                key: ConfigEntry(
                    name=key,
                    value=values.get(key, "default"),
                    source=ConfigSource.DYNAMIC_TOPIC if key in values else ConfigSource.DEFAULT,
                    is_read_only=False,
                    is_sensitive=False,
                )
                for key in (*self.KNOWN, *values)
            }
            for each, values in found.items()
        }

    def check(self, name, values):
        wrong = [key for key, value in values.items() if key not in self.KNOWN or (key, value) == ("retention.ms", "9")]
        if wrong:
            raise AdminError({name: KafkaError(ErrorCode.INVALID_CONFIG, f"{wrong[0]} is refused")})

    async def create_topics(self, topics):
        await trio.lowlevel.checkpoint()
        for each in topics:
            self.check(each.name, each.configs)
            self.topics[each.name], self.configs[each.name] = each.partitions, dict(each.configs)

    async def alter_configs(self, changes):
        await trio.lowlevel.checkpoint()
        for resource, alterations in changes.items():
            values = {each.name: each.value for each in alterations}
            self.check(resource.name, values)
            self.configs[resource.name] |= values


def choosy(configs, caplog):
    """Mirrors a topic with these configurations; returns what the target has, and the warnings about keys."""
    (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
    target = Choosy({})
    topics = TopicSync(settings, Choosy({"orders": configs}), target, lambda _: None, EventLogger("moldau.mirror"))
    trio.run(topics.refresh)
    made = dict(target.configs["e.orders"])
    trio.run(topics.sync_configs)
    return made, target.configs["e.orders"], [line for line in caplog.messages if "topic-config-left-out" in line]


def test_a_key_that_the_target_lacks_leaves_the_others(caplog):
    """The topic was made without any configuration, so a compacted one deleted records for ten minutes."""
    made, later, warnings = choosy({"cleanup.policy": "compact", "new.key": "1", "retention.ms": "5"}, caplog)
    assert made == later == {"cleanup.policy": "compact", "retention.ms": "5"}
    (warning,) = warnings
    assert "new.key" in warning


def test_a_value_that_the_target_refuses_leaves_the_others(caplog):
    """A synchronization of configurations ended there, at each interval again."""
    made, later, warnings = choosy({"retention.ms": "9", "cleanup.policy": "compact"}, caplog)
    assert made == later == {"cleanup.policy": "compact"}
    assert len(warnings) == 2
    assert all("retention.ms is refused" in each for each in warnings)
