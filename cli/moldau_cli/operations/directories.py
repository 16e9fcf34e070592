"""Cordons the log directories of one broker, moves replicas between them, and waits for the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau import Admin
    from moldau.admin import LogDirDescription, ReplicaLogDir

    Replica = tuple[str, int, int]

RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
LOOK_S: Final = 0.3
CORDON_S: Final = 10.0
"""How long a broker may take to apply a change of its cordoned directories."""


async def log_dirs_of(admin: Admin, broker: int, paths: Iterable[str] = ()) -> dict[str, LogDirDescription]:
    """Returns the log directories of a broker by path, after checking that ``paths`` are among them.

    Raises:
        UsageError: the broker has no such directory.
    """
    found = {each.path: each for each in (await admin.describe_log_dirs([broker]))[broker]}
    unknown = [path for path in paths if path not in found]
    if unknown:
        raise UsageError(f"broker {broker} has no log directory {unknown[0]}; it has {', '.join(found)}")
    return found


async def set_cordons(admin: Admin, broker: int, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
    """Cordons and uncordons log directories of a broker, and waits until it has done so; returns the cordoned ones.

    ``*`` stands for all of them, also for those that the broker gets later; it stays if nothing is uncordoned.

    Raises:
        UsageError: the broker has no such directory.
        CommandError: the broker did not apply the change in time.
        KafkaError: the change was refused.
    """
    from moldau.admin import ConfigAlteration, ConfigResource, ResourceType
    from moldau.runtime.config import ALL_LOG_DIRS, CORDONED_LOG_DIRS

    known = await log_dirs_of(admin, broker, [path for path in (*add, *remove) if path != ALL_LOG_DIRS])
    cordons, uncordons = (list(known) if ALL_LOG_DIRS in paths else paths for paths in (add, remove))
    wanted = [path for path, one in known.items() if (one.is_cordoned or path in cordons) and path not in uncordons]
    own = ConfigResource(type=ResourceType.BROKER, name=str(broker))
    stays = not uncordons and (await admin.describe_configs([own]))[own][CORDONED_LOG_DIRS].value == ALL_LOG_DIRS
    value = ALL_LOG_DIRS if stays or ALL_LOG_DIRS in add else ",".join(wanted)
    await admin.alter_configs({own: [ConfigAlteration(name=CORDONED_LOG_DIRS, value=value)]})
    with trio.move_on_after(CORDON_S):
        while True:
            if [path for path, one in (await log_dirs_of(admin, broker)).items() if one.is_cordoned] == wanted:
                return wanted
            await trio.sleep(LOOK_S / 10)
    raise CommandError(f"broker {broker} did not apply {CORDONED_LOG_DIRS} = {value!r} within {CORDON_S:g} s")


async def drain_directory(
    admin: Admin, broker: int, path: str, *, throttle: int | None, stall_s: float
) -> dict[Replica, str]:
    """Cordons a log directory, and moves its replicas to others of the same broker; returns where they went.

    Moves of replicas to the directory end, so that it holds none on return.

    Raises:
        UsageError: the broker has no such directory, or none that can take the replicas.
        CommandError: the directory has failed, or nothing was copied for ``stall_s`` seconds.
        KafkaError: a request was refused.
    """
    failure = (await log_dirs_of(admin, broker, [path]))[path].error
    if failure:
        raise CommandError(
            f"{path} of broker {broker} has failed ({failure.name.lower()}), so nothing can be moved out of it: "
            "replace its disk and restart the broker, which copies the replicas from their leaders"
        )
    await set_cordons(admin, broker, add=[path])
    known = await log_dirs_of(admin, broker)
    moves, returning = leave(known, broker, path)
    if moves or returning:
        await move_to_directories(admin, {**moves, **returning}, throttle=throttle, stall_s=stall_s)
    elif throttle is not None:  # the moves of an interrupted call have ended by themselves
        await _limit(admin, broker, None)
    return moves


def leave(
    known: Mapping[str, LogDirDescription], broker: int, path: str
) -> tuple[dict[Replica, str], dict[Replica, str]]:
    """Returns the targets of replicas that leave ``path``, and the places of those that were moving to it. Pure.

    A replica that leaves already goes on to where it goes, because its next target would copy it from the start.

    Raises:
        UsageError: no other directory can take the replicas.
    """
    targets = {
        each.path: sum(part.size_bytes for part in each.partitions)
        for each in known.values()
        if each.error == 0 and not each.is_cordoned
    }
    present: dict[Replica, str] = {}
    future: dict[Replica, str] = {}
    sizes: dict[tuple[Replica, str], int] = {}
    for each in known.values():
        for part in each.partitions:
            replica = (*part.topic_partition, broker)
            (future if part.is_future else present)[replica] = each.path
            sizes[replica, each.path] = part.size_bytes
    leaving = {replica: sizes[replica, path] for replica, place in present.items() if place == path}
    if leaving and not targets:
        raise UsageError(
            f"broker {broker} has no other log directory that works and is not cordoned: "
            f"moldau brokers drain {broker} moves its replicas to other brokers"
        )
    going = {replica: future[replica] for replica in leaving if future.get(replica) in targets}
    for replica, target in going.items():
        targets[target] += max(leaving[replica] - sizes[replica, target], 0)
    rest = {replica: size for replica, size in leaving.items() if replica not in going}
    returning = {
        replica: present[replica] for replica, to in future.items() if to == path and present.get(replica, path) != path
    }
    return {**going, **spread_over_directories(rest, targets)}, returning


def spread_over_directories(replicas: Mapping[Replica, int], targets: Mapping[str, int]) -> dict[Replica, str]:
    """Returns a directory for each replica: the largest replica first, to the directory with the fewest bytes.

    Both mappings hold bytes.
    """
    filled = dict(targets)
    moves: dict[Replica, str] = {}
    for replica, size in sorted(replicas.items(), key=lambda each: (-each[1], each[0])):
        target = min(filled, key=lambda path: filled[path])
        moves[replica] = target
        filled[target] += max(size, 1)  # so that empty replicas are spread too
    return moves


async def move_to_directories(
    admin: Admin, moves: Mapping[Replica, str], *, throttle: int | None, stall_s: float
) -> None:
    """Moves replicas (topic, partition, broker) of one broker to directories of it, and lifts the throttle.

    Raises:
        UsageError: the broker has no such directory.
        CommandError: nothing was copied for ``stall_s`` seconds.
        KafkaError: a request was refused.
    """
    _, _, broker = next(iter(moves))
    await log_dirs_of(admin, broker, moves.values())
    if throttle is not None:
        await _limit(admin, broker, throttle)
    await admin.alter_replica_log_dirs(moves)
    await _finished(admin, moves, stall_s)
    if throttle is not None:
        await _limit(admin, broker, None)


async def _finished(admin: Admin, moves: Mapping[Replica, str], stall_s: float) -> None:
    before: dict[Replica, ReplicaLogDir] = {}
    while True:
        with trio.move_on_after(stall_s):
            found = await admin.describe_replica_log_dirs(moves)
            while found == before:
                await trio.sleep(LOOK_S)
                found = await admin.describe_replica_log_dirs(moves)
            before = found
            left = [replica for replica, where in found.items() if where.path != moves[replica] or where.future_path]
            if not left:
                return
            await trio.sleep(LOOK_S)
            continue
        late = next((replica for replica, where in before.items() if where.path != moves[replica]), next(iter(moves)))
        topic, partition, broker = late
        raise CommandError(
            f"nothing was copied for {stall_s:g} s; {topic}-{partition} of broker {broker} is not in {moves[late]} "
            "yet. "
            "The moves go on; repeat the command to wait for them"
        )


async def _limit(admin: Admin, broker: int, rate: int | None) -> None:
    """Sets or lifts the limit of copies between the directories of a broker."""
    from moldau.admin import ConfigAlteration, ConfigOperation, ConfigResource, ResourceType

    operation = ConfigOperation.DELETE if rate is None else ConfigOperation.SET
    change = ConfigAlteration(name=RATE, value=None if rate is None else str(rate), operation=operation)
    await admin.alter_configs({ConfigResource(type=ResourceType.BROKER, name=str(broker)): [change]})
