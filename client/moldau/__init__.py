"""Moldau: a Kafka-compatible replicated log in Python. This package is the client and the base that all else stands on.

    from moldau import Producer, Consumer, Admin           # trio: `async with Producer({...}) as producer`
    from moldau.blocking import Producer, Consumer, Admin  # the same for ordinary threads

Importing the package loads nothing; the clients are loaded when they are first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.admin import Admin
    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer import Consumer
    from moldau.producer import Producer
    from moldau.protocol.errors import ErrorCode, KafkaError

__version__ = "0.1.0"
__all__ = ["Admin", "Consumer", "ErrorCode", "KafkaError", "Producer", "TopicPartition", "__version__"]

_HOMES = {
    "Admin": "moldau.admin",
    "Consumer": "moldau.consumer",
    "ErrorCode": "moldau.protocol.errors",
    "KafkaError": "moldau.protocol.errors",
    "Producer": "moldau.producer",
    "TopicPartition": "moldau.cluster.metadata",
}


def __getattr__(name: str) -> object:
    """Loads a client when it is first named (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
