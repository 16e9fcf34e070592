"""A log whose older segments are in an object store only, and a store in memory with switches for its faults."""

from __future__ import annotations

import uuid
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import trio

from moldau.runtime.ports.objects import LISTED_MAX, ObjectNotFoundError, ObjectStoreError, StoredObject
from moldau_broker.remote_log.core.auxiliary import encode_auxiliary
from moldau_broker.remote_log.core.names import AUXILIARY, LOG, RemoteSegment, partition_folder, segments_of
from moldau_broker.remote_log.core.remote_log import RemoteLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.objects import Content
    from moldau_broker.log.partition.partition_log import PartitionLog

CLUSTER = "c"


class MemoryStore:
    """An object store in memory. Each call has a checkpoint before its effect and one after it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        """Calls by kind and by suffix of the object: ``read.log``, ``read.aux``, ``list``."""
        self.is_away = False
        self.seconds = 0.0
        """How long each call takes."""

    async def _call(self, kind: str) -> None:
        self.calls[kind] += 1
        await trio.lowlevel.checkpoint()
        await trio.sleep(self.seconds)
        if self.is_away:
            raise ObjectStoreError("the store is away")

    async def put(self, name: str, content: Content) -> None:
        await self._call("put")
        self.objects[name] = content.read(0, content.size_bytes)

    async def read(self, name: str, position: int, count: int) -> bytes:
        await self._call("read" + name[-4:])
        if name not in self.objects:
            raise ObjectNotFoundError(name)
        return self.objects[name][position : position + count]

    async def list(self, prefix: str, *, after: str = "") -> Sequence[StoredObject]:
        await self._call("list")
        names = sorted(name for name in self.objects if name.startswith(prefix) and name > after)
        return [StoredObject(name, len(self.objects[name]), 0) for name in names[:LISTED_MAX]]

    async def list_folders(self, prefix: str) -> Sequence[str]:
        await self._call("list_folders")
        return sorted({name[len(prefix) :].split("/")[0] for name in self.objects if name.startswith(prefix)})

    async def delete(self, names: Sequence[str]) -> None:
        await self._call("delete")
        for name in names:
            self.objects.pop(name, None)

    def close(self) -> None:
        """Has nothing to give back."""


def copy_segments(
    put: Callable[[str, bytes], object], folder: str, log: PartitionLog, from_offset: int = 0
) -> list[RemoteSegment]:
    """Copies all closed segments of a log."""
    copied: list[RemoteSegment] = []
    for closed in log.closed_segments(from_offset):
        segment = RemoteSegment(
            closed.base_offset,
            closed.last_offset,
            closed.last_epoch,
            closed.max_timestamp_ms,
            closed.has_aborted,
            uuid.uuid5(uuid.NAMESPACE_DNS, f"{folder}{closed.base_offset}"),
            closed.size_bytes,
        )
        put(f"{folder}{segment.name}{AUXILIARY}", encode_auxiliary(closed.parts()))
        put(f"{folder}{segment.name}{LOG}", closed.content.read(0, closed.size_bytes))
        closed.release()
        copied.append(segment)
    return copied


class TieredPartition:
    """A replica whose log is given, with what ``RemoteReader`` needs of its manager: listings."""

    def __init__(self, log: PartitionLog, store: MemoryStore) -> None:
        self.log = log
        self.key = log.topic_partition
        self.topic_id = uuid.UUID(int=1)
        self.replica = SimpleNamespace(state=SimpleNamespace(leader_epoch=1))
        self.folder = partition_folder(CLUSTER, self.topic_id, self.key.partition)
        self.listed: RemoteLog | None = None
        self._store = store

    def remote_log(self, partition: Any) -> RemoteLog | None:
        return self.listed

    async def refresh(self, partition: Any) -> RemoteLog:
        found = await self._store.list(self.folder)
        self.listed = RemoteLog(segments_of(found), self.log.epochs.epoch_for_offset, 0)
        return self.listed
