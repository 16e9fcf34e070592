"""A topic of which only an object store has the oldest records: transactions of librdkafka, committed and aborted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Producer

from moldau import TopicPartition
from moldau.admin import EARLIEST_LOCAL
from moldau.blocking import Admin
from support.interop.clients import WAIT_S, create_topic, wait_until

if TYPE_CHECKING:
    from pathlib import Path

CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "16384",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
TRANSACTIONS = 16
RECORDS = 20
"""Of each transaction. They fill more than a segment; every fourth transaction is aborted."""
AHEAD_MS = 600_000
"""How far in the future the first record is: a search by time would find older records' markers first, as in Kafka."""
STEP_MS = 1_000
"""Time between two records."""


def settings_of(store: Path) -> dict[str, Any]:
    """Returns the settings of nodes that copy closed segments to a directory, which is made here, at once."""
    store.mkdir()
    return {
        "remote.log.storage.system.enable": True,
        "remote.log.storage.url": store.as_uri(),
        "remote.log.manager.task.interval.ms": 100,
        "log.retention.check.interval.ms": 200,
        "log.initial.task.delay.ms": 0,
        "log.segment.delete.delay.ms": 0,
    }


class Filled(NamedTuple):
    """The records of a filled topic."""

    committed: list[tuple[int, str]]
    """Offset and first six characters of each committed record: its number among all that were sent."""
    first_ms: int
    """Timestamp of the record 0."""

    def time_of(self, number: int) -> int:
        """Returns the timestamp of a record."""
        return self.first_ms + number * STEP_MS

    def place_of(self, number: int) -> int:
        """Returns the place of a record in ``committed``."""
        return [int(value) for _, value in self.committed].index(number)

    def offset_of(self, number: int) -> int:
        """Returns the offset of a committed record."""
        return self.committed[self.place_of(number)][0]


def fill(bootstrap: str, topic: str, replicas: int) -> Filled:
    """Makes a topic with one partition, and returns when the disks have only its end."""
    create_topic(bootstrap, topic, 1, replicas, configs=CONFIGS)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "batch.size": 8000})
    producer.init_transactions(WAIT_S)
    filled = Filled([], int(time.time() * 1000) + AHEAD_MS)
    for first in range(0, TRANSACTIONS * RECORDS, RECORDS):
        producer.begin_transaction()
        placed = produce(producer, topic, {number: filled.time_of(number) for number in range(first, first + RECORDS)})
        if first // RECORDS % 4 == 1:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
            filled.committed.extend((offset, f"{first + at:06d}") for at, offset in enumerate(placed))
    end = TRANSACTIONS * (RECORDS + 1)
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        partition = TopicPartition(topic, 0)
        wait_until(
            lambda: admin.list_offsets({partition: EARLIEST_LOCAL})[partition][0] > end - 2 * RECORDS,
            "the disks have only the end of the log",
        )
    return filled


def produce(producer: Producer, topic: str, times: dict[int, int]) -> list[int]:
    """Sends records with numbers and timestamps, and returns their offsets."""
    placed: list[int] = []
    for number, time_ms in times.items():
        producer.produce(
            topic,
            b"%06d" % number + bytes(1000),
            timestamp=time_ms,
            on_delivery=lambda error, message: placed.append(-1 if error else message.offset() or 0),
        )
    assert producer.flush(WAIT_S) == 0
    assert len(placed) == len(times)
    assert -1 not in placed
    return placed
