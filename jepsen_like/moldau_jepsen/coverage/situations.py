"""Counts rare situations of a run: states of several parts at once, which no single state machine shows."""

from __future__ import annotations

import contextlib
import enum
from typing import TYPE_CHECKING, TypedDict

from moldau.consumer.core.epoch_membership import EpochMembership
from moldau_broker.coordinator.transaction.core.state import TransactionStatus
from moldau_broker.coordinator.transaction.core.transaction_core import TransactionCore
from moldau_broker.log.partition.segmented_log import SegmentedLog
from moldau_broker.remote_log.core.names import LOG
from moldau_broker.replication.fetch_session import FetchSessionCache
from moldau_broker.replication.replica import NO_BROKER, Replica
from moldau_broker.server.cluster_metadata.cache import ListenerHints
from moldau_broker.server.data_path.fetch_query import TOPIC_IDS
from moldau_broker.server.data_path.transaction_checks import TransactionChecks
from moldau_jepsen.coverage.overtaken_syncs import OvertakenSync, sync_watchers
from moldau_jepsen.world.objects import SimulatedStore

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from typing import Unpack

    from moldau.consumer.core.membership import Next
    from moldau.protocol.errors import ErrorCode
    from moldau.protocol.hot import ProduceRequestView
    from moldau.protocol.messages.consumer_group_heartbeat import (
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupHeartbeatResponse,
    )
    from moldau.protocol.messages.end_txn import EndTxnRequest
    from moldau.values import BrokerId
    from moldau_broker.coordinator.runtime.effects import Moment
    from moldau_broker.coordinator.transaction.core.state import Transaction
    from moldau_broker.log.files.segment import LogSegment
    from moldau_broker.log.partition.segmented_log import RemotePast
    from moldau_broker.replication.fetch_session import FetchContext, FetchPartition, PartitionKey
    from moldau_broker.replication.replica import IsrProposal
    from moldau_broker.server.data_path.transaction_checks import Verified
    from moldau_broker.server.replicas.partition import Partition


class Situation(enum.Enum):
    """The situations that are counted."""

    ADMISSION_AT_MINIMUM = "replica proposed for an ISR of min.insync.replicas or less"
    LOG_STARTED_OVER = "log started over at another offset"
    SESSION_SHRANK = "fetch session dropped a partition"
    SESSION_GREW = "fetch session added a partition"
    LATE_END = "EndTxn of a former transaction met an open one"
    FOLLOWER_READ = "consumer sent to a follower (KIP-392)"
    SEQUENCES_WRAPPED = "sequence numbers began again at 0"
    GROUP_DELETED = "group deleted"
    OFFSETS_DELETED = "offsets of a group deleted"
    OFFSETS_RESET = "offsets of a group reset"
    OLD_EPOCH_REFUSED = "commit of an older generation or epoch refused"
    REPLACED_MEMBER = "static member replaced"
    PARTIAL_ERROR = "commit with an error of one partition"
    RESUBSCRIBED = "member subscribed to other topics"
    UNSUBSCRIBED = "member unsubscribed"
    STREAMS_TASK_MOVED = "task of a streams group moved to another member"
    STREAMS_MEMBER_FENCED = "member of a streams group fenced"
    STREAMS_COMMIT_REFUSED = "commit of a streams member refused"
    SHARE_OFFSETS_ALTERED = "offsets of a share group altered"
    SHARE_OFFSETS_DELETED = "offsets of a share group deleted"
    SHARE_GROUP_DELETED = "share group deleted"
    SHARE_CHANGE_REFUSED = "change of a share group refused"
    SHARE_TOPIC_RECREATED = "topic of a share group recreated"
    GIVEN_UP_REQUEST = "request arrived after its client had given the connection up"
    OVERTAKEN_ANSWER = "answer arrived after a later one on another connection"
    FORMER_MEMBERSHIP = "heartbeat answered after its member had lost its epoch"
    ENDED_DURING_QUESTION = "transaction ended in a partition while its leader asked about one"
    CUT_DURING_SYNC = "log cut below the end of its sync under way"
    CLEANED_DURING_SYNC = "segments replaced by the cleaner while the log was synced"
    ROLLED_DURING_SYNC = "segment began while the log was synced"
    DELETED_DURING_SYNC = "oldest segments deleted while the log was synced"
    QUORUM_CUT_DURING_SYNC = "log of the quorum cut below the end of its writes under way"
    SEGMENT_COPIED = "segment copied to the object store"
    REMOTE_SEGMENT_DELETED = "segment deleted from the object store"
    LOCAL_SEGMENT_DELETED = "copied segments deleted from a disk"
    STARTED_BEHIND_STORE = "follower started behind the segments of the object store"
    REMOTE_READ = "records read from the object store"


