"""Goal: a client whose block raises an exception still leaves its group and aborts its transaction.

Method: clients against a small cluster on virtual time, and the blocking clients on real sockets. The tests check the
requests at the brokers and the time that the block took to end.
"""

import contextlib

import pytest
import trio

from moldau import Producer
from moldau.blocking import Consumer as BlockingConsumer
from moldau.blocking import Producer as BlockingProducer
from moldau.cluster.background import FAREWELL_MS
from moldau.protocol.api import ApiKey
from support.client.asked_coordinator import answer_to
from support.client.consumer_stories import fill, simulate
from support.client.socket_cluster import cluster as socket_cluster


def requests(cluster, key):
    return [request for _, asked, request in cluster.requests if asked == key]


@contextlib.contextmanager
def left_by(how):
    """The block inside is left by an exception; ``how`` says which."""
    if how == "cancelled":
        with trio.move_on_after(1):
            yield
    else:
        with pytest.raises(how):
            yield


async def leave(how):
    if how == "cancelled":
        await trio.sleep_forever()
    raise how


WAYS = ["cancelled", KeyError, KeyboardInterrupt]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("instance_id", [None, "static"])
def test_consumer_leaves_its_group(how, instance_id):
    """The member leaves without a commit and without callbacks; a static member keeps its place (KIP-345)."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        reported = []

        async def note(partitions):
            reported.append(partitions)
            await trio.lowlevel.checkpoint()

        config = {"group_id": "g"} | ({} if instance_id is None else {"group_instance_id": instance_id})
        with left_by(how):
            async with open_consumer({"on_revoked": note, "on_lost": note}, **config) as consumer:
                consumer.subscribe(["t"])
                assert await consumer.poll(900)
                begun = trio.current_time()
                await leave(how)
        assert trio.current_time() - begun < 1.2
        assert bool(cluster.groups["g"].members) == (instance_id is not None)
        assert len(requests(cluster, ApiKey.LEAVE_GROUP)) == (instance_id is None)
        assert requests(cluster, ApiKey.OFFSET_COMMIT) == []
        assert reported == []

    simulate(scenario)


def test_member_leaves_while_it_joins():
    """The broker holds the JoinGroup, and answers nothing else on that connection."""

    async def scenario(cluster, open_consumer):
        cluster.add_topic("t")
        cluster.rebalance_ms = 20_000
        with left_by("cancelled"):
            async with open_consumer(group_id="g") as consumer:
                consumer.subscribe(["t"])
                await consumer.poll(60_000)
        assert trio.current_time() < 1.5
        assert len(requests(cluster, ApiKey.LEAVE_GROUP)) == 1
        assert cluster.groups["g"].members == {}

    simulate(scenario)


def test_cancelled_close_leaves_the_group():
    """The commit of the close has no answer; the caller's deadline ends it, and the member leaves nevertheless."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        with trio.move_on_after(2) as scope:
            async with open_consumer(group_id="g") as consumer:
                consumer.subscribe(["t"])
                assert await consumer.poll(1900)
                cluster.handlers[ApiKey.OFFSET_COMMIT] = lambda *_: trio.sleep_forever
        assert scope.cancelled_caught
        assert cluster.groups["g"].members == {}

    simulate(scenario)


def test_silent_coordinator_delays_the_end_shortly():
    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        with left_by(KeyError):
            async with open_consumer(group_id="g") as consumer:
                consumer.subscribe(["t"])
                assert await consumer.poll(2000)
                cluster.world.node("broker1").pause()
                cluster.world.node("broker2").pause()
                begun = trio.current_time()
                raise KeyError
        assert trio.current_time() - begun == pytest.approx(FAREWELL_MS / 1000, abs=0.1)
        for number in (1, 2):
            cluster.world.node(f"broker{number}").resume()

    simulate(scenario)


def test_abandoned_consumer_sends_no_request():
    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        with left_by(KeyError):
            async with open_consumer(group_id="g") as consumer:
                consumer.subscribe(["t"])
                assert await consumer.poll(2000)
                consumer.abandon()
                raise KeyError
        assert requests(cluster, ApiKey.LEAVE_GROUP) == requests(cluster, ApiKey.OFFSET_COMMIT) == []

    simulate(scenario)


def serves_transactions(cluster):
    for key in (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN):
        cluster.handlers[key] = lambda _, request: answer_to(request)
    cluster.max_versions[ApiKey.END_TXN] = 4


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("is_aborting", [False, True])
def test_producer_aborts_its_transaction(how, is_aborting):
    """The open transaction is aborted, also where the abort was asked for and its caller was cancelled."""

    async def scenario(cluster, open_consumer):
        cluster.add_topic("t")
        serves_transactions(cluster)
        config = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "p"}
        with left_by(how):
            async with Producer(config, environment=cluster.world.node("client").environment) as producer:
                await producer.init_transactions()
                producer.begin_transaction()
                delivery = await producer.send("t", b"x")
                await producer.flush()
                assert delivery.is_done
                if is_aborting:
                    cluster.world.node("broker1").pause()
                    cluster.world.node("broker2").pause()
                    with trio.move_on_after(0.01):
                        await producer.abort_transaction()
                    cluster.world.node("broker1").resume()
                    cluster.world.node("broker2").resume()
                await leave(how)
        assert [request.committed for request in requests(cluster, ApiKey.END_TXN)] == [False]

    simulate(scenario)


def test_committing_producer_does_not_abort():
    """A commit that was asked for may be done already: nothing else is asked of the coordinator."""

    async def scenario(cluster, open_consumer):
        cluster.add_topic("t")
        serves_transactions(cluster)
        cluster.handlers[ApiKey.END_TXN] = lambda *_: trio.sleep_forever
        config = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "p"}
        with left_by("cancelled"):
            async with Producer(config, environment=cluster.world.node("client").environment) as producer:
                await producer.init_transactions()
                producer.begin_transaction()
                await producer.send("t", b"x")
                await producer.commit_transaction()
        assert [request.committed for request in requests(cluster, ApiKey.END_TXN)] == [True]

    simulate(scenario)


@pytest.mark.parametrize("how", [KeyError, KeyboardInterrupt])
def test_blocking_consumer_leaves_its_group(how):
    with socket_cluster() as fake:
        fill(fake.add_topic("t")[0], 0, 10)
        config = {"bootstrap.servers": fake.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        with left_by(how), BlockingConsumer(config) as consumer:
            consumer.subscribe(["t"])
            while not consumer.poll(1000):
                continue
            raise how
        assert fake.groups["g"].members == {}
        assert requests(fake, ApiKey.OFFSET_COMMIT) == []


@pytest.mark.parametrize("how", [KeyError, KeyboardInterrupt])
def test_blocking_producer_aborts_its_transaction(how):
    with socket_cluster() as fake:
        fake.add_topic("t")
        serves_transactions(fake)
        config = {"bootstrap.servers": fake.bootstrap, "transactional.id": "p"}
        with left_by(how), BlockingProducer(config) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"x").result()
            raise how
        assert [request.committed for request in requests(fake, ApiKey.END_TXN)] == [False]
