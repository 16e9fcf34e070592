"""Goal: the transactions of unmodified clients hold here: what is committed is seen as a whole, what is aborted never,
zombies are fenced, and offsets move with the records. Method: confluent-kafka, aiokafka and Moldau's own producer write
transactions; each of their consumers reads both isolation levels.
"""

import asyncio
import time

import pytest

from moldau.blocking import Consumer as MoldauConsumer
from moldau.blocking import Producer as MoldauProducer

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PARTITIONS = 3
WAIT_S = 30.0


def confluent_transactions(bootstrap, topic, transactional_id, transactions):
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(WAIT_S)
    for values, commit in transactions:
        producer.begin_transaction()
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % PARTITIONS)
        assert producer.flush(WAIT_S) == 0
        if commit:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)


def aiokafka_transactions(bootstrap, topic, transactional_id, transactions):
    from aiokafka import AIOKafkaProducer

    async def run():
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        await producer.start()
        try:
            for values, commit in transactions:
                await producer.begin_transaction()
                futures = [
                    await producer.send(topic, value, partition=number % PARTITIONS)
                    for number, value in enumerate(values)
                ]
                await asyncio.gather(*futures)
                await (producer.commit_transaction() if commit else producer.abort_transaction())
        finally:
            await producer.stop()

    asyncio.run(run())


def moldau_transactions(bootstrap, topic, transactional_id, transactions):
    with MoldauProducer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id}) as producer:
        producer.init_transactions()
        for values, commit in transactions:
            producer.begin_transaction()
            for number, value in enumerate(values):
                producer.send(topic, value, partition=number % PARTITIONS)
            producer.flush()
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()


WRITERS = {
    "confluent": confluent_transactions,
    "aiokafka": aiokafka_transactions,
    "moldau": moldau_transactions,
}


def confluent_read(bootstrap, topic, isolation, count):
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found, ended, deadline = [], set(), time.monotonic() + WAIT_S
    while (len(ended) < PARTITIONS or len(found) < count) and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error() is None:
            found.append(message.value())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            ended.add(message.partition())
    consumer.close()
    return sorted(found)


def aiokafka_read(bootstrap, topic, isolation, count):
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run():
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest", group_id=None
        )
        await consumer.start()
        found, idle, deadline = [], 0, time.monotonic() + WAIT_S
        try:
            consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
            while (len(found) < count or idle < 2) and time.monotonic() < deadline:
                polled = await consumer.getmany(timeout_ms=300)
                found += [message.value for messages in polled.values() for message in messages]
                idle = 0 if polled else idle + 1
        finally:
            await consumer.stop()
        return sorted(found)

    return asyncio.run(run())


def moldau_read(bootstrap, topic, isolation, count):
    with MoldauConsumer(
        {"bootstrap.servers": bootstrap, "isolation.level": isolation, "auto.offset.reset": "earliest"}
    ) as consumer:
        consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        found, idle, deadline = [], 0, time.monotonic() + WAIT_S
        while (len(found) < count or idle < 2) and time.monotonic() < deadline:
            polled = consumer.poll(300)
            found += [bytes(record.value) for batch in polled for record in batch.records]
            idle = 0 if polled else idle + 1
        return sorted(found)


READERS = {"confluent": confluent_read, "aiokafka": aiokafka_read, "moldau": moldau_read}


@pytest.mark.parametrize("writer", list(WRITERS))
def test_committed_is_seen_and_aborted_is_not(writer, bootstrap, topic):
    transactions = [([b"%d-%d" % (number, k) for k in range(7)], number % 3 != 1) for number in range(6)]
    WRITERS[writer](bootstrap, topic, f"id-of-{topic}", transactions)
    committed = sorted(value for values, commit in transactions if commit for value in values)
    everything = sorted(value for values, _ in transactions for value in values)
    for name, read in READERS.items():
        assert read(bootstrap, topic, "read_committed", len(committed)) == committed, name
        assert read(bootstrap, topic, "read_uncommitted", len(everything)) == everything, name


def test_an_open_transaction_holds_readers_of_committed_data_back(bootstrap, topic):
    from confluent_kafka import Producer

    holder = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"holder-{topic}"})
    holder.init_transactions(WAIT_S)
    holder.begin_transaction()
    holder.produce(topic, b"held", partition=0)
    assert holder.flush(WAIT_S) == 0
    plain = Producer({"bootstrap.servers": bootstrap})
    plain.produce(topic, b"behind", partition=0)
    assert plain.flush(WAIT_S) == 0
    assert confluent_read(bootstrap, topic, "read_uncommitted", 2) == [b"behind", b"held"]
    assert confluent_read(bootstrap, topic, "read_committed", 0) == []
    holder.commit_transaction(WAIT_S)
    assert confluent_read(bootstrap, topic, "read_committed", 2) == [b"behind", b"held"]


def test_a_zombie_is_fenced_and_what_it_left_open_is_aborted(bootstrap, topic):
    from confluent_kafka import KafkaException, Producer

    config = {"bootstrap.servers": bootstrap, "transactional.id": f"fenced-{topic}"}
    zombie = Producer(config)
    zombie.init_transactions(WAIT_S)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie", partition=1)
    assert zombie.flush(WAIT_S) == 0
    successor = Producer(config)
    successor.init_transactions(WAIT_S)
    successor.begin_transaction()
    successor.produce(topic, b"successor", partition=1)
    successor.commit_transaction(WAIT_S)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(WAIT_S)
    assert caught.value.args[0].fatal()
    assert confluent_read(bootstrap, topic, "read_committed", 1) == [b"successor"]


def test_offsets_move_with_the_records_or_not_at_all(bootstrap, topic):
    """The read-process-write loop of librdkafka: half of its transactions are aborted and done again."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    group, source = f"group-{topic}", f"{topic}-source"
    plain = Producer({"bootstrap.servers": bootstrap})
    for number in range(20):
        plain.produce(source, b"%d" % number, partition=0)
    assert plain.flush(WAIT_S) == 0

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"pipe-{topic}"})
    producer.init_transactions(WAIT_S)
    done, turn, deadline = 0, 0, time.monotonic() + WAIT_S
    while done < 20 and time.monotonic() < deadline:
        messages = [message for message in consumer.consume(5, 1.0) if message.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(topic, b"done-" + message.value(), partition=message.offset() % PARTITIONS)
        position = [TopicPartition(source, 0, messages[-1].offset() + 1)]
        producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), WAIT_S)
        turn += 1
        if turn % 2:
            producer.abort_transaction(WAIT_S)
            consumer.seek(TopicPartition(source, 0, messages[0].offset()))
        else:
            producer.commit_transaction(WAIT_S)
            done += len(messages)
            (committed,) = consumer.committed([TopicPartition(source, 0)], WAIT_S)
            assert committed.offset == messages[-1].offset() + 1
    consumer.close()
    assert done == 20
    assert moldau_read(bootstrap, topic, "read_committed", 20) == sorted(b"done-%d" % number for number in range(20))
