"""Goal: transactions hold from application to log: they are atomic, a pipe delivers exactly once, and none hangs.

Method: Moldau's producer and consumer against whole brokers in a simulated world, with leaders, coordinators and
clients killed at drawn moments.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
import trio

from moldau.consumer import Consumer
from moldau.producer import (
    AbortableTransactionError,
    FatalTransactionError,
    Producer,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionError,
)
from moldau.producer.core.transaction_values import State
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from support.cluster.broker_cluster import batch, run_cluster
from support.proof import proof_beyond

CONSUMER = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "isolation.level": "read_committed"}


def bootstrap(cluster) -> str:
    return ",".join(f"b{broker_id}:9092" for broker_id in cluster.broker_ids)


def producer_of(cluster, transactional_id: str, **more) -> Producer:
    config = {
        "bootstrap.servers": bootstrap(cluster),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": 20_000,
        "max.block.ms": 60_000,
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return Producer(config, environment=cluster.client_environment)


def consumer_of(cluster, **more) -> Consumer:
    config = {**CONSUMER, "bootstrap.servers": bootstrap(cluster), **more}
    return Consumer(config, environment=cluster.client_environment)


async def read_all(cluster, topic: str, partitions: int, isolation: str = "read_committed") -> list[bytes]:
    """Returns every record up to the end that readers of this isolation level see."""
    found: list[bytes] = []
    async with consumer_of(cluster, **{"isolation.level": isolation}) as consumer:
        parts = [(topic, number) for number in range(partitions)]
        consumer.assign(parts)
        ends = await consumer.end_offsets(parts)
        with trio.fail_after(60):
            while any((consumer.position_nowait(part) or 0) < ends[part] for part in parts):
                for consumed in await consumer.poll(200):
                    found += [bytes(record.value) for record in consumed.records]
    return sorted(found)


async def all_running(cluster) -> None:
    """Starts the brokers that are down when the faults end."""
    for broker_id in cluster.broker_ids:
        if not cluster.world.node(f"b{broker_id}").is_running:
            cluster.start_broker(broker_id)
    await cluster.until(lambda: len(cluster.running) == len(cluster.broker_ids))


async def nothing_hangs(cluster, topic: str, partitions: int) -> None:
    """Checks that every partition becomes readable to its end."""
    for number in range(partitions):
        leader = await cluster.leader(topic, number)
        log = cluster.replica(leader, topic, number).log
        await cluster.until(lambda log=log: log.last_stable_offset == log.log_end_offset, timeout_ms=60_000)


def test_aborted_records_are_reported_and_not_read():
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=2)
        async with producer_of(cluster, "id", linger_ms=1000) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            sent = await producer.send("t", b"sent", partition=0)
            await producer.flush()
            unsent = await producer.send("t", b"unsent", partition=1)
            await producer.abort_transaction()
            assert (await sent).offset == 0
            with pytest.raises(TransactionAbortedError):
                await unsent
            producer.begin_transaction()
            await producer.send("t", b"kept", partition=0)
            await producer.commit_transaction()
            with pytest.raises(RuntimeError, match="cannot send"):
                await producer.send("t", b"outside", partition=0)
        await nothing_hangs(cluster, "t", 2)
        assert await read_all(cluster, "t", 2) == [b"kept"]
        assert await read_all(cluster, "t", 2, "read_uncommitted") == [b"kept", b"sent"]

    run_cluster(scenario)


def test_leaving_the_block_aborts_an_open_transaction():
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t")
        async with producer_of(cluster, "id") as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send("t", b"forgotten")
            await producer.flush()
        await nothing_hangs(cluster, "t", 1)
        assert await read_all(cluster, "t", 1) == []

    run_cluster(scenario)


@pytest.mark.parametrize(("isolation", "end"), [("read_committed", 2), ("read_uncommitted", 5)])
def test_the_lag_ends_where_the_isolation_level_does(isolation, end):
    """Behind a committed record and its marker wait three records of an open transaction."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t")
        async with producer_of(cluster, "id") as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send("t", b"committed")
            await producer.commit_transaction()
            await nothing_hangs(cluster, "t", 1)
            producer.begin_transaction()
            for _ in range(3):
                await producer.send("t", b"open")
            await producer.flush()
            async with consumer_of(cluster, **{"isolation.level": isolation}) as consumer:
                consumer.assign([("t", 0)])
                with trio.fail_after(20):
                    while (consumer.position_nowait(("t", 0)) or 0) < end:
                        await consumer.poll(200)
                found = consumer.statistics()
                row = found.partitions["t", 0]
                assert (row.position, row.end_offset, row.records_lag, found.records_lag_max) == (end, end, 0, 0)
                assert (consumer.lag(("t", 0)).end_offset, consumer.lag(("t", 0)).records) == (end, 0)
            await producer.abort_transaction()

    run_cluster(scenario)


