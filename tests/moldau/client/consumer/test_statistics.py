"""Goal: a consumer's statistics count what reached the application, however it reads. Method: a small cluster."""

import pytest

from moldau import TopicPartition
from support.client.consumer_stories import fill, simulate

T0 = TopicPartition("t", 0)


async def poll(consumer):
    return sum(len(batch.records) for batch in await consumer.poll())


async def iterate(consumer):
    await anext(consumer)
    return 1


async def poll_columns(consumer):
    return sum(each.columns.length for each in await consumer.poll_columns(max_bytes=500))


async def poll_encoded(consumer):
    return sum(each.header.record_count for batches in await consumer.poll_encoded() for each in batches.batches)


@pytest.mark.parametrize("read", [poll, iterate, poll_columns, poll_encoded])
def test_each_way_to_read_counts_its_records(read):
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 300)
        async with open_consumer(max_poll_records=70) as consumer:
            consumer.assign([T0])
            count = 0
            while count < 300:
                count += await read(consumer)
                assert consumer.statistics().records_consumed_total == count

    simulate(scenario)


def test_a_batch_that_is_read_from_its_middle_counts_the_rest():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        async with open_consumer() as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 4)
            while not await poll_encoded(consumer):
                pass
            assert consumer.statistics().records_consumed_total == 6

    simulate(scenario)


@pytest.mark.parametrize("read", [poll, iterate, poll_columns, poll_encoded])
def test_records_of_a_request_do_not_depend_on_the_polls(read):
    """Each answer has three batches of ten; the application reads them in smaller or larger parts."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 300, value=b"x" * 90)
        size = len(part.read(0, 1))
        async with open_consumer(max_poll_records=7, max_partition_fetch_bytes=3 * size) as consumer:
            consumer.assign([T0])
            count = 0
            while count < 300:
                count += await read(consumer)
            assert consumer.statistics().records_per_request_avg == 30

    simulate(scenario)
