"""Bugs in transactions and in groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator import group_core
from moldau_broker.coordinator.transaction_shell import TransactionShard
from moldau_broker.log.partition_log import PartitionLog
from moldau_broker.log.producer_state import ProducerStateManager
from moldau_broker.server.replica_manager import ReplicaManager

if TYPE_CHECKING:
    from moldau_broker.server.partition import Partition
    from moldau_jepsen.simulation.planted import Patch


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


def aborted_transactions_untold() -> list[Patch]:
    """Readers are not told which transactions were aborted."""
    return [(PartitionLog, "aborted_transactions", lambda self, result, upper_bound_offset: [])]


def marker_written_twice() -> list[Patch]:
    """A marker comes again when the producer's next transaction has begun, and nobody looks at its epoch."""
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
    """Whoever commits offsets may: no member, no generation is asked for."""
    return [(group_core, "check_commit", lambda membership, request, moment: ErrorCode.NONE)]
