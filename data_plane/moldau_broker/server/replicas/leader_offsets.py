"""Asks a leader for offsets of the partitions that a follower fetches from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.values import Offset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.net.rpc import RpcConnection
    from moldau.values import BrokerId
    from moldau_broker.log.values import TopicPartition
    from moldau_broker.replication.follower import Followed

_VERSION: Final = 8


async def leader_offsets(
    connection: RpcConnection, broker_id: BrokerId, wanted: Sequence[Followed], *, timestamp: int, timeout_ms: float
) -> dict[TopicPartition, Offset]:
    """Returns the leader's offsets for a timestamp, without those of partitions that it refuses.

    ``broker_id`` is the follower's.

    Raises:
        OSError, EOFError, trio.TooSlowError: the leader did not answer.
    """
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for followed in wanted:
        topics.setdefault(followed.key.topic, []).append(
            ListOffsetsPartition(
                partition_index=followed.key.partition,
                current_leader_epoch=followed.leader_epoch,
                timestamp=timestamp,
            )
        )
    request = ListOffsetsRequest(
        replica_id=broker_id,
        topics=[ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
    )
    response = await connection.request_as(ListOffsetsResponse, request, _VERSION, timeout_ms=timeout_ms)
    by_key = {(followed.key.topic, followed.key.partition): followed.key for followed in wanted}
    return {
        by_key[topic.name, partition.partition_index]: Offset(partition.offset)
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code == ErrorCode.NONE and (topic.name, partition.partition_index) in by_key
    }
