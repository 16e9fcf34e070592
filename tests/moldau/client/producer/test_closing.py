"""Goal: a call that waits when another task closes the producer ends, and the closing loses no commit under way.

Method: the producer against a small cluster, or one real broker whose network is cut, on virtual time.
"""

import math
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau import KafkaError, Producer
from moldau.consumer import Consumer
from moldau.producer.core.transaction_values import State
from moldau.producer.transactions import Transactions
from moldau.protocol.errors import ErrorCode
from moldau_jepsen.world.world import run_world
from support.client.asked_coordinator import P0, ready, serve
from support.client.columns import rows
from support.client.fake_cluster import FakeCluster
from support.cluster.broker_cluster import run_cluster


def simulate(scenario):
    async def main(world):
        cluster = FakeCluster(world, 1)
        cluster.start()
        environment = world.node("client").environment

        def producer(**config):
            given = {"bootstrap.servers": cluster.bootstrap} | {k.replace("_", "."): v for k, v in config.items()}
            return Producer(given, environment=environment)

        return await scenario(cluster, producer)

    return run_world(main, 1)


async def outcomes_when_closed(producer, calls, timeout_ms=1_000):
    """Starts calls, closes the producer while they wait, and returns the error of each call."""
    failures = {}

    async def wait(name, call):
        try:
            await call()
        except (KafkaError, RuntimeError) as error:
            failures[name] = error

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for name, call in calls.items():
                nursery.start_soon(wait, name, call)
            await trio.sleep(1)
            await producer.close(timeout_ms)
            producer.abandon()
    return failures


def test_a_send_that_waits_for_metadata_ends():
    async def scenario(cluster, open_producer):
        del cluster
        async with open_producer(max_block_ms=600_000) as producer:
            calls = {"send": lambda: producer.send("nope", b""), "look": lambda: producer.partitions_for("nope")}
            failures = await outcomes_when_closed(producer, calls)
        assert {name: str(error) for name, error in failures.items()} == dict.fromkeys(
            calls, "the client was closed during the call"
        )
        assert all(isinstance(error, RuntimeError) for error in failures.values())

    simulate(scenario)


def test_a_look_up_of_a_consumer_ends_too():
    async def scenario(cluster, open_producer):
        config = {"bootstrap.servers": cluster.bootstrap}
        failures = []

        async def look(consumer):
            with pytest.raises(RuntimeError) as caught:
                await consumer.partitions_for("nope")
            failures.append(str(caught.value))

        async with open_producer() as producer, Consumer(config, environment=producer._environment) as consumer:
            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(look, consumer)
                    await trio.sleep(1)
                    await consumer.close()
        assert failures == ["the client was closed during the call"]

    simulate(scenario)


def test_rows_that_wait_for_memory_are_not_taken_any_more():
    """Otherwise the batches of the last rows would never settle."""

    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        async with open_producer(max_block_ms=600_000, buffer_memory=3_000, batch_size=1_000) as producer:
            await producer.partitions_for("t")
            part.leader = -1
            calls = {"rows": lambda: producer.send_columns("t", rows([b"x" * 900] * 9))}
            failures = await outcomes_when_closed(producer, calls)
            assert str(failures["rows"]) == "the producer is closed"
            assert not producer._accumulator.incomplete

    simulate(scenario)


def cluster_config(cluster, **more):
    return {"bootstrap.servers": "b1:9092", **more}


