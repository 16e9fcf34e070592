"""TLS on both environments: every sent byte arrives for any partial write, bad peers are refused, good ones are not,
and the server loop keeps its bounds. What every connection must do is in test_environment_contract.py.
"""

import contextlib
import logging
import ssl
from dataclasses import replace

import pytest
import trio
import trio.testing

from moldau.runtime.config import ADMIN_CONFIG, BROKER_CONFIG, ConfigError
from moldau.runtime.config.listeners import SecurityProtocol
from moldau.runtime.config.tls import tls_settings
from moldau.runtime.net.layers import plain_environment
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.net.serving.handshakes import PATIENCE_MS
from moldau.runtime.net.serving.server import ServerLimits, serve
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.ports.real import real_environment
from moldau.runtime.tls.connection import CIPHERTEXT_RECEIVES_MAX, TlsConnection
from moldau.runtime.tls.context import ListenerTls, TlsNetwork, client_context, listener_tls, server_context
from moldau.runtime.tls.errors import TlsHandshakeError
from moldau_jepsen.world.world import run_world
from support.certificates import authority

HOST = "server"
"""Name in the servers' certificates, also where the connection goes to an address."""


@pytest.fixture(params=["real", "virtual"])
def run(request):
    def run_real(test):
        async def main():
            environment = real_environment(1)
            with trio.fail_after(120):
                await test(environment, environment, "127.0.0.1")

        trio.run(main)

    def run_virtual(test):
        async def main(world):
            with trio.fail_after(10_000):
                await test(world.node("server").environment, world.node("client").environment, "server")

        run_world(main, 3)

    return run_real if request.param == "real" else run_virtual


def names():
    return (HOST, "127.0.0.1")


def secure(environment, **settings):
    """The arguments of ``serve``."""
    return ListenerTls(authority().settings(*names(), **settings), environment.disk)


def outgoing(environment, *certificate, trusted=0, **settings):
    """An environment whose connections use TLS."""
    chosen = authority(trusted).settings(*certificate, **settings)
    return replace(environment, network=TlsNetwork(environment.network, client_context(chosen, environment.disk)))


class Echo:
    """Answers a request of a private API with the size of its frame."""

    def handle(self, frame):
        size = b"%d" % len(frame)
        return [(4 + len(size)).to_bytes(4, "big"), frame[4:8].tobytes(), size]

    def flush(self):
        pass

    def closed(self):
        pass


@contextlib.asynccontextmanager
async def served(environment, host, *, limits=None, tls=True, **settings):
    """Yields the address of a server loop and the loop itself."""
    async with trio.open_nursery() as nursery:
        listener = await environment.network.listen(host, 0)
        server = await nursery.start(
            lambda task_status: serve(
                environment,
                listener,
                lambda connection: Echo(),
                limits or ServerLimits(),
                secure=secure(environment, **settings) if tls else None,
                task_status=task_status,
            )
        )
        yield listener.address, server
        nursery.cancel_scope.cancel()


async def ask(environment, address, size=10):
    connection = await RpcConnection.open(environment, *address, "test", negotiate=False, timeout_ms=60_000)
    try:
        return int(bytes(await connection.request_raw(20_000, 0, b"x" * size, timeout_ms=60_000)))
    finally:
        connection.close()


async def receive(connection, count):
    buffer = bytearray(count)
    filled = 0
    while filled < count:
        try:
            got = connection.receive_into_nowait(memoryview(buffer)[filled:])
        except BlockingIOError:
            await connection.wait_readable()
            continue
        if got == 0:
            break
        filled += got
    return bytes(buffer[:filled])


@contextlib.asynccontextmanager
async def pair(given_server, given_client, host):
    listener = await given_server.network.listen(host, 0)
    plain = await given_client.network.connect(*listener.address)
    to_server = client_context(authority().settings(), given_client.disk)
    client = TlsConnection(plain, to_server, server_side=False, server_hostname=HOST)
    server = secure(given_server)(await listener.accept())
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.handshake)
            nursery.start_soon(server.handshake)
        yield client, server, plain
    finally:
        client.close()
        server.close()
        listener.close()


# --- streams


