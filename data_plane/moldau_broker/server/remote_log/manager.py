"""All remote logs of a broker: which partitions it copies, and what it knows of their segments in the object store.

A replica that leads a tiered partition has tasks, which list the partition's folder and then copy, expire and delete
segments every ``remote.log.manager.task.interval.ms`` (``leader``). A follower of one has a task that lists the folder
when its log waits to delete local segments, because only a listing shows that the store has them (``follower``). A role
ends with ``end``, or with the next role; its tasks are then cancelled. A request that goes on at the store does no
harm: names of objects are never used again, and objects that no leader counts are deleted later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.ports.objects import ObjectStoreError
from moldau.runtime.tasks.supervision import TaskHost
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.remote_log.core.names import partition_folder, probe_name
from moldau_broker.server.remote_log.copier import Copier
from moldau_broker.server.remote_log.deletion import delete_folder
from moldau_broker.server.remote_log.follower import FollowerTasks, OnlookerTasks, PurgeTasks
from moldau_broker.server.remote_log.leader import LeaderTasks
from moldau_broker.server.remote_log.listing import list_partition
from moldau_broker.server.remote_log.problems import StoreProblem, problems_of
from moldau_broker.server.remote_log.remote_partition import NO_STATISTICS, RemotePartition, RemoteRole
from moldau_broker.server.remote_log.role_tasks import RoleTasks, RoleTools
from moldau_broker.server.remote_log.store_probe import StoreProbe
from moldau_broker.server.remote_log.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.ports.objects import ObjectStore
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.remote_log.core.names import Listing
    from moldau_broker.remote_log.core.remote_log import RemoteLog
    from moldau_broker.server.remote_log.cluster_view import ClusterView
    from moldau_broker.server.remote_log.remote_partition import RemoteStatistics
    from moldau_broker.server.remote_log.settings import RemoteLogSettings
    from moldau_broker.server.replicas.partition import Partition

REQUESTS_KEY: Final = "remote.log.manager.expiration.thread.pool.size"
"""Partitions whose folders are listed, or whose segments are deleted, at the same time."""
PURGE_SETTLE_MS: Final = 120_000.0
"""Pause of a partition that is tiered again after its folder was deleted, on all brokers. A deletion that got no answer
may still come, and must not hit a segment that a listing has shown."""
FOLDER_ATTEMPTS_MAX: Final = 5
"""Attempts to delete the folder of a deleted topic's partition; the sweep gets what is left."""
_TASKS: Final[Mapping[RemoteRole, Callable[[RoleTools, RemotePartition], RoleTasks]]] = {
    RemoteRole.LEADER: LeaderTasks,
    RemoteRole.FOLLOWER: FollowerTasks,
    RemoteRole.PURGER: PurgeTasks,
    RemoteRole.ONLOOKER: OnlookerTasks,
}
_UNTIERED: Final = (RemoteRole.PURGER, RemoteRole.ONLOOKER)


