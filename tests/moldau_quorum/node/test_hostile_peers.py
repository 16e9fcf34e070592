"""Goal: nothing that a stranger sends to a controller ends it, changes what is committed, or deposes its leader.

Method: whole controllers in a simulated world, and a machine that knows what a controller knows (ids, directories,
cluster, epochs, positions) but does not own a controller's address. It sends forged messages, alone and drawn by
Hypothesis. Then single nodes of both engines, whose proven peers send anything.
"""

from __future__ import annotations

import struct
from types import SimpleNamespace

import msgpack
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moldau.protocol.framing import decode_request_header, encode_request_header
from moldau.runtime.net.serving.answers import CloseConnection
from moldau.runtime.sasl.core.identity import Identity, Peer
from moldau.runtime.telemetry.log import EventLogger
from moldau_jepsen.world.world import run_world
from moldau_quorum.authorization.authorizer import Authorizer
from moldau_quorum.broker_side.metadata_fetch import (
    METADATA_FETCH_KEY,
    METADATA_FETCH_VERSION,
    MetadataFetchRequest,
    encode_fetch_request,
)
from moldau_quorum.log.port import LogLimits
from moldau_quorum.log.pysyncobj.wire import _FIELDS
from moldau_quorum.log.pysyncobj.wire import encode as encode_library_message
from moldau_quorum.log.raft import sessions
from moldau_quorum.log.raft.core.messages import (
    AppendRequest,
    AppendResponse,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    encode_message,
)
from moldau_quorum.log.raft.core.types import Entry, EntryKind, configuration_of, encode_configuration
from moldau_quorum.log.raft.envelope import PYSYNCOBJ_FORMAT, RAFT_FORMAT, Envelope, MessageError, seal, unseal
from moldau_quorum.log.raft.peers import PeerLink, frame_message
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import ClusterRecord
from moldau_quorum.metadata.snapshot import snapshot_pieces
from moldau_quorum.node.serving.principals import NodePrincipals, distinguished_name, parse_patterns
from moldau_quorum.node.serving.requests import ControllerConnection
from support.certificates import authority
from support.proof import examples
from support.quorum.cluster import PORT, TestCluster, create, eventually, topic
from support.raft.hardened_pysyncobj import CampaignNode
from support.raft.world import World

NONCE = bytes(range(16))


class Attacker:
    """A machine that has the controllers' public data, and impersonates one of them."""

    def __init__(self, world, cluster, active, sender):
        self.environment = world.node("mallory").environment
        self.cluster, self.active, self.sender = cluster, active, sender
        log = active.running.log
        self.epoch = log.leadership.epoch
        self.index = log.status().log_end_index
        self.cluster_id = active.running.machine.image.cluster_id

    def envelope(self, recipient, **changes):
        directory = self.cluster.controllers[self.sender].directory_id()
        fields = {"sender_directory": directory, "cluster_id": self.cluster_id, **changes}
        return Envelope(fields.pop("sender", self.sender), recipient, **fields)

    async def send(self, recipient, *bodies):
        """Sends bodies over one connection; returns whether the controller closed it."""
        connection = await self.environment.network.connect(f"c{recipient}", PORT)
        buffer = memoryview(bytearray(4096))
        try:
            await connection.send_all([frame_message(self.sender, body) for body in bodies])
            with trio.move_on_after(2):
                while True:
                    await connection.wait_readable()
                    if connection.receive_into_nowait(buffer) == 0:
                        return True
        except OSError:
            return True
        finally:
            connection.close()
        return False


