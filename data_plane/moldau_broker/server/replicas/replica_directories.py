"""The log directories of a broker and its replicas in them: placement, reports to the controller, failures.

Three parts know a directory: the log manager (its files), the metadata (its replicas), and the session with the
controller (whether it works). This module keeps them consistent, by the rules of
``replication.directory_assignment``.

When a directory fails, its replicas end at once and are kept as offline, so that clients get KAFKA_STORAGE_ERROR and
not a stale leader. The next heartbeat reports the directory to the controller, which moves their leadership. The broker
continues while one directory works, unless it cannot inform the controller (``log.dir.failure.timeout.ms``), or the
cluster's ``metadata.version`` does not record directories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)
from moldau.runtime.config import cordoned_log_dirs
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.values import TopicPartition
from moldau_broker.replication.directory_assignment import (
    AssignmentQueue,
    Placement,
    may_be_needed,
    place_of_lost,
    place_replica,
)
from moldau_quorum.broker_side.controller_client import ControllerUnavailableError
from moldau_quorum.broker_side.session import DirectoryReport

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable

    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Clock
    from moldau.values import BrokerId
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.replication.directory_assignment import AssignmentKey
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_quorum.broker_side.controller_client import ControllerClient
    from moldau_quorum.metadata.image import MetadataImage, PartitionImage

BACKOFF_MS: Final = 100.0
REQUEST_TIMEOUT_MS: Final = 30_000.0


class ReplicaOfflineError(LogStorageError):
    """A replica has no log here and must not start a new one: its log may be in a failed directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineReplica:
    """A replica of this broker that has no usable log."""

    topic_id: uuid.UUID
    directory: uuid.UUID | None
    """Id of the failed directory that holds it; None if that is not known."""