class RemoteLogManager:
    """The remote logs of this broker. A broker without tiered storage has none."""

    def __init__(
        self,
        environment: Environment,
        settings: RemoteLogSettings,
        view: ClusterView,
        store: ObjectStore,
        *,
        config: Callable[[], Config],
        log_start_moved: Callable[[Partition], None],
        settle_start: Callable[[PartitionLog], Awaitable[None]],
    ) -> None:
        """``close`` closes ``store``; ``config`` returns the present configuration of the broker.

        ``log_start_moved`` reports a moved log start offset to requests that wait; ``settle_start`` makes it durable.
        """
        self._environment = environment
        self._settings = settings
        self._view = view
        self.store = store
        self._logger = EventLogger("moldau.broker.remote-log", node=view.broker_id)
        self.tasks = TaskHost()
        self._requests = trio.CapacityLimiter(config().get_int(REQUESTS_KEY))
        self._config = config
        self._remote: dict[Partition, RemotePartition] = {}
        """The replicas that have a role. Invariant: none of their scopes is cancelled."""
        self.listings = self.listing_errors = 0
        """Listings of partitions' folders since the start of the broker, and how many of them failed."""
        self._tools = RoleTools(
            environment=environment,
            settings=settings,
            store=store,
            view=view,
            copier=Copier(environment, store, config),
            requests=self._requests,
            refresh=self._refresh,
            log_start_moved=log_start_moved,
            settle_start=settle_start,
            logger=self._logger,
        )
        self._sweep = Sweep(store, view, settings.unfinished_delete_delay_ms, self._logger)
        url = config().get_str_or_none("remote.log.storage.url") or ""
        probed = probe_name(view.cluster_id, view.broker_id)
        self._probe = StoreProbe(environment, store, probed, url, settings.backoff, self._logger)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Holds the tasks until cancelled."""
        async with self.tasks.running():
            self.tasks.start(self._sweep.run)
            self.tasks.start(self._probe.run)
            task_status.started()
            await trio.sleep_forever()

    def problems(self) -> list[StoreProblem]:
        """Returns what is wrong now with the store, and with the records in it."""
        return problems_of(self._remote.values(), self._probe.failure)

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

    def configured(self, partition: Partition) -> None:
        """Takes over a changed configuration: the topic may be tiered now, or not any more.

        A deleted topic loses its configuration before its replicas end.
        """
        if partition.topic_id in self._view.image().topics_by_id:
            self.leadership_changed(partition, partition.is_leader)

    def lead(self, partition: Partition) -> None:
        """Copies, expires and deletes segments of a tiered partition from now on.

        Has no effect if that has begun in this leader epoch, and none on other partitions. If the topic is not tiered
        any more and ``remote.log.delete.on.disable`` is set, its remote segments are deleted.
        """
        config = partition.log.config
        if config.remote_storage_enable:
            self._take_role(partition, RemoteRole.LEADER)
        elif config.remote_log_delete_on_disable:
            self._take_role(partition, RemoteRole.PURGER)
        else:
            self._look_on(partition)

    def follow(self, partition: Partition) -> None:
        """Lists the segments of a tiered partition from now on when its local segments wait to be deleted."""
        config = partition.log.config
        if config.remote_storage_enable:
            self._take_role(partition, RemoteRole.FOLLOWER)
        elif config.remote_log_delete_on_disable:
            self._take_role(partition, RemoteRole.ONLOOKER)
        else:
            self._look_on(partition)

    def end(self, partition: Partition, *, topic_deleted: bool) -> None:
        """Ends the work for a replica that has left this broker, whose disk has failed, or whose topic is deleted.

        The leader of a deleted topic's partition then deletes its folder.
        """
        remote = self._end_role(partition)
        leads = remote is not None and remote.role in (RemoteRole.LEADER, RemoteRole.PURGER)
        if topic_deleted and remote is not None and leads and self.tasks.accepts:
            self.tasks.start(self._delete_folder, remote)

    def _look_on(self, partition: Partition) -> None:
        """Ends the work for a topic that is not tiered, and keeps in mind that it was: its segments may be going."""
        if partition in self._remote:
            self._take_role(partition, RemoteRole.ONLOOKER)

    def _end_role(self, partition: Partition) -> RemotePartition | None:
        remote = self._remote.pop(partition, None)
        if remote is not None:
            remote.scope.cancel()
        return remote

    def _take_role(self, partition: Partition, role: RemoteRole) -> None:
        before = self._remote.get(partition)
        if before is not None and before.is_still(role):
            return
        self._end_role(partition)
        if not self.tasks.accepts:  # the broker stops
            return
        folder = partition_folder(self._view.cluster_id, partition.topic_id, partition.key.partition)
        remote = self._remote[partition] = RemotePartition(partition, folder, role)
        if before is not None and before.role in _UNTIERED and role not in _UNTIERED:
            remote.settles_at_ms = self._environment.clock.monotonic_ms() + PURGE_SETTLE_MS
        elif before is not None:
            remote.settles_at_ms = before.settles_at_ms
        self.tasks.start(_TASKS[role](self._tools, remote).run)

    def _slot(self) -> trio.CapacityLimiter:
        """Returns the limiter of listings and deletions, with the present configuration."""
        self._requests.total_tokens = self._config().get_int(REQUESTS_KEY)
        return self._requests

    async def _delete_folder(self, remote: RemotePartition) -> None:
        """Deletes the folder of a partition whose topic is deleted, as far as the store lets it."""
        self._view.before_deletions()
        for attempt in range(1, FOLDER_ATTEMPTS_MAX + 1):
            try:
                async with self._slot():
                    count = await delete_folder(self.store, remote.folder)
            except ObjectStoreError as error:
                self._logger.warning("folder-not-deleted", partition=remote.partition.key, attempt=attempt, error=error)
                await trio.sleep(self._settings.backoff.delay_ms(attempt, self._environment.random) / 1000)
            else:
                self._logger.info("folder-deleted", partition=remote.partition.key, objects=count)
                return

    # --- knowledge -------------------------------------------------------------------------------------------------

    def remote_log(self, partition: Partition) -> RemoteLog | None:
        """Returns what is known of a partition's remote segments; None before the first listing."""
        remote = self._remote.get(partition)
        return None if remote is None else remote.log

    def statistics(self) -> dict[str, RemoteStatistics]:
        """Returns the state of the remote logs that this broker leads, by topic."""
        found: dict[str, RemoteStatistics] = {}
        for partition, remote in self._remote.items():
            if remote.role is RemoteRole.LEADER:
                topic = partition.key.topic
                found[topic] = found.get(topic, NO_STATISTICS).plus(remote.statistics())
        return found

    async def refresh(self, partition: Partition) -> RemoteLog:
        """Lists the folder of a partition after this call, and returns ``remote_log``.

        Called when a read does not find an object. Those that wait meanwhile share one listing.

        Raises:
            ObjectStoreError: the store did not answer, or refused.
            KafkaError: this broker has no such replica any more, or the topic is not tiered.
        """
        remote = self._remote.get(partition)
        if remote is None:
            known = partition.error is not ErrorCode.NONE
            raise KafkaError(partition.error if known else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return await self._refresh(remote)

    async def _refresh(self, remote: RemotePartition) -> RemoteLog:
        if remote.listing is not None and remote.log is not None:  # it may have begun before the object was deleted
            await remote.listing.done.wait()
        listing = remote.listing
        if listing is None:
            if not self.tasks.accepts:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            listing = remote.begin_listing(self._environment.clock)
            self.tasks.start(self._list, remote)
        await listing.done.wait()
        if listing.error is not None:
            raise ObjectStoreError(str(listing.error)) from listing.error
        if remote.log is None:  # the log was truncated, or moved, in this turn
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return remote.log

    async def _list(self, remote: RemotePartition) -> None:
        """Lists a folder for all who wait; the end of one of them does not end it."""
        self.listings += 1
        try:
            async with self._slot():
                found: Listing | ObjectStoreError = await list_partition(self.store, remote.folder)
        except ObjectStoreError as error:
            self.listing_errors += 1
            found = error
        remote.end_listing(found)