def forgeries(attacker):
    """Messages as a controller of a newer, or of the present, epoch would send them."""
    epoch, index = attacker.epoch, attacker.index
    configuration = encode_configuration(configuration_of(attacker.cluster.voters))
    pieces = list(snapshot_pieces(empty_image(attacker.cluster_id, index + 1000, epoch + 1)))
    for ahead in (0, 1, 5):
        yield AppendRequest(epoch=epoch + ahead, prev_index=0, prev_epoch=0, commit_index=index)
        yield AppendRequest(
            epoch=epoch + ahead,
            prev_index=0,
            prev_epoch=0,
            commit_index=1,
            entries=(Entry(1, 1, EntryKind.DATA, b"forged"), Entry(2, 1, EntryKind.DATA, b"forged")),
        )
        for number, piece in enumerate(pieces):
            yield SnapshotRequest(
                epoch=epoch + ahead,
                index=index + 1000,
                index_epoch=epoch,
                configuration=configuration,
                piece=number,
                piece_count=len(pieces),
                data=piece,
            )
        yield SnapshotRequest(
            epoch=epoch + ahead,
            index=index + 2000,
            index_epoch=epoch,
            configuration=configuration,
            piece=0,
            piece_count=1,
            data=b"garbage",
        )
    for newest in (epoch + 1, (1 << 31) - 1, (1 << 64) - 1):
        yield VoteRequest(epoch=newest, pre_vote=False, transfer=True, last_index=1 << 40, last_epoch=newest)
        yield VoteResponse(epoch=newest, pre_vote=False, granted=True)
        yield AppendResponse(epoch=newest, accepted=False)
        yield TimeoutNow(epoch=newest)


def empty_image(cluster_id, offset, epoch):
    """Metadata of the same cluster, with nothing in it."""
    editor = MetadataImage().edit()
    editor.replay_all((ClusterRecord(cluster_id=cluster_id),))
    return editor.finish_image(offset=offset, epoch=epoch)


async def started(world, **settings):
    cluster = TestCluster(world, **settings)
    cluster.start_controllers()
    await cluster.start_brokers(1)
    await create(cluster.client(), topic("kept", factor=1))
    return cluster, await cluster.wait_active()


async def unharmed(world, cluster, active, epoch):
    """The same controller leads, all have the topic, and all get another one."""
    assert not world.failures
    assert active.running.log.leadership.epoch == epoch
    assert active.running.active.is_active
    await create(cluster.client(), topic("after", factor=1))
    for controller in cluster.controllers.values():
        await eventually(lambda one=controller: "after" in one.running.machine.image.topics_by_name)
        assert "kept" in controller.running.machine.image.topics_by_name
    follower = cluster.brokers[1].follower
    await eventually(lambda: sorted(follower.image.topics_by_name) == ["after", "kept"])
    assert not world.failures


@pytest.mark.parametrize("engine", ["raft", "pysyncobj"])
@pytest.mark.parametrize("shakes_hands", [False, True])
def test_a_stranger_cannot_speak_for_a_controller(engine, shakes_hands):
    """It knows everything, sends each message to each controller in the name of each other, and is cut off."""

    async def main(world):
        cluster, active = await started(world, metadata_quorum_engine=engine)
        epoch = active.running.log.leadership.epoch
        for sender in cluster.voters:
            attacker = Attacker(world, cluster, active, sender)
            for recipient in cluster.voters:
                if recipient == sender:
                    continue
                envelope = attacker.envelope(recipient)
                greeting = [sessions.hello(envelope, NONCE)] if shakes_hands else []
                for message in forgeries(attacker):
                    assert await attacker.send(recipient, *greeting, encode_message(envelope, message)), message
                append = {"term": epoch, "commit_index": 9, "entries": (), "prevLogIdx": 1, "prevLogTerm": 0}
                forged = encode_library_message(envelope, epoch, 1, {"type": "append_entries", **append})
                assert await attacker.send(recipient, *greeting, forged)
        await unharmed(world, cluster, active, epoch)
        # The forged messages are not kept either: a restarted controller has its former state.
        for controller in cluster.controllers.values():
            if controller is not active:
                controller.kill()
                controller.start()
                await eventually(lambda one=controller: one.running is not None)
        await eventually(lambda: not world.failures and active.running.active.is_active)

    run_world(main, 211)


