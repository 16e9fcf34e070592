"""Goal: a client connects to a broker when it may, pauses after failures, and closes what is idle and nothing else.

Method: a client of simulated brokers that are unreachable, unknown, slow to answer or idle.
"""

import math
from itertools import pairwise, permutations
from types import SimpleNamespace

import pytest
import trio

from moldau.cluster.client import ClusterClient
from moldau.cluster.troubles import REMIND_MS, Troubles
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.api_versions import ApiVersionsResponse, FinalizedFeatureKey
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse
from moldau.runtime.config import ADMIN_CONFIG
from moldau.runtime.net.features import FinalizedFeatures
from moldau.runtime.net.rpc import RpcConnection
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import PORT, FakeCluster


def with_client(scenario, **settings):
    """Runs ``scenario(world, cluster, client)`` with a client that knows two brokers."""

    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.start()
        config = ADMIN_CONFIG.parse({"bootstrap.servers": f"broker2:{PORT}", **settings})
        client = ClusterClient(world.node("client").environment, config, "admin")
        async with trio.open_nursery() as background:
            await background.start(client.run)
            await trio.sleep(1)  # the first metadata are there
            await scenario(world, cluster, client)
            background.cancel_scope.cancel()

    run_world(main, 1)


def test_failed_attempts_pause_longer_and_longer():
    """A broker that refuses connections is not asked in a loop."""

    async def scenario(world, cluster, client):
        cluster.kill_broker(1)
        attempts = []
        client.opening_failed = lambda address, error: attempts.append(trio.current_time())
        with trio.move_on_after(30):
            while True:
                assert client.connection_nowait(1) is None
                await trio.sleep(0.01)
        pauses = [later - earlier for earlier, later in pairwise(attempts)]
        assert pauses[0] < 0.2
        assert all(pause > 0.7 for pause in pauses[5:])
        assert len(attempts) < 50

    with_client(scenario, **{"reconnect.backoff.ms": "50", "reconnect.backoff.max.ms": "1000"})


def test_a_long_first_pause_needs_no_greatest_one():
    """``reconnect.backoff.ms`` above the default of ``reconnect.backoff.max.ms`` counts, as in Kafka."""

    async def scenario(world, cluster, client):
        cluster.kill_broker(1)
        attempts = []
        client.opening_failed = lambda address, error: attempts.append(trio.current_time())
        with trio.move_on_after(60):
            while True:
                with pytest.raises(ConnectionError):
                    await client.connection(1)
        assert all(later - earlier > 7 for earlier, later in pairwise(attempts))
        assert len(attempts) > 4

    with_client(scenario, **{"reconnect.backoff.ms": "10000"})


def test_a_connection_ends_the_count_of_failures():
    """After it the first pause is the shortest one again, as with Kafka's clients (KIP-144)."""

    async def scenario(world, cluster, client):
        attempts = []
        client.opening_failed = lambda address, error: attempts.append(trio.current_time())
        for _ in range(3):
            cluster.kill_broker(1)
            attempts.clear()
            while len(attempts) < 10:
                client.connection_nowait(1)
                await trio.sleep(0.01)
            assert attempts[1] - attempts[0] < 0.2
            assert attempts[9] - attempts[8] > 0.7
            cluster.start_broker(1)
            with trio.fail_after(5):
                await client.connection(1)

    with_client(scenario, **{"reconnect.backoff.ms": "50", "reconnect.backoff.max.ms": "1000"})


def test_a_connection_that_ends_is_opened_again_after_a_pause():
    """A broker that ends each connection at once, as behind a proxy without a server, is not asked in a loop."""

    async def scenario(world, cluster, client):
        connection = await client.connection(1)
        connection.fail("the peer closed the connection")
        assert client.connection_nowait(1) is None
        assert client.retry_delay_ms(1) == 50
        await trio.sleep(0.06)
        assert client.connection_nowait(1) is None
        assert client.retry_delay_ms(1) == math.inf, "it is being opened"

    with_client(scenario, **{"reconnect.backoff.ms": "50", "reconnect.backoff.max.ms": "1000"})


@pytest.mark.parametrize("waits", [True, False])
def test_a_broker_that_was_unknown_is_connected_to(waits):
    """An attempt without an address ends, and does not stand in the way of the next one."""

    async def scenario(world, cluster, client):
        client.cluster_metadata.brokers.pop(1)
        if waits:
            with pytest.raises(ConnectionError, match="not known"):
                await client.connection(1)
            client.request_update()
        else:
            assert client.connection_nowait(1) is None
        for _ in range(100):
            if client.connection_nowait(1) is not None:
                return
            await trio.sleep(0.05)
        pytest.fail("no connection")

    with_client(scenario)


