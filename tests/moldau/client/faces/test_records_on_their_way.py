"""Goal: a loop over single records that another task or thread ends by closing its consumer loses no record.

Method: a small cluster on real sockets. The close begins when the trio thread has taken records of which the loop has
received none.
"""

import asyncio
import threading

import moldau.aio
import moldau.blocking
from support.client.socket_cluster import WAIT_S, cluster

RECORDS = [b"%d" % number for number in range(10)]


def settings(fake):
    return {"bootstrap.servers": fake.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}


def fill(fake):
    fake.add_topic("t")
    with moldau.blocking.Producer({"bootstrap.servers": fake.bootstrap}) as producer:
        producer.send_many("t", RECORDS)


def close_behind_a_poll(consumer, begin, *, waits):
    """Calls ``begin``, which begins to close, when a poll has records; ``waits``: the poll ends after that."""
    asks, asked = consumer._portal._ask_stop, threading.Event()
    polls = consumer._consumer.poll

    def ask_stop(**options):
        asked.set()
        return asks(**options)

    async def poll(*arguments):
        batches = await polls(*arguments)
        if batches:
            begin()
            assert not waits or asked.wait(WAIT_S)  # without a checkpoint: a poll has none behind its records
        return batches

    consumer._portal._ask_stop, consumer._consumer.poll = ask_stop, poll


def left(fake):
    """Returns the records that the group has not committed."""
    with moldau.blocking.Consumer(settings(fake)) as consumer:
        consumer.assign([("t", 0)])
        return [record.value for batch in consumer.poll(1000 * WAIT_S) for record in batch.records]


def read_under_asyncio(fake, *, waits):
    async def main():
        loop, closing, seen = asyncio.get_running_loop(), [], []
        async with moldau.aio.Consumer(settings(fake)) as consumer:
            consumer.assign([("t", 0)])

            def begin():
                loop.call_soon_threadsafe(lambda: closing.append(asyncio.create_task(consumer.close())))

            close_behind_a_poll(consumer, begin, waits=waits)
            seen += [record.value async for record in consumer]
            await closing[0]
        return seen

    return asyncio.run(main())


def test_a_close_under_asyncio_commits_no_unread_record():
    """It committed up to ``max.poll.records`` records that the loop had not received, and never did."""
    for waits in (True, False):
        with cluster() as fake:
            fill(fake)
            assert read_under_asyncio(fake, waits=waits) + left(fake) == RECORDS


def test_a_close_in_a_thread_commits_no_unread_record():
    with cluster() as fake:
        fill(fake)
        with moldau.blocking.Consumer(settings(fake)) as consumer:
            consumer.assign([("t", 0)])
            closer = threading.Thread(target=consumer.close)
            close_behind_a_poll(consumer, closer.start, waits=True)
            seen = [record.value for record in consumer]
            closer.join(WAIT_S)
        assert seen + left(fake) == RECORDS
