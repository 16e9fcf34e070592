"""Runs all checkers over one history."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from moldau_jepsen.checkers.anomalies import CheckOptions, Findings, Verdict
from moldau_jepsen.checkers.group.groups import OwnershipChecker, SkipChecker, check_progress
from moldau_jepsen.checkers.group.pipe import PipeChecker
from moldau_jepsen.checkers.log.identity import IdentityChecker
from moldau_jepsen.checkers.log.orders import Orders, check_writes
from moldau_jepsen.checkers.log.split_brain import SplitBrainChecker
from moldau_jepsen.checkers.log.steps import StepChecker, check_own_reads
from moldau_jepsen.checkers.transaction.bank import BankChecker
from moldau_jepsen.checkers.transaction.cycles import CycleChecker
from moldau_jepsen.checkers.transaction.open_transactions import check_open_transactions
from moldau_jepsen.checkers.witnesses import name_witnesses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau_jepsen.history import Operation


class History(Protocol):
    """Operations that can be read from the beginning several times: a sequence, or a file (``HistoryFile``)."""

    def __iter__(self) -> Iterator[Operation]: ...


def check_history(history: History, options: CheckOptions) -> Verdict:
    """Judges a history.

    Memory is about 36 bytes per record, one more for each group that reads it, 60 more per transaction, 30 more per
    record of a pipe, about 300 more per record of a transaction of unknown outcome, and 600 more per transfer of a
    bank; the operations themselves are not kept.

    Args:
        history: Is read twice from its beginning, and a third time if it has anomalies.
        options: The promised guarantees.

    Raises:
        HistoryError: A sent value is not a number that a workload assigns. Offsets of any size are judged.
    """
    findings = Findings(options)
    orders = Orders(history, findings)
    check_writes(orders, findings)
    if not orders.is_stuck:
        check_open_transactions(orders.open_transactions(), orders.topics_read(), findings)
    steps, cycles, owners = StepChecker(orders, findings), CycleChecker(orders, findings), OwnershipChecker(findings)
    skips, leaders = SkipChecker(orders, findings), SplitBrainChecker(findings)
    identity = IdentityChecker(orders, findings)
    several: list[PipeChecker | BankChecker] = [
        *(PipeChecker(source, target, findings) for source, target in options.pipes),
        *(BankChecker(bank, findings) for bank in options.banks),
    ]
    for operation in history:
        identity.add(operation)
        steps.add(operation)
        check_own_reads(operation, orders, findings)
        cycles.add(operation)
        owners.add(operation)
        skips.add(operation)
        leaders.add(operation)
        check_progress(operation, findings)
        for checker in several:
            checker.add(operation)
    cycles.finish()
    skips.finish()
    for checker in several:
        checker.finish()
    name_witnesses(history, findings)
    return Verdict(
        valid=findings.forbidden == 0,
        counts=findings.counts,
        anomalies=tuple(findings.kept),
        figures=replace(orders.figures(), leaderships=leaders.leaderships),
    )
