"""Checks of acknowledgements, and the record batches of a read. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.server.share.core.values import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau_broker.server.share.core.values import AcknowledgementBatch


def acknowledgement_problem(batches: Sequence[AcknowledgementBatch], *, renew_allowed: bool) -> str | None:
    """Returns why Kafka refuses the batches of one partition with INVALID_REQUEST; None if it does not.

    Batches must ascend without overlap, and have one type or one for each offset. ``RENEW`` is allowed only in a
    request that announces renewals (KIP-1222).
    """
    highest = AcknowledgeType.RENEW if renew_allowed else AcknowledgeType.REJECT
    end = 0
    for batch in batches:
        if batch.first > batch.last:
            return f"The last offset {batch.last} is before the first offset {batch.first}."
        if batch.first < end:
            return f"The first offset {batch.first} is before the end of the batch before it."
        if not batch.types:
            return "A batch has no acknowledge type."
        if len(batch.types) not in (1, batch.last - batch.first + 1):
            return f"{len(batch.types)} acknowledge types do not fit offsets {batch.first} to {batch.last}."
        if min(batch.types) < AcknowledgeType.GAP or max(batch.types) > highest:
            return "A batch has an invalid acknowledge type."
        end = batch.last + 1
    return None


def aborted_ranges(
    batches: Iterable[tuple[int, int, int, bool, bool]], aborted: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Returns the offsets of aborted record batches, as ascending ranges with exclusive ends.

    ``batches`` are base offset, end offset, producer id, and whether the batch is transactional and a control batch;
    ``aborted`` are producer id and first offset of aborted transactions, as Fetch reports them. Such a transaction ends
    with the next control batch of its producer.
    """
    found: list[tuple[int, int]] = []
    waiting = sorted(aborted, key=lambda each: each[1], reverse=True)
    active: dict[int, None] = {}
    for base_offset, end_offset, producer_id, is_transactional, is_control in batches:
        while waiting and waiting[-1][1] < end_offset:
            active[waiting.pop()[0]] = None
        if is_control:
            active.pop(producer_id, None)
        elif is_transactional and producer_id in active:
            if found and found[-1][1] == base_offset:
                found[-1] = (found[-1][0], end_offset)
            else:
                found.append((base_offset, end_offset))
    return found
