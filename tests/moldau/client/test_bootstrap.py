"""Goal: one server that never answers delays a client only briefly, and only once.

Method: clients of simulated brokers. One of them is cut off without a word, before the client's first question or after
it has been connected.
"""

from types import SimpleNamespace

import pytest
import trio

from moldau.admin import Admin
from moldau.cluster.client import PATIENCE_MS, ClusterClient
from moldau.cluster.connections.links import Link, Links
from moldau.cluster.connections.recovery import Recovery
from moldau.protocol.errors import KafkaError
from moldau.runtime.config import ADMIN_CONFIG
from moldau.runtime.net.rpc import RpcConnection
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

CLIENTS = 20


async def list_topics(admin, clock):
    """Returns how many seconds a question took."""
    begun = clock.monotonic_ms()
    assert [one.name for one in await admin.list_topics()] == ["t"]
    return (clock.monotonic_ms() - begun) / 1000


def cluster_of(world, brokers):
    cluster = FakeCluster(world, brokers)
    cluster.add_topic("t", 1)
    cluster.start()
    return cluster


def test_clients_of_one_list_begin_at_different_servers():
    async def main(world):
        cluster = cluster_of(world, 2)
        world.network.cut_between(["client"], ["broker1"])
        environment = world.node("client").environment
        took = []
        for _ in range(CLIENTS):
            async with Admin({"bootstrap.servers": cluster.bootstrap}, environment=environment) as admin:
                took.append(await list_topics(admin, environment.clock))
        return took

    took = run_world(main, 1)
    prompt = [seconds for seconds in took if seconds < PATIENCE_MS / 1000]
    assert CLIENTS / 4 < len(prompt) < CLIENTS
    assert max(took) < PATIENCE_MS / 1000 + 0.5, "the second server is asked while the first has its time"


def test_a_broker_that_falls_silent_is_asked_last():
    async def main(world):
        cluster = cluster_of(world, 3)
        environment = world.node("client").environment
        first, then = [], []
        async with Admin({"bootstrap.servers": cluster.bootstrap}, environment=environment) as admin:
            await list_topics(admin, environment.clock)
            for name in ("broker1", "broker2", "broker3"):  # one of them is the one that the client is connected with
                world.network.cut_between(["client"], [name])
                first.append(await list_topics(admin, environment.clock))
                then += [await list_topics(admin, environment.clock) for _ in range(5)]
                world.network.heal_all()
                await trio.sleep(40)
        return first, then

    first, then = run_world(main, 1)
    assert PATIENCE_MS / 1000 <= max(first) < PATIENCE_MS / 1000 + 0.5, "the one that was connected fell silent"
    assert max(then) < PATIENCE_MS / 1000 / 2, "it is left alone once it has been silent"


def test_an_unanswered_request_ends_with_the_reason():
    async def main(world):
        cluster = cluster_of(world, 2)
        environment = world.node("client").environment
        world.network.cut_between(["client"], ["broker1", "broker2"])
        config = {"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": 25_000}
        begun = environment.clock.monotonic_ms()
        async with Admin(config, environment=environment) as admin:
            with pytest.raises(KafkaError, match=r"no broker of .*9092.* answers: ") as raised:
                await admin.list_topics()
        return raised.value, (environment.clock.monotonic_ms() - begun) / 1000

    error, took = run_world(main, 1)
    assert error.code.name == "REQUEST_TIMED_OUT"
    assert 20 < took < 60


def test_an_admin_client_that_closes_leaves_no_question_behind():
    async def main(world):
        cluster = cluster_of(world, 2)
        environment = world.node("client").environment
        world.network.cut_between(["client"], ["broker1"])
        begun = environment.clock.monotonic_ms()
        for _ in range(CLIENTS):
            async with Admin({"bootstrap.servers": cluster.bootstrap}, environment=environment) as admin:
                await admin.list_topics()
        return (environment.clock.monotonic_ms() - begun) / 1000

    assert run_world(main, 1) < CLIENTS * (PATIENCE_MS / 1000 + 0.5), "closing does not wait for the silent server"


async def asked_while_it_ends(world, turns):
    """Returns the result of a task's request that many turns of the event loop after the end of the client."""
    cluster = cluster_of(world, 1)
    config = ADMIN_CONFIG.parse({"bootstrap.servers": cluster.bootstrap})
    client = ClusterClient(world.node("client").environment, config, "admin")
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            for _ in range(turns):
                await trio.lowlevel.cancel_shielded_checkpoint()
            found = client.connection_nowait(-1)
            with pytest.raises(ConnectionError):
                await client.find_coordinator("group", 0)
    return found


@pytest.mark.parametrize("seed", range(1, 9))
def test_closing_client_handles_no_more_requests(seed):
    """Found by chaos on processes: a cancelled consumer raised "Nursery is closed to new arrivals"."""
    for turns in range(8):
        assert run_world(lambda world, turns=turns: asked_while_it_ends(world, turns), seed) is None


def test_a_connection_that_opens_after_a_new_start_is_dropped(monkeypatch):
    """The id may be that of another cluster's broker by then, and this connection goes to the former one."""
    recovery = Recovery(is_enabled=True, checks_cluster=True, trigger_ms=10_000)
    closed = []

    async def open_late(*_, **__):
        await trio.lowlevel.checkpoint()
        recovery.begun("a", 0)
        return SimpleNamespace(close=lambda: closed.append(True))

    monkeypatch.setattr(RpcConnection, "open", open_late)
    client = SimpleNamespace(
        recovery=recovery,
        is_closed=False,
        check_open=lambda: None,
        client_id="c",
        cluster_metadata=SimpleNamespace(cluster_id="a"),
        opened=lambda *_: None,
    )
    links = SimpleNamespace(
        _client=client,
        _outgoing=None,
        _setup_timeout_ms=1_000,
        address=lambda _: ("b1", 9092),
        misfits=SimpleNamespace(opened=lambda _: None),
    )
    link = Link("")
    with pytest.raises(ConnectionAbortedError):
        trio.run(Links._open, links, 1, link)
    assert closed == [True]
    assert link.connection is None
