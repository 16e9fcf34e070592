"""Goal: the producer's memory counts the bytes that records use, and batches get as small as their topic needs.

Method: the pure cores with many partitions and a broker that takes batches up to a limit; then simulated brokers.
"""

from array import array

import pytest

from moldau import Admin, KafkaError, Producer
from moldau.admin import ConfigAlteration, ConfigResource, ResourceType
from moldau.cluster.metadata import TopicPartition
from moldau.producer.core.accumulator import Accumulator
from moldau.producer.core.batch_sizes import PATIENCE, PATIENCE_MAX, BatchSizes
from moldau.producer.core.limits import Limits
from moldau.protocol.errors import ErrorCode
from moldau.records import decode_records, parse_batch_header
from support.client.columns import rows
from support.cluster.broker_cluster import run_cluster

MIB = 1024 * 1024
KIB = 1024


def core_of(**limits):
    core = Accumulator(Limits(**{"linger_ms": 1000} | limits))
    core.set_producer_id(7, 0)
    return core


def add(core, number, value):
    return core.append(core.queue(TopicPartition("t", number)), 1, None, value, (), 0)


def send_all(core, now_ms):
    leaders = dict.fromkeys(core.queues, 1)
    core.flushes = 1
    while core.incomplete:
        for queues in core.ready(now_ms, leaders).by_node.values():
            for batch in core.drain(queues, now_ms):
                core.settle(batch, ErrorCode.NONE, now_ms, base_offset=0)
    core.flushes = 0


# Memory


@pytest.mark.parametrize("filled", [False, True], ids=["first batches", "after full batches"])
def test_a_thousand_partitions_with_few_bytes_fit(filled):
    """64 KiB for each of 1,000 open batches would be twice the 32 MiB of ``buffer.memory``."""
    core = core_of()
    if filled:
        for number in range(1000):
            while add(core, number, b"x" * 6500)[1] < 9:
                pass
            if number % 250 == 249:
                send_all(core, 0)
        assert core.memory_used == 0
    for number in range(1000):
        assert add(core, number, b"value") is not None, number
    assert core.memory_used <= 32 * MIB


@pytest.mark.parametrize("face", ["records", "columns"])
def test_batches_grow_to_their_limit_within_the_memory(face):
    core = core_of(buffer_memory=100 * KIB)
    queue = core.queue(TopicPartition("t", 0))
    sizes = []
    columns, numbers = rows([b"v" * 500] * 500), array("i", range(500)).tobytes()
    for number in range(500):
        if face == "records":
            appended = add(core, 0, b"v" * 500)
        else:
            appended = core.append_rows(queue, columns, numbers[: 4 * number + 4], number, 5, 0)
        if appended is None:
            break
        sizes.append(core.memory_used)
        assert core.memory_used == sum(batch.reserved_bytes for batch in core.incomplete)
        assert sum(batch.builder.size_bytes for batch in core.incomplete) <= core.memory_used <= 100 * KIB
    first, second = core.incomplete
    assert 64 * KIB - 600 < first.builder.size_bytes <= 64 * KIB
    assert first.builder.size_bytes + second.builder.size_bytes > 100 * KIB - 700, "all of the memory serves records"
    assert len(set(sizes)) < 30, "most records need no further memory"
    send_all(core, 0)
    assert core.memory_used == 0
    assert values_of(first) == values_of(second) == {b"v" * 500}


def values_of(batch):
    return {record.value for record in decode_records(batch.data, 0, parse_batch_header(batch.data))}


def test_rows_fill_a_batch_over_several_steps_of_memory():
    core = core_of()
    columns, numbers = rows([b"%d" % number * 100 for number in range(2000)]), array("i", range(2000)).tobytes()
    batch, taken = core.append_rows(core.queue(TopicPartition("t", 0)), columns, numbers, 0, 5, 0)
    assert batch.builder.record_count == taken
    assert 64 * KIB - 600 < batch.builder.size_bytes <= 64 * KIB


def test_a_sent_batch_counts_its_bytes():
    core = core_of()
    batch, _, _ = add(core, 0, b"v" * 70)
    open_size = core.memory_used
    core.drain([core.queue(TopicPartition("t", 0))], 0)
    assert core.memory_used == len(batch.data) < open_size


# Sizes


