"""Cuts histories that are too large for one process into shards.

A shard holds all operations that the checkers of one partition need: every operation that touched the partition,
reduced to its part there, every operation that lets positions move (assignments, crashes, rebalances), and final reads
that did not end. One more shard holds operations without a partition, and each pipe and each bank has a shard. The
checkers of ``check_history`` judge each shard by itself, in any process. ``merge`` judges relations between partitions
(dependencies between transactions, transactions of unknown outcome), which leave a shard as pairs of numbers.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from moldau_jepsen.checkers.anomalies import DETAILS_MAX, AnomalyKind, Figures, Findings, Verdict
from moldau_jepsen.checkers.group.groups import OwnershipChecker, SkipChecker, check_progress
from moldau_jepsen.checkers.group.pipe import PipeChecker
from moldau_jepsen.checkers.log.identity import IdentityChecker
from moldau_jepsen.checkers.log.orders import OpenSend, Orders, check_writes
from moldau_jepsen.checkers.log.split_brain import SplitBrainChecker
from moldau_jepsen.checkers.log.steps import StepChecker, check_own_reads
from moldau_jepsen.checkers.transaction.bank import BankChecker, is_of
from moldau_jepsen.checkers.transaction.cycles import CycleChecker, Dependencies, add_write_dependencies, find_cycles
from moldau_jepsen.checkers.transaction.open_transactions import check_open_transactions
from moldau_jepsen.checkers.witnesses import name_witnesses
from moldau_jepsen.history import Kind, Poll, Send, Status, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from moldau_jepsen.checkers.anomalies import Anomaly, Bank, CheckOptions
    from moldau_jepsen.checkers.check import History
    from moldau_jepsen.history import MicroOperation, Operation

COMMON = -1
"""Number of the shard for operations without a partition; pipes, then banks, have the numbers below it."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The shards of a history. The number of a partition is its index in ``partitions``."""

    partitions: tuple[TopicPartition, ...]
    pipes: tuple[tuple[str, str], ...]
    banks: tuple[Bank, ...]

    @property
    def numbers(self) -> range:
        """Returns the numbers of all shards."""
        return range(COMMON - len(self.pipes) - len(self.banks), len(self.partitions))

    def pipe(self, number: int) -> tuple[str, str] | None:
        """Returns source and target of the pipe of a shard, None for any other shard."""
        place = COMMON - 1 - number
        return self.pipes[place] if 0 <= place < len(self.pipes) else None

    def bank(self, number: int) -> Bank | None:
        """Returns the bank of a shard, None for any other shard."""
        place = COMMON - 1 - number - len(self.pipes)
        return self.banks[place] if 0 <= place < len(self.banks) else None


@dataclass(slots=True)
class ShardResult:
    """The result of one shard, as plain values for the process that runs ``merge``."""

    counts: dict[AnomalyKind, int]
    forbidden: int
    kept: list[Anomaly]
    figures: Figures | None = None
    leaderships: int = 0
    writes: tuple[bytes, bytes] = (b"", b"")
    reads: tuple[bytes, bytes] = (b"", b"")
    unknown: list[tuple[int, OpenSend]] = field(default_factory=list)
    """Transactions of unknown outcome, and their sends."""
    topics_read: frozenset[str] = frozenset()
    """Topics that the final phase has read."""


def touched(operation: Operation) -> Iterator[TopicPartition]:
    """Yields the partitions that an operation sent to, polled from, or sought a position in, with repetition."""
    yield from (seek.partition for seek in operation.seeks)
    for part in operation.operations:
        if isinstance(part, Send):
            yield part.partition
        else:
            yield from (partition for partition, _ in part.records)


def split(
    operation: Operation, plan: ShardPlan, numbers: Mapping[TopicPartition, int]
) -> Iterator[tuple[int, Operation]]:
    """Yields the shards of an operation, with its part in each. ``numbers`` inverts the plan."""
    stuck = operation.final and operation.status is not Status.OK
    everywhere = operation.kind in (Kind.ASSIGN, Kind.SUBSCRIBE, Kind.CRASH) or operation.rebalanced or stuck
    here = dict.fromkeys(numbers[partition] for partition in touched(operation))
    for number in range(len(plan.partitions)) if everywhere else here:
        partition = plan.partitions[number]
        parts, seeks = _only(operation, partition), tuple(s for s in operation.seeks if s.partition == partition)
        yield number, replace(operation, operations=parts, seeks=seeks, partitions=(), error="", leads=())
    if operation.kind is Kind.SUBSCRIBE or operation.leads or stuck:
        yield COMMON, replace(operation, operations=())
    for place, topics in enumerate(plan.pipes):
        if stuck or any(plan.partitions[number].topic in topics for number in here):
            yield COMMON - 1 - place, replace(operation, partitions=(), error="", leads=())
    topics_here = {plan.partitions[number].topic for number in here}
    for place, bank in enumerate(plan.banks, len(plan.pipes)):
        if is_of(bank, operation, topics_here):
            yield COMMON - 1 - place, replace(operation, partitions=(), error="", leads=())


def _only(operation: Operation, partition: TopicPartition) -> tuple[MicroOperation, ...]:
    parts: list[MicroOperation] = []
    for part in operation.operations:
        if isinstance(part, Send):
            if part.partition == partition:
                parts.append(part)
        else:
            places = [place for place, entry in enumerate(part.records) if entry[0] == partition]
            if places:
                digests = tuple(part.digests[place] for place in places) if part.digests else ()
                parts.append(Poll(tuple(part.records[place] for place in places), digests))
    return tuple(parts)


