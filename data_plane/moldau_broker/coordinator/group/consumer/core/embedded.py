"""The consumer protocol that JoinGroup and SyncGroup carry as opaque bytes: subscriptions and assignments. Pure.

A 16-bit version precedes the fields. Later versions only append fields, so a newer one is read as the newest known one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from moldau.protocol.codec import DecodeError, decode, encode
from moldau.protocol.messages.consumer_protocol import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from moldau_broker.coordinator.group.consumer.core.records import by_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_broker.coordinator.group.consumer.core.state import Partitions
    from moldau_broker.coordinator.runtime.ports import TopicNames

_VERSION = struct.Struct(">h")


def parse_subscription(metadata: bytes) -> tuple[int, ConsumerProtocolSubscription]:
    """Returns the version of a member's metadata, and the subscription in it.

    Raises:
        DecodeError: the metadata is malformed.
    """
    version = _version(metadata)
    return version, decode(
        ConsumerProtocolSubscription, min(version, ConsumerProtocolSubscription.__versions__.last), metadata, 2
    )


def parse_assignment(assignment: bytes, topics: TopicNames) -> Partitions:
    """Returns the partitions of an assignment; deleted topics are left out, and no bytes mean no partitions.

    Raises:
        DecodeError: the assignment is malformed.
    """
    if not assignment:
        return frozenset()
    version = min(_version(assignment), ConsumerProtocolAssignment.__versions__.last)
    found = decode(ConsumerProtocolAssignment, version, assignment, 2)
    return partitions_by_id(((topic.topic, topic.partitions) for topic in found.assigned_partitions), topics)


def owned_partitions(subscription: ConsumerProtocolSubscription, topics: TopicNames) -> Partitions:
    """Returns the partitions that a member says it owns."""
    return partitions_by_id(((topic.topic, topic.partitions) for topic in subscription.owned_partitions), topics)


def partitions_by_id(named: Iterable[tuple[str, Iterable[int]]], topics: TopicNames) -> Partitions:
    """Returns partitions with the ids of their topics, without topics that do not exist."""
    return frozenset(
        (topic_id, number)
        for name, numbers in named
        if (topic_id := topics.topic_id(name)) is not None
        for number in numbers
    )


def assignment_bytes(partitions: Partitions, topics: TopicNames, version: int) -> bytes:
    """Returns an assignment for a member whose metadata have this version; leaves out deleted topics."""
    version = max(0, min(version, ConsumerProtocolAssignment.__versions__.last))
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            AssignedTopicPartitions(topic=name, partitions=numbers)
            for topic_id, numbers in by_topic(partitions).items()
            if (name := topics.topic_name(topic_id)) is not None
        ]
    )
    return _VERSION.pack(version) + encode(assignment, version)


def version_of(metadata: bytes) -> int:
    """Returns the version of a member's metadata; 0 if they have none."""
    return max(0, _VERSION.unpack_from(metadata)[0]) if len(metadata) >= _VERSION.size else 0


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise DecodeError("bytes of the consumer protocol have no version")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise DecodeError(f"bytes of the consumer protocol have the version {version}")
    return int(version)
