"""How close together the replicas of a partition stand: on one machine, or in one rack. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Crowding(NamedTuple):
    """How crowded the replicas of a partition stand; less is better, and machines count before racks."""

    machine_pairs: int
    """Pairs of replicas on one machine; a broker without a machine's name is alone on its own."""
    rack_pairs: int
    """Pairs of replicas in one rack; a broker without rack is a rack of its own."""


SPREAD: Final = Crowding(0, 0)
"""No two replicas share a machine or a rack."""


class Place(NamedTuple):
    """Where a broker stands."""

    machine: str | None = None
    """The host that the broker advertises; brokers with the same one stand on one machine."""
    rack: str | None = None


class Places:
    """Where the brokers of a cluster stand."""

    def __init__(self, places: Mapping[int, Place]) -> None:
        self._machines = {node: one.machine for node, one in places.items()}
        self._racks = {node: one.rack for node, one in places.items()}

    def crowding(self, replicas: Collection[int]) -> Crowding:
        """Returns how crowded replicas on these brokers stand."""
        return Crowding(
            _equal_pairs([self._machines.get(node) for node in replicas]),
            _equal_pairs([self._racks.get(node) for node in replicas]),
        )


def _equal_pairs(names: Sequence[str | None]) -> int:
    """Returns the number of pairs of equal names; None equals nothing."""
    return sum(
        1 for index, name in enumerate(names) for other in names[index + 1 :] if name is not None and name == other
    )
