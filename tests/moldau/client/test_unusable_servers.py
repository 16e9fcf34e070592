"""Servers that a client cannot use, by their listener or as controllers: an error at once that names the remedy.

Goal: each kind of client fails within seconds of virtual time where no server can be used, says what to set, and works
where another server, or a later one, can be used. Method: clients at simulated brokers with and without TLS, and at
servers that serve what a controller serves.
"""

import logging
from functools import partial

import pytest
import trio

from moldau import Admin, Consumer, KafkaError, Producer
from moldau.cluster.bootstrap import BootstrapError
from moldau.protocol.errors import ErrorCode
from moldau.runtime.tls.context import ListenerTls
from moldau_jepsen.world.world import run_world
from support.certificates import authority
from support.client.fake_cluster import PORT, FakeCluster

AT_ONCE_MS = 5_000  # the shortest time-out below is 30 s
T0 = ("t", 0)
SPEAKS_TLS = "this listener speaks TLS: set security.protocol=SSL, or SASL_SSL if it demands a login"
SPEAKS_TLS_TO_LOGINS = "this listener speaks TLS: set security.protocol=SASL_SSL"
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED: self-signed certificate in certificate chain; is its signer in ssl.truststore."
SPEAKS_NONE = "this listener does not speak TLS: set security.protocol=PLAINTEXT"
SPEAKS_NONE_TO_LOGINS = "this listener does not speak TLS: set security.protocol=SASL_PLAINTEXT"


def tls_of(environment, number, certificates=0):
    return ListenerTls(authority(certificates).settings(f"broker{number}"), environment.disk)


LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.jaas.config": (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="ann-secret";'
    ),
}


def client_config(cluster, *, tls, more=()):
    config = {"bootstrap.servers": cluster.bootstrap}
    if tls:
        config |= {"security.protocol": "SSL", "ssl.truststore.certificates": authority().trust}
    return config | dict(more)


def simulate(scenario, *, listeners, tls, certificates=0, more=()):
    """Runs ``scenario(cluster, config, environment)``; ``listeners`` states for each broker whether it uses TLS."""

    async def main(world):
        cluster = FakeCluster(world, len(listeners))
        environment = world.node("client").environment
        for number, speaks_tls in enumerate(listeners, 1):
            if speaks_tls:
                cluster.secure[number] = tls_of(environment, number, certificates)
        cluster.add_topic("t")
        cluster.start()
        return await scenario(cluster, client_config(cluster, tls=tls, more=more), environment)

    return run_world(main, 1)


async def sends(config, environment):
    async with Producer(config, environment=environment) as producer:
        await producer.send("t", b"v")


async def begins_transactions(config, environment):
    async with Producer(config | {"transactional.id": "x"}, environment=environment) as producer:
        await producer.init_transactions()


async def polls_what_is_assigned(config, environment):
    async with Consumer(config, environment=environment) as consumer:
        consumer.assign([T0])
        await consumer.poll(60_000)


async def polls_in_a_group(config, environment):
    async with Consumer(config | {"group.id": "g"}, environment=environment) as consumer:
        consumer.subscribe(["t"])
        await consumer.poll(60_000)


async def asks_for_a_position(config, environment):
    async with Consumer(config, environment=environment) as consumer:
        consumer.assign([T0])
        await consumer.position(T0)


async def asks_for_partitions(config, environment):
    async with Consumer(config, environment=environment) as consumer:
        await consumer.partitions_for("t")


async def asks_for_offsets(config, environment):
    async with Consumer(config, environment=environment) as consumer:
        await consumer.end_offsets([T0])


async def lists_topics(config, environment):
    async with Admin(config, environment=environment) as admin:
        await admin.list_topics()


async def deletes_a_topic(config, environment):
    async with Admin(config, environment=environment) as admin:
        await admin.delete_topics(["t"])


USES = [
    sends,
    begins_transactions,
    polls_what_is_assigned,
    polls_in_a_group,
    asks_for_a_position,
    asks_for_partitions,
    asks_for_offsets,
    lists_topics,
    deletes_a_topic,
]
CONTROLLER_APIS = (18, 55, 60, 62, 63)  # what clients ask of brokers is not among them
IS_CONTROLLER = "is a controller; give the address of a broker"
MISFITS = [
    pytest.param(True, False, 0, {}, SPEAKS_TLS, id="plaintext-client"),
    pytest.param(True, False, 0, LOGIN, SPEAKS_TLS_TO_LOGINS, id="sasl-plaintext-client"),
    pytest.param(False, True, 0, {}, SPEAKS_NONE, id="tls-client"),
    pytest.param(
        False, True, 0, LOGIN | {"security.protocol": "SASL_SSL"}, SPEAKS_NONE_TO_LOGINS, id="sasl-tls-client"
    ),
    pytest.param(True, True, 1, {}, UNTRUSTED, id="untrusted-certificate"),
]


