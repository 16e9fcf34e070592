"""All replicas of this broker: appends, reads by the rules of replication, and the reactions to committed metadata.

Synchronous throughout: between two checkpoints of trio the state is consistent. What has to wait, waits elsewhere:
delayed answers in ``replica_waits``, requests to the controller in ``isr``, fetches from leaders in
``replica_fetcher``.

An append has two steps. ``stage`` validates a batch and gives it its offsets; ``flush``, once for all requests that
arrived together, writes each log with one gathered call, moves the log end, and thereby wakes followers and, as the
high watermark follows, producers and consumers.

Where ``flush.messages`` bounds what may be lost with the power, a log is settled (``WatermarkedLog``) later than it is
written. The manager then asks for a sync, which runs outside the event loop; until it has ended, the leader does not
count its own copy, acks=1 waits, and a follower claims nothing (``replica_fetcher``). Followers may read what their
leader has not synced: what they have more than it counts for nothing as long as the leader's own copy does not, and
the syncs of all replicas run at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.log import EventLogger
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.values import AppendOrigin, TopicPartition
from moldau_broker.replication.alter_partition import AlterPartitionQueue
from moldau_broker.replication.replica import Applied, Replica, ReplicaEffects, Role
from moldau_broker.replication.throttle import UNLIMITED, ReplicationThrottle, is_throttled
from moldau_broker.server.partition import Partition, offline_replicas, partition_state
from moldau_broker.server.replica_directories import ReplicaOfflineError
from moldau_broker.server.replica_waits import ReplicaWaits
from moldau_quorum.image import MetadataImage

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator, Mapping

    from moldau.runtime.environment import Buffer, Clock
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.manager import LogManager
    from moldau_broker.log.partition_log import PartitionLog
    from moldau_broker.log.values import AppendInfo
    from moldau_broker.server.replica_directories import ReplicaDirectories
    from moldau_quorum.image import MetadataDelta, PartitionDelta, PartitionImage


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Configuration of one topic, as the replicas need it."""

    log: LogConfig
    min_insync_replicas: int
    leader_throttled: tuple[str, ...] = ()  # leader.replication.throttled.replicas
    follower_throttled: tuple[str, ...] = ()  # follower.replication.throttled.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Configuration of the broker, as the replicas need it."""

    broker_id: int
    lag_time_max_ms: float
    waiting_operations_max: int = 100_000  # delayed produces, and as many delayed fetches
    alter_partition_batch_max: int = 1000
    alter_partition_backoff_ms: float = 50.0


class LeadershipListener(Protocol):
    """Who wants to hear of leadership (coordinators)."""

    def __call__(self, partition: Partition, leads: bool) -> None:
        """The partition's state was taken over: it is led here (in its present leader epoch) or not (any more)."""
        ...


class Following(Protocol):
    """Who fetches from leaders (``replica_fetcher.ReplicaFetchers``)."""

    def follow(self, partition: Partition) -> None:
        """The partition has a new leader epoch with a leader elsewhere, or none."""
        ...

    def unfollow(self, key: TopicPartition) -> None:
        """The partition is led here, or gone."""
        ...

    def policy_changed(self, partition: Partition) -> None:
        """The flush policy of the partition's topic may be another one."""
        ...


class SyncRequest(Protocol):
    """Who syncs logs outside the event loop (``log_tasks.LogSyncs``)."""

    def __call__(self, log: PartitionLog) -> None:
        """All that is written in ``log`` now is to be synced, soon; any number of requests may share one sync."""
        ...


