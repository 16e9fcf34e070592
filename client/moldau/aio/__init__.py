"""Clients for asyncio, with the same calls as the trio clients.

    async with Producer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
        delivery = await producer.send("flights", b"value", key=b"key")
        metadata = await delivery

Theory of operation: each client starts one thread that runs trio and the trio client, as the blocking clients do.
Heartbeats and deliveries go on while a coroutine of the application keeps the event loop busy. A call runs in that
thread, and the calling task awaits its result. A cancellation of the task (also by ``asyncio.timeout``) cancels the
call there, waits for its end, and undoes the effects of a call that had already returned: a cancelled ``poll`` loses no
records. Calls that are not coroutines (``subscribe``, ``seek``, ``pause`` and the like) take one step of that thread.

A client belongs to the event loop that opened it. Any number of tasks may share a producer or an admin client; one task
at a time may use a consumer.

Differences from the trio clients: ``begin_transaction`` is a coroutine, ``send`` leaves all errors of a record except
wrong types to its delivery, and time limits raise ``TimeoutError`` instead of ``trio.TooSlowError``.

Importing the package loads no client; each is loaded at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.lazy import lazy_names

if TYPE_CHECKING:
    from moldau.aio.admin import Admin
    from moldau.aio.consumer import Consumer
    from moldau.aio.processing import process
    from moldau.aio.producer import AioDelivery, Producer
    from moldau.aio.share import ShareConsumer

__all__ = ["Admin", "AioDelivery", "Consumer", "Producer", "ShareConsumer", "process"]

_HOMES = {
    "Admin": "admin",
    "AioDelivery": "producer",
    "Consumer": "consumer",
    "Producer": "producer",
    "ShareConsumer": "share",
    "process": "processing",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
