"""Moves of replicas between the log directories of one broker (KIP-113).

AlterReplicaLogDirs creates a future log. This task fills it from the current log, a bounded piece at a time, and syncs
it outside the event loop. When it has caught up, it replaces the current log between two requests.

Before that, the controller records the new directory (KIP-858). A broker that crashes in between finds the future log
in the recorded directory and the current log in the old one, and continues the move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from moldau.protocol.errors import KafkaError
from moldau_broker.log.errors import LogStorageError

if TYPE_CHECKING:
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_broker.log.values import TopicPartition, Work
    from moldau_broker.server.handlers.context import BrokerContext

LOOK_MS = 1_000.0
CONFIRM_MS = 20.0
"""Period of the check whether the controller has recorded a move; the copy continues meanwhile."""


class Offload(Protocol):
    """Runs blocking work outside the event loop and completes it."""

    async def __call__(self, work: Work, limiter: trio.CapacityLimiter) -> None:
        """Returns when the work is complete or its failure has been handled."""
        ...


async def move_replicas(context: BrokerContext, offload: Offload, logger: EventLogger) -> None:
    """Moves replicas until cancelled."""
    limiter = trio.CapacityLimiter(1)
    while True:
        await trio.sleep(LOOK_MS / 1000)
        for key in list(context.logs.future_logs):
            try:
                await _move(context, key, offload, limiter, logger)
            except LogStorageError as error:
                context.replicas.directory_failed(error)
            except KafkaError as error:
                logger.error("replica-move-failed", partition=key, error=error)


async def _move(
    context: BrokerContext, key: TopicPartition, offload: Offload, limiter: trio.CapacityLimiter, logger: EventLogger
) -> None:
    logs, clock = context.logs, context.environment.clock
    synced = False
    while key in logs.future_logs and key in logs.logs:
        caught_up = logs.copy_to_future(key, clock.wall_ms())
        if not caught_up:
            await trio.lowlevel.checkpoint()
        elif not synced:
            # Syncing here, outside the event loop, leaves little to sync for the replacement.
            work = logs.future_logs[key].flush_work()
            if work is not None:
                await offload(work, limiter)
            synced = True
            await trio.lowlevel.checkpoint()
        elif not context.directories.may_take_over(key):
            await trio.sleep(CONFIRM_MS / 1000)
        elif logs.logs[key].has_staged:
            await trio.lowlevel.checkpoint()
        else:
            _take_over(context, key, logger)
            return


def _take_over(context: BrokerContext, key: TopicPartition, logger: EventLogger) -> None:
    """Replaces the current log with the future log.

    Raises:
        LogStorageError: a directory failed; the replacement may have succeeded while removing the old log failed.
    """
    partition = context.replicas.partitions.get(key)
    try:
        log = context.logs.replace_current_with_future(key, context.environment.clock.wall_ms())
    finally:
        present = context.logs.get(key)
        if partition is not None and present is not None:
            partition.log = present
        context.directories.move_changed(key)
    logger.info("replica-moved", partition=key, directory=log.parent_directory)
