"""Notes how far each follower has copied the log, which its fetches report to the leader.

A fetch offset counts as replicated only if the follower's log is a prefix of the leader's (KIP-595). A fetch that
repeats the last one of a follower with all records only confirms it (``Replica.confirmed``). The partition is at rest
then, and later fetches confirm all partitions at rest together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.values import BrokerId, Offset
from moldau_broker.log.errors import OffsetOutOfRangeError
from moldau_broker.replication.replica import Role
from moldau_broker.server.data_path.fetch_query import TOPIC_IDS, local_replica

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_broker.replication.fetch_session import FetchPartition, FetchSession
    from moldau_broker.server.data_path.fetch_query import FetchQuery
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager


class FollowerPositions:
    """Notes the positions of followers in the partitions that this broker leads."""

    __slots__ = ("_replicas",)

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def unconfirmed(
        self, query: FetchQuery, session: FetchSession, due: Sequence[FetchPartition], now_ms: float
    ) -> Sequence[FetchPartition]:
        """Returns the partitions of a session to look at; the follower and this leader agree on all others.

        Only those that are ``due`` can be among them, unless the follower has registered again.
        """
        if session.replica_epoch != query.replica_epoch:
            session.replica_epoch = query.replica_epoch
            session.look_at_all()
            due = session.due_partitions()
        session.confirmed_ms = now_ms
        if not due:
            return ()
        local = self._replicas.by_raw_id if query.version >= TOPIC_IDS else self._replicas.by_raw_name
        follower, follower_epoch = BrokerId(query.replica_id), query.replica_epoch
        unconfirmed = []
        for wanted in due:
            partition = local.get((wanted.topic, wanted.partition))
            # Runs once after each change of a partition, so it makes few calls.
            if (
                partition is None
                or partition.error is not ErrorCode.NONE
                or wanted.sent_high_watermark
                != wanted.fetch_offset  # ``confirmed`` compares it with the high watermark
                or wanted.sent_log_start_offset != partition.log.storage.log_start_offset
                or wanted.agreed_epoch != wanted.current_leader_epoch
                or not partition.replica.confirmed(
                    follower,
                    follower_epoch,
                    wanted.fetch_offset,
                    wanted.log_start_offset,
                    wanted.current_leader_epoch,
                    now_ms,
                )
            ):
                unconfirmed.append(wanted)
            else:
                session.at_rest(wanted, partition.replica.follower(follower))
        return unconfirmed

    def changed(self, query: FetchQuery, session: FetchSession) -> list[FetchPartition]:
        """Returns the partitions for which a follower's session may get an answer."""
        local = self._replicas.by_raw_id if query.version >= TOPIC_IDS else self._replicas.by_raw_name
        return [
            wanted
            for wanted in session.due_partitions()
            if (partition := local.get((wanted.topic, wanted.partition))) is None
            or wanted.agreed_epoch != wanted.current_leader_epoch
            or not _unchanged(partition, wanted)
        ]

    def note(
        self, query: FetchQuery, wanted_partitions: Sequence[FetchPartition], now_ms: float
    ) -> tuple[dict[int, ErrorCode], bool]:
        """Notes the follower's fetch offsets.

        Returns the errors by index in the request, and whether the follower has all records of all these partitions.
        """
        replicas = self._replicas
        errors: dict[int, ErrorCode] = {}
        has_all = True
        for index, wanted in enumerate(wanted_partitions):
            partition = local_replica(self._replicas, query, wanted)
            if (
                partition is None
                or partition.check_access(wanted.current_leader_epoch, leader_only=True) is not ErrorCode.NONE
                or wanted.fetch_offset < partition.log.storage.log_start_offset
                or not self.agrees(partition, wanted)
            ):
                has_all = False
                continue  # ``plan`` reports it
            effects = partition.replica.followed(
                BrokerId(query.replica_id),
                query.replica_epoch,
                Offset(wanted.fetch_offset),
                Offset(wanted.log_start_offset),
                now_ms,
                replicas.eligible,
            )
            if effects.error is not ErrorCode.NONE:
                errors[index] = effects.error
                has_all = False
            else:
                wanted.agreed_epoch = partition.replica.state.leader_epoch
                if wanted.fetch_offset != partition.replica.log_end_offset:
                    has_all = False
                    replicas.may_lag[partition] = None
                replicas.perform(partition, effects)
        replicas.waits.follower_noted()
        return errors, has_all

    def agrees(self, partition: Partition, wanted: FetchPartition) -> bool:
        """Returns whether the follower's log is a prefix of ours; only then its fetch offset counts as replicated."""
        try:
            return self.diverging(partition, wanted) is None
        except OffsetOutOfRangeError:
            return False

    def diverging(self, partition: Partition, wanted: FetchPartition) -> tuple[int, int] | None:
        """Returns epoch and end offset up to which two logs may agree, if they differ below the fetch offset (KIP-595).

        Raises:
            OffsetOutOfRangeError: this leader does not know the epoch.
        """
        last_epoch = wanted.last_fetched_epoch
        log = partition.log
        if last_epoch < 0:
            return None
        if last_epoch == log.epochs.latest_epoch and wanted.fetch_offset <= log.storage.log_end_offset:
            return None
        end = log.end_offset_for_epoch(last_epoch)
        if end.end_offset < 0 or end.leader_epoch < 0:
            raise OffsetOutOfRangeError(wanted.fetch_offset, log.log_start_offset, log.log_end_offset)
        if end.leader_epoch < last_epoch or end.end_offset < wanted.fetch_offset:
            return end.leader_epoch, end.end_offset
        return None

    def has_nothing_new(self, query: FetchQuery, wanted: FetchPartition) -> bool:
        """Returns whether a follower has all records, the high watermark and the log start offset of a partition."""
        partition = local_replica(self._replicas, query, wanted)
        return (
            partition is not None
            and _unchanged(partition, wanted)
            # If an idle partition's leader epoch has no record, the follower's last fetched epoch stays lower.
            and (wanted.last_fetched_epoch == partition.log.epochs.latest_epoch or self.agrees(partition, wanted))
        )


def _unchanged(partition: Partition, wanted: FetchPartition) -> bool:
    """Returns whether a follower has all records, high watermark and log start offset of a partition that is led here.

    Its log may differ from this one below its fetch offset.
    """
    replica, log = partition.replica, partition.log
    return (
        wanted.fetch_offset == replica.log_end_offset
        and wanted.sent_high_watermark == replica.high_watermark
        and wanted.sent_log_start_offset == log.log_start_offset
        and wanted.current_leader_epoch == replica.state.leader_epoch
        and replica.role is Role.LEADER
        and partition.error is ErrorCode.NONE
    )
