"""Reads what transactions have committed, up to the last stable offset of each partition and no longer."""

from __future__ import annotations

import time
from collections import Counter

from moldau.blocking import Admin
from support.interop.clients import WAIT_S, wait_until

BEING_COMPLETED = ["PrepareCommit", "PrepareAbort"]


def committed_values(bootstrap: str, topic: str, partitions: int) -> Counter[bytes]:
    """Returns the values that librdkafka finds as a reader of committed data, with the number of their records.

    A transaction is decided before its markers are in the partitions: this waits until none is between the two.
    """
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    with Admin({"bootstrap.servers": bootstrap}) as admin:
        wait_until(lambda: admin.list_transactions(states=BEING_COMPLETED) == [], "decided transactions are complete")
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    left = set(range(partitions))
    consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
    found: Counter[bytes] = Counter()

    deadline = time.monotonic() + WAIT_S
    try:
        while left:
            assert time.monotonic() < deadline, f"{topic}: partitions {left} are not read to their last stable offsets"
            for message in consumer.consume(1000, timeout=0.05):
                error = message.error()
                if error is None:
                    found[message.value() or b""] += 1
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(message.partition() or 0)
    finally:
        consumer.close()
    return found
