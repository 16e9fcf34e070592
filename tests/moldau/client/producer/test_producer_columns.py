"""The producer takes rows of columns: same partitions, order and errors as records sent one by one, few requests."""

from array import array

import pytest
import trio

from moldau import KafkaError, Producer
from moldau.producer import partition_for_key
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.records import RowColumns
from moldau_jepsen.world.world import run_world
from support.client.columns import column, rows
from support.client.fake_cluster import FakeCluster, batch_count, whole_log


def simulate(scenario, seed=1):
    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.start()
        environment = world.node("client").environment

        def producer(**config):
            given = {"bootstrap.servers": cluster.bootstrap} | {k.replace("_", "."): v for k, v in config.items()}
            return Producer(given, environment=environment)

        return await scenario(cluster, producer)

    return run_world(main, seed)


def test_rows_go_by_key_and_keep_their_order():
    async def scenario(cluster, open_producer):
        parts = cluster.add_topic("t", 3)
        keys = [b"k%d" % (n % 50) for n in range(2000)]
        values = [b"%d" % n for n in range(2000)]
        async with open_producer() as producer:
            for delivery in await producer.send_columns("t", rows(values, keys)):
                assert (await delivery).offset >= 0
        for number, part in enumerate(parts):
            expected = [v for k, v in zip(keys, values, strict=True) if partition_for_key(k, 3) == number]
            assert part.values() == expected
        assert sum(map(batch_count, parts)) < 20

    simulate(scenario)


WRONG = [
    ("t", None, None, "columns must be a RowColumns of moldau.records, not None"),
    ("t", [b"a"], None, "columns must be a RowColumns of moldau.records, not list"),
    (5, rows([b"a"]), None, "topic must be a str"),
    ("t", rows([b"a"]), [0], "partitions must be a buffer of int32"),
    ("t", rows([b"a"]), b"abc", "partitions has 3 bytes; 1 rows need 4, an int32 for each"),
    ("t", rows([b"a"]), array("q", [0]), "partitions has 8 bytes; 1 rows need 4"),
]


def test_wrong_columns_are_named():
    """The errors were those of Python's own calls, an AttributeError among them."""

    async def scenario(cluster, open_producer):
        cluster.add_topic("t", 3)
        async with open_producer() as producer:
            for topic, columns, partitions, text in WRONG:
                with pytest.raises((TypeError, ValueError), match=f"send_columns: {text}"):
                    await producer.send_columns(topic, columns, partitions=partitions)
            for batch in ("x", None, memoryview(array("q", [0])), memoryview(b"abcd")[::2]):
                with pytest.raises((TypeError, ValueError), match="send_encoded: batch "):
                    await producer.send_encoded("t", 0, batch)
            for partition in (-1, 2**31):
                begun = trio.current_time()
                with pytest.raises(ValueError, match=rf"^send: .*partition .*{partition}"):
                    await producer.send("t", b"v", partition=partition)
                assert trio.current_time() - begun < 1

    simulate(scenario)


def test_a_given_partition_wins_over_the_key():
    async def scenario(cluster, open_producer):
        parts = cluster.add_topic("t", 3)
        async with open_producer() as producer:
            chosen = array("i", [2, -1, 0]).tobytes()
            await producer.send_columns("t", rows([b"a", b"b", b"c"], [b"k", b"k", b"k"]), partitions=chosen)
            with pytest.raises(ValueError, match="row 1: partition 3, there are 0 to 2"):
                await producer.send_columns("t", rows([b"x", b"y"]), partitions=array("i", [0, 3]).tobytes())
        found = {value: number for number, part in enumerate(parts) for value in part.values()}
        assert found == {b"a": 2, b"b": partition_for_key(b"k", 3), b"c": 0}

    simulate(scenario)


def test_keyless_rows_fill_batches():
    """Rows without a key stick to a partition for about one batch, and all partitions get some."""

    async def scenario(cluster, open_producer):
        parts = cluster.add_topic("t", 3)
        values = [b"%05d" % n for n in range(5000)]
        async with open_producer(batch_size=2000) as producer:
            for first in range(0, 5000, 500):
                await producer.send_columns("t", rows(values[first : first + 500]))
        assert sorted(value for part in parts for value in part.values()) == values
        assert all(part.values() for part in parts)
        assert sum(map(batch_count, parts)) < 2 * 5000 * 13 / 2000

    simulate(scenario)


def test_round_robin_deals_rows_out():
    async def scenario(cluster, open_producer):
        parts = cluster.add_topic("t", 3)
        async with open_producer(partitioner_class="round-robin") as producer:
            for count in (7, 8, 6):
                await producer.send_columns("t", rows([b"%d" % n for n in range(count)]))
        assert [len(part.values()) for part in parts] == [7, 7, 7]

    simulate(scenario)


def test_full_memory_makes_columns_wait():
    async def scenario(cluster, open_producer):
        parts = cluster.add_topic("t", 2)
        values = [b"%05d" % n for n in range(3000)]
        async with open_producer(batch_size=1000, buffer_memory=4000) as producer:
            with trio.fail_after(60):
                await producer.send_columns("t", rows(values))
                assert producer.pending_bytes <= 4000
        assert sorted(whole_log(parts)) == values

    simulate(scenario)


def test_a_row_that_is_too_large_is_refused():
    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        async with open_producer(max_request_size=1000) as producer:
            with pytest.raises(KafkaError, match=r"larger than max\.request\.size = 1000") as caught:
                await producer.send_columns("t", rows([b"small", b"x" * 2000]))
            assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert part.values() == []

    simulate(scenario)


def test_a_delivery_of_rows_has_the_last_rows_timestamp():
    """Rows without a timestamp, all or single ones, have the time of the call."""

    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        times = array("q", [40, -1, 20]).tobytes()
        async with open_producer() as producer:
            for count in (3, 2):
                given = RowColumns(count, None, column([b"row"] * count), times)
                (delivery,) = await producer.send_columns("t", given)
                assert (await delivery).timestamp == part.records()[-1].timestamp
            (delivery,) = await producer.send_columns("t", rows([b"row"]))
            assert (await delivery).timestamp == part.records()[-1].timestamp

    simulate(scenario)


def test_a_delivery_of_rows_names_the_place_of_its_last_row():
    """Records that another task adds to the batch, while the call waits for memory, are not its rows."""

    async def scenario(cluster, open_producer):
        first, _ = cluster.add_topic("t", 2)
        cluster.fail_next(ApiKey.INIT_PRODUCER_ID, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # so batches stay open
        async with open_producer(batch_size=1000, buffer_memory=2500) as producer:
            await producer.partitions_for("t")
            deliveries = []

            async def send():
                named = array("i", [0, 1, 1, 1]).tobytes()
                values = [b"mine", *(bytes(900) for _ in range(3))]
                deliveries.extend(await producer.send_columns("t", rows(values), partitions=named))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                await trio.sleep(0.001)
                assert producer.statistics().waiting_threads == 1
                await producer.send("t", b"other", partition=0)
            (mine,) = [each for each in deliveries if each.partition == 0]
            assert (await mine).offset == 0
        assert first.values() == [b"mine", b"other"]

    simulate(scenario)
