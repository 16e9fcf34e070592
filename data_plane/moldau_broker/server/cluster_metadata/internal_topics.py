"""Creates the internal topics of Kafka Streams applications, as their coordinator has decided (KIP-1071)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.errors import ErrorCode
    from moldau.runtime.config import Config
    from moldau_broker.coordinator.group.streams.core.topology import InternalTopic
    from moldau_broker.server.cluster_metadata.topic_creation import TopicCreation
    from moldau_quorum.broker_side.controller_client import ForwardedClient


@dataclass(frozen=True, slots=True)
class TopicsOfClient:
    """Creates topics on behalf of a client, whose rights and quota decide."""

    creation: TopicCreation
    config: Config
    client: ForwardedClient

    async def create(self, topics: tuple[InternalTopic, ...]) -> Mapping[str, ErrorCode]:
        """Creates topics and waits until this broker knows them; returns the errors by name."""
        default = self.config.get_int("default.replication.factor")
        wanted = [
            CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor if topic.replication_factor > 0 else default,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in topic.configs],
            )
            for topic in topics
        ]
        return await self.creation.ensure_topics(wanted, client=self.client)
