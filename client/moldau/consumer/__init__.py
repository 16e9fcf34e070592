"""The consumer: ``Consumer`` for trio, with its values and errors; ``core`` holds its pure cores.

Importing the package loads none of them, because a broker uses only a few values of ``core``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.lazy import lazy_names

if TYPE_CHECKING:
    from moldau.cluster.committed import CommittedOffset, OffsetsUnknownError
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
    "OffsetsUnknownError",
    "PartitionStatistics",
    "RebalanceCallback",
]

_HOMES = {
    "CommitFailedError": "group",
    "CommittedOffset": "offsets",
    "ConsumedBatch": "core.values",
    "ConsumedColumns": "core.values",
    "ConsumedRecord": "core.values",
    "Consumer": "consumer",
    "ConsumerStatistics": "core.statistics",
    "InvalidTopicError": "topic_watch",
    "LogTruncatedError": "fetcher",
    "OffsetOutOfRangeError": "fetcher",
    "OffsetsUnknownError": "group",
    "PartitionStatistics": "core.statistics",
    "RebalanceCallback": "core.values",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
