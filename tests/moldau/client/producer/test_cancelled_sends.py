"""Goal: a send that is cancelled has sent nothing, interceptors learn of it, and calls that end early leave no trace.

Method: a producer on virtual time whose tasks are cancelled at the first checkpoint of a call, or while it waits.
"""

from uuid import UUID

import pytest
import trio

from moldau import KafkaError, Producer, ProducerInterceptor
from moldau.cluster.metadata import PartitionInfo, TopicInfo
from moldau.producer.core.transaction_values import State
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


def fills(call):
    """Makes a call that waits for memory: another record has taken it."""

    async def wait(producer):
        await producer.send("t", bytes(900))
        await call(producer)

    return wait


def ends(name):
    """Makes a call that waits for the record before it, for a little time or until it is cancelled."""

    async def wait(producer):
        await producer.send("t", bytes(900))
        await getattr(producer, name)(*([10] if name == "flush" else []))

    return wait


@pytest.mark.parametrize(
    "call",
    [
        fills(lambda producer: producer.send("t", bytes(900))),
        fills(lambda producer: producer.send_columns("t", rows([bytes(900)]))),
        fills(lambda producer: producer.send_encoded("t", 0, encode_batch([(1, None, bytes(900), ())]))),
        ends("flush"),
        ends("prepare_transaction"),
        ends("commit_transaction"),
    ],
    ids=["memory", "columns", "encoded", "flush", "prepare", "commit"],
)
@pytest.mark.parametrize("seconds", [0.005, 1])
def test_a_call_that_ends_early_leaves_no_count(call, seconds):
    """Its count makes batches leave at once. If that stayed, ``linger.ms`` would never have an effect again."""

    async def main(world):
        config = {
            "bootstrap.servers": "nowhere:1",
            "transactional.id": "tx",
            "buffer.memory": 1_500,
            "max.block.ms": 50,
        }
        async with Producer(config, environment=world.node("client").environment) as producer:
            client, manager = producer._client, producer._transactions.manager
            part = PartitionInfo(topic="t", partition=0, leader=1, leader_epoch=0)
            client.cluster_metadata.topics["t"] = TopicInfo(name="t", topic_id=UUID(int=1), partitions=(part,))
            manager.state = State.IN_TRANSACTION
            with trio.move_on_after(seconds) as scope, pytest.raises((KafkaError, trio.TooSlowError)):
                await call(producer)
            core = producer._accumulator
            assert scope.cancelled_caught == (seconds < 0.01)
            assert (core.memory_waiters, core.flushes) == (0, 0)
            assert core.is_completing == (manager.state in (State.COMMITTING, State.ABORTING))
            producer.abandon()

    run_world(main, 1)
