"""The work of replicas that copy nothing: a follower, and the leader of a topic that is not tiered any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau_broker.log.config import AS_RETENTION
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.server.remote_log.deletion import delete_folder
from moldau_broker.server.remote_log.role_tasks import RoleTasks

if TYPE_CHECKING:
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.server.remote_log.remote_partition import RemotePartition
    from moldau_broker.server.remote_log.role_tasks import RoleTools

IDLE_ROUNDS_MAX: Final = 20
"""Most task intervals between two listings that show no more than the one before."""


class FollowerTasks(RoleTasks):
    """Lists the folder when local segments wait for it, so that the log can delete those that the store has."""

    def __init__(self, tools: RoleTools, remote: RemotePartition) -> None:
        super().__init__(tools, remote)
        self._pause = 1  # rounds between two listings
        self._passed = 0  # rounds since the last one

    async def _work(self) -> None:
        await self._repeat("listing", self._round)

    async def _round(self) -> None:
        """Lists if that may help; the leader may not have copied more since the last time."""
        self._note_copied()
        log = self._log
        if not waits_for_copies(log, self._tools.environment.clock.wall_ms()):
            self._pause, self._passed = 1, 0
            return
        self._passed += 1
        if self._passed < self._pause:
            return
        before = log.copied_end_offset
        await self._tools.refresh(self._remote)
        self._note_copied()
        self._passed = 0
        self._pause = 1 if self._log.copied_end_offset > before else min(2 * self._pause, IDLE_ROUNDS_MAX)


class OnlookerTasks(RoleTasks):
    """Does nothing while another broker gives up the remote segments of the topic."""

    async def _work(self) -> None:
        await trio.sleep_forever()


class PurgeTasks(RoleTasks):
    """Gives up the remote segments of a topic with ``remote.storage.enable=false`` (KIP-950)."""

    async def _work(self) -> None:
        await self._repeat("purge", self._round)

    async def _round(self) -> None:
        """Deletes the folder, twice: a former leader may not have known the new configuration at the first time.

        This broker itself may be a former leader by then, of a topic that is tiered again.
        """
        log = self._log
        if log.log_start_offset < log.local_log_start_offset:
            self._move_log_start(log.local_log_start_offset, "remote.storage.enable=false")
        await self._tools.settle_start(log)
        for last in (False, True):
            async with self._tools.requests:
                count = await delete_folder(self._tools.store, self._remote.folder, is_allowed=self._is_still_unwanted)
            if count:
                self._tools.logger.info("remote-log-deleted", partition=self._partition.key, objects=count)
            if last:
                await trio.sleep_forever()
            await trio.sleep(self._tools.settings.unfinished_delete_delay_ms / 1000)

    async def _is_still_unwanted(self) -> bool:
        """Returns whether the newest metadata of now still let this broker delete; other metadata cancel this task."""
        return await self._tools.view.is_newest_since(self._clock.monotonic_ms())


def waits_for_copies(log: PartitionLog, now_ms: int) -> bool:
    """Returns whether the oldest local segment would go by local retention if the store were known to have it.

    ``now_ms`` is wall-clock time. A segment without timestamps, or with a damaged one, counts as old.
    """
    segments, config = log.segments, log.config
    if len(segments) < 2 or config.remote_log_copy_disable:
        return False
    end_offset = segments[1].base_offset
    if end_offset <= log.copied_end_offset or end_offset > log.high_watermark:
        return False
    retention_ms, retention_bytes = config.local_retention_ms, config.local_retention_bytes
    if retention_ms == AS_RETENTION:
        retention_ms = config.retention_ms
    if retention_bytes == AS_RETENTION:
        retention_bytes = config.retention_bytes
    if retention_bytes >= 0 and log.size_bytes - segments[0].size >= retention_bytes:
        return True
    if retention_ms < 0:
        return False
    try:
        newest_ms = segments[0].max_entry().timestamp_ms
    except CorruptLogFileError:
        return True
    return now_ms - newest_ms > retention_ms
