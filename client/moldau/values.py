"""Values that every package names: byte buffers, the nil UUID, and the integers that must not be confused. Pure."""

from typing import Final, NewType
from uuid import UUID

Buffer = bytes | bytearray | memoryview
"""Bytes in any form that can be read without a copy."""

ZERO_UUID: Final = UUID(int=0)
"""Kafka's "no id": no topic id, no directory, no incarnation."""

Offset = NewType("Offset", int)
"""A record's position in the log of a partition; -1 where Kafka's messages mean "unknown"."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""The number of a partition's leadership, which grows with each election; -1 where Kafka's messages mean "unknown"."""

BrokerId = NewType("BrokerId", int)
"""The id of a broker, ``node.id``; negative where there is no broker. ADR 0011 says where these types are used."""