def check_shard(number: int, plan: ShardPlan, history: History, options: CheckOptions) -> ShardResult:
    """Judges one shard; reads its operations up to three times, in their order."""
    findings = Findings(options)
    pipe, bank = plan.pipe(number), plan.bank(number)
    if pipe is not None or bank is not None:
        checker = PipeChecker(*pipe, findings) if pipe is not None else BankChecker(cast("Bank", bank), findings)
        for operation in history:
            checker.add(operation)
        checker.finish()
        name_witnesses(history, findings)
        return _result(findings)
    if number == COMMON:
        owners, leaders = OwnershipChecker(findings), SplitBrainChecker(findings)
        for operation in history:
            owners.add(operation)
            leaders.add(operation)
            check_progress(operation, findings)
        result = _result(findings)
        result.leaderships = leaders.leaderships
        return result
    return _check_partition(history, findings)


def _check_partition(history: History, findings: Findings) -> ShardResult:
    orders = Orders(history, findings)
    check_writes(orders, findings)
    steps, cycles, skips = StepChecker(orders, findings), CycleChecker(orders, findings), SkipChecker(orders, findings)
    identity = IdentityChecker(orders, findings)
    for operation in history:
        identity.add(operation)
        steps.add(operation)
        check_own_reads(operation, orders, findings)
        cycles.add(operation)
        skips.add(operation)
    skips.finish()
    name_witnesses(history, findings)
    writes = Dependencies()
    for order in orders.partitions.values():
        add_write_dependencies(order, cycles.is_committed, writes)
    result = _result(findings)
    result.figures = orders.figures()
    result.writes = (writes.first.tobytes(), writes.second.tobytes())
    committed_reads = Dependencies()
    for first, second in zip(cycles.reads.first, cycles.reads.second, strict=True):
        if cycles.is_committed(first):
            committed_reads.add(first, second)
    result.reads = (committed_reads.first.tobytes(), committed_reads.second.tobytes())
    result.unknown = [(index, send) for index, sends in orders.open_transactions() for send in sends]
    result.topics_read = orders.topics_read()
    return result


def _result(findings: Findings) -> ShardResult:
    return ShardResult(dict(findings.counts), findings.forbidden, list(findings.kept))


def merge(results: Iterable[ShardResult], operations: int, options: CheckOptions) -> Verdict:
    """Joins the results of all shards. ``operations`` is the number of operations in the whole history.

    Memory grows with the number of dependencies between transactions.
    """
    findings = Findings(options)
    parts: list[Figures] = []
    leaderships = 0
    writes, reads = Dependencies(), Dependencies()
    unknown: dict[int, list[OpenSend]] = {}
    topics_read: set[str] = set()
    for result in results:
        for kind, count in result.counts.items():
            findings.counts[kind] = findings.counts.get(kind, 0) + count
        findings.forbidden += result.forbidden
        findings.kept += result.kept
        if result.figures is not None:
            parts.append(result.figures)
        leaderships += result.leaderships
        writes.extend(Dependencies(*result.writes))
        reads.extend(Dependencies(*result.reads))
        for index, send in result.unknown:
            unknown.setdefault(index, []).append(send)
        topics_read |= result.topics_read
    if not findings.counts.get(AnomalyKind.STUCK):
        check_open_transactions(sorted(unknown.items()), topics_read, findings)
    committed = array("q", sorted({*writes.first, *writes.second, *reads.first, *reads.second}))
    find_cycles(committed, writes, reads, findings)
    return Verdict(
        valid=findings.forbidden == 0,
        counts=findings.counts,
        anomalies=_first_of_each_kind(findings.kept),
        figures=replace(_sum(parts, operations), leaderships=leaderships),
    )


def _first_of_each_kind(kept: Sequence[Anomaly]) -> tuple[Anomaly, ...]:
    seen: dict[AnomalyKind, int] = {}
    found = []
    for anomaly in sorted(kept, key=lambda one: (one.kind.value, one.operations, one.text)):
        seen[anomaly.kind] = seen.get(anomaly.kind, 0) + 1
        if seen[anomaly.kind] <= DETAILS_MAX:
            found.append(anomaly)
    return tuple(found)


def _sum(parts: Sequence[Figures], operations: int) -> Figures:
    return Figures(
        operations=operations,
        sends_acknowledged=sum(part.sends_acknowledged for part in parts),
        sends_failed=sum(part.sends_failed for part in parts),
        sends_unknown=sum(part.sends_unknown for part in parts),
        records_polled=sum(part.records_polled for part in parts),
        values_seen=sum(part.values_seen for part in parts),
        partitions=sum(part.partitions for part in parts),
    )


def plan_shards(partitions: Iterable[TopicPartition], options: CheckOptions) -> ShardPlan:
    """Plans the shards of a history that touches these partitions."""
    return ShardPlan(tuple(sorted(dict.fromkeys(partitions))), options.pipes, options.banks)


def check_in_shards(history: History, options: CheckOptions) -> Verdict:
    """Judges a history in shards within this process: for tests and for measurements."""
    plan = plan_shards((partition for operation in history for partition in touched(operation)), options)
    numbers = {partition: number for number, partition in enumerate(plan.partitions)}
    shards: dict[int, list[Operation]] = {number: [] for number in plan.numbers}
    count = 0
    for operation in history:
        count += 1
        for number, part in split(operation, plan, numbers):
            shards[number].append(part)
    return merge((check_shard(number, plan, shards[number], options) for number in plan.numbers), count, options)