def test_parts_of_handshakes_out_of_place_are_refused():
    async def main(world):
        cluster, active = await started(world)
        epoch = active.running.log.leadership.epoch
        sender, recipient, third = active.node_id, *[node for node in cluster.voters if node != active.node_id]
        attacker = Attacker(world, cluster, active, sender)
        envelope = attacker.envelope(recipient)
        greeting = sessions.hello(envelope, NONCE)
        for bodies in (
            [sessions.proof(envelope, NONCE)],
            [sessions.challenge(envelope, NONCE, NONCE)],
            [greeting, sessions.proof(envelope, NONCE)],  # the number that was asked for went to the real node
            [greeting, greeting],
            [greeting, sessions.hello(attacker.envelope(recipient, sender=third), NONCE)],
            [sessions.hello(attacker.envelope(third), NONCE)],
            [sessions.hello(attacker.envelope(recipient, sender=recipient), NONCE)],
            [sessions.hello(attacker.envelope(recipient, cluster_id="another"), NONCE)],
            [seal(envelope, 5, (0, b"short"))],
            [seal(envelope, 5, ())],
            [seal(envelope, 99, (1,))],
            [greeting, bytes(2000)],
            [b""],
        ):
            assert await attacker.send(recipient, *bodies), bodies
        # A challenge for a connection that is not the node's own is not answered, and changes nothing.
        assert not await attacker.send(recipient, greeting, sessions.challenge(envelope, NONCE, NONCE))
        await unharmed(world, cluster, active, epoch)

    run_world(main, 223)


def test_a_flood_of_greetings_keeps_no_controller_out():
    async def main(world):
        cluster, active = await started(world)
        following = next(one for one in cluster.controllers.values() if one is not active)
        attacker = Attacker(world, cluster, active, following.node_id)
        greeting = frame_message(attacker.sender, sessions.hello(attacker.envelope(active.node_id), NONCE))
        connections = []
        for _ in range(3 * sessions.UNPROVEN_MAX):
            connection = await attacker.environment.network.connect(f"c{active.node_id}", PORT)
            await connection.send_all([greeting])
            connections.append(connection)
        following.kill()
        following.start()
        await create(cluster.client(), topic("after", factor=1))
        await eventually(
            lambda: following.running is not None and "after" in following.running.machine.image.topics_by_name
        )
        assert active.running.active.is_active
        assert not world.failures

    run_world(main, 227)


VALUES = (
    st.none() | st.booleans() | st.integers(-2, 9) | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40)
) | st.text(max_size=4)
PAYLOADS = st.lists(VALUES | st.lists(VALUES, max_size=4).map(tuple), max_size=9).map(tuple)


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_drawn_frames_of_strangers_change_nothing(data):
    frames = st.one_of(
        st.binary(max_size=300),
        st.tuples(st.integers(0, 6), PAYLOADS),
        st.sampled_from(["hello", "proof", "append", "truncated"]),
    )
    plan = data.draw(st.lists(st.lists(frames, min_size=1, max_size=4), min_size=3, max_size=12))

    async def main(world):
        cluster, active = await started(world)
        epoch = active.running.log.leadership.epoch
        for number, items in enumerate(plan):
            sender, recipient = [(101, 102), (102, 103), (103, 101)][number % 3]
            attacker = Attacker(world, cluster, active, sender)
            envelope = attacker.envelope(recipient)
            shapes = {
                "hello": sessions.hello(envelope, NONCE),
                "proof": sessions.proof(envelope, NONCE),
                "append": encode_message(
                    envelope, AppendRequest(epoch=epoch + 1, prev_index=0, prev_epoch=0, commit_index=99)
                ),
                "truncated": sessions.hello(envelope, NONCE)[:-3],
            }
            bodies = [shapes[item] if isinstance(item, str) else item for item in items]
            bodies = [item if isinstance(item, bytes) else seal(envelope, *item) for item in bodies]
            await attacker.send(recipient, *bodies)
        await unharmed(world, cluster, active, epoch)

    run_world(main, 229)


# --- what even a member may not do


