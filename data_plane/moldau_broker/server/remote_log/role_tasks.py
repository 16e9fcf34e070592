"""The tools and the common parts of the tasks that work on one remote log.

The tasks of a role run until their scope is cancelled. A failure of the store lets a task pause, longer each time, and
then begin its round again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.ports.objects import ObjectStoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.ports.objects import ObjectStore
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.remote_log.core.remote_log import RemoteLog
    from moldau_broker.server.remote_log.cluster_view import ClusterView
    from moldau_broker.server.remote_log.copier import Copier
    from moldau_broker.server.remote_log.remote_partition import RemotePartition
    from moldau_broker.server.remote_log.settings import RemoteLogSettings
    from moldau_broker.server.replicas.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTools:
    """The parts that all roles of a broker share."""

    environment: Environment
    settings: RemoteLogSettings
    store: ObjectStore
    view: ClusterView
    copier: Copier
    requests: trio.CapacityLimiter
    """Bounds the partitions for which objects are deleted at the same time."""
    refresh: Callable[[RemotePartition], Awaitable[RemoteLog]]
    """Lists a folder, and returns the result; raises ``ObjectStoreError``."""
    log_start_moved: Callable[[Partition], None]
    """Reports a moved log start offset to requests that wait."""
    settle_start: Callable[[PartitionLog], Awaitable[None]]
    """Returns when the log start offset of a log is durable, or the log has ended (``log_starts``)."""
    logger: EventLogger


class RoleTasks(ABC):
    """The tasks of one role."""

    def __init__(self, tools: RoleTools, remote: RemotePartition) -> None:
        self._tools = tools
        self._remote = remote
        self._partition = remote.partition
        self._clock = tools.environment.clock

    async def run(self) -> None:
        """Works until the scope of the role is cancelled."""
        with self._remote.scope:
            await trio.sleep(max(0.0, self._remote.settles_at_ms - self._clock.monotonic_ms()) / 1000)
            await self._work()

    @abstractmethod
    async def _work(self) -> None: ...

    @property
    def _log(self) -> PartitionLog:
        return self._partition.log  # a move between directories replaces it

    async def _repeat(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Runs rounds of work, one each task interval; a failure delays the next one by the back-off instead."""
        settings, failures = self._tools.settings, 0
        while True:
            try:
                await work()
            except (ObjectStoreError, OSError, KafkaError) as error:
                failures += 1
                if isinstance(error, ObjectStoreError):
                    self._remote.failures[name] = str(error)
                delay_ms = settings.backoff.delay_ms(failures, self._tools.environment.random)
                self._tools.logger.warning(
                    "remote-log-work-failed",
                    task=name,
                    partition=self._partition.key,
                    error=error,
                    failures=failures,
                    retry_ms=round(delay_ms),
                )
            else:
                failures, delay_ms = 0, settings.task_interval_ms
                self._remote.failures.pop(name, None)
            await trio.sleep(delay_ms / 1000)

    def _note_copied(self) -> None:
        """Lets the log know up to which offset the store holds its records."""
        remote, log = self._remote.log, self._log
        if remote is not None and not self._remote.has_ended and self._partition.error is ErrorCode.NONE:
            log.note_copied(remote.copied_end(log.local_log_start_offset))

    def _move_log_start(self, offset: int, reason: str) -> None:
        """Moves the log start offset up to ``offset``, if it is lower."""
        log = self._log
        offset = min(offset, log.high_watermark)  # which a new leader may not know yet
        if offset > log.log_start_offset and log.increment_log_start_offset(offset):
            self._tools.log_start_moved(self._partition)
            self._tools.logger.info("log-start-moved", partition=self._partition.key, to=offset, reason=reason)
