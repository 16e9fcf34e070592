"""Look-ups of metadata for the application."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.cluster.client import wait_topic

if TYPE_CHECKING:
    from moldau.cluster.client import ClusterClient
    from moldau.cluster.metadata import PartitionInfo


async def partitions_of(client: ClusterClient, topic: str, timeout_ms: float) -> tuple[PartitionInfo, ...]:
    """Returns the partitions of a topic.

    Raises:
        KafkaError: the topic does not exist or cannot be read.
        trio.TooSlowError: its metadata did not arrive in time.
    """
    info = await wait_topic(client, topic, client.now_ms + timeout_ms)
    await trio.lowlevel.checkpoint()
    return info.partitions
