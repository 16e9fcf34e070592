"""Questions of a share group to share coordinators: to begin states, or to delete them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)
from moldau.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from moldau_broker.coordinator.share.core.batches import UNCHANGED_OFFSET
from moldau_broker.coordinator.share.core.requests import Delete, Initialize, request_of
from moldau_broker.coordinator.share.core.state import SharePartitionKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.share.core.administration import Codes
    from moldau_broker.coordinator.group.share.core.groups import ShareRequest
    from moldau_broker.coordinator.group.share.core.state_partitions import ByTopic
    from moldau_broker.coordinator.share.core.requests import ShareStateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request to share coordinators; ``asked`` is the administrator's request that causes it, None for a member."""

    group_id: str
    message: ShareStateRequest
    partitions: ByTopic
    asked: ShareRequest | None = None


def _keys(group_id: str, partitions: ByTopic) -> Iterator[SharePartitionKey]:
    for topic_id, numbers in sorted(partitions.items()):
        for number in sorted(numbers):
            yield SharePartitionKey(group_id, topic_id, number)


def begin_request(
    group_id: str, partitions: ByTopic, epoch: int, offsets: Mapping[tuple[UUID, int], int]
) -> ShareStateRequest:
    """Returns the request that begins states under a group epoch; without an offset their leaders choose one."""
    asks = {
        key: Initialize(state_epoch=epoch, start_offset=offsets.get((key.topic_id, key.partition), UNCHANGED_OFFSET))
        for key in _keys(group_id, partitions)
    }
    return request_of(InitializeShareGroupStateRequest, group_id, asks)


def delete_request(group_id: str, partitions: ByTopic) -> ShareStateRequest:
    """Returns the request that deletes states."""
    return request_of(DeleteShareGroupStateRequest, group_id, {key: Delete() for key in _keys(group_id, partitions)})


def codes_of(question: Question, response: Response) -> Codes:
    """Returns the answer for each share-partition; those that it does not name have failed."""
    assert isinstance(response, InitializeShareGroupStateResponse | DeleteShareGroupStateResponse)
    found: Codes = {
        (topic_id, number): ErrorCode.UNKNOWN_SERVER_ERROR
        for topic_id, numbers in question.partitions.items()
        for number in numbers
    }
    for topic in response.results:
        for entry in topic.partitions:
            found[topic.topic_id, entry.partition] = ErrorCode.of(entry.error_code)
    return found
