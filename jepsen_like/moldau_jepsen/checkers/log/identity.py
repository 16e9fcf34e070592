"""Checks that key, value, headers and timestamp of each record come back unchanged.

Workloads compute a digest of each record that they send and of each that they receive, and the history has both. Two
different records have the same digest with a probability of one in four thousand million.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.log.orders import NOTHING
from moldau_jepsen.history import Poll

if TYPE_CHECKING:
    from moldau_jepsen.checkers.log.orders import Orders, PartitionOrder
    from moldau_jepsen.history import Operation, TopicPartition


class IdentityChecker:
    """Compares digests in a second pass over a history; the orders of the first pass hold those of sent records."""

    def __init__(self, orders: Orders, findings: Findings) -> None:
        """Starts before the first operation."""
        self._orders = orders
        self._findings = findings
        self._known = dict.fromkeys(orders.strays)  # offsets that were reported already

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        for part in operation.operations:
            if not isinstance(part, Poll) or not part.digests:
                continue
            for (partition, pairs), digests in zip(part.records, part.digests, strict=True):
                order = self._orders.of(partition)
                sent = order.digest_of
                for (offset, value), digest in zip(pairs, digests, strict=True):
                    if not 0 <= value < len(sent) or sent[value] != digest:
                        self._differs(operation, partition, order, offset, value)

    def _differs(
        self, operation: Operation, partition: TopicPartition, order: PartitionOrder, offset: int, value: int
    ) -> None:
        if (partition, offset, value) in self._known:
            return  # A record that is read many times counts once.
        if not 0 <= value < len(order.writer_of):
            return  # Its offset is impossible, too, and was reported.
        writer = order.writer_of[value]
        if order.digest_of[value] == 0 and (writer != NOTHING or not any(order.digest_of)):
            return  # The sender computed none, or the history has no senders.
        if writer == NOTHING and not self._findings.options.ended:
            return  # The send may be missing from a truncated history.
        self._known[partition, offset, value] = None
        text = "is not as it was sent" if writer != NOTHING else "was never sent"
        self._findings.add(
            AnomalyKind.ALTERED,
            f"the record at offset {offset}, with value {value}, {text}",
            partition=partition,
            operations=(operation.index,) if writer == NOTHING else (writer, operation.index),
        )
