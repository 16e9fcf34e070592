"""Cycles of dependencies between transactions (Adya's G0 and G1c), by strongly connected components.

Transactions that committed are the vertices. A write-write edge leads from the writer of a record to the writer of
the next record of the same partition; a write-read edge leads from a writer to whoever polled the record within a
transaction. A component of more than one transaction is a cycle. Kafka's transactions do not order writes of
different partitions against each other, so cycles that need a write-write edge are figures; a cycle of write-read
edges alone would mean that two transactions each saw the other committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.orders import NOTHING, Orders
from moldau_jepsen.history import Kind, Operation, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

Graph = dict[int, dict[int, None]]
SHOWN_MAX = 8


def check_cycles(history: Iterable[Operation], orders: Orders, findings: Findings) -> None:
    """Finds G0 and G1c."""
    committed: dict[int, None] = {}
    reads: Graph = {}
    for operation in history:
        if operation.kind is not Kind.TRANSACTION or operation.status is not Status.OK or operation.aborted:
            continue
        committed[operation.index] = None
        for poll in operation.polls:
            for partition, pairs in poll.records:
                order = orders.of(partition)
                for _, value in pairs:
                    writer = order.writer_of[value]
                    if writer not in (NOTHING, operation.index):
                        reads.setdefault(writer, {})[operation.index] = None
    writes: Graph = {}
    for order in orders.partitions.values():
        before = NOTHING
        for offset in order.offsets():
            writer = order.writer_of[order.value_at[offset]]
            if before not in (NOTHING, writer) and before in committed and writer in committed:
                writes.setdefault(before, {})[writer] = None
            before = writer
    reads = {source: {t: None for t in targets if t in committed} for source, targets in reads.items()}
    reads = {source: targets for source, targets in reads.items() if source in committed}
    both = {source: {**writes.get(source, {}), **reads.get(source, {})} for source in (*writes, *reads)}
    for kind, graph, allowed in (
        (AnomalyKind.G0, writes, True),
        (AnomalyKind.G1C, reads, False),
    ):
        for component in components(graph):
            findings.add(kind, _text(component), operations=tuple(component), allowed=allowed)
    pure = {member for graph in (writes, reads) for component in components(graph) for member in component}
    for component in components(both):
        if not pure.intersection(component):
            findings.add(AnomalyKind.G1C, _text(component), operations=tuple(component), allowed=True)


def _text(component: list[int]) -> str:
    shown = ", ".join(str(index) for index in component[:SHOWN_MAX])
    more = f" and {len(component) - SHOWN_MAX} more" if len(component) > SHOWN_MAX else ""
    return f"operations {shown}{more} depend on each other in a circle"


def components(graph: Graph) -> list[list[int]]:
    """Strongly connected components of more than one vertex, each sorted (Tarjan 1972, without recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    waiting: list[int] = []
    on_stack: dict[int, None] = {}
    found: list[list[int]] = []
    for root in graph:
        if root in number:
            continue
        work = [(root, iter(graph.get(root, {})))]
        number[root] = low[root] = len(number)
        waiting.append(root)
        on_stack[root] = None
        while work:
            vertex, targets = work[-1]
            for target in targets:
                if target not in number:
                    number[target] = low[target] = len(number)
                    waiting.append(target)
                    on_stack[target] = None
                    work.append((target, iter(graph.get(target, {}))))
                    break
                if target in on_stack:
                    low[vertex] = min(low[vertex], number[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[vertex])
                if low[vertex] == number[vertex]:
                    component = []
                    while True:
                        member = waiting.pop()
                        del on_stack[member]
                        component.append(member)
                        if member == vertex:
                            break
                    if len(component) > 1:
                        found.append(sorted(component))
    return found
