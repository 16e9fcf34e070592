"""Goal: DescribeShareGroupOffsets shows the topics that exist, whatever else a group still knows.

Method: the handler, with a group and with share coordinators that know each state.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from moldau_broker.coordinator.group.share.core.state import ShareGroup, StatePartitions, TopicState
from moldau_broker.coordinator.share.core.requests import KeyAnswer, asks_of, response_of
from moldau_broker.coordinator.share.core.state import ShareState
from moldau_broker.server.handlers.groups.shares import handle_describe_share_group_offsets

FORMER, PRESENT, OTHER = (UUID(int=number) for number in (1, 2, 3))


class States:
    """Answers with the start offset 4 for each share-partition."""

    async def ask(self, request: Any) -> Any:
        state = ShareState(snapshot_epoch=0, state_epoch=0, start_offset=4, delivery_complete_count=1)
        return response_of(type(request), {key: KeyAnswer(state=state) for key in asks_of(request)})

    async def end_offsets(self, partitions: Any) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 9)


@pytest.mark.parametrize("order", [(FORMER, PRESENT, OTHER), (OTHER, PRESENT, FORMER)])
def test_a_gone_topic_hides_none_of_its_name(order: tuple[UUID, ...]) -> None:
    """A topic was deleted and created again, and the group has not noted yet that the former one is gone."""
    names = {FORMER: "t", PRESENT: "t", OTHER: "s"}
    known = {each: TopicState(name=names[each], partitions=frozenset({0})) for each in order}
    group = ShareGroup(group_id="g", states=StatePartitions(initialized=known))
    image = SimpleNamespace(topics_by_id={each: SimpleNamespace(name=names[each]) for each in (PRESENT, OTHER)})
    context = SimpleNamespace(
        groups=SimpleNamespace(share_group=lambda group_id: (ErrorCode.NONE, group)),
        metadata=SimpleNamespace(image=image, partition=lambda name, number: object()),
        share_states=States(),
    )
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)]
    )
    answer = trio.run(handle_describe_share_group_offsets, cast("Any", context), request, cast("Any", None))
    found = [
        (topic.topic_name, topic.topic_id, part.start_offset, part.lag)
        for topic in answer.groups[0].topics
        for part in topic.partitions
    ]
    assert found == [("s", OTHER, 4, 4), ("t", PRESENT, 4, 4)]
