"""A bare member of a share group: its requests to one broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import share_acknowledge as acknowledging
from moldau.protocol.messages import share_fetch as fetching
from support.cluster.broker_cluster import values_of

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Client, Cluster

Acks = dict[int, list[tuple[int, int, tuple[int, ...]]]]
"""Acknowledgements by partition: first offset, last offset, types."""


class Member:
    """A member with a session at one broker; ``epoch`` is that of its next request."""

    def __init__(self, cluster: Cluster, broker_id: int, name: str, group: str = "g", topic: str = "t") -> None:
        self.client: Client = cluster.client(broker_id)
        self.cluster = cluster
        self.name = name
        self.group = group
        self.topic_id = cluster.image().topics_by_name[topic].topic_id
        self.epoch = 0

    def _advance(self, answer: Any) -> Any:
        if answer.error_code == ErrorCode.NONE:
            self.epoch += 1
        return answer

    async def fetch(self, *partitions: int, acks: Acks | None = None, version: int = 2, **fields: Any) -> Any:
        """Returns the whole answer."""
        given = {"max_wait_ms": 0, "min_bytes": 1, "max_records": 500, "share_session_epoch": self.epoch, **fields}
        named = {index: (acks or {}).get(index, []) for index in (*partitions, *(acks or {}))}
        request = fetching.ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            topics=[
                fetching.FetchTopic(
                    topic_id=self.topic_id,
                    partitions=[
                        fetching.FetchPartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                fetching.AcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=list(types)
                                )
                                for first, last, types in batches
                            ],
                        )
                        for index, batches in named.items()
                    ],
                )
            ]
            if named
            else [],
            **given,
        )
        return self._advance(await self.client.request(request, version))

    async def acknowledge(self, acks: Acks, version: int = 2, **fields: Any) -> Any:
        """Returns the whole answer."""
        given = {"share_session_epoch": self.epoch, **fields}
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.name,
            topics=[
                acknowledging.AcknowledgeTopic(
                    topic_id=self.topic_id,
                    partitions=[
                        acknowledging.AcknowledgePartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                acknowledging.AcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=list(types)
                                )
                                for first, last, types in batches
                            ],
                        )
                        for index, batches in acks.items()
                    ],
                )
            ],
            **given,
        )
        return self._advance(await self.client.request(request, version))


def acquired(answer: Any) -> dict[int, list[tuple[int, int, int]]]:
    """Returns first offset, last offset and delivery count of what an answer acquires, by partition."""
    assert answer.error_code == ErrorCode.NONE, answer
    return {
        part.partition_index: [
            (each.first_offset, each.last_offset, each.delivery_count) for each in part.acquired_records
        ]
        for topic in answer.responses
        for part in topic.partitions
        if part.acquired_records
    }


def values(answer: Any) -> list[bytes]:
    """Returns the values of all records in an answer."""
    return [value for topic in answer.responses for part in topic.partitions for value in values_of(part.records)]


def outcomes(answer: Any) -> dict[int, tuple[ErrorCode, ErrorCode]]:
    """Returns the error of the fetch and of the acknowledgements, by partition."""
    return {
        part.partition_index: (ErrorCode(part.error_code), ErrorCode(part.acknowledge_error_code))
        for topic in answer.responses
        for part in topic.partitions
    }


def codes(answer: Any) -> dict[int, ErrorCode]:
    """Returns the error of a ShareAcknowledge, by partition."""
    return {part.partition_index: ErrorCode(part.error_code) for topic in answer.responses for part in topic.partitions}