def hostile(data, core_epoch, last_index):
    """A message with some fields near the truth and some far from it."""
    near = st.integers(max(0, core_epoch - 1), core_epoch + 2)
    epochs = near | st.sampled_from([0, 1, (1 << 31) - 1, (1 << 31), (1 << 64) - 1])
    indexes = st.integers(0, last_index + 3) | st.sampled_from([1 << 40, (1 << 62) + 1, (1 << 64) - 1])
    kind = data.draw(st.integers(0, 7))
    if kind == 7:
        return data.draw(PAYLOADS)
    epoch, first, second = data.draw(epochs), data.draw(indexes), data.draw(indexes)
    flags = [data.draw(st.booleans()) for _ in range(2)]
    configuration = data.draw(
        st.sampled_from([b"", msgpack.packb(((), ())), encode_configuration(configuration_of({1: ("h", 1)}))])
    )
    contents = st.sampled_from([b"x", configuration])
    entries = tuple(
        (min(first, 1 << 63) + 1 + number, data.draw(near), data.draw(st.integers(0, 2)), data.draw(contents))
        for number in range(data.draw(st.integers(0, 3)))
    )
    return {
        0: (0, epoch, *flags, first, data.draw(epochs)),
        1: (1, epoch, *flags),
        2: (2, epoch, first, data.draw(epochs), second, first, entries),
        3: (3, epoch, flags[0], first, second, first, data.draw(epochs), second),
        4: (4, epoch, first, data.draw(epochs), configuration, 0, 1, second, data.draw(st.binary(max_size=30))),
        5: (5, epoch, first, second, first),
        6: (6, epoch),
    }[kind]


class Alone(World):
    """One member runs; the others are whatever the test says."""

    def __init__(self, seed, **options):
        super().__init__(seed, **options)
        hooks = "applying leadership restored check sending delivering started stopped acknowledged read_done"
        nothing = dict.fromkeys(hooks.split(), lambda *_: None)
        self.invariants = SimpleNamespace(committed_index=0, **nothing)
        self.start(1)

    def hand(self, payload_format, sender, payload):
        """A proven peer sends a payload; returns whether it was taken."""
        node = self.members[1].node
        try:
            node.prepare(*unseal(seal(Envelope(sender, 1), payload_format, payload)))(self.now)
        except MessageError:
            return False
        return True


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
@pytest.mark.proof
def test_a_node_bears_anything_from_proven_peers(data):
    """Peers that lie may lead it astray, but they never end it, and what it has applied stays."""
    world = Alone(data.draw(st.integers(0, 3)))
    member = world.members[1]
    for _ in range(data.draw(st.integers(1, 15))):
        core, machine = member.node.core, member.machine
        before = (core.epoch, core.applied_index, machine.index)
        payload = hostile(data, core.epoch, core.log.last_index)
        world.guard(member, world.hand, RAFT_FORMAT, data.draw(st.sampled_from([2, 3, 9])), payload)
        world.run_until(world.now + data.draw(st.sampled_from([0, 3, 400])))
        assert member.node is not None, "the process lives"
        assert (core.epoch, core.applied_index, machine.index) >= before or core.epoch > before[0]
        assert core.applied_index >= before[1]
        assert machine.index >= before[2]
    world.crash(1, power_loss=True)
    world.start(1)
    assert member.node is not None, "it starts again from what it has written"