ADMINISTERED = {
    "delete-group: NONE": Situation.GROUP_DELETED,
    "delete-offsets: NONE": Situation.OFFSETS_DELETED,
    "reset: NONE": Situation.OFFSETS_RESET,
    "commit: ILLEGAL_GENERATION": Situation.OLD_EPOCH_REFUSED,
    "commit: STALE_MEMBER_EPOCH": Situation.OLD_EPOCH_REFUSED,
    "commit: OFFSET_METADATA_TOO_LARGE": Situation.PARTIAL_ERROR,
    "static member replaced": Situation.REPLACED_MEMBER,
    "member subscribes again": Situation.RESUBSCRIBED,
    "member unsubscribes": Situation.UNSUBSCRIBED,
}
"""Situations by what the administered workload counts."""
OF_STREAMS = {
    "moved": Situation.STREAMS_TASK_MOVED,
    "fenced": Situation.STREAMS_MEMBER_FENCED,
    "refused": Situation.STREAMS_COMMIT_REFUSED,
}
"""Situations by what the streams workload counts."""
OF_SHARE_ADMINISTRATION = {
    "alter-offsets: ok": Situation.SHARE_OFFSETS_ALTERED,
    "delete-offsets: ok": Situation.SHARE_OFFSETS_DELETED,
    "delete-group: ok": Situation.SHARE_GROUP_DELETED,
    "alter-offsets: refused": Situation.SHARE_CHANGE_REFUSED,
    "delete-offsets: refused": Situation.SHARE_CHANGE_REFUSED,
    "delete-group: refused": Situation.SHARE_CHANGE_REFUSED,
    "topic recreated": Situation.SHARE_TOPIC_RECREATED,
}
"""Situations by what the administrator of share groups counts."""
OF_TIERED = {
    "copied": Situation.SEGMENT_COPIED,
    "deleted": Situation.REMOTE_SEGMENT_DELETED,
    "local deletion": Situation.LOCAL_SEGMENT_DELETED,
    "started behind": Situation.STARTED_BEHIND_STORE,
}
"""Situations by what the watch of tiered partitions counts."""
OF_SYNCS = {
    OvertakenSync.CUT: Situation.CUT_DURING_SYNC,
    OvertakenSync.REPLACED: Situation.CLEANED_DURING_SYNC,
    OvertakenSync.ROLLED: Situation.ROLLED_DURING_SYNC,
    OvertakenSync.DELETED: Situation.DELETED_DURING_SYNC,
    OvertakenSync.QUORUM_CUT: Situation.QUORUM_CUT_DURING_SYNC,
}
"""Situations by how a sync was overtaken."""


class _SessionRequest(TypedDict):
    privileged: bool
    uses_topic_ids: bool
    now_ms: float
    fresh_id: int


