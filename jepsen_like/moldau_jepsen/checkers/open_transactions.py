"""Transactions whose outcome their clients were not told: what others saw of them tells it.

One record of a transaction that a reader of committed data polled proves that the transaction was committed: all of its
records count as acknowledged from then on, and each that nobody polls is a lost write. Two facts say that it cannot be
yet to come: its offset, where the client was told it before it lost sight of the transaction, lies at or below what was
polled of the partition; or the final phase has read the topic to its end. The transaction is torn, too, if it is the
final phase that saw a part of it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import AnomalyKind
from moldau_jepsen.checkers.orders import NOTHING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from moldau_jepsen.checkers.anomalies import Findings
    from moldau_jepsen.checkers.orders import OpenSend


def check_open_transactions(
    transactions: Iterable[tuple[int, Sequence[OpenSend]]], topics_read: Collection[str], findings: Findings
) -> None:
    """Finds transactions of unknown outcome that are torn, and lost writes of those that are proven committed.

    Args:
        transactions: The operation of each, and all that it sent.
        topics_read: Topics that the final phase has read to their ends; where it is stuck, do not call.
        findings: Takes the anomalies.
    """
    for index, unordered in transactions:
        sends = sorted(unordered)
        if findings.options.final_phase:
            _add_torn(index, sends, findings)
        if findings.options.read_committed:  # other readers see what is aborted later: they prove nothing
            _add_lost(index, sends, topics_read if findings.options.final_phase else (), findings)


def _add_torn(index: int, sends: Sequence[OpenSend], findings: Findings) -> None:
    """Adds a transaction if the final read saw some of its sends and not all."""
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
    """Adds the sends that nobody polled, of a transaction of which somebody polled another one."""
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
            f"{proof.partition} was polled, was polled by nobody, {text}",
            partition=send.partition,
            operations=(index, proof.poller) if proof.poller != NOTHING else (index,),
            offsets=offsets,
        )