def test_a_too_large_record_makes_the_transaction_abortable():
    """A record that is too large for its topic makes the transaction abortable."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", max_message_bytes="2000")
        async with producer_of(cluster, "id") as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send("t", b"small")
            await producer.flush()
            large = await producer.send("t", bytes(5000))
            with pytest.raises(TransactionError) as caught:
                await producer.commit_transaction()
            assert not isinstance(caught.value, FatalTransactionError)
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await large
            await producer.abort_transaction()
            producer.begin_transaction()
            await producer.send("t", b"next")
            await producer.commit_transaction()
        assert await read_all(cluster, "t", 1) == [b"next"]

    run_cluster(scenario)


def test_a_commit_that_another_task_aborts_fails():
    """One task commits; another one waits for a delivery of the transaction, and aborts when that fails."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", max_message_bytes="2000")
        async with producer_of(cluster, "id") as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send("t", b"small")
            await producer.flush()
            large = await producer.send("t", bytes(5000))
            aborted = trio.Event()

            async def abort() -> None:
                with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                    await large
                await producer.abort_transaction()
                aborted.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(abort)
                with pytest.raises(AbortableTransactionError, match="MESSAGE_TOO_LARGE"):
                    await producer.commit_transaction()
            assert aborted.is_set()
        assert await read_all(cluster, "t", 1) == []

    run_cluster(scenario)


