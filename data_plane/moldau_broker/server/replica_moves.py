"""Moves of replicas between the log directories of one broker (KIP-113).

AlterReplicaLogDirs makes a future log. This task fills it from the current one, a bounded piece at a time, syncs it
outside the event loop, and once it has caught up lets it take the current log's place between two requests.
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
        if caught_up and synced and not logs.logs[key].has_staged:
            log = logs.replace_current_with_future(key, clock.wall_ms())
            partition = context.replicas.partitions.get(key)
            if partition is not None:
                partition.log = log
            logger.info("replica-moved", partition=key, directory=log.parent_directory)
            return
        if caught_up and not synced:
            # The bulk is synced here, outside the loop: what taking over has left to sync is little.
            work = logs.future_logs[key].flush_work()
            if work is not None:
                await offload(work, limiter)
            synced = True
        await trio.lowlevel.checkpoint()
