"""Goal: calls that wait for one silent host wait for one attempt to connect, however many they are.

Method: a client of simulated brokers; one of them is cut off before the client connects to it, and its partition moves.
"""

import trio

from moldau import Admin, TopicPartition
from moldau.admin import LATEST
from moldau.cluster.client import ClusterClient
from moldau.runtime.config import ADMIN_CONFIG
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

T0 = TopicPartition("t", 0)
CALLS = 12
SETUP_S = 10.0
"""The default of ``socket.connection.setup.timeout.ms``."""


def with_silent_broker(scenario):
    """Runs ``scenario(cluster, settings, environment)``; broker 1 leads ``T0``, and no packet reaches it."""

    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.add_topic("t", 1)
        cluster.start()
        world.network.cut_between(["client"], ["broker1"])
        settings = {"bootstrap.servers": "broker2:9092"}
        return await scenario(cluster, settings, world.node("client").environment)

    return run_world(main, 1)


async def times_of(environment, call, calls=CALLS):
    """Makes calls at the same time; returns after how many seconds each one ended."""
    begun, ended = environment.clock.monotonic_ms(), []

    async def one():
        await call()
        ended.append((environment.clock.monotonic_ms() - begun) / 1000)

    async with trio.open_nursery() as nursery:
        for _ in range(calls):
            nursery.start_soon(one)
    return ended


def test_calls_go_on_with_the_new_leader_together():
    async def scenario(cluster, settings, environment):
        async with Admin(settings, environment=environment) as admin:

            async def ask():
                assert (await admin.list_offsets({T0: LATEST}))[T0][0] == 0

            async with trio.open_nursery() as nursery:

                async def move():
                    await trio.sleep(3)
                    cluster.move("t", 0, 2)

                nursery.start_soon(move)
                return await times_of(environment, ask)

    ended = with_silent_broker(scenario)
    assert SETUP_S - 1 < max(ended) < SETUP_S + 2, "one attempt in sum"


def failures_of(calls, first_s):
    """Connects to the silent broker with a task that gives up after ``first_s``, and others that wait for it."""

    async def scenario(cluster, settings, environment):
        client = ClusterClient(environment, ADMIN_CONFIG.parse(settings), "admin")
        failures, opened = [], []

        async def connect(limit_s):
            with trio.move_on_after(limit_s):
                try:
                    opened.append(await client.connection(1))
                except (OSError, trio.TooSlowError) as error:
                    failures.append((type(error), round((environment.clock.monotonic_ms() - begun) / 1000)))

        async with trio.open_nursery() as background:
            await background.start(client.run)
            await client.refresh()
            begun = environment.clock.monotonic_ms()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connect, first_s)
                await trio.sleep(0.01)
                for _ in range(calls):
                    nursery.start_soon(connect, 1_000)
            link = client._links.link(1)
            background.cancel_scope.cancel()
        assert (opened, link.failure) == ([], None)
        return failures

    return with_silent_broker(scenario)


def test_calls_that_wait_for_an_attempt_fail_with_it():
    (failure,) = set(failures_of(CALLS, first_s=1_000))
    assert failure == (trio.TooSlowError, SETUP_S)


def test_an_attempt_that_its_task_gives_up_is_taken_over():
    (failure,) = set(failures_of(CALLS, first_s=1))
    assert failure == (trio.TooSlowError, SETUP_S + 1)
