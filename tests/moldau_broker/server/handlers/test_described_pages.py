"""Goal: pages of DescribeTopicPartitions hold each partition once, whatever happens to topics between two pages.

Method: the handler alone, with metadata of the test.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    TopicRequest,
)
from moldau.values import BrokerId
from moldau_broker.server.handlers.metadata import handle_describe_topic_partitions
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import PartitionRecord, TopicRecord

CALL: Any = SimpleNamespace(version=0, listener_name="l")
ONE = (BrokerId(1),)


def pages(sizes: dict[str, int], *, named: bool, deleted: str, limit: int = 2) -> list[tuple[str, int]]:
    """Returns the partitions of all pages, as a client asks for them; a topic is deleted after the first page."""
    seen: list[tuple[str, int]] = []
    names, present, cursor = sorted(sizes), dict(sizes), None
    for _ in range(20):
        image = MetadataImage(offset=0).apply(
            [
                record
                for number, (name, count) in enumerate(present.items(), 1)
                for record in (
                    TopicRecord(name=name, topic_id=UUID(int=number)),
                    *(
                        PartitionRecord(
                            topic_id=UUID(int=number), partition_id=index, replicas=ONE, isr=ONE, leader=ONE[0]
                        )
                        for index in range(count)
                    ),
                )
            ],
            offset=1,
            epoch=1,
        )
        context: Any = SimpleNamespace(
            config=SimpleNamespace(get_int=lambda _: 2000),
            metadata=SimpleNamespace(image=image.image, is_alive=lambda _: True),
        )
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names] if named else [],
            response_partition_limit=limit,
            cursor=cursor,
        )
        page = handle_describe_topic_partitions(context, request, CALL)
        seen += [(topic.name, each.partition_index) for topic in page.topics for each in topic.partitions]
        if page.next_cursor is None:
            return seen
        following = page.next_cursor
        cursor = DescribeTopicPartitionsRequestCursor(
            topic_name=following.topic_name, partition_index=following.partition_index
        )
        present.pop(deleted, None)
    raise AssertionError("the pages end")


@pytest.mark.parametrize("named", [True, False], ids=["named", "all"])
@pytest.mark.parametrize("deleted", ["", "a", "b", "c"])
def test_a_topic_that_is_deleted_hides_no_partition_of_others(deleted: str, named: bool) -> None:
    """The cursor names a partition of one topic; those behind it begin at partition 0, as in Kafka."""
    sizes = {"a": 3, "b": 3, "c": 5}
    seen = pages(sizes, named=named, deleted=deleted)
    expected = [(name, index) for name, size in sizes.items() for index in range(size) if name != deleted]
    assert [each for each in seen if each[0] != deleted] == expected
