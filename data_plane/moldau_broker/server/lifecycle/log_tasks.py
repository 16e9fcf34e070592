"""Runs the work of the log manager in threads, and delivers the results in the event loop."""

from __future__ import annotations

import contextlib
import errno
import itertools
from typing import TYPE_CHECKING

import trio

from moldau.runtime.config import topic_config, topic_defaults, usable_topic_config, with_dynamic
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.tasks.supervision import TaskHost
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.metrics import Histogram
from moldau_broker.log.config import LogConfig
from moldau_broker.log.directories.disk_patience import DiskPatience, Outstanding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.log import EventLogger
    from moldau.values import BrokerId
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import Work
    from moldau_quorum.metadata.image import MetadataImage

TICK_MS = 1_000.0
LOOKS_PER_TIMEOUT = 12
"""How often within ``log.dir.sync.timeout.ms`` the broker looks for work that does not return."""
PROBE_FILE = "sync-probe"
"""The file, in each log directory, whose sync tells a disk that hangs from a slow one."""
CLOSE_REPORT_MS = 5_000.0
"""Period of the progress reports while a stop closes logs."""
WORK_PER_DIRECTORY_MAX = 2
SYNCS_PER_DIRECTORY_MAX = 4
"""Concurrent passes over logs of a directory whose syncs appends wait for.

The journal of a file system commits them together; the bound leaves threads of the disk to other work."""
SYNCED_TOGETHER_MAX = 16
"""Logs of one pass. The first of them is acknowledged with the last, so a pass must not last long."""


class DiskHangsError(OSError):
    """The disk of a log directory answers no sync."""

    def __init__(self, directory: str, timeout_ms: float) -> None:
        super().__init__(
            errno.ETIMEDOUT, f"no sync has returned for log.dir.sync.timeout.ms = {timeout_ms:.0f}", directory
        )


def known_log_configs(
    config: Config, image: MetadataImage, broker_id: BrokerId
) -> tuple[LogConfig, dict[str, LogConfig]]:
    """Returns the broker's log configuration, and those of topics with overrides, in the present metadata.

    ``config`` is the static one. Unusable values are left out without a log message: replicas that claim their logs
    apply the settings again and log the errors.
    """
    defaults = topic_defaults(config)
    config, _ = with_dynamic(config, *image.dynamic_layers(broker_id))
    configs: dict[str, LogConfig] = {}
    for topic in image.topics_by_name:
        overrides = image.topic_config(topic)
        if overrides:
            configs[topic] = LogConfig.from_config(usable_topic_config(config, overrides, defaults)[0])
    return LogConfig.from_config(topic_config(config, {})), configs


