"""The outcome of each partition in the coordinator's answers about committed offsets. Pure.

The rule for partitions that an answer leaves out is that of all calls (``moldau.protocol.answers``): they have failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.cluster.committed import CommittedOffset
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.answers import judge
from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau.cluster.metadata import ClusterMetadata
    from moldau.protocol.messages.offset_commit import OffsetCommitResponse
    from moldau.protocol.messages.offset_fetch import (
        OffsetFetchResponse,
        OffsetFetchResponsePartition,
        OffsetFetchResponsePartitions,
    )


def refused_commits(
    asked: Iterable[TopicPartition], response: OffsetCommitResponse
) -> dict[TopicPartition, KafkaError]:
    """Returns the error of each partition whose offset was not committed."""
    answers = (
        (TopicPartition(topic.name, part.partition_index), _error(part.error_code), None)
        for topic in response.topics
        for part in topic.partitions
    )
    return judge("partition", asked, answers).failures


def committed_offsets(
    group_id: str, asked: Iterable[TopicPartition], response: OffsetFetchResponse
) -> tuple[ErrorCode, dict[TopicPartition, CommittedOffset], dict[TopicPartition, KafkaError]]:
    """Returns the error of the whole group, the committed offsets, and the errors of single partitions."""
    rows: list[tuple[str, OffsetFetchResponsePartitions | OffsetFetchResponsePartition]] = []
    code = ErrorCode.of(response.error_code)
    for group in response.groups:
        if group.group_id == group_id:
            code = ErrorCode.of(group.error_code)
            rows += [(topic.name, part) for topic in group.topics for part in topic.partitions]
    rows += [(flat.name, part) for flat in response.topics for part in flat.partitions]
    if code is not ErrorCode.NONE:
        return code, {}, {}
    judged = judge(
        "partition",
        asked,
        ((TopicPartition(name, row.partition_index), _error(row.error_code), row) for name, row in rows),
    )
    found = {
        partition: CommittedOffset(row.committed_offset, row.committed_leader_epoch, row.metadata or "")
        for partition, row in judged.done.items()
        if row.committed_offset >= 0
    }
    return code, found, judged.failures


def unplaced(refused: Mapping[TopicPartition, KafkaError], metadata: ClusterMetadata) -> str:
    """Names refused partitions with their errors, and with the partitions that a topic has, where those are known."""
    texts = []
    for partition, error in refused.items():
        info = metadata.topics.get(partition.topic)
        count = 0 if info is None else len(info.partitions)
        known = f" (the topic has partitions 0 to {count - 1})" if 0 < count <= partition.partition else ""
        texts.append(f"{partition}: {error.code.name}{known}")
    return "; ".join(texts)


def _error(code: int) -> KafkaError | None:
    found = ErrorCode.of(code)
    return None if found is ErrorCode.NONE else KafkaError(found)
