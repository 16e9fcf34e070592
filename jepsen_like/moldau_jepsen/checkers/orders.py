"""The order of each partition, as all clients together have seen it.

One pass over the history gathers, per partition, which value lies at which offset, from two sources: every poll, and
every send whose offset the client was told and that must have committed. Values are dense integers per partition
(workloads number their records from 0), so both directions are flat arrays of 4 bytes per record, and ten million
operations fit into a few hundred megabytes.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.checkers.anomalies import AnomalyKind, Figures, Findings
from moldau_jepsen.checkers.witnesses import How, Sought
from moldau_jepsen.history import HistoryError, Kind, Operation, Send, Status, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NOTHING = -1
NUMBER_MAX = 1 << 31
"""Largest offset and value of a history: beyond it the arrays would not fit into memory."""

AHEAD_MAX = 1 << 16
"""How far above all that was sent so far a value may be polled before the history tells of its send. Clients have far
fewer records under way; what lies higher waits for the end of the history, in a place of its own."""

EARLY_MAX = 10_000
"""Records per partition that were polled before the history tells of their sends, and whose first readers are kept."""

_ACKNOWLEDGED = 1
_FAILED = 2  # certainly not written, or aborted
_POLLED = 4
_FINAL = 8  # polled in the final phase
_OPEN = 16  # sent in a transaction whose outcome its client was not told


def require_offset(offset: int) -> None:
    """Raises ``HistoryError`` if it is none."""
    if not 0 <= offset < NUMBER_MAX:
        raise HistoryError(f"offset {offset}: offsets are numbers from 0 to {NUMBER_MAX - 1}")


class PartitionOrder:
    """What is known of one partition. Arrays grow to the largest offset or value."""

    __slots__ = (
        "digest_of",
        "early",
        "highest_polled",
        "highest_sent",
        "is_read_at_end",
        "marks",
        "offset_of",
        "value_at",
        "writer_of",
    )

    def __init__(self) -> None:
        """Nothing is known."""
        self.value_at = array("i")
        self.offset_of = array("i")
        self.writer_of = array("q")
        """Index of the operation that sent a value, ``NOTHING`` where none is known."""
        self.digest_of = array("I")
        """Of the record as it was sent, 0 where it is not known."""
        self.marks = bytearray()
        """Per value: what happened to it."""
        self.highest_polled = NOTHING
        self.highest_sent = NOTHING
        """Of the values that the history has told of so far."""
        self.is_read_at_end = False
        """Whether the final phase polled it."""
        self.early: dict[int, int] = {}
        """Of values that were polled and whose sends are yet to come, the operation that polled first: the first
        ``EARLY_MAX``. Few at a time, for an outcome is told soon after a record can be polled."""

    def _reach_value(self, value: int) -> None:
        if not 0 <= value < NUMBER_MAX:
            raise HistoryError(f"value {value}: values are numbers from 0 to {NUMBER_MAX - 1}")
        missing = value + 1 - len(self.marks)
        if missing > 0:
            missing = max(missing, len(self.marks) // 4)
            self.marks.extend(bytes(missing))
            self.offset_of.extend([NOTHING] * missing)
            self.writer_of.extend([NOTHING] * missing)
            self.digest_of.frombytes(bytes(self.digest_of.itemsize * missing))

    def _reach_offset(self, offset: int) -> None:
        require_offset(offset)
        missing = offset + 1 - len(self.value_at)
        if missing > 0:
            self.value_at.extend([NOTHING] * max(missing, len(self.value_at) // 4))

    def mark(self, value: int, mark: int) -> None:
        """Adds a mark to a value."""
        self._reach_value(value)
        self.marks[value] |= mark

    def sent(self, value: int, operation: int, digest: int) -> None:
        """Notes who sent a value, and the digest of the record."""
        self._reach_value(value)
        self.highest_sent = max(self.highest_sent, value)
        self.writer_of[value] = operation
        self.digest_of[value] = digest

    def values_end(self) -> int:
        """Polled values below this have a place at once. Without sends they are taken to be dense all the same."""
        known = self.highest_sent + 1 if self.highest_sent != NOTHING else len(self.marks)
        return min(known + AHEAD_MAX, NUMBER_MAX)

    def place(self, value: int, offset: int) -> tuple[int, int]:
        """Notes that ``value`` lies at ``offset``; returns the other value and the other offset, or ``NOTHING``."""
        self._reach_value(value)
        self._reach_offset(offset)
        other_value, other_offset = self.value_at[offset], self.offset_of[value]
        if other_value == NOTHING:
            self.value_at[offset] = value
        if other_offset == NOTHING:
            self.offset_of[value] = offset
        return (
            other_value if other_value != value else NOTHING,
            other_offset if other_offset != offset else NOTHING,
        )

    def value_of(self, offset: int) -> int:
        """The value at an offset, ``NOTHING`` if none is known."""
        return self.value_at[offset] if offset < len(self.value_at) else NOTHING

    def first_between(self, low: int, high: int) -> int:
        """The first known offset strictly between two others, ``NOTHING`` if there is none."""
        for offset in range(low + 1, min(high, len(self.value_at))):
            if self.value_at[offset] != NOTHING:
                return offset
        return NOTHING

    def offsets(self) -> Iterator[int]:
        """Known offsets, ascending."""
        return (offset for offset, value in enumerate(self.value_at) if value != NOTHING)

    def with_marks(self, wanted: int, unwanted: int) -> Iterator[int]:
        """Values that carry all of the wanted marks and none of the unwanted."""
        return (v for v, marks in enumerate(self.marks) if marks & wanted == wanted and not marks & unwanted)


class OpenSend(NamedTuple):
    """A send of a transaction whose outcome its client was not told."""

    partition: TopicPartition
    value: int
    was_read: bool
    """The final phase polled it."""
    reader: int
    """The operation that did, ``NOTHING`` if it is not known."""
    was_polled: bool
    """Somebody polled it, at any time."""
    poller: int
    """The first operation that did, ``NOTHING`` if it is not known."""
    offset: int
    """Where it landed, ``NOTHING`` if its client was not told."""
    passed_by: int
    """The highest offset of the partition that was polled, ``NOTHING`` if that is not known to lie behind it."""


class Orders:
    """The orders of all partitions, and the findings that placing records gave."""

    def __init__(self, history: Iterable[Operation], findings: Findings) -> None:
        """Reads the history once."""
        self.partitions: dict[TopicPartition, PartitionOrder] = {}
        self._findings = findings
        self._disputes: dict[tuple[TopicPartition, int, int], None] = {}
        self._count = dict.fromkeys(Status, 0)
        self._operations = 0
        self._polled = 0
        self._open: dict[int, list[tuple[TopicPartition, int, int]]] = {}
        """Sends of the transactions whose outcome their client was not told, with their offsets, by operation."""
        self._open_read: dict[tuple[TopicPartition, int], int] = {}  # of them: the operation that read it at the end
        self._open_polled: dict[tuple[TopicPartition, int], int] = {}  # of them: the first operation that polled it
        self.is_stuck = False
        """Whether a part of the final phase did not come to its end: what nobody polled is not missing then."""
        self._ahead: dict[tuple[TopicPartition, int, int, bool], int] = {}
        """Offsets and values far above what was sent, whether the final phase polled them, and who did first."""
        self.strays: dict[tuple[TopicPartition, int, int], None] = {}
        """Offsets and values that were polled and that no workload has given out; they have no place."""
        for operation in history:
            self._add(operation)
        self._settle_ahead()

    def of(self, partition: TopicPartition) -> PartitionOrder:
        """The order of a partition, empty at first."""
        order = self.partitions.get(partition)
        if order is None:
            order = self.partitions[partition] = PartitionOrder()
        return order

    def _add(self, operation: Operation) -> None:
        self._operations += 1
        if operation.final and operation.status is not Status.OK:
            self.is_stuck = True
        for part in operation.operations:
            if isinstance(part, Send):
                self._add_send(operation, part)
                continue
            for partition, pairs in part.records:
                order = self.of(partition)
                self._polled += len(pairs)
                order.is_read_at_end |= operation.final
                end = order.values_end()
                for offset, value in pairs:
                    if 0 <= value < end or 0 <= value < (end := order.values_end()):
                        self._add_polled(operation.index, partition, order, offset, value, final=operation.final)
                    else:
                        require_offset(offset)
                        self._ahead.setdefault((partition, offset, value, operation.final), operation.index)

    def _add_polled(
        self, index: int, partition: TopicPartition, order: PartitionOrder, offset: int, value: int, *, final: bool
    ) -> None:
        self._place(index, partition, order, value, offset)
        marks = order.marks[value]
        if final and marks & _OPEN:
            self._open_read.setdefault((partition, value), index)
        if not marks & _POLLED:
            self._note_first_poll(index, partition, value)
        order.mark(value, _POLLED | _FINAL if final else _POLLED)
        order.highest_polled = max(order.highest_polled, offset)

    def _settle_ahead(self) -> None:
        """Now that all sends are known: what was polled ahead of them was sent after all, or by nobody."""
        for (partition, offset, value, final), index in self._ahead.items():
            order = self.of(partition)
            if 0 <= value <= order.highest_sent:
                self._add_polled(index, partition, order, offset, value, final=final)
            elif (partition, offset, value) not in self.strays:
                self.strays[partition, offset, value] = None
                self._findings.add(
                    AnomalyKind.ALTERED,
                    f"the record at offset {offset}, with value {value}, was sent by nobody",
                    partition=partition,
                    operations=(index,),
                    offsets=(offset,),
                )
        self._ahead.clear()

    def _note_first_poll(self, index: int, partition: TopicPartition, value: int) -> None:
        """Who polled a record first is kept where it may prove that a transaction was committed."""
        order = self.of(partition)
        if order.marks[value] & _OPEN:
            self._open_polled[partition, value] = index
        elif order.writer_of[value] == NOTHING and len(order.early) < EARLY_MAX:
            order.early[value] = index

    def _add_send(self, operation: Operation, send: Send) -> None:
        order = self.of(send.partition)
        order.sent(send.value, operation.index, send.digest)
        self._count[operation.status] += 1
        poller = order.early.pop(send.value, NOTHING)
        if operation.kind is Kind.TRANSACTION and operation.status is Status.INFO and not operation.aborted:
            offset = NOTHING if send.offset is None else send.offset
            self._open.setdefault(operation.index, []).append((send.partition, send.value, offset))
            order.mark(send.value, _OPEN)
            if poller != NOTHING:
                self._open_polled[send.partition, send.value] = poller
        if operation.status is Status.FAIL or (operation.kind is Kind.TRANSACTION and operation.aborted):
            order.mark(send.value, _FAILED)
        elif operation.status is Status.OK:
            order.mark(send.value, _ACKNOWLEDGED)
            if send.offset is not None:
                self._place(operation.index, send.partition, order, send.value, send.offset)

    def _place(self, index: int, partition: TopicPartition, order: PartitionOrder, value: int, offset: int) -> None:
        other_value, other_offset = order.place(value, offset)
        if other_value != NOTHING and self._is_new((partition, offset, value)):
            self._findings.add(
                AnomalyKind.INCONSISTENT_OFFSETS,
                f"offset {offset} holds value {other_value} and value {value}",
                partition=partition,
                operations=(index,),
                offsets=(offset,),
                sought=(
                    Sought(How.TOLD, partition, offset, other_value),
                    Sought(How.SENT, partition, value=other_value),
                    Sought(How.SENT, partition, value=value),
                ),
            )
        if other_offset != NOTHING and self._is_new((partition, -1 - offset, value)):
            self._findings.add(
                AnomalyKind.DUPLICATE,
                f"value {value} lies at offset {other_offset} and at offset {offset}",
                partition=partition,
                operations=(index,),
                offsets=(other_offset, offset),
                sought=(
                    Sought(How.TOLD, partition, other_offset, value),
                    Sought(How.SENT, partition, value=value),
                ),
            )

    def _is_new(self, dispute: tuple[TopicPartition, int, int]) -> bool:
        """The same wrong record is read many times; it counts once."""
        if dispute in self._disputes:
            return False
        self._disputes[dispute] = None
        return True

    def open_transactions(self) -> Iterator[tuple[int, list[OpenSend]]]:
        """Transactions whose outcome their client was not told, by operation, with what was seen of their sends."""
        for index, sends in sorted(self._open.items()):
            yield index, [self._open_send(*send) for send in sends]

    def _open_send(self, partition: TopicPartition, value: int, offset: int) -> OpenSend:
        order = self.of(partition)
        marks, place = order.marks[value], (partition, value)
        return OpenSend(
            partition,
            value,
            was_read=bool(marks & _FINAL),
            reader=self._open_read.get(place, NOTHING),
            was_polled=bool(marks & _POLLED),
            poller=self._open_polled.get(place, NOTHING),
            offset=offset,
            passed_by=order.highest_polled if NOTHING < offset <= order.highest_polled else NOTHING,
        )

    def topics_read(self) -> frozenset[str]:
        """Topics that the final phase has polled something of: all of it, unless it is stuck."""
        return frozenset(partition.topic for partition, order in self.partitions.items() if order.is_read_at_end)

    def figures(self) -> Figures:
        """Sizes of what was read."""
        return Figures(
            operations=self._operations,
            sends_acknowledged=self._count[Status.OK],
            sends_failed=self._count[Status.FAIL],
            sends_unknown=self._count[Status.INFO],
            records_polled=self._polled,
            values_seen=sum(sum(1 for _ in order.with_marks(_POLLED, 0)) for order in self.partitions.values()),
            partitions=len(self.partitions),
        )


def check_writes(orders: Orders, findings: Findings) -> None:
    """Finds lost and unseen writes, and reads of writes that failed or were aborted.

    What a poll returns lies below a high watermark: it is committed whatever its sender was told, so it must be in the
    final read like what was acknowledged. Only a reader that did not ask for committed data sees records of
    transactions that are aborted later. Nothing is lost or unseen if the final phase is stuck, which is told.
    """
    for partition, order in sorted(orders.partitions.items()):
        for value in () if orders.is_stuck else order.with_marks(_ACKNOWLEDGED, _POLLED):
            offset = order.offset_of[value]
            writer = (order.writer_of[value],)
            if offset != NOTHING and offset <= order.highest_polled:
                findings.add(
                    AnomalyKind.LOST_WRITE,
                    f"value {value}, acknowledged at offset {offset}, was polled by nobody, "
                    f"though offset {order.highest_polled} was",
                    partition=partition,
                    operations=writer,
                    offsets=(offset, order.highest_polled),
                    sought=(Sought(How.POLLED, partition, order.highest_polled),),
                )
        if findings.options.final_phase and not orders.is_stuck:
            _check_unseen(partition, order, findings)
        for value in order.with_marks(_FAILED | _POLLED, 0):
            findings.add(
                AnomalyKind.G1A,
                f"value {value}, whose write failed or was aborted, was polled at offset {order.offset_of[value]}",
                partition=partition,
                operations=(order.writer_of[value],),
                offsets=(order.offset_of[value],),
                sought=(Sought(How.POLLED, partition, value=value),),
            )


def _check_unseen(partition: TopicPartition, order: PartitionOrder, findings: Findings) -> None:
    excused = _FAILED if findings.options.read_committed else _FAILED | _OPEN  # polls of the former are G1a
    for value in order.with_marks(0, _FINAL):
        marks, writer, offset = order.marks[value], order.writer_of[value], order.offset_of[value]
        if marks & _ACKNOWLEDGED:
            text = f"value {value} was acknowledged and is not in the final read"
        elif marks & _POLLED and not marks & excused:
            text = f"value {value} was polled at offset {offset} and is not in the final read"
        else:
            continue
        findings.add(
            AnomalyKind.UNSEEN,
            text,
            partition=partition,
            operations=(writer,) if writer != NOTHING else (),
            offsets=(offset,) if offset != NOTHING else (),
            sought=(Sought(How.PASSED, partition, offset), Sought(How.POLLED, partition, value=value)),
        )