def test_a_repeated_call_returns_the_outcome_of_a_timed_out_one():
    """A call that timed out and completed in the background returns its outcome when it is called again."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t")

        async def timed_out(call) -> None:
            with pytest.raises(KafkaError, match="call again") as caught:
                await call(timeout_ms=0)
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT

        async def ended() -> None:
            await cluster.until(lambda: producer._transactions.manager.state is State.READY)

        async with producer_of(cluster, "id") as producer:
            for call, value in (
                (producer.init_transactions, None),
                (producer.commit_transaction, b"committed"),
                (producer.abort_transaction, b"aborted"),
            ):
                if value is not None:
                    producer.begin_transaction()
                    await producer.send("t", value)
                    await producer.flush()
                await timed_out(call)
                await ended()
                await call()
                producer.undeliver_outcome()  # the calling thread was interrupted
                await call()
                with pytest.raises(RuntimeError, match="is ready"):
                    await call()
            producer.begin_transaction()
            await producer.send("t", b"kept")
            await timed_out(producer.commit_transaction)
            await ended()
            with pytest.raises(RuntimeError, match="was committed"):
                await producer.abort_transaction()
            producer.begin_transaction()
            await producer.abort_transaction()
        assert await read_all(cluster, "t", 1) == [b"committed", b"kept"]

    run_cluster(scenario)


def test_a_zombie_is_fenced_by_its_successor():
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t")
        async with producer_of(cluster, "id") as zombie, producer_of(cluster, "id") as successor:
            await zombie.init_transactions()
            zombie.begin_transaction()
            await zombie.send("t", b"zombie")
            await zombie.flush()
            await successor.init_transactions()
            successor.begin_transaction()
            await successor.send("t", b"successor")
            await successor.commit_transaction()
            with pytest.raises(ProducerFencedError):
                await zombie.commit_transaction()
            with pytest.raises(ProducerFencedError):
                await zombie.send("t", b"again")
        assert await read_all(cluster, "t", 1) == [b"successor"]

    run_cluster(scenario)


def test_a_follower_sends_a_transactional_producer_to_the_leader():
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=2)
        async with producer_of(cluster, "id") as producer:
            await producer.init_transactions()
        leader = await cluster.leader("t")
        follower = 3 - leader
        await cluster.until(lambda: cluster.replica(follower, "t") is not None)
        records = batch(b"v", producer_id=0, producer_epoch=0, base_sequence=0, is_transactional=True)
        request = ProduceRequest(
            transactional_id="id",
            acks=-1,
            timeout_ms=5000,
            topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])],
        )
        answer = await cluster.client(follower).request(request, 11)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        for version, code in ((10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)):
            answer = await cluster.client(leader).request(request, version)
            assert answer.responses[0].partition_responses[0].error_code == code, "no partition was added"

    run_cluster(scenario, brokers=2)


def test_the_coordinator_aborts_transactions_that_time_out():
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t")
        async with producer_of(cluster, "id", transaction_timeout_ms=2000) as slow:
            await slow.init_transactions()
            slow.begin_transaction()
            await slow.send("t", b"late")
            await slow.flush()
            await trio.sleep(10)
            await nothing_hangs(cluster, "t", 1)
            with pytest.raises(FatalTransactionError):
                await slow.commit_transaction()
        assert await read_all(cluster, "t", 1) == []

    run_cluster(scenario)


@pytest.mark.parametrize("seed", proof_beyond(1, [1, 2, 3]))
def test_transactions_are_whole_while_brokers_die(seed):
    """One producer runs transaction after transaction while brokers are killed and restarted in turn."""

    async def scenario(cluster) -> None:
        draw = cluster.client_environment.random
        await cluster.client(1).create_topic("t", partitions=3, replicas=3, min_insync_replicas="2")
        committed: list[bytes] = []
        kills: list[int] = []
        finished = trio.Event()

        async def transact() -> None:
            async with producer_of(cluster, "id") as producer:
                await producer.init_transactions()
                for number in range(40):
                    values = [b"%d-%d" % (number, k) for k in range(draw.randint(1, 4))]
                    producer.begin_transaction()
                    try:
                        for value in values:
                            await producer.send("t", value, partition=draw.randrange(3))
                        if draw.random() < 0.3:
                            await producer.abort_transaction()
                        else:
                            await producer.commit_transaction()
                            committed.extend(values)
                    except FatalTransactionError:
                        raise
                    except TransactionError:
                        await producer.abort_transaction()
                    await trio.sleep(0.2)
            finished.set()

        async def kill_in_turn() -> None:
            while not finished.is_set():
                await trio.sleep(draw.uniform(0.3, 1.5))
                victim = draw.choice(sorted(cluster.running))
                cluster.kill(victim)
                kills.append(victim)
                await trio.sleep(draw.uniform(0.2, 3))
                cluster.start_broker(victim)
                await cluster.until(lambda victim=victim: victim in cluster.running)
                for number in range(3):
                    await cluster.until(
                        lambda number=number: len(cluster.partition_image("t", number).isr) == 3, timeout_ms=60_000
                    )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_in_turn)
            with trio.fail_after(300):
                await transact()
            nursery.cancel_scope.cancel()
        await all_running(cluster)
        await nothing_hangs(cluster, "t", 3)
        assert len(committed) > 10
        assert len(kills) >= 2
        assert await read_all(cluster, "t", 3) == sorted(committed)

    run_cluster(scenario, seed=seed, brokers=3)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.proof
def test_a_pipe_delivers_exactly_once_through_crashes(seed):
    """Workers read, transform and write, with offsets in the transaction; workers and brokers crash."""
    count = 120
    ends: Counter[str] = Counter()

    async def scenario(cluster) -> None:
        draw = cluster.client_environment.random
        for topic in ("source", "target"):
            await cluster.client(1).create_topic(topic, partitions=2, replicas=3, min_insync_replicas="2")
        async with Producer(
            {"bootstrap.servers": bootstrap(cluster)}, environment=cluster.client_environment
        ) as feeder:
            for number in range(count):
                await feeder.send("source", b"%d" % number, partition=number % 2)

        async def work(worker: int) -> None:
            async with (
                consumer_of(cluster, **{"group.id": "pipe", "session.timeout.ms": 6000}) as consumer,
                producer_of(cluster, f"pipe-{worker}", transaction_timeout_ms=8000) as producer,
            ):
                await producer.init_transactions()
                consumer.subscribe(["source"])
                while True:
                    await trio.sleep(draw.uniform(0, 1))
                    batches = await consumer.poll(500, max_records=4)
                    if not batches:
                        continue
                    producer.begin_transaction()
                    offsets = {}
                    for consumed in batches:
                        for record in consumed.records:
                            await producer.send("target", b"done-" + bytes(record.value), partition=consumed.partition)
                            offsets[consumed.topic, consumed.partition] = record.offset + 1
                    await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                    await producer.commit_transaction()

        async def lives(worker: int) -> None:
            while True:
                with trio.move_on_after(draw.expovariate(1 / 3)):
                    with suppress(KafkaError):  # fenced, or out of the group: the next worker continues
                        await work(worker)
                ends["worker"] += 1
                await trio.sleep(0.1)

        async def kill_coordinators() -> None:
            for topic in ("__transaction_state", "__consumer_offsets", "target"):
                await trio.sleep(4)
                victim = await cluster.leader(topic)
                cluster.kill(victim)
                ends["broker"] += 1
                await trio.sleep(3)
                cluster.start_broker(victim)
                await cluster.until(lambda victim=victim: victim in cluster.running)

        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_coordinators)
                for worker in range(2):
                    nursery.start_soon(lives, worker)
                while ends["broker"] < 3 or len(await read_all(cluster, "target", 2)) < count:  # noqa: ASYNC110
                    await trio.sleep(1)
                nursery.cancel_scope.cancel()
        await all_running(cluster)
        found = Counter(await read_all(cluster, "target", 2))
        assert found == Counter(b"done-%d" % number for number in range(count))
        assert ends["worker"] >= 3

    run_cluster(scenario, seed=seed, brokers=3)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_next_member_waits_for_offsets_of_a_transaction(isolation: str) -> None:
    """The isolation is about records: a member that began before the offsets would process their records again."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t")
        async with producer_of(cluster, "p") as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send_offsets_to_transaction({("t", 0): 5}, "g")
            async with (
                consumer_of(cluster, **{"group.id": "g", "isolation.level": isolation}) as consumer,
                trio.open_nursery() as nursery,
            ):
                consumer.assign([("t", 0)])
                found: list[int] = []

                async def look_up() -> None:
                    found.append(await consumer.position(("t", 0)))

                nursery.start_soon(look_up)
                await trio.sleep(3)
                assert found == [], "the transaction may be committed yet"
                await producer.commit_transaction()
            assert found == [5]

    run_cluster(scenario)
