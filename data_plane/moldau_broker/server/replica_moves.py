"""Moves of replicas between the log directories of one broker (KIP-113).

AlterReplicaLogDirs makes a future log. This task fills it from the current one, a bounded piece at a time, syncs it
outside the event loop, and once it has caught up lets it take the current log's place between two requests.

Before that, the controller records the new directory (KIP-858). A broker that crashes in between finds the future log
where it is recorded, and the current one where it was: the move goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from moldau.protocol.errors import KafkaError
from moldau_broker.log.errors import LogStorageError

if TYPE_CHECKING:
    from moldau.runtime.log import EventLogger
    from moldau_broker.log.values import TopicPartition, Work
    from moldau_broker.server.context import BrokerContext

LOOK_MS = 1_000.0
CONFIRM_MS = 20.0
"""Between two looks whether the controller has heard of a move, while the copy goes on."""


class Offload(Protocol):
    """Runs blocking work outside the event loop and completes it."""

    async def __call__(self, work: Work, limiter: trio.CapacityLimiter) -> None:
        """Returns when the work is complete or its failure is dealt with."""
        ...


async def move_replicas(context: BrokerContext, offload: Offload, logger: EventLogger) -> None:
    """Runs for as long as the broker."""
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
            # The bulk is synced here, outside the loop: what taking over has left to sync is little.
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
    """The future log becomes the current one. Raises ``LogStorageError``, also when only the old one's end failed."""
    partition = context.replicas.partitions.get(key)
    try:
        log = context.logs.replace_current_with_future(key, context.environment.clock.wall_ms())
    finally:
        present = context.logs.get(key)
        if partition is not None and present is not None:
            partition.log = present
        context.directories.move_changed(key)
    logger.info("replica-moved", partition=key, directory=log.parent_directory)