def library_message(data, term, last_index):
    near = st.integers(max(0, term - 1), term + 2)
    terms = near | st.sampled_from([0, (1 << 31) - 1, 1 << 31, (1 << 64) - 1])
    indexes = st.integers(0, last_index + 3) | st.sampled_from([1 << 40, (1 << 62) + 1, (1 << 64) - 1])
    kind = data.draw(st.sampled_from(sorted(_FIELDS)))
    message = {"type": kind}
    for name in _FIELDS[kind]:
        message[name] = data.draw(terms if "term" in name.lower() else indexes)
    if kind == "append_entries":
        commands, first = st.sampled_from([b"\x10x", b"\x01", b"\x02pickle"]), min(message["prevLogIdx"], 1 << 63) + 1
        message["entries"] = tuple(
            (data.draw(commands), first + number, data.draw(near)) for number in range(data.draw(st.integers(0, 3)))
        )
    elif kind == "snapshot":
        anchor = ((b"\x01", last_index, term), (b"\x01", last_index + 1, term))
        message["data"] = data.draw(st.binary(max_size=30) | st.just(msgpack.packb(anchor)))
        message.update(data.draw(st.sampled_from([{}, {"piece": 0, "count": 1, "index": last_index + 1}])))
    elif kind == "next_node_idx":
        message["reset"], message["success"] = data.draw(st.booleans()), data.draw(st.booleans())
    return message


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_hardened_library_bears_anything_from_proven_peers(data):
    world = Alone(data.draw(st.integers(0, 3)), engine=CampaignNode)
    member = world.members[1]
    for _ in range(data.draw(st.integers(1, 15))):
        core, machine = member.node.core, member.machine
        before = (core.applied_index, machine.index)
        message = library_message(data, core.epoch, core.log.last_index)
        payload = (core.epoch, data.draw(st.integers(0, 5)), message)
        world.guard(member, world.hand, PYSYNCOBJ_FORMAT, data.draw(st.sampled_from([2, 3, 9])), payload)
        world.run_until(world.now + data.draw(st.sampled_from([0, 3, 400])))
        assert member.node is not None, "the process lives"
        assert core.applied_index >= before[0]
        assert machine.index >= before[1]


def test_a_garbage_snapshot_is_refused_and_forgotten():
    """It is checked before it gets its name: the node goes on, and starts again."""
    world = Alone(1)
    member = world.members[1]
    configuration = encode_configuration(configuration_of(world.voters))
    for data in (b"garbage", struct.pack("<Q", 99) + bytes(8)):  # the second says that it is beyond its own position
        request = (4, 3, 50, 3, configuration, 0, 1, 0, data)
        world.guard(member, world.hand, RAFT_FORMAT, 2, request)
        world.run_until(world.now + 100)
        assert member.node.core.installing is None
        assert (member.machine.index, member.node.applied_index) == (0, 0)
    assert member.node.statistics().snapshots_refused == 2
    request = (4, 3, 50, 3, configuration, 0, 1, 0, struct.pack("<Q", 50) + bytes(8))
    world.guard(member, world.hand, RAFT_FORMAT, 2, request)
    world.run_until(world.now + 100)
    assert (member.machine.index, member.node.applied_index) == (50, 50)
    world.crash(1, power_loss=True)
    world.start(1)
    assert member.machine.index == 50


# --- certificates

SUBJECT = ((("countryName", "CZ"),), (("organizationName", "Moldau"),), (("commonName", "controller-1"),))


def test_certificates_belong_to_controllers_by_name_or_by_host():
    certificate = {"subject": SUBJECT, "subjectAltName": (("DNS", "c1.example.com"), ("IP Address", "10.0.0.1"))}
    assert distinguished_name(certificate) == "CN=controller-1,O=Moldau,C=CZ"
    by_host = NodePrincipals([])
    assert by_host.refusal(certificate, "c1.example.com") is None
    assert by_host.refusal(certificate, "10.0.0.1") is None
    assert "does not name the host" in by_host.refusal(certificate, "c2.example.com")
    assert "no certificate" in by_host.refusal(None, "c1.example.com")
    wildcard = {"subject": SUBJECT, "subjectAltName": (("DNS", "*.example.com"),)}
    assert by_host.refusal(wildcard, "c7.example.com") is None
    assert by_host.refusal(wildcard, "a.c7.example.com") is not None
    assert by_host.refusal(wildcard, "example.com") is not None
    by_name = NodePrincipals(parse_patterns("CN=broker-*; User:CN=controller-*,O=Moldau,C=CZ"))
    assert by_name.refusal(certificate, "anywhere") is None
    client = {"subject": ((("commonName", "client"),),), "subjectAltName": (("DNS", "c1.example.com"),)}
    assert "no pattern" in by_name.refusal(client, "c1.example.com")


