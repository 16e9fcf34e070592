"""ListOffsets for many partitions: requests to their leaders, retried until a deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.cluster.client import ClusterClient


async def list_offsets(
    client: ClusterClient, wanted: Mapping[TopicPartition, int], timeout_ms: float, isolation_level: int = 0
) -> dict[TopicPartition, tuple[int, int]]:
    """Returns (offset, timestamp) for each partition and timestamp; (-1, -1) if no record is that late.

    The timestamp -1 means the end, -2 the start, -3 the greatest timestamp.

    Raises:
        KafkaError: a partition is unknown, or the client is not authorized.
        trio.TooSlowError: offsets are missing after ``timeout_ms``.
    """
    deadline_ms = client.now_ms + timeout_ms
    before = {topic: client.cluster_metadata.topics.get(topic) for topic, _ in wanted}
    for topic in before:
        client.add_topic(topic)
    found: dict[TopicPartition, tuple[int, int]] = {}
    failures = 0
    code = ErrorCode.LEADER_NOT_AVAILABLE
    while True:
        by_node: dict[int, list[TopicPartition]] = {}
        for partition in wanted:
            if partition not in found:
                leader = client.cluster_metadata.leader(partition)
                if leader is not None:
                    by_node.setdefault(leader[0], []).append(partition)
                else:
                    client.cluster_metadata.check_topic(partition.topic, before[partition.topic])
        for node_id, partitions in by_node.items():
            try:
                code = await _ask(client, node_id, {each: wanted[each] for each in partitions}, isolation_level, found)
            except TRANSPORT_ERRORS as error:
                client.logger.info("list-offsets-unanswered", node=node_id, error=error)
                code = ErrorCode.NETWORK_EXCEPTION
        if len(found) == len(wanted):
            return found
        failures += 1
        if client.bootstrap_error is not None:
            raise client.bootstrap_error
        if client.now_ms >= deadline_ms:
            missing = ", ".join(str(partition) for partition in wanted if partition not in found)
            raise trio.TooSlowError(f"no offsets of {missing} within {timeout_ms:g} ms ({code.name})")
        client.request_update()
        await client.backoff(failures)


async def _ask(
    client: ClusterClient,
    node_id: int,
    wanted: Mapping[TopicPartition, int],
    isolation_level: int,
    found: dict[TopicPartition, tuple[int, int]],
) -> ErrorCode:
    """Asks one leader, adds its answers to ``found``, and returns the last retriable error.

    Raises:
        KafkaError: an error is not retriable.
    """
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for partition, timestamp in wanted.items():
        leader = client.cluster_metadata.leader(partition)
        topics.setdefault(partition.topic, []).append(
            ListOffsetsPartition(
                partition_index=partition.partition,
                current_leader_epoch=-1 if leader is None else leader[1],
                timestamp=timestamp,
            )
        )
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=parts) for topic, parts in topics.items()],
        timeout_ms=client.request_timeout_ms,
    )
    response = await client.request(node_id, ListOffsetsResponse, request)
    last = ErrorCode.NONE
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            code = ErrorCode.of(answer.error_code)
            if code is ErrorCode.NONE:
                found[partition] = (answer.offset, answer.timestamp)
            elif code.retriable:
                last = code
            else:
                raise KafkaError(code, f"{partition}: {code.message}")
    return last
