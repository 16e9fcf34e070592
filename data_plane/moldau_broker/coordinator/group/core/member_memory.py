"""Counts the memory that the members of groups take, in order to bound it. Pure.

Any client may create groups, ids and metadata. The count is the size of the strings and metadata that clients choose,
plus a fixed size for each object around them. It approximates the soft state closely enough to bound it.
"""

from __future__ import annotations

from dataclasses import dataclass

MEMBER_BYTES = 1024
"""The size of a member without its strings: the object, its deadlines and its entries in tables."""
PENDING_BYTES = 512
"""The size of a pending member id, with its deadline."""
GROUP_BYTES = 2048
"""The size of a group without members."""
_PROTOCOL_BYTES = 128
_LONG_MAX = (1 << 63) - 1


@dataclass(slots=True)
class MemberMemory:
    """The memory of all groups of one broker; shared by the coordinators of all its partitions."""

    bytes_max: int = _LONG_MAX
    used_bytes: int = 0

    def has_room(self, more_bytes: int) -> bool:
        """Returns whether ``more_bytes`` more fit."""
        return self.used_bytes + more_bytes <= self.bytes_max


def protocols_bytes(protocols: tuple[tuple[str, bytes], ...]) -> int:
    """Returns the size of a member's protocols."""
    return sum(_PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)
