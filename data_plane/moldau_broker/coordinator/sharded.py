"""What the two coordinators of a broker share: one shard for every partition of an internal topic that is led here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from moldau.protocol.errors import ErrorCode
from moldau.runtime.supervision import TaskHost
from moldau_broker.coordinator.partitioning import partition_for
from moldau_broker.coordinator.replicated import ReplicatedShard

if TYPE_CHECKING:
    from collections.abc import Callable

S = TypeVar("S", bound=ReplicatedShard[Any])


class ShardedCoordinator(Generic[S]):
    """Runs a shard for each partition led here, and finds the one of a name (a group, a transactional id).

    ``partition_count`` gives the number of partitions of the internal topic, 0 while it does not exist; ``new_shard``
    makes the shard of a partition under a leader epoch.
    """

    def __init__(self, partition_count: Callable[[], int], new_shard: Callable[[int, int], S]) -> None:
        """Nothing runs before `run`."""
        self._partition_count = partition_count
        self._new_shard = new_shard
        self._shards: dict[int, S] = {}
        self._tasks = TaskHost()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs the shards until cancelled; then everything that waits is answered with NOT_COORDINATOR."""
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

    def become_leader(self, partition: int, leader_epoch: int) -> None:
        """This broker leads a partition of the internal topic from this epoch on; older epochs are ignored."""
        current = self._shards.get(partition)
        if current is not None:
            if current.leader_epoch >= leader_epoch:
                return
            current.resign(ErrorCode.NOT_COORDINATOR)
        shard = self._shards[partition] = self._new_shard(partition, leader_epoch)
        if self._tasks.accepts:
            self._tasks.start(shard.run)

    def resign(self, partition: int, leader_epoch: int) -> None:
        """This broker does not lead the partition in ``leader_epoch`` (or before) any more."""
        current = self._shards.get(partition)
        if current is not None and current.leader_epoch <= leader_epoch:
            del self._shards[partition]
            current.resign(ErrorCode.NOT_COORDINATOR)

    # Names

    def partition_of(self, name: str) -> int | None:
        """The partition that coordinates a name; None while the topic does not exist."""
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
