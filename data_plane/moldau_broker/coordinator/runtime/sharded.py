"""The common base of all coordinators: one shard for each partition of an internal topic that this broker leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from moldau.protocol.errors import ErrorCode
from moldau.runtime.tasks.supervision import TaskHost
from moldau_broker.coordinator.runtime.partitioning import partition_for
from moldau_broker.coordinator.runtime.replicated import ReplicatedShard

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.values import LeaderEpoch

S = TypeVar("S", bound=ReplicatedShard[Any])


class ShardedCoordinator(Generic[S]):
    """Runs a shard for each partition that this broker leads, and finds the shard of a name.

    ``partition_count`` returns the number of partitions of the internal topic, 0 while it does not exist.
    ``new_shard`` creates the shard of a partition under a leader epoch.
    """

    def __init__(self, partition_count: Callable[[], int], new_shard: Callable[[int, LeaderEpoch], S]) -> None:
        """Starts no task before `run`."""
        self._partition_count = partition_count
        self._new_shard = new_shard
        self._shards: dict[int, S] = {}
        self._tasks = TaskHost()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs the shards until cancelled, then answers all open requests with NOT_COORDINATOR."""
        try:
            async with self._tasks.running():
                for shard in self._shards.values():
                    self._tasks.start(shard.run)
                task_status.started()
                await trio.sleep_forever()
        finally:
            for shard in list(self._shards.values()):
                shard.resign(ErrorCode.NOT_COORDINATOR)
            self._shards.clear()

    # Leadership

    def become_leader(self, partition: int, leader_epoch: LeaderEpoch) -> None:
        """Starts to coordinate a partition under this leader epoch; ignores older epochs."""
        current = self._shards.get(partition)
        if current is not None:
            if current.leader_epoch >= leader_epoch:
                return
            current.resign(ErrorCode.NOT_COORDINATOR)
        shard = self._shards[partition] = self._new_shard(partition, leader_epoch)
        if self._tasks.accepts:
            self._tasks.start(shard.run)

    def resign(self, partition: int, leader_epoch: LeaderEpoch) -> None:
        """Stops to coordinate a partition if its shard has ``leader_epoch`` or an older one."""
        current = self._shards.get(partition)
        if current is not None and current.leader_epoch <= leader_epoch:
            del self._shards[partition]
            current.resign(ErrorCode.NOT_COORDINATOR)

    # Names

    def partition_of(self, name: str) -> int | None:
        """Returns the partition that coordinates a name; None while the topic does not exist."""
        count = self._partition_count()
        return partition_for(name, count) if count else None

    def _shard_of(self, name: str) -> tuple[ErrorCode, S | None]:
        partition = self.partition_of(name)
        if partition is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
        shard = self._shards.get(partition)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR, None
        code = shard.refusal
        return code, shard if code is ErrorCode.NONE else None
