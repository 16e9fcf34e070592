"""Goal: a call of a client that is closed ends soon, and says so; calls that wait when it is closed end too.

The end of a block waits for another task that closes the client.

Method: clients of a small cluster on virtual time. It refuses requests for a while, or hangs, so that calls wait.
"""

import pytest
import trio

from moldau import Admin, Consumer, ErrorCode, NewTopic, Producer, ShareConsumer
from moldau.protocol.api import ApiKey
from moldau.records import encode_batch
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

P0 = ("flights", 0)
SOON_S = 2
CONSUMER = {
    "assign": lambda consumer: consumer.assign([P0]),
    "subscribe": lambda consumer: consumer.subscribe(["flights"]),
    "poll": lambda consumer: consumer.poll(),
    "commit": lambda consumer: consumer.commit({P0: 1}),
    "committed": lambda consumer: consumer.committed([P0]),
    "end_offsets": lambda consumer: consumer.end_offsets([P0]),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({P0: 1}),
    "client_instance_id": lambda consumer: consumer.client_instance_id(),
}
ADMIN = {
    "create_topics": lambda admin: admin.create_topics([NewTopic("delays", 1, 1)]),
    "list_topics": lambda admin: admin.list_topics(),
    "list_offsets": lambda admin: admin.list_offsets({P0: -1}),
    "list_groups": lambda admin: admin.list_groups(),
    "describe_groups": lambda admin: admin.describe_groups(["g", "h"]),
    "alter_group_offsets": lambda admin: admin.alter_group_offsets("g", {P0: 1}),
    "client_instance_id": lambda admin: admin.client_instance_id(),
}
SHARE = {
    "subscribe": lambda consumer: consumer.subscribe(["flights"]),
    "poll": lambda consumer: consumer.poll(),
    "commit": lambda consumer: consumer.commit(),
    "commit_nowait": lambda consumer: consumer.commit_nowait(),
}
CLIENTS = {"Consumer": (Consumer, CONSUMER), "Admin": (Admin, ADMIN), "ShareConsumer": (ShareConsumer, SHARE)}
WAITING = ("commit", "committed", "end_offsets", "create_topics", "list_topics", "list_offsets", "describe_groups")


def simulate(kind, scenario, **config):
    async def main(world):
        cluster = FakeCluster(world, 1)
        cluster.add_topic("flights")
        cluster.start()
        given = {"bootstrap.servers": cluster.bootstrap}
        given |= {"group.id": "g"} if kind is not Producer and kind is not Admin else {}
        given |= {"auto.offset.reset": "earliest"} if kind is Consumer else {}
        await scenario(cluster, kind(given | config, environment=world.node("client").environment))

    run_world(main, 1)


async def outcome(call, client):
    try:
        waited = call(client)
        if waited is not None:
            await waited
    except RuntimeError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_call_after_the_end_says_so_at_once(kind):
    """Calls repeated their requests for a minute, and then called the coordinator or the broker away."""
    made, calls = CLIENTS[kind]

    async def scenario(cluster, client):
        async with client:
            await trio.sleep(1)
        for name, call in calls.items():
            with trio.fail_after(SOON_S):
                assert "closed" in (await outcome(call, client)), name
                assert "Nursery" not in (await outcome(call, client)), name

    simulate(made, scenario)


@pytest.mark.parametrize("kind", ["Consumer", "Admin"])
def test_a_call_that_waits_ends_with_the_client(kind):
    """A call of another task went on for a minute after the block of the client had ended."""
    made, calls = CLIENTS[kind]
    calls = {name: call for name, call in calls.items() if name in WAITING}
    outcomes = {}

    async def scenario(cluster, client):
        async def wait(name):
            outcomes[name] = await outcome(calls[name], client)

        async with trio.open_nursery() as nursery:
            async with client:
                await trio.sleep(1)
                cluster.kill_broker(1)
                for name in calls:
                    nursery.start_soon(wait, name)
                await trio.sleep(1)
            nursery.cancel_scope.deadline = trio.current_time() + SOON_S

    simulate(made, scenario)
    assert outcomes == dict.fromkeys(calls, "the client was closed during the call")


