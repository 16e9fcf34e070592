"""All checkers over one history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau_jepsen.checkers.anomalies import CheckOptions, Findings, Verdict
from moldau_jepsen.checkers.cycles import check_cycles
from moldau_jepsen.checkers.groups import check_ownership, check_progress
from moldau_jepsen.checkers.orders import Orders, check_atomicity, check_writes
from moldau_jepsen.checkers.pipe import check_pipe
from moldau_jepsen.checkers.steps import StepChecker, check_own_reads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau_jepsen.history import Operation


class History(Protocol):
    """Operations that can be read from the beginning several times: a sequence, or a file (``HistoryFile``)."""

    def __iter__(self) -> Iterator[Operation]: ...


def check_history(history: History, options: CheckOptions) -> Verdict:
    """Judges a history.

    Memory is some 25 bytes per record of the longest partition order plus what transactions need for their graph; the
    operations themselves are never held.

    Args:
        history: Read several times from its beginning.
        options: What was promised.

    Raises:
        HistoryError: a value or an offset is not a number that a workload gives.
    """
    findings = Findings(options)
    orders = Orders(history, findings)
    check_writes(orders, findings)
    check_atomicity(orders, findings)
    StepChecker(orders, findings).run(history)
    check_own_reads(history, findings)
    check_cycles(history, orders, findings)
    check_ownership(history, findings)
    check_progress(history, findings)
    for source, target in options.pipes:
        check_pipe(history, source, target, findings)
    return Verdict(
        valid=findings.forbidden == 0,
        counts=findings.counts,
        anomalies=tuple(findings.kept),
        figures=orders.figures(),
    )
