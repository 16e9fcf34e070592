"""All replicas of this broker: appends, reads by the rules of replication, and the reactions to committed metadata.

All methods are synchronous, and the state is consistent at each checkpoint of trio. Other modules wait: delayed answers
in ``replica_waits``, requests to the controller in ``isr``, fetches from leaders in ``replica_fetcher``.

An append has two steps. ``stage`` validates a batch and assigns its offsets. ``flush`` runs once for all requests that
arrived together: it writes each log with one gathered call and moves the log end. That wakes followers, and when the
high watermark advances, producers and consumers.

Where ``flush.messages`` bounds what a power failure may lose, records are settled (``PartitionLog``) later than they
are written. The manager then asks for a sync, which runs outside the event loop. Until the sync ends, the leader does
not count its own copy, acks=1 waits, and a follower does not acknowledge the records (``replica_fetcher``). Followers
may read records that their leader has not synced: such records are not committed before the leader's own copy counts,
and the syncs of all replicas run at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import Offset
from moldau_broker.log.by_topic import ByTopic
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.values import AppendOrigin, TopicPartition
from moldau_broker.replication.alter_partition import AlterPartitionQueue
from moldau_broker.replication.replica import NO_EFFECTS, Applied, Replica, ReplicaEffects, Role
from moldau_broker.replication.throttle import UNLIMITED, ReplicationThrottle, is_throttled
from moldau_broker.server.metrics.traffic import BrokerTraffic
from moldau_broker.server.replicas.log_changes import LogChanges
from moldau_broker.server.replicas.partition import Partition, offline_replicas, partition_state
from moldau_broker.server.replicas.replica_waits import ReplicaWaits
from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator, Mapping

    from moldau.runtime.ports.environment import Clock
    from moldau.values import BrokerId, Buffer
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.partition.validator import BatchValidation
    from moldau_broker.log.values import AppendInfo
    from moldau_broker.server.replicas.collaborators import Following, LeadershipListener, SyncRequest, TopicSettings
    from moldau_broker.server.replicas.replica_directories import ReplicaDirectories
    from moldau_quorum.metadata.image import MetadataDelta, PartitionDelta, PartitionImage

_NO_ERROR = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """The part of the broker's configuration that replicas use."""

    broker_id: BrokerId
    lag_time_max_ms: float
    waiting_operations_max: int = 100_000  # bound of each purgatory
    alter_partition_batch_max: int = 1000
    alter_partition_backoff_ms: float = 50.0