@contextlib.contextmanager
def situations_watched(counts: Counter[Situation]) -> Iterator[None]:
    """Counts the situations of brokers during the block."""
    propose, start_over = Replica._propose, SegmentedLog._replace_all
    open_session, prefer = FetchSessionCache.open, ListenerHints.preferred_read_replica

    def counting_propose(
        self: Replica, isr: tuple[BrokerId, ...], *, joining: BrokerId, eligible: Mapping[BrokerId, int]
    ) -> IsrProposal:
        if joining != NO_BROKER and len(self.state.isr) <= self.effective_min_isr:
            counts[Situation.ADMISSION_AT_MINIMUM] += 1
        return propose(self, isr, joining=joining, eligible=eligible)

    def counting_start_over(
        self: SegmentedLog, fresh: LogSegment, offset: int, log_start_offset: int, behind: RemotePast | None
    ) -> None:
        counts[Situation.LOG_STARTED_OVER] += 1
        start_over(self, fresh, offset, log_start_offset, behind)

    def counting_open(
        self: FetchSessionCache,
        session_id: int,
        epoch: int,
        partitions: Sequence[FetchPartition],
        forgotten: Sequence[PartitionKey],
        **rest: Unpack[_SessionRequest],
    ) -> FetchContext:
        session = self._sessions.get(session_id)
        if session is not None:
            if forgotten:
                counts[Situation.SESSION_SHRANK] += 1
            if any(partition.key not in session.partitions for partition in partitions):
                counts[Situation.SESSION_GREW] += 1
        return open_session(self, session_id, epoch, partitions, forgotten, **rest)

    def counting_prefer(self: ListenerHints, partition: Partition, rack_id: str, fetch_offset: int) -> int:
        replica = prefer(self, partition, rack_id, fetch_offset)
        if replica >= 0:
            counts[Situation.FOLLOWER_READ] += 1
        return replica

    replacements: tuple[tuple[type, str, Callable[..., object]], ...] = (
        (SimulatedStore, "read", _counting_object_read(counts)),
        (Replica, "_propose", counting_propose),
        (SegmentedLog, "_replace_all", counting_start_over),
        (FetchSessionCache, "open", counting_open),
        (TransactionCore, "_end", _counting_end(counts)),
        (ListenerHints, "preferred_read_replica", counting_prefer),
        (EpochMembership, "on_epoch_heartbeat", _counting_heartbeat(counts)),
        (TransactionChecks, "verify", _counting_verify(counts)),
        *sync_watchers(lambda overtaken: counts.update((OF_SYNCS[overtaken],))),
    )
    former = [(owner, name, vars(owner)[name]) for owner, name, _ in replacements]
    try:
        for owner, name, replacement in replacements:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in former:
            setattr(owner, name, original)


def _counting_object_read(counts: Counter[Situation]) -> Callable[..., bytes]:
    """Wraps the reads of the object store, to count those of records."""
    read = SimulatedStore.read

    def counting_read(self: SimulatedStore, machine: str, name: str, position: int, count: int) -> bytes:
        if name.endswith(LOG):
            counts[Situation.REMOTE_READ] += 1
        return read(self, machine, name, position, count)

    return counting_read


def _counting_heartbeat(counts: Counter[Situation]) -> Callable[..., Next]:
    """Wraps the method that takes answers to heartbeats, to count those that the member has not waited for."""
    take = EpochMembership.on_epoch_heartbeat

    def counting_take(
        self: EpochMembership,
        request: ConsumerGroupHeartbeatRequest,
        response: ConsumerGroupHeartbeatResponse,
        losses: int,
    ) -> Next:
        if losses != self.losses:
            counts[Situation.FORMER_MEMBERSHIP] += 1
        return take(self, request, response, losses)

    return counting_take


def _counting_verify(counts: Counter[Situation]) -> Callable[..., Coroutine[object, object, Verified]]:
    """Wraps the questions about transactional batches, to count those during which a transaction ended."""
    verify = TransactionChecks.verify

    async def counting_verify(self: TransactionChecks, request: ProduceRequestView, version: int) -> Verified:
        verified = await verify(self, request, version)
        lookup = self._replicas.by_raw_id if version >= TOPIC_IDS else self._replicas.by_raw_name
        for key, (_, ends_seen) in verified.items():
            partition = lookup.get(key)
            if partition is not None and partition.ends_seen != ends_seen:
                counts[Situation.ENDED_DURING_QUESTION] += 1
        return verified

    return counting_verify


def met_by_late_end(core: TransactionCore, request: EndTxnRequest) -> Transaction | None:
    """Returns the open transaction that a late EndTxn of a former one meets; None if the request is no such one."""
    transaction = core.lifecycle.transactions.get(request.transactional_id)
    if (
        transaction is not None
        and transaction.status is TransactionStatus.ONGOING
        and request.producer_id == transaction.producer_id
        and request.producer_epoch < transaction.producer_epoch
    ):
        return transaction
    return None


def _counting_end(counts: Counter[Situation]) -> Callable[..., ErrorCode | None]:
    """Wraps the method that ends transactions, to count the late ends of earlier transactions."""
    end_transaction = TransactionCore._end

    def counting_end(
        self: TransactionCore,
        request_id: int,
        request: EndTxnRequest,
        version: int,
        fresh_producer_id: int | None,
        moment: Moment,
    ) -> ErrorCode | None:
        if met_by_late_end(self, request) is not None:
            counts[Situation.LATE_END] += 1
        return end_transaction(self, request_id, request, version, fresh_producer_id, moment)

    return counting_end