class LogTasks:
    """The tasks around one log manager."""

    def __init__(self, environment: Environment, logger: EventLogger, sync_timeout_ms: float) -> None:
        """``sync_timeout_ms`` is ``log.dir.sync.timeout.ms``."""
        self._environment = environment
        self._logger = logger
        self._sync_timeout_ms = sync_timeout_ms
        self._patience = DiskPatience(sync_timeout_ms)
        self._work_began = Signal()
        self._scopes: dict[Outstanding, trio.CancelScope] = {}
        self.flush_times = Histogram()
        """Milliseconds until a flush was durable, as the event loop sees it."""

    async def recover(self, logs: LogManager, threads: int) -> None:
        """Loads all logs, at most ``threads`` of a directory at a time."""
        await self._run_all(logs.recovery_work(), threads)

    async def close(self, logs: LogManager, broker_epoch: int, threads: int) -> None:
        """Flushes and seals the logs, and then marks a clean stop of ``broker_epoch``.

        All users of the logs must have ended. At most ``threads`` logs of a directory are closed at a time. If this is
        cancelled, it leaves no mark, and the next start recovers the logs.
        """
        works = logs.close_work()
        begun_ms = self._environment.clock.monotonic_ms()
        self._logger.info("closing-logs", logs=len(works))
        done = 0

        def count() -> None:
            nonlocal done
            done += 1

        async def report() -> None:
            while True:
                await trio.sleep(CLOSE_REPORT_MS / 1000)
                self._logger.info("closing-logs", logs=len(works), closed=done)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(report)
                nursery.start_soon(self.watch_disks, logs)
                await self._run_all(works, threads, count)
                nursery.cancel_scope.cancel()
        finally:
            if done < len(works):
                self._logger.warning("logs-not-closed", logs=len(works), closed=done)
        logs.finish_close(broker_epoch)
        took_ms = self._environment.clock.monotonic_ms() - begun_ms
        self._logger.info("logs-closed", logs=len(works), took_ms=round(took_ms))

    async def tick(self, logs: LogManager) -> None:
        """Runs retention (once logs may discard), flushing, checkpoints, deletion and the watch, until cancelled."""
        limiters: dict[str, trio.CapacityLimiter] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.watch_disks, logs)
            clock = self._environment.clock
            while True:
                await trio.sleep(TICK_MS / 1000)
                for work in logs.tick(clock.wall_ms(), clock.monotonic_ms()):
                    limiter = limiters.setdefault(work.directory, trio.CapacityLimiter(WORK_PER_DIRECTORY_MAX))
                    nursery.start_soon(self.offload, work, limiter)

    async def clean(self, logs: LogManager) -> None:
        """Runs the cleaner step by step while it has work, until cancelled."""
        limiter = trio.CapacityLimiter(1)
        clock = self._environment.clock
        while True:
            now_ms = clock.wall_ms()
            works = logs.cleaner_works(now_ms)
            for work in works:
                await self.offload(work, limiter)
            if not works:
                await trio.sleep(max(1, logs.next_tick_ms(now_ms) - now_ms) / 1000)

    async def _run_all(
        self, works: Iterable[Work], side_by_side: int, ended: Callable[[], None] = lambda: None
    ) -> None:
        """Runs works, and calls ``ended`` after each, even if it failed."""
        limiters: dict[str, trio.CapacityLimiter] = {}

        async def one(work: Work, limiter: trio.CapacityLimiter) -> None:
            await self.offload(work, limiter)
            ended()

        async with trio.open_nursery() as nursery:
            for work in works:
                limiter = limiters.setdefault(work.directory, trio.CapacityLimiter(side_by_side))
                nursery.start_soon(one, work, limiter)

    async def offload(self, work: Work, limiter: trio.CapacityLimiter) -> None:
        """Runs one piece of blocking work within ``limiter``; the log manager handles its failure."""
        async with limiter:
            await self.perform(work)

    async def perform(self, work: Work) -> None:
        """Runs one piece of blocking work, like ``offload`` but without a limiter."""
        await self.perform_together((work,))

    async def perform_together(self, works: Sequence[Work], *, is_awaited: bool = False) -> None:
        """Runs pieces of blocking work in one directory, one after the other in one thread.

        A failure of one leaves the others alone. ``is_awaited`` says whether clients wait for them.
        """
        clock = self._environment.clock
        begun_ms = clock.monotonic_ms()
        errors: dict[int, Exception] = {}

        def run() -> None:
            for number, work in enumerate(works):
                try:
                    work.run()
                except Exception as error:  # noqa: BLE001 - the log manager handles it
                    errors[number] = error

        try:
            await self.run_in(works[0].directory, run, is_awaited=is_awaited)
        except Exception as error:  # noqa: BLE001 - the thread could not be had, or does not return
            errors = dict.fromkeys(range(len(works)), error)
        took_ms = clock.monotonic_ms() - begun_ms
        for number, work in enumerate(works):
            failure = errors.get(number)
            if failure is not None:
                self._logger.error("work-failed", work=work.name, error=failure)
                work.failed(failure)
                continue
            if work.is_flush:
                self.flush_times.observe(took_ms)
            work.complete()

    async def run_in(self, directory: str, run: Callable[[], None], *, is_awaited: bool = False) -> None:
        """Runs blocking work in a log directory, whose disk is watched; work in no directory is not.

        ``is_awaited`` says whether clients wait for it: then the disk has less time.

        Raises:
            DiskHangsError: the work does not return, and the directory has failed. Also raises the errors of the work.
        """
        if not directory:
            await self._environment.disk.offload(run)
            return
        await trio.lowlevel.checkpoint_if_cancelled()
        entry = self._patience.began(directory, is_awaited=is_awaited)
        self._work_began.notify()
        await self._run_watched(run, entry, shield=True)

    async def _run_watched(self, run: Callable[[], None], entry: Outstanding, *, shield: bool) -> None:
        """Runs blocking work; a verdict that the disk hangs ends the wait, not the work.

        With ``shield`` cancellation does not end the wait: a log may be closed only when no thread works on it.

        Raises:
            DiskHangsError: the work does not return. Also raises the errors of the work.
        """
        clock = self._environment.clock

        def timed() -> None:
            entry.begun_ms = clock.monotonic_ms()
            run()

        try:
            with trio.CancelScope(shield=shield) as scope:
                self._scopes[entry] = scope
                await self._environment.disk.offload(timed, abandons=True)
                return
            raise DiskHangsError(entry.directory, self._sync_timeout_ms)
        finally:
            del self._scopes[entry]
            self._patience.ended(entry)

    def wait_began(self, directory: str) -> Outstanding:
        """Counts from now that clients wait for work in a directory that began for another reason, or is queued.

        Call ``wait_ended`` at the end of that work. Until then the disk has as little time as for a sync of their own.
        """
        entry = self._patience.began(directory, is_awaited=True)
        entry.begun_ms = self._environment.clock.monotonic_ms()
        self._work_began.notify()
        return entry

    def wait_ended(self, entry: Outstanding) -> None:
        """Ends a wait."""
        self._patience.ended(entry)

    async def watch_disks(self, logs: LogManager) -> None:
        """Fails the log directories whose disk hangs, until cancelled; see ``DiskPatience``."""
        clock = self._environment.clock
        async with trio.open_nursery() as nursery:
            while self._sync_timeout_ms:
                await self._work_began.wait_until(lambda: self._patience.has_work)
                await trio.sleep(self._sync_timeout_ms / LOOKS_PER_TIMEOUT / 1000)
                verdicts = self._patience.look(clock.monotonic_ms())
                for directory in verdicts.probe:
                    self._logger.warning("log-directory-slow", directory=directory)
                    nursery.start_soon(self._probe, directory, self._patience.probe_began(directory))
                for directory in verdicts.hung:
                    logs.fail_directory(directory, DiskHangsError(directory, self._sync_timeout_ms))
                    for entry, scope in self._scopes.items():
                        if entry.directory == directory:
                            scope.cancel()

    async def _probe(self, directory: str, entry: Outstanding) -> None:
        disk = self._environment.disk

        def write() -> None:
            file = disk.open(f"{directory}/{PROBE_FILE}", OpenMode.WRITE)
            try:
                file.write_at(0, b"\n")
                file.sync()
            finally:
                file.close()

        with contextlib.suppress(OSError):  # an error is an answer; the work itself reports it
            await self._run_watched(write, entry, shield=False)
        self._patience.probe_ended(directory, self._environment.clock.monotonic_ms())


