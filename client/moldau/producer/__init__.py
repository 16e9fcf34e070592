"""The producer: ``Producer`` for trio, with its values and errors; ``core`` holds its pure cores.

A name is loaded at its first use: most programs need no statistics, and few need transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.lazy import lazy_names

if TYPE_CHECKING:
    from moldau.producer.core.output import OutputRecord
    from moldau.producer.core.partitioner import PartitionerFunction, partition_for_key
    from moldau.producer.core.statistics import ProducerStatistics, TopicStatistics
    from moldau.producer.core.transaction_errors import (
        AbortableTransactionError,
        FatalTransactionError,
        ProducerFencedError,
        TransactionAbortedError,
        TransactionError,
    )
    from moldau.producer.core.transaction_values import PreparedTransaction
    from moldau.producer.delivery import Delivery, RecordMetadata
    from moldau.producer.intake import BufferExhaustedError
    from moldau.producer.producer import Producer

__all__ = [
    "AbortableTransactionError",
    "BufferExhaustedError",
    "Delivery",
    "FatalTransactionError",
    "OutputRecord",
    "PartitionerFunction",
    "PreparedTransaction",
    "Producer",
    "ProducerFencedError",
    "ProducerStatistics",
    "RecordMetadata",
    "TopicStatistics",
    "TransactionAbortedError",
    "TransactionError",
    "partition_for_key",
]

_HOMES = {
    "AbortableTransactionError": "core.transaction_errors",
    "BufferExhaustedError": "intake",
    "Delivery": "delivery",
    "FatalTransactionError": "core.transaction_errors",
    "OutputRecord": "core.output",
    "PartitionerFunction": "core.partitioner",
    "PreparedTransaction": "core.transaction_values",
    "Producer": "producer",
    "ProducerFencedError": "core.transaction_errors",
    "ProducerStatistics": "core.statistics",
    "RecordMetadata": "delivery",
    "TopicStatistics": "core.statistics",
    "TransactionAbortedError": "core.transaction_errors",
    "TransactionError": "core.transaction_errors",
    "partition_for_key": "core.partitioner",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