def test_a_closed_client_opens_nothing():
    async def scenario(world, cluster, client):
        client.close()
        with pytest.raises(ConnectionError, match="the client is closed"):
            await client.connection(1)
        assert client.connection_nowait(1) is None

    with_client(scenario)


@pytest.mark.parametrize("starts_again", [True, False])
@pytest.mark.parametrize("at_s", [0.1, 2.0, 3.5])
def test_no_call_goes_on_to_another_clusters_broker(at_s, starts_again):
    """Calls wait for a broker's back-off, and for each other, when the client starts again at the bootstrap servers.

    The broker that has the id now may be one of another cluster, and only later calls are meant for that one.
    """

    async def scenario(world, cluster, client):
        cluster.kill_broker(1)
        with pytest.raises(ConnectionError):
            await client.connection(1)
        cluster.start_broker(1)
        opened, refused = [], []

        async def connect():
            try:
                opened.append(await client.connection(1))
            except ConnectionAbortedError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(connect)
            await trio.sleep(at_s)
            if starts_again:
                client.rebootstrap("another cluster may be there")
        assert (len(opened), len(refused)) == ((0, 3) if starts_again else (3, 0))
        await client.refresh()
        assert (await client.connection(1)).is_open

    with_client(scenario, **{"reconnect.backoff.ms": "5000", "reconnect.backoff.max.ms": "5000"})


def test_the_newest_levels_of_the_present_cluster_count():
    """Brokers learn levels one after the other; those of another cluster have epochs of their own."""

    async def scenario(world, cluster, client):
        def learn(*found):
            for epoch in found:
                client._learn_features(FinalizedFeatures(epoch=epoch, levels={"transaction.version": epoch}))
            return client.feature_level("transaction.version")

        for epochs in permutations([-1, 3, 7]):
            assert learn(*epochs) == 7
            client.rebootstrap("another cluster may be there")
            assert client.feature_level("transaction.version") == 0
            assert learn(2, -1) == 2

    with_client(scenario)


def test_the_last_requests_of_a_client_arrive():
    """A member leaves its group by one, and waits no longer for the answer."""

    async def scenario(world, cluster, client):
        connection = await client.connection(1)
        before = len(cluster.requests)
        world.network.cut("client", "broker1")
        connection.submit(MetadataRequest(topics=[]))
        client.close()
        await trio.sleep(1)
        world.network.heal("client", "broker1")
        await trio.sleep(5)
        assert len(cluster.requests) == before + 1

    with_client(scenario)


def test_metadata_are_asked_for_until_they_come():
    """One request must do: whatever waits for the metadata asks only once, and ``metadata.max.age.ms`` is long."""

    async def scenario(world, cluster, client):
        for broker in (1, 2):
            cluster.kill_broker(broker)
        await trio.sleep(1)
        version = client.cluster_metadata.version
        client.request_update()
        await trio.sleep(3)
        assert client.cluster_metadata.version == version
        for broker in (1, 2):
            cluster.start_broker(broker)
        await trio.sleep(3)
        assert client.cluster_metadata.version > version

    with_client(scenario)


