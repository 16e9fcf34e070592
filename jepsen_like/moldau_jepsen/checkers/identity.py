"""Do records come back as they were sent: key, value, headers and timestamp, to the last bit?

Workloads take a digest of each record that they send and of each that they are given, and the history has both. Two
records that differ have the same digest once in four thousand million times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.orders import NOTHING
from moldau_jepsen.history import Poll

if TYPE_CHECKING:
    from moldau_jepsen.checkers.orders import Orders, PartitionOrder
    from moldau_jepsen.history import Operation, TopicPartition


class IdentityChecker:
    """Second pass over a history: needs the orders of the first, which hold the digests of what was sent."""

    def __init__(self, orders: Orders, findings: Findings) -> None:
        """Nothing was read yet."""
        self._orders = orders
        self._findings = findings
        self._known = dict.fromkeys(orders.strays)  # what was told already

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
            return  # the same record is read many times; it counts once
        writer = order.writer_of[value]
        if order.digest_of[value] == 0 and (writer != NOTHING or not any(order.digest_of)):
            return  # its sender took none, or the senders are not part of the history
        if writer == NOTHING and not self._findings.options.ended:
            return  # it was under way when the history was cut short
        self._known[partition, offset, value] = None
        text = "is not as it was sent" if writer != NOTHING else "was sent by nobody"
        self._findings.add(
            AnomalyKind.ALTERED,
            f"the record at offset {offset}, with value {value}, {text}",
            partition=partition,
            operations=(operation.index,) if writer == NOTHING else (writer, operation.index),
        )
