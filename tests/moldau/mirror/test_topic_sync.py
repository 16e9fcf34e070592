"""The task that follows the topics goes on when a cluster does not show a change at once.

Goal: partitions that the target has are mirrored. Method: scripted admin clients.
"""

from types import SimpleNamespace
from uuid import UUID

import trio

from moldau.mirror.core.settings import parse_settings
from moldau.mirror.topic_sync import TopicSync
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
    assert any(line.startswith("target-partitions-missing") for line in caplog.messages)
    target.topics.update(target.grown)
    trio.run(topics.refresh)
    assert wanted == [{"orders": 2}, {"orders": 3}]