def test_idle_connections_close_unless_an_answer_is_due():
    async def scenario(world, cluster, client):
        waiting, idle = await client.connection(1), await client.connection(2, "idle")
        cluster.handlers[ApiKey.METADATA] = lambda broker, request: None  # no answer

        async def ask():
            with trio.move_on_after(40):
                await client.request(1, MetadataResponse, MetadataRequest(topics=[]), timeout_ms=60_000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(20)
            assert (waiting.is_open, waiting.in_flight, idle.is_open) == (True, 1, False)

    with_client(scenario, **{"connections.max.idle.ms": "5000", "metadata.max.age.ms": "300000"})


def test_a_connection_that_is_used_without_waits_is_not_idle():
    """Fetches and produce requests take it with ``connection_nowait``."""

    async def scenario(world, cluster, client):
        used = await client.connection(1, "fetch")
        for _ in range(20):
            await trio.sleep(1)
            assert client.connection_nowait(1, "fetch") is used

    with_client(scenario, **{"connections.max.idle.ms": "5000", "metadata.max.age.ms": "300000"})


def test_the_pause_begins_with_the_end_of_an_attempt():
    """A host that answers nothing is asked for as long as an attempt may take; the pause must be longer than that."""

    async def scenario(world, cluster, client):
        world.network.cut_between(["client"], ["broker1"])
        with pytest.raises((OSError, trio.TooSlowError)):
            await client.connection(1, "fetch")
        assert client.retry_delay_ms(1, "fetch") > 1_500

    pauses = {"reconnect.backoff.ms": "2000", "reconnect.backoff.max.ms": "2000"}
    with_client(scenario, **pauses, **{"socket.connection.setup.timeout.ms": "3000"})


def test_an_unreachable_broker_is_a_reason_for_fresh_metadata():
    """Its partitions may have other leaders by now."""

    async def scenario(world, cluster, client):
        updates = []
        client.request_update = lambda: updates.append(1)
        cluster.kill_broker(1)
        assert client.connection_nowait(1, "fetch") is None
        await trio.sleep(1)
        assert updates

    with_client(scenario)


def test_a_client_that_starts_again_keeps_no_judgements():
    """The nodes, and the levels of features, may be those of another cluster now, where epochs are lower."""

    async def scenario(world, cluster, client):
        client.doubt(1)
        client.features = FinalizedFeatures(epoch=9, levels={"x": 2})
        client.rebootstrap("another cluster may be there")
        assert client.feature_level("x") == 0
        await client.refresh()
        (await client.connection(1)).features = FinalizedFeatures(epoch=1, levels={"x": 1})
        client.opened(await client.connection(1), "")
        assert client.feature_level("x") == 1
        assert client._links.candidates()[0] == 1, "it has an open connection, and is not silent"

    with_client(scenario)


def test_levels_of_features_are_those_of_the_last_answer():
    """A connection may live for days, and is asked again what the levels are (``_refresh_features``)."""
    connection = RpcConnection(SimpleNamespace(peer_address=("h", 1)), "a")
    for level in (1, 2):
        feature = FinalizedFeatureKey(name="x", max_version_level=level, min_version_level=1)
        connection.learn_versions(
            ApiVersionsResponse(api_keys=[], finalized_features=[feature], finalized_features_epoch=10 + level)
        )
        assert connection.features == FinalizedFeatures(epoch=10 + level, levels={"x": level})


def test_an_end_after_new_levels_blames_no_login():
    """A broker that has answered requests needs none, also where levels of features were its last answer."""

    async def scenario(world, cluster, client):
        cluster.served[1] = (ApiKey.METADATA, ApiKey.SASL_HANDSHAKE)
        connection = await client.connection(1)
        await connection.request(MetadataRequest())
        await connection.negotiate()
        cluster.lost_answers[ApiKey.METADATA] = 1
        with pytest.raises(ConnectionError) as caught:
            await connection.request(MetadataRequest())
        assert str(caught.value).endswith("the peer closed the connection")

    with_client(scenario)


def test_an_active_controller_that_is_silent_comes_last():
    """Others refuse most requests, but they name the next active one as soon as they know it."""

    async def scenario(world, cluster, client):
        client.asks_controllers, client.cluster_metadata.controller_id = True, 1
        assert all(client._links.candidates()[0] == 1 for _ in range(10))
        client.doubt(1)
        assert all(client._links.candidates()[0] == 2 for _ in range(10))

    with_client(scenario)


def test_a_node_that_answers_late_is_not_silent_any_more():
    async def scenario(world, cluster, client):
        asked = []

        async def request(node_id, *_, **__):
            asked.append(node_id)
            await trio.sleep(2)
            return MetadataResponse()

        client.request = request
        await client.ask_any(MetadataResponse, MetadataRequest(topics=[]))
        assert len(asked) == 2, "the first one had not answered in time"
        await trio.sleep(2)
        assert all(client._links.link(node_id).silent_until_ms <= client.now_ms for node_id in asked)

    with_client(scenario)


def test_a_topic_that_is_no_longer_used_is_forgotten():
    """It would be described as it was then, for example as one that does not exist, when it is used again."""

    async def scenario(world, cluster, client):
        cluster.add_topic("t")
        client.set_topics(["t"])
        await trio.sleep(1)
        assert client.cluster_metadata.topic_id("t") in client.cluster_metadata.topic_names()
        client.forget_topic("t")
        assert client.cluster_metadata.topics == {}
        await client.refresh()
        assert client.cluster_metadata.topics == {}

    with_client(scenario)


def test_troubles_are_reported_when_they_last():
    troubles = Troubles()
    assert troubles.due(0, ("a", "x"), grace_ms=100) == []
    assert troubles.due(99, ("a", "x"), grace_ms=100) == []
    assert troubles.due(100, ("a", "x"), ("b", "x"), grace_ms=100) == ["a"]
    assert troubles.due(199, ("a", "x"), ("b", "x"), grace_ms=100) == []
    assert troubles.due(200, ("a", "y"), ("b", "x"), grace_ms=100) == ["b"]
    assert troubles.due(300, ("a", "y"), grace_ms=100) == ["a"]
    assert troubles.due(300 + REMIND_MS - 1, ("a", "y"), grace_ms=100) == []
    assert troubles.due(300 + REMIND_MS, ("a", "y"), grace_ms=100) == ["a"]
    assert troubles.due(400 + REMIND_MS, grace_ms=100) == []
    assert troubles.due(500 + REMIND_MS, ("a", "y")) == ["a"]
