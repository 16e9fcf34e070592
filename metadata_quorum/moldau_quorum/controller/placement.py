"""Placement of the replicas of new partitions: round robin, spread over machines, and over racks if brokers have them.

Each partition takes the brokers that hold the fewest replicas of this assignment so far, first from machines and then
from racks that it does not use yet, and among equals the next in a rotation whose start is drawn. Of these, the broker
that leads the fewest partitions comes first. Without racks, or with racks of equal size, the numbers of replicas per
broker differ by at most one.

A machine counts more than whether a broker serves now: a replica goes to a fenced broker rather than to a machine that
has a replica already, because the fenced broker comes back, and the replica would stay where it is. With fewer machines
than replicas, each machine gets as few of them as possible.
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
    machine: str | None = None
    """Brokers with the same name stand on one machine; a broker without a name is alone on its own."""
    fenced: bool = False
    """A fenced broker is used only if there are not enough others on enough machines, and never leads."""


def place_replicas(
    brokers: Sequence[UsableBroker], *, partitions: int, replication_factor: int, start: int, cordoned_brokers: int = 0
) -> list[tuple[BrokerId, ...]]:
    """Returns the replicas of each new partition, the preferred leader first.

    ``start`` is a number that the caller draws; it shifts the rotation. ``cordoned_brokers`` is the number of brokers
    that are not among ``brokers`` because all their log directories are cordoned; refusals name it.

    Raises:
        RefusedError: INVALID_REPLICATION_FACTOR.
    """
    if replication_factor < 1:
        raise RefusedError(ErrorCode.INVALID_REPLICATION_FACTOR, f"replication factor {replication_factor} is below 1")
    others = f"; the log directories of {cordoned_brokers} more are cordoned" if cordoned_brokers else ""
    if replication_factor > len(brokers):
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} is larger than the number of brokers, {len(brokers)}{others}",
        )
    if all(broker.fenced for broker in brokers):
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"all brokers are fenced: none can hold a new replica{others}"
        )
    return _Placement(brokers, start).place(partitions, replication_factor)


class _Placement:
    """Counts the replicas that each broker holds and leads. Invariant: turns are unique."""

    def __init__(self, brokers: Sequence[UsableBroker], start: int) -> None:
        ordered = sorted(brokers, key=lambda broker: broker.broker_id)
        shift = start % len(ordered)
        rotated = _alternate(ordered[shift:] + ordered[:shift])
        self._brokers = {broker.broker_id: broker for broker in rotated}
        self._turn = dict(zip(self._brokers, range(len(rotated)), strict=True))
        self._held = dict.fromkeys(self._turn, 0)
        self._led = dict.fromkeys(self._turn, 0)
        self._next_turn = len(rotated)

    def place(self, partitions: int, replication_factor: int) -> list[tuple[BrokerId, ...]]:
        return [self._place_one(replication_factor) for _ in range(partitions)]

    def _place_one(self, replication_factor: int) -> tuple[BrokerId, ...]:
        chosen: list[BrokerId] = []
        used_machines: dict[str | None, int] = {None: 0}
        used_racks: dict[str | None, int] = {None: 0}

        def cost(broker: BrokerId) -> tuple[int, bool, int, int, int]:
            seen = self._brokers[broker]
            return (
                used_machines.get(seen.machine, 0),
                seen.fenced,
                used_racks.get(seen.rack, 0),
                self._held[broker],
                self._turn[broker],
            )

        remaining = list(self._turn)
        while len(chosen) < replication_factor:
            best = min(remaining, key=cost)
            remaining.remove(best)
            chosen.append(best)
            taken = self._brokers[best]
            if taken.machine is not None:
                used_machines[taken.machine] = used_machines.get(taken.machine, 0) + 1
            if taken.rack is not None:
                used_racks[taken.rack] = used_racks.get(taken.rack, 0) + 1
        for broker in chosen:
            self._held[broker] += 1
            self._turn[broker] = self._next_turn
            self._next_turn += 1
        leader = min(chosen, key=lambda broker: (self._brokers[broker].fenced, self._led[broker], chosen.index(broker)))
        self._led[leader] += 1
        chosen.remove(leader)
        return (leader, *chosen)


def _alternate(brokers: Sequence[UsableBroker]) -> list[UsableBroker]:
    """Interleaves racks, and the machines of a rack, so that neighbours in the rotation stand apart."""
    is_one_rack = len({broker.rack for broker in brokers}) == 1
    if is_one_rack and len({broker.machine for broker in brokers}) == len(brokers):
        return list(brokers)
    by_rack: dict[str | None, list[UsableBroker]] = {}
    for broker in brokers:
        by_rack.setdefault(broker.rack, []).append(broker)
    return _interleaved([_interleaved(_by_machine(group)) for group in by_rack.values()])


def _by_machine(brokers: Sequence[UsableBroker]) -> list[list[UsableBroker]]:
    by_machine: dict[str, list[UsableBroker]] = {}
    for broker in brokers:
        alone = f"broker {broker.broker_id}"  # no host has a blank in its name
        by_machine.setdefault(broker.machine or alone, []).append(broker)
    return list(by_machine.values())


def _interleaved(groups: Sequence[Sequence[UsableBroker]]) -> list[UsableBroker]:
    longest = max(len(group) for group in groups)
    return [group[position] for position in range(longest) for group in groups if position < len(group)]
