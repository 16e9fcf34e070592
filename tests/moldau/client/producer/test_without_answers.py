"""Goal: with acks=0 a record counts as sent, and its memory as free, once the transport has taken its bytes.

Method: producers against a small cluster on virtual time, whose broker does not read for a while.
"""

import pytest
import trio

from moldau import KafkaError, Producer
from moldau.producer.intake import BufferExhaustedError
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.runtime.net.serving.answers import CloseConnection
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

VALUE = b"v" * 10_000
BUFFER = 1_000_000


def simulate(scenario):
    """Runs ``scenario(cluster, part, open_producer)`` with a topic of one partition."""

    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.start()
        (part,) = cluster.add_topic("t")
        environment = world.node("client").environment

        def producer(**config):
            given = {"bootstrap.servers": cluster.bootstrap, "acks": "0", "buffer.memory": BUFFER}
            return Producer(given | {k.replace("_", "."): v for k, v in config.items()}, environment=environment)

        return await scenario(cluster, part, producer)

    run_world(main, 1)


def leader(cluster):
    return cluster.world.node(cluster.brokers[1])


async def send_until_full(producer):
    """Sends until a record finds no memory; returns how many were sent."""
    for sent in range(1_000):
        try:
            await producer.send("t", VALUE)
        except BufferExhaustedError:
            return sent
        await trio.sleep(0.001)
    raise AssertionError("the memory takes records without a bound")


def test_closing_sends_what_the_connection_still_has():
    """The block ended while most of the bytes waited in the connection, and they were dropped."""

    async def scenario(cluster, part, open_producer):
        async with open_producer(buffer_memory=10 * BUFFER) as producer:
            for _ in range(500):
                await producer.send("t", VALUE)
        await trio.sleep(1)
        assert len(part.values()) == 500

    simulate(scenario)


def test_a_flush_waits_until_the_transport_has_all_bytes():
    async def scenario(cluster, part, open_producer):
        async with open_producer() as producer:
            await (await producer.send("t", VALUE))
            leader(cluster).pause()
            last = [await producer.send("t", VALUE) for _ in range(50)][-1]
            with trio.move_on_after(5) as waiting:
                await producer.flush()
            assert waiting.cancelled_caught
            assert not last.is_done
            leader(cluster).resume()
            await producer.flush()
            assert last.result().offset == -1

    simulate(scenario)


def test_records_that_no_broker_reads_fill_the_memory():
    """They left ``buffer.memory`` at once, and took memory without a bound in the connection."""

    async def scenario(cluster, part, open_producer):
        async with open_producer(max_block_ms=2000) as producer:
            await (await producer.send("t", VALUE))
            leader(cluster).pause()
            sent = await send_until_full(producer)
            assert sent * len(VALUE) <= 1.5 * BUFFER, "what fits into the memory, and what the transport takes"
            leader(cluster).resume()
        await trio.sleep(1)
        assert len(part.values()) == 1 + sent

    simulate(scenario)


def test_a_broker_that_reads_nothing_is_given_up():
    """As for requests with an answer, after ``request.timeout.ms``; the records fail after ``delivery.timeout.ms``."""

    async def scenario(cluster, part, open_producer):
        config = {"request_timeout_ms": 2000, "delivery_timeout_ms": 10_000}
        async with open_producer(**config) as producer:
            await (await producer.send("t", VALUE))
            leader(cluster).pause()
            began_s = trio.current_time()
            last = [await producer.send("t", VALUE) for _ in range(50)][-1]
            with pytest.raises(KafkaError, match="not delivered within 10000 ms"):
                await last
            assert trio.current_time() - began_s == pytest.approx(10, abs=0.5)
            leader(cluster).resume()
            await (await producer.send("t", VALUE))

    simulate(scenario)


def test_a_silent_broker_is_left_when_another_one_leads():
    """The records waited for ``request.timeout.ms``, although the other brokers had named a new leader long before."""

    async def scenario(cluster, part, open_producer):
        async with open_producer(request_timeout_ms=30_000) as producer:
            await (await producer.send("t", VALUE))
            leader(cluster).pause()
            waiting = [await producer.send("t", VALUE) for _ in range(50)]
            await trio.sleep(2)
            cluster.move("t", 0, 2)
            with trio.fail_after(5):
                await waiting[-1]
            assert len(part.values()) > 1, "what the connection could not take goes to the new leader"

    simulate(scenario)


def test_a_connection_that_the_broker_closed_takes_no_records():
    """No answer is received there, so that only the second request after the close failed: the first one was lost.

    A broker closes the connection because it does not lead any more, or stops.
    """

    async def scenario(cluster, part, open_producer):
        def produce(broker, request):
            if isinstance(cluster.led(broker, "t", 0), ErrorCode):
                raise CloseConnection("it does not lead")
            return cluster.on_produce(broker, request)

        cluster.handlers[ApiKey.PRODUCE] = produce
        async with open_producer() as producer:
            for number in range(5):
                if number == 1:
                    cluster.move("t", 0, 2)
                await (await producer.send("t", b"%d" % number))
                await trio.sleep(1)
        assert part.values() == [b"0", b"2", b"3", b"4"], "only the one that the former leader refused is lost"

    simulate(scenario)
