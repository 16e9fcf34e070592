"""Steps from one record to the next: polls that jump or go back, sends that land out of order."""

from __future__ import annotations

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.orders import NOTHING, Orders
from moldau_jepsen.history import Kind, Operation, Poll, Send, Status, TopicPartition

Positions = dict[TopicPartition, tuple[int, int]]
"""Per partition the last offset and the operation it was seen in."""


class StepChecker:
    """Second pass over a history: needs the orders of the first."""

    def __init__(self, orders: Orders, findings: Findings) -> None:
        """Nothing was read yet."""
        self._orders = orders
        self._findings = findings
        self._polled: dict[int, Positions] = {}
        self._sent: dict[int, Positions] = {}

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        if operation.kind in (Kind.ASSIGN, Kind.SUBSCRIBE):
            self._polled.pop(operation.process, None)
        elif operation.kind is Kind.CRASH:
            self._polled.pop(operation.process, None)
            self._sent.pop(operation.process, None)
        else:
            self._check_polls(operation)
            self._check_sends(operation)

    # -- polls --------------------------------------------------------------------------------------------------------

    def _check_polls(self, operation: Operation) -> None:
        positions = self._polled.setdefault(operation.process, {})
        if operation.rebalanced:
            # Positions come back from committed offsets: between operations they may move.
            positions.clear()
        within: set[TopicPartition] = set()
        for part in operation.operations:
            if not isinstance(part, Poll):
                continue
            for partition, pairs in part.records:
                for offset, _ in pairs:
                    self._step(operation, partition, positions, offset, inside=partition in within)
                    within.add(partition)

    def _step(
        self, operation: Operation, partition: TopicPartition, positions: Positions, offset: int, *, inside: bool
    ) -> None:
        before = positions.get(partition)
        positions[partition] = (offset, operation.index)
        if before is None or offset == before[0] + 1:
            return
        last, last_operation = before
        allowed = self._findings.options.subscribe and not inside
        behind = (last_operation, operation.index) if last_operation != operation.index else (operation.index,)
        if offset <= last:
            self._findings.add(
                AnomalyKind.INT_NONMONOTONIC_POLL if inside else AnomalyKind.NONMONOTONIC_POLL,
                f"process {operation.process} polled offset {offset} after offset {last}",
                partition=partition,
                operations=behind,
                allowed=allowed,
            )
        elif (skipped := self._orders.of(partition).first_between(last, offset)) != NOTHING:
            self._findings.add(
                AnomalyKind.INT_POLL_SKIP if inside else AnomalyKind.POLL_SKIP,
                f"process {operation.process} polled offset {offset} after offset {last} and skipped offset {skipped}",
                partition=partition,
                operations=behind,
                allowed=allowed,
            )

    # -- sends --------------------------------------------------------------------------------------------------------

    def _check_sends(self, operation: Operation) -> None:
        if operation.status is not Status.OK:
            return
        positions = self._sent.setdefault(operation.process, {})
        within: set[TopicPartition] = set()
        for part in operation.operations:
            if not isinstance(part, Send) or part.offset is None:
                continue
            before = positions.get(part.partition)
            if before is not None and part.offset <= before[0]:
                inside = part.partition in within
                self._findings.add(
                    AnomalyKind.INT_NONMONOTONIC_SEND if inside else AnomalyKind.NONMONOTONIC_SEND,
                    f"process {operation.process} sent value {part.value} later than what landed at offset "
                    f"{before[0]}, and it landed at offset {part.offset}",
                    partition=part.partition,
                    operations=(before[1], operation.index) if before[1] != operation.index else (operation.index,),
                )
            positions[part.partition] = (part.offset, operation.index)
            within.add(part.partition)


def check_own_reads(operation: Operation, findings: Findings) -> None:
    """Finds a transaction that polled what it had sent itself."""
    if operation.kind is not Kind.TRANSACTION:
        return
    own = {(send.partition, send.value) for send in operation.sends}
    for poll in operation.polls:
        for partition, pairs in poll.records:
            for offset, value in pairs:
                if (partition, value) in own:
                    findings.add(
                        AnomalyKind.PRECOMMITTED_READ,
                        f"the transaction of process {operation.process} polled its own value {value} "
                        f"at offset {offset}",
                        partition=partition,
                        operations=(operation.index,),
                    )
