"""All remote logs of a broker: which partitions it copies, and what it knows of their segments in the object store.

A replica that leads a tiered partition has tasks, which list the partition's folder and then copy, expire and delete
segments every ``remote.log.manager.task.interval.ms``. A follower of one has a task that lists the folder when its log
waits to delete local segments, because only a listing shows that the store has them. A role ends with ``end``, or with
the next role; its tasks are then cancelled. A request that goes on at the store does no harm: names of objects are
never used again, and objects that no leader counts are deleted later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.ports.objects import ObjectStoreError
from moldau.runtime.tasks.supervision import TaskHost
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.remote_log.core.names import partition_folder
from moldau_broker.server.remote_log.listing import list_partition
from moldau_broker.server.remote_log.remote_partition import RemotePartition, RemoteRole

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.ports.objects import ObjectStore
    from moldau.values import BrokerId
    from moldau_broker.remote_log.core.names import Listing
    from moldau_broker.remote_log.core.remote_log import RemoteLog
    from moldau_broker.server.remote_log.settings import RemoteLogSettings
    from moldau_broker.server.replicas.partition import Partition

REQUESTS_MAX: Final = 10
"""Partitions whose folders are listed, or whose segments are deleted, at the same time."""


class RemoteLogManager:
    """The remote logs of this broker. A broker without tiered storage has none."""

    def __init__(
        self,
        environment: Environment,
        settings: RemoteLogSettings,
        broker_id: BrokerId,
        cluster_id: str,
        store: ObjectStore,
    ) -> None:
        """``close`` closes ``store``."""
        self._environment = environment
        self._settings = settings
        self.cluster_id = cluster_id
        self.store = store
        self._logger = EventLogger("moldau.broker.remote-log", node=broker_id)
        self._tasks = TaskHost()
        self._requests = trio.CapacityLimiter(REQUESTS_MAX)
        self._remote: dict[Partition, RemotePartition] = {}
        """The replicas of tiered partitions. Invariant: none of their scopes is cancelled."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Holds the tasks until cancelled."""
        async with self._tasks.running():
            task_status.started()
            await trio.sleep_forever()

    def close(self) -> None:
        """Closes the store; no task of the broker runs any more."""
        self.store.close()

    # --- roles -----------------------------------------------------------------------------------------------------

    def leadership_changed(self, partition: Partition, leads: bool) -> None:
        """Takes over the state of a replica; see ``LeadershipListener``."""
        if partition.error is not ErrorCode.NONE:
            self.end(partition, topic_deleted=partition.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif leads:
            self.lead(partition)
        else:
            self.follow(partition)

    def lead(self, partition: Partition) -> None:
        """Copies, expires and deletes segments of a tiered partition from now on.

        Has no effect if that has begun in this leader epoch, and none on other partitions.
        """
        self._take_role(partition, RemoteRole.LEADER)

    def follow(self, partition: Partition) -> None:
        """Lists the segments of a tiered partition from now on when its local segments wait to be deleted."""
        self._take_role(partition, RemoteRole.FOLLOWER)

    def end(self, partition: Partition, *, topic_deleted: bool) -> None:
        """Ends the work for a replica that has left this broker, whose disk has failed, or whose topic is deleted.

        The leader of a deleted topic's partition then deletes its folder.
        """
        remote = self._remote.pop(partition, None)
        if remote is not None:
            remote.scope.cancel()

    def _take_role(self, partition: Partition, role: RemoteRole) -> None:
        before = self._remote.get(partition)
        if not partition.log.is_remote:
            self.end(partition, topic_deleted=False)
            return
        if before is not None and before.is_still(role):
            return
        if before is not None:
            before.scope.cancel()
        folder = partition_folder(self.cluster_id, partition.topic_id, partition.key.partition)
        self._remote[partition] = RemotePartition(partition, folder, role)

    # --- knowledge -------------------------------------------------------------------------------------------------

    def remote_log(self, partition: Partition) -> RemoteLog | None:
        """Returns what is known of a partition's remote segments; None before the first listing."""
        remote = self._remote.get(partition)
        return None if remote is None else remote.log

    async def known(self, partition: Partition) -> RemoteLog:
        """Returns ``remote_log``, after the first listing.

        Raises:
            ObjectStoreError: the store did not answer, or refused.
            KafkaError: this broker has no such replica any more, or the topic is not tiered.
        """
        remote = self._require(partition)
        return await self._list(remote) if remote.log is None else remote.log

    async def refresh(self, partition: Partition) -> RemoteLog:
        """Lists the folder of a partition after this call, and returns ``remote_log``.

        Called when a read does not find an object. Those that wait meanwhile share one listing.

        Raises:
            ObjectStoreError: the store did not answer, or refused.
            KafkaError: this broker has no such replica any more, or the topic is not tiered.
        """
        remote = self._require(partition)
        if remote.listing is not None:  # it may have begun before the object was deleted
            await remote.listing.done.wait()
        return await self._list(remote)

    def _require(self, partition: Partition) -> RemotePartition:
        remote = self._remote.get(partition)
        if remote is None:
            raise KafkaError(
                partition.error if partition.error is not ErrorCode.NONE else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        return remote

    async def _list(self, remote: RemotePartition) -> RemoteLog:
        """Waits for the listing in progress, or for a new one."""
        listing = remote.listing
        if listing is None:
            if not self._tasks.accepts:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            listing = remote.begin_listing()
            self._tasks.start(self._perform_listing, remote)
        await listing.done.wait()
        if listing.error is not None:
            raise ObjectStoreError(str(listing.error)) from listing.error
        assert remote.log is not None
        return remote.log

    async def _perform_listing(self, remote: RemotePartition) -> None:
        """Lists a folder for all who wait; the end of one of them does not end it."""
        try:
            async with self._requests:
                found: Listing | ObjectStoreError = await list_partition(self.store, remote.folder)
        except ObjectStoreError as error:
            found = error
        remote.end_listing(found)
