"""Goal: a batch that a broker refuses as too large goes out in parts, and each record has its own outcome (KIP-126).

Method: the producer's core by hand, and a producer beside simulated brokers whose topic takes less than ``batch.size``.
``test_accumulator.py`` walks through splits at random, beside lost and late answers.
"""

import pytest
import trio
import trio.testing

from moldau import Consumer, KafkaError, Producer
from moldau.cluster.metadata import TopicPartition
from moldau.producer.core.accumulator import Accumulator, Verdict
from moldau.producer.core.limits import Limits
from moldau.producer.delivery import ColumnsDelivery, Delivery
from moldau.protocol.errors import ErrorCode
from moldau.records import Compression, decode_records, parse_batch_header
from moldau_jepsen.world.world import run_world
from support.client.columns import rows
from support.cluster.broker_cluster import run_cluster

P0 = TopicPartition("t", 0)
TOO_LARGE = ErrorCode.MESSAGE_TOO_LARGE


def accumulator(**limits):
    core = Accumulator(Limits(**{"batch_size": 1000, "linger_ms": 0, "buffer_memory": 10_000} | limits))
    if core.limits.is_idempotent:
        core.set_producer_id(7, 0)
    return core


def add(core, count, now=0):
    """Appends records with the values 0, 1, ...; returns their batch."""
    for number in range(count):
        batch, _, _ = core.append(core.queue(P0), number, b"k", b"%d" % number, (("h", b"x"),), now)
    return batch


def sent(core, now=0):
    return [batch for queues in core.ready(now, {P0: 1}).by_node.values() for batch in core.drain(queues, now)]


def carried(batch):
    """The base sequence of a batch and its records."""
    header = parse_batch_header(batch.data)
    records = decode_records(batch.data, 0, header)
    return header.base_sequence, [(each.timestamp, each.key, each.value, each.headers) for each in records]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("code", [TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE])
def test_halves_take_place_sequences_and_memory(code, compression):
    core = accumulator(compression=compression)
    whole = add(core, 4)
    (batch,) = sent(core)
    _, records = carried(batch)
    reserved = core.memory_used
    assert core.settle(batch, code, 1) is Verdict.SPLIT
    later = add(core, 1, now=1)
    assert (core.memory_used, list(core.incomplete)) == (reserved + later.reserved_bytes, [*whole.parts, later])
    (first,) = sent(core, 1)
    assert carried(first) == (0, records[:2])
    assert parse_batch_header(first.data).compression is compression
    assert sent(core, 1) == [], "one part at a time"
    assert core.settle(first, ErrorCode.NONE, 2, base_offset=10) is Verdict.DONE
    assert not whole.is_settled
    (second,) = sent(core, 2)
    assert carried(second) == (2, records[2:])
    core.settle(second, ErrorCode.NONE, 3, base_offset=20)
    assert [Delivery(whole, index, index).result().offset for index in range(4)] == [10, 11, 20, 21]
    assert ColumnsDelivery(whole, 3, -1).result().offset == 21
    (last,) = sent(core, 3)
    assert last is later
    assert carried(last)[0] == 4
    core.settle(last, ErrorCode.NONE, 4, base_offset=30)
    assert (core.memory_used, core.incomplete) == (0, {})


def test_parts_of_a_batch_across_the_last_sequence():
    """Sequences go on with 0 after the last one (2^31 - 1), within a batch too."""
    core = accumulator()
    queue = core.queue(P0)
    queue.stamp, queue.next_sequence = (7, 0), 2**31 - 2
    add(core, 4)
    (batch,) = sent(core)
    assert core.settle(batch, TOO_LARGE, 0) is Verdict.SPLIT
    add(core, 1, now=1)
    sequences = []
    while core.incomplete:
        (batch,) = sent(core, 1)
        sequences.append(carried(batch)[0])
        core.settle(batch, ErrorCode.NONE, 1, base_offset=0)
    assert sequences == [2**31 - 2, 0, 2]


def test_parts_split_again_and_one_record_fails_alone():
    """Of four records the second is too large by itself."""
    core = accumulator(is_idempotent=False)
    whole = add(core, 4)
    offset = 0
    refused = []
    while core.incomplete:
        (batch,) = sent(core, offset)
        _, records = carried(batch)
        if any(value == b"1" for _, _, value, _ in records):
            refused.append(len(records))
            core.settle(batch, TOO_LARGE, 0, message="at most 10 bytes")
        else:
            core.settle(batch, ErrorCode.NONE, 0, base_offset=offset)
            offset += len(records)
    assert refused == [4, 2, 1]
    assert whole.is_settled
    outcomes = []
    for index in range(4):
        try:
            outcomes.append(Delivery(whole, index, -1).result().offset)
        except KafkaError as error:
            outcomes.append(error.code)
    assert outcomes == [0, TOO_LARGE, 1, 2]
    with pytest.raises(KafkaError, match="at most 10 bytes"):
        ColumnsDelivery(whole, 3, -1).result()
    assert core.memory_used == 0