class ReplicaManager:
    """All replicas of a broker. Handlers and tasks call it from the event loop only.

    The class has many methods because one event (an append, metadata, a failed directory) changes a log, its replica,
    the waiting requests and the fetchers in one step without a checkpoint. Waits, log changes, in-sync sets, fetchers
    and directories have classes of their own.
    """

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
        self._clock = clock
        self.eligible: Mapping[BrokerId, int] = {}
        """Broker epochs of the registered, unfenced brokers that are not shutting down, by broker id."""
        self.waits = ReplicaWaits(clock, settings.waiting_operations_max, self.low_watermark)
        self.settled = Signal()
        """Notified when a log is settled further, or gone."""
        self._settings = settings
        self._logs = logs
        self._settings_of = topic_settings
        self.image = MetadataImage()
        """The image that ``apply`` last applied or is applying; the newest image may be ahead of it."""
        self._directories = directories
        self._on_isr_proposal = on_isr_proposal
        self._on_directory_failure = on_directory_failure
        self._logger = EventLogger("moldau.broker.replicas", node=settings.broker_id)
        self._dirty: dict[Partition, None] = {}
        self.may_lag: dict[Partition, None] = {}
        """The partitions for ``tick_isr``, and others; those in which a follower has come to lack records are added."""
        self._following: Following | None = None
        self._request_sync: SyncRequest | None = None
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._by_topic: ByTopic[Partition] = ByTopic()  # the same
        self.by_raw_name: dict[tuple[bytes, int], Partition] = {}  # the same, by the bytes on the wire
        self.by_raw_id: dict[tuple[bytes, int], Partition] = {}
        self.traffic = BrokerTraffic()
        self.leader_throttle = ReplicationThrottle(UNLIMITED, clock.monotonic_ms())
        self.follower_throttle = ReplicationThrottle(UNLIMITED, clock.monotonic_ms())
        self.alterations = AlterPartitionQueue(
            partitions_max=settings.alter_partition_batch_max, backoff_ms=settings.alter_partition_backoff_ms
        )
        self.leadership_listeners: list[LeadershipListener] = []
        self.config_listener: Callable[[Partition], None] | None = None
        """Called when the configuration of a partition's topic may have changed; None without tiered storage."""
        self.log_changes = LogChanges(clock, settings.broker_id, logs, directories, self)
        """Logs that ``apply`` has left to create and delete, because that waits for the disk."""

    def connect(self, following: Following, request_sync: SyncRequest) -> None:
        """Sets the fetchers of followers and the syncs; called once, before the first delta."""
        self._following = following
        self._request_sync = request_sync
        self._logs.flush_listener = self._log_flushed
        self._logs.start_listener = self._log_start_moved
        self._logs.failure_listener = self._directory_offline

    # --- appends ---------------------------------------------------------------------------------------------------

    def stage(
        self,
        partition: Partition,
        records: memoryview,
        acks: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        validation: BatchValidation | None = None,
    ) -> AppendInfo:
        """Validates and numbers a batch, which ``flush`` then writes; ``records`` is borrowed until then.

        ``validation`` is the validation of ``records``, if its steps have run before.

        Raises:
            KafkaError: the batch was refused and not staged; ``LogError`` carries the errors of single records.
        """
        if partition.error is not _NO_ERROR:
            raise KafkaError(partition.error)
        replica = partition.replica
        error = replica.check_append(acks)
        if error is not _NO_ERROR:
            raise KafkaError(error)
        try:
            info = partition.log.leader_appends.stage(
                records, replica.state.leader_epoch, self._clock.wall_ms(), origin, validation
            )
        except LogStorageError as error_:
            self.directory_failed(error_)
            raise
        self._dirty[partition] = None
        if not info.duplicate:
            traffic = partition.traffic
            traffic.messages_in += info.record_count
            traffic.bytes_in += info.size_bytes
        return info

    def flush(self) -> None:
        """Writes the staged batches of all logs, and completes the requests that waited for them."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        now_ms = self._clock.monotonic_ms()
        for partition in dirty:
            if partition.error is not _NO_ERROR:
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
        """Takes over a log end, or a settled end offset, that has moved."""
        log = partition.log
        self.may_lag[partition] = None
        end, settled = Offset(log.storage.log_end_offset), Offset(log.watermarks.settled_end_offset)
        effects = partition.replica.log_end_moved(end, now_ms, self.eligible, settled)
        if settled != end:
            self._sync(log)
        if effects is not NO_EFFECTS:
            self.perform(partition, effects)
        if not effects.high_watermark_advanced:
            self.waits.complete_produces(partition)  # a duplicate may be committed already
        self.waits.moved(partition, watermark=False)

    def _sync(self, log: PartitionLog) -> None:
        assert self._request_sync is not None
        self._request_sync(log)

    def _log_flushed(self, key: TopicPartition) -> None:
        """Handles the end of a sync; records written since then may need the next one."""
        partition = self.partitions.get(key)
        if partition is not None:
            self.log_end_moved(partition, self._clock.monotonic_ms())
            self.settled.notify()

    def _log_start_moved(self, key: TopicPartition) -> None:
        """Handles a retention that has deleted records."""
        partition = self.partitions.get(key)
        if partition is not None:
            self.waits.note_change(partition)

    # --- following -------------------------------------------------------------------------------------------------

    def follower_advanced(self, partition: Partition, high_watermark: Offset, leader_log_start_offset: Offset) -> None:
        """Takes over a fetch answer of the leader: its high watermark and log start, after any append."""
        replica = partition.replica
        log = partition.log
        if log.log_end_offset != replica.log_end_offset:
            self.log_end_moved(partition, self._clock.monotonic_ms())
        if replica.leader_high_watermark(high_watermark):
            log.update_high_watermark(replica.high_watermark)
            self.waits.moved(partition, watermark=True)
        if log.log_start_offset < leader_log_start_offset <= replica.high_watermark:
            log.increment_log_start_offset(leader_log_start_offset)

    def is_short_of_room(self, partition: Partition, size_bytes: int) -> bool:
        """Returns whether a follower must wait until its nearly full log directory has room for so many bytes.

        A member of the ISR never waits, because acks=all waits for it: if its disk is full, its directory fails, and
        the ISR goes on without it at once.
        """
        room = self._logs.room
        return (
            bool(room.low)
            and self._settings.broker_id not in partition.replica.state.isr
            and room.is_short(partition.log.parent_directory, size_bytes)
        )

    def follower_truncated(self, partition: Partition, offset: Offset) -> None:
        """Truncates the log of a follower to ``offset``, and lowers its high watermark if needed.

        If its log start lies above the log end of a leader that has lost records, the log restarts at that end, so that
        it misses nothing that the leader appends from there on.
        """
        if offset < partition.log.log_start_offset:
            self.follower_restarted(partition, offset)
            self.log_end_moved(partition, self._clock.monotonic_ms())
            return
        partition.log.truncate_to(offset)
        partition.replica.truncated(partition.log.log_end_offset)
        partition.log.update_high_watermark(partition.replica.high_watermark)
        self.log_end_moved(partition, self._clock.monotonic_ms())

    def follower_restarted(self, partition: Partition, offset: Offset) -> None:
        """Restarts the log of a follower at the leader's log start; the leader has deleted the earlier records."""
        partition.log.truncate_fully_and_start_at(offset, self._clock.wall_ms())
        partition.replica.restarted(offset)
        partition.log.update_high_watermark(partition.replica.high_watermark)

    def append_marker(
        self, partition: Partition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool
    ) -> Offset:
        """Appends a transaction marker to a partition that this broker leads.

        Returns:
            The offset (exclusive) up to which the partition must be committed.

        Raises:
            KafkaError: the marker was refused; ``LogStorageError`` when the log directory failed.
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
        return Offset(info.next_offset)

    # --- effects ---------------------------------------------------------------------------------------------------

    def perform(self, partition: Partition, effects: ReplicaEffects) -> None:
        """Performs the effects that a replica's state machine returned."""
        if effects.high_watermark_advanced:
            self.high_watermark_advanced(partition)
        if effects.proposal is not None:
            self.alterations.submit(partition.key, effects.proposal)
            self._on_isr_proposal()

    def high_watermark_advanced(self, partition: Partition) -> None:
        """Copies the high watermark into the log, and completes the requests that waited for it."""
        partition.log.watermarks.update(partition.replica.high_watermark)
        self.waits.complete_produces(partition)
        self.waits.moved(partition, watermark=True)

    # --- time ------------------------------------------------------------------------------------------------------

    def tick_isr(self) -> None:
        """Removes lagging members from all ISRs; called every half of ``replica.lag.time.max.ms``."""
        now_ms = self._clock.monotonic_ms()
        for partition in list(self.may_lag):
            if partition.error is not _NO_ERROR or not partition.replica.may_lag:
                del self.may_lag[partition]
                continue
            effects = partition.replica.tick(now_ms, self.eligible)
            if effects.proposal is not None:
                self._logger.info(
                    "recovery-reported" if effects.proposal.reports_recovery else "isr-shrink-proposed",
                    partition=partition.key,
                    isr=partition.replica.state.isr,
                    proposed=effects.proposal.isr,
                )
            self.perform(partition, effects)

    # --- metadata --------------------------------------------------------------------------------------------------

    def apply(self, delta: MetadataDelta) -> Iterator[None]:
        """Applies committed metadata: brokers first, then configuration, then partitions.

        A lowered ``min.insync.replicas`` comes last. A delta does not keep the order of its changes; with an older ISR
        and a later, lower minimum the leader would acknowledge records that an eligible leader lacks.

        Changes memory only: logs to create and delete wait in ``log_changes``. Yields after each partition, also of a
        topic with changed configuration, when the state is consistent. The caller exhausts the iterator before it
        applies a newer delta, and before it performs log changes.
        """
        image = self.image = delta.image
        self.eligible = {
            broker.broker_id: broker.broker_epoch for _, broker in sorted(image.brokers.items()) if broker.active
        }
        configured = self._configured_topics(delta)
        for topic in configured:
            yield from self._topic_config_changed(topic)
        for change in delta.changed_partitions:
            try:
                self._apply_partition(change, delta)
            except LogStorageError as error:
                self.directory_failed(error)
            yield
        for topic in configured:
            yield from self._lower_minimum(topic)
        if delta.changed_brokers:
            self._directories_changed(delta)
            self._reconsider_all()
            self.waits.follower_noted()  # a fenced follower does not count any more

    def _directories_changed(self, delta: MetadataDelta) -> None:
        """Takes over log directories of brokers that have failed or returned."""
        before, after = delta.previous.brokers, delta.image.brokers
        if all(b in before and b in after and before[b].log_dirs == after[b].log_dirs for b in delta.changed_brokers):
            return
        for partition in self.partitions.values():
            topic = delta.image.topics_by_id.get(partition.topic_id)
            image = None if topic is None else topic.partitions.get(partition.key.partition)
            if image is not None:
                partition.replica.configure(offline=offline_replicas(delta.image, image))

    def topic_settings(self, topic: str) -> TopicSettings:
        """Returns the settings of a topic in ``image``."""
        return self._settings_of(topic, self.image.topic_config(topic))

    def _configured_topics(self, delta: MetadataDelta) -> list[str]:
        """Returns topics whose configuration may have changed; a broker's configuration is the default of all here."""
        if any(resource_type == RESOURCE_BROKER for resource_type, _ in delta.changed_configs):
            return self._by_topic.topics()
        return [name for resource_type, name in delta.changed_configs if resource_type == RESOURCE_TOPIC]

    def _topic_config_changed(self, topic: str) -> Iterator[None]:
        """Applies changed configuration of a topic, except for a lower ``min.insync.replicas``."""
        if not self._by_topic.of(topic):
            return
        settings = self.topic_settings(topic)
        for key in self._logs.topic_config_steps(topic, settings.log):
            partition = self.partitions.get(key)
            if partition is not None:
                self._config_changed(partition, settings)
            yield
        self.settled.notify()

    def _config_changed(self, partition: Partition, settings: TopicSettings) -> None:
        replica, now_ms = partition.replica, self._clock.monotonic_ms()
        replica.configure(min_insync_replicas=max(replica.min_insync_replicas, settings.min_insync_replicas))
        self._mark_throttled(partition, settings)
        self.log_end_moved(partition, now_ms)  # a changed ``flush.messages`` may settle more records
        if self._following is not None:
            self._following.policy_changed(partition)
        if self.config_listener is not None:
            self.config_listener(partition)
        self.perform(partition, replica.reconsider(now_ms, self.eligible))

    def _lower_minimum(self, topic: str) -> Iterator[None]:
        mine = self._by_topic.of(topic)
        if not mine:
            return
        wanted = self.topic_settings(topic).min_insync_replicas
        for partition in mine:
            if partition.error is _NO_ERROR and partition.replica.min_insync_replicas > wanted:
                partition.replica.configure(min_insync_replicas=wanted)
                self.perform(partition, partition.replica.reconsider(self._clock.monotonic_ms(), self.eligible))
            yield

    def _mark_throttled(self, partition: Partition, settings: TopicSettings) -> None:
        broker_id = self._settings.broker_id
        index = partition.key.partition
        partition.leader_throttled = is_throttled(settings.leader_throttled, index, broker_id)
        partition.follower_throttled = is_throttled(settings.follower_throttled, index, broker_id)

    def set_throttles(self, leader_rate: float, follower_rate: float) -> None:
        """Sets the rates of replication throttles, in bytes per second."""
        now_ms = self._clock.monotonic_ms()
        self.leader_throttle.set_rate(leader_rate, now_ms)
        self.follower_throttle.set_rate(follower_rate, now_ms)

    def holds_back(self, partition: Partition, replica_id: int, now_ms: float) -> bool:
        """Returns whether a follower outside the ISR must wait for records, because the throttle's rate is used up."""
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
        """Applies the change of one partition, except for its files.

        Raises:
            LogStorageError: the log directory failed.
        """
        key = TopicPartition(change.topic_name, change.partition_id)
        present = self.partitions.get(key)
        if present is not None and present.topic_id != change.topic_id:
            if change.after is None:
                return  # an earlier topic of that name, whose replica is gone already
            self._retire(present, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            present = None
        if change.after is None or self._settings.broker_id not in change.after.replicas:
            if present is not None:
                gone = change.after is None
                self._retire(
                    present, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if gone else ErrorCode.NOT_LEADER_OR_FOLLOWER
                )
            self.log_changes.withdraw(key, change.topic_id)
            self._directories.gone(key, change.topic_id)
            if present is None and delta.previous.offset >= 0:  # at a start, what is left is set aside
                self.log_changes.delete_copy(key, change.topic_id)
            return
        if present is not None:
            self.take_over(present, change.after)
            self._directories.reconcile(key)
            return
        was_here = change.before is not None and self._settings.broker_id in change.before.replicas
        at_start = delta.previous.offset < 0  # this process does not know earlier assignments
        self.log_changes.create(key, change.topic_id, is_new=not (at_start or was_here))

    def take_over(self, partition: Partition, image: PartitionImage) -> None:
        """See ``log_changes.ReplicaOwner``."""
        partition.replica.configure(offline=offline_replicas(self.image, image))
        self._apply_state(partition, image)

    def adopt(self, key: TopicPartition, topic_id: uuid.UUID, log: PartitionLog, settings: TopicSettings) -> Partition:
        """See ``log_changes.ReplicaOwner``."""
        replica = Replica(
            self._settings.broker_id,
            high_watermark=log.high_watermark,
            log_end_offset=log.log_end_offset,
            lag_time_max_ms=self._settings.lag_time_max_ms,
            min_insync_replicas=settings.min_insync_replicas,
        )
        partition = Partition(key, topic_id, log, replica, self.traffic.join(key.topic))
        self._mark_throttled(partition, settings)
        self.partitions[key] = partition
        self._by_topic.put(key, partition)
        self.by_raw_name[partition.name_key] = partition
        self.by_raw_id[partition.wire_key] = partition
        if not log.is_settled:
            self._sync(log)  # the previous process may have died before it synced
        return partition

    def _apply_state(self, partition: Partition, image: PartitionImage) -> None:
        assert self._following is not None
        replica = partition.replica
        was_leader = replica.is_leader
        now_ms = self._clock.monotonic_ms()
        if partition in self._dirty:
            self.flush()  # staged batches belong to the epoch that accepted them
            if partition.error is not ErrorCode.NONE:
                return
        log = partition.log
        applied = replica.apply(partition_state(image), log.log_end_offset, now_ms, log.settled_end_offset)
        if applied is Applied.UNCHANGED:
            return
        self.waits.note_change(partition)
        self.may_lag[partition] = None
        if applied is Applied.LEADER:
            self._following.unfollow(partition.key)
            self.alterations.withdraw(partition.key)
            partition.log.begin_leader_epoch(image.leader_epoch)
            self.waits.end(partition)
            self._logger.info(
                "leader", partition=partition.key, leader_epoch=image.leader_epoch, log_end=replica.log_end_offset
            )
        elif applied is Applied.FOLLOWER:
            self.alterations.withdraw(partition.key)
            self.waits.end(partition)
            self._following.follow(partition)
            self._logger.info("follower", partition=partition.key, leader=image.leader, leader_epoch=image.leader_epoch)
        self.perform(partition, replica.reconsider(now_ms, self.eligible))
        if replica.is_leader or was_leader:
            self.waits.complete_produces(partition)
        for listener in self.leadership_listeners:
            listener(partition, replica.is_leader)

    def _retire(self, partition: Partition, error: ErrorCode) -> None:
        """Ends a replica that is no longer assigned here: its waits end with ``error``, and its log will be deleted."""
        if partition in self._dirty:
            self.flush()  # a broker that stops before the deletion cannot seal a log with staged batches
        if partition.error is ErrorCode.NONE:
            self._forget(partition, error)
            self.log_changes.delete(partition.key)

    def _forget(self, partition: Partition, error: ErrorCode) -> None:
        assert self._following is not None
        partition.close(error)
        self._following.unfollow(partition.key)
        self.alterations.withdraw(partition.key)
        if self.partitions.pop(partition.key, None) is not None:
            self.traffic.leave(partition.key.topic)
            self._by_topic.remove(partition.key)
        self.by_raw_name.pop(partition.name_key, None)
        self.by_raw_id.pop(partition.wire_key, None)
        self._dirty.pop(partition, None)
        self.waits.end(partition)
        self.settled.notify()
        for listener in self.leadership_listeners:
            listener(partition, False)

    # --- disks -----------------------------------------------------------------------------------------------------

    def directory_failed(self, error: LogStorageError) -> None:
        """Takes a failed log directory offline with its replicas; other replicas are unaffected."""
        self._logs.fail_directory(error.directory, error)

    def _directory_offline(self, path: str, error: BaseException) -> None:
        """Ends the replicas of an offline log directory; an append, a sync or the housekeeping may have noticed it."""
        self._logger.error("log-directory-failed", directory=path, error=error)
        for partition in [found for found in self.partitions.values() if found.log.parent_directory == path]:
            present = self._logs.get(partition.key)
            if present is not None:  # the replica has just moved; only its old directory failed
                partition.log = present
                continue
            partition.staged_failures += 1
            self._forget(partition, ErrorCode.KAFKA_STORAGE_ERROR)
            self._directories.went_offline(partition.key, partition.topic_id, path)
        self._directories.moves_changed()
        self._on_directory_failure(path)

    # --- reads ------------------------------------------------------------------------------------------

    def leading(self) -> list[Partition]:
        """Returns the partitions that this broker leads, sorted by topic and number."""
        return [
            self.partitions[key] for key in sorted(self.partitions) if self.partitions[key].replica.role is Role.LEADER
        ]

    def low_watermark(self, partition: Partition) -> Offset:
        """Returns the smallest log start offset over the leader and its live followers."""
        return partition.replica.low_watermark(partition.log.log_start_offset, self.eligible)

    def is_offline(self, topic: bytes, index: int, *, by_id: bool) -> bool:
        """Returns whether the replica is in an offline log directory; ``topic`` as on the wire."""
        return self._directories.is_offline(topic, index, by_id=by_id)

    def append_now(self, partition: Partition, records: Buffer, *, acks: int, origin: AppendOrigin) -> AppendInfo:
        """Stages and flushes in one step, for the coordinators.

        Raises:
            KafkaError: the batch was refused or its log directory failed.
        """
        info = self.stage(partition, memoryview(records), acks, origin)
        self.flush()
        if partition.error is not ErrorCode.NONE:
            raise KafkaError(partition.error)
        return info