@pytest.mark.parametrize(("listener", "tls", "certificates", "more", "text"), MISFITS)
@pytest.mark.parametrize("use", USES)
def test_every_call_fails_at_once_with_the_cause(use, listener, tls, certificates, more, text):
    async def scenario(cluster, config, environment):
        begun = environment.clock.monotonic_ms()
        with pytest.raises(KafkaError) as caught:
            await use(config, environment)
        assert environment.clock.monotonic_ms() - begun < AT_ONCE_MS
        assert caught.value.code is ErrorCode.INVALID_CONFIG
        assert text in str(caught.value)
        assert "no broker of broker1:9092, broker2:9092 can be used: " in str(caught.value)

    simulate(scenario, listeners=[listener, listener], tls=tls, certificates=certificates, more=more)


NO_CERTIFICATE = "the listener demands a certificate (ssl.keystore.location): TLSV13_ALERT_CERTIFICATE_REQUIRED"
STRANGER = "the listener refuses a certificate (ssl.keystore.location): TLSV1_ALERT_UNKNOWN_CA"
LOGIN_OVER_TLS = LOGIN | {"security.protocol": "SASL_SSL"}


@pytest.mark.parametrize(("number", "text"), [(None, NO_CERTIFICATE), (1, STRANGER)], ids=["none", "stranger"])
@pytest.mark.parametrize("login", [{}, LOGIN_OVER_TLS], ids=["tls", "sasl"])
def test_a_refused_client_certificate_is_final(number, text, login):
    """With TLS 1.3 the refusal comes after the client's handshake; clients went on until their time was over."""

    async def scenario(cluster, config, environment):
        demanding = authority().settings("broker1", client_auth="required")
        cluster.secure[1] = ListenerTls(demanding, environment.disk)
        if number is not None:
            chain, key = authority(number).issue("client")
            config |= {"ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
        begun = environment.clock.monotonic_ms()
        for use in (sends, polls_in_a_group, lists_topics):
            with pytest.raises(BootstrapError) as caught:
                await use(config, environment)
            assert text in str(caught.value)
            assert "Errno" not in str(caught.value)
        assert environment.clock.monotonic_ms() - begun < AT_ONCE_MS

    simulate(scenario, listeners=[True], tls=True, more=login)


@pytest.mark.parametrize("tls", [False, True])
def test_one_server_that_fits_is_enough(tls, caplog):
    """The other one is warned about, once."""

    async def scenario(cluster, config, environment):
        config |= {"reconnect.backoff.max.ms": "100", "metadata.max.age.ms": "500"}
        async with Admin(config, environment=environment) as admin:
            for _ in range(20):
                assert [topic.name for topic in await admin.list_topics()] == ["t"]
                await trio.sleep(1)
                cluster.kill_broker(2)
                await trio.sleep(0.1)
                cluster.start_broker(2)

    with caplog.at_level(logging.INFO, "moldau.client"):
        simulate(scenario, listeners=[not tls, tls], tls=tls)
    reported = [record for record in caplog.records if record.getMessage().startswith("server-unusable")]
    warnings = [record for record in reported if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"port={PORT}" in warnings[0].getMessage()
    assert "host=broker1" in warnings[0].getMessage()


@pytest.mark.parametrize("use", [sends, polls_what_is_assigned, lists_topics])
def test_a_listener_that_leaves_without_a_word_is_tried_again(use):
    """A busy server may do so, so the error names a missing TLS listener only after an answer without TLS."""

    async def scenario(cluster, config, environment):
        cluster.kill_broker(1)

        async def leave(node_environment):
            listener = await node_environment.network.listen("broker1", PORT)
            while True:
                (await listener.accept()).close()

        cluster.world.node("broker1").start(leave)
        with trio.move_on_after(20) as scope:
            await use(config, environment)
        assert scope.cancelled_caught

    simulate(scenario, listeners=[True], tls=True)


def make_controller(cluster, number):
    """Has a broker serve what a controller does."""
    cluster.served[number] = CONTROLLER_APIS


@pytest.mark.parametrize("use", USES)
def test_a_controllers_address_is_recognized(use):
    async def scenario(cluster, config, environment):
        make_controller(cluster, 1)
        begun = environment.clock.monotonic_ms()
        with pytest.raises(KafkaError) as caught:
            await use(config, environment)
        assert environment.clock.monotonic_ms() - begun < AT_ONCE_MS
        assert f"broker1:{PORT} {IS_CONTROLLER}" in str(caught.value)
        assert not caught.value.retriable

    simulate(scenario, listeners=[False], tls=False)


def test_a_controller_among_brokers_is_warned_about_once(caplog):
    async def scenario(cluster, config, environment):
        make_controller(cluster, 1)
        for _ in range(10):  # each client begins with a server of its own choice
            async with Admin(config, environment=environment) as admin:
                for _ in range(3):
                    assert [topic.name for topic in await admin.list_topics()] == ["t"]

    with caplog.at_level(logging.WARNING, "moldau.client"):
        simulate(scenario, listeners=[False, False], tls=False)
    reported = [record.getMessage() for record in caplog.records if IS_CONTROLLER in record.getMessage()]
    assert 1 <= len(reported) <= 10


def test_a_consumer_reads_once_the_listener_fits():
    """The error belongs to a poll, not to the consumer: a server may come back with another listener."""

    async def scenario(cluster, config, environment):
        async with Consumer(config, environment=environment) as consumer:
            consumer.assign([T0])
            for _ in range(3):
                with pytest.raises(BootstrapError):
                    await consumer.poll(60_000)
            cluster.kill_broker(1)
            del cluster.secure[1]
            cluster.start_broker(1)
            await trio.sleep(5)
            assert await consumer.poll(1_000) == []
            assert await consumer.position(T0) == 0

    simulate(scenario, listeners=[True], tls=False)


async def _misbehave(behaviour, node_environment):
    listener = await node_environment.network.listen("broker1", PORT)
    kept = []
    while True:
        connection = await listener.accept()
        if behaviour == "silent":
            kept.append(connection)
        elif behaviour == "leaves":
            connection.close()
        elif behaviour == "http":
            await connection.wait_readable()
            await connection.send_all((b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",))
        else:
            await connection.wait_readable()
            connection.abort()


@pytest.mark.parametrize("more", [{}, LOGIN], ids=["plaintext", "sasl-plaintext"])
@pytest.mark.parametrize("behaviour", ["silent", "leaves", "resets"])
@pytest.mark.parametrize("use", [sends, begins_transactions])
def test_a_producer_gives_up_when_max_block_is_over(use, behaviour, more):
    """A listener whose alert is lost looks like a busy server; then max.block.ms bounds the call, login or not."""

    async def scenario(cluster, config, environment):
        cluster.kill_broker(1)
        cluster.world.node("broker1").start(partial(_misbehave, behaviour))
        begun = environment.clock.monotonic_ms()
        with pytest.raises(KafkaError) as caught:
            await use(config | {"max.block.ms": "2000"}, environment)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        if use is sends:
            assert f"broker1:{PORT}" in str(caught.value), "the user has to learn which address is wrong"
        assert 2_000 <= environment.clock.monotonic_ms() - begun < 2_100

    simulate(scenario, listeners=[False], tls=False, more=more)


def test_a_web_server_is_named():
    """Its first bytes were reported as an answer of 1213486160 bytes."""

    async def scenario(cluster, config, environment):
        cluster.kill_broker(1)
        cluster.world.node("broker1").start(partial(_misbehave, "http"))
        with pytest.raises(KafkaError, match=f"broker1:{PORT}: this is an HTTP server, not a broker") as caught:
            await sends(config | {"max.block.ms": "2000"}, environment)
        assert "Errno" not in str(caught.value)

    simulate(scenario, listeners=[False], tls=False)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_reason_is_that_of_a_server_that_cannot_be_used(order):
    """The other one is down: the error named the one that was asked last, so it blamed now the one, now the other."""

    async def scenario(cluster, config, environment):
        cluster.kill_broker(2)
        addresses = cluster.bootstrap.split(",")
        config |= {"bootstrap.servers": ",".join(addresses[number - 1] for number in order)}
        async with Admin(config, environment=environment) as admin:
            with pytest.raises(KafkaError, match=SPEAKS_TLS):
                await admin.within(10_000).describe_cluster()

    simulate(scenario, listeners=[True, False], tls=False)
