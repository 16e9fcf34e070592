"""The producer: accumulator and partitioners (pure), sender and ``Producer`` (trio)."""

from moldau.producer.delivery import Delivery, RecordMetadata
from moldau.producer.partitioner import PartitionerFunction, partition_for_key
from moldau.producer.producer import BufferExhaustedError, Producer

__all__ = ["BufferExhaustedError", "Delivery", "PartitionerFunction", "Producer", "RecordMetadata", "partition_for_key"]
