"""One partition that has a replica on this broker: its log and its state machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.replica import NO_BROKER, PartitionState, Replica
from moldau_broker.server.metrics.traffic import Traffic
from moldau_quorum.metadata.internal_topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    import uuid
    from collections.abc import Generator

    from moldau.values import BrokerId, LeaderEpoch, Offset
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.partition.timestamps import Step
    from moldau_broker.log.values import TimestampOffset, TopicPartition
    from moldau_quorum.metadata.image import MetadataImage, PartitionImage

_NO_ERROR = ErrorCode.NONE


class WatchKey:
    """A key on which delayed fetches wait; compared by identity."""

    __slots__ = ("partition",)

    def __init__(self, partition: Partition) -> None:
        self.partition = partition


class Partition:
    """A local replica, which ends with ``close``: remaining users of it then find ``error`` set.

    Invariant: after ``ReplicaManager.log_end_moved``, ``replica.log_end_offset`` and ``replica.settled_end_offset`` are
    those of the log.
    """

    __slots__ = (
        "committed",
        "end",
        "error",
        "follower_throttled",
        "is_internal",
        "key",
        "leader_throttled",
        "log",
        "marker_count",
        "name_key",
        "replica",
        "staged_failures",
        "topic_id",
        "traffic",
        "wire_key",
    )

    def __init__(
        self,
        key: TopicPartition,
        topic_id: uuid.UUID,
        log: PartitionLog,
        replica: Replica,
        traffic: Traffic | None = None,
    ) -> None:
        """``traffic`` holds the counts of the topic; None: the partition counts for itself."""
        self.key = key
        self.topic_id = topic_id
        self.wire_key = (topic_id.bytes, key.partition)
        """How messages name it. A ``UUID`` makes its bytes and its hash in Python code, each time."""
        self.name_key = (key.topic.encode(), key.partition)
        """How messages of old versions name it."""
        self.is_internal = key.topic in INTERNAL_TOPICS
        """Whether only coordinators write it."""
        self.log = log
        self.replica = replica
        self.error = ErrorCode.NONE  # why the replica is gone
        self.end = WatchKey(self)  # followers' fetches wait for the log end
        self.committed = WatchKey(self)  # consumers' fetches wait for the high watermark
        self.leader_throttled = self.follower_throttled = False  # by configuration, while outside the ISR
        self.marker_count = 0  # transaction markers that were appended here as leader
        self.traffic = Traffic() if traffic is None else traffic
        self.staged_failures = 0  # how often staged batches were lost to a disk error

    def close(self, error: ErrorCode) -> None:
        """Ends the replica, which was deleted or whose disk failed."""
        assert error is not ErrorCode.NONE
        self.error = error

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition and has its log."""
        return self.error is _NO_ERROR and self.replica.is_leader

    @property
    def ends_seen(self) -> tuple[int, int]:
        """Leader epoch, and the number of transaction markers that this broker appended as leader.

        While both are unchanged, the log has received no marker. In another epoch another leader may have written some.
        """
        return self.replica.state.leader_epoch, self.marker_count

    def check_access(self, current_leader_epoch: LeaderEpoch, *, leader_only: bool) -> ErrorCode:
        """Returns NONE if the replica may serve a request of that leader epoch, else the error."""
        if self.error is not _NO_ERROR:
            return self.error
        return self.replica.check_access(current_leader_epoch, leader_only=leader_only)

    def acknowledgement(self, leader_epoch: LeaderEpoch, required_offset: Offset) -> ErrorCode | None:
        """See ``Replica.acknowledgement``."""
        if self.error is not _NO_ERROR:
            return self.error
        return self.replica.acknowledgement(leader_epoch, required_offset)

    def settlement(self, leader_epoch: LeaderEpoch, required_offset: Offset) -> ErrorCode | None:
        """See ``Replica.settlement``."""
        if self.error is not ErrorCode.NONE:
            return self.error
        return self.replica.settlement(leader_epoch, required_offset)

    def search_timestamp(self, timestamp_ms: int) -> Generator[Step, None, TimestampOffset | None]:
        """Searches the log as ``PartitionLog.search_timestamp`` does, and begins again if it has moved meanwhile.

        The former log of a move between directories has lost its segments.
        """
        while True:
            log = self.log
            found = yield from log.search_timestamp(timestamp_ms)
            if found is not None or log is self.log:
                return found


def partition_state(image: PartitionImage) -> PartitionState:
    """Returns the part of a partition's committed metadata that its replica uses."""
    return PartitionState(
        leader=image.leader if image.leader >= 0 else NO_BROKER,
        leader_epoch=image.leader_epoch,
        partition_epoch=image.partition_epoch,
        replicas=image.replicas,
        isr=image.isr,
        adding_replicas=image.adding_replicas,
        removing_replicas=image.removing_replicas,
        recovering=image.leader_recovery_state != 0,
    )


def offline_replicas(image: MetadataImage, partition: PartitionImage) -> tuple[BrokerId, ...]:
    """Returns the replicas whose log directory is offline."""
    return tuple(replica for replica in partition.replicas if not image.replica_online(partition, replica))
