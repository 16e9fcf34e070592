"""The producer: accumulator and partitioners (pure), sender and ``Producer`` (trio)."""

from moldau.producer.delivery import Delivery, RecordMetadata
from moldau.producer.partitioner import PartitionerFunction, partition_for_key
from moldau.producer.producer import BufferExhaustedError, Producer
from moldau.producer.transaction_values import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionError,
)

__all__ = [
    "AbortableTransactionError",
    "BufferExhaustedError",
    "Delivery",
    "FatalTransactionError",
    "PartitionerFunction",
    "Producer",
    "ProducerFencedError",
    "RecordMetadata",
    "TransactionAbortedError",
    "TransactionError",
    "partition_for_key",
]
