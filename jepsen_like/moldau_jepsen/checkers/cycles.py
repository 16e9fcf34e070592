"""Cycles of dependencies between transactions (Adya's G0 and G1c), by strongly connected components.

Transactions that committed are the vertices, and those of unknown outcome where readers ask for committed data: an edge
leads out of one of these only where somebody polled its record, and that proves that it committed; without one it is in
no circle. A write-write edge leads from the writer of a record to the writer of
the next record of the same partition; a write-read edge leads from a writer to whoever polled the record within a
transaction. A component of more than one transaction is a cycle. Kafka's transactions do not order writes of
different partitions against each other, so cycles that need a write-write edge are figures; a cycle of write-read
edges alone would mean that two transactions each saw the other committed, which readers of committed data never do;
readers of uncommitted data may, for they see what is not committed yet.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.graph import NONE, Edges, components
from moldau_jepsen.checkers.orders import NOTHING, Orders, PartitionOrder
from moldau_jepsen.history import Kind, Operation, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHOWN_MAX = 8


class CycleChecker:
    """Second pass over a history: needs the orders of the first. Finds G0 and G1c when it is finished.

    Memory is some 30 bytes per transaction and 30 per dependency.
    """

    def __init__(self, orders: Orders, findings: Findings) -> None:
        """Nothing was read yet."""
        self._orders = orders
        self._findings = findings
        self._committed = array("q")  # operation indexes, ascending; the position of one is its vertex
        self._reads = Dependencies()

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        if operation.kind is not Kind.TRANSACTION or operation.status is Status.FAIL or operation.aborted:
            return
        if operation.status is Status.INFO and not self._findings.options.read_committed:
            return  # these readers see what is aborted later: they prove nothing
        self._committed.append(operation.index)
        last = NOTHING
        for poll in operation.polls:
            for partition, pairs in poll.records:
                writer_of = self._orders.of(partition).writer_of
                for _, value in pairs:
                    writer = writer_of[value] if 0 <= value < len(writer_of) else NOTHING
                    if writer not in (NOTHING, operation.index, last):
                        self._reads.add(writer, operation.index)
                        last = writer

    @property
    def reads(self) -> Dependencies:
        """Write-read dependencies; their first sides may be operations of any kind."""
        return self._reads

    def finish(self) -> None:
        """Looks for cycles."""
        writes = Dependencies()
        for order in self._orders.partitions.values():
            add_write_dependencies(order, self.is_committed, writes)
        find_cycles(self._committed, writes, self._reads, self._findings)

    def is_committed(self, operation: int) -> bool:
        """Whether an operation is a transaction that committed, given that a record of it was polled."""
        return _vertex(self._committed, operation) != NONE


class Dependencies:
    """Pairs of operation indexes: the second depends on the first."""

    __slots__ = ("first", "second")

    def __init__(self, first: bytes = b"", second: bytes = b"") -> None:
        """Takes what ``array.tobytes`` of the two sides gave."""
        self.first = array("q", first)
        self.second = array("q", second)

    def add(self, first: int, second: int) -> None:
        """Adds a pair."""
        self.first.append(first)
        self.second.append(second)

    def extend(self, other: Dependencies) -> None:
        """Adds the pairs of another."""
        self.first.extend(other.first)
        self.second.extend(other.second)

    def edges(self, committed: array[int]) -> Edges:
        """The pairs of which both sides are among ``committed``, as edges between their positions in it."""
        edges = Edges()
        for first, second in zip(self.first, self.second, strict=True):
            source, target = _vertex(committed, first), _vertex(committed, second)
            if NONE not in (source, target):
                edges.add(source, target)
        return edges


def add_write_dependencies(
    order: PartitionOrder, is_committed: Callable[[int], bool], dependencies: Dependencies
) -> None:
    """Adds the pairs of committed transactions that wrote neighbouring records of a partition."""
    before = last = NOTHING
    for offset in order.offsets():
        writer = order.writer_of[order.value_at[offset]]
        if writer != last:
            last = writer
            found = writer if is_committed(writer) else NOTHING
            if NOTHING not in (before, found):
                dependencies.add(before, found)
            before = found


def find_cycles(committed: array[int], writes: Dependencies, reads: Dependencies, findings: Findings) -> None:
    """Finds G0 and G1c.

    Args:
        committed: Indexes of transactions that committed, or may have, ascending; pairs with others are left out.
        writes: Write-write dependencies.
        reads: Write-read dependencies.
        findings: Takes the anomalies.
    """
    write_edges, read_edges = writes.edges(committed), reads.edges(committed)
    count = len(committed)
    pure: set[int] = set()
    for kind, graph in ((AnomalyKind.G0, write_edges), (AnomalyKind.G1C, read_edges)):
        for component in components(count, graph):
            pure.update(component)
            _add(findings, kind, committed, component)
    write_edges.extend(read_edges)
    for component in components(count, write_edges):
        if pure.isdisjoint(component):
            _add(findings, AnomalyKind.G1C, committed, component, allowed=True)


def _vertex(committed: array[int], operation: int) -> int:
    """The vertex of a committed transaction, ``NONE`` for every other operation."""
    position = bisect_left(committed, operation)
    found = position < len(committed) and committed[position] == operation
    return position if found else NONE


def _add(
    findings: Findings,
    kind: AnomalyKind,
    committed: array[int],
    component: Sequence[int],
    *,
    allowed: bool | None = None,
) -> None:
    operations = tuple(committed[vertex] for vertex in component)
    findings.add(kind, _text(operations), operations=operations, allowed=allowed)


def _text(component: Sequence[int]) -> str:
    shown = ", ".join(str(index) for index in component[:SHOWN_MAX])
    more = f" and {len(component) - SHOWN_MAX} more" if len(component) > SHOWN_MAX else ""
    return f"operations {shown}{more} depend on each other in a circle"
