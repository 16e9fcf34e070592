"""Checks steps between records: polls that jump or go back, seeks that miss, sends that get offsets out of order.

A seek ends the preceding run of polls, as a rebalance does, and the next run begins at the first record at or after its
target. The start of a log is known only in a history in which nothing is deleted.
"""

from __future__ import annotations

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.log.orders import NOTHING, Orders
from moldau_jepsen.checkers.witnesses import WitnessKind, WitnessQuery
from moldau_jepsen.history import Kind, Operation, Poll, Seek, Send, Status, TopicPartition

Positions = dict[TopicPartition, tuple[int, int]]
"""Per partition the last offset and its operation."""

Targets = dict[TopicPartition, tuple[int, int]]
"""Per partition the target of a seek and its operation; removed with the first record after the seek."""


class StepChecker:
    """Finds wrong steps in a second pass over a history; needs the orders of the first pass."""

    def __init__(self, orders: Orders, findings: Findings) -> None:
        """Starts before the first operation."""
        self._orders = orders
        self._findings = findings
        self._polled: dict[int, Positions] = {}
        self._sent: dict[int, Positions] = {}
        self._sought: dict[int, Targets] = {}

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        if operation.kind in (Kind.ASSIGN, Kind.SUBSCRIBE):
            self._start_over(operation.process)
        elif operation.kind is Kind.CRASH:
            self._start_over(operation.process)
            self._sent.pop(operation.process, None)
        elif operation.kind is Kind.SEEK:
            for seek in operation.seeks:
                self._seek(operation, seek)
        else:
            self._check_polls(operation)
            self._check_sends(operation)

    def _start_over(self, process: int) -> None:
        self._polled.pop(process, None)
        self._sought.pop(process, None)

    # -- seeks --------------------------------------------------------------------------------------------------------

    def _seek(self, operation: Operation, seek: Seek) -> None:
        positions = self._polled.setdefault(operation.process, {})
        targets = self._sought.setdefault(operation.process, {})
        reach = self._orders.of(seek.partition).reach
        if seek.timestamp is not None:
            self._check_time(operation, seek, seek.timestamp)
        if seek.offset == NOTHING:
            return  # The cluster named no record, so the position did not change.
        positions.pop(seek.partition, None)
        targets.pop(seek.partition, None)
        if seek.offset is not None and not reach.may_admit(seek.offset):
            return  # The client was given an impossible offset before, or now; brokers send it elsewhere.
        if seek.offset is not None:
            targets[seek.partition] = (seek.offset, operation.index)
        elif self._findings.options.final_phase:
            targets[seek.partition] = (0, operation.index)

    def _check_time(self, operation: Operation, seek: Seek, timestamp: int) -> None:
        """Checks a seek to a time: a record that the client had read is a valid answer, so the first is not later."""
        bound = seek.bound if self._findings.options.final_phase else NOTHING  # retention may have deleted it
        if not self._orders.of(seek.partition).reach.may_admit(bound):
            bound = NOTHING
        if seek.offset == NOTHING and bound != NOTHING:
            text = f"no record was named for time {timestamp}, though the one at offset {bound} is not earlier"
        elif bound != NOTHING and seek.offset is not None and seek.offset > bound:
            text = f"offset {seek.offset} was named for time {timestamp}, though offset {bound} is not earlier"
        elif seek.offset != NOTHING and seek.found_timestamp < timestamp:
            text = f"offset {seek.offset} was named for time {timestamp}, with the earlier time {seek.found_timestamp}"
        else:
            return
        named = (WitnessQuery(WitnessKind.SEEN, seek.partition, bound),) if bound != NOTHING else ()
        self._findings.add(
            AnomalyKind.SEEK_MISSED, text, partition=seek.partition, operations=(operation.index,), sought=named
        )

    def _land(self, operation: Operation, partition: TopicPartition, offset: int, target: tuple[int, int]) -> None:
        """Checks the first record after a seek."""
        sought, seek_operation = target
        missed, skipped = "", NOTHING
        if offset < sought:
            missed = "which lies before it"
        elif self._findings.options.final_phase:
            skipped = self._orders.of(partition).first_between(sought - 1, offset)
            missed = f"and skipped offset {skipped}" if skipped != NOTHING else ""
        if missed:
            self._findings.add(
                AnomalyKind.SEEK_MISSED,
                f"process {operation.process} sought offset {sought} and polled offset {offset}, {missed}",
                partition=partition,
                operations=(seek_operation, operation.index),
                offsets=(offset, skipped) if skipped != NOTHING else (offset,),
                sought=(WitnessQuery(WitnessKind.SEEN, partition, skipped),) if skipped != NOTHING else (),
            )

    # -- polls --------------------------------------------------------------------------------------------------------

    def _check_polls(self, operation: Operation) -> None:
        if operation.rebalanced:
            # Positions come back from committed offsets: between operations they may move.
            self._start_over(operation.process)
        positions = self._polled.setdefault(operation.process, {})
        targets = self._sought.get(operation.process, {})
        within: set[TopicPartition] = set()
        for part in operation.operations:
            if not isinstance(part, Poll):
                continue
            for partition, pairs in part.records:
                reach = self._orders.of(partition).reach
                if targets and pairs and (target := targets.pop(partition, None)) is not None and pairs[0][0] in reach:
                    self._land(operation, partition, pairs[0][0], target)
                for offset, _ in pairs:
                    if offset not in reach:
                        positions.pop(partition, None)  # The client is sent elsewhere: its position starts over.
                        continue
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
        behind = (last_operation, operation.index)
        if offset <= last:
            self._findings.add(
                AnomalyKind.INT_NONMONOTONIC_POLL if inside else AnomalyKind.NONMONOTONIC_POLL,
                f"process {operation.process} polled offset {offset} after offset {last}",
                partition=partition,
                operations=behind,
                offsets=(last, offset),
                allowed=allowed,
            )
        elif (skipped := self._orders.of(partition).first_between(last, offset)) != NOTHING:
            self._findings.add(
                AnomalyKind.INT_POLL_SKIP if inside else AnomalyKind.POLL_SKIP,
                f"process {operation.process} polled offset {offset} after offset {last} and skipped offset {skipped}",
                partition=partition,
                operations=behind,
                offsets=(last, skipped, offset),
                sought=(WitnessQuery(WitnessKind.SEEN, partition, skipped),),
                allowed=allowed,
            )

    # -- sends --------------------------------------------------------------------------------------------------------

    def _check_sends(self, operation: Operation) -> None:
        if operation.status is not Status.OK:
            return
        positions = self._sent.setdefault(operation.process, {})
        within: set[TopicPartition] = set()
        for part in operation.operations:
            if not isinstance(part, Send):
                continue
            order = self._orders.of(part.partition)
            offset = order.place_of(part.value) if part.offset is None else part.offset  # readers may have found it
            if offset not in order.reach:
                continue
            before = positions.get(part.partition)
            if before is not None and offset <= before[0]:
                inside = part.partition in within
                self._findings.add(
                    AnomalyKind.INT_NONMONOTONIC_SEND if inside else AnomalyKind.NONMONOTONIC_SEND,
                    f"process {operation.process} sent value {part.value} later than what landed at offset "
                    f"{before[0]}, and it landed at offset {offset}",
                    partition=part.partition,
                    operations=(before[1], operation.index),
                    offsets=(before[0], offset),
                )
            positions[part.partition] = (offset, operation.index)
            within.add(part.partition)


