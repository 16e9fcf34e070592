"""Drives the log manager: its works go to threads, its results come back to the loop, each at its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.runtime.config import topic_config, topic_defaults, usable_topic_config, with_dynamic
from moldau.runtime.supervision import TaskHost
from moldau_broker.log.config import LogConfig
from moldau_quorum.image import RESOURCE_BROKER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.runtime.config import Config
    from moldau.runtime.environment import Environment
    from moldau.runtime.log import EventLogger
    from moldau_broker.log.manager import LogManager
    from moldau_broker.log.partition_log import PartitionLog
    from moldau_broker.log.values import Work
    from moldau_quorum.image import MetadataImage

TICK_MS = 1_000.0
WORK_PER_DIRECTORY_MAX = 2
SYNCS_PER_DIRECTORY_MAX = 4
"""Syncs that appends wait for, side by side in a directory: a file system's journal commits them together, and the
disk's threads are left to others too."""


def known_log_configs(config: Config, image: MetadataImage, broker_id: int) -> tuple[LogConfig, dict[str, LogConfig]]:
    """The broker's default for logs and those of topics with settings of their own, as metadata has them now.

    ``config`` is the static one. What cannot be used is left out here without a word: replicas that claim their logs
    take the settings over again, and say what is wrong with them.
    """
    defaults = topic_defaults(config)
    for layer in ("", str(broker_id)):
        config, _ = with_dynamic(config, image.config(RESOURCE_BROKER, layer))
    configs: dict[str, LogConfig] = {}
    for topic in image.topics_by_name:
        overrides = image.topic_config(topic)
        if overrides:
            configs[topic] = LogConfig.from_config(usable_topic_config(config, overrides, defaults)[0])
    return LogConfig.from_config(topic_config(config, {})), configs


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
        """Retention, flushing, checkpoints and deletion, until cancelled; retention not before the logs may discard."""
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
            await self.perform(work)

    async def perform(self, work: Work) -> None:
        """``offload`` for those who limit themselves."""
        try:
            await self._environment.disk.offload(work.run)
        except Exception as error:  # noqa: BLE001 - handed to the one who knows what it means
            self._logger.error("work-failed", work=work.name, error=error)
            work.failed(error)
        else:
            work.complete()


class LogSyncs:
    """The syncs that appends wait for (``flush.messages``), with group commit.

    A log has at most one sync under way and one asked for. A sync takes all that is written when it begins, so that
    however many appends arrive during one sync, they cost one more. ``LogManager.flush_listener`` hears of each that
    has ended, and asks again where something was written meanwhile.
    """

    def __init__(self, tasks: LogTasks, logs: LogManager) -> None:
        """Nothing is asked for."""
        self._tasks = tasks
        self._logs = logs
        self._syncs = TaskHost()
        self._requested: dict[PartitionLog, None] = {}
        self._limiters: dict[str, trio.CapacityLimiter] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Holds the tasks until cancelled."""
        async with self._syncs.running():
            task_status.started()
            await trio.sleep_forever()

    def request(self, log: PartitionLog) -> None:
        """See ``replica_manager.SyncRequest``. While the broker stops, nothing is begun: closing syncs all logs."""
        if self._syncs.accepts and log not in self._requested:
            self._requested[log] = None
            self._syncs.start(self._sync, log)

    async def _sync(self, log: PartitionLog) -> None:
        directory = log.parent_directory
        limiter = self._limiters.setdefault(directory, trio.CapacityLimiter(SYNCS_PER_DIRECTORY_MAX))
        async with limiter:
            del self._requested[log]
            work = self._logs.flush_work(log)
            if work is not None:
                await self._tasks.perform(work)
            elif log.released:
                # Another log may have taken its place and been synced on the way: those who wait must look again.
                self._logs.flush_listener(log.topic_partition)
