"""Judges transactions of unknown outcome by the records that other clients saw of them.

If a reader of committed data polled one record of a transaction, the transaction was committed: all of its records
count as acknowledged, and each one that is never polled is a lost write. Two facts show that it cannot appear later:
its offset, if the client learned it, is not above the polled offsets of the partition; or the final phase has read the
topic to its end. The transaction is also torn if the final phase saw only a part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import AnomalyKind
from moldau_jepsen.checkers.log.orders import NOTHING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from moldau_jepsen.checkers.anomalies import Findings
    from moldau_jepsen.checkers.log.orders import OpenSend


def check_open_transactions(
    transactions: Iterable[tuple[int, Sequence[OpenSend]]], topics_read: Collection[str], findings: Findings
) -> None:
    """Finds transactions of unknown outcome that are torn, and lost writes of those that are proven committed.

    Args:
        transactions: The operation of each transaction, and its sends.
        topics_read: Topics that the final phase has read to their ends; do not call if the final phase is stuck.
        findings: Takes the anomalies.
    """
    for index, unordered in transactions:
        sends = sorted(unordered)
        if findings.options.final_phase:
            _add_torn(index, sends, findings)
        if findings.options.read_committed:  # other readers see records that are aborted later
            _add_lost(index, sends, topics_read if findings.options.final_phase else (), findings)


def _add_torn(index: int, sends: Sequence[OpenSend], findings: Findings) -> None:
    """Adds a transaction if the final read saw some of its sends but not all."""
    seen = [send for send in sends if send.was_read]
    if seen and len(seen) < len(sends):
        missing = ", ".join(f"{send.value} of {send.partition}" for send in sends if not send.was_read)
        readers = [send.reader for send in seen if send.reader != NOTHING]
        findings.add(
            AnomalyKind.TORN,
            f"a transaction was seen without its values {missing}",
            partition=seen[0].partition,
            operations=(index, *readers),
        )


def _add_lost(index: int, sends: Sequence[OpenSend], topics_read: Collection[str], findings: Findings) -> None:
    """Adds the sends that were not polled, of a transaction with another send that was polled."""
    proof = next((send for send in sends if send.was_polled), None)
    if proof is None:
        return
    for send in sends:
        if send.was_polled:
            continue
        offsets: tuple[int, ...] = ()
        if send.passed_by != NOTHING:
            text, offsets = f"though offset {send.passed_by} was", (send.offset, send.passed_by)
        elif send.partition.topic in topics_read:
            text = "and is not in the final read"
        else:
            continue
        landed = f", which landed at offset {send.offset}," if send.offset != NOTHING else ""
        findings.add(
            AnomalyKind.LOST_WRITE,
            f"value {send.value}{landed} of a transaction that was committed, for its value {proof.value} of "
            f"{proof.partition} was polled, was never polled, {text}",
            partition=send.partition,
            operations=(index, proof.poller) if proof.poller != NOTHING else (index,),
            offsets=offsets,
        )
