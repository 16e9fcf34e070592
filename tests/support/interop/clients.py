"""The three Kafka clients behind one small face, so that one test asks the same of each. None is modified or configured
beyond what its manual shows.

``produce`` sends records with acks=all and returns their places; ``consume`` reads from the beginning without a group;
``Member`` is a group member in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from moldau_jepsen.launcher.probe import fetch_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Sent = tuple[bytes | None, bytes | None, Any]
    """Key, value and headers."""
    Placed = tuple[Any, Any, Any]
    """Partition, offset and value."""
    Found = tuple[Any, Any, Any, Any, Any]
    """Partition, offset, key, value and headers."""

T = TypeVar("T")

WAIT_S = 120.0
"""For what comes at once on a machine with nothing else to do."""
HEARTBEAT_MS = 500
"""How often members ask whether their group rebalances; every 3 seconds by default."""
COMMIT_COMES_LATER = ("_NO_OFFSET", "REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID")
"""Answers to a commit that met a rebalance, or had nothing to commit yet."""


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int,
    replicas: int,
    timeout_s: float = WAIT_S / 2,
    configs: dict[str, str] | None = None,
) -> None:
    """Creates a topic with librdkafka's admin client (which must be kept alive until the answer is there), and returns
    when all brokers know it: only the one that was asked does when it answers.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + timeout_s
    while True:
        made = admin.create_topics(
            [NewTopic(name, partitions, replicas, config=configs or {})], request_timeout=timeout_s
        )
        try:
            made[name].result(timeout=timeout_s + WAIT_S)
            break
        except KafkaException as error:
            # A broker that got no processor time for a while is out of service until its next heartbeat.
            if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR or time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
    wait_known(bootstrap, name, partitions)


def wait_known(bootstrap: str, name: str, partitions: int) -> None:
    """Waits until each broker of ``bootstrap`` knows a topic with a leader for all of its partitions."""
    for address in bootstrap.split(","):
        port = int(address.rpartition(":")[2])
        _wait_led(port, name, partitions, f"{address} knows {name}")


def _wait_led(port: int, name: str, partitions: int, what: str) -> None:
    wait_until(lambda: _led_partitions(port, name) == partitions, what)


def _led_partitions(port: int, name: str) -> int:
    answer = fetch_metadata(port, [name], 5_000)
    found = [] if answer is None else [one for topic in answer.topics for one in topic.partitions]
    return sum(one.error_code == 0 and one.leader_id >= 0 for one in found)


class KafkaClient(Protocol):
    """The small face of a client. A consumer is whatever ``group_consumer`` returns."""

    @property
    def codecs(self) -> tuple[str, ...]: ...

    def produce(self, topic: str, records: Iterable[Sent], codec: str = "none") -> list[Placed]: ...

    def consume(self, topic: str, partitions: int, count: int) -> list[Found]: ...

    def group_consumer(self, group: str, topic: str) -> Any: ...

    def poll(self, consumer: Any) -> list[Placed]: ...

    def assignment(self, consumer: Any) -> list[int]: ...

    def commit(self, consumer: Any) -> None: ...

    def close(self, consumer: Any) -> None: ...


class ConfluentClient:
    """confluent-kafka (librdkafka)."""

    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def produce(self, topic: str, records: Iterable[Sent], codec: str = "none") -> list[Placed]:
        from confluent_kafka import Producer

        placed: list[Placed] = []
        failures: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error)
            else:
                placed.append((message.partition(), message.offset(), message.value()))

        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True, "compression.type": codec}
        )
        for key, value, headers in records:
            producer.produce(topic, key=key, value=value, headers=headers, on_delivery=delivered)
        assert producer.flush(WAIT_S) == 0
        assert failures == []
        return placed

    def consume(self, topic: str, partitions: int, count: int) -> list[Found]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "unused", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        found: list[Found] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None:
                assert message.error() is None
                found.append(
                    (message.partition(), message.offset(), message.key(), message.value(), message.headers() or [])
                )
        consumer.close()
        return found

    def group_consumer(self, group: str, topic: str) -> Any:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        )
        consumer.subscribe([topic])
        return consumer

    def poll(self, consumer: Any) -> list[Placed]:
        message = consumer.poll(0.1)
        if message is None:
            return []
        assert message.error() is None
        return [(message.partition(), message.offset(), message.value())]

    def assignment(self, consumer: Any) -> list[int]:
        return sorted(one.partition for one in consumer.assignment())

    def commit(self, consumer: Any) -> None:
        from confluent_kafka import KafkaException

        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].name() not in COMMIT_COMES_LATER:
                raise

    def close(self, consumer: Any) -> None:
        consumer.close()


