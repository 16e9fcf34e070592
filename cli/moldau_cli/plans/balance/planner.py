"""Plans moves that even out a cluster. Pure, and deterministic: the same cluster gives the same plan.

Four steps, each of which keeps what the earlier ones reached:

1. Replicas leave the brokers that are to be emptied.
2. Replicas of one partition leave a machine, and then a rack, that has more of them than another needs to have.
3. Replicas leave brokers that hold too many or too many bytes, and go to brokers that hold too little, until all
   brokers are within the tolerance, no move helps, or the bound on moves is reached. Where no single replica fits, two
   replicas change places.
4. The order of replicas changes, so that each broker is the preferred leader of a fair share (``leaders``). This copies
   nothing.

A replica that is moved twice is copied once, or not at all if it returns.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from moldau_cli.plans.balance.leaders import level_leaders
from moldau_cli.plans.balance.state import ImpossiblePlanError, Options, Placement, changed
from moldau_cli.plans.crowding import SPREAD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from moldau_cli.plans.balance.state import BrokerState, Partition, PlacedPartition

CANDIDATES_MAX: Final = 24
"""Replicas of a broker that are looked at for one move: those nearest to the size that would fit best."""
GAIN_MIN: Final = 1e-9
"""A move that gains less is noise of floating-point numbers; it could repeat for ever."""

_Move = tuple["Partition", int, int]
"""Partition, source and target of one replica."""


def plan_balance(
    partitions: Mapping[Partition, PlacedPartition],
    brokers: Mapping[int, BrokerState],
    options: Options | None = None,
    *,
    frozen: Collection[Partition] = (),
) -> dict[Partition, Sequence[int]]:
    """Returns the new replicas of each partition that changes, the preferred leader first.

    Args:
        partitions: All partitions that count as load.
        brokers: The registered brokers.
        options: Bounds and tolerances.
        frozen: Partitions that must not change, for example because they move already.

    Raises:
        ImpossiblePlanError: a partition has more replicas than there are brokers to hold them.
    """
    wanted = options or Options()
    placement = Placement(partitions, brokers, wanted)
    movable = [where for where in placement.replicas if where not in frozen]
    _empty(placement, movable, wanted.emptied)
    # A partition with a replica on a broker that is down gets no further change: that broker may come back.
    usable = {node for node, one in brokers.items() if one.is_live}
    settled = [where for where in movable if usable.issuperset(placement.replicas[where])]
    forced = placement.copies
    _spread(placement, settled, forced, wanted)
    _even_out(placement, frozenset(settled), forced, wanted)
    if wanted.moves_leaders:
        level_leaders(placement.replicas, settled, placement.targets, wanted.tolerance)
    return changed(placement)


def _empty(placement: Placement, movable: Iterable[Partition], emptied: Collection[int]) -> None:
    for where in movable:
        replicas = placement.replicas[where]
        for source in [node for node in replicas if node in emptied]:
            free = [node for node in placement.targets if node not in replicas]
            if not free:
                raise ImpossiblePlanError(
                    f"{where[0]}-{where[1]} has {len(replicas)} replicas, and only {len(placement.targets)} live "
                    "brokers may hold them"
                )
            target = min(
                free, key=lambda node: (placement.crowding_after(where, source, node), placement.load(node), node)
            )
            placement.move(where, source, target)


def _has_room(placement: Placement, move: _Move, forced: int, options: Options) -> bool:
    """Returns whether the bound on moves allows the move."""
    if options.moves_max is None:
        return True
    return placement.copies - forced + placement.added_copies(*move) <= options.moves_max


def _spread(placement: Placement, settled: Iterable[Partition], forced: int, options: Options) -> None:
    for where in settled:
        while (crowding := placement.crowding(replicas := placement.replicas[where])) != SPREAD:
            moves = [
                (
                    placement.crowding_after(where, source, target),
                    -placement.load(source),
                    placement.load(target),
                    source,
                    target,
                )
                for source in replicas
                if source in placement.held
                for target in placement.targets
                if target not in replicas
            ]
            if not moves or min(moves)[0] >= crowding:
                break
            _, _, _, source, target = min(moves)
            if not _has_room(placement, (where, source, target), forced, options):
                return
            placement.move(where, source, target)


def _even_out(placement: Placement, settled: frozenset[Partition], forced: int, options: Options) -> None:
    """Moves replicas while a broker is outside of the tolerance and a move lowers the sum of squares.

    The sum falls by at least ``GAIN_MIN`` with each move and is never below 0, so the loop ends.
    """
    while moves := _next_moves(placement, settled):
        copies = placement.copies
        for move in moves:
            placement.move(*move)
        if options.moves_max is not None and placement.copies - forced > options.moves_max >= copies - forced:
            for where, source, target in reversed(moves):
                placement.move(where, target, source)
            return


def _next_moves(placement: Placement, settled: frozenset[Partition]) -> list[_Move]:
    """Returns one move, or two that belong together; empty if all brokers are even or nothing helps."""
    excess = {node: placement.excess(node) for node in placement.targets}
    outside = sorted((node for node in placement.targets if excess[node]), key=lambda node: (-abs(excess[node]), node))
    by_load = sorted(placement.targets, key=lambda node: (placement.load(node), node))
    for node in outside:
        others = [other for other in (by_load if excess[node] > 0 else reversed(by_load)) if other != node]
        for other in others:
            source, target = (node, other) if excess[node] > 0 else (other, node)
            found = _best_move(placement, settled, source, target) or _best_exchange(placement, settled, source, target)
            if found:
                return found
    return []


def _best_move(placement: Placement, settled: frozenset[Partition], source: int, target: int) -> list[_Move]:
    counts = max(1, (len(placement.held[source]) - len(placement.held[target])) // 2)
    fitting = max(0.0, (placement.bytes[source] - placement.bytes[target]) / 2 / counts)
    best: tuple[float, Partition] | None = None
    for where in _nearest(placement, settled, source, target, fitting):
        gain = placement.gain(placement.sizes[where], 1, source, target)
        if gain > GAIN_MIN and (best is None or (-gain, where) < best):
            best = (-gain, where)
    return [] if best is None else [(best[1], source, target)]


def _best_exchange(placement: Placement, settled: frozenset[Partition], source: int, target: int) -> list[_Move]:
    """Returns a large replica of the source and a small one of the target, if their exchange evens out the bytes."""
    gap = (placement.bytes[source] - placement.bytes[target]) / 2
    if gap <= placement.bytes_room / 2:
        return []
    best: tuple[float, int, Partition, Partition] | None = None
    for there in _nearest(placement, settled, source, target, gap):
        for back in _nearest(placement, settled, target, source, placement.sizes[there] - gap):
            size = placement.sizes[there] - placement.sizes[back]
            gain = placement.gain(size, 0, source, target)
            key = (-gain, placement.sizes[there] + placement.sizes[back], there, back)
            if gain > GAIN_MIN and (best is None or key < best):
                best = key
    return [] if best is None else [(best[2], source, target), (best[3], target, source)]


def _nearest(
    placement: Placement, settled: frozenset[Partition], source: int, target: int, size: float
) -> list[Partition]:
    """Returns partitions of the source that may move to the target, those nearest to a size first."""
    possible = [
        (abs(placement.sizes[where] - size), where) for where in placement.movable(source, target) if where in settled
    ]
    return [where for _, where in heapq.nsmallest(CANDIDATES_MAX, possible)]
