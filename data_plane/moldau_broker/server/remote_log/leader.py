"""The work of a leader for a tiered partition: copies, retention and deletions, by the decisions of ``plans``.

Two tasks share what is known of the remote log. One copies closed segments in order; the other one moves the log start
offset and deletes, so that a long copy, or one that waits for the configured rate, delays no retention.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode
from moldau.runtime.ports.objects import ObjectStoreError
from moldau_broker.log.errors import CorruptLogFileError, LogError
from moldau_broker.log.remote.segment_check import SegmentCheck
from moldau_broker.remote_log.core.names import AUXILIARY, LOG, RemoteSegment
from moldau_broker.remote_log.core.plans import (
    ClosedRange,
    Deletions,
    Retention,
    is_superseded,
    lacks_all,
    may_reuse_id,
    must_list,
    start_behind_deleted,
    start_behind_expired,
    start_by_retention,
    to_copy,
    to_delete,
)
from moldau_broker.server.remote_log.copier import Attempt, BytesContent
from moldau_broker.server.remote_log.listing import listed_objects
from moldau_broker.server.remote_log.remote_partition import NO_LAG, Lag
from moldau_broker.server.remote_log.role_tasks import RoleTasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.ports.objects import StoredObject
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.remote.segments_to_copy import SegmentToCopy
    from moldau_broker.server.remote_log.remote_partition import RemotePartition
    from moldau_broker.server.remote_log.role_tasks import RoleTools

DELETED_TOGETHER: Final = 25
"""Segments that one pair of requests deletes. To forget them takes 40 ms of a log with ten thousand segments, in which
no other task runs."""
CHECK_KEPT_MS: Final = 600_000.0
"""How long a segment counts as checked, so that copies which the store refuses do not read it each time."""
CONFIRM_PART: Final = 4
"""A copy that has taken longer than this part of ``remote.log.unfinished.delete.delay.ms`` counts only if a listing
shows it: another leader may have taken its ``.aux`` for a leftover."""


class LeaderTasks(RoleTasks):
    """The tasks of a leader in one leader epoch."""

    def __init__(self, tools: RoleTools, remote: RemotePartition) -> None:
        super().__init__(tools, remote)
        self._attempt: Attempt | None = None
        """The copy in progress, or the last one if it failed."""
        self._check: tuple[SegmentCheck, float] | None = None
        """The check of the segment that is copied next, and the monotonic time at which it began."""
        self._looked_at_ms: float | None = None
        """The listing after which missing records were logged."""

    async def _work(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._repeat, "copy", self._copy_round)
            nursery.start_soon(self._repeat, "expiration", self._expire_round)

    # --- copies ----------------------------------------------------------------------------------------------------

    async def _copy_round(self) -> None:
        """Copies all closed segments that the store lacks, the oldest first."""
        remote = self._remote
        if remote.log is None or self._lacks_all():
            await self._tools.refresh(remote)
        self._note_copied()
        log = self._log
        if log.config.remote_log_copy_disable or self._is_superseded():
            remote.copy_lag, self._attempt, remote.damaged_offset = NO_LAG, None, None
            return
        if self._lacks_all():  # an operator must correct the store, or accept the loss (DeleteRecords)
            return
        closed = self._closed_segments(log)
        remote.copy_lag = Lag.of(closed)
        if not closed or closed[0].base_offset > (remote.damaged_offset or 0):  # the log has given it up
            remote.damaged_offset = None
        try:
            for found in closed:
                async with self._tools.copier.slot():
                    if log is not self._log or remote.log is None or log.config.remote_log_copy_disable:
                        return
                    if self._lacks(found) and not self._lacks_all():  # still: it may have expired while the copy waited
                        await self._copy(found)
                self._note_copied()
                found.release()
                remote.copy_lag = remote.copy_lag.without([found])
            self._attempt = None  # if it failed, the log has given up the segment since
        finally:
            for found in closed:
                found.release()

    def _closed_segments(self, log: PartitionLog) -> list[SegmentToCopy]:
        """Returns the closed segments that the store lacks.

        Raises:
            LogError: the first of them is damaged.
            OSError: a file could not be read.
        """
        try:
            return [found for found in log.closed_segments(log.copied_end_offset) if self._lacks(found)]
        except LogError as error:
            self._partition.traffic.remote_copy_errors += 1
            segment = log.segments[max(0, log.storage.segments.index_of(log.copied_end_offset))]
            self._note_damage(segment.base_offset, log.copied_end_offset, error)
            raise

    def _note_damage(self, base_offset: int, offset: int, error: Exception) -> None:
        """Shows that no segment from this one on is copied."""
        if self._remote.damaged_offset != offset:
            self._remote.damaged_offset = offset
            self._tools.logger.error(
                "segment-damaged",
                partition=self._partition.key,
                segment=base_offset,
                offset=offset,
                error=error,
                advice="nothing from here on is copied; elect a leader with a sound replica, then replace this one",
            )

    def _lacks_all(self) -> bool:
        """Returns whether the store seems to be the wrong one."""
        remote, log = self._remote.log, self._log
        return (
            remote is not None
            and log.knows_remote_epochs
            and lacks_all(
                remote, log_start_offset=log.log_start_offset, local_log_start_offset=log.local_log_start_offset
            )
        )

    def _lacks(self, found: SegmentToCopy) -> bool:
        assert self._remote.log is not None
        wanted = [ClosedRange(found.base_offset, found.last_offset)]
        return bool(to_copy(self._remote.log, wanted, self._log.log_start_offset))

    async def _copy(self, found: SegmentToCopy) -> None:
        """Copies one segment, within a slot of the copier.

        Raises:
            ObjectStoreError: it is unknown whether the copy exists; the next attempt may repeat it.
            LogError: the segment, or a file beside it, is damaged, or the log does not know its leader epoch.
            OSError: a file could not be read; the log may have deleted the segment.
        """
        if found.last_epoch < 0:
            raise LogError(ErrorCode.CORRUPT_MESSAGE, f"the leader epoch of offset {found.last_offset} is not known")
        remote, clock, traffic = self._remote, self._clock, self._partition.traffic
        traffic.remote_copy_requests += 1
        begun_ms = clock.monotonic_ms()
        try:
            await self._check_batches(found)
            auxiliary, digest = await self._tools.copier.encode(found.parts)
            await self._tools.copier.wait_for_rate(len(auxiliary) + found.content.size_bytes)
            attempt = self._attempt = self._attempt_of(found, digest)
            await self._tools.copier.put(remote.folder, attempt.segment, auxiliary, found.content)
            took_ms = clock.monotonic_ms() - begun_ms
            if took_ms * CONFIRM_PART > self._tools.settings.unfinished_delete_delay_ms:
                await self._confirm(attempt.segment)
        except (ObjectStoreError, OSError, LogError):
            traffic.remote_copy_errors += 1
            raise
        self._attempt = self._check = remote.damaged_offset = None
        remote.copied(attempt.segment)
        traffic.remote_copy_bytes += attempt.segment.size_bytes
        self._tools.logger.info(
            "segment-copied", partition=self._partition.key, segment=attempt.segment.name, took_ms=round(took_ms)
        )

    async def _check_batches(self, found: SegmentToCopy) -> None:
        """Checks all batches of a segment, or those that the last attempt has left.

        Raises:
            LogError: CORRUPT_MESSAGE, a batch is damaged. The segment stays on this disk, and is not copied.
            OSError: the file could not be read; the log may have been truncated.
        """
        now_ms, last = self._clock.monotonic_ms(), self._check
        of_last = last is not None and (last[0].end_offset, last[0].size_bytes) == (found.end_offset, found.size_bytes)
        if last is None or not of_last or now_ms - last[1] > CHECK_KEPT_MS:
            last = self._check = SegmentCheck(found), now_ms
        check = last[0]
        try:
            await self._tools.copier.check(found, check)
        except CorruptLogFileError as error:
            if self._remote.log is not None:  # else the log was truncated meanwhile
                self._note_damage(found.base_offset, check.next_offset, error)
            raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

    def _attempt_of(self, found: SegmentToCopy, digest: bytes) -> Attempt:
        """Returns the attempt to copy a segment: under the id of the last one if that is allowed, else under a new id.

        The last one may have ended after one object, or after both without an answer.
        """
        now_ms, last = self._clock.monotonic_ms(), self._attempt
        segment = RemoteSegment(
            base_offset=found.base_offset,
            last_offset=found.last_offset,
            last_epoch=found.last_epoch,
            max_timestamp_ms=found.max_timestamp_ms,
            has_aborted=found.has_aborted,
            segment_id=last.segment.segment_id if last is not None else self._new_id(),
            size_bytes=found.size_bytes,
        )
        delay_ms = self._tools.settings.unfinished_delete_delay_ms
        if last is None:
            return Attempt(segment, digest, now_ms)
        same = last.segment == segment and last.auxiliary_digest == digest
        if same and may_reuse_id(round(last.begun_ms), round(now_ms), round(delay_ms)):
            return last
        return Attempt(segment._replace(segment_id=self._new_id()), digest, now_ms)

    def _new_id(self) -> uuid.UUID:
        return uuid.UUID(int=self._tools.environment.random.getrandbits(128), version=4)

    async def _confirm(self, segment: RemoteSegment) -> None:
        """Checks that both objects of a segment exist.

        Raises:
            ObjectStoreError: one is missing, or the store did not answer.
        """
        name = self._remote.folder + segment.name
        found = {item.name for item in await listed_objects(self._tools.store, name)}
        if not {name + LOG, name + AUXILIARY} <= found:
            self._attempt = None
            raise ObjectStoreError(f"a part of {name} was deleted while it was copied")

    # --- retention -------------------------------------------------------------------------------------------------

    async def _expire_round(self) -> None:
        """Lists if it is time, moves the log start offset, and deletes what is not needed any more."""
        remote, settings = self._remote, self._tools.settings
        delay_ms = round(settings.unfinished_delete_delay_ms)
        listed_ms = None if remote.listed_ms is None else round(remote.listed_ms)
        if must_list(listed_ms, round(self._clock.monotonic_ms()), delay_ms):
            await self._tools.refresh(remote)
        if remote.has_ended or remote.log is None:
            return
        if self._tools.view.is_recent:
            self._move_behind_deleted()
        self._note_copied()
        if remote.has_ended or remote.log is None or self._is_superseded() or not self._tools.view.is_recent:
            return
        log, now_ms = self._log, self._tools.environment.clock.wall_ms()
        if not log.knows_remote_epochs:
            self._tools.logger.error("remote-epochs-unknown", partition=self._partition.key)
            return
        retention = Retention(log.config.retention_ms, log.config.retention_bytes)
        start = start_by_retention(
            remote.log,
            retention,
            log_start_offset=log.log_start_offset,
            uncopied_bytes=uncopied_bytes(log),
            now_ms=now_ms,
        )
        if self._lacks_all():
            start = max(start, self._start_behind_expired(retention, now_ms))
        self._move_log_start(start, "retention")
        plan = to_delete(
            remote.log,
            retention,
            log_start_offset=log.log_start_offset,
            leader_epoch=remote.leader_epoch,
            now_ms=now_ms,
            unfinished_delete_delay_ms=delay_ms,
        )
        leftovers = [item for item in plan.objects if self._is_leftover(item)]
        remote.delete_lag = Lag.of(plan.segments)
        if plan.segments or leftovers or plan.needless:
            await self._tools.settle_start(log)
            async with self._tools.requests:
                if log is self._log and not log.failed:
                    await self._delete(plan, leftovers)

    def _is_superseded(self) -> bool:
        """Returns whether the store has segments of a newer leader, of which this broker will hear soon."""
        remote = self._remote
        return remote.log is not None and is_superseded(remote.log, remote.leader_epoch)

    def _move_behind_deleted(self) -> None:
        """Moves the log start offset behind segments that a former leader is proved to have deleted.

        Other missing records stay missing until the operator accepts the loss (DeleteRecords), or the store that has
        them is back.
        """
        remote, log = self._remote.log, self._log
        if remote is None or not log.knows_remote_epochs:
            return
        start = start_behind_deleted(remote, self._remote.leader_epoch, log_start_offset=log.log_start_offset)
        self._move_log_start(start, "segments deleted before")
        if self._looked_at_ms != self._remote.listed_ms:
            self._looked_at_ms = self._remote.listed_ms
            for first, end in remote.holes(log.log_start_offset, log.local_log_start_offset):
                self._tools.logger.error("remote-records-missing", partition=self._partition.key, first=first, end=end)

    def _start_behind_expired(self, retention: Retention, now_ms: int) -> int:
        log = self._log
        try:
            first_timestamp_ms = log.segments[0].max_entry().timestamp_ms
        except CorruptLogFileError:
            first_timestamp_ms = -1
        return start_behind_expired(
            retention,
            log_start_offset=log.log_start_offset,
            local_log_start_offset=log.local_log_start_offset,
            local_bytes=sum(each.size for each in log.segments if each.base_offset < log.high_watermark),
            first_timestamp_ms=first_timestamp_ms,
            now_ms=now_ms,
        )

    def _is_leftover(self, item: StoredObject) -> bool:
        """Returns whether an unfinished object is old by this broker's own observation, too.

        The store's clock and that of the broker may differ, and either may jump.
        """
        since_ms = self._remote.unfinished_since.get(item.name)
        age_ms = 0.0 if since_ms is None else self._clock.monotonic_ms() - since_ms
        own = self._attempt is not None and self._attempt.segment.name in item.name
        return age_ms >= self._tools.settings.unfinished_delete_delay_ms and not own

    async def _delete(self, plan: Deletions, leftovers: Sequence[StoredObject]) -> None:
        """Deletes segments, unfinished objects, and proofs that are not needed any more; proves the deletions first.

        Raises:
            ObjectStoreError: it is unknown which of them exist; the next round lists the store again.
        """
        remote, store = self._remote, self._tools.store
        try:
            for proof in plan.proofs:
                await store.put(remote.folder + proof.name, BytesContent(b""))
                remote.proved(proof)
            for first in range(0, len(plan.segments), DELETED_TOGETHER):
                await self._delete_segments(plan.segments[first : first + DELETED_TOGETHER])
            for first in range(0, len(leftovers), DELETED_TOGETHER):
                some = leftovers[first : first + DELETED_TOGETHER]
                for item in some:
                    remote.removed(item)
                await store.delete([item.name for item in some])
                self._tools.logger.info(
                    "leftovers-deleted", partition=self._partition.key, count=len(some), last=some[-1].name
                )
            for proof in plan.needless:
                remote.superseded(proof)
                await store.delete([remote.folder + proof.name])
        except ObjectStoreError:
            self._partition.traffic.remote_delete_errors += 1
            remote.distrust()
            raise

    async def _delete_segments(self, segments: Sequence[RemoteSegment]) -> None:
        remote, store = self._remote, self._tools.store
        for segment in segments:
            remote.deleted(segment)
        self._partition.traffic.remote_delete_requests += len(segments)
        await store.delete([f"{remote.folder}{segment.name}{LOG}" for segment in segments])
        await store.delete([f"{remote.folder}{segment.name}{AUXILIARY}" for segment in segments])
        remote.delete_lag = remote.delete_lag.without(segments)
        self._tools.logger.info(
            "segments-deleted", partition=self._partition.key, count=len(segments), last=segments[-1].name
        )


def uncopied_bytes(log: PartitionLog) -> int:
    """Returns the bytes of local segments that the store lacks, without records that may never be committed."""
    size = 0
    for segment in reversed(log.segments):
        if segment.base_offset < log.copied_end_offset:
            break
        if segment.base_offset < log.high_watermark:
            size += segment.size
    return size
