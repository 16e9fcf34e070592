"""Drives the log manager: its works go to threads, its results come back to the loop, each at its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.runtime.environment import Environment
    from moldau.runtime.log import EventLogger
    from moldau_broker.log.manager import LogManager
    from moldau_broker.log.values import Work

TICK_MS = 1_000.0
WORK_PER_DIRECTORY_MAX = 2


class LogTasks:
    """The tasks around one log manager."""

    def __init__(self, environment: Environment, logger: EventLogger) -> None:
        self._environment = environment
        self._logger = logger

    async def recover(self, logs: LogManager, threads: int) -> None:
        """Loads all logs, at most ``threads`` of a directory side by side."""
        await self._run_all(logs.recovery_work(), threads)

    async def close(self, logs: LogManager, broker_epoch: int) -> None:
        """Flushes and seals the logs, whose users have ended, and marks a clean stop of ``broker_epoch``."""
        await self._run_all(logs.close_work(), WORK_PER_DIRECTORY_MAX)
        logs.finish_close(broker_epoch)

    async def tick(self, logs: LogManager) -> None:
        """Retention, flushing, checkpoints and deletion, until cancelled."""
        limiters: dict[str, trio.CapacityLimiter] = {}
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(TICK_MS / 1000)
                for work in logs.tick(self._environment.clock.wall_ms()):
                    limiter = limiters.setdefault(work.directory, trio.CapacityLimiter(WORK_PER_DIRECTORY_MAX))
                    nursery.start_soon(self.offload, work, limiter)

    async def clean(self, logs: LogManager) -> None:
        """Lets the cleaner advance step by step while it has something to do, until cancelled."""
        limiter = trio.CapacityLimiter(1)
        clock = self._environment.clock
        while True:
            now_ms = clock.wall_ms()
            works = logs.cleaner_works(now_ms)
            for work in works:
                await self.offload(work, limiter)
            if not works:
                await trio.sleep(max(1, logs.next_tick_ms(now_ms) - now_ms) / 1000)

    async def _run_all(self, works: Iterable[Work], side_by_side: int) -> None:
        limiters: dict[str, trio.CapacityLimiter] = {}
        async with trio.open_nursery() as nursery:
            for work in works:
                limiter = limiters.setdefault(work.directory, trio.CapacityLimiter(side_by_side))
                nursery.start_soon(self.offload, work, limiter)

    async def offload(self, work: Work, limiter: trio.CapacityLimiter) -> None:
        """Runs one piece of blocking work; its failure is the log manager's to judge."""
        async with limiter:
            try:
                await self._environment.disk.offload(work.run)
            except Exception as error:  # noqa: BLE001 - handed to the one who knows what it means
                self._logger.error("work-failed", work=work.name, error=error)
                work.failed(error)
            else:
                work.complete()
