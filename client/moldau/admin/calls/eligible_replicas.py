"""Eligible leader replicas of partitions (KIP-966), of which Metadata answers say nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.admin.values import PartitionDescription
from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from moldau.runtime.net.served_versions import UnsupportedApiError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from moldau.admin.requester import Requester

PARTITIONS_MAX = 2000
"""Partitions of one answer, Kafka's own limit."""

Described = dict[tuple["UUID", int], PartitionDescription]


def may_have_eligible(partitions: Iterable[PartitionDescription]) -> bool:
    """Returns whether one of the partitions may have eligible replicas: those have left its in-sync replicas."""
    return any(set(part.replicas) - set(part.isr) for part in partitions)


async def described_with_eligible(requester: Requester, names: Sequence[str], node_id: int | None) -> Described:
    """Returns the partitions of topics with their eligible replicas, by topic id and number.

    It has no partitions of topics that are gone meanwhile. It is empty if no broker answers or serves the request:
    those of Kafka before 3.7 do not, and have no eligible replicas.

    Raises:
        KafkaError: broker ``node_id`` does not answer any more.
    """
    found: Described = {}
    cursor: DescribeTopicPartitionsRequestCursor | None = None
    while True:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in sorted(names)],
            response_partition_limit=PARTITIONS_MAX,
            cursor=cursor,
        )
        response = await _asked(requester, request, node_id)
        if response is None:
            return {}
        for topic in response.topics:
            found |= {
                (topic.topic_id, part.partition_index): PartitionDescription(
                    partition=part.partition_index,
                    leader=-1 if part.error_code == ErrorCode.LEADER_NOT_AVAILABLE else part.leader_id,
                    leader_epoch=part.leader_epoch,
                    replicas=tuple(part.replica_nodes),
                    isr=tuple(part.isr_nodes),
                    elr=tuple(part.eligible_leader_replicas or ()),
                    last_known_elr=tuple(part.last_known_elr or ()),
                    offline_replicas=tuple(part.offline_replicas),
                )
                for part in topic.partitions
            }
        following = response.next_cursor
        if following is None:
            return found
        place = (following.topic_name, following.partition_index)
        if cursor is not None and place <= (cursor.topic_name, cursor.partition_index):
            return found  # a faulty broker, whose pages would never end
        cursor = DescribeTopicPartitionsRequestCursor(topic_name=place[0], partition_index=place[1])


async def _asked(
    requester: Requester, request: DescribeTopicPartitionsRequest, node_id: int | None
) -> DescribeTopicPartitionsResponse | None:
    try:
        if node_id is not None:
            return await requester.ask(DescribeTopicPartitionsResponse, request, node_id=node_id)
        # One attempt: a broker that is too old and another one that is down would be asked until the time is over.
        with trio.fail_after(requester.limit_s()):
            return await requester.client.ask_any(DescribeTopicPartitionsResponse, request)
    except (UnsupportedApiError, *TRANSPORT_ERRORS):
        return None
