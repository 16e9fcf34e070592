"""Goal: the gate and the connection loop survive any bytes, and let none past before an authentication.

Method: a real listener in a simulated world, whose inner handler records what reaches it; hostile bytes by Hypothesis,
slow and silent peers in virtual time.
"""

import contextlib
import struct

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol.framing import decode_request_header, decode_response, encode_request, encode_response
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from moldau.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from moldau.runtime.config import BROKER_CONFIG, SecurityProtocol
from moldau.runtime.net.serving.server import ServerLimits, serve
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.sasl.attempts import register_attempts
from moldau.runtime.sasl.core.identity import ANONYMOUS
from moldau.runtime.sasl.core.oauth import OauthClient
from moldau.runtime.sasl.listener import SaslListener
from moldau.runtime.telemetry.log import EventLogger
from moldau.runtime.telemetry.metrics import Registry
from moldau_jepsen.world.world import run_world
from support import tokens
from support.proof import examples
from support.sasl import PLAIN, NoCredentials, node_config

PASSED = b"\0\0\0\4\0\0\0\7"


class Inner:
    """Answers ApiVersions, and records all else."""

    def __init__(self, peer, passed):
        self.peer, self.passed = peer, passed

    def handle(self, frame):
        header = decode_request_header(frame)
        if header.api_key == 18:
            return [encode_response(ApiVersionsResponse(), 0, header.correlation_id)]
        self.passed.append((header.api_key, self.peer.identity.principal))
        return [PASSED]

    def flush(self):
        pass

    def closed(self):
        pass


def run_gate(scenario, **more):
    """Runs ``scenario(connect, passed, listener, server)`` against one listener."""

    async def main(world):
        passed = []
        node = world.node("broker")

        async def process(environment):
            config = BROKER_CONFIG.parse(node_config(**more))
            sasl = SaslListener(
                environment,
                config,
                "OUTSIDE",
                SecurityProtocol.SASL_PLAINTEXT,
                NoCredentials(),
                EventLogger("test"),
            )
            listener = await environment.network.listen("", 9092)
            async with trio.open_nursery() as nursery:
                servers.append(
                    await nursery.start(
                        lambda task_status: serve(
                            environment,
                            listener,
                            sasl.handler_factory(lambda connection, peer: Inner(peer, passed)),
                            ServerLimits(request_bytes_max=1 << 20),
                            task_status=task_status,
                        )
                    )
                )
                sasls.append(sasl)
                listening.set()
                await trio.sleep_forever()

        servers, sasls = [], []
        listening = trio.Event()
        node.start(process)
        await listening.wait()
        outside = world.node("client")
        done = trio.Event()

        async def client(environment):
            async def connect():
                return await environment.network.connect("broker", 9092)

            await scenario(connect, passed, sasls[0], servers[0])
            done.set()

        outside.start(client)
        with trio.fail_after(1000):
            await done.wait()

    return run_world(main, seed=1)


async def receive(connection, seconds=60.0):
    """Returns all bytes until the peer closes or is silent."""
    found = bytearray()
    buffer = bytearray(65536)
    with trio.move_on_after(seconds):
        while True:
            try:
                count = connection.receive_into_nowait(memoryview(buffer))
            except BlockingIOError:
                await connection.wait_readable()
                continue
            except OSError:
                return bytes(found), True
            if count == 0:
                return bytes(found), True
            found += buffer[:count]
    return bytes(found), False


def frames(data):
    while data:
        (size,) = struct.unpack_from(">i", data)
        yield memoryview(data)[4 : 4 + size]
        data = data[4 + size :]


def handshake(mechanism="PLAIN", version=1):
    return encode_request(SaslHandshakeRequest(mechanism=mechanism), version, 1, "test")


def authenticate(token, version=2):
    return encode_request(SaslAuthenticateRequest(auth_bytes=token), version, 2, "test")


METADATA = encode_request(MetadataRequest(topics=[]), 9, 7, "test")
VERSIONS = encode_request(ApiVersionsRequest(), 3, 3, "test")
RIGHT = authenticate(b"\0alice\0secret")


