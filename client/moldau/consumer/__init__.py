"""The consumer: ``Consumer`` for trio, with its values and errors; ``core`` holds its pure cores."""

from moldau.cluster.committed import CommittedOffset
from moldau.cluster.troubles import InvalidTopicError
from moldau.consumer.consumer import Consumer
from moldau.consumer.core.statistics import ConsumerStatistics, PartitionStatistics
from moldau.consumer.core.values import ConsumedBatch, ConsumedColumns, ConsumedRecord, RebalanceCallback
from moldau.consumer.fetcher import LogTruncatedError, OffsetOutOfRangeError
from moldau.consumer.group import CommitFailedError

__all__ = [
    "CommitFailedError",
    "CommittedOffset",
    "ConsumedBatch",
    "ConsumedColumns",
    "ConsumedRecord",
    "Consumer",
    "ConsumerStatistics",
    "InvalidTopicError",
    "LogTruncatedError",
    "OffsetOutOfRangeError",
    "PartitionStatistics",
    "RebalanceCallback",
]