class ReplicaDirectories:
    """Places replicas and reports their directories to the controller; the reports need ``run``."""

    def __init__(
        self,
        clock: Clock,
        broker_id: BrokerId,
        controller: ControllerClient,
        broker_epoch: Callable[[], int],
        logs: LogManager,
        metadata: MetadataCache,
    ) -> None:
        self._clock = clock
        self._broker_id = broker_id
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._logs = logs
        self._metadata = metadata
        self._queue = AssignmentQueue(backoff_ms=BACKOFF_MS)
        self._work = Signal()
        self._moving: dict[TopicPartition, uuid.UUID] = {}  # moves that the controller must record before they complete
        self._cordons_known = False
        self._logger = EventLogger("moldau.broker.directories", node=broker_id)
        self.offline: dict[TopicPartition, OfflineReplica] = {}
        """Replicas of this broker without a usable log."""
        self.gives_up = trio.Event()
        """Set when the broker begins to end because of its log directories."""

    # --- directories -----------------------------------------------------------------------------------------------

    def online_ids(self) -> tuple[uuid.UUID, ...]:
        """Returns the ids of working directories."""
        return tuple(d.directory_id for d in self._logs.directories if d.online and d.directory_id is not None)

    def offline_ids(self) -> tuple[uuid.UUID, ...]:
        """Returns the known ids of failed directories, which heartbeats report."""
        return tuple(d.directory_id for d in self._logs.directories if not d.online and d.directory_id is not None)

    def follow_cordons(self, config: Config, image: MetadataImage) -> bool:
        """Applies ``cordoned.log.dirs``; returns whether the cordoned directories changed.

        The key has no effect while the controllers cannot record cordons.
        """
        self._cordons_known = image.records_cordons
        cordoned = cordoned_log_dirs(config) if image.records_cordons else ()
        if not self._logs.cordons.follow(cordoned):
            return False
        self._logger.info("log-directories-cordoned", paths=",".join(cordoned))
        return True

    def report(self) -> DirectoryReport:
        """Returns what heartbeats report.

        The cordoned directories are unknown before ``follow_cordons``, and while the controllers cannot record them.
        """
        cordons = self._logs.cordons
        cordoned = (d.directory_id for d in self._logs.directories if d.path in cordons and d.directory_id is not None)
        return DirectoryReport(offline=self.offline_ids(), cordoned=tuple(cordoned) if self._cordons_known else None)

    def is_recorded(self, image: MetadataImage) -> bool:
        """Returns whether the metadata name the cordoned directories of this broker as it reports them."""
        broker, cordoned = image.brokers.get(self._broker_id), self.report().cordoned
        return broker is None or cordoned is None or set(broker.cordoned_log_dirs) == set(cordoned)

    def _id_of(self, path: str) -> uuid.UUID | None:
        return next((d.directory_id for d in self._logs.directories if d.path == path), None)

    # --- replicas --------------------------------------------------------------------------------------------------

    def place(self, key: TopicPartition, topic_id: uuid.UUID, partition: PartitionImage, *, is_new: bool) -> str | None:
        """Returns the directory for a replica that has no log; None leaves the choice to the log manager.

        If only the future log of a move is left, that becomes the replica's log, and its directory is returned.

        Raises:
            ReplicaOfflineError: the replica's log may be in a failed directory.
            LogStorageError: the directory failed.
        """
        copy = self._logs.future_logs.get(key)
        if copy is not None and copy.topic_id != topic_id:
            copy = None
        assigned = partition.directory(self._broker_id)
        placement = place_replica(
            assigned,
            online=self.online_ids(),
            any_offline=bool(self._logs.offline_directories),
            is_new=is_new,
            needed=may_be_needed(partition, self._broker_id),
            copied=None if copy is None else self._id_of(copy.parent_directory),
        )
        if placement is Placement.COPY and copy is not None:
            return self._logs.promote_future(key).parent_directory
        if placement is Placement.OFFLINE:
            known = ",".join(self._logs.offline_directories) or str(assigned)
            raise ReplicaOfflineError(known, f"{key} has no log in a working directory, and cannot start a new one")
        if placement is Placement.ANY:
            return None
        return next(d.path for d in self._logs.directories if d.directory_id == assigned)

    def went_offline(self, key: TopicPartition, topic_id: uuid.UUID, path: str | None = None) -> None:
        """Records that a replica has no usable log; ``path`` is the failed directory that holds it, if known."""
        self._moving.pop(key, None)
        self.offline[key] = OfflineReplica(topic_id=topic_id, directory=None if path is None else self._id_of(path))
        self.reconcile(key)

    def is_offline(self, topic: str | bytes, index: int, *, by_id: bool = False) -> bool:
        """Returns whether the broker has the replica but cannot use it; ``topic`` as on the wire, or a name."""
        if not self.offline:
            return False
        if by_id:
            assert isinstance(topic, bytes)
            return any(
                key.partition == index and replica.topic_id.bytes == topic for key, replica in self.offline.items()
            )
        name = topic.decode() if isinstance(topic, bytes) else topic
        return TopicPartition(name, index) in self.offline

    def gone(self, key: TopicPartition, topic_id: uuid.UUID) -> None:
        """Forgets a replica that is no longer assigned to this broker."""
        self._queue.withdraw((topic_id, key.partition))
        self._moving.pop(key, None)
        known = self.offline.get(key)
        if known is not None and known.topic_id == topic_id:
            del self.offline[key]

    def reconcile(self, key: TopicPartition) -> None:
        """Compares a replica's directory with the recorded one, and reports a difference to the controller."""
        image = self._metadata.image
        topic = image.topics_by_name.get(key.topic)
        partition = None if topic is None else topic.partitions.get(key.partition)
        if topic is None or partition is None or self._broker_id not in partition.replicas:
            return
        log = self._logs.get(key)
        if log is not None and log.topic_id not in (None, topic.topic_id):
            return  # of the former topic of this name: it is deleted before the replica of this one begins
        assigned = partition.directory(self._broker_id)
        actual = self._location(key, assigned)
        assignment = (topic.topic_id, key.partition)
        if not image.records_directories or actual is None or actual == assigned:
            self._queue.withdraw(assignment)
            return
        self._queue.submit(assignment, actual)
        self._work.notify()

    def _location(self, key: TopicPartition, assigned: uuid.UUID) -> uuid.UUID | None:
        log = self._logs.get(key)
        if log is not None:
            future = self._logs.future_logs.get(key)
            if future is None:
                self._moving.pop(key, None)  # the move ended with its copy
            elif self._id_of(future.parent_directory) == assigned:
                self._moving[key] = assigned  # the controller had recorded this move when the broker stopped
            return self._moving.get(key) or self._id_of(log.parent_directory)
        offline = self.offline.get(key)
        if offline is None:
            return None
        return offline.directory or place_of_lost(assigned, self.online_ids())

    # --- moves -----------------------------------------------------------------------------------------------------

    def may_take_over(self, key: TopicPartition) -> bool:
        """Returns whether a future log that has caught up may replace the current one.

        The controller must record the new directory before. Otherwise, when that directory fails, the controller would
        count the replica as online, and after a crash the replica could start a new log in the old directory. The logs
        of a replica that has ended stay where they are until they are deleted.
        """
        image = self._metadata.image
        topic = image.topics_by_name.get(key.topic)
        partition = None if topic is None else topic.partitions.get(key.partition)
        future = self._logs.future_logs[key]
        if topic is None or partition is None or future.topic_id != topic.topic_id:
            return False
        if not image.records_directories:
            return True
        target = self._id_of(future.parent_directory)
        assert target is not None, "a directory with logs has an id"
        if partition.directory(self._broker_id) == target:
            return True
        self._moving[key] = target
        self.reconcile(key)
        return False

    def move_changed(self, key: TopicPartition) -> None:
        """Takes over a move that has ended or has a new target."""
        future = self._logs.future_logs.get(key)
        target = self._moving.get(key)
        if target is not None and (future is None or self._id_of(future.parent_directory) != target):
            del self._moving[key]
        self.reconcile(key)

    def moves_changed(self) -> None:
        """Ends the moves into a directory that has failed."""
        for key in list(self._moving):
            self.move_changed(key)

    # --- reports to the controller ------------------------------------------------------------------------------------

    def reconcile_all(self) -> None:
        """Reconciles all replicas after a change of ``metadata.version``, which may record directories or not."""
        for key in [*self._logs.logs, *self.offline]:
            self.reconcile(key)

    async def run(self) -> None:
        """Sends reports to the controller until cancelled."""
        while True:
            now_ms = self._clock.monotonic_ms()
            assignments = self._queue.next_request(now_ms)
            if assignments:
                await self._send(assignments)
                continue
            deadline_ms = self._queue.next_deadline_ms()
            delay_ms = float("inf") if deadline_ms is None else max(1.0, deadline_ms - now_ms)
            with trio.move_on_after(delay_ms / 1000):
                await self._work.wait()

    async def _send(self, assignments: dict[AssignmentKey, uuid.UUID]) -> None:
        by_directory: dict[uuid.UUID, dict[uuid.UUID, list[PartitionData]]] = {}
        for (topic_id, index), directory in assignments.items():
            topics = by_directory.setdefault(directory, {})
            topics.setdefault(topic_id, []).append(PartitionData(partition_index=index))
        request = AssignReplicasToDirsRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            directories=[
                DirectoryData(
                    id=directory,
                    topics=[TopicData(topic_id=topic_id, partitions=parts) for topic_id, parts in topics.items()],
                )
                for directory, topics in by_directory.items()
            ],
        )
        try:
            response = await self._controller.request(
                request, AssignReplicasToDirsResponse, timeout_ms=REQUEST_TIMEOUT_MS
            )
        except ControllerUnavailableError as error:
            self._logger.warning("assignment-not-answered", error=error)
            self._queue.failed(self._clock.monotonic_ms())
            return
        if response.error_code != ErrorCode.NONE:
            self._logger.warning("assignment-refused", error=ErrorCode.of(response.error_code).name)
            self._queue.failed(self._clock.monotonic_ms())
            return
        errors = {
            (topic.topic_id, partition.partition_index): ErrorCode.of(partition.error_code)
            for directory in response.directories
            for topic in directory.topics
            for partition in topic.partitions
        }
        self._logger.info("replicas-assigned", partitions=len(assignments))
        self._queue.answered(errors, self._clock.monotonic_ms())
