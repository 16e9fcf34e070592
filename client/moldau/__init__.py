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
    "AbortableTransactionError": "moldau.producer",
    "AcknowledgeType": "moldau.share",
    "Admin": "moldau.admin",
    "AdminError": "moldau.admin",
    "CommitFailedError": "moldau.consumer",
    "CommittedOffset": "moldau.consumer",
    "ConfigError": "moldau.runtime.config",
    "ConsumedBatch": "moldau.consumer",
    "ConsumedRecord": "moldau.consumer",
    "Consumer": "moldau.consumer",
    "ConsumerInterceptor": "moldau.cluster.interceptors",
    "ErrorCode": "moldau.protocol.errors",
    "FatalTransactionError": "moldau.producer",
    "KafkaError": "moldau.protocol.errors",
    "NewTopic": "moldau.admin",
    "Producer": "moldau.producer",
    "ProducerFencedError": "moldau.producer",
    "ProducerInterceptor": "moldau.cluster.interceptors",
    "Record": "moldau.records",
    "RecordDeserializationError": "moldau.serialization",
    "RecordMetadata": "moldau.producer",
    "SerializationError": "moldau.serialization",
    "ShareConsumer": "moldau.share",
    "ShareRecord": "moldau.share",
    "TopicPartition": "moldau.cluster.metadata",
    "TransactionAbortedError": "moldau.producer",
    "TransactionError": "moldau.producer",
}


def __getattr__(name: str) -> object:
    """Loads a client when it is first named (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, also those that are not loaded yet, and the module's own."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