class Topic:
    """A topic that takes batches up to ``limit`` bytes; it counts refusals."""

    def __init__(self, limit):
        self.limit = limit
        self.sizes = BatchSizes(64 * KIB)
        self.refusals = 0

    def send(self, batches):
        for _ in range(batches):
            size = self.sizes.limit("t")
            if size > self.limit:
                self.refusals += 1
                self.sizes.refused("t", size)
            else:
                self.sizes.accepted("t", size)


@pytest.mark.parametrize("limit", [200, 2000, 16 * KIB, 60_000])
def test_refusals_become_rare_and_batches_large(limit):
    topic = Topic(limit)
    topic.send(100 * PATIENCE)
    assert limit * 3 // 4 < topic.sizes.limit("t") <= limit * 5 // 4 + 1
    before = topic.refusals
    topic.send(20 * PATIENCE_MAX)
    assert topic.refusals - before <= 20 + 6, "while the patience still grows, and then once in PATIENCE_MAX"


def test_batches_grow_again_with_the_limit_of_the_topic():
    topic = Topic(2000)
    topic.send(100)
    topic.limit = MIB
    topic.send(2 * PATIENCE_MAX)
    assert topic.sizes.limit("t") == 64 * KIB
    topic.limit = 1000
    topic.send(10)
    assert topic.sizes.limit("t") <= 1000, "a smaller limit is learned at once"
    assert topic.sizes.limit("other") == 64 * KIB


def test_batches_of_before_the_refusal_teach_nothing():
    sizes = BatchSizes(64 * KIB)
    for _ in range(5):
        sizes.refused("t", 64 * KIB)
    assert sizes.limit("t") > 32 * KIB
    sizes.refused("t", 70 * KIB)
    for _ in range(PATIENCE_MAX):
        sizes.accepted("t", 1000)
    assert sizes.limit("t") < 33 * KIB, "small batches do not show that larger ones are taken"


def test_batches_not_yet_sent_shrink_before_they_are():
    """The first batch is refused while the others wait; each of them is sent once, in parts, in order."""
    core = core_of(batch_size=1000)
    for number in range(40):
        add(core, 0, b"%02d" % number * 40)
    assert len(core.queues[TopicPartition("t", 0)].batches) == 4
    written, refused = [], 0
    core.is_closing = True
    while core.incomplete:
        (queues,) = core.ready(0, dict.fromkeys(core.queues, 1)).by_node.values()
        (batch,) = core.drain(queues, 0)
        if len(batch.data) > 600:
            refused += 1
            core.settle(batch, ErrorCode.MESSAGE_TOO_LARGE, 0)
        else:
            assert batch.base_sequence == len(written)
            written += [each.value[:2] for each in decode_records(batch.data, 0, parse_batch_header(batch.data))]
            core.settle(batch, ErrorCode.NONE, 0, base_offset=0)
    assert written == [b"%02d" % number for number in range(40)]
    assert refused == 1
    assert core.memory_used == 0


def test_a_topic_of_small_batches_refuses_few():
    """A topic takes 5,000 bytes, then 1 MB, from a producer with batches of 8,000 bytes."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("t", partitions=1, replicas=1, **{"max.message.bytes": "5000"})
        config = {"bootstrap.servers": "b1:9092", "batch.size": 8000}
        async with Producer(config, environment=cluster.client_environment) as producer:

            async def send(count):
                deliveries = [await producer.send("t", b"x" * 950) for _ in range(count)]
                await producer.flush()
                return deliveries[-1].result().offset

            for _ in range(30):
                await send(8)
            refused = producer.statistics().batch_split_total
            assert 1 <= refused < 10
            async with Admin({"bootstrap.servers": "b1:9092"}, environment=cluster.client_environment) as admin:
                change = ConfigAlteration(name="max.message.bytes", value="1000000")
                await admin.alter_configs({ConfigResource(ResourceType.TOPIC, "t"): [change]})
            assert await send(600) == 30 * 8 + 600 - 1
            assert producer.statistics().batch_split_total == refused
            await send(80)
            assert producer.statistics().batch_size_max > 7500

    run_cluster(scenario, brokers=1)


def test_a_full_memory_refuses_a_record_at_once():
    core = core_of(buffer_memory=2000)
    while add(core, 0, b"x" * 100) is not None:
        pass
    assert add(core, 1, b"y" * 100) is None
    (doomed,) = core.abort(KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED))
    assert doomed.builder.size_bytes > 1700
    assert core.memory_used == 0
