"""Finds partitions with two owners in a group, records that a group skipped, and final reads that did not end."""

from __future__ import annotations

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.log.orders import NOTHING, Orders, PartitionOrder
from moldau_jepsen.checkers.log.reach import GAP_MAX
from moldau_jepsen.checkers.witnesses import WitnessKind, WitnessQuery
from moldau_jepsen.history import Kind, Operation, Status, TopicPartition


class OwnershipChecker:
    """Finds partitions that two members own in one generation.

    Generations of a partition that are older than its newest one by a margin are dropped, so memory grows with the
    number of partitions, not with the length of the history. Each group counts its own generations. A static member
    that comes back is the same owner: it goes on in the generation of its former process (KIP-345).
    """

    def __init__(self, findings: Findings) -> None:
        """Starts before the first operation."""
        self._findings = findings
        self._owners: dict[TopicPartition, dict[int, tuple[int, int, str]]] = {}
        """Per partition and generation: the first owner, the operation that shows it, and the owner's instance id."""

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        if operation.kind is not Kind.SUBSCRIBE or operation.generation < 0 or operation.status is not Status.OK:
            return
        for partition in operation.partitions:
            owners = self._owners.setdefault(partition, {})
            other = owners.setdefault(operation.generation, (operation.process, operation.index, operation.group))
            if len(owners) > 2 * _GENERATIONS_KEPT:
                for stale in sorted(owners)[:-_GENERATIONS_KEPT]:
                    del owners[stale]
            if other[0] != operation.process and not (other[2] and other[2] == operation.group):
                self._findings.add(
                    AnomalyKind.DUAL_OWNERSHIP,
                    f"processes {other[0]} and {operation.process} own the partition in generation "
                    f"{operation.generation}",
                    partition=partition,
                    operations=(other[1], operation.index),
                )


_GENERATIONS_KEPT = 1000


class SkipChecker:
    """Finds records that the members of a group together jumped over.

    A rebalance, a crash or a failed poll sets a position back to the committed offset, which is never above the polled
    offsets: so it may repeat records, but never skip one. The offsets that all members polled together have no hole
    below the highest one. Only offsets at which the final read saw a value count as records; markers and aborted
    records leave no holes. Memory is one byte per record, and one more per group that reads it.
    """

    def __init__(self, orders: Orders, findings: Findings) -> None:
        """Starts before the first operation; ``orders`` are those of the whole history."""
        self._orders = orders
        self._findings = findings
        self._records: dict[TopicPartition, bytearray] = {}  # by offset: 1 where the final read saw a value
        self._polled: dict[tuple[str, TopicPartition], bytearray] = {}

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        if not operation.final and not operation.group:
            return
        for poll in operation.polls:
            for partition, pairs in poll.records:
                order = self._orders.of(partition)
                if operation.final:
                    _note(self._records.setdefault(partition, bytearray()), pairs, order)
                else:
                    _note(self._polled.setdefault((operation.group, partition), bytearray()), pairs, order)

    def finish(self) -> None:
        """Compares the polled offsets of each group with the records of the final read."""
        for (group, partition), polled in sorted(self._polled.items()):
            highest = polled.rfind(1)
            records = self._records.get(partition, bytearray())[: max(highest, 0)]
            skipped_bits = int.from_bytes(records, "little") & ~int.from_bytes(polled, "little")
            skipped = skipped_bits.to_bytes(len(records), "little")
            first = skipped.find(1)
            while first >= 0:
                following, before = polled.find(1, first), polled.rfind(1, 0, first)
                order = self._orders.of(partition)
                value = order.value_of(first)
                writer = order.writer_of[value] if value != NOTHING else NOTHING
                what = f"value {value}" if value != NOTHING else "a record that was never sent"
                self._findings.add(
                    AnomalyKind.GROUP_SKIP,
                    f"group {group} polled offset {following} and skipped {what} at offset {first} "
                    f"(records skipped: {skipped.count(1, first, following)})",
                    partition=partition,
                    operations=(writer,) if writer != NOTHING else (),
                    offsets=(first, following),
                    sought=(
                        WitnessQuery(WitnessKind.READ, partition, first),
                        WitnessQuery(WitnessKind.POLLED, partition, following, group=group),
                        *([WitnessQuery(WitnessKind.POLLED, partition, before, group=group)] if before >= 0 else []),
                    ),
                )
                first = skipped.find(1, following)


def _note(seen: bytearray, pairs: tuple[tuple[int, int], ...], order: PartitionOrder) -> None:
    """Marks the offsets of records; one with an impossible offset counts at the offset of its value."""
    for delivered, value in pairs:
        offset = delivered if delivered in order.reach else order.place_of(value)
        missing = offset + 1 - len(seen)
        if offset == NOTHING or missing > GAP_MAX:
            continue  # Its place is not known, or far behind the others in a log that did not begin at 0.
        if missing > 0:
            seen.extend(bytes(max(missing, len(seen) // 4)))
        seen[offset] = 1


def check_progress(operation: Operation, findings: Findings) -> None:
    """Finds an operation of the final phase that did not end OK."""
    if operation.final and operation.status is not Status.OK:
        findings.add(
            AnomalyKind.STUCK,
            f"process {operation.process} could not end its final {operation.kind.value}: {operation.error}",
            operations=(operation.index,),
        )
