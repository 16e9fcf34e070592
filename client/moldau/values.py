"""Values that every package names: byte buffers and the nil UUID. Pure."""

from typing import Final
from uuid import UUID

Buffer = bytes | bytearray | memoryview
"""Bytes in any form that can be read without a copy."""

ZERO_UUID: Final = UUID(int=0)
"""Kafka's "no id": no topic id, no directory, no incarnation."""