def exchange(*sent, seconds=5.0, **more):
    """Sends everything at once; returns what came back, whether it was closed, what passed, and how long it took."""
    outcome = []

    async def scenario(connect, passed, listener, server):
        connection = await connect()
        begun = trio.current_time()
        with contextlib.suppress(OSError):
            await connection.send_all([b"".join(sent)])
        data, closed = await receive(connection, seconds)
        outcome.extend((data, closed, passed, trio.current_time() - begun))
        connection.close()

    run_gate(scenario, **more)
    return outcome


def test_requests_pass_with_the_authenticated_principal():
    data, closed, passed, _ = exchange(VERSIONS, handshake(), RIGHT, METADATA, METADATA)
    assert (closed, passed) == (False, [(3, "User:alice")] * 2)
    assert data.endswith(PASSED + PASSED)


@pytest.mark.parametrize(
    "sent",
    [
        (METADATA,),
        (VERSIONS, METADATA),
        (handshake(), METADATA),
        (handshake(), VERSIONS),
        (RIGHT,),
        (handshake(), authenticate(b"\0alice\0wrong"), METADATA),
        (handshake(), authenticate(b"\0alice\0wrong"), handshake(), RIGHT, METADATA),
        (handshake("GSSAPI"), RIGHT, METADATA),
        (handshake(), RIGHT[:-3]),
        (struct.pack(">i", 600_000) + b"x" * 600_000,),
        (handshake(), struct.pack(">i", 600_000)),
        (handshake(version=0), b"\0\0\0\5\0\0\0\0\0", METADATA),
    ],
)
def test_nothing_passes_without_an_authentication(sent):
    _, closed, passed, _ = exchange(*sent, seconds=100.0)
    assert (closed, passed) == (True, [])


def test_bare_tokens_of_version_0():
    token = b"\0alice\0secret"
    data, closed, passed, _ = exchange(handshake(version=0), struct.pack(">i", len(token)) + token, METADATA)
    first, second, _ = frames(data)
    assert decode_response(SaslHandshakeResponse, 0, first)[1].error_code == 0
    assert (bytes(second), closed, passed) == (b"", False, [(3, "User:alice")])


def test_a_failure_is_delayed_and_says_why_in_kafkas_words():
    data, closed, _, seconds = exchange(handshake(), authenticate(b"\0x\0wrong"), delay_ms="700")
    response = decode_response(SaslAuthenticateResponse, 2, list(frames(data))[-1])[1]
    assert (response.error_code, response.error_message) == (58, "Authentication failed: Invalid username or password")
    assert closed
    assert 0.7 <= seconds < 1.5


def test_failures_delay_no_other_connection():
    async def scenario(connect, passed, listener, server):
        failing = [await connect() for _ in range(50)]
        for connection in failing:
            await connection.send_all([handshake() + authenticate(b"\0mallory\0wrong")])
        await trio.sleep(0.5)
        begun = trio.current_time()
        connection = await connect()
        await connection.send_all([handshake() + RIGHT + METADATA])
        data, _ = await receive(connection, 1.0)
        assert data.endswith(PASSED)
        assert passed == [(3, "User:alice")]
        assert trio.current_time() - begun <= 1.1
        assert listener.attempts.refused == 50
        for other in failing:
            other.close()
        connection.close()

    run_gate(scenario, delay_ms="10000")


def test_a_silent_peer_is_cut_and_an_authenticated_one_is_not():
    async def scenario(connect, passed, listener, server):
        silent, proven = await connect(), await connect()
        await proven.send_all([handshake() + RIGHT])
        begun = trio.current_time()
        data, closed = await receive(silent, 100.0)
        assert (data, closed) == (b"", True)
        assert 29 <= trio.current_time() - begun <= 35
        _, closed = await receive(proven, 60.0)
        assert not closed
        await proven.send_all([METADATA])
        assert (await receive(proven, 1.0))[0].endswith(PASSED)
        proven.close()

    run_gate(scenario)


def test_a_flood_of_failures_is_logged_in_bounded_lines(caplog):
    async def scenario(connect, passed, listener, server):
        for _ in range(100):
            connection = await connect()
            await connection.send_all([handshake() + authenticate(b"\0mal\nlory\0wrong")])
            connection.close()
        await trio.sleep(5)
        await (await connect()).send_all([handshake() + authenticate(b"\0mallory\0wrong")])
        await trio.sleep(5)

    run_gate(scenario, delay_ms="0")
    lines = [line for line in caplog.messages if line.startswith("authentication-failed")]
    assert 1 < len(lines) < 60
    assert not [line for line in lines if "\n" in line or 'wrong"' in line]


