"""Values that every package names: byte buffers, the nil UUID, and the integers that must not be mixed up. Pure."""

from typing import Final, NewType
from uuid import UUID

Buffer = bytes | bytearray | memoryview
"""Bytes in any form that can be read without a copy."""

ZERO_UUID: Final = UUID(int=0)
"""Kafka's "no id": no topic id, no directory, no incarnation."""

Offset = NewType("Offset", int)
"""Position of a record in a partition; an end offset is exclusive."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of the leaders that a partition has had (KIP-101); -1 is unknown."""

BrokerId = NewType("BrokerId", int)
"""``node.id`` of a broker; -1 is none."""
