"""The group metadata of a consumer, for a producer that commits offsets for it (KIP-447)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadata:
    """A member of a group in a generation.

    The coordinator refuses offsets of a member that no longer belongs to the generation; it does not check a group id
    alone.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
