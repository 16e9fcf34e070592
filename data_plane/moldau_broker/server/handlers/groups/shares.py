"""The requests to the share coordinator, which only brokers may send, and DescribeShareGroupOffsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from moldau.protocol.messages.read_share_group_state_summary import (
    PartitionResult,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)
from moldau.values import ZERO_UUID
from moldau_broker.coordinator.share.core.requests import Summarize, request_of
from moldau_broker.coordinator.share.core.state import SharePartitionKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from moldau_broker.coordinator.group.coordinator import GroupCoordinator
    from moldau_broker.coordinator.group.share.core.state import ShareGroup
    from moldau_broker.coordinator.runtime.completion import Completion
    from moldau_broker.coordinator.share.coordinator import ShareCoordinator
    from moldau_broker.coordinator.share.core.requests import ShareStateRequest
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.coordination.share_states import ShareStateClient
    from moldau_broker.server.handlers.context import Call

GROUPS_MAX = 64
"""Groups of one request about whose states share coordinators are asked at a time."""
_UNKNOWN = -1
"""The start offset, the lag and the count of what is not known."""


class SharesContext(Protocol):
    """The parts of a broker needed for the requests about share-partitions."""

    @property
    def groups(self) -> GroupCoordinator: ...
    @property
    def metadata(self) -> MetadataCache: ...
    @property
    def shares(self) -> ShareCoordinator: ...
    @property
    def share_states(self) -> ShareStateClient: ...


def handle_share_state(context: SharesContext, request: ShareStateRequest, call: Call) -> Completion:
    """Submits the request to the coordinator at once, so that requests keep their order; it may answer later."""
    return context.shares.submit(request)


async def handle_describe_share_group_offsets(
    context: SharesContext, request: DescribeShareGroupOffsetsRequest, call: Call
) -> DescribeShareGroupOffsetsResponse:
    """Returns start offsets and lags of share groups; the share coordinators are asked for them.

    A group that is named more than once is answered once: its answer may be far larger than its name. A coordinator
    that does not answer delays the groups of the others once, not once for each of its own.
    """
    wanted = _merged(request.groups)
    found: dict[str, DescribeShareGroupOffsetsResponseGroup] = {}
    turns = trio.CapacityLimiter(GROUPS_MAX)

    async def describe(group: DescribeShareGroupOffsetsRequestGroup) -> None:
        async with turns:
            found[group.group_id] = await _describe(context, group)

    async with trio.open_nursery() as nursery:
        for group in wanted:
            nursery.start_soon(describe, group)
    return DescribeShareGroupOffsetsResponse(groups=[found[group.group_id] for group in wanted])


def _merged(
    groups: Iterable[DescribeShareGroupOffsetsRequestGroup],
) -> list[DescribeShareGroupOffsetsRequestGroup]:
    """Returns each group once, with all topics and partitions that the request names; None means all of them."""
    wanted: dict[str, dict[str, dict[int, None]] | None] = {}
    for group in groups:
        known = wanted.setdefault(group.group_id, {})
        if group.topics is None:
            wanted[group.group_id] = None
        elif known is not None:
            for topic in group.topics:
                known.setdefault(topic.topic_name, {}).update(dict.fromkeys(topic.partitions))
    return [
        DescribeShareGroupOffsetsRequestGroup(
            group_id=group_id,
            topics=None
            if topics is None
            else [
                DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=list(numbers))
                for name, numbers in topics.items()
            ],
        )
        for group_id, topics in wanted.items()
    ]


async def _describe(
    context: SharesContext, wanted: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    answer = DescribeShareGroupOffsetsResponseGroup(group_id=wanted.group_id)
    answer.error_code, group = context.groups.share_group(wanted.group_id)
    if group is None:
        if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            answer.error_message = f"Group {wanted.group_id} is not a share group."
        return answer
    named = _named(context, wanted, group)
    keys = [
        SharePartitionKey(wanted.group_id, topic_id, number)
        for name, (topic_id, numbers) in named.items()
        for number in numbers
        if context.metadata.partition(name, number) is not None
    ]
    summaries: dict[tuple[UUID, int], PartitionResult] = {}
    if keys:
        asks = {key: Summarize() for key in keys}
        response = await context.share_states.ask(request_of(ReadShareGroupStateSummaryRequest, wanted.group_id, asks))
        assert isinstance(response, ReadShareGroupStateSummaryResponse)
        summaries = {(topic.topic_id, part.partition): part for topic in response.results for part in topic.partitions}
    begun = [
        (name, number)
        for name, (topic_id, numbers) in named.items()
        for number in numbers
        if (summary := summaries.get((topic_id, number))) is not None and summary.start_offset >= 0
    ]
    ends = await context.share_states.end_offsets(begun) if begun else {}
    answer.topics = [_topic(name, topic_id, numbers, summaries, ends) for name, (topic_id, numbers) in named.items()]
    return answer


def _named(
    context: SharesContext, wanted: DescribeShareGroupOffsetsRequestGroup, group: ShareGroup
) -> dict[str, tuple[UUID, list[int]]]:
    """Returns the partitions that are asked for, by topic; without names, all whose state has begun.

    The group may still know a topic that is gone, and another one may have its name by now.
    """
    if wanted.topics is None:
        by_id = context.metadata.image.topics_by_id
        begun = group.states.initialized.items()
        found = {
            by_id[topic_id].name: (topic_id, sorted(each.partitions)) for topic_id, each in begun if topic_id in by_id
        }
        return dict(sorted(found.items()))
    topics = context.metadata.image.topics_by_name
    return {
        topic.topic_name: (
            topics[topic.topic_name].topic_id if topic.topic_name in topics else ZERO_UUID,
            list(dict.fromkeys(topic.partitions)),
        )
        for topic in wanted.topics
    }


def _topic(
    name: str,
    topic_id: UUID,
    numbers: list[int],
    summaries: Mapping[tuple[UUID, int], PartitionResult],
    ends: Mapping[tuple[str, int], int],
) -> DescribeShareGroupOffsetsResponseTopic:
    parts: list[DescribeShareGroupOffsetsResponsePartition] = []
    for number in numbers:
        part = DescribeShareGroupOffsetsResponsePartition(partition_index=number, start_offset=_UNKNOWN)
        parts.append(part)
        summary = summaries.get((topic_id, number))
        if summary is None:
            part.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        part.error_code, part.error_message = summary.error_code, summary.error_message
        if summary.error_code == ErrorCode.NONE:
            part.start_offset, part.leader_epoch = summary.start_offset, summary.leader_epoch
            part.lag = _lag(summary, ends.get((name, number)))
    return DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id, partitions=parts)


def _lag(summary: PartitionResult, end_offset: int | None) -> int:
    """Returns how many records are left: those from the start offset on, without those that are done with."""
    if end_offset is None or summary.start_offset < 0 or summary.delivery_complete_count < 0:
        return _UNKNOWN
    return max(0, end_offset - summary.start_offset - summary.delivery_complete_count)
