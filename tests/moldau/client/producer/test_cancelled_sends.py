"""Goal: a send that is cancelled has sent nothing, and interceptors learn of it.

Method: a producer on virtual time whose tasks are cancelled at the first checkpoint of a call.
"""

import pytest
import trio

from moldau import Producer, ProducerInterceptor
from moldau.producer.intake import PAUSE_INTERVAL_RECORDS
from moldau.records import encode_batch
from moldau_jepsen.world.world import run_world
from support.client.columns import rows
from support.client.fake_cluster import FakeCluster


class Noting(ProducerInterceptor):
    def __init__(self):
        self.outcomes = []

    def on_acknowledgement(self, record, metadata, error):
        self.outcomes.append((record.value, None if error is None else type(error)))


def simulate(scenario, interceptors=()):
    """Runs ``scenario(producer, part)`` with a producer that knows the topic."""

    async def main(world):
        cluster = FakeCluster(world, 1)
        cluster.start()
        (part,) = cluster.add_topic("t")
        config = {"bootstrap.servers": cluster.bootstrap}
        environment = world.node("client").environment
        async with Producer(config, environment=environment, interceptors=interceptors) as producer:
            await (await producer.send("t", b"before"))
            await scenario(producer, part)
        return part.values()

    return run_world(main, 1)


async def cancelled(call):
    with trio.CancelScope() as scope:
        scope.cancel()
        await call()
    return scope.cancelled_caught


def test_a_cancelled_send_has_sent_nothing():
    """Each 256th record lets other tasks run; a task that was cancelled there had sent its record nevertheless."""
    returned = []

    async def scenario(producer, part):
        for value in [b"%d" % number for number in range(2 * PAUSE_INTERVAL_RECORDS)]:
            if not await cancelled(lambda value=value: producer.send("t", value)):
                returned.append(value)  # noqa: PERF401 - an asynchronous comprehension reads worse

    values = simulate(scenario)
    assert len(returned) < 2 * PAUSE_INTERVAL_RECORDS, "some of them were cancelled"
    assert values == [b"before", *returned]


@pytest.mark.parametrize(
    "send",
    [
        lambda producer: producer.send_columns("t", rows([b"row"])),
        lambda producer: producer.send_encoded("t", 0, encode_batch([(1, None, b"row", ())])),
    ],
    ids=["columns", "encoded"],
)
def test_a_cancelled_batch_is_not_sent(send):
    async def scenario(producer, part):
        assert await cancelled(lambda: send(producer))
        assert await send(producer)

    assert simulate(scenario) == [b"before", b"row"]


def test_an_interceptor_learns_of_a_cancelled_send():
    noting = Noting()

    async def scenario(producer, part):
        assert await cancelled(lambda: producer.send("not-known-yet", b"x"))

    assert simulate(scenario, [noting]) == [b"before"]
    assert noting.outcomes == [(b"before", None), (b"x", trio.Cancelled)]
