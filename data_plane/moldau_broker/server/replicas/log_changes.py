"""Creates the logs that the metadata demand and deletes the others, one at a time.

Creating or deleting one log waits some milliseconds for the disk. A topic with a thousand partitions would thus delay
every later change of leadership. The replica manager therefore applies only the changes in memory, and leaves the files
to this queue: ``step`` does the work for one partition, and the applier lets other tasks run in between.

The order of changes within a partition is kept. A log is created in the state of the newest metadata, so no change of a
partition can precede its creation, and an old log is deleted before another log of the same name is created.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.errors import DescriptorsShortError, LogStorageError
from moldau_broker.server.replicas.replica_directories import ReplicaOfflineError

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable

    from moldau.runtime.ports.environment import Clock
    from moldau.values import BrokerId
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import TopicPartition
    from moldau_broker.server.replicas.collaborators import TopicSettings
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_directories import ReplicaDirectories
    from moldau_quorum.metadata.image import MetadataImage, PartitionImage


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChange:
    """The work that is left for one partition.

    Invariant: at least one of ``deletes`` and ``topic_id`` is set.
    """

    deletes: bool = False
    """Whether the existing log belongs to a replica that has ended; it is deleted first."""
    topic_id: uuid.UUID | None = None
    """Topic of the replica that needs a log; None if no replica does."""
    is_new: bool = False
    """Whether that replica was assigned while this broker ran, so that no directory can hold a log of it."""


class ReplicaOwner(Protocol):
    """Owner of the replicas of these logs (``replica_manager.ReplicaManager``)."""

    @property
    def image(self) -> MetadataImage:
        """The metadata that the replicas applied last."""
        ...

    def topic_settings(self, topic: str) -> TopicSettings:
        """Returns the settings of a topic in ``image``."""
        ...

    def adopt(self, key: TopicPartition, topic_id: uuid.UUID, log: PartitionLog, settings: TopicSettings) -> Partition:
        """Creates the replica of a log."""
        ...

    def take_over(self, partition: Partition, image: PartitionImage) -> None:
        """Brings a replica to its state in ``image``.

        Raises:
            LogStorageError: the log directory failed.
        """
        ...

    def directory_failed(self, error: LogStorageError) -> None:
        """Takes a failed log directory offline."""
        ...


def _nothing() -> None:
    """Does nothing."""


class LogChanges:
    """The queue. Its methods are synchronous and are called from the event loop."""

    def __init__(
        self, clock: Clock, broker_id: BrokerId, logs: LogManager, directories: ReplicaDirectories, owner: ReplicaOwner
    ) -> None:
        """Starts with an empty queue."""
        self._clock = clock
        self._logs = logs
        self._directories = directories
        self._owner = owner
        self.before_deletions: Callable[[], None] = _nothing
        """Called before the logs that a step of the metadata has ended are deleted; returns when the position of those
        metadata is durable."""
        self._ended_since = False  # replicas have ended since it was called
        self._waiting: dict[TopicPartition, LogChange] = {}
        self._postponed: dict[TopicPartition, LogChange] = {}
        """Creations that lacked file descriptors; their replicas count as offline until ``retry_postponed``."""
        self._logger = EventLogger("moldau.broker.replicas", node=broker_id)

    def __len__(self) -> int:
        """Returns the number of partitions that wait."""
        return len(self._waiting)

    def create(self, key: TopicPartition, topic_id: uuid.UUID, *, is_new: bool) -> None:
        """Queues the log of a replica; only the first call for the same topic counts."""
        self._postponed.pop(key, None)
        known = self._waiting.get(key, LogChange())
        if known.topic_id != topic_id:
            self._waiting[key] = LogChange(deletes=known.deletes, topic_id=topic_id, is_new=is_new)

    def delete(self, key: TopicPartition) -> None:
        """Queues the deletion of a log whose replica has ended."""
        assert key not in self._waiting, "a replica that has a log cannot wait for one"
        self._ended_since = True
        self._waiting[key] = LogChange(deletes=True)

    def delete_copy(self, key: TopicPartition, topic_id: uuid.UUID) -> None:
        """Queues the deletion of the copy that the move of a replica has left, if the replica itself went offline."""
        copy = self._logs.future_logs.get(key)
        if copy is not None and copy.topic_id == topic_id and self._logs.get(key) is None and key not in self._waiting:
            self.delete(key)

    def withdraw(self, key: TopicPartition, topic_id: uuid.UUID) -> None:
        """Cancels the creation of a log for a replica that is no longer assigned to this broker."""
        self._postponed.pop(key, None)
        known = self._waiting.get(key)
        if known is None or known.topic_id != topic_id:
            return
        if known.deletes:
            self._waiting[key] = LogChange(deletes=True)
        else:
            del self._waiting[key]

    def retry_postponed(self) -> bool:
        """Queues the postponed creations if file descriptors are free again; called periodically.

        Returns:
            Whether a creation was queued.
        """
        if not self._postponed or not self._logs.has_room:
            return False
        postponed, self._postponed = self._postponed, {}
        for key, change in postponed.items():
            self._waiting.setdefault(key, change)
        return True

    def step(self) -> None:
        """Performs the oldest change; the queue must not be empty."""
        self.perform(next(iter(self._waiting)))

    def perform(self, key: TopicPartition) -> None:
        """Performs the change that waits for one partition, if there is one, before its turn.

        Blocks for the disk. A directory that fails meanwhile goes offline, and its replicas with it.
        """
        change = self._waiting.pop(key, None)
        if change is None:
            return
        if change.deletes and self._ended_since:
            self.before_deletions()
            self._ended_since = False
        try:
            if change.deletes and self._logs.delete(key):
                self._logger.info("replica-deleted", partition=key)
        except LogStorageError as error:
            self._owner.directory_failed(error)
        if change.topic_id is not None:
            image = self._owner.image.topics_by_id[change.topic_id].partitions[key.partition]
            partition = self._create(key, change.topic_id, image, is_new=change.is_new)
            try:
                if partition is not None:
                    self._owner.take_over(partition, image)
            except LogStorageError as error:
                self._owner.directory_failed(error)
            self._directories.reconcile(key)

    def _create(
        self, key: TopicPartition, topic_id: uuid.UUID, image: PartitionImage, *, is_new: bool
    ) -> Partition | None:
        """Returns a new replica with its log; None if its log directory is offline."""
        settings = self._owner.topic_settings(key.topic)
        present = self._logs.claim(key, topic_id)
        try:
            where = self._directories.place(key, topic_id, image, is_new=is_new) if present is None else None
            log = self._logs.get_or_create(key, topic_id=topic_id, now_ms=self._clock.wall_ms(), directory=where)
            self._logs.take_topic_config(key, settings.log)
        except LogStorageError as error:
            self._logger.error("replica-not-created", partition=key, error=error)
            offline = isinstance(error, ReplicaOfflineError | DescriptorsShortError)
            if isinstance(error, DescriptorsShortError):  # its directory works
                self._postponed[key] = LogChange(topic_id=topic_id, is_new=is_new)
            if not offline:
                self._owner.directory_failed(error)
                if is_new and self._logs.online_directories:
                    return self._create(
                        key, topic_id, image, is_new=is_new
                    )  # a new replica has no records: any directory serves
            self._directories.went_offline(key, topic_id, None if offline else error.directory)
            return None
        self._directories.offline.pop(key, None)
        return self._owner.adopt(key, topic_id, log, settings)
