"""The values of the share consumer. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import Generic, NamedTuple

from moldau.cluster.metadata import TopicPartition
from moldau.serialization.core.values import KeyOut, ValueOut


class AcknowledgeType(IntEnum):
    """The application's verdict on a record; the numbers are Kafka's."""

    ACCEPT = 1
    """The record is processed, and is never delivered again."""
    RELEASE = 2
    """The record may be delivered again, to any member, until the group's limit of deliveries."""
    REJECT = 3
    """The record cannot be processed, and is never delivered again."""
    RENEW = 4
    """Processing takes longer: the lock begins again, and the record must be acknowledged later (KIP-1222)."""


GAP = 0
"""Acknowledge type of an offset without a record; the consumer sends it by itself."""


class ShareRecord(NamedTuple, Generic[KeyOut, ValueOut]):
    """One record that this member has acquired.

    Key and value are bytes, or what the consumer's deserializers return. ``delivery_count`` is 1 the first time.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: KeyOut | None
    value: ValueOut | None
    headers: tuple[tuple[str, bytes | None], ...]
    delivery_count: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one value."""
        return TopicPartition(self.topic, self.partition)
