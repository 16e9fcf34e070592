"""Goal: unmodified clients use transactions: what was committed is read, what was aborted is not, and offsets go along.
Method: the transactional producers of librdkafka, kafka-python and aiokafka; consumers that read committed and all.
"""

import asyncio
import time

import pytest

from support.interop.clients import WAIT_S

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def librdkafka_producer(bootstrap, transactional_id):
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(WAIT_S)
    return producer


def read_all(bootstrap, topic, isolation, count, settle_s=1.0):
    """Values of all partitions: at least ``count``, and whatever else comes in the ``settle_s`` after."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
    found = []
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None
            found.append(message.value())
            if len(found) == count:
                deadline = time.monotonic() + settle_s
    consumer.close()
    return sorted(found)


def test_aborted_records_are_read_only_uncommitted(bootstrap, topic):
    """Every consumer reads committed records; only one that reads uncommitted reads aborted records."""
    producer = librdkafka_producer(bootstrap, f"tx-{topic}")
    for outcome in ("commit", "abort", "commit"):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic, key=b"%d" % number, value=f"{outcome}-{number}".encode())
        if outcome == "commit":
            producer.commit_transaction(WAIT_S)
        else:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)
    committed = sorted([b"commit-%d" % number for number in range(10)] * 2)
    assert read_all(bootstrap, topic, "read_committed", 20) == committed
    everything = sorted(committed + [b"abort-%d" % number for number in range(10)])
    assert read_all(bootstrap, topic, "read_uncommitted", 30) == everything


def test_a_second_producer_of_the_same_name_fences_the_first(bootstrap, topic):
    from confluent_kafka import KafkaException

    first = librdkafka_producer(bootstrap, f"fenced-{topic}")
    first.begin_transaction()
    first.produce(topic, value=b"first")
    first.flush(WAIT_S)
    second = librdkafka_producer(bootstrap, f"fenced-{topic}")
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(WAIT_S)
    assert caught.value.args[0].fatal() or "FENCED" in caught.value.args[0].name()
    second.begin_transaction()
    second.produce(topic, value=b"second")
    second.commit_transaction(WAIT_S)
    assert read_all(bootstrap, topic, "read_committed", 1) == [b"second"]


def test_offsets_are_committed_with_the_transaction(bootstrap, topic):
    from confluent_kafka import Consumer, TopicPartition

    group = f"pipe-{topic}"
    producer = librdkafka_producer(bootstrap, f"pipe-{topic}")
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + WAIT_S
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    for outcome, offset in (("abort", 5), ("commit", 7)):
        producer.begin_transaction()
        producer.produce(topic, value=outcome.encode(), partition=1)
        places = [TopicPartition(topic, 0, offset)]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), WAIT_S)
        if outcome == "commit":
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
    assert consumer.committed([TopicPartition(topic, 0)], WAIT_S)[0].offset == 7
    consumer.close()


def test_kafka_python_commits_and_aborts(bootstrap, topic):
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"python-{topic}")
    try:
        producer.init_transactions()
        for outcome in ("dropped", "kept"):
            producer.begin_transaction()
            producer.send(topic, outcome.encode()).get(timeout=WAIT_S)
            if outcome == "kept":
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close(timeout=WAIT_S)
    assert read_all(bootstrap, topic, "read_committed", 1) == [b"kept"]
    assert read_all(bootstrap, topic, "read_uncommitted", 2) == [b"dropped", b"kept"]


def test_aiokafka_commits_and_aborts(bootstrap, topic):
    from aiokafka import AIOKafkaProducer

    async def fail_in_transaction(producer):
        async with producer.transaction():
            await producer.send_and_wait(topic, b"dropped")
            raise ZeroDivisionError

    async def run():
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"aio-{topic}")
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"kept")
            with pytest.raises(ZeroDivisionError):
                await fail_in_transaction(producer)
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))
    assert read_all(bootstrap, topic, "read_committed", 1) == [b"kept"]
