"""Reconstructs the order of each partition from the observations of all clients.

One pass over the history collects, per partition, which value has which offset, from two sources: every poll, and every
send with a known offset that must have committed. Values are dense integers per partition (workloads number their
records from 0), so both directions are flat arrays of 4 and 8 bytes per record, and ten million operations fit into a
few hundred megabytes.

An offset that the partition cannot have (``Reach``) is an anomaly of its own. The value was seen, but has no place, so
that no other checker judges what follows from the wrong number.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.checkers.anomalies import AnomalyKind, Figures, Findings
from moldau_jepsen.checkers.log.reach import GAP_MAX, Reach
from moldau_jepsen.checkers.witnesses import WitnessKind, WitnessQuery
from moldau_jepsen.history import HistoryError, Kind, Operation, Send, Status, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NOTHING = -1
NUMBER_MAX = 1 << 31
"""Exclusive bound of the values of a history: beyond it the arrays would not fit into memory."""

AHEAD_MAX = 1 << 16
"""How far a polled value may be above all values sent so far in the history. Clients have far fewer records in flight;
higher values are kept apart until the end of the history."""

EARLY_MAX = 10_000
"""Bound per partition on the kept first readers of records that were polled before the history has their sends."""

MISPLACED_SHOWN_MAX = 10
"""Bound on the offsets that one finding about impossible ones names."""

_ACKNOWLEDGED = 1
_FAILED = 2  # certainly not written, or aborted
_POLLED = 4
_FINAL = 8  # polled in the final phase
_OPEN = 16  # sent in a transaction of unknown outcome


class PartitionOrder:
    """The known records of one partition. Arrays grow to the largest value, and to the largest offset near others."""

    __slots__ = (
        "_far",
        "_far_offsets",
        "digest_of",
        "early",
        "highest_polled",
        "highest_sent",
        "is_read_at_end",
        "marks",
        "offset_of",
        "reach",
        "value_at",
        "writer_of",
    )

    def __init__(self, gap: int = GAP_MAX) -> None:
        """Starts without records; ``gap`` as of ``Reach``."""
        self.reach = Reach(gap)
        """The offsets that the history has so far."""
        self.value_at = array("i")
        self.offset_of = array("q")
        self._far: dict[int, int] = {}
        """Values at offsets far behind ``value_at``: of the records of a log that does not begin at 0."""
        self._far_offsets: list[int] = []
        """The keys of ``_far``, ascending; empty if it has changed since."""
        self.writer_of = array("q")
        """Per value the index of the operation that sent it, ``NOTHING`` if unknown."""
        self.digest_of = array("I")
        """Per value the digest of the sent record, 0 if unknown."""
        self.marks = bytearray()
        """Per value its marks."""
        self.highest_polled = NOTHING
        self.highest_sent = NOTHING
        """Of the values that the history has so far."""
        self.is_read_at_end = False
        """Whether the final phase polled it."""
        self.early: dict[int, int] = {}
        """First polling operations of values whose sends follow later in the history, ``EARLY_MAX`` at most. There are
        few at a time, because a send ends soon after its record can be polled."""

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

    def _put(self, offset: int, value: int) -> None:
        missing = offset + 1 - len(self.value_at)
        if missing > GAP_MAX:
            self._far[offset] = value
            self._far_offsets = []
            return
        if missing > 0:
            self.value_at.extend([NOTHING] * max(missing, len(self.value_at) // 4))
            for far in [each for each in self._far if each < len(self.value_at)]:
                self.value_at[far] = self._far.pop(far)
                self._far_offsets = []
        self.value_at[offset] = value

    def mark(self, value: int, mark: int) -> None:
        """Adds a mark to a value."""
        self._reach_value(value)
        self.marks[value] |= mark

    def sent(self, value: int, operation: int, digest: int) -> None:
        """Notes the operation that sent a value, and the digest of the record."""
        self._reach_value(value)
        self.highest_sent = max(self.highest_sent, value)
        self.writer_of[value] = operation
        self.digest_of[value] = digest

    def values_end(self) -> int:
        """Returns the exclusive bound of polled values that are placed at once; they count as dense without sends."""
        known = self.highest_sent + 1 if self.highest_sent != NOTHING else len(self.marks)
        return min(known + AHEAD_MAX, NUMBER_MAX)

    def place(self, value: int, offset: int) -> tuple[int, int]:
        """Notes that ``value`` has ``offset``; returns a conflicting value and offset, or ``NOTHING``.

        ``reach`` must have admitted the offset.
        """
        self._reach_value(value)
        other_value, other_offset = self.value_of(offset), self.offset_of[value]
        if other_value == NOTHING:
            self._put(offset, value)
        if other_offset == NOTHING:
            self.offset_of[value] = offset
        return (
            other_value if other_value != value else NOTHING,
            other_offset if other_offset != offset else NOTHING,
        )

    def value_of(self, offset: int) -> int:
        """Returns the value at an offset, ``NOTHING`` if none is known."""
        return self.value_at[offset] if offset < len(self.value_at) else self._far.get(offset, NOTHING)

    def place_of(self, value: int) -> int:
        """Returns the offset of a value, ``NOTHING`` if none is known."""
        return self.offset_of[value] if 0 <= value < len(self.offset_of) else NOTHING

    def _ascending(self) -> list[int]:
        if not self._far_offsets and self._far:
            self._far_offsets = sorted(self._far)
        return self._far_offsets

    def first_between(self, low: int, high: int) -> int:
        """Returns the first known offset strictly between two others, ``NOTHING`` if there is none."""
        for offset in range(low + 1, min(high, len(self.value_at))):
            if self.value_at[offset] != NOTHING:
                return offset
        far = self._ascending()
        following = bisect_right(far, low)
        return far[following] if following < len(far) and far[following] < high else NOTHING

    def offsets(self) -> Iterator[int]:
        """Yields the known offsets, ascending."""
        yield from (offset for offset, value in enumerate(self.value_at) if value != NOTHING)
        yield from self._ascending()

    def with_marks(self, wanted: int, unwanted: int) -> Iterator[int]:
        """Yields the values that have all of the wanted marks and none of the unwanted."""
        return (v for v, marks in enumerate(self.marks) if marks & wanted == wanted and not marks & unwanted)


class OpenSend(NamedTuple):
    """A send of a transaction of unknown outcome."""

    partition: TopicPartition
    value: int
    was_read: bool
    """Whether the final phase polled it."""
    reader: int
    """The operation that did, ``NOTHING`` if it is not known."""
    was_polled: bool
    """Whether any client polled it, at any time."""
    poller: int
    """The first operation that did, ``NOTHING`` if it is not known."""
    offset: int
    """Its offset, ``NOTHING`` if the client did not learn it."""
    passed_by: int
    """Highest polled offset of the partition, ``NOTHING`` if it is not known to be above the send's offset."""


