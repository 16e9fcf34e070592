"""Clients for ordinary threads, with the same calls as the trio clients, blocking.

    with Producer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
        delivery = producer.send("flights", b"value", key=b"key")
        print(delivery.result())

Theory of operation: each client starts one thread that runs trio and the trio client. A call runs in that thread, and
the caller waits for its result. The thread is needed because heartbeats, prefetching and deliveries must go on while
the caller's thread does something else; Moldau starts no other threads except those for disks. Any number of threads
may share a producer or an admin client; one thread at a time may use a consumer. Records passed to ``send`` wait in a
bounded queue until the trio thread takes them, many at a time: a thread switch for each record would cost more than
the record itself. An interrupt (Ctrl-C) cancels the call in the trio thread and undoes its effects.

Importing the package loads no client; each is loaded at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.lazy import lazy_names

if TYPE_CHECKING:
    from moldau.blocking.admin import Admin
    from moldau.blocking.consumer import Consumer
    from moldau.blocking.processing import process
    from moldau.blocking.producer import BlockingDelivery, Producer
    from moldau.blocking.share import ShareConsumer

__all__ = ["Admin", "BlockingDelivery", "Consumer", "Producer", "ShareConsumer", "process"]

_HOMES = {
    "Admin": "admin",
    "BlockingDelivery": "producer",
    "Consumer": "consumer",
    "Producer": "producer",
    "ShareConsumer": "share",
    "process": "processing",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