def test_batches_that_must_stay_whole_fail():
    """One record; a batch that an earlier attempt may have written; an encoded batch, whose offsets its sender uses."""
    core = accumulator()
    alone = add(core, 1)
    sent(core)
    assert core.settle(alone, TOO_LARGE, 0) is Verdict.FAILED
    core = accumulator()
    uncertain = add(core, 2)
    sent(core)
    core.settle(uncertain, ErrorCode.NETWORK_EXCEPTION, 0, jitter=0)
    assert sent(core, 1) == [uncertain]
    assert core.settle(uncertain, TOO_LARGE, 1) is Verdict.FAILED
    encoded = bytes(uncertain.data)
    core = accumulator()
    batch = core.append_encoded(core.queue(P0), encoded, 2, 0)
    sent(core)
    assert core.settle(batch, TOO_LARGE, 0) is Verdict.FAILED


def test_a_late_refusal_and_the_expiry_of_parts():
    core = accumulator(delivery_timeout_ms=100)
    batch = add(core, 2)
    sent(core)
    assert core.settle(batch, TOO_LARGE, 100) is Verdict.FAILED, "no time is left"
    core = accumulator(delivery_timeout_ms=100)
    whole = add(core, 2)
    sent(core)
    core.settle(whole, TOO_LARGE, 50)
    assert core.next_expiry_ms() == 100
    assert core.expire(100) == whole.parts
    assert whole.is_settled
    assert whole.error.code is ErrorCode.REQUEST_TIMED_OUT
    assert core.memory_used == 0


@pytest.mark.parametrize("call", ["flush", "close"])
def test_a_call_that_finds_parts_ends_with_the_last_of_them(call):
    """The deliveries, and so the tasks that wait for records, know the whole batch only."""

    async def main(world):
        config = {"bootstrap.servers": "nowhere:1", "linger.ms": 0}
        async with Producer(config, environment=world.node("client").environment) as producer:
            core, sender, ended = producer._accumulator, producer._sender, []
            core.set_producer_id(7, 0)
            add(core, 4, now=producer._client.now_ms)
            (batch,) = sent(core, producer._client.now_ms)
            assert core.settle(batch, TOO_LARGE, producer._client.now_ms) is Verdict.SPLIT

            async def wait():
                await getattr(producer, call)()
                ended.append(call)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                for _ in range(2):
                    await trio.testing.wait_all_tasks_blocked()
                    assert not ended
                    (part,) = sent(core, producer._client.now_ms)
                    sender._settle(part, ErrorCode.NONE, 0)
                await trio.sleep(1)
                assert ended == [call]
                nursery.cancel_scope.cancel()

    run_world(main, 1)


async def read_all(cluster, count):
    config = {"bootstrap.servers": "b1:9092", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    async with Consumer(config, environment=cluster.client_environment) as consumer:
        consumer.assign([("t", 0)])
        records = []
        while len(records) < count:
            records += [each for batch in await consumer.poll(500) for each in batch.records]
        return records


def test_parts_expire_before_younger_batches():
    """They are as old as the batch that was split, and keep its place among those of all partitions."""
    core = accumulator(delivery_timeout_ms=100)
    whole = add(core, 2)
    sent(core)
    core.append(core.queue(TopicPartition("t", 1)), 0, None, b"younger", (), 60)
    core.settle(whole, TOO_LARGE, 70)
    assert core.next_expiry_ms() == 100
    assert core.expire(100) == whole.parts
    assert core.next_expiry_ms() == 160


@pytest.mark.parametrize("face", ["send", "columns", "transaction"])
def test_a_topic_of_small_batches_takes_all_records(face):
    """The topic takes 2,000 bytes at once and the producer makes batches of 64 KiB; one record fits by itself only."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("t", partitions=1, replicas=1, **{"max.message.bytes": "2000"})
        values = [b"%d" % number for number in range(600)]
        values[300] = b"x" * 1900
        config = {"bootstrap.servers": "b1:9092"}
        if face == "transaction":
            config["transactional.id"] = "splits"
        async with Producer(config, environment=cluster.client_environment) as producer:
            if face == "transaction":
                await producer.init_transactions()
                producer.begin_transaction()
            if face == "columns":
                deliveries = await producer.send_columns("t", rows(values, None))
                await producer.flush()
                assert [delivery.result().offset for delivery in deliveries] == [599]
            else:
                deliveries = [await producer.send("t", value) for value in values]
                await producer.flush()
                assert [delivery.result().offset for delivery in deliveries] == list(range(600))
                assert {delivery.acknowledged_by[0] for delivery in deliveries} == {1}
            if face == "transaction":
                await producer.commit_transaction()
            numbers = producer.statistics()
            assert numbers.batch_split_total >= 3
            assert (numbers.record_send_total, numbers.record_error_total) == (600, 0)
            assert numbers.buffer_available_bytes == numbers.buffer_total_bytes
        records = await read_all(cluster, 600)
        assert [record.value for record in records] == values

    run_cluster(scenario, brokers=1)


def test_a_record_that_is_too_large_fails_alone():
    """The others of its batch are written, and each failed one names the limit."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("t", partitions=1, replicas=1, **{"max.message.bytes": "2000"})
        async with Producer({"bootstrap.servers": "b1:9092"}, environment=cluster.client_environment) as producer:
            deliveries = [await producer.send("t", b"x" * (3000 if number in (3, 4) else 10)) for number in range(9)]
            await producer.flush()
            for delivery in (deliveries[3], deliveries[4]):
                with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                    delivery.result()
                assert delivery.acknowledged_by is None
            offsets = [each.result().offset for each in deliveries[:3] + deliveries[5:]]
            assert offsets == list(range(7))
            assert (await producer.send("t", b"after")).is_done is False
        assert len(await read_all(cluster, 8)) == 8

    run_cluster(scenario, brokers=1)