PIECES = st.one_of(
    st.sampled_from([VERSIONS, handshake(), handshake("SCRAM-SHA-256"), handshake(version=0), METADATA]),
    st.binary(max_size=60).map(authenticate),
    st.binary(max_size=60).map(lambda body: struct.pack(">i", len(body)) + body),
    st.binary(max_size=40),
    st.tuples(st.sampled_from([RIGHT, VERSIONS, handshake()]), st.integers(0, 40), st.integers(0, 255)).map(
        lambda spoilt: spoilt[0][: spoilt[1]] + bytes([spoilt[2]]) + spoilt[0][spoilt[1] + 1 :]
    ),
)


@settings(max_examples=examples(60), deadline=None)
@given(streams=st.lists(st.lists(PIECES, max_size=6).map(b"".join), min_size=1, max_size=8))
def test_hostile_bytes_never_pass_and_never_raise(streams):
    """Each stream has a connection of its own; afterwards an honest client is served and no memory is kept."""
    spoilt = [stream for stream in streams if RIGHT not in stream]

    async def scenario(connect, passed, listener, server):
        for stream in spoilt:
            connection = await connect()
            with contextlib.suppress(OSError):
                await connection.send_all([stream])
                await receive(connection, 2.0)
            connection.close()
        assert [name for _, name in passed if name == ANONYMOUS] == []
        honest = await connect()
        await honest.send_all([handshake() + RIGHT + METADATA])
        assert (await receive(honest, 2.0))[0].endswith(PASSED)
        assert passed[-1] == (3, "User:alice")
        honest.close()
        await trio.sleep(1)
        assert server.statistics().buffered_bytes == 0

    run_gate(scenario)


def test_a_refused_token_is_logged_though_the_client_leaves(caplog):
    """OAUTHBEARER sends the refusal in a challenge; a client that does not answer it has failed as well."""

    async def scenario(connect, passed, listener, server):
        begun = trio.current_time()
        connection = await connect()
        await connection.send_all([handshake("OAUTHBEARER") + authenticate(b"n,,\x01auth=Bearer a.b.c\x01\x01")])
        data, closed = await receive(connection, 1.0)
        assert b'{"status":"invalid_token"}' in data
        assert not closed
        assert trio.current_time() - begun >= 0.7
        await connection.send_all([authenticate(b"\x01")])
        data, closed = await receive(connection, 0.5)
        assert closed
        assert decode_response(SaslAuthenticateResponse, 2, list(frames(data))[-1])[1].error_code == 58
        assert listener.attempts.refused == 1

    run_gate(
        scenario,
        delay_ms="700",
        **{"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.unsecured.tokens.enable": "true"},
    )
    assert len([line for line in caplog.messages if line.startswith("authentication-failed")]) == 1


WRONG = authenticate(b"\0alice\0wrong")


@pytest.mark.parametrize(
    ("sent", "counted"),
    [
        ((handshake(), RIGHT, METADATA), {"PLAIN": "accepted"}),
        ((handshake(), WRONG, METADATA), {"PLAIN": "refused"}),
        ((METADATA,), {"none": "refused"}),  # a client without SASL
        ((VERSIONS, handshake("GSSAPI")), {"none": "refused"}),
        ((handshake(), METADATA), {"PLAIN": "refused"}),
        ((VERSIONS,), {}),  # a probe that leaves
    ],
)
def test_attempts_are_counted_by_mechanism(sent, counted):
    registry = Registry()

    async def scenario(connect, passed, listener, server):
        register_attempts(registry, {"OUTSIDE": listener.attempts}, lambda: [("OUTSIDE", server)], ())
        connection = await connect()
        await connection.send_all([b"".join(sent)])
        await receive(connection, 5.0)
        connection.close()

    run_gate(scenario)
    words = {"successful_authentication_total": "accepted", "failed_authentication_total": "refused"}
    prefix = "kafka_server_socketservermetrics_"
    shown = [line.split(" ") for line in registry.expose().splitlines() if line.startswith(prefix)]
    assert [name for name, _ in shown if 'mechanism="SCRAM-SHA-512"' in name], "zeros are shown"
    found = {}
    for name, value in shown:
        kind, labels = name.removeprefix(prefix).split("{")
        if value != "0":
            assert value == "1"
            found[labels.split('mechanism="')[1].split('"')[0]] = words[kind]
    assert found == counted