def test_an_ipv6_address_of_a_certificate_is_that_of_a_voter():
    """A text names groups of zeros as it likes; OpenSSL writes them all, and in capitals."""
    certificate = {"subject": SUBJECT, "subjectAltName": (("IP Address", "2001:DB8:0:0:0:0:0:1"),)}
    by_host = NodePrincipals([])
    for host in ("2001:db8::1", "2001:0db8::0:1", "2001:DB8:0:0:0:0:0:1"):
        assert by_host.refusal(certificate, host) is None
    for host in ("2001:db8::2", "c1.example.com", "::ffff:10.0.0.1"):
        assert "does not name the host" in by_host.refusal(certificate, host)


def test_a_clients_certificate_does_not_let_it_into_the_quorum():
    """Its owner even sits at the address of a controller that is down: a certificate for another host is refused."""

    async def main(world):
        keys = authority().keys("c101", "c102", "c103")
        cluster = TestCluster(
            world,
            listener_security_protocol_map="CONTROLLER:SSL",
            listener_name_controller_ssl_client_auth="required",
            **keys,
        )
        cluster.start_controllers()
        active = await cluster.wait_active()
        epoch = active.running.log.leadership.epoch
        victim = next(one for one in cluster.controllers.values() if one is not active)
        victim.kill()
        impostor = TestCluster(
            world,
            listener_security_protocol_map="CONTROLLER:SSL",
            listener_name_controller_ssl_client_auth="required",
            **authority().keys("client"),
            ssl_endpoint_identification_algorithm="",
            controller_quorum_node_principals="*",
        )
        world.node(victim.node.name).disk.replace(["/data"])
        thief = impostor.controllers[victim.node_id]
        thief.start()
        await trio.sleep(10)
        assert active.running.log.leadership.epoch == epoch
        match = {row.voter.voter_id: row.last_caught_up_timestamp_ms for row in active.running.log.status().replicas}
        assert match[victim.node_id] < active.running.log.status().replicas[0].last_fetch_timestamp_ms - 5_000
        assert not world.failures

    run_world(main, 233)


def test_a_connection_proves_its_own_nonce_alone():
    """A stranger says hello under this node's name: the challenge that follows is none of this connection."""

    async def main(world):
        environment = world.node("c1").environment
        listener = await world.node("c2").environment.network.listen("c2", PORT)
        link = PeerLink(
            environment,
            node_id=1,
            peer_id=2,
            address=("c2", PORT),
            connect=environment.network.connect,
            limits=LogLimits(),
            envelope=lambda: Envelope(1, 2),
            on_refused=lambda peer: None,
            on_connected=lambda peer: None,
            logger=EventLogger("test", node=1),
        )
        sent = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            connection = await listener.accept()
            buffer = memoryview(bytearray(4096))

            async def received():
                await connection.wait_readable()
                frame = bytes(buffer[: connection.receive_into_nowait(buffer)])[4:]
                sent.append(unseal(frame[decode_request_header(memoryview(frame)).body_offset :])[2])
                return sent[-1]

            kind, nonce = await received()
            assert kind == sessions.HELLO
            link.prove(NONCE, NONCE)
            link.send(b"a message")
            link.prove(nonce, nonce)
            assert await received() == (sessions.PROOF, nonce)
            assert link.dropped == 1, "no message leaves before the proof"
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_a_connection_has_the_rights_of_its_present_login():
    """A session that authenticates again (KIP-368) may be another user from then on."""

    def identity(name):
        return Identity(principal=f"User:{name}", host="h", listener_name="C", security_protocol="SASL_SSL")

    peer = Peer(identity("node"))
    service = SimpleNamespace(authorizer=Authorizer(MetadataImage, super_users=["User:node"]))
    connection = ControllerConnection(service, peer)
    header = encode_request_header(METADATA_FETCH_KEY, METADATA_FETCH_VERSION, 7, "n", 1)
    frame = memoryview(header + encode_fetch_request(MetadataFetchRequest(node_id=1, next_offset=0)))
    assert connection.handle(frame) is not None
    peer.identity = identity("client")
    with pytest.raises(CloseConnection, match="User:client may not speak as a node"):
        connection.handle(frame)
