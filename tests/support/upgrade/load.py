"""Clients that work while nodes restart: two producers, a transactional producer and a group.

Every client is a thread that goes on until it is asked to end. It keeps what was acknowledged to it, so that a test can
compare that with what is in the topics afterwards.
"""

from __future__ import annotations

import abc
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

from moldau.blocking import Consumer, Producer
from moldau.protocol.errors import KafkaError
from support.interop.clients import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPICS: Final = ("orders", "orders-librdkafka", "left", "right")
JOIN_S: Final = 120


class Worker(threading.Thread, abc.ABC):
    """A client in a thread; ``steps`` counts its rounds that succeeded, ``errors`` keeps what it should not see."""

    def __init__(self, bootstrap: str) -> None:
        """Does nothing before ``start``."""
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.ends = threading.Event()
        self.steps = 0
        self.errors: list[BaseException] = []

    def run(self) -> None:
        """Works until it is asked to end, or an error reaches the application."""
        try:
            self.work()
        except (KafkaError, AssertionError, OSError) as error:
            self.errors.append(error)

    @abc.abstractmethod
    def work(self) -> None:
        """Is the client."""


class OwnProducer(Worker):
    """Sends numbers with Moldau's idempotent producer, one after the other is acknowledged."""

    def work(self) -> None:
        """See ``Worker``."""
        with Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "linger.ms": "0"}) as producer:
            while not self.ends.is_set():
                number = str(self.steps).encode()
                producer.send("orders", number, key=number).result()
                self.steps += 1


class LibrdkafkaProducer(Worker):
    """Sends numbers with librdkafka's idempotent producer, one after the other is acknowledged."""

    def work(self) -> None:
        """See ``Worker``."""
        from confluent_kafka import Producer as ConfluentProducer

        failed: list[Any] = []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                failed.append(error)

        producer = ConfluentProducer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        )
        while not self.ends.is_set():
            number = str(self.steps).encode()
            producer.produce("orders-librdkafka", number, key=number, on_delivery=delivered)
            assert producer.flush(JOIN_S) == 0, "librdkafka has no answer"
            assert failed == []
            self.steps += 1


class TransactionalProducer(Worker):
    """Writes each number to two topics in one transaction; ``committed`` are the numbers of committed transactions."""

    def __init__(self, bootstrap: str) -> None:
        """See ``Worker``."""
        super().__init__(bootstrap)
        self.committed: list[int] = []
        self.aborted: list[int] = []

    def work(self) -> None:
        """See ``Worker``. An aborted transaction is no error: the application repeats it, here with the next number."""
        from moldau.producer import AbortableTransactionError, TransactionAbortedError

        settings = {"bootstrap.servers": self.bootstrap, "transactional.id": "pairs", "linger.ms": "0"}
        with Producer(settings) as producer:
            producer.init_transactions()
            number = 0
            while not self.ends.is_set():
                try:
                    with producer.transaction():
                        for topic in ("left", "right"):
                            producer.send(topic, str(number).encode())
                except (AbortableTransactionError, TransactionAbortedError):
                    self.aborted.append(number)
                else:
                    self.committed.append(number)
                    self.steps += 1
                number += 1


class GroupMember(Worker):
    """Reads ``orders`` in a group and commits after each poll; ``seen`` are the numbers that it was given."""

    def __init__(self, bootstrap: str) -> None:
        """See ``Worker``."""
        super().__init__(bootstrap)
        self.seen: set[int] = set()

    def work(self) -> None:
        """See ``Worker``."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
        }
        with Consumer(settings) as consumer:
            consumer.subscribe(["orders"])
            while not self.ends.is_set():
                batches = consumer.poll(200)
                self.seen.update(int(record.value or b"") for batch in batches for record in batch.records)
                if batches:
                    with contextlib.suppress(KafkaError):  # A rebalance: the records come again.
                        consumer.commit()
                    self.steps += 1


class Load:
    """All clients; see the module."""

    def __init__(self, bootstrap: str) -> None:
        """Does nothing before ``running``."""
        self.own = OwnProducer(bootstrap)
        self.librdkafka = LibrdkafkaProducer(bootstrap)
        self.transactions = TransactionalProducer(bootstrap)
        self.member = GroupMember(bootstrap)
        self.workers: tuple[Worker, ...] = (self.own, self.librdkafka, self.transactions, self.member)

    @contextlib.contextmanager
    def running(self) -> Iterator[Load]:
        """Runs the clients, and ends them in order."""
        for worker in self.workers:
            worker.start()
        try:
            self.wait_progress("the clients begin")
            yield self
        finally:
            for worker in self.workers[:3]:
                worker.ends.set()
            for worker in self.workers[:3]:
                worker.join(JOIN_S)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: len(self.member.seen) >= self.own.steps or self.member.errors, "the group reads all")
            self.member.ends.set()
            self.member.join(JOIN_S)

    def wait_progress(self, what: str) -> None:
        """Waits until each client has succeeded three times more."""
        before = [worker.steps for worker in self.workers]
        wait_until(
            lambda: (
                any(worker.errors for worker in self.workers)
                or all(worker.steps >= steps + 3 for worker, steps in zip(self.workers, before, strict=True))
            ),
            what,
        )
        self.check()

    def check(self) -> None:
        """Fails if a client saw an error."""
        assert [(type(worker).__name__, error) for worker in self.workers for error in worker.errors] == []

    def judge(self, bootstrap: str) -> None:
        """Compares what was acknowledged with what is in the topics."""
        self.check()
        assert not any(worker.is_alive() for worker in self.workers)
        found = {topic: read_all(bootstrap, topic) for topic in TOPICS}
        assert found["orders"] == list(range(self.own.steps))
        assert found["orders-librdkafka"] == list(range(self.librdkafka.steps))
        assert found["left"] == found["right"] == self.transactions.committed
        assert self.member.seen == set(range(self.own.steps))


def read_all(bootstrap: str, topic: str) -> list[int]:
    """Returns the committed numbers of a topic, sorted; duplicates stay."""
    settings = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed"}
    numbers: list[int] = []
    with Consumer(settings) as consumer:
        partitions = [(topic, info.partition) for info in consumer.partitions_for(topic)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            numbers += [int(record.value or b"") for batch in consumer.poll(200) for record in batch.records]
    return sorted(numbers)
