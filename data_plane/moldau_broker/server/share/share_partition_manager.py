"""All share-partitions of a broker: their states, their writes and their timers.

A share-partition comes into being with the first fetch of a group from a partition that this broker leads. Its state is
read from the share coordinator first; fetches wait for that. It ends when leadership of the partition ends, when the
share coordinator fences this leader, or when no record is acquired and no fetch has asked for it for ``IDLE_MS``, or no
member of the group has a session here: its state is then read again when it is needed. While a group has no members,
its offsets can be altered or deleted, and only a write or a read would show that to this leader. Dead letters keep a
state for minutes, so that of a group which has had no members is read again when a member comes.

All methods that are not coroutines change the state without a checkpoint and return. Writes and reads run in tasks of
``run``; a share-partition has at most one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import CorruptRecordError
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import LeaderEpoch, Offset
from moldau_broker.log.errors import LogStorageError, OffsetInRemoteStorageError, OffsetOutOfRangeError, storage_failure
from moldau_broker.server.remote_reading.offsets import RemoteQuestion, answer, search
from moldau_broker.server.replicas.sent_ranges import reporter
from moldau_broker.server.share.core.sessions import PartitionKey, SessionKey, ShareSessions
from moldau_broker.server.share.core.share_partition import InvalidStateError, SharePartition
from moldau_broker.server.share.core.values import beginning
from moldau_broker.server.share.dead_letters.origin import LedSource
from moldau_broker.server.share.dead_letters.writer import DeadLetterWriter
from moldau_broker.server.share.led_partition import Acquisition, LedPartition, Pending, Wanted
from moldau_broker.server.share.persister import GIVE_UP_MS, CoordinatorPersister, ShareKey
from moldau_broker.server.share.settings import CachedSettings
from moldau_quorum.controller.cluster.features import SHARE_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau.values import BrokerId
    from moldau_broker.log.config import LogConfig
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.coordination.transactions import Peers
    from moldau_broker.server.remote_reading.reader import RemoteReader
    from moldau_broker.server.remote_reading.reads import RemoteReads
    from moldau_broker.server.remote_reading.values import RemoteRecords
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager
    from moldau_broker.server.share.core.values import Acknowledged, AcknowledgementBatch, Effects, Persist
    from moldau_broker.server.share.dead_letters.writer import CreatesTopic
    from moldau_broker.server.share.persister import ShareStatePersister
    from moldau_broker.server.share.settings import ShareGroupSettings

IDLE_MS = 300_000.0
_KNOWN_TO_CLIENTS = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
SWEEP_MS = 60_000.0
"""How often idle share-partitions are looked for."""


class SharePartitionManager:
    """The share-partitions of this broker: those partitions that it leads, for each share group that reads them."""

    def __init__(
        self,
        environment: Environment,
        replicas: ReplicaManager,
        persister: ShareStatePersister,
        settings: Callable[[str], ShareGroupSettings],
        dead_letters: DeadLetterWriter,
        *,
        is_enabled: Callable[[], bool],
        sessions_max: int,
        logger: EventLogger,
    ) -> None:
        """``settings`` returns those of a group; ``is_enabled`` whether the cluster's features allow share groups."""
        self.sessions = ShareSessions(sessions_max=sessions_max)
        self.settings = settings
        self.dead_letters = dead_letters
        self.is_enabled = is_enabled
        self._environment = environment
        self._clock = environment.clock
        self._replicas = replicas
        self._on_unreadable = reporter(replicas)
        self.persister = persister
        self._logger = logger
        self._nursery: trio.Nursery | None = None
        self._is_over = False
        self._armed = Signal()
        self._sleeping_until_ms = 0.0
        self._led: dict[PartitionKey, dict[str, LedPartition]] = {}  # by partition, then by group
        self.remote_reader: RemoteReader | None = None
        """The reader of remote segments; None without tiered storage. So are ``remote_reads``."""
        self.remote_reads: RemoteReads | None = None

    # --- life ------------------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reads, writes and expires until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await self._run_timers()
            finally:
                # Connections close after this, and their members release records: nothing would write that any more.
                self._is_over = True
                for led in self._all():
                    self._end(led, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def _run_timers(self) -> None:
        sweep_ms = self._clock.monotonic_ms() + SWEEP_MS
        while True:
            now_ms = self._clock.monotonic_ms()
            for led in self._all():
                if led.core is not None and led.deadline_ms is not None and led.deadline_ms <= now_ms:
                    led.core.limits = self.settings(led.key.group_id).limits
                    self._perform(led, led.core.on_timer(now_ms))
            if now_ms >= sweep_ms:
                self._sweep(now_ms)
                sweep_ms = now_ms + SWEEP_MS
            deadlines = (led.deadline_ms for led in self._all() if led.deadline_ms is not None)
            self._sleeping_until_ms = min(deadlines, default=sweep_ms)
            with trio.move_on_after(max(1.0, min(self._sleeping_until_ms, sweep_ms) - now_ms) / 1000):
                await self._armed.wait()

    def _sweep(self, now_ms: float) -> None:
        """Forgets idle share-partitions; of those that are not stored it repeats the write first."""
        for led in self._all():
            core = led.core
            if core is not None and core.is_behind:
                self._perform(led, core.write_again())
            elif core is not None and led.touched_ms + IDLE_MS <= now_ms and led.is_at_rest and not led.pending:
                self._perform(led, core.close())

    def _all(self) -> list[LedPartition]:
        return [led for groups in self._led.values() for led in groups.values()]

    # --- share-partitions ------------------------------------------------------------------------------------------

    def leadership_changed(self, partition: Partition, leads: bool) -> None:
        """Ends the share-partitions of a partition that another leader, or another leader epoch, now serves."""
        for led in list(self._led.get((partition.topic_id, partition.key.partition), {}).values()):
            if not leads or partition.replica.state.leader_epoch != led.leader_epoch or led.partition is not partition:
                self._end(led, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _end(self, led: LedPartition, error: ErrorCode) -> None:
        if led.core is None:
            led.failure = error
            self._forget(led)
            self._wake(led)
        else:
            self._perform(led, led.core.close(error))

    def open(self, group_id: str, partition: Partition) -> LedPartition:
        """Returns the share-partition of a group; begins to read its state if it is new."""
        key = ShareKey(group_id, partition.topic_id, partition.key.partition)
        led = self.find(group_id, (key.topic_id, key.partition))
        if led is not None and led.was_left and led.core is not None and led.core.is_stored:
            self._perform(led, led.core.close())  # a dead letter kept it, and is taken up when the state is read again
            led = None
        if led is None:
            assert self._nursery is not None, "``run`` has not begun"
            led = LedPartition(key, partition, partition.replica.state.leader_epoch)
            if self._is_over:
                led.failure = ErrorCode.NOT_LEADER_OR_FOLLOWER
                return led
            self._led.setdefault((key.topic_id, key.partition), {})[group_id] = led
            self._nursery.start_soon(self._load, led)
        led.touched_ms = self._clock.monotonic_ms()
        if led.core is not None:
            led.core.limits = self.settings(group_id).limits
            self._perform(led, led.core.move_log_start(partition.log.log_start_offset))
        return led

    def find(self, group_id: str, key: PartitionKey) -> LedPartition | None:
        """Returns the share-partition of a group, if its state is here."""
        return self._led.get(key, {}).get(group_id)

    async def _load(self, led: LedPartition) -> None:
        error = ErrorCode.NONE
        try:
            stored = await self.persister.read(led.key, led.leader_epoch)
            start_offset = stored.start_offset
            if start_offset < 0:
                start_offset = await self._first_offset(led, self.settings(led.key.group_id))
                # The next leader would choose again, behind records that were delivered or written meanwhile.
                await self.persister.write(led.key, beginning(stored.state_epoch, led.leader_epoch, start_offset))
            core = SharePartition.restore(
                self.settings(led.key.group_id).limits,
                stored.batches,
                leader_epoch=led.leader_epoch,
                state_epoch=stored.state_epoch,
                start_offset=start_offset,
                log_start_offset=led.partition.log.log_start_offset,
            )
        except KafkaError as refused:
            error = _for_clients(refused.code)
            self._logger.warning("share-state-unreadable", key=led.key.coordinator_key, error=refused)
        except (InvalidStateError, CorruptRecordError) as broken:
            error = ErrorCode.UNKNOWN_SERVER_ERROR
            self._logger.error("share-state-invalid", key=led.key.coordinator_key, error=broken)
        except OSError as failed:
            error = ErrorCode.KAFKA_STORAGE_ERROR
            self._storage_failed(led.partition, failed)
        if led.failure is not ErrorCode.NONE:
            return  # leadership ended meanwhile
        if error is not ErrorCode.NONE:
            self._end(led, error)
            return
        led.core = core
        self._perform(led, core.unfinished_dead_letters(stored.batches))
        self._wake(led)
        self._leave(led)

    async def _first_offset(self, led: LedPartition, settings: ShareGroupSettings) -> int:
        """Returns where a group begins that has read nothing yet (``share.auto.offset.reset``).

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER: leadership ended, or its predecessor's commits are still unknown;
                KAFKA_STORAGE_ERROR: the object store did not answer.
            OSError: a file could not be read.
            CorruptRecordError: a batch is damaged.
        """
        partition = led.partition
        if settings.reset == "earliest":
            return partition.log.log_start_offset
        await self._wait_visible(led)
        duration_ms = settings.reset_duration_ms
        if duration_ms is None:
            return partition.replica.high_watermark
        timestamp_ms = max(0, int(self._clock.wall_ms()) - duration_ms)
        steps, remote = search(partition, timestamp_ms), None
        while True:
            try:
                step = steps.send(remote)
            except StopIteration as end:
                found = end.value
                high_watermark = partition.replica.high_watermark
                return high_watermark if found is None or found.offset < 0 else min(found.offset, high_watermark)
            remote = None
            if step is None:
                await trio.lowlevel.checkpoint()
            elif isinstance(step, RemoteQuestion):
                if self.remote_reader is None:
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "Tiered storage is disabled on this broker.")
                remote = await answer(self.remote_reader, step)
            else:
                await self._environment.disk.offload(step.run)

    async def _wait_visible(self, led: LedPartition) -> None:
        """Waits until a new leader knows all that its predecessor had committed, as ListOffsets does (KIP-207)."""
        waits, end_offset = self._replicas.waits, led.partition.replica.epoch_start_offset
        with trio.move_on_after(GIVE_UP_MS / 1000):
            await waits.wait_committed(led.partition, LeaderEpoch(led.leader_epoch), Offset(end_offset))
            return
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The leader does not know yet what is committed.")

    def _forget(self, led: LedPartition) -> None:
        groups = self._led.get((led.key.topic_id, led.key.partition), {})
        if groups.get(led.key.group_id) is led:
            del groups[led.key.group_id]
            if not groups:
                del self._led[led.key.topic_id, led.key.partition]

    # --- delivery --------------------------------------------------------------------------------------------------

    def acquire(
        self, led: LedPartition, wanted: Wanted, remote: RemoteRecords | None = None
    ) -> Acquisition | ErrorCode | None:
        """Acquires records of an open share-partition with one read; None if there are none, or an error.

        An acquisition without records says that others may follow those which were read: it is worth another call.
        ``remote`` are the records at ``LedPartition.remote_offset``.
        """
        if led.error is not ErrorCode.NONE:
            return led.error
        if led.core is None:
            return None
        try:
            settings, now_ms = self.settings(led.key.group_id), self._clock.monotonic_ms()
            found = led.acquire(settings, wanted, now_ms, self._on_unreadable, remote)
        except OffsetInRemoteStorageError:
            return None  # its records left this disk a moment ago; the next call reads them from the object store
        except OffsetOutOfRangeError:
            return None  # an unclean election has cut the log: nothing is there until it grows
        except LogStorageError as error:
            self._replicas.directory_failed(error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        except OSError as error:
            self._storage_failed(led.partition, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        except CorruptRecordError as error:
            self._logger.warning("log-unreadable", partition=led.partition.key, error=error)
            return ErrorCode.CORRUPT_MESSAGE
        except KafkaError as error:  # damaged records; other partitions of the request are unaffected
            self._logger.warning("log-unreadable", partition=led.partition.key, error=error)
            return error.code
        self._arm(led)
        if found is not None:
            led.partition.traffic.bytes_out += len(found.records)
        return found

    def acknowledge(
        self, led: LedPartition, member: str, batches: Sequence[AcknowledgementBatch]
    ) -> Pending | tuple[ErrorCode, str | None]:
        """Takes acknowledgements of a member; returns the write to wait for, or the outcome and its message."""
        if led.core is None:
            return ErrorCode.INVALID_RECORD_STATE, "The member holds no records of the partition."
        led.touched_ms = now_ms = self._clock.monotonic_ms()
        answer = led.core.acknowledge(member, batches, now_ms=now_ms)
        pending = self._begun(led, answer)
        return (answer.error, answer.message) if pending is None else pending

    def release(self, key: SessionKey) -> list[Pending]:
        """Releases everything that a member holds; returns the writes."""
        group_id, member = key
        found: list[Pending] = []
        for led in self._all():
            if led.key.group_id == group_id and led.core is not None:
                led.core.limits = self.settings(group_id).limits
                pending = self._begun(led, led.core.release(member))
                if pending is not None:
                    found.append(pending)
                self._leave(led)
        return found

    def _leave(self, led: LedPartition) -> None:
        """Forgets a share-partition without members, unless something of it is not stored yet."""
        core = led.core
        if core is not None and not self.sessions.has_any_of(led.key.group_id):
            led.was_left = True
            if led.is_at_rest:
                self._perform(led, core.close())

    def connection_closed(self, owner: Hashable) -> None:
        """Ends the sessions of a connection, and releases the records of their members."""
        for session in self.sessions.owned_by(owner):
            self.sessions.remove(session.key)
            self.release(session.key)

    def _begun(self, led: LedPartition, answer: Acknowledged) -> Pending | None:
        pending = None
        if answer.token is not None:
            pending = led.pending[answer.token] = Pending()
        self._perform(led, answer.effects)
        return pending

    # --- effects ---------------------------------------------------------------------------------------------------

    def _perform(self, led: LedPartition, effects: Effects) -> None:
        for settled in effects.settled:
            pending = led.pending.pop(settled.token, None)
            if pending is not None:
                pending.settle(_for_clients(settled.error))
        core = led.core
        if core is None or core.closed:
            self._forget(led)
        else:
            assert self._nursery is not None
            if effects.persist is not None:
                self._nursery.start_soon(self._write, led, core, effects.persist)
            if effects.dead_letters:
                now_ms = self._clock.monotonic_ms()
                led.dead_letters.extend((letters, now_ms) for letters in effects.dead_letters)
                if len(led.dead_letters) == len(effects.dead_letters):
                    self._nursery.start_soon(self._write_dead_letters, led, core)
        self._arm(led)
        if effects.acquirable:
            self._wake(led)

    def _arm(self, led: LedPartition) -> None:
        """Wakes the timer if this share-partition's next lock expires before the others."""
        led.deadline_ms = None if led.core is None else led.core.next_deadline_ms()
        if led.deadline_ms is not None and led.deadline_ms < self._sleeping_until_ms:
            self._sleeping_until_ms = led.deadline_ms
            self._armed.notify()

    def _wake(self, led: LedPartition) -> None:
        self._replicas.waits.wake_fetches(led.watch)

    async def _write(self, led: LedPartition, core: SharePartition, write: Persist) -> None:
        error = ErrorCode.NONE
        try:
            await self.persister.write(led.key, write)
        except KafkaError as refused:
            error = refused.code
            self._logger.warning("share-state-not-written", key=led.key.coordinator_key, error=refused)
        self._perform(led, core.persisted(error))
        self._leave(led)

    async def _write_dead_letters(self, led: LedPartition, core: SharePartition) -> None:
        """Writes what ``led.dead_letters`` holds, which is at most the records in flight."""
        origin = LedSource(led, core, self.settings, self.remote_reader)
        while led.dead_letters:
            letters, since_ms = led.dead_letters[0]
            if not await self.dead_letters.write(origin, letters, since_ms):
                return  # the next leader continues
            await trio.lowlevel.checkpoint()  # those that are given up wait for nothing, and there may be thousands
            led.dead_letters.popleft()
            self._perform(led, core.dead_letters_written(letters.first, letters.last))
        self._leave(led)

    def _storage_failed(self, partition: Partition, error: OSError) -> None:
        directory = partition.log.parent_directory
        self._replicas.directory_failed(storage_failure(directory, f"reading {partition.key}", error))

    def statistics(self) -> tuple[int, int, int]:
        """Returns the numbers of sessions, of share-partitions, and of records in flight."""
        every = self._all()
        flying = sum(led.core.end_offset - led.core.start_offset for led in every if led.core is not None)
        return len(self.sessions), len(every), flying


def _for_clients(error: ErrorCode) -> ErrorCode:
    """Returns the code of Kafka's broker for an answer of the share coordinator."""
    if error is ErrorCode.FENCED_LEADER_EPOCH:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return error if error in _KNOWN_TO_CLIENTS else ErrorCode.UNKNOWN_SERVER_ERROR


def share_partition_manager(
    environment: Environment,
    broker_id: BrokerId,
    metadata: MetadataCache,
    replicas: ReplicaManager,
    peers: Peers,
    create_topic: CreatesTopic,
    config: Callable[[], Config],
    *,
    sessions_max: int,
) -> SharePartitionManager:
    """Builds the manager of a broker's share-partitions; ``config`` returns the broker's configuration."""

    def is_enabled() -> bool:
        return metadata.image.features.get(SHARE_VERSION, 0) >= 1

    clock, random = environment.clock, environment.random
    logger = EventLogger("moldau.broker.share-delivery", node=broker_id)

    def log_config(topic: str) -> LogConfig:
        return replicas.topic_settings(topic).log

    return SharePartitionManager(
        environment,
        replicas,
        CoordinatorPersister(broker_id, peers, clock, random),
        CachedSettings(config, lambda: metadata.image),
        DeadLetterWriter(clock, random, metadata, peers, create_topic, log_config, logger),
        is_enabled=is_enabled,
        sessions_max=sessions_max,
        logger=logger,
    )
