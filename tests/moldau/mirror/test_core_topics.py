"""The mirror's changes of the target's topics follow from the metadata of both clusters."""

import itertools
import uuid

import pytest

from moldau.admin import ConfigAlteration, ConfigEntry, NewTopic
from moldau.admin.values import ConfigOperation, TopicListing
from moldau.mirror.core.filters import CONFIGS_EXCLUDED, NameFilter, TopicRules
from moldau.mirror.core.policy import ReplicationPolicy
from moldau.mirror.core.topics import ConfigRules, SourceTopic, SourceTopics, TopicChanges, plan_topics
from moldau.runtime.config import ConfigSource

RULES = TopicRules(policy=ReplicationPolicy(), target_alias="hub", names=NameFilter([".*"], ["secret.*"]))
CONFIGS = ConfigRules(names=NameFilter([".*"], CONFIGS_EXCLUDED))


def listing(name, number=1, partitions=1, is_internal=False):
    return TopicListing(name=name, topic_id=uuid.UUID(int=number), is_internal=is_internal, partition_count=partitions)


def entry(name, value, source=ConfigSource.DYNAMIC_TOPIC, **flags):
    flags = {"is_read_only": False, "is_sensitive": False} | flags
    return ConfigEntry(name=name, value=value, source=source, **flags)


def entries(*given):
    return {each.name: each for each in given}


def test_changes_of_the_source_are_classified():
    topics = SourceTopics(RULES)
    first = [listing("a"), listing("b", 2), listing("c", 3), listing("secrets"), listing("x", is_internal=True)]
    assert topics.look(first) == TopicChanges(added=("a", "b", "c"))
    assert topics.look(first) == TopicChanges()
    found = topics.look([listing("a", partitions=3), listing("b", 9, 5), listing("hub.d", 4)])
    assert found == TopicChanges(grown=("a",), deleted=("c",), recreated=("b",))
    assert topics.loops == ("hub.d",)
    assert topics.known == {
        "a": SourceTopic(topic_id=uuid.UUID(int=1), partitions=3),
        "b": SourceTopic(topic_id=uuid.UUID(int=9), partitions=5),
    }


def test_only_topics_that_came_from_the_target_are_loops():
    """An internal topic of a mirror is left out too, and needs no warning."""
    topics = SourceTopics(RULES)
    topics.look([listing("mm2-offset-syncs.hub.internal"), listing("hub.d", 2), listing("secret.hub.d", 3)])
    assert topics.known == {}
    assert topics.loops == ("hub.d",)


def test_names_that_the_source_lacks_are_missing():
    """Expressions may match nothing; a plain name stands for a topic that its author expects."""
    names = NameFilter(["orders", "pay.ments", "logs-.*", "hub.loop"], [])
    topics = SourceTopics(TopicRules(policy=RULES.policy, target_alias="hub", names=names))
    topics.look([listing("pay-ments"), listing("hub.loop")])
    assert topics.missing == ("orders",)
    topics.look([listing("orders"), listing("pay.ments"), listing("hub.loop")])
    assert topics.missing == ()


def test_the_plan_creates_and_grows():
    source = {name: SourceTopic(topic_id=uuid.UUID(int=1), partitions=4) for name in ("new", "grown", "same", "more")}
    target = {"e.grown": 2, "e.same": 4, "e.more": 6}
    plan = plan_topics(
        source, target, lambda name: f"e.{name}", configs={"new": {"retention.ms": "1"}}, replication_factor=3
    )
    assert plan.creations == (NewTopic("e.new", 4, 3, configs={"retention.ms": "1"}),)
    assert plan.growth == {"e.grown": 4}
    assert plan
    assert not plan_topics({}, target, lambda name: name, configs={}, replication_factor=1), (
        "topics of the target that no source has stay"
    )


def test_a_new_topic_gets_what_the_source_has_set():
    given = entries(
        entry("retention.ms", "1"),
        entry("segment.bytes", "2", ConfigSource.STATIC_BROKER),
        entry("cleanup.policy", "delete", ConfigSource.DEFAULT),
        entry("min.insync.replicas", "2"),
        entry("secret", None, is_sensitive=True),
        entry("fixed", "3", is_read_only=True),
    )
    assert CONFIGS.of_new_topic(given) == {"retention.ms": "1"}
    assert ConfigRules(names=CONFIGS.names, uses_source_defaults=True).of_new_topic(given) == {
        "retention.ms": "1",
        "cleanup.policy": "delete",
    }


def test_only_differences_are_altered():
    source = entries(
        entry("retention.ms", "1"),
        entry("segment.bytes", "5"),
        entry("cleanup.policy", "delete", ConfigSource.DEFAULT),
        entry("flush.ms", "9", ConfigSource.DEFAULT),
        entry("unknown.key", "1"),
        entry("min.insync.replicas", "2"),
    )
    target = entries(
        entry("retention.ms", "1"),
        entry("segment.bytes", "4", ConfigSource.DEFAULT),
        entry("cleanup.policy", "compact"),
        entry("flush.ms", "8", ConfigSource.DEFAULT),
        entry("min.insync.replicas", "1"),
    )
    assert CONFIGS.changes(source, target) == [
        ConfigAlteration(name="segment.bytes", value="5"),
        ConfigAlteration(name="cleanup.policy", operation=ConfigOperation.DELETE),
    ]
    changes = ConfigRules(names=CONFIGS.names, uses_source_defaults=True).changes(source, target)
    assert ConfigAlteration(name="flush.ms", value="9") in changes
    assert ConfigAlteration(name="cleanup.policy", value="delete") in changes


@pytest.mark.parametrize("uses_source_defaults", [True, False])
def test_a_value_that_only_the_sources_file_has_is_removed(uses_source_defaults):
    """The copy kept a retention.ms that the source's topic had once, if the source's brokers set log.retention.ms."""
    rules = ConfigRules(names=CONFIGS.names, uses_source_defaults=uses_source_defaults)
    source = entries(
        entry("retention.ms", "7", ConfigSource.STATIC_BROKER), entry("segment.bytes", "5", ConfigSource.STATIC_BROKER)
    )
    target = entries(entry("retention.ms", "1"), entry("segment.bytes", "4", ConfigSource.STATIC_BROKER))
    assert rules.changes(source, target) == [ConfigAlteration(name="retention.ms", operation=ConfigOperation.DELETE)]


@pytest.mark.parametrize("uses_source_defaults", [True, False])
def test_a_copy_sets_what_a_new_one_would_get(uses_source_defaults):
    """A value that is not copied leaves the copy even if it equals the source's default, which may not be its own."""
    rules = ConfigRules(names=CONFIGS.names, uses_source_defaults=uses_source_defaults)
    for of_source, of_copy, value in itertools.product(ConfigSource, ConfigSource, ["1", "2"]):
        source = entries(entry("retention.ms", "1", of_source))
        changes = rules.changes(source, entries(entry("retention.ms", value, of_copy)))
        if rules.of_new_topic(source):
            assert changes == [ConfigAlteration(name="retention.ms", value="1")] * (value != "1")
        else:
            removal = ConfigAlteration(name="retention.ms", operation=ConfigOperation.DELETE)
            assert changes == [removal] * (of_copy is ConfigSource.DYNAMIC_TOPIC)
