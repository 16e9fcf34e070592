"""The sizes of batches that topics take: below ``batch.size`` where a topic's ``max.message.bytes`` is small. Pure.

A producer may not read the configuration of topics, so it learns their limits from refusals. Kafka's producer learns in
the same way, but only how well the records of a topic compress (KIP-126).

Theory of operation: a refusal halves the size of a topic's batches, down to the largest one that the topic has taken.
After ``PATIENCE`` large batches in a row were taken, the size grows by a quarter, because the topic's limit may have
grown. A refusal of such an attempt returns to the size before and doubles the patience; a success restores it. So at
most one batch in ``PATIENCE`` is sent twice, and one in ``PATIENCE_MAX`` in the long run. Sizes are those before
compression, because a batch has to end before it is compressed.
"""

from __future__ import annotations

from moldau.records import BATCH_HEADER_BYTES

PATIENCE = 16
PATIENCE_MAX = 1024


class _TopicSize:
    """The knowledge about one topic that refused a batch. Invariant: 1 <= ``limit`` <= ``batch.size``."""

    __slots__ = ("accepted", "before", "large_in_row", "limit", "patience")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.accepted = 0  # the largest batch that was taken since the last refusal of one of its size
        self.before = 0  # the limit before an attempt that has no answer yet; 0 without one
        self.large_in_row = 0
        self.patience = PATIENCE


class BatchSizes:
    """The sizes to which batches may grow, by topic; ``batch.size`` for a topic that refused none."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._topics: dict[str, _TopicSize] = {}

    def limit(self, topic: str) -> int:
        """Returns the bytes that a batch for ``topic`` may have before compression."""
        known = self._topics.get(topic)
        return self._batch_size if known is None else known.limit

    def refused(self, topic: str, size: int) -> None:
        """Takes note that ``topic`` refused a batch of ``size`` bytes.

        A larger size than the present one teaches nothing: the batch is older than the last refusal.
        """
        known = self._topics.get(topic) or _TopicSize(self._batch_size)
        if size > known.limit:
            return
        if known.accepted >= size:
            known.accepted = 0  # the limit is smaller now, or the records compress worse
        known.patience = min(2 * known.patience, PATIENCE_MAX) if known.before else PATIENCE
        known.limit = max((size + BATCH_HEADER_BYTES) // 2, known.accepted)
        known.large_in_row = known.before = 0
        self._topics[topic] = known

    def accepted(self, topic: str, size: int) -> None:
        """Takes note that ``topic`` took a batch of ``size`` bytes."""
        known = self._topics.get(topic)
        if known is None:
            return
        known.accepted = max(known.accepted, size)
        if known.before and size > known.before:
            known.before, known.patience = 0, PATIENCE
            if known.limit == self._batch_size:
                del self._topics[topic]
                return
        if 2 * size <= known.limit:
            return  # of two batches in a row that were full, one is larger
        known.large_in_row += 1
        if known.large_in_row >= known.patience and known.limit < self._batch_size:
            known.large_in_row = 0
            known.before = known.limit
            known.limit = min(known.limit + known.limit // 4 + 1, self._batch_size)
