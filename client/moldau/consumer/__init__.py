"""The consumer: the pure cores in ``core``, and the trio shell with fetcher, group client and ``Consumer``."""

from moldau.cluster.troubles import InvalidTopicError
from moldau.consumer.consumer import Consumer
from moldau.consumer.core.values import ConsumedBatch, ConsumedColumns
from moldau.consumer.fetcher import CommittedOffset, LogTruncatedError, OffsetOutOfRangeError
from moldau.consumer.group import CommitFailedError

__all__ = [
    "CommitFailedError",
    "CommittedOffset",
    "ConsumedBatch",
    "ConsumedColumns",
    "Consumer",
    "InvalidTopicError",
    "LogTruncatedError",
    "OffsetOutOfRangeError",
]
