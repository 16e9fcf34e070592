"""Placement of the replicas of new partitions: round robin, spread over racks if brokers have racks.

Each partition takes the brokers that hold the fewest replicas of this assignment so far, first from racks that it does
not use yet, and among equals the next in a rotation whose start is drawn. Of these, the broker that leads the fewest
partitions comes first. Without racks, or with racks of equal size, the numbers of replicas per broker differ by at most
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_quorum.controller.context import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.values import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableBroker:
    """A broker that may hold replicas."""

    broker_id: BrokerId
    rack: str | None = None
    fenced: bool = False
    """A fenced broker is used only if there are not enough others, and never leads."""


def place_replicas(
    brokers: Sequence[UsableBroker], *, partitions: int, replication_factor: int, start: int
) -> list[tuple[BrokerId, ...]]:
    """Returns the replicas of each new partition, the preferred leader first.

    ``start`` is a number that the caller draws; it shifts the rotation.

    Raises:
        RefusedError: INVALID_REPLICATION_FACTOR.
    """
    if replication_factor < 1:
        raise RefusedError(ErrorCode.INVALID_REPLICATION_FACTOR, f"replication factor {replication_factor} is below 1")
    if replication_factor > len(brokers):
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} is larger than the number of brokers, {len(brokers)}",
        )
    if all(broker.fenced for broker in brokers):
        raise RefusedError(ErrorCode.INVALID_REPLICATION_FACTOR, "all brokers are fenced: none can hold a new replica")
    return _Placement(brokers, start).place(partitions, replication_factor)


class _Placement:
    """Counts the replicas that each broker holds and leads. Invariant: turns are unique."""

    def __init__(self, brokers: Sequence[UsableBroker], start: int) -> None:
        ordered = sorted(brokers, key=lambda broker: broker.broker_id)
        shift = start % len(ordered)
        rotated = _alternate_racks(ordered[shift:] + ordered[:shift])
        self._racks = {broker.broker_id: broker.rack for broker in rotated}
        self._fenced = {broker.broker_id: broker.fenced for broker in rotated}
        self._turn = {broker.broker_id: turn for turn, broker in enumerate(rotated)}
        self._held = dict.fromkeys(self._turn, 0)
        self._led = dict.fromkeys(self._turn, 0)
        self._next_turn = len(rotated)
        unfenced = [broker.broker_id for broker in rotated if not broker.fenced]
        self._unfenced = unfenced
        self._all = list(self._turn)

    def place(self, partitions: int, replication_factor: int) -> list[tuple[BrokerId, ...]]:
        candidates = self._unfenced if len(self._unfenced) >= replication_factor else self._all
        return [self._place_one(candidates, replication_factor) for _ in range(partitions)]

    def _place_one(self, candidates: list[BrokerId], replication_factor: int) -> tuple[BrokerId, ...]:
        chosen: list[BrokerId] = []
        used_racks: dict[str | None, int] = {}

        def cost(broker: BrokerId) -> tuple[bool, int, int, int]:
            rack = self._racks[broker]
            crowd = 0 if rack is None else used_racks.get(rack, 0)
            return self._fenced[broker], crowd, self._held[broker], self._turn[broker]

        remaining = list(candidates)
        while len(chosen) < replication_factor:
            best = min(remaining, key=cost)
            remaining.remove(best)
            chosen.append(best)
            used_racks[self._racks[best]] = used_racks.get(self._racks[best], 0) + 1
        for broker in chosen:
            self._held[broker] += 1
            self._turn[broker] = self._next_turn
            self._next_turn += 1
        leader = min(chosen, key=lambda broker: (self._fenced[broker], self._led[broker], chosen.index(broker)))
        self._led[leader] += 1
        chosen.remove(leader)
        return (leader, *chosen)


def _alternate_racks(brokers: Sequence[UsableBroker]) -> list[UsableBroker]:
    """Interleaves the racks, so that neighbours in the rotation are in different racks."""
    by_rack: dict[str | None, list[UsableBroker]] = {}
    for broker in brokers:
        by_rack.setdefault(broker.rack, []).append(broker)
    alternating: list[UsableBroker] = []
    for position in range(max(len(group) for group in by_rack.values())):
        alternating.extend(group[position] for group in by_rack.values() if position < len(group))
    return alternating
