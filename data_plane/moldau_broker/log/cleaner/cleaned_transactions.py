"""The transactions of a log while the cleaner reads its batches in order (CleanedTransactionMetadata).

They show which data is aborted, and which markers still have data. An aborted transaction is known by its entry in a
segment's transaction index: it holds its producer's transactional batches from its first offset up to its marker. It
ends at the marker's offset even if the marker is not read. The offset map is built from dirty segments alone, and an
aborted transaction that ended in a clean segment has no effect on later transactions of its producer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_broker.log.files.batches import TRANSACTIONAL_BIT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.records import BatchHeader
    from moldau_broker.log.files.transaction_index import AbortedEntry


@dataclass(slots=True)
class AbortedTransaction:
    """An aborted transaction that has begun in the batches read so far."""

    entry: AbortedEntry
    has_data: bool = False


class CleanedTransactions:
    """The transactions of the batches that one pass over a log reads, in rising order."""

    def __init__(self, aborted: Iterable[AbortedEntry]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._committed_seen: dict[int, None] = {}
        self.kept: list[AbortedEntry] = []  # their data was read: entries of the cleaned segment's index

    def _aborted_at(self, header: BatchHeader) -> AbortedTransaction | None:
        """Returns the aborted transaction that contains the batch, if any."""
        while self._waiting and self._waiting[-1].first_offset <= header.last_offset:
            entry = self._waiting.pop()
            self._aborted[entry.producer_id] = AbortedTransaction(entry)
        found = self._aborted.get(header.producer_id)
        if found is not None and found.entry.last_offset < header.base_offset:
            del self._aborted[header.producer_id]
            return None
        return found

    def is_aborted_data(self, header: BatchHeader) -> bool:
        """Returns whether a data batch belongs to an aborted transaction."""
        transaction = self._aborted_at(header)
        if not header.attributes & TRANSACTIONAL_BIT:
            return False
        if transaction is not None:
            transaction.has_data = True
            return True
        self._committed_seen[header.producer_id] = None
        return False

    def is_marker_of_nothing(self, header: BatchHeader, *, commit: bool) -> bool:
        """Returns whether the control batch ends a transaction without any data in the batches read."""
        transaction = self._aborted_at(header)
        if commit:
            return self._committed_seen.pop(header.producer_id, 0) == 0
        if transaction is None:
            return True
        del self._aborted[header.producer_id]
        if transaction.has_data:
            self.kept.append(transaction.entry)
        return not transaction.has_data
