"""The clients for ordinary threads: the same calls, blocking.

    with Producer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
        delivery = producer.send("flights", b"value", key=b"key")
        print(delivery.result())

Theory of operation: each client has one thread of its own that runs trio and, in it, the trio client; calls are handed
over to that thread and wait for its answer. It is the only thread that Moldau starts besides those for disks, and it
is needed because heartbeats, fetching ahead and deliveries must go on while the caller's thread does something else.
Any number of threads may share a producer or an admin client; a consumer belongs to one thread at a time. Records
handed to ``send`` wait in a bounded queue until the trio thread takes them, many at a time: a hand-over for each would
cost more than the record itself. A call that is interrupted (Ctrl-C) is cancelled there, and what it had taken is put
back.
"""

from moldau.blocking.admin import Admin
from moldau.blocking.consumer import Consumer
from moldau.blocking.producer import BlockingDelivery, Producer

__all__ = ["Admin", "BlockingDelivery", "Consumer", "Producer"]
