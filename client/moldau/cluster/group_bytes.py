"""The bytes in which members of a classic group exchange partitions: ConsumerProtocolAssignment. Pure.

Consumers write and read them, and the admin client reads them out of a description of a group.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from moldau.cluster.metadata import TopicPartition
from moldau.protocol.codec import DecodeError, decode, encode
from moldau.protocol.messages.consumer_protocol import AssignedTopicPartitions, ConsumerProtocolAssignment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.values import Buffer

VERSION = struct.Struct(">h")
"""Precedes a subscription and an assignment."""
_ASSIGNMENT_VERSION = 3


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns the partition numbers of each topic, both in ascending order."""
    topics: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return topics


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encodes the assignment of a member for SyncGroup."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            AssignedTopicPartitions(topic=topic, partitions=numbers)
            for topic, numbers in group_by_topic(partitions).items()
        ]
    )
    return VERSION.pack(_ASSIGNMENT_VERSION) + encode(message, _ASSIGNMENT_VERSION)


def decode_assignment(assignment: Buffer) -> list[TopicPartition]:
    """Decodes the assignment of a member; empty bytes are an empty one.

    Raises:
        DecodeError: the bytes are malformed.
    """
    if not len(assignment):
        return []
    version = read_version(assignment, _ASSIGNMENT_VERSION)
    message = decode(ConsumerProtocolAssignment, version, assignment, VERSION.size)
    return [TopicPartition(topic.topic, number) for topic in message.assigned_partitions for number in topic.partitions]


def read_version(data: Buffer, last: int) -> int:
    """Returns the version with which to read ``data``, at most ``last``: later versions only add fields at the end.

    Raises:
        DecodeError: there is no version, or it is negative.
    """
    if len(data) < VERSION.size:
        raise DecodeError(f"{len(data)} bytes are too few for a version")
    (version,) = VERSION.unpack_from(data)
    if version < 0:
        raise DecodeError(f"version {version} is negative")
    return min(int(version), last)
