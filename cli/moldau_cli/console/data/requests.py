"""Requests that the admin client has no call for: eligible leader replicas of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from moldau_cli.console.data.asking import ROWS_MAX

if TYPE_CHECKING:
    from moldau.admin.requester import Requester


async def eligible_replicas(requester: Requester, topic: str) -> dict[int, tuple[list[int], list[int]]]:
    """Returns the eligible leader replicas and the last known ones (KIP-966) of a topic's first partitions.

    Raises:
        KafkaError: there is no such topic, or it may not be described.
    """
    response = await requester.ask(
        DescribeTopicPartitionsResponse,
        DescribeTopicPartitionsRequest(topics=[TopicRequest(name=topic)], response_partition_limit=ROWS_MAX),
    )
    found: dict[int, tuple[list[int], list[int]]] = {}
    for each in response.topics:
        if each.error_code:
            raise KafkaError(ErrorCode.of(each.error_code), f"topic {topic}: {ErrorCode.of(each.error_code).message}")
        for part in each.partitions:
            eligible, last_known = part.eligible_leader_replicas, part.last_known_elr
            found[part.partition_index] = (list(eligible or ()), list(last_known or ()))
    return found