class LogSyncs:
    """The syncs that appends wait for (``flush.messages``), with group commit within a log and across logs.

    A log has at most one sync in progress and one requested. A sync covers everything written before it starts, so all
    appends during one sync together cost one more. Logs of a directory that wait at the same time are synced in passes:
    one hand-over to a thread for up to ``SYNCED_TOGETHER_MAX`` of them, and at most ``SYNCS_PER_DIRECTORY_MAX`` passes
    at a time. ``LogManager.flush_listener`` is called when a sync has ended, and requests another one if records were
    written meanwhile.
    """

    def __init__(self, tasks: LogTasks, logs: LogManager) -> None:
        """Starts without requests."""
        self._tasks = tasks
        self._logs = logs
        self._syncs = TaskHost()
        self._requested: dict[str, dict[PartitionLog, None]] = {}  # by directory, in the order of the requests
        self._passes: dict[str, int] = {}  # tasks by directory, those that have not begun included

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Holds the tasks until cancelled."""
        async with self._syncs.running():
            task_status.started()
            await trio.sleep_forever()

    def request(self, log: PartitionLog) -> None:
        """See ``collaborators.SyncRequest``; a stopping broker starts no sync, because closing syncs all logs."""
        if not self._syncs.accepts:
            return
        directory = log.parent_directory
        requested = self._requested.setdefault(directory, {})
        if log in requested:
            return
        requested[log] = None
        passes = self._passes.get(directory, 0)
        if passes < SYNCS_PER_DIRECTORY_MAX and len(requested) > passes * SYNCED_TOGETHER_MAX:
            self._passes[directory] = passes + 1
            self._syncs.start(self._pass, directory)

    def _wait_for_flush(self, log: PartitionLog) -> None:
        """Watches the flush of a log that the housekeeping has begun, because clients wait for it now.

        The housekeeping allows it ten times as long, and queues it behind others, which is right for a flush that no
        client waits for. When it has ended, ``flush_listener`` requests a sync of what it did not cover.
        """
        entry = self._tasks.wait_began(log.parent_directory)
        self._logs.at_flush_end(log, lambda: self._tasks.wait_ended(entry))

    async def _pass(self, directory: str) -> None:
        """Syncs logs of a directory until none is requested."""
        requested = self._requested[directory]
        try:
            while requested:
                logs = list(itertools.islice(requested, SYNCED_TOGETHER_MAX))
                works: list[Work] = []
                for log in logs:
                    del requested[log]
                    work = self._logs.flush_work(log)
                    if work is not None:
                        works.append(work)
                    elif log.storage.released:
                        # A future log may have replaced it and been synced with that: the waits must check again.
                        self._logs.flush_listener(log.topic_partition)
                    elif self._logs.is_flushing(log):
                        self._wait_for_flush(log)
                if works:
                    await self._tasks.perform_together(works, is_awaited=True)
                else:
                    await trio.lowlevel.checkpoint()
        finally:
            self._passes[directory] -= 1
