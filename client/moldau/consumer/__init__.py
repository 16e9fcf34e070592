"""The consumer: positions, chunks, assignors and membership (pure), fetcher, group client and ``Consumer`` (trio)."""

from moldau.consumer.consumer import Consumer
from moldau.consumer.fetcher import CommittedOffset, LogTruncatedError, OffsetOutOfRangeError
from moldau.consumer.group import CommitFailedError
from moldau.consumer.values import ConsumedBatch, ConsumedColumns

__all__ = [
    "CommitFailedError",
    "CommittedOffset",
    "ConsumedBatch",
    "ConsumedColumns",
    "Consumer",
    "LogTruncatedError",
    "OffsetOutOfRangeError",
]
