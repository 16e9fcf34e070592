"""The producer: ``Producer`` for trio, with its values and errors; ``core`` holds its pure cores."""

from moldau.producer.core.output import OutputRecord
from moldau.producer.core.partitioner import PartitionerFunction, partition_for_key
from moldau.producer.core.statistics import ProducerStatistics, TopicStatistics
from moldau.producer.core.transaction_values import (
    AbortableTransactionError,
    FatalTransactionError,
    PreparedTransaction,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionError,
)
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
