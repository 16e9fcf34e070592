"""Look-ups of metadata for the application."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.cluster.client import ClusterClient
    from moldau.cluster.metadata import PartitionInfo


async def partitions_of(client: ClusterClient, topic: str, timeout_ms: float) -> tuple[PartitionInfo, ...]:
    """Returns the partitions of a topic.

    Raises:
        KafkaError: the topic does not exist or cannot be read.
        trio.TooSlowError: its metadata did not arrive in time.
    """
    client.add_topic(topic)
    deadline_ms = client.now_ms + timeout_ms
    while True:
        info = client.cluster_metadata.topics.get(topic)
        if info is not None and info.partitions:
            await trio.lowlevel.checkpoint()
            return info.partitions
        if info is not None and info.error is not ErrorCode.NONE and not info.error.retriable:
            raise KafkaError(info.error, f"topic {topic}: {info.error.message}")
        await client.wait_update(deadline_ms)
