"""Reports topics and partitions that a consumer cannot read, in the log and with an error from poll."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.cluster.troubles import InvalidTopicError, Troubles
from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.metadata import ClusterMetadata, TopicPartition

CREATION_GRACE_MS = 1_000.0
"""How long a topic may be unknown before it is reported, if brokers may create it."""


def troubles_of(
    cluster_metadata: ClusterMetadata, topics: Iterable[str], partitions: Iterable[TopicPartition]
) -> dict[str | TopicPartition, tuple[ErrorCode, str]]:
    """Returns the errors, with texts, that brokers gave for the topics and partitions."""
    found: dict[str | TopicPartition, tuple[ErrorCode, str]] = {}
    partitions = list(partitions)
    for name in dict.fromkeys([*topics, *(partition.topic for partition in partitions)]):
        info = cluster_metadata.topics.get(name)
        if info is not None and not info.partitions and info.error is not ErrorCode.NONE:
            found[name] = (info.error, f"topic {name}: {info.error.message}")
    for partition in partitions:
        info = cluster_metadata.topics.get(partition.topic)
        if info is not None and 0 < len(info.partitions) <= partition.partition:
            text = f"partition {partition}: topic {partition.topic} has {len(info.partitions)} partitions"
            found[partition] = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    return found


class TopicWatch:
    """Checks each Metadata answer for errors of the topics that the application reads."""

    def __init__(
        self,
        client: ClusterClient,
        subscribed: Callable[[], Iterable[str]],
        assigned: Callable[[], Iterable[TopicPartition]],
        report: Callable[[Exception], None],
    ) -> None:
        """Takes ``report``, which receives the errors that the next poll raises."""
        self._client = client
        self._subscribed = subscribed
        self._assigned = assigned
        self._report = report
        self._troubles: Troubles[str | TopicPartition] = Troubles()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled."""
        task_status.started()
        client = self._client
        seen = client.cluster_metadata.version
        while True:
            await client.changed.wait()
            if client.cluster_metadata.version != seen:
                seen = client.cluster_metadata.version
                self._look()

    def _look(self) -> None:
        client = self._client
        found = troubles_of(client.cluster_metadata, self._subscribed(), self._assigned())
        is_created = client.allow_auto_create
        due = self._troubles.due(
            client.now_ms,
            *((subject, code) for subject, (code, _) in found.items()),
            grace_ms=CREATION_GRACE_MS if is_created else 0.0,
        )
        for subject in due:
            code, text = found[subject]
            client.logger.warning("topic-unavailable", subject=subject, error=code.name, reason=text)
            if code is ErrorCode.INVALID_TOPIC_EXCEPTION and isinstance(subject, str):
                self._report(InvalidTopicError(subject))
            elif not code.retriable or (code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_created):
                self._report(KafkaError(code, text))