class ReplicaManager(ReplicaWaits):
    """See the module. Owned by the broker; handlers and tasks call it from the event loop only."""

    def __init__(
        self,
        clock: Clock,
        settings: ReplicaSettings,
        logs: LogManager,
        topic_settings: Callable[[str, Mapping[str, str]], TopicSettings],
        *,
        directories: ReplicaDirectories,
        on_isr_proposal: Callable[[], None],
        on_directory_failure: Callable[[str], None],
    ) -> None:
        super().__init__(clock, settings.waiting_operations_max)
        self._settings = settings
        self._logs = logs
        self._settings_of = topic_settings
        self._image = MetadataImage()  # what ``apply`` takes over or took over last; the newest may be ahead of it
        self._directories = directories
        self._on_isr_proposal = on_isr_proposal
        self._on_directory_failure = on_directory_failure
        self._logger = EventLogger("moldau.broker.replicas", node=settings.broker_id)
        self._dirty: dict[Partition, None] = {}
        self._following: Following | None = None
        self._request_sync: SyncRequest | None = None
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.by_raw_name: dict[tuple[bytes, int], Partition] = {}  # the same, by what stands on the wire
        self.by_raw_id: dict[tuple[bytes, int], Partition] = {}
        self.leader_throttle = ReplicationThrottle(UNLIMITED, clock.monotonic_ms())
        self.follower_throttle = ReplicationThrottle(UNLIMITED, clock.monotonic_ms())
        self.alterations = AlterPartitionQueue(
            partitions_max=settings.alter_partition_batch_max, backoff_ms=settings.alter_partition_backoff_ms
        )
        self.leadership_listeners: list[LeadershipListener] = []

    def connect(self, following: Following, request_sync: SyncRequest) -> None:
        """Sets who fetches for the followers and who syncs; once, before the first delta."""
        self._following = following
        self._request_sync = request_sync
        self._logs.flush_listener = self._log_flushed
        self._logs.failure_listener = self._directory_offline

    # --- appends ---------------------------------------------------------------------------------------------------

    def stage(
        self, partition: Partition, records: memoryview, acks: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        """Validates and numbers a batch; it is in the log after ``flush``. ``records`` is borrowed until then.

        Raises ``KafkaError`` (``LogError`` with the errors of single records among them); nothing is staged then.
        """
        if partition.error is not ErrorCode.NONE:
            raise KafkaError(partition.error)
        error = partition.replica.check_append(acks)
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        try:
            info = partition.log.stage_as_leader(
                records,
                leader_epoch=partition.replica.state.leader_epoch,
                now_ms=self._clock.wall_ms(),
                origin=origin,
            )
        except LogStorageError as error_:
            self.directory_failed(error_)
            raise
        self._dirty[partition] = None
        return info

    def flush(self) -> None:
        """Writes what is staged, in all logs, and lets all that waited for it go on."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        now_ms = self._clock.monotonic_ms()
        for partition in dirty:
            if partition.error is not ErrorCode.NONE:
                partition.staged_failures += 1
                continue
            try:
                partition.log.flush_staged()
            except LogStorageError as error:
                partition.staged_failures += 1
                self.directory_failed(error)
                continue
            self.log_end_moved(partition, now_ms)

    def log_end_moved(self, partition: Partition, now_ms: float) -> None:
        """The log has grown, or more of it is settled."""
        log = partition.log
        settled = log.settled_end_offset
        effects = partition.replica.log_end_moved(log.log_end_offset, now_ms, self.eligible, settled)
        if settled != log.log_end_offset:
            self._sync(log)
        self.perform(partition, effects)
        if not effects.high_watermark_advanced:
            self._complete_produces(partition)  # a duplicate waits for what may be committed already
        self._wake_fetches(partition.end)

    def _sync(self, log: PartitionLog) -> None:
        assert self._request_sync is not None
        self._request_sync(log)

    def _log_flushed(self, key: TopicPartition) -> None:
        """A sync has ended; what was written since may ask for the next one."""
        partition = self.partitions.get(key)
        if partition is not None:
            self.log_end_moved(partition, self._clock.monotonic_ms())
            self.settled.notify()

    # --- following -------------------------------------------------------------------------------------------------

    def follower_advanced(self, partition: Partition, high_watermark: int, leader_log_start_offset: int) -> None:
        """The log of a follower was extended (or not), and the leader told its high watermark and log start."""
        replica = partition.replica
        log = partition.log
        if log.log_end_offset != replica.log_end_offset:
            self.log_end_moved(partition, self._clock.monotonic_ms())
        if replica.leader_high_watermark(high_watermark):
            log.update_high_watermark(replica.high_watermark)
            self._wake_fetches(partition.committed)
        if log.log_start_offset < leader_log_start_offset <= replica.high_watermark:
            log.increment_log_start_offset(leader_log_start_offset)

    def follower_truncated(self, partition: Partition, offset: int) -> None:
        """Cuts the log of a follower; its high watermark follows.

        Where its log start lies above the end of a leader that has lost records, the log begins anew at that end: what
        the leader appends from there on must not be missing in it.
        """
        if offset < partition.log.log_start_offset:
            self.follower_restarted(partition, offset)
            self.log_end_moved(partition, self._clock.monotonic_ms())
            return
        partition.log.truncate_to(offset)
        partition.replica.truncated(partition.log.log_end_offset)
        partition.log.update_high_watermark(partition.replica.high_watermark)
        self.log_end_moved(partition, self._clock.monotonic_ms())

    def follower_restarted(self, partition: Partition, offset: int) -> None:
        """Begins the log of a follower anew at the leader's log start: what it had, the leader has deleted."""
        partition.log.truncate_fully_and_start_at(offset, self._clock.wall_ms())
        partition.replica.restarted(offset)
        partition.log.update_high_watermark(partition.replica.high_watermark)

    def append_marker(
        self, partition: Partition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool
    ) -> int:
        """Ends a producer's transaction in a partition that is led here; returns the offset (exclusive) to wait for.

        Raises ``KafkaError``, ``LogStorageError`` among them.
        """
        error = partition.replica.check_append(-1) if partition.error is ErrorCode.NONE else partition.error
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        self.flush()
        if partition.error is not ErrorCode.NONE:
            raise KafkaError(partition.error)
        partition.marker_count += 1
        info = partition.log.append_end_transaction_marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            commit=commit,
            leader_epoch=partition.replica.state.leader_epoch,
            now_ms=self._clock.wall_ms(),
        )
        self.log_end_moved(partition, self._clock.monotonic_ms())
        return info.next_offset

    # --- effects ---------------------------------------------------------------------------------------------------

    def perform(self, partition: Partition, effects: ReplicaEffects) -> None:
        """Does what a replica's state machine asks for."""
        if effects.high_watermark_advanced:
            self.high_watermark_advanced(partition)
        if effects.proposal is not None:
            self.alterations.submit(partition.key, effects.proposal)
            self._on_isr_proposal()

    def high_watermark_advanced(self, partition: Partition) -> None:
        """Takes the high watermark over into the log, and completes what waited for it."""
        partition.log.update_high_watermark(partition.replica.high_watermark)
        self._complete_produces(partition)
        self._wake_fetches(partition.committed)

    # --- time ------------------------------------------------------------------------------------------------------

    def tick_isr(self) -> None:
        """Looks for lagging members of all ISRs; call it every half of ``replica.lag.time.max.ms``."""
        now_ms = self._clock.monotonic_ms()
        for partition in list(self.partitions.values()):
            effects = partition.replica.tick(now_ms, self.eligible)
            if effects.proposal is not None:
                self._logger.info(
                    "isr-shrink-proposed",
                    partition=partition.key,
                    isr=partition.replica.state.isr,
                    proposed=effects.proposal.isr,
                )
            self.perform(partition, effects)

    # --- metadata --------------------------------------------------------------------------------------------------

    def apply(self, delta: MetadataDelta) -> Iterator[bool]:
        """Follows committed metadata: brokers first, then configuration, then partitions.

        A ``min.insync.replicas`` that was lowered comes last: folded together, the changes have lost their order, and
        an older ISR counted by a minimum that came after it would acknowledge what an eligible leader lacks.

        Yields after each partition, when everything is consistent, whether its log was created or deleted: that waits
        for the disk, and a thousand partitions must not stop all else. The caller exhausts the iterator before it
        applies anything newer.
        """
        image = self._image = delta.image
        self.eligible = {
            broker_id: broker.broker_epoch for broker_id, broker in sorted(image.brokers.items()) if broker.active
        }
        configured = self._configured_topics(delta)
        for topic in configured:
            self._topic_config_changed(topic)
        for change in delta.changed_partitions:
            key = TopicPartition(change.topic_name, change.partition_id)
            before = self._logs.get(key)
            try:
                self._apply_partition(change, delta)
            except LogStorageError as error:
                self.directory_failed(error)
            yield self._logs.get(key) is not before
        for topic in configured:
            self._lower_minimum(topic)
        if delta.changed_brokers:
            self._directories_changed(delta)
            self._reconsider_all()

    def _directories_changed(self, delta: MetadataDelta) -> None:
        """Log directories of brokers have failed, or are back."""
        before, after = delta.previous.brokers, delta.image.brokers
        if all(b in before and b in after and before[b].log_dirs == after[b].log_dirs for b in delta.changed_brokers):
            return
        for partition in self.partitions.values():
            topic = delta.image.topics_by_id.get(partition.topic_id)
            image = None if topic is None else topic.partitions.get(partition.key.partition)
            if image is not None:
                partition.replica.configure(offline=offline_replicas(delta.image, image))

    def _topic_settings(self, topic: str) -> TopicSettings:
        return self._settings_of(topic, self._image.topic_config(topic))

    def _configured_topics(self, delta: MetadataDelta) -> list[str]:
        """Topics whose configuration may have changed: a broker's is the default of all that are here."""
        if any(resource_type == _RESOURCE_BROKER for resource_type, _ in delta.changed_configs):
            return sorted({key[0] for key in self.partitions})
        return [name for resource_type, name in delta.changed_configs if resource_type == _RESOURCE_TOPIC]

    def _partitions_of(self, topic: str) -> list[Partition]:
        return [partition for key, partition in self.partitions.items() if key[0] == topic]

    def _topic_config_changed(self, topic: str) -> None:
        """Takes over changed configuration of a topic, but for a lower ``min.insync.replicas``."""
        mine = self._partitions_of(topic)
        if not mine:
            return
        settings = self._topic_settings(topic)
        self._logs.update_topic_config(topic, settings.log)
        now_ms = self._clock.monotonic_ms()
        for partition in mine:
            replica = partition.replica
            replica.configure(min_insync_replicas=max(replica.min_insync_replicas, settings.min_insync_replicas))
            self._mark_throttled(partition, settings)
            self.log_end_moved(partition, now_ms)  # ``flush.messages`` may let more of it count
            if self._following is not None:
                self._following.policy_changed(partition)
            self.perform(partition, partition.replica.reconsider(now_ms, self.eligible))
        self.settled.notify()

    def _lower_minimum(self, topic: str) -> None:
        mine = self._partitions_of(topic)
        if not mine:
            return
        wanted = self._topic_settings(topic).min_insync_replicas
        for partition in mine:
            if partition.replica.min_insync_replicas > wanted:
                partition.replica.configure(min_insync_replicas=wanted)
                self.perform(partition, partition.replica.reconsider(self._clock.monotonic_ms(), self.eligible))
        self.settled.notify()

    def _mark_throttled(self, partition: Partition, settings: TopicSettings) -> None:
        broker_id = self._settings.broker_id
        index = partition.key.partition
        partition.leader_throttled = is_throttled(settings.leader_throttled, index, broker_id)
        partition.follower_throttled = is_throttled(settings.follower_throttled, index, broker_id)

    def set_throttles(self, leader_rate: float, follower_rate: float) -> None:
        """Takes changed rates, in bytes per second."""
        now_ms = self._clock.monotonic_ms()
        self.leader_throttle.set_rate(leader_rate, now_ms)
        self.follower_throttle.set_rate(follower_rate, now_ms)

    def holds_back(self, partition: Partition, replica_id: int, now_ms: float) -> bool:
        """Whether a follower outside the ISR must wait for its records, because copying has used up its rate."""
        return (
            partition.leader_throttled
            and replica_id not in partition.replica.maximal_isr
            and not self.leader_throttle.allows(now_ms)
        )

    def _reconsider_all(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for partition in list(self.partitions.values()):
            self.perform(partition, partition.replica.reconsider(now_ms, self.eligible))

    def _apply_partition(self, change: PartitionDelta, delta: MetadataDelta) -> None:
        """Takes one partition over. Raises ``LogStorageError``."""
        key = TopicPartition(change.topic_name, change.partition_id)
        present = self.partitions.get(key)
        if present is not None and present.topic_id != change.topic_id:
            if change.after is None:
                return  # a former topic of that name; its replica is gone already
            self._drop(present, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            present = None
        if change.after is None or self._settings.broker_id not in change.after.replicas:
            if present is not None:
                gone = change.after is None
                self._drop(present, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if gone else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._directories.gone(key, change.topic_id)
            return
        was_here = change.before is not None and self._settings.broker_id in change.before.replicas
        at_start = delta.previous.offset < 0  # what was before this process ran is not known
        is_new = not (at_start or was_here)
        partition = present or self._create(key, change.topic_id, change.after, is_new=is_new)
        if partition is not None:
            partition.replica.configure(offline=offline_replicas(delta.image, change.after))
            self._apply_state(partition, change.after)
        self._directories.reconcile(key)

    def _create(
        self, key: TopicPartition, topic_id: uuid.UUID, image: PartitionImage, *, is_new: bool
    ) -> Partition | None:
        """A replica with its log; None where the log directory that holds it does not work."""
        settings = self._topic_settings(key.topic)
        present = self._logs.claim(key, topic_id, self._clock.wall_ms())
        try:
            where = self._directories.place(key, topic_id, image, is_new=is_new) if present is None else None
            log = self._logs.get_or_create(key, topic_id=topic_id, now_ms=self._clock.wall_ms(), directory=where)
            self._logs.update_topic_config(key.topic, settings.log)
        except LogStorageError as error:
            self._logger.error("replica-not-created", partition=key, error=error)
            offline = isinstance(error, ReplicaOfflineError)
            if not offline:
                self.directory_failed(error)
                if is_new and self._logs.online_directories:
                    return self._create(key, topic_id, image, is_new=is_new)  # it holds nothing: any directory will do
            self._directories.went_offline(key, topic_id, None if offline else error.directory)
            return None
        self._directories.offline.pop(key, None)
        return self._adopt(key, topic_id, log, settings)

    def _adopt(self, key: TopicPartition, topic_id: uuid.UUID, log: PartitionLog, settings: TopicSettings) -> Partition:
        replica = Replica(
            self._settings.broker_id,
            high_watermark=log.high_watermark,
            log_end_offset=log.log_end_offset,
            lag_time_max_ms=self._settings.lag_time_max_ms,
            min_insync_replicas=settings.min_insync_replicas,
        )
        partition = Partition(key, topic_id, log, replica)
        self._mark_throttled(partition, settings)
        self.partitions[key] = partition
        self.by_raw_name[key.topic.encode(), key.partition] = partition
        self.by_raw_id[topic_id.bytes, key.partition] = partition
        if not log.is_settled:
            self._sync(log)  # a former process may have died before it synced
        return partition

    def _apply_state(self, partition: Partition, image: PartitionImage) -> None:
        assert self._following is not None
        replica = partition.replica
        was_leader = replica.is_leader
        now_ms = self._clock.monotonic_ms()
        if partition in self._dirty:
            self.flush()  # what is staged belongs to the epoch in which it was accepted
            if partition.error is not ErrorCode.NONE:
                return
        log = partition.log
        applied = replica.apply(partition_state(image), log.log_end_offset, now_ms, log.settled_end_offset)
        if applied is Applied.UNCHANGED:
            return
        if applied is Applied.LEADER:
            self._following.unfollow(partition.key)
            self.alterations.withdraw(partition.key)
            partition.log.begin_leader_epoch(image.leader_epoch)
            self._end_waits(partition)
            self._logger.info(
                "leader", partition=partition.key, leader_epoch=image.leader_epoch, log_end=replica.log_end_offset
            )
        elif applied is Applied.FOLLOWER:
            self.alterations.withdraw(partition.key)
            self._end_waits(partition)
            self._following.follow(partition)
            self._logger.info("follower", partition=partition.key, leader=image.leader, leader_epoch=image.leader_epoch)
        self.perform(partition, replica.reconsider(now_ms, self.eligible))
        if replica.is_leader or was_leader:
            self._complete_produces(partition)
        for listener in self.leadership_listeners:
            listener(partition, replica.is_leader)

    def _drop(self, partition: Partition, error: ErrorCode) -> None:
        """The replica is not assigned to this broker any more: its log goes, who waits for it gets ``error``."""
        self._forget(partition, error)
        self._logs.delete(partition.key, self._clock.wall_ms())
        self._logger.info("replica-deleted", partition=partition.key)

    def _forget(self, partition: Partition, error: ErrorCode) -> None:
        assert self._following is not None
        partition.close(error)
        self._following.unfollow(partition.key)
        self.alterations.withdraw(partition.key)
        self.partitions.pop(partition.key, None)
        self.by_raw_name.pop((partition.key.topic.encode(), partition.key.partition), None)
        self.by_raw_id.pop((partition.topic_id.bytes, partition.key.partition), None)
        self._dirty.pop(partition, None)
        self._end_waits(partition)
        self.settled.notify()
        for listener in self.leadership_listeners:
            listener(partition, False)

    # --- disks -----------------------------------------------------------------------------------------------------

    def directory_failed(self, error: LogStorageError) -> None:
        """A log directory does not work any more: its replicas are gone, the others go on."""
        self._logs.fail_directory(error.directory, error)

    def _directory_offline(self, path: str, error: BaseException) -> None:
        """A log directory has gone offline, whether an append, a sync in a thread or the housekeeping noticed it."""
        self._logger.error("log-directory-failed", directory=path, error=error)
        for partition in [found for found in self.partitions.values() if found.log.parent_directory == path]:
            present = self._logs.get(partition.key)
            if present is not None:  # the new place of a replica that was just moved, and could not leave the old one
                partition.log = present
                continue
            partition.staged_failures += 1
            self._forget(partition, ErrorCode.KAFKA_STORAGE_ERROR)
            self._directories.went_offline(partition.key, partition.topic_id, path)
        self._directories.moves_changed()
        self._on_directory_failure(path)

    # --- what others read ------------------------------------------------------------------------------------------

    def leading(self) -> list[Partition]:
        """The partitions that are led here, by name and number."""
        return [
            self.partitions[key] for key in sorted(self.partitions) if self.partitions[key].replica.role is Role.LEADER
        ]

    def is_offline(self, topic: bytes, index: int, *, by_id: bool) -> bool:
        """Whether the replica is in a log directory that does not work; ``topic`` as on the wire."""
        return self._directories.is_offline(topic, index, by_id=by_id)

    def append_now(self, partition: Partition, records: Buffer, *, acks: int, origin: AppendOrigin) -> AppendInfo:
        """Stages and flushes in one step; for the coordinators."""
        info = self.stage(partition, memoryview(records), acks, origin)
        self.flush()
        if partition.error is not ErrorCode.NONE:
            raise KafkaError(partition.error)
        return info


_RESOURCE_TOPIC = 2
_RESOURCE_BROKER = 4
