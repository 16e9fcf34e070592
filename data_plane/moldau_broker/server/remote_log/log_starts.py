"""Makes log start offsets durable before the object store deletes what lies below them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import Work

LOOK_MS: Final = 20.0
"""How often a log that waits for another checkpoint of its directory looks."""


class LogStarts:
    """Checkpoints of log start offsets. One holds those of all logs of a directory, so logs that wait share it."""

    def __init__(self, logs: LogManager, perform: Callable[[Work], Awaitable[None]]) -> None:
        """``perform`` runs work in a thread (``LogTasks.perform``)."""
        self._logs = logs
        self._perform = perform
        self._turns: dict[str, trio.Lock] = {}

    async def settle(self, log: PartitionLog) -> None:
        """Returns when the present log start offset of a log is durable, or the log has ended."""
        async with self._turns.setdefault(log.parent_directory, trio.Lock()):
            while not (log.failed or log.storage.released or self._logs.is_start_durable(log)):
                work = self._logs.log_start_work(log)
                if work is not None:
                    await self._perform(work)
                if not self._logs.is_start_durable(log):
                    # The regular checkpoint is being written, the start has moved on, or descriptors are short.
                    await trio.sleep(LOOK_MS / 1000)