def test_bytes_taken_are_reported_once(run, tmp_path):
    """Each byte is reported as taken once, however much the transport takes."""
    content = bytes(n * 31 % 251 for n in range(251)) * 48_000

    async def test(*given):
        async with pair(*given) as (client, server, _):
            file = given[0].disk.open(str(tmp_path / "f") if given[0] is given[1] else "/f", OpenMode.CREATE)
            file.append([content])
            position = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    first = position + 4
                    position += server.send_nowait([content[position:first], content[first : first + 99_999]])
            assert 0 < position < len(content), "the peer does not read, so the transport is full"
            received = []

            async def read_all():
                received.append(await receive(client, len(content)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_all)
                while position < len(content):
                    try:
                        if position % 3 == 0:
                            position += server.send_file_nowait(file, position, len(content))
                        else:
                            position += server.send_nowait([content[position : position + 100_000]])
                    except BlockingIOError:
                        await server.wait_writable()
            file.close()
            assert received == [content]

    run(test)


def test_a_cut_is_no_end(run):
    """A dead peer, or an attacker that ends the stream early, sends no close_notify alert."""

    async def test(*given):
        async with pair(*given) as (client, server, plain):
            await client.send_all([b"last words"])
            assert await receive(server, 10) == b"last words"
            plain.close()
            await server.wait_readable()
            with pytest.raises(ConnectionResetError, match="was cut"):
                server.receive_into_nowait(memoryview(bytearray(1)))
            for call in (lambda: server.send_nowait([b"x"]), lambda: server.receive_into_nowait(memoryview(b""))):
                with pytest.raises(ConnectionResetError, match="was cut"):
                    call()

    run(test)


def test_bytes_that_were_changed_on_the_way_break_the_stream(run):
    async def test(*given):
        async with pair(*given) as (client, server, plain):
            await plain.send_all([b"\x17\x03\x03\x00\x20" + bytes(32)])  # a record that is not encrypted
            await server.wait_readable()
            with pytest.raises(ConnectionResetError, match="is broken"):
                server.receive_into_nowait(memoryview(bytearray(1)))
            with pytest.raises(ConnectionResetError, match="is broken"):
                server.send_nowait([b"x"])
            assert client.peer_certificate is not None
            assert server.peer_certificate is None

    run(test)


# --- who may talk


def test_both_ends_show_their_identity(run):
    async def test(given_server, given_client, host):
        async with served(given_server, host, client_auth="required") as (address, _):
            assert await ask(outgoing(given_client, "client.example"), address, 100_000) > 100_000
            with pytest.raises(OSError, match=r"CERTIFICATE_REQUIRED|lost|closed"):
                await ask(outgoing(given_client), address)
        async with served(given_server, host, client_auth="requested") as (address, _):
            assert await ask(outgoing(given_client), address) > 10
            assert await ask(outgoing(given_client, "client.example"), address) > 10

    run(test)


def test_certificate_of_another_authority_is_refused(run, caplog):
    """Either end refuses a certificate of another authority."""

    async def test(given_server, given_client, host):
        async with served(given_server, host, client_auth="required") as (address, _):
            with pytest.raises(TlsHandshakeError, match="CERTIFICATE_VERIFY_FAILED"):
                await ask(outgoing(given_client, "client.example", trusted=1), address)
            stranger = authority(1).settings("client.example", trusted_certificates=authority().trust)
            network = TlsNetwork(given_client.network, client_context(stranger, given_client.disk))
            with pytest.raises(OSError, match=r"UNKNOWN_CA|lost|closed"):
                await ask(replace(given_client, network=network), address)
            await until(lambda: any(words in caplog.text for words in reported))

    reported = ("self-signed certificate in certificate chain", "unable to get local issuer")
    with caplog.at_level(logging.WARNING, "moldau.server"):
        run(test)


def test_certificate_name_is_checked_unless_switched_off(run):
    """The client checks the name in the certificate unless the check is switched off."""

    async def test(given_server, given_client, host):
        async with trio.open_nursery() as nursery:
            listener = await given_server.network.listen(host, 0)
            tls = ListenerTls(authority().settings("elsewhere.example"), given_server.disk)
            await nursery.start(
                lambda task_status: serve(
                    given_server, listener, lambda _: Echo(), ServerLimits(), secure=tls, task_status=task_status
                )
            )
            with pytest.raises(TlsHandshakeError, match="mismatch"):
                await ask(outgoing(given_client), listener.address)
            assert await ask(outgoing(given_client, checks_host_name=False), listener.address) > 10
            nursery.cancel_scope.cancel()

    run(test)


def test_versions_that_both_allow(run):
    async def test(given_server, given_client, host):
        async with served(given_server, host, protocols=("TLSv1.3",)) as (address, _):
            with pytest.raises(TlsHandshakeError, match="PROTOCOL_VERSION"):
                await ask(outgoing(given_client, protocols=("TLSv1.2",)), address)
            assert await ask(outgoing(given_client), address) > 10

    run(test)


def test_new_certificates_serve_new_connections(run):
    async def test(given_server, given_client, host):
        tls = secure(given_server)
        async with trio.open_nursery() as nursery:
            listener = await given_server.network.listen(host, 0)
            await nursery.start(
                lambda task_status: serve(
                    given_server, listener, lambda _: Echo(), ServerLimits(), secure=tls, task_status=task_status
                )
            )
            old = await RpcConnection.open(outgoing(given_client), *listener.address, "test", negotiate=False)
            tls.reload(BROKER_CONFIG.parse(NODE | authority(1).keys(*names())), "SSL")
            with pytest.raises(ConfigError, match="cannot be read"):
                tls.reload(BROKER_CONFIG.parse(NODE | {"ssl.keystore.location": "/no/such/file"}), "SSL")
            assert bytes(await old.request_raw(20_000, 0, b"x"))
            old.close()
            with pytest.raises(TlsHandshakeError, match="CERTIFICATE_VERIFY_FAILED"):
                await ask(outgoing(given_client), listener.address)
            assert await ask(outgoing(given_client, trusted=1), listener.address) > 10
            nursery.cancel_scope.cancel()

    run(test)


# --- peers that use another protocol


def test_plaintext_and_tls_do_not_mix_and_the_log_says_so(run, caplog):
    async def test(given_server, given_client, host):
        async with served(given_server, host) as (address, server):
            with pytest.raises(ConnectionError):
                await ask(given_client, address)
            await until(lambda: server.statistics().closed_for_cause == 1)
        async with served(given_server, host, tls=False) as (address, server):
            with pytest.raises(TlsHandshakeError, match=r"left during the TLS handshake"):
                await ask(outgoing(given_client), address)
            await until(lambda: server.statistics().closed_for_cause == 1)

    with caplog.at_level(logging.WARNING, "moldau.server"):
        run(test)
    reported = [record.getMessage() for record in caplog.records if "connection-closed" in record.getMessage()]
    assert len(reported) == 2
    assert "the peer does not speak TLS" in reported[0]
    assert "the peer speaks TLS, and this listener does not" in reported[1]


async def until(condition):
    while not condition():  # noqa: ASYNC110 - a server sends no notification of its counts
        await trio.sleep(0.001)


def test_a_client_without_tls_says_what_it_met(run):
    """Some servers answer plaintext with a TLS alert."""

    async def test(given_server, given_client, host):
        listener = await given_server.network.listen(host, 0)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def answer():
                connection = await listener.accept()
                await connection.send_all([b"\x15\x03\x03\x00\x02\x02\x16"])
                with contextlib.suppress(ConnectionResetError):  # the client's request is given up with the connection
                    await receive(connection, 1000)
                connection.close()

            with pytest.raises(ConnectionError, match=r"speaks TLS: set security\.protocol=SSL, or SASL_SSL if it"):
                await ask(given_client, listener.address)
        listener.close()

    run(test)


def test_handshakes_have_a_deadline_and_a_bound(run, caplog):
    async def test(given_server, given_client, host):
        limits = ServerLimits(handshakes_max=3, handshake_ms=2_000)
        async with served(given_server, host, limits=limits) as (address, server):
            silent = [await given_client.network.connect(*address) for _ in range(3)]
            await until(lambda: server.statistics().handshakes == 3)
            with pytest.raises(ConnectionError):
                await ask(outgoing(given_client), address)
            assert server.statistics().refused == 1
            await until(lambda: server.statistics().closed_for_cause == 3)
            (await given_client.network.connect(*address)).close()  # a port check is not logged
            assert await ask(outgoing(given_client), address) > 10
            for connection in silent:
                connection.close()
            await until(lambda: server.statistics().connections == 0)
            assert server.statistics().closed_for_cause == 3

    with caplog.at_level(logging.WARNING, "moldau.server"):
        run(test)
    assert "3 TLS handshakes are under way" in caplog.text
    assert caplog.text.count("TLS handshake took too long") == 3


def test_silent_handshakes_make_way_for_others(run, caplog):
    """With the bounds as they are by default: a client of the same address waits a second at most, not ten."""

    async def test(given_server, given_client, host):
        limits = ServerLimits()
        async with served(given_server, host, limits=limits) as (address, server):
            silent = [await given_client.network.connect(*address) for _ in range(300)]
            await until(lambda: server.statistics().accepted + server.statistics().refused == 300)
            assert server.statistics().handshakes == limits.handshakes_per_ip_max < limits.handshakes_max
            await trio.sleep(PATIENCE_MS / 1000)
            begun = trio.current_time()
            assert await ask(outgoing(given_client), address) > 10
            assert trio.current_time() - begun < limits.handshake_ms / 2000
            assert server.statistics().handshakes_given_up == 1
            for connection in silent:
                connection.close()
            await until(lambda: server.statistics().connections == 0)

    with caplog.at_level(logging.WARNING, "moldau.server"):
        run(test)
    assert caplog.text.count("handshake-given-up") == 1


def test_a_look_at_a_listener_needs_no_tls(run):
    async def test(given_server, given_client, host):
        secured = outgoing(given_client)
        assert plain_environment(secured) == given_client
        assert plain_environment(given_client) is given_client

    run(test)


# --- configuration

NODE = {
    "process.roles": "broker",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "101@127.0.0.1:9093",
    "listeners": "SSL://127.0.0.1:9092",
    "security.inter.broker.protocol": "SSL",
}


def problems(schema, given):
    with pytest.raises(ConfigError) as caught:
        schema.parse(given)
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({}, "ssl.keystore.location: listener SSL speaks TLS and needs a key"),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.type = 'JKS': must be one of PEM, PKCS12"),
        ({"ssl.truststore.type": "PKCS12"}, "ssl.truststore.type = PKCS12: needs ssl.truststore.location"),
        ({"ssl.keystore.key": "k"}, "one needs the other"),
        ({"ssl.keystore.location": "f", "ssl.keystore.key": "k"}, "cannot be combined"),
        (
            {"ssl.keystore.location": "f", "ssl.truststore.location": "f", "ssl.truststore.certificates": "c"},
            "ssl.truststore.location: cannot be combined",
        ),
        ({"ssl.keystore.location": "f", "ssl.enabled.protocols": ""}, "must name TLSv1.2, TLSv1.3 or both"),
        ({"ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols = 'SSLv3': must be a list of TLSv1.2, TLSv1.3"),
        ({"ssl.keystore.location": "f", "ssl.client.auth": "required"}, "ssl.client.auth = required: needs"),
        (
            {"ssl.keystore.location": "f", "listener.security.protocol.map": "SSL:SSL,CONTROLLER:SASL_SSL"},
            "sasl.jaas.config: holds no login module for SCRAM-SHA-256",
        ),
        (
            {
                "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
                "security.inter.broker.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
                "sasl.enabled.mechanisms": "PLAIN",
            },
            "sasl.enabled.mechanisms: listener SASL_PLAINTEXT must offer SCRAM-SHA-512, with which nodes log in",
        ),
        (
            {
                "process.roles": "controller",
                "node.id": 101,
                "listeners": "CONTROLLER://127.0.0.1:9093",
                "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT",
                "sasl.mechanism.controller.protocol": "PLAIN",
                "listener.name.controller.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            },
            "listener.name.controller.sasl.enabled.mechanisms: listener CONTROLLER must offer PLAIN, with which nodes",
        ),
    ],
)
def test_unusable_configurations_are_refused_with_a_remedy(changes, reported):
    """Unusable configurations are refused with an error that names the remedy."""
    assert reported in problems(BROKER_CONFIG, NODE | changes)


def test_a_listener_has_keys_of_its_own():
    config = BROKER_CONFIG.parse(
        NODE
        | {
            "ssl.keystore.location": "all.pem",
            "listener.name.ssl.ssl.keystore.location": "one.pem",
            "listener.name.ssl.ssl.client.auth": "none",
            "ssl.client.auth": "requested",
            "ssl.truststore.location": "trust.pem",
        }
    )
    own, shared = tls_settings(config, "SSL"), tls_settings(config, "OTHER")
    assert (own.keystore_location, own.client_auth, own.truststore_location) == ("one.pem", "none", "trust.pem")
    assert (shared.keystore_location, shared.client_auth) == ("all.pem", "requested")
    assert (own.prefix, shared.prefix) == ("listener.name.ssl.", "")
    texts = {"ssl.keystore.key": "k", "ssl.keystore.certificate.chain": "c", "ssl.key.password": "p"}
    mixed = tls_settings(BROKER_CONFIG.parse(NODE | texts | {"listener.name.ssl.ssl.keystore.location": "f"}), "SSL")
    assert (mixed.keystore_location, mixed.key, mixed.certificate_chain, mixed.key_password) == ("f", None, None, "p")


@pytest.mark.parametrize("own", [None, "required", "none"])
def test_sasl_listeners_demand_certificates_by_their_own_key(own, caplog):
    """A file of Kafka for both kinds of clients would else admit none that logs in by SASL (KIP-684)."""
    chain, key = authority().issue("node")
    given = {
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,SSL:SSL,CONTROLLER:PLAINTEXT",
        "ssl.client.auth": "required",
        "ssl.truststore.certificates": authority().trust,
        "ssl.keystore.certificate.chain": chain,
        "ssl.keystore.key": key,
    }
    config = BROKER_CONFIG.parse(NODE | given | ({} if own is None else {"listener.name.clients.ssl.client.auth": own}))
    assert tls_settings(config, "SSL").client_auth == "required"
    assert tls_settings(config, "CLIENTS").client_auth == (own or "none")
    for name, protocol in (("SSL", SecurityProtocol.SSL), ("CLIENTS", SecurityProtocol.SASL_SSL)):
        assert listener_tls(real_environment(1), config, name, protocol) is not None
    warned = [text for text in caplog.messages if "client-auth-without-effect" in text]
    assert len(warned) == (own is None)
    assert all("listener.name.clients.ssl.client.auth=required" in text for text in warned)


def test_files_and_texts_are_the_same_and_bad_ones_are_named(tmp_path):
    disk = real_environment(1).disk
    chain, key = authority().issue(*names())
    (tmp_path / "both.pem").write_text(key + chain)
    (tmp_path / "trust.pem").write_text(authority().trust)
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed\0\0\0\x02")

    def settings(**changes):
        return authority().settings(**{"certificate_chain": None, "key": None, **changes})

    in_file = settings(keystore_location=str(tmp_path / "both.pem"), truststore_location=str(tmp_path / "trust.pem"))
    for context in (server_context(in_file, disk), client_context(in_file, disk)):
        assert [found["subject"] for found in context.get_ca_certs()]
    for changes, reported in (
        ({"keystore_location": str(tmp_path / "none.pem")}, "ssl.keystore.location = .*cannot be read: No such file"),
        ({"keystore_location": str(tmp_path / "trust.pem")}, "ssl.keystore.location: no private key"),
        ({"keystore_location": str(tmp_path / "store.jks")}, "is a store of Java's own format"),
        ({"truststore_location": str(tmp_path / "store.jks")}, "ssl.truststore.location = .*own format"),
        ({"trusted_certificates": "nothing"}, "ssl.truststore.certificates: holds no certificates in PEM form"),
        ({"certificate_chain": chain, "key": authority().issue("other")[1]}, "KEY_VALUES_MISMATCH"),
    ):
        with pytest.raises(ConfigError, match=reported):
            server_context(settings(**changes), disk)


def test_a_key_with_a_password(tmp_path):
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    chain, key = authority().issue(*names())
    locked = (
        load_pem_private_key(key.encode(), None)
        .private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"s3cr3t"))
        .decode()
    )
    disk = real_environment(1).disk
    server_context(authority().settings(certificate_chain=chain, key=locked, key_password="s3cr3t"), disk)
    for password in (None, "wrong"):
        with pytest.raises(ConfigError, match="password does not open it") as caught:
            server_context(authority().settings(certificate_chain=chain, key=locked, key_password=password), disk)
        assert "wrong" not in str(caught.value)


