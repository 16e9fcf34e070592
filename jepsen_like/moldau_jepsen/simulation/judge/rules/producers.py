"""Judges the producers of a partition's committed batches, in the order of their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

SEQUENCE_MASK = 0x7FFFFFFF
UNKNOWN = -2
FRESH = -1


class ProducerBatch(NamedTuple):
    """The writer of a batch; ``base_sequence`` is negative if it has no sequence numbers (coordinators)."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    is_control: bool


NO_PRODUCER = ProducerBatch(-1, -1, -1, -1, False)


class ProducerRules:
    """Judges all partitions of a run.

    State per partition and producer: its epoch and last sequence; FRESH after a change of epoch, UNKNOWN where the
    first batch seen decides.
    """

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._violated = violated
        self._known: dict[tuple[Hashable, int], tuple[int, int]] = {}
        self.wrapped = 0
        """How often the sequence numbers of a producer began again at 0."""

    def committed(self, key: Hashable, base_offset: int, batch: ProducerBatch) -> None:
        """The next committed batch of partition ``key``."""
        if batch.producer_id < 0:
            return
        slot = (key, batch.producer_id)
        epoch, last = self._known.get(slot, (batch.producer_epoch, UNKNOWN))
        where = f"{key} at offset {base_offset}: producer {batch.producer_id}"
        if batch.producer_epoch < epoch:
            self._violated("producer-epoch", f"{where} writes with epoch {batch.producer_epoch} after {epoch}")
            return
        if batch.producer_epoch > epoch:
            epoch, last = batch.producer_epoch, FRESH
        if not batch.is_control and batch.base_sequence >= 0:
            expected = (last + 1) & SEQUENCE_MASK
            if last != UNKNOWN and batch.base_sequence != expected:
                self._violated(
                    "producer-sequence",
                    f"{where} (epoch {epoch}) has sequence {batch.base_sequence}, {expected} was to come",
                )
            self.wrapped += batch.last_sequence < batch.base_sequence or (expected == 0 and last > 0)
            last = batch.last_sequence
        self._known[slot] = (epoch, last)