def test_a_block_waits_for_a_task_that_closes_its_producer():
    """The end of the block gave up the records that the other task was delivering."""
    deliveries = []

    async def scenario(cluster, producer):
        cluster.fail_next(ApiKey.PRODUCE, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 10)
        async with trio.open_nursery() as nursery, producer:
            deliveries.append(await producer.send("flights", b"1"))
            nursery.start_soon(producer.close)
            await trio.sleep(0.5)
        assert [each.result().offset for each in deliveries] == [0]

    simulate(Producer, scenario)


def test_a_second_close_keeps_to_its_limit():
    async def scenario(cluster, producer):
        cluster.fail_next(ApiKey.PRODUCE, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 1000)
        async with trio.open_nursery() as nursery, producer:
            delivery = await producer.send("flights", b"1")
            nursery.start_soon(producer.close)
            await trio.sleep(0.5)
            with trio.fail_after(SOON_S):
                await producer.close(1_000)
            assert delivery.is_done

    simulate(Producer, scenario)


def test_a_loop_that_another_task_ends_commits_its_records():
    """The loop ended before the closing task had committed, and the end of the block cut that off."""

    async def scenario(cluster, consumer):
        cluster.topics["flights"][0].append(encode_batch([(1, None, b"x", ())]))
        async with trio.open_nursery() as nursery, consumer:
            consumer.subscribe(["flights"])
            async for _ in consumer:
                cluster.fail_next(ApiKey.OFFSET_COMMIT, *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 8)
                nursery.start_soon(consumer.close)
        wanted = (ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP)
        asked = [key for _, key, _ in cluster.requests if key in wanted]
        assert asked == [ApiKey.OFFSET_COMMIT] * 9 + [ApiKey.LEAVE_GROUP]

    simulate(Consumer, scenario)


def test_a_block_waits_for_a_task_that_closes_its_share_consumer(monkeypatch):
    """The other task was sending acknowledgements, which were lost."""
    ended = []

    async def scenario(cluster, consumer):
        async def farewell():
            await trio.sleep(5)
            ended.append(consumer._client.is_closed)

        monkeypatch.setattr(consumer, "_farewell", farewell)
        async with trio.open_nursery() as nursery, consumer:
            nursery.start_soon(consumer.close)
            await trio.sleep(1)

    simulate(ShareConsumer, scenario)
    assert ended == [False]


@pytest.mark.parametrize("wait_s", [0.1, 0.3, 0.5])
def test_a_loop_ends_if_a_commit_is_due_then(wait_s):
    """The poll that was waiting began an automatic commit, after the tasks of the consumer had ended."""

    async def scenario(cluster, consumer):
        cluster.topics["flights"][0].append(encode_batch([(1, None, b"x", ())]))

        async def stop():
            await trio.sleep(wait_s)
            await consumer.close()

        async with trio.open_nursery() as nursery, consumer:
            consumer.assign([P0])
            async for _ in consumer:
                nursery.start_soon(stop)

    simulate(Consumer, scenario, **{"auto.commit.interval.ms": 300})


def test_a_wait_for_records_or_a_position_ends_with_the_consumer():
    outcomes = {}

    async def scenario(cluster, consumer):
        async def wait(name, call):
            outcomes[name] = await outcome(call, consumer)

        async with trio.open_nursery() as nursery:
            async with consumer:
                consumer.assign([("absent", 0)])
                nursery.start_soon(wait, "position", lambda consumer: consumer.position(("absent", 0)))
                nursery.start_soon(wait, "poll", lambda consumer: consumer.poll(60_000))
                await trio.sleep(1)
            nursery.cancel_scope.deadline = trio.current_time() + SOON_S

    simulate(Consumer, scenario)
    assert outcomes == {"position": "the client was closed during the call", "poll": "no error"}
