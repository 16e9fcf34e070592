"""Replicas on brokers, and the load that each broker has, while a plan is made. Pure.

The load of a broker is the number of its replicas and their bytes, each divided by the mean of the brokers that may
hold replicas. The sum of the squares of the distances from the mean is what a plan lowers (``gain``): a move from a
broker to another one that has less lowers it most when it closes half of the gap between the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_cli.plans.crowding import Place, Places

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from moldau_cli.plans.crowding import Crowding

Partition = tuple[str, int]
"""Topic and number."""


class ImpossiblePlanError(Exception):
    """The brokers that remain cannot hold all replicas. The text says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPartition:
    """A partition as it is now."""

    replicas: tuple[int, ...]
    """Brokers, the preferred leader first."""
    size_bytes: int
    """Of one replica; what a move copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """A registered broker."""

    rack: str | None = None
    machine: str | None = None
    """The host that the broker advertises; brokers with the same one stand on one machine."""
    is_live: bool = True
    """False: it is fenced. Partitions on it keep all their replicas, unless it is to be emptied."""
    is_excluded: bool = False
    """Its replicas stay, and it gets no others; partitions on it may change their other replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The constraints of the plan."""

    emptied: frozenset[int] = frozenset()
    """Brokers that lose all replicas."""
    moves_max: int | None = None
    """Number of replicas that may be copied in order to even out; replicas of emptied brokers do not count."""
    tolerance: float = 0.1
    """Distance from the mean that needs no move, as a share of it."""
    slack_bytes: int = 64 << 20
    """Distance from the mean in bytes that needs no move; small clusters would move replicas for nothing."""
    moves_leaders: bool = True
    """Whether preferred leaders are evened out too."""


class Placement:
    """The replicas while a plan is made."""

    def __init__(
        self, partitions: Mapping[Partition, PlacedPartition], brokers: Mapping[int, BrokerState], options: Options
    ) -> None:
        self.before = {where: one.replicas for where, one in sorted(partitions.items())}
        self.sizes = {where: one.size_bytes for where, one in sorted(partitions.items())}
        self.replicas: dict[Partition, list[int]] = {where: list(one) for where, one in self.before.items()}
        self.targets = [
            node
            for node, one in sorted(brokers.items())
            if one.is_live and not one.is_excluded and node not in options.emptied
        ]
        """Brokers that may get replicas, ascending."""
        self.copies = 0
        """Number of replicas that the plan copies so far."""
        self._places = Places({node: Place(machine=one.machine, rack=one.rack) for node, one in brokers.items()})
        self.held: dict[int, set[Partition]] = {node: set() for node in self.targets}
        """The partitions of each target."""
        self._movable: dict[int, dict[int, set[Partition]]] = {}
        self.bytes = dict.fromkeys(self.targets, 0)
        for where, replicas in self.replicas.items():
            for node in replicas:
                if node in self.held:
                    self.held[node].add(where)
                    self.bytes[node] += self.sizes[where]
        kept = {node for node, one in brokers.items() if not one.is_live or one.is_excluded} - options.emptied
        spread = [where for where, replicas in self.replicas.items() for node in replicas if node not in kept]
        total, total_bytes = len(spread), sum(self.sizes[where] for where in spread)
        count = max(1, len(self.targets))
        self.mean_count = total / count
        self.mean_bytes = total_bytes / count
        self._unit_count = max(1.0, self.mean_count)
        self._unit_bytes = max(1.0, self.mean_bytes, float(options.slack_bytes))
        # Counts that differ by at most 1 are less than 1 from their mean.
        self.count_room = max(1.0 - 1e-6, options.tolerance * self.mean_count)
        self.bytes_room = max(float(options.slack_bytes), options.tolerance * self.mean_bytes)

    def added_copies(self, where: Partition, source: int, target: int) -> int:
        """Returns by how many copies the plan grows if a replica goes from one broker to another: -1, 0 or 1."""
        before = self.before[where]
        return (target not in before) - (source not in before)

    def load(self, node: int) -> float:
        """Returns the load of a target, 2 for one that has the mean of everything."""
        return len(self.held[node]) / self._unit_count + self.bytes[node] / self._unit_bytes

    def excess(self, node: int) -> float:
        """Returns how far a target is outside of the tolerance: above 0 too much, below 0 too little, else 0."""
        count = _outside(len(self.held[node]) - self.mean_count, self.count_room) / self._unit_count
        size = _outside(self.bytes[node] - self.mean_bytes, self.bytes_room) / self._unit_bytes
        return count + size if count * size >= 0 else max(count, size, key=abs)

    def gain(self, size: int, count: int, source: int, target: int) -> float:
        """Returns by how much the sum of squares falls if ``count`` replicas of ``size`` bytes together change places.

        ``count`` is 1 for a move and 0 for an exchange, whose ``size`` is the difference.
        """
        counts = len(self.held[source]) - len(self.held[target])
        sizes = self.bytes[source] - self.bytes[target]
        by_count = 2 * count * (counts - count) / self._unit_count**2
        return by_count + 2 * size * (sizes - size) / self._unit_bytes**2

    def crowding(self, replicas: Collection[int]) -> Crowding:
        """Returns how crowded replicas on these brokers stand."""
        return self._places.crowding(replicas)

    def crowding_after(self, where: Partition, source: int, target: int) -> Crowding:
        """Returns the crowding of a partition if a replica went from one broker to another."""
        return self.crowding([target if node == source else node for node in self.replicas[where]])

    def may_move(self, where: Partition, source: int, target: int) -> bool:
        """Returns whether a replica may go to the target without more replicas on one machine or in one rack."""
        replicas = self.replicas[where]
        return target not in replicas and self.crowding_after(where, source, target) <= self.crowding(replicas)

    def movable(self, source: int, target: int) -> set[Partition]:
        """Returns the partitions of one target whose replica may go to another one; the caller leaves the set alone.

        It is kept up to date from now on: most moves of a large cluster change it little.
        """
        known = self._movable.setdefault(source, {})
        if target not in known:
            known[target] = {where for where in self.held[source] if self.may_move(where, source, target)}
        return known[target]

    def move(self, where: Partition, source: int, target: int) -> None:
        """Moves a replica; the target takes its place in the order."""
        replicas = self.replicas[where]
        assert target not in replicas, "a broker holds one replica of a partition"
        self.copies += self.added_copies(where, source, target)
        replicas[replicas.index(source)] = target
        if source in self.held:
            self.held[source].remove(where)
            self.bytes[source] -= self.sizes[where]
        self.held[target].add(where)
        self.bytes[target] += self.sizes[where]
        for node in (source, *replicas):
            for other, known in self._movable.get(node, {}).items():
                if node != source and self.may_move(where, node, other):
                    known.add(where)
                else:
                    known.discard(where)


def _outside(distance: float, room: float) -> float:
    return distance - room if distance > room else min(0.0, distance + room)


def changed(placement: Placement) -> dict[Partition, Sequence[int]]:
    """Returns the partitions whose replicas, or the order of them, differ from before."""
    return {where: tuple(now) for where, now in placement.replicas.items() if tuple(now) != placement.before[where]}