async def committed(cluster):
    config = cluster_config(cluster, **{"isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    async with Consumer(config, environment=cluster.client_environment) as consumer:
        consumer.assign([("t", 0)])
        end = (await consumer.end_offsets([("t", 0)]))["t", 0]
        found = []
        while (consumer.position_nowait(("t", 0)) or 0) < end:
            found += [record.value for batch in await consumer.poll(200) for record in batch.records]
        return found


def test_closing_waits_for_the_commit_under_way():
    """Its call has ended, and its record is delivered only while the producer closes."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("t", replicas=1)
        network = cluster.world.network
        config = cluster_config(cluster, **{"transactional.id": "x", "transaction.timeout.ms": 10_000})

        async def heal():
            await trio.sleep(3)
            network.heal_all()

        opened = Producer(config, environment=cluster.client_environment)
        async with trio.open_nursery() as nursery, opened as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.partitions_for("t")
            network.cut_between(["client"], ["b1"])
            await producer.send("t", b"kept")
            with pytest.raises(KafkaError) as caught:
                await producer.commit_transaction(timeout_ms=100)
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
            nursery.start_soon(heal)
        await trio.sleep(20)
        assert await committed(cluster) == [b"kept"]

    run_cluster(scenario, brokers=1, controllers=1)


@pytest.mark.parametrize("is_committing", [False, True])
def test_closing_takes_its_time_once(is_committing):
    """The abort of a transaction, or its commit, and the delivery of records had the whole time each."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("t", replicas=1)
        config = cluster_config(cluster, **{"transactional.id": "x"})
        async with Producer(config, environment=cluster.client_environment) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send("t", b"in doubt")
            await producer.flush()
            cluster.world.network.cut_between(["client"], ["b1"])
            delivery = await producer.send("t", b"undelivered")
            if is_committing:
                with pytest.raises(KafkaError):
                    await producer.commit_transaction(timeout_ms=100)
            began = trio.current_time()
            await producer.close(3_000)
            assert trio.current_time() - began < 3.1
            with pytest.raises(KafkaError):
                await delivery

    run_cluster(scenario, brokers=1, controllers=1)


@pytest.mark.parametrize("call", ["init", "commit", "abort", "offsets", "prepare"])
def test_calls_of_a_transaction_end_with_the_producer(call):
    async def scenario(cluster):
        await cluster.client(1).create_topic("t", replicas=1)
        config = cluster_config(cluster, **{"transactional.id": "x"})
        async with Producer(config, environment=cluster.client_environment) as producer:
            if call != "init":
                await producer.init_transactions()
                producer.begin_transaction()
                await producer.send("t", b"in doubt")
                if call != "prepare":
                    await producer.flush()
            cluster.world.network.cut_between(["client"], ["b1"])
            waits = {
                "init": lambda: producer.init_transactions(math.inf),
                "commit": lambda: producer.commit_transaction(math.inf),
                "abort": lambda: producer.abort_transaction(math.inf),
                "offsets": lambda: producer.send_offsets_to_transaction({("t", 0): 1}, "g", math.inf),
                "prepare": lambda: producer.prepare_transaction(math.inf),
            }[call]
            failures = await outcomes_when_closed(producer, {call: waits})
        if call in ("offsets", "prepare"):  # the closing aborts the transaction
            assert list(failures) == [call]
            return
        assert isinstance(failures[call], KafkaError)
        assert failures[call].code is ErrorCode.REQUEST_TIMED_OUT
        assert "before the producer was closed" in str(failures[call])

    run_cluster(scenario, brokers=1, controllers=1)


def transactions_of(manager):
    """The part of a producer that closing waits for, without a connection."""
    accumulator = SimpleNamespace(abort_unsent=lambda error: [])
    sender = SimpleNamespace(wake=lambda: None, dropped=lambda batches: None)
    client = SimpleNamespace(logger=SimpleNamespace(info=lambda *_, **__: None), last_error=None)
    return Transactions(client, accumulator, sender, manager, 60_000)


def test_closing_waits_for_each_step_of_a_commit():
    """Partitions join the transaction first, then records are delivered, and only the end decides."""
    manager = ready()
    manager.begin()
    manager.admit(P0)
    manager.begin_commit()
    transactions = transactions_of(manager)

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transactions.leave, 30_000)
            await trio.testing.wait_all_tasks_blocked()
            assert serve(manager, has_records=True)
            transactions._changed.notify()
            await trio.testing.wait_all_tasks_blocked()
            assert nursery.child_tasks, "the end is not sent yet"
            serve(manager)
            transactions._changed.notify()

    trio.run(main)
    assert manager.state is State.READY


def test_closing_aborts_a_transaction_whose_commit_has_failed():
    """The failure comes while the closing waits for the commit: without an abort, readers would wait for a timeout."""
    manager = ready()
    manager.begin()
    manager.admit(P0)
    serve(manager)
    manager.begin_commit()
    transactions = transactions_of(manager)

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transactions.leave, 30_000)
            await trio.testing.wait_all_tasks_blocked()
            transactions.settled([SimpleNamespace(error=KafkaError(ErrorCode.MESSAGE_TOO_LARGE), partition=P0)])
            transactions._changed.notify()
            await trio.testing.wait_all_tasks_blocked()
            assert manager.state is State.ABORTING
            serve(manager)
            transactions._changed.notify()

    trio.run(main)
    assert manager.state is State.READY
