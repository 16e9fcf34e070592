"""Moves of replicas between the log directories of one broker (KIP-113).

AlterReplicaLogDirs creates a future log. This task fills it from the current log, a bounded piece at a time, and syncs
it outside the event loop. When it has caught up, it replaces the current log between two requests.

``replica.alter.log.dirs.io.max.bytes.per.second`` limits what a broker copies for all its moves together. The limit may
change during a move. Moves follow one another, so that each frees its old directory before the next one fills more of
the new one; a move that falls behind the producers lets the others pass. A nearly full directory takes no copies: a
write that finds no room would fail it, with all replicas in it.

Before that, the controller records the new directory (KIP-858). A broker that crashes in between finds the future log
in the recorded directory and the current log in the old one, and continues the move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from moldau.protocol.errors import KafkaError
from moldau_broker.log.directories.moves import COPY_BYTES
from moldau_broker.log.errors import LogStorageError

if TYPE_CHECKING:
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_broker.log.values import TopicPartition, Work
    from moldau_broker.server.handlers.context import BrokerContext

RATE_KEY = "replica.alter.log.dirs.io.max.bytes.per.second"
LOOK_MS = 1_000.0
WAIT_MS_MIN = 1.0
"""Shorter waits are left for the next piece, which makes them longer."""
TURN_MS = 10_000.0
"""How long a move may copy without coming closer to the end of its log, before the next one has its turn."""
CONFIRM_MS = 20.0
"""Period of the checks whether the controller has recorded a move, and whether a sync of the copy has ended; the copy
continues meanwhile."""


class CopyThrottle:
    """Limits the bytes that moves copy a second: each piece is a debt, which time pays off. Pure."""

    def __init__(self) -> None:
        """Starts without copies."""
        self._debt_bytes = 0.0
        self._since_ms = 0.0

    def piece_bytes(self, rate: int) -> int:
        """Returns the greatest number of bytes to copy at once: no more than a tenth of a second's worth."""
        return max(1, min(COPY_BYTES, rate // 10))

    def copied(self, count: int) -> None:
        """Notes a piece; a batch may be larger than ``piece_bytes``, and a truncation gives nothing back."""
        self._debt_bytes += max(0, count)

    def wait_ms(self, now_ms: float, rate: int) -> float:
        """Returns how long to wait before the next piece; at most ``LOOK_MS``, because the rate may change."""
        elapsed_ms, self._since_ms = now_ms - self._since_ms, now_ms
        self._debt_bytes = max(0.0, self._debt_bytes - rate * elapsed_ms / 1000)
        if rate == 0:
            return LOOK_MS
        wait_ms = self._debt_bytes * 1000 / rate
        return min(LOOK_MS, wait_ms) if wait_ms >= WAIT_MS_MIN else 0.0


class Turn:
    """The turn of one move: it goes on while the move comes closer to the end of its log. Pure."""

    def __init__(self, now_ms: float) -> None:
        """Begins a turn."""
        self._until_ms = now_ms + TURN_MS
        self._behind_bytes: int | None = None

    def is_over(self, now_ms: float, behind_bytes: int) -> bool:
        """Returns whether the next move has its turn; ``behind_bytes`` is what this one has yet to copy."""
        if self._behind_bytes is None:
            self._behind_bytes = behind_bytes
        if now_ms < self._until_ms:
            return False
        is_behind = behind_bytes >= self._behind_bytes
        self._until_ms, self._behind_bytes = now_ms + TURN_MS, behind_bytes
        return is_behind


class Offload(Protocol):
    """Runs blocking work outside the event loop and completes it."""

    async def __call__(self, work: Work, limiter: trio.CapacityLimiter) -> None:
        """Returns when the work is complete or its failure has been handled."""
        ...


async def move_replicas(context: BrokerContext, offload: Offload, logger: EventLogger) -> None:
    """Moves replicas until cancelled."""
    limiter = trio.CapacityLimiter(1)
    throttle = CopyThrottle()
    while True:
        await trio.sleep(LOOK_MS / 1000)
        for key in list(context.logs.future_logs):
            try:
                await _move(context, key, offload, limiter, throttle, logger)
            except LogStorageError as error:
                context.replicas.directory_failed(error)
            except KafkaError as error:
                logger.error("replica-move-failed", partition=key, error=error)


async def _move(
    context: BrokerContext,
    key: TopicPartition,
    offload: Offload,
    limiter: trio.CapacityLimiter,
    throttle: CopyThrottle,
    logger: EventLogger,
) -> None:
    logs, clock = context.logs, context.environment.clock
    synced = False
    turn = Turn(clock.monotonic_ms())
    while key in logs.future_logs and key in logs.logs:
        rate = context.config.get_int(RATE_KEY)
        wait_ms = throttle.wait_ms(clock.monotonic_ms(), rate)
        if wait_ms > 0:
            await trio.sleep(wait_ms / 1000)
            continue
        current, future = logs.logs[key], logs.future_logs[key]
        piece_bytes = throttle.piece_bytes(rate)
        present = future.size_bytes
        if future.log_end_offset < current.log_end_offset and logs.room.would_fill(
            future.parent_directory, min(piece_bytes, max(0, current.size_bytes - present))
        ):
            return  # until the next round; other moves may free the directory
        caught_up = logs.copy_to_future(key, clock.wall_ms(), piece_bytes)
        throttle.copied(future.size_bytes - present)
        if not caught_up:
            if turn.is_over(clock.monotonic_ms(), current.size_bytes - future.size_bytes):
                return
            await trio.lowlevel.checkpoint()
        elif logs.is_flushing(future):
            # Of two concurrent syncs of a file, one would not learn of an error that the other one got.
            await trio.sleep(CONFIRM_MS / 1000)
        elif not synced:
            # Syncing here, outside the event loop, leaves little to sync for the replacement.
            work = logs.flush_work(future)
            if work is not None:
                await offload(work, limiter)
            synced = True
            await trio.lowlevel.checkpoint()
        elif not context.directories.may_take_over(key):
            await trio.sleep(CONFIRM_MS / 1000)
        elif current.has_staged:
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
        log = context.logs.replace_current_with_future(key)
    finally:
        present = context.logs.get(key)
        if partition is not None and present is not None:
            partition.log = present
        context.directories.move_changed(key)
    logger.info("replica-moved", partition=key, directory=log.parent_directory)
