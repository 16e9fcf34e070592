"""Checks what Kafka promises to producers without idempotence that wait for one acknowledgement, or for none.

With ``acks=1`` an acknowledged record is at its offset, or it was lost because the partition has got another leader
since. A producer that does not retry writes no record twice. If it does not retry, or has one request in flight, its
records keep their order. With ``acks=0`` no record is written twice, and no offset is reported. In each case a record
that was read stays where it is, and no record comes from anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.checkers.log.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

NO_OFFSET = -1
"""Offset of a record without an answer."""


@dataclass(slots=True, kw_only=True)
class FewAcksSend:
    """One record, sent once by the application; ``number`` orders those of all producers by their begins."""

    number: int
    producer: int
    """Number of the producer; a crash ends it, and its successor has another one."""
    partition: int
    value: str
    """Unlike that of any other record."""
    acks: int
    """0 or 1."""
    retries: bool
    """Whether its producer sends a batch again after an error."""
    in_flight: int
    """Requests that its producer has in flight at most."""
    is_acknowledged: bool = False
    offset: int = NO_OFFSET
    """The offset that was reported."""
    leader_epoch: int = -1
    """Leader epoch that its producer knew when it sent the record; the broker that acknowledged it may have had a later
    one."""


class FewAcksRead(NamedTuple):
    """The records of a partition that one read returned."""

    partition: int
    records: tuple[tuple[int, str], ...]
    """Offsets and values, in the order of delivery."""


def check_few_acks(
    sends: Sequence[FewAcksSend],
    reads: Iterable[FewAcksRead],
    final: Sequence[FewAcksRead],
    leader_epochs: Mapping[int, int],
) -> list[str]:
    """Returns the anomalies, one sentence each.

    ``sends`` are in the order of their numbers. ``reads`` happened before the end. ``final`` has a read of each
    partition from its beginning to its end, after the last send; of a partition without it nothing counts as lost.
    ``leader_epochs`` are those of the partitions then.
    """
    found = [text for each in sends if (text := _wrong_answer(each)) is not None]
    reaches: dict[int, Reach] = {}
    sends = _possible_sends(sends, reaches, found)
    reads = _possible_reads(reads, reaches, found)
    final = _possible_reads(final, reaches, found)
    sent = {each.value: each for each in sends}
    at_end = {read.partition: dict(read.records) for read in final}
    found += _shared_offsets(sends, leader_epochs)
    for read in (*reads, *final):
        found += _strangers(read, sent)
    for read in reads:
        if read.partition not in at_end:
            continue
        left = at_end[read.partition]
        found += [
            f"partition {read.partition}: {value!r} was read at offset {offset}; {_there(left, offset)} there now"
            for offset, value in read.records
            if left.get(offset) != value
        ]
    for partition, left in at_end.items():
        found += _lost(sends, partition, left, leader_epochs)
        found += _repeated(sent, partition, left)
        found += _disordered(sends, partition, left)
    return list(dict.fromkeys(found))


def _wrong_answer(send: FewAcksSend) -> str | None:
    if send.acks == 0 and send.offset != NO_OFFSET:
        return f"{send.value!r} was sent with acks=0, and the offset {send.offset} was reported"
    if send.acks == 1 and send.is_acknowledged and send.offset == NO_OFFSET:
        return f"{send.value!r} was acknowledged with acks=1 and without an offset"
    return None


def _possible_sends(sends: Iterable[FewAcksSend], reaches: dict[int, Reach], found: list[str]) -> list[FewAcksSend]:
    """Returns the sends; one that was acknowledged at an offset that no log has is a finding, and has no outcome."""
    kept = []
    for each in sends:
        reach = reaches.setdefault(each.partition, Reach())
        if each.offset == NO_OFFSET or reach.admits(each.offset):
            kept.append(each)
            continue
        where = f"partition {each.partition}: {each.value!r} of producer {each.producer} was acknowledged"
        found.append(f"{where} at offset {each.offset}, {reach.refusal(each.offset)}")
        kept.append(replace(each, offset=NO_OFFSET, is_acknowledged=False))
    return kept


def _possible_reads(reads: Iterable[FewAcksRead], reaches: dict[int, Reach], found: list[str]) -> list[FewAcksRead]:
    """Returns the reads without records at offsets that no log has, each of which is a finding."""
    kept = []
    for read in reads:
        reach = reaches.setdefault(read.partition, Reach())
        found += [
            f"partition {read.partition}: {value!r} was read at offset {offset}, {reach.refusal(offset)}"
            for offset, value in read.records
            if not reach.admits(offset)
        ]
        kept.append(read._replace(records=tuple(record for record in read.records if record[0] in reach)))
    return kept


def _is_of_last_leader(send: FewAcksSend, leader_epochs: Mapping[int, int]) -> bool:
    """Returns whether the last leader acknowledged a record: no epoch follows the one that its producer knew."""
    is_acknowledged = send.acks == 1 and send.is_acknowledged
    return is_acknowledged and send.leader_epoch >= leader_epochs.get(send.partition, -1)


def _shared_offsets(sends: Sequence[FewAcksSend], leader_epochs: Mapping[int, int]) -> Iterator[str]:
    """One leader gives an offset once."""
    given: dict[tuple[int, int], str] = {}
    for each in sends:
        if _is_of_last_leader(each, leader_epochs):
            other = given.setdefault((each.partition, each.offset), each.value)
            if other != each.value:
                yield (
                    f"partition {each.partition}: {other!r} and {each.value!r} were both acknowledged at offset "
                    f"{each.offset} in leader epoch {each.leader_epoch}"
                )


def _strangers(read: FewAcksRead, sent: Mapping[str, FewAcksSend]) -> Iterator[str]:
    last = -1
    for offset, value in read.records:
        if offset <= last:
            yield f"partition {read.partition}: offset {offset} was read after {last}"
        last = max(last, offset)
        known = sent.get(value)
        if known is None or known.partition != read.partition:
            yield f"partition {read.partition}: offset {offset} holds {value!r}, which nothing has sent there"


def _lost(
    sends: Sequence[FewAcksSend], partition: int, left: Mapping[int, str], leader_epochs: Mapping[int, int]
) -> Iterator[str]:
    for each in sends:
        is_judged = each.partition == partition and _is_of_last_leader(each, leader_epochs)
        if is_judged and left.get(each.offset) != each.value:
            yield (
                f"partition {partition}: {each.value!r} was acknowledged with acks=1 at offset {each.offset} in leader "
                f"epoch {each.leader_epoch}, where {_there(left, each.offset)}, and no other leader followed"
            )


def _repeated(sent: Mapping[str, FewAcksSend], partition: int, left: Mapping[int, str]) -> Iterator[str]:
    first: dict[str, int] = {}
    for offset, value in left.items():
        known = sent.get(value)
        before = first.setdefault(value, offset)
        if known is not None and before != offset and (known.acks == 0 or not known.retries):
            how = "with acks=0" if known.acks == 0 else "without retries"
            yield f"partition {partition}: {value!r} was sent {how}, and is at the offsets {before} and {offset}"


def _disordered(sends: Sequence[FewAcksSend], partition: int, left: Mapping[int, str]) -> Iterator[str]:
    """Compares acknowledged records that are where they were acknowledged."""
    last: dict[int, FewAcksSend] = {}
    for each in sends:
        if each.partition != partition or each.acks != 1 or (each.retries and each.in_flight > 1):
            continue
        if not each.is_acknowledged or left.get(each.offset) != each.value:
            continue
        before = last.get(each.producer)
        if before is not None and before.offset > each.offset:
            yield (
                f"partition {partition}: producer {each.producer} sent {before.value!r} before {each.value!r}; their "
                f"offsets are {before.offset} and {each.offset}"
            )
        last[each.producer] = each


def _there(left: Mapping[int, str], offset: int) -> str:
    return f"{left[offset]!r} is" if offset in left else "nothing is"
