"""How long a partition cannot be written after its leader was killed, stopped or cut off.

An idempotent librdkafka producer with acks=all writes to a topic of one partition and three replicas all the while; the
figure is the time from the fault to the acknowledgement of the first record that was sent after it. Both peers keep
their default session timeouts. Apache Kafka's links are not cut: that takes proxies between its nodes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import KafkaError, Message

TIMEOUT_S = 60.0
PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 0,
    "log_level": 0,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 20,
    "socket.timeout.ms": 1000,
    "request.timeout.ms": 1000,
    "message.timeout.ms": 120_000,
}


def unavailable_ms(bootstrap: str, topic: str, strike: Callable[[int], None]) -> float:
    """Milliseconds without an acknowledged write around ``strike(leader)``. Raises ``TimeoutError`` after 60 s."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 3, config={"min.insync.replicas": "2"})])[topic].result(30)
    acknowledged_max = -1

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal acknowledged_max
        value = message.value()
        if error is None and value is not None:
            acknowledged_max = max(acknowledged_max, int(value))

    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    sent = 0

    def send() -> None:
        nonlocal sent
        try:
            producer.produce(topic, b"%d" % sent, on_delivery=delivered)
            sent += 1
        except BufferError:
            pass  # the queue is full while nothing is acknowledged: poll, and try the same number again
        producer.poll(0.001)

    while acknowledged_max < 500:
        send()
    leader = admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
    broken_at = time.monotonic()
    strike(leader)
    first_after = sent
    while acknowledged_max < first_after:
        if time.monotonic() - broken_at > TIMEOUT_S:
            raise TimeoutError(f"no write was acknowledged within {TIMEOUT_S:g} s of the fault")
        send()
    took_ms = (time.monotonic() - broken_at) * 1000
    producer.flush(10)
    return took_ms
