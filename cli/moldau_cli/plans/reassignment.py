"""Plans of replica moves: computes a plan, and reads and writes its file format.

The file format is that of Kafka's own tool: ``{"version": 1, "partitions": [{"topic": ..., "partition": ...,
"replicas": [...]}]}``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from moldau_cli.errors import UsageError
from moldau_cli.plans.crowding import SPREAD, Places
from moldau_cli.plans.documents import partition_entries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from moldau_cli.output import Json

Replicas = dict[tuple[str, int], list[int]]


def plan_moves(
    current: Mapping[tuple[str, int], Sequence[int]], brokers: Sequence[int], places: Places | None = None
) -> Replicas:
    """Computes new replicas on ``brokers`` for every partition, moving as little as balance allows.

    A replica on one of the brokers stays unless that broker holds more than its share, rounded up, or another broker
    is on a machine or in a rack without a replica of the partition; the others go to the brokers that hold least, such
    machines and racks first. Preferred leaders are spread in the same way. Only partitions that change are returned.

    Raises:
        UsageError: a partition has more replicas than there are brokers.
    """
    for (topic, partition), replicas in sorted(current.items()):
        if len(replicas) > len(brokers):
            raise UsageError(
                f"{topic}-{partition} has {len(replicas)} replicas, but only {len(brokers)} brokers are given"
            )
    places = places or Places({})
    total = sum(len(replicas) for replicas in current.values())
    share = -(-total // len(brokers)) if brokers else 0
    load = dict.fromkeys(sorted(brokers), 0)
    kept: Replicas = {}
    for where, replicas in sorted(current.items()):
        kept[where] = []
        for broker in replicas:
            if broker in load and load[broker] < share and _fits(kept[where], broker, brokers, places):
                kept[where].append(broker)
                load[broker] += 1
    for where, replicas in sorted(current.items()):
        chosen = kept[where]
        while len(chosen) < len(replicas):
            free = [broker for broker in load if broker not in chosen]
            target = min(free, key=lambda broker: (places.crowding([*chosen, broker]), load[broker], broker))
            chosen.append(target)
            load[target] += 1
    _level(kept, load, places)
    led = dict.fromkeys(load, 0)
    planned: Replicas = {}
    for where in sorted(current):
        chosen = kept[where]
        leader = min(chosen, key=lambda broker: (led[broker], chosen.index(broker)))
        led[leader] += 1
        planned[where] = [leader, *(broker for broker in chosen if broker != leader)]
    return {where: replicas for where, replicas in planned.items() if replicas != list(current[where])}


def _fits(chosen: Sequence[int], broker: int, brokers: Sequence[int], places: Places) -> bool:
    """Returns whether no other broker would stand farther from the chosen ones than this one does."""
    own = places.crowding([*chosen, broker])
    return own == SPREAD or own <= min(places.crowding([*chosen, other]) for other in brokers if other not in chosen)


def _level(kept: Replicas, load: dict[int, int], places: Places) -> None:
    """Moves single replicas until no broker holds two more than another, or machines and racks forbid every move.

    Of two such brokers one has replicas of more partitions, so one of its replicas can always move to the other where
    machines and racks do not matter. Each move brings the loads closer, so the loop ends.
    """
    queues: dict[int, list[tuple[str, int]]] = {broker: [] for broker in load}
    for where in sorted(kept):
        for broker in kept[where]:
            queues[broker].append(where)
    looked: dict[tuple[int, int], int] = {}
    while move := _next_move(kept, queues, looked, load, places):
        where, most, least = move
        kept[where][kept[where].index(most)] = least
        for broker in kept[where]:
            queues[broker].append(where)
        load[most] -= 1
        load[least] += 1


def _next_move(
    kept: Replicas,
    queues: Mapping[int, Sequence[tuple[str, int]]],
    looked: dict[tuple[int, int], int],
    load: Mapping[int, int],
    places: Places,
) -> tuple[tuple[str, int], int, int] | None:
    """Returns a partition and the brokers that its replica leaves and goes to.

    ``queues`` has the partitions of each broker, again after each change of one. ``looked`` counts those of a broker
    that cannot move to another one: they need no further look until they change.
    """
    ascending = sorted(load, key=lambda broker: (load[broker], broker))
    for most in reversed(ascending):
        for least in ascending:
            if load[most] - load[least] < 2:
                break
            at = looked.get((most, least), 0)
            while at < len(queues[most]) and not _may_move(kept[queues[most][at]], most, least, places):
                at += 1
            looked[most, least] = at
            if at < len(queues[most]):
                return queues[most][at], most, least
    return None


def _may_move(chosen: Sequence[int], most: int, least: int, places: Places) -> bool:
    if most not in chosen or least in chosen:
        return False
    after = [least if broker == most else broker for broker in chosen]
    return places.crowding(after) <= places.crowding(chosen)


def plan_document(moves: Mapping[tuple[str, int], Sequence[int]]) -> dict[str, Json]:
    """Returns the plan as the file's JSON value."""
    return {
        "version": 1,
        "partitions": [
            {"topic": topic, "partition": partition, "replicas": list(replicas)}
            for (topic, partition), replicas in sorted(moves.items())
        ],
    }


def parse_plan(text: str, origin: str) -> Replicas:
    """Parses a plan; ``origin`` names it in errors.

    Raises:
        UsageError: the text is not a valid plan.
    """
    moves: Replicas = {}
    for entry in partition_entries(text, origin):
        match entry:
            case {"topic": str(topic), "partition": int(partition), "replicas": list(replicas), **more} if (
                type(partition) is int
                and partition >= 0
                and replicas
                and all(type(broker) is int and broker >= 0 for broker in replicas)
                and len(set(replicas)) == len(replicas)
            ):
                _refuse_directories(more.get("log_dirs"), f"{origin}: {topic}-{partition}")
                if (topic, partition) in moves:
                    raise UsageError(f"{origin}: {topic}-{partition} is there twice")
                moves[topic, partition] = replicas
            case _:
                raise UsageError(f"{origin}: expected topic, partition and different replicas, not {json.dumps(entry)}")
    return moves


def _refuse_directories(directories: object, place: str) -> None:
    """Refuses what Kafka's tool reads from the same file, and these commands would leave out.

    Raises:
        UsageError: the entry names log directories.
    """
    if directories is not None and (not isinstance(directories, list) or any(each != "any" for each in directories)):
        raise UsageError(f"{place} names log_dirs, which are not moved by this command: moldau logdirs move does that")


def read_plan(plan_file: Path) -> Replicas:
    """Reads the file of a plan.

    Raises:
        UsageError: it cannot be read, or holds no valid plan.
    """
    try:
        text = plan_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {plan_file}: {getattr(error, 'strerror', None) or error}") from error
    return parse_plan(text, str(plan_file))
