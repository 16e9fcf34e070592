"""Finds cycles of dependencies between transactions (Adya's G0 and G1c), by strongly connected components.

The vertices are the committed transactions. If readers ask for committed data, transactions of unknown outcome are
vertices too: an edge leads out of such a vertex only if its record was polled, which proves that it committed, and
without such an edge it is in no cycle. A write-write edge leads from the writer of a record to the writer of the next
record of the same partition; a write-read edge leads from a writer to a transaction that polled the record. A component
of more than one transaction is a cycle. Kafka's transactions do not order writes of different partitions against each
other, so cycles that need a write-write edge are figures. A cycle of write-read edges alone means that two transactions
each saw the other one committed. This never happens to readers of committed data, but may happen to readers of
uncommitted data.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.log.orders import NOTHING, Orders, PartitionOrder
from moldau_jepsen.checkers.transaction.graph import NONE, Edges, components
from moldau_jepsen.history import Kind, Operation, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHOWN_MAX = 8


class CycleChecker:
    """Finds G0 and G1c in a second pass over a history; needs the orders of the first pass.

    Memory is about 30 bytes per transaction and 30 per dependency.
    """

    def __init__(self, orders: Orders, findings: Findings) -> None:
        """Starts before the first operation."""
        self._orders = orders
        self._findings = findings
        self._committed = array("q")  # operation indexes, ascending; the position of an index is its vertex
        self._reads = Dependencies()

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        if operation.kind is not Kind.TRANSACTION or operation.status is Status.FAIL or operation.aborted:
            return
        if operation.status is Status.INFO and not self._findings.options.read_committed:
            return  # Such readers see records that are aborted later, so their polls prove nothing.
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
        """Returns the write-read dependencies; their first sides may be operations of any kind."""
        return self._reads

    def finish(self) -> None:
        """Finds the cycles."""
        writes = Dependencies()
        for order in self._orders.partitions.values():
            add_write_dependencies(order, self.is_committed, writes)
        find_cycles(self._committed, writes, self._reads, self._findings)

    def is_committed(self, operation: int) -> bool:
        """Returns whether an operation, of which a record was polled, is a committed transaction."""
        return _vertex(self._committed, operation) != NONE


class Dependencies:
    """Pairs of operation indexes: the second depends on the first."""

    __slots__ = ("first", "second")

    def __init__(self, first: bytes = b"", second: bytes = b"") -> None:
        """Takes the two sides as results of ``array.tobytes``."""
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
        """Returns the pairs with both sides in ``committed``, as edges between their positions there."""
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
        writer = order.writer_of[order.value_of(offset)]
        if writer != last:
            last = writer
            found = writer if is_committed(writer) else NOTHING
            if NOTHING not in (before, found):
                dependencies.add(before, found)
            before = found


def find_cycles(committed: array[int], writes: Dependencies, reads: Dependencies, findings: Findings) -> None:
    """Finds G0 and G1c.

    Args:
        committed: Indexes of transactions that committed or may have committed, ascending; other pairs are ignored.
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
    """Returns the vertex of a committed transaction, ``NONE`` for every other operation."""
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
