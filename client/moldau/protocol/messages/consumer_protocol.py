"""The content of JoinGroup metadata and SyncGroup assignments of consumers, after a 16-bit version."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Data, Struct
from moldau.values import Buffer


class OwnedTopicPartitions(Struct):
    """An element of ``owned_partitions`` in ``ConsumerProtocolSubscription``."""

    topic: str = field.string("1+")
    partitions: Sequence[int] = field.int32_array("1+")


class ConsumerProtocolSubscription(Data, versions="0-3"):
    """A member's subscription: topics, what it owns now, its generation and rack (KIP-429, KIP-792, KIP-881)."""

    topics: Sequence[str] = field.string_array("0+")
    user_data: Buffer | None = field.binary("0+", nullable="0+", default=None)
    owned_partitions: Sequence[OwnedTopicPartitions] = field.array(OwnedTopicPartitions, "1+")
    generation_id: int = field.int32("2+", default=-1)
    rack_id: str | None = field.string("3+", nullable="3+", default=None)


class AssignedTopicPartitions(Struct):
    """An element of ``assigned_partitions`` in ``ConsumerProtocolAssignment``."""

    topic: str = field.string("0+")
    partitions: Sequence[int] = field.int32_array("0+")


class ConsumerProtocolAssignment(Data, versions="0-3"):
    """The partitions that the leader of a group assigns to one member."""

    assigned_partitions: Sequence[AssignedTopicPartitions] = field.array(AssignedTopicPartitions, "0+")
    user_data: Buffer | None = field.binary("0+", nullable="0+", default=None)
