"""How a consumer names its place in its group to a producer that commits offsets for it (KIP-447)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadata:
    """A member of a group in a generation.

    With it the coordinator refuses offsets of a member that the group went on without; a group id alone is not checked.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
