"""Keys of the pace of target assignments, which consumer, share and streams groups have alike (KIP-1263)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.runtime.config.declare import CLUSTER_WIDE, SECOND_MS, integer

if TYPE_CHECKING:
    from moldau.runtime.config.declaration import ConfigKey


def pace_keys(kind: str, group: str) -> tuple[ConfigKey, ...]:
    """Declares a broker's keys of the assignment interval of one kind of groups."""
    name = f"group.{kind}.assignment.interval.ms"
    return (
        integer(
            name=name,
            default=SECOND_MS,
            group=group,
            minimum=0,
            dynamic=CLUSTER_WIDE,
            doc=f"Shortest time between two assignments of a {kind} group, in milliseconds, unless the group says "
            "otherwise; 0 for none. A first assignment does not wait.",
        ),
        integer(
            name=f"group.{kind}.min.assignment.interval.ms",
            default=0,
            group=group,
            minimum=0,
            doc=f"Least assignment interval that a {kind} group may have of its own, in milliseconds.",
        ),
        integer(
            name=f"group.{kind}.max.assignment.interval.ms",
            default=15 * SECOND_MS,
            group=group,
            minimum=0,
            doc=f"Greatest assignment interval that a {kind} group may have of its own, in milliseconds.",
        ),
    )
