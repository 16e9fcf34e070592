"""Bugs in transactions and in groups."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.group.core import group_core
from moldau_broker.coordinator.group.core.group import Group
from moldau_broker.coordinator.group.core.group_core import GroupCore
from moldau_broker.coordinator.group.core.offsets.committed import OffsetStore
from moldau_broker.coordinator.group.core.rebalance import Rebalancer
from moldau_broker.coordinator.transaction.coordinator import TransactionShard
from moldau_broker.coordinator.transaction.core.lifecycle import TransactionLifecycle
from moldau_broker.coordinator.transaction.core.state import Transaction, TransactionStatus
from moldau_broker.coordinator.transaction.core.transaction_core import TransactionCore
from moldau_broker.log.partition.partition_log import PartitionLog
from moldau_broker.log.producers.producer_state import ProducerStateManager
from moldau_broker.server.coordination.transactions import TransactionMarkers
from moldau_broker.server.replicas.replica_manager import ReplicaManager

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
    from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue
    from moldau.values import BrokerId
    from moldau_broker.coordinator.group.core.member_memory import MemberMemory
    from moldau_broker.coordinator.runtime.effects import Effect, Marker, Moment
    from moldau_broker.server.replicas.partition import Partition
    from moldau_jepsen.planted_bug import Patch


def last_stable_offset_ignored() -> list[Patch]:
    """Readers of committed data get all that is replicated."""
    return [(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark))]


def newest_transaction_holds_back() -> list[Patch]:
    """Of several transactions that are open in a partition, only the one begun last is hidden."""

    def first_unstable_offset(self: ProducerStateManager) -> int | None:
        if not self._ongoing and not self._completed:
            return None
        newest = max(self._ongoing.values(), default=1 << 63)
        return min(newest, min(self._completed, default=1 << 63))

    return [(ProducerStateManager, "first_unstable_offset", first_unstable_offset)]


def aborted_transactions_unreported() -> list[Patch]:
    """Answers to readers do not list the aborted transactions."""
    return [(PartitionLog, "aborted_transactions", lambda self, result, upper_bound_offset: [])]


def marker_written_twice() -> list[Patch]:
    """A marker comes again when the producer's next transaction has begun, and its epoch is not checked."""
    append_marker, flush = ReplicaManager.append_marker, ReplicaManager.flush
    again: dict[tuple[int, int], tuple[Partition, dict[str, int]]] = {}

    def append(self: ReplicaManager, partition: Partition, **marker: int) -> int:
        again[id(partition), marker["producer_id"]] = (partition, marker)
        return append_marker(self, partition, **marker)  # type: ignore[arg-type]

    def flush_and_repeat(self: ReplicaManager) -> None:
        dirty = list(self._dirty)
        flush(self)
        for key, (partition, marker) in list(again.items()):
            open_since = partition.log.producer_state._ongoing.get(marker["producer_id"])
            if partition in dirty and partition.is_leader and open_since is not None:
                del again[key]
                append_marker(self, partition, **marker)  # type: ignore[arg-type]

    return [
        (ReplicaManager, "append_marker", append),
        (ReplicaManager, "flush", flush_and_repeat),
        (ProducerStateManager, "check_marker", lambda self, header, marker: None),
    ]


def markers_not_repeated() -> list[Patch]:
    """A marker that could not be written is taken for written."""
    return [(TransactionShard, "_is_done", lambda self, partition, code: True)]


def offset_commit_unfenced() -> list[Patch]:
    """Any sender may commit offsets: member and generation are not checked."""
    return [(group_core, "check_commit", lambda membership, request, moment: ErrorCode.NONE)]


def generation_not_loaded() -> list[Patch]:
    """A coordinator that loads a group begins to count its generations again."""
    original = Group.load.__func__  # type: ignore[attr-defined]

    def load(cls: type[Group], group_id: str, value: GroupMetadataValue, memory: MemberMemory) -> Group:
        group: Group = original(cls, group_id, value, memory)
        group.generation = 0
        return group

    return [(Group, "load", classmethod(load))]


def generation_kept() -> list[Patch]:
    """A rebalance that admits no new member begins no new generation, though it moves partitions."""
    original = Rebalancer._complete_join

    def complete_join(self: Rebalancer, group: Group, moment: Moment) -> None:
        joined = [member for member in group.members.values() if member.join_request is not None]
        if joined and not any(member.is_new for member in joined):
            group.generation -= 1
        original(self, group, moment)

    return [(Rebalancer, "_complete_join", complete_join)]


def transactional_offsets_not_loaded() -> list[Patch]:
    """A coordinator that loads its log drops the offsets that came with transactions."""
    replay_marker, start = GroupCore.replay_marker, GroupCore.start
    started: dict[int, GroupCore] = {}

    def begin(self: GroupCore, moment: Moment) -> list[Effect]:
        started[id(self)] = self
        return start(self, moment)

    def marker(self: GroupCore, producer_id: int, commit: bool) -> None:
        replay_marker(self, producer_id, commit and id(self) in started)

    return [(GroupCore, "start", begin), (GroupCore, "replay_marker", marker)]


def aborted_offsets_count() -> list[Patch]:
    """The offsets of a transaction take effect when it ends, however it ends."""
    original = OffsetStore.replay_marker
    return [(OffsetStore, "replay_marker", lambda self, producer_id, commit: original(self, producer_id, True))]


def new_producer_epoch_zero() -> list[Patch]:
    """A new producer with a known transactional id begins with epoch 0, so that its predecessor is not fenced."""
    original = TransactionCore._next_producer

    def next_producer(
        self: TransactionCore,
        transaction: Transaction,
        request: InitProducerIdRequest,
        fresh_producer_id: int | None,
        moment: Moment,
    ) -> Transaction | None:
        after = original(self, transaction, request, fresh_producer_id, moment)
        return None if after is None else dataclasses.replace(after, producer_epoch=0)

    return [(TransactionCore, "_next_producer", next_producer)]


def decision_forgotten() -> list[Patch]:
    """A coordinator that loads a decided transaction takes it for an open one."""
    original = TransactionLifecycle.start

    def start(self: TransactionLifecycle, moment: Moment) -> list[Effect]:
        for name, transaction in self.transactions.items():
            if transaction.status.is_preparing:
                self.transactions[name] = dataclasses.replace(transaction, status=TransactionStatus.ONGOING)
        return original(self, moment)

    return [(TransactionLifecycle, "start", start)]


def others_hear_of_no_commit() -> list[Patch]:
    """The request that has other brokers write markers does not say that the transaction was committed."""
    original = TransactionMarkers._write_there

    async def write_there(
        self: TransactionMarkers,
        leader: BrokerId,
        marker: Marker,
        keys: Sequence[tuple[str, int]],
        codes: dict[tuple[str, int], ErrorCode],
    ) -> None:
        await original(self, leader, dataclasses.replace(marker, commit=False), keys, codes)

    return [(TransactionMarkers, "_write_there", write_there)]