def check_own_reads(operation: Operation, orders: Orders, findings: Findings) -> None:
    """Finds a transaction that polled what it had sent itself, or what lies behind it.

    While it was open the last stable offset of a partition was at most the offset of its first record there, so before
    the commit no reader of committed data may receive a later record.
    """
    if operation.kind is not Kind.TRANSACTION:
        return
    own = {(send.partition, send.value) for send in operation.sends}
    if not own:
        return
    is_bounded = findings.options.read_committed and operation.status is Status.OK and not operation.aborted
    first: dict[TopicPartition, int] = {}  # the lowest known offset of the sends so far
    for part in operation.operations:
        if isinstance(part, Send):
            if part.offset is not None and part.offset in orders.of(part.partition).reach:
                first[part.partition] = min(part.offset, first.get(part.partition, part.offset))
            continue
        for partition, pairs in part.records:
            bound = first.get(partition, NOTHING) if is_bounded else NOTHING
            for offset, value in pairs:
                if (partition, value) in own:
                    text = f"its own value {value} at offset {offset}"
                elif NOTHING < bound < offset and offset in orders.of(partition).reach:
                    text = f"offset {offset}, and its own first record there lies at offset {bound}"
                    bound = NOTHING  # reports one finding per poll
                else:
                    continue
                findings.add(
                    AnomalyKind.PRECOMMITTED_READ,
                    f"the transaction of process {operation.process} polled {text}",
                    partition=partition,
                    operations=(operation.index,),
                    offsets=(offset,),
                )