class KafkaPythonClient:
    """kafka-python."""

    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap.split(",")

    def produce(self, topic: str, records: Iterable[Sent], codec: str = "none") -> list[Placed]:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap, acks="all", compression_type=None if codec == "none" else codec
        )
        futures = [
            (producer.send(topic, key=key, value=value, headers=headers), value) for key, value, headers in records
        ]
        producer.flush(WAIT_S)
        placed: list[Placed] = []
        for future, value in futures:
            found = future.get(WAIT_S)
            placed.append((found.partition, found.offset, value))
        producer.close()
        return placed

    def consume(self, topic: str, partitions: int, count: int) -> list[Found]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest", group_id=None)
        consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
        found: list[Found] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < count and time.monotonic() < deadline:
            for messages in consumer.poll(timeout_ms=200).values():
                found.extend((m.partition, m.offset, m.key, m.value, list(m.headers)) for m in messages)
        consumer.close()
        return found

    def group_consumer(self, group: str, topic: str) -> Any:
        """A subscribed consumer that knows the topic's partitions before it joins its group.

        kafka-python 3.0 that leads a group whose topic it does not know yet assigns nothing and joins again once it
        does; when its poll times out within that second join, the assignment that arrives is never applied
        (``join_group_async`` returns at its ``need_rejoin`` before it looks at the finished join). A group that forms
        at once meets this: kafka-python asks for the metadata 100 ms after its bootstrap at the earliest.
        """
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=self.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        wait_until(lambda: consumer.partitions_for_topic(topic), f"kafka-python knows {topic}")
        return consumer

    def poll(self, consumer: Any) -> list[Placed]:
        polled = consumer.poll(timeout_ms=100)
        return [(m.partition, m.offset, m.value) for messages in polled.values() for m in messages]

    def assignment(self, consumer: Any) -> list[int]:
        return sorted(one.partition for one in consumer.assignment())

    def commit(self, consumer: Any) -> None:
        from kafka.errors import CommitFailedError, RebalanceInProgressError

        with contextlib.suppress(CommitFailedError, RebalanceInProgressError):
            consumer.commit()

    def close(self, consumer: Any) -> None:
        consumer.close()


class AiokafkaClient:
    """aiokafka; each call or member has an event loop of its own."""

    codecs = ("none", "gzip", "lz4", "snappy", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def produce(self, topic: str, records: Iterable[Sent], codec: str = "none") -> list[Placed]:
        from aiokafka import AIOKafkaProducer

        async def run() -> list[Placed]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                acks="all",
                enable_idempotence=True,
                compression_type=None if codec == "none" else codec,
            )
            await producer.start()
            try:
                futures = [
                    (await producer.send(topic, value, key=key, headers=headers), value)
                    for key, value, headers in records
                ]
                placed: list[Placed] = []
                for future, value in futures:
                    found = await asyncio.wait_for(future, WAIT_S)
                    placed.append((found.partition, found.offset, value))
                return placed
            finally:
                await producer.stop()

        return asyncio.run(run())

    def consume(self, topic: str, partitions: int, count: int) -> list[Found]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        async def run() -> list[Found]:
            consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest")
            await consumer.start()
            try:
                consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
                found: list[Found] = []
                deadline = time.monotonic() + WAIT_S
                while len(found) < count and time.monotonic() < deadline:
                    polled = await consumer.getmany(timeout_ms=200)
                    for messages in polled.values():
                        found.extend((m.partition, m.offset, m.key, m.value, list(m.headers)) for m in messages)
                return found
            finally:
                await consumer.stop()

        return asyncio.run(run())

    def group_consumer(self, group: str, topic: str) -> Any:
        from aiokafka import AIOKafkaConsumer

        runner = asyncio.Runner()

        async def start() -> Any:
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=self.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=HEARTBEAT_MS,
            )
            await consumer.start()
            return consumer

        return runner, runner.run(start())

    def poll(self, consumer: Any) -> list[Placed]:
        runner, inner = consumer
        polled = runner.run(inner.getmany(timeout_ms=100))
        return [(m.partition, m.offset, m.value) for messages in polled.values() for m in messages]

    def assignment(self, consumer: Any) -> list[int]:
        return sorted(one.partition for one in consumer[1].assignment())

    def commit(self, consumer: Any) -> None:
        from aiokafka.errors import CommitFailedError, IllegalStateError, RebalanceInProgressError

        runner, inner = consumer
        with contextlib.suppress(CommitFailedError, IllegalStateError, RebalanceInProgressError):
            runner.run(inner.commit())

    def close(self, consumer: Any) -> None:
        runner, inner = consumer
        runner.run(inner.stop())
        runner.close()


CLIENTS: Mapping[str, Callable[[str], KafkaClient]] = {
    "confluent-kafka": ConfluentClient,
    "kafka-python": KafkaPythonClient,
    "aiokafka": AiokafkaClient,
}


class Member(threading.Thread):
    """A group member: polls and commits until its leave is requested.

    A commit that comes in the middle of a rebalance is refused; the next owner of the partition then reads again.
    """

    def __init__(self, client: KafkaClient, group: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._client, self._group, self._topic = client, group, topic
        self._leave = threading.Event()
        self.found: list[Placed] = []
        self.owned: list[int] = []
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            consumer = self._client.group_consumer(self._group, self._topic)
            while not self._leave.is_set():
                self.found += self._client.poll(consumer)
                self.owned = self._client.assignment(consumer)
                if self.owned:
                    self._client.commit(consumer)
            self._client.close(consumer)
        except BaseException as error:
            self.failure = error
            raise

    def leave(self) -> None:
        self._leave.set()
        self.join(WAIT_S)
        assert not self.is_alive(), "the member did not leave"
        assert self.failure is None, repr(self.failure)


def committed_offsets(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    """Committed offset of each partition, 0 where there is none, as librdkafka reads it."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)], timeout=WAIT_S)
    consumer.close()
    return [max(one.offset, 0) for one in found]


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    """Polls ``condition`` until it holds; fails with ``what`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


def wait_for(look: Callable[[], T | None], what: str, timeout_s: float = WAIT_S) -> T:
    """Calls ``look`` until it returns something else than None, and returns that; fails as ``wait_until`` does."""
    found: list[T] = []

    def has_found() -> bool:
        seen = look()
        if seen is not None:
            found.append(seen)
        return bool(found)

    wait_until(has_found, what, timeout_s)
    return found[-1]
