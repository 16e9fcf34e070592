"""Cycles of dependencies between transactions (Adya's G0 and G1c), by strongly connected components.

Transactions that committed are the vertices. A write-write edge leads from the writer of a record to the writer of
the next record of the same partition; a write-read edge leads from a writer to whoever polled the record within a
transaction. A component of more than one transaction is a cycle. Kafka's transactions do not order writes of
different partitions against each other, so cycles that need a write-write edge are figures; a cycle of write-read
edges alone would mean that two transactions each saw the other committed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.graph import NONE, Edges, components
from moldau_jepsen.checkers.orders import NOTHING, Orders
from moldau_jepsen.history import Kind, Operation, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN_MAX = 8


class CycleChecker:
    """Second pass over a history: needs the orders of the first. Finds G0 and G1c when it is finished.

    Memory is some 60 bytes per committed transaction and 12 per dependency.
    """

    def __init__(self, orders: Orders, findings: Findings) -> None:
        """Nothing was read yet."""
        self._orders = orders
        self._findings = findings
        self._committed = array("q")  # operation indexes, ascending; the position of one is its vertex
        self._read_from = array("q")  # operation indexes of writers, and of who read from them
        self._read_by = array("q")

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        if operation.kind is not Kind.TRANSACTION or operation.status is not Status.OK or operation.aborted:
            return
        self._committed.append(operation.index)
        last = NOTHING
        for poll in operation.polls:
            for partition, pairs in poll.records:
                writer_of = self._orders.of(partition).writer_of
                for _, value in pairs:
                    writer = writer_of[value]
                    if writer not in (NOTHING, operation.index, last):
                        self._read_from.append(writer)
                        self._read_by.append(operation.index)
                        last = writer

    def finish(self) -> None:
        """Looks for cycles."""
        writes, reads = Edges(), Edges()
        for source, target in zip(self._read_from, self._read_by, strict=True):
            vertex = self._vertex(source)
            if vertex != NONE:
                reads.add(vertex, self._vertex(target))
        del self._read_from, self._read_by
        for order in self._orders.partitions.values():
            before = NONE
            last = NOTHING
            for offset in order.offsets():
                writer = order.writer_of[order.value_at[offset]]
                if writer != last:
                    vertex = self._vertex(writer)
                    if before != NONE and vertex != NONE:
                        writes.add(before, vertex)
                    before, last = vertex, writer
        count = len(self._committed)
        pure: set[int] = set()
        for kind, graph, allowed in ((AnomalyKind.G0, writes, True), (AnomalyKind.G1C, reads, False)):
            for component in components(count, graph):
                pure.update(component)
                self._add(kind, component, allowed=allowed)
        writes.extend(reads)
        del reads
        for component in components(count, writes):
            if pure.isdisjoint(component):
                self._add(AnomalyKind.G1C, component, allowed=True)

    def _vertex(self, operation: int) -> int:
        """The vertex of a committed transaction, ``NONE`` for every other operation."""
        position = bisect_left(self._committed, operation)
        found = position < len(self._committed) and self._committed[position] == operation
        return position if found else NONE

    def _add(self, kind: AnomalyKind, component: Sequence[int], *, allowed: bool) -> None:
        operations = tuple(self._committed[vertex] for vertex in component)
        self._findings.add(kind, _text(operations), operations=operations, allowed=allowed)


def _text(component: Sequence[int]) -> str:
    shown = ", ".join(str(index) for index in component[:SHOWN_MAX])
    more = f" and {len(component) - SHOWN_MAX} more" if len(component) > SHOWN_MAX else ""
    return f"operations {shown}{more} depend on each other in a circle"