def test_renewals_and_ended_sessions_are_counted():
    async def scenario(connect, passed, listener, server):
        counts = listener.attempts.of("PLAIN")
        connection = await connect()
        await connection.send_all([handshake() + RIGHT])
        await trio.sleep(2)
        await connection.send_all([handshake() + RIGHT + METADATA])
        await trio.sleep(2)
        assert (counts.accepted, counts.renewals_accepted, len(passed)) == (1, 1, 1)
        await trio.sleep(10)
        await connection.send_all([METADATA])
        assert (await receive(connection, 5.0))[1]
        assert (listener.attempts.expired, counts.refused, counts.renewals_refused) == (1, 0, 0)
        other = await connect()
        await other.send_all([handshake() + RIGHT])
        await trio.sleep(2)
        await other.send_all([handshake() + WRONG])
        assert (await receive(other, 5.0))[1]
        assert (counts.accepted, counts.refused, counts.renewals_refused) == (2, 0, 1)
        connection.close()
        other.close()

    run_gate(scenario, **{"connections.max.reauth.ms": "5000"})


@pytest.mark.parametrize(
    "change",
    [
        {"sasl.jaas.config": f'{PLAIN} user_bob="secret";'},
        {"sasl.jaas.config": f'{PLAIN} user_alice="other" user_bob="secret";'},
        {"sasl.enabled.mechanisms": "SCRAM-SHA-256"},
    ],
)
def test_a_renewal_needs_a_login_that_is_still_valid(change):
    """Sessions end so that a user whose password has gone does not keep a connection."""
    ends = {"connections.max.reauth.ms": "5000"}

    async def scenario(connect, passed, listener, server):
        old, opened = await connect(), await connect()
        await old.send_all([handshake() + RIGHT])
        await receive(old, 2.0)
        listener.reload(BROKER_CONFIG.parse(node_config(**ends, **change)))
        for connection in (old, opened):
            await connection.send_all([handshake() + RIGHT + METADATA])
            assert (await receive(connection, 5.0))[1]
        assert passed == []

    run_gate(scenario, **ends)


def test_a_renewal_reads_the_keys_that_it_needs():
    """The identity provider has changed its key since the login: the renewal's token names the new one."""

    async def scenario(connect, passed, listener, server):
        environment = listener._environment
        connection = await connect()
        for key_id in ("key-1", "key-2"):
            with contextlib.suppress(FileNotFoundError):
                environment.disk.remove("/jwks.json")
            file = environment.disk.open("/jwks.json", OpenMode.CREATE)
            file.append([tokens.key_set(key_id).encode()])
            file.close()
            token = tokens.token(environment.clock.wall_ms() / 1000, key_id=key_id)
            await connection.send_all([handshake("OAUTHBEARER") + authenticate(OauthClient(token).first()) + METADATA])
            await trio.sleep(5)
        counts = listener.attempts.of("OAUTHBEARER")
        assert (counts.accepted, counts.renewals_accepted, listener.attempts.refused) == (1, 1, 0)
        assert passed == [(3, "User:carol")] * 2
        connection.close()

    keys = {"sasl.oauthbearer.jwks.endpoint.url": "file:/jwks.json"}
    run_gate(scenario, **{"sasl.enabled.mechanisms": "OAUTHBEARER"}, **keys)


def test_a_session_begins_when_the_client_hears_of_it():
    """The identity provider may answer slowly; a client that renews its session in time must find it alive."""

    async def scenario(connect, passed, listener, server):
        async def prepare(*_):
            await trio.sleep(4)

        listener.prepare = prepare
        connection = await connect()
        await connection.send_all([handshake() + RIGHT])
        answers, _ = await receive(connection, 4.5)
        _, response = decode_response(SaslAuthenticateResponse, 2, list(frames(answers))[1])
        assert response.session_lifetime_ms == 5_000
        await trio.sleep(4)
        await connection.send_all([METADATA])
        await receive(connection, 0.2)
        assert len(passed) == 1
        connection.close()

    run_gate(scenario, **{"connections.max.reauth.ms": "5000"})