class Orders:
    """The orders of all partitions; building them finds conflicts of offsets and values."""

    def __init__(self, history: Iterable[Operation], findings: Findings) -> None:
        """Reads the history once."""
        self.partitions: dict[TopicPartition, PartitionOrder] = {}
        self._findings = findings
        self._disputes: dict[tuple[TopicPartition, int, int], None] = {}
        self._count = dict.fromkeys(Status, 0)
        self._operations = 0
        self._polled = 0
        self._open: dict[int, list[tuple[TopicPartition, int, int]]] = {}
        """Sends of transactions of unknown outcome, with their offsets, by operation."""
        self._open_read: dict[tuple[TopicPartition, int], int] = {}  # the final read
        self._open_polled: dict[tuple[TopicPartition, int], int] = {}  # the first poll
        self.is_stuck = False
        """Whether a part of the final phase did not end: then a record that was not polled is not missing."""
        self._ahead: dict[tuple[TopicPartition, int, int, bool], int] = {}
        """Offsets and values far above the sent ones, whether the final phase polled them, and their first readers."""
        self.strays: dict[tuple[TopicPartition, int, int], None] = {}
        """Polled offsets and values that no workload assigned; they are not placed."""
        self._misplaced: dict[tuple[TopicPartition, int, int], None] = {}
        """Impossible offsets and their values, as far as they were reported."""
        for operation in history:
            self._add(operation)
        self._settle_ahead()

    def of(self, partition: TopicPartition) -> PartitionOrder:
        """Returns the order of a partition; it is empty at first."""
        order = self.partitions.get(partition)
        if order is None:
            order = self.partitions[partition] = PartitionOrder(self._findings.options.offset_gap_max)
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
                admits = order.reach.admits
                wrong: list[tuple[int, int]] = []
                for offset, value in pairs:
                    if not admits(offset):
                        wrong.append((offset, value))
                    elif 0 <= value < end or 0 <= value < (end := order.values_end()):
                        self._add_polled(operation.index, partition, order, offset, value, final=operation.final)
                    else:
                        self._ahead.setdefault((partition, offset, value, operation.final), operation.index)
                if wrong:
                    self._add_misplaced(operation, partition, order, wrong)

    def _add_polled(
        self, index: int, partition: TopicPartition, order: PartitionOrder, offset: int, value: int, *, final: bool
    ) -> None:
        self._place(index, partition, order, value, offset)
        order.highest_polled = max(order.highest_polled, offset)
        self._mark_polled(index, partition, order, value, final=final)

    def _mark_polled(
        self, index: int, partition: TopicPartition, order: PartitionOrder, value: int, *, final: bool
    ) -> None:
        marks = order.marks[value]
        if final and marks & _OPEN:
            self._open_read.setdefault((partition, value), index)
        if not marks & _POLLED:
            self._note_first_poll(index, partition, value)
        order.mark(value, _POLLED | _FINAL if final else _POLLED)

    # -- offsets that cannot be ---------------------------------------------------------------------------------------

    def _add_misplaced(
        self, operation: Operation, partition: TopicPartition, order: PartitionOrder, pairs: list[tuple[int, int]]
    ) -> None:
        """Reports the records of a poll that have impossible offsets; their values count as polled."""
        for _, value in pairs:
            if 0 <= value < order.values_end():
                order.mark(value, 0)
                self._mark_polled(operation.index, partition, order, value, final=operation.final)
        new = [pair for pair in pairs if (partition, *pair) not in self._misplaced]
        self._misplaced.update(dict.fromkeys((partition, *pair) for pair in new))
        if new:
            offset, value = new[0]
            where = f"at {_place_text(partition, offset, operation)}, {order.reach.refusal(offset)}"
            more = f"; and {len(new) - 1} more of that kind in the same poll" if len(new) > 1 else ""
            self._findings.add(
                AnomalyKind.IMPOSSIBLE_OFFSET,
                f"process {operation.process} polled value {value} {where}{more}",
                partition=partition,
                operations=(operation.index,),
                offsets=tuple(offset for offset, _ in new[:MISPLACED_SHOWN_MAX]),
                sought=(WitnessQuery(WitnessKind.SENT, partition, value=value),),
            )

    def _settle_ahead(self) -> None:
        """Places values that were polled ahead of their sends; reports those without a send."""
        for (partition, offset, value, final), index in self._ahead.items():
            order = self.of(partition)
            if 0 <= value <= order.highest_sent:
                self._add_polled(index, partition, order, offset, value, final=final)
            elif (partition, offset, value) not in self.strays:
                self.strays[partition, offset, value] = None
                self._findings.add(
                    AnomalyKind.ALTERED,
                    f"the record at offset {offset}, with value {value}, was never sent",
                    partition=partition,
                    operations=(index,),
                    offsets=(offset,),
                )
        self._ahead.clear()

    def _note_first_poll(self, index: int, partition: TopicPartition, value: int) -> None:
        """Keeps the first reader of a record if it may prove that a transaction was committed."""
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
                self._add_place(operation, order, send, send.offset)

    def _add_place(self, operation: Operation, order: PartitionOrder, send: Send, offset: int) -> None:
        """Takes the offset that a send was acknowledged with."""
        if order.reach.admits(offset):
            self._place(operation.index, send.partition, order, send.value, offset)
        else:
            where = f"at {_place_text(send.partition, offset, operation)}, {order.reach.refusal(offset)}"
            self._findings.add(
                AnomalyKind.IMPOSSIBLE_OFFSET,
                f"value {send.value} of process {operation.process} was acknowledged {where}",
                partition=send.partition,
                operations=(operation.index,),
                offsets=(offset,),
            )

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
                    WitnessQuery(WitnessKind.SEEN, partition, offset, other_value),
                    WitnessQuery(WitnessKind.SENT, partition, value=other_value),
                    WitnessQuery(WitnessKind.SENT, partition, value=value),
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
                    WitnessQuery(WitnessKind.SEEN, partition, other_offset, value),
                    WitnessQuery(WitnessKind.SENT, partition, value=value),
                ),
            )

    def _is_new(self, dispute: tuple[TopicPartition, int, int]) -> bool:
        """Returns whether a conflict is new: a wrong record that is read many times counts once."""
        if dispute in self._disputes:
            return False
        self._disputes[dispute] = None
        return True

    def open_transactions(self) -> Iterator[tuple[int, list[OpenSend]]]:
        """Yields transactions of unknown outcome, by operation, with the observations of their sends."""
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
        """Returns the topics that the final phase has polled: to their ends, unless it is stuck."""
        return frozenset(partition.topic for partition, order in self.partitions.items() if order.is_read_at_end)

    def figures(self) -> Figures:
        """Returns the sizes of the history."""
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

    A polled record is below a high watermark: it is committed even if its send was not acknowledged, so it must be in
    the final read like acknowledged records. Only a reader of uncommitted data sees records of transactions that are
    aborted later. No record is lost or unseen if the final phase is stuck, which is an anomaly of its own.
    """
    for partition, order in sorted(orders.partitions.items()):
        for value in () if orders.is_stuck else order.with_marks(_ACKNOWLEDGED, _POLLED):
            offset = order.offset_of[value]
            writer = (order.writer_of[value],)
            if offset != NOTHING and offset <= order.highest_polled:
                findings.add(
                    AnomalyKind.LOST_WRITE,
                    f"value {value}, acknowledged at offset {offset}, was never polled, "
                    f"though offset {order.highest_polled} was",
                    partition=partition,
                    operations=writer,
                    offsets=(offset, order.highest_polled),
                    sought=(WitnessQuery(WitnessKind.POLLED, partition, order.highest_polled),),
                )
        if findings.options.final_phase and not orders.is_stuck:
            _check_unseen(partition, order, findings)
        for value in order.with_marks(_FAILED | _POLLED, 0):
            findings.add(
                AnomalyKind.G1A,
                f"value {value}, whose write failed or was aborted, was polled at {_name(order.offset_of[value])}",
                partition=partition,
                operations=(order.writer_of[value],),
                offsets=(order.offset_of[value],) if order.offset_of[value] != NOTHING else (),
                sought=(WitnessQuery(WitnessKind.POLLED, partition, value=value),),
            )


def _check_unseen(partition: TopicPartition, order: PartitionOrder, findings: Findings) -> None:
    excused = _FAILED if findings.options.read_committed else _FAILED | _OPEN  # polls of failed records are G1a
    for value in order.with_marks(0, _FINAL):
        marks, writer, offset = order.marks[value], order.writer_of[value], order.offset_of[value]
        if marks & _ACKNOWLEDGED:
            text = f"value {value} was acknowledged and is not in the final read"
        elif marks & _POLLED and not marks & excused:
            text = f"value {value} was polled at {_name(offset)} and is not in the final read"
        else:
            continue
        findings.add(
            AnomalyKind.UNSEEN,
            text,
            partition=partition,
            operations=(writer,) if writer != NOTHING else (),
            offsets=(offset,) if offset != NOTHING else (),
            sought=(
                WitnessQuery(WitnessKind.PASSED, partition, offset),
                WitnessQuery(WitnessKind.POLLED, partition, value=value),
            ),
        )


def _place_text(partition: TopicPartition, offset: int, operation: Operation) -> str:
    return f"offset {offset} of {partition.topic}-{partition.partition} at {operation.ended_ms / 1000:.3f} s"


def _name(offset: int) -> str:
    return f"offset {offset}" if offset != NOTHING else "an impossible offset"
