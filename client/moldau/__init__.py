"""Moldau, a Kafka-compatible replicated log in Python: the client, and the base of all other packages.

    from moldau import Producer, Consumer, Admin           # trio: `async with Producer({...}) as producer`
    from moldau.aio import Producer, Consumer, Admin       # the same for asyncio
    from moldau.blocking import Producer, Consumer, Admin  # the same for ordinary threads

Importing the package loads no client; each is loaded at its first use. ``MOLDAU_PURE_PYTHON=1`` in the environment
keeps the package from using its extension modules (``moldau.implementation``).

API, which changes only after a deprecation: the names in ``__all__`` of ``moldau``, ``moldau.producer``,
``moldau.consumer``, ``moldau.share``, ``moldau.admin``, ``moldau.aio``, ``moldau.blocking``, ``moldau.serialization``,
``moldau.processing`` and ``moldau.tracing``.

Internal, which any release may change: ``moldau.protocol``, ``moldau.records``, ``moldau.runtime`` and
``moldau.cluster``, on which the brokers stand too, ``moldau.mirror``, which ``moldau mirror`` runs, and the sub-modules
of the packages above.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from moldau.lazy import lazy_names
from moldau.version import VERSION

if TYPE_CHECKING:
    from moldau.admin import Admin, AdminError, NewTopic
    from moldau.cluster.interceptors import ConsumerInterceptor, ProducerInterceptor
    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer import CommitFailedError, CommittedOffset, ConsumedBatch, ConsumedRecord, Consumer
    from moldau.producer import (
        AbortableTransactionError,
        FatalTransactionError,
        Producer,
        ProducerFencedError,
        RecordMetadata,
        TransactionAbortedError,
        TransactionError,
    )
    from moldau.protocol.errors import ErrorCode, KafkaError
    from moldau.records import Record
    from moldau.runtime.config import ConfigError
    from moldau.serialization import RecordDeserializationError, SerializationError
    from moldau.share import AcknowledgeType, ShareConsumer, ShareRecord

# Imported by name, so that the pure modules do not depend on a module that reads the environment.
importlib.import_module("moldau.implementation").choose_implementation()

__version__ = VERSION
__all__ = [
    "AbortableTransactionError",
    "AcknowledgeType",
    "Admin",
    "AdminError",
    "CommitFailedError",
    "CommittedOffset",
    "ConfigError",
    "ConsumedBatch",
    "ConsumedRecord",
    "Consumer",
    "ConsumerInterceptor",
    "ErrorCode",
    "FatalTransactionError",
    "KafkaError",
    "NewTopic",
    "Producer",
    "ProducerFencedError",
    "ProducerInterceptor",
    "Record",
    "RecordDeserializationError",
    "RecordMetadata",
    "SerializationError",
    "ShareConsumer",
    "ShareRecord",
    "TopicPartition",
    "TransactionAbortedError",
    "TransactionError",
    "__version__",
]

_HOMES = {
    "AbortableTransactionError": "producer",
    "AcknowledgeType": "share",
    "Admin": "admin",
    "AdminError": "admin",
    "CommitFailedError": "consumer",
    "CommittedOffset": "consumer",
    "ConfigError": "runtime.config",
    "ConsumedBatch": "consumer",
    "ConsumedRecord": "consumer",
    "Consumer": "consumer",
    "ConsumerInterceptor": "cluster.interceptors",
    "ErrorCode": "protocol.errors",
    "FatalTransactionError": "producer",
    "KafkaError": "protocol.errors",
    "NewTopic": "admin",
    "Producer": "producer",
    "ProducerFencedError": "producer",
    "ProducerInterceptor": "cluster.interceptors",
    "Record": "records",
    "RecordDeserializationError": "serialization",
    "RecordMetadata": "producer",
    "SerializationError": "serialization",
    "ShareConsumer": "share",
    "ShareRecord": "share",
    "TopicPartition": "cluster.metadata",
    "TransactionAbortedError": "producer",
    "TransactionError": "producer",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
