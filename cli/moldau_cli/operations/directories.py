"""Moves replicas between the log directories of one broker, and waits for the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau import Admin
    from moldau.admin import ReplicaLogDir

    Replica = tuple[str, int, int]

RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
LOOK_S: Final = 0.3


async def move_to_directory(
    admin: Admin, replicas: Sequence[Replica], path: str, *, throttle: int | None, stall_s: float
) -> None:
    """Moves replicas (topic, partition, broker) of one broker to one of its directories, and lifts the throttle.

    Raises:
        UsageError: the broker has no such directory.
        CommandError: nothing was copied for ``stall_s`` seconds.
        KafkaError: a request was refused.
    """
    broker = replicas[0][2]
    known = [each.path for each in (await admin.describe_log_dirs([broker], partitions=[]))[broker]]
    if path not in known:
        raise UsageError(f"broker {broker} has no log directory {path}; it has {', '.join(known)}")
    if throttle is not None:
        await _limit(admin, broker, throttle)
    await admin.alter_replica_log_dirs(dict.fromkeys(replicas, path))
    await _finished(admin, replicas, path, stall_s)
    if throttle is not None:
        await _limit(admin, broker, None)


async def _finished(admin: Admin, replicas: Sequence[Replica], path: str, stall_s: float) -> None:
    before: dict[Replica, ReplicaLogDir] = {}
    while True:
        with trio.move_on_after(stall_s):
            found = await admin.describe_replica_log_dirs(replicas)
            while found == before:
                await trio.sleep(LOOK_S)
                found = await admin.describe_replica_log_dirs(replicas)
            before = found
            left = [replica for replica, where in found.items() if where.path != path or where.future_path]
            if not left:
                return
            await trio.sleep(LOOK_S)
            continue
        topic, partition, broker = next(
            (replica for replica, where in before.items() if where.path != path), replicas[0]
        )
        raise CommandError(
            f"nothing was copied for {stall_s:g} s; {topic}-{partition} of broker {broker} is not in {path} yet. "
            "The moves go on; repeat the command to wait for them"
        )


async def _limit(admin: Admin, broker: int, rate: int | None) -> None:
    """Sets or lifts the limit of copies between the directories of a broker."""
    from moldau.admin import ConfigAlteration, ConfigOperation, ConfigResource, ResourceType

    operation = ConfigOperation.DELETE if rate is None else ConfigOperation.SET
    change = ConfigAlteration(name=RATE, value=None if rate is None else str(rate), operation=operation)
    await admin.alter_configs({ConfigResource(type=ResourceType.BROKER, name=str(broker)): [change]})
