"""Bugs in tiered storage: copies, deletions on disks and in the store, reads of the store, starts of followers."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from moldau.runtime.ports.objects import ObjectStoreError
from moldau_broker.log.files.checkpoint import encode_epochs
from moldau_broker.log.partition import retention
from moldau_broker.log.partition.follower_appends import FollowerAppends
from moldau_broker.log.partition.partition_log import PartitionLog
from moldau_broker.log.producers.producer_state import ProducerStateManager
from moldau_broker.log.remote.local_start import LocalStartFile
from moldau_broker.log.remote.segments_to_copy import segments_to_copy
from moldau_broker.remote_log.core import names
from moldau_broker.remote_log.core.chunk_cache import CHUNK_BYTES, ChunkKey, chunks_of
from moldau_broker.remote_log.core.plans import Deletions, Retention, start_by_retention, to_delete
from moldau_broker.server.remote_log import leader, listing
from moldau_broker.server.remote_log.copier import Copier
from moldau_broker.server.remote_log.leader import LeaderTasks, uncopied_bytes
from moldau_broker.server.remote_log.manager import RemoteLogManager
from moldau_broker.server.remote_log.role_tasks import RoleTasks
from moldau_broker.server.remote_log.sweep import Sweep
from moldau_broker.server.remote_reading import offsets, reader
from moldau_broker.server.remote_reading.reader import RemoteReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.runtime.ports.objects import Content, StoredObject
    from moldau_broker.log.partition.segmented_log import SegmentedLog
    from moldau_broker.log.remote.local_start import LocalStart
    from moldau_broker.log.remote.segments_to_copy import SegmentToCopy
    from moldau_broker.remote_log.core.chunk_cache import Chunk
    from moldau_broker.remote_log.core.names import Listing, RemoteSegment
    from moldau_broker.remote_log.core.remote_log import RemoteLog
    from moldau_broker.server.remote_log.remote_partition import RemotePartition
    from moldau_broker.server.replicas.partition import Partition
    from moldau_jepsen.planted_bug import Patch

# --- copies


def local_deletion_without_copy() -> list[Patch]:
    """Local retention deletes segments below the high watermark, copied or not."""

    def expires_to(log: SegmentedLog, high_watermark: int) -> int:
        return min(high_watermark, log.recovery.offset, log.segments.active.base_offset)

    return [(retention, "_expires_to", expires_to)]


def failed_copy_counts() -> list[Patch]:
    """A copy counts although the store has not confirmed it."""
    original = Copier.put

    async def put(self: Copier, folder: str, segment: RemoteSegment, auxiliary: bytes, content: Content) -> None:
        try:
            await original(self, folder, segment, auxiliary, content)
        except ObjectStoreError:
            return

    return [(Copier, "put", put)]


def copies_to_the_end() -> list[Patch]:
    """A leader copies closed segments whose records are not committed yet."""

    def closed_segments(self: PartitionLog, from_offset: int) -> list[SegmentToCopy]:
        return segments_to_copy(self.storage, from_offset, self.log_end_offset)

    return [(PartitionLog, "closed_segments", closed_segments)]


def unfinished_segment_counts() -> list[Patch]:
    """A listing takes a segment for finished that has its ``.aux`` only."""
    original = names.segments_of

    def segments_of(objects: Iterable[StoredObject]) -> Listing:
        found = original(objects)
        left = []
        for item in found.unfinished:
            if item.name.endswith(names.AUXILIARY):
                name = item.name.rpartition("/")[2][: -len(names.AUXILIARY)]
                found.segments.append(names._segment(name, item.size_bytes))
            else:
                left.append(item)
        return names.Listing(sorted(found.segments), left, found.proofs)

    return [(listing, "segments_of", segments_of)]


# --- deletions


def local_start_not_written() -> list[Patch]:
    """Local segments go before a file says that the log begins below them."""

    def write(self: LocalStartFile, start: LocalStart) -> None:
        self.content = start

    return [(LocalStartFile, "write", write)]


def retention_before_log_start() -> list[Patch]:
    """A leader deletes by retention in the store, and does not move the log start offset."""
    original = RoleTasks._move_log_start

    def move(self: RoleTasks, offset: int, reason: str) -> None:
        if reason != "retention":
            original(self, offset, reason)

    async def expire(self: LeaderTasks) -> None:
        await expire_round(self)
        remote, log = self._remote, self._log
        if remote.has_ended or remote.log is None:
            return
        limits = Retention(log.config.retention_ms, log.config.retention_bytes)
        now_ms = self._tools.environment.clock.wall_ms()
        start = start_by_retention(
            remote.log,
            limits,
            log_start_offset=log.log_start_offset,
            uncopied_bytes=uncopied_bytes(log),
            now_ms=now_ms,
        )
        gone = [segment for segment in remote.log.segments if segment.end_offset <= start]
        if gone:
            await self._delete(Deletions(gone, [], [], []), [])

    expire_round = LeaderTasks._expire_round
    return [(RoleTasks, "_move_log_start", move), (LeaderTasks, "_expire_round", expire)]


def leftover_deleted_at_once() -> list[Patch]:
    """A leader deletes unfinished objects without the delay, also those that another one is writing."""

    def plan(
        remote: RemoteLog,
        limits: Retention,
        *,
        log_start_offset: int,
        leader_epoch: int,
        now_ms: int,
        unfinished_delete_delay_ms: int,
    ) -> Deletions:
        found = to_delete(
            remote,
            limits,
            log_start_offset=log_start_offset,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            unfinished_delete_delay_ms=unfinished_delete_delay_ms,
        )
        return found._replace(objects=list(remote.unfinished))

    return [
        (leader, "to_delete", plan),
        (leader, "must_list", lambda listed_ms, now_ms, delay_ms: True),
        (LeaderTasks, "_is_leftover", lambda self, item: True),
    ]


def deleted_topics_stay() -> list[Patch]:
    """Nothing deletes the folders of deleted topics."""

    async def keep(self: RemoteLogManager, remote: RemotePartition) -> None:
        return

    async def sweep(self: Sweep) -> None:
        return

    return [(RemoteLogManager, "_delete_folder", keep), (Sweep, "sweep", sweep)]


# --- reads


def remote_aborts_omitted() -> list[Patch]:
    """Answers with remote records omit the aborted transactions."""

    async def aborted(
        self: RemoteReader, partition: Partition, remote: RemoteLog, offset: int, end_offset: int
    ) -> list[tuple[int, int]]:
        return []

    return [(RemoteReader, "_aborted", aborted)]


def chunk_of_another_segment() -> list[Patch]:
    """The cache of chunks does not tell segments of a log with the same size apart."""

    def chunks(
        segment_id: uuid.UUID, size_bytes: int, position: int, count: int, chunk_bytes: int = CHUNK_BYTES
    ) -> list[Chunk]:
        shared = uuid.UUID(int=size_bytes)
        found = chunks_of(segment_id, size_bytes, position, count, chunk_bytes)
        return [chunk._replace(key=ChunkKey(shared, chunk.key.number)) for chunk in found]

    return [(reader, "chunks_of", chunks)]


def remote_times_ignored() -> list[Patch]:
    """Searches by time look at the records on the leader's disk only."""
    return [(offsets, "has_remote_records", lambda log: False)]


# --- starts of followers


def _restart(**changes: bytes | bool) -> list[Patch]:
    original = FollowerAppends.restart_behind

    def restart(
        self: FollowerAppends,
        offset: int,
        log_start_offset: int,
        leader_epochs: bytes,
        producer_snapshot: bytes,
        now_ms: int,
    ) -> None:
        start = offset if changes.get("forgets_remote") else log_start_offset
        epochs, producers = changes.get("epochs", leader_epochs), changes.get("producers", producer_snapshot)
        assert isinstance(epochs, bytes)
        assert isinstance(producers, bytes)
        original(self, offset, start, epochs, producers, now_ms)

    return [(FollowerAppends, "restart_behind", restart)]


def starts_without_epochs() -> list[Patch]:
    """A follower starts behind the remote segments without the leader epochs of their records."""
    return _restart(epochs=encode_epochs(()))


def starts_without_producers() -> list[Patch]:
    """A follower starts behind the remote segments without the producers of their records."""
    return _restart(producers=ProducerStateManager(0, 0).encode_snapshot())


def starts_at_log_start() -> list[Patch]:
    """A follower that starts behind the remote segments takes its start for the log start offset."""
    return _restart(forgets_remote=True)