def test_a_client_trusts_the_system_by_default():
    config = ADMIN_CONFIG.parse({"bootstrap.servers": "h:1", "security.protocol": "SSL"})
    context = client_context(tls_settings(config), real_environment(1).disk)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert "one needs the other" in problems(
        ADMIN_CONFIG, {"bootstrap.servers": "h:1", "security.protocol": "SSL", "ssl.keystore.key": "k"}
    )


class Flood:
    """A transport from which ciphertext always comes at once."""

    def __init__(self):
        self.receives = 0

    def receive_into_nowait(self, buffer):
        self.receives += 1
        assert self.receives < 100, "one call does not end while bytes come"
        return len(buffer)


class MessagesOfTls:
    """Stands for OpenSSL, which finds nothing but messages of TLS itself; Python cannot send them."""

    def read(self, size, buffer):
        raise ssl.SSLWantReadError


def test_messages_of_tls_alone_do_not_hold_the_event_loop():
    """A peer may prepare megabytes of KeyUpdate messages and send them faster than they are handled."""
    flood = Flood()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    connection = TlsConnection(flood, context, server_side=True)
    connection._tls = MessagesOfTls()
    for calls in (1, 2):
        with pytest.raises(BlockingIOError):
            connection.receive_into_nowait(memoryview(bytearray(10)))
        assert flood.receives == calls * CIPHERTEXT_RECEIVES_MAX
