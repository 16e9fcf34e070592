"""Goal: ACLs hold on the wire: for each API, on brokers and controllers, and from the moment at which they change.

Method: a simulated cluster whose authorizer is on. Five principals send every API: the anonymous one, a user without an
ACL, one with the ACLs that the row of the API names, one with these and a DENY, and a super user. Clients also send the
requests of nodes. Real producers and consumers work under ACLs while leaders are killed.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio

from moldau.admin import Admin, AdminError, NewTopic
from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau.protocol.access import AclOperation, AclResource, Listeners
from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.compiler import fields_in
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages import share_fetch
from moldau.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from moldau.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.protocol.messages.envelope import EnvelopeRequest
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from moldau.protocol.schema import Struct
from moldau.records import Compression, encode_batch
from moldau.runtime.config import ADMIN_CONFIG
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.net.serving.answers import CloseConnection, Preparation
from moldau.runtime.sasl.core.identity import Identity, Peer
from moldau.runtime.tls.outgoing import client_environment
from moldau_broker.server.data_path import produce as produce_module
from moldau_broker.server.data_path.connection import BrokerConnection, listener_services
from moldau_broker.server.handlers.apis import BASE_APIS, api_table
from support.cluster.broker_cluster import batch, frame, run_cluster
from support.protocol_samples import Sampler
from support.share.memory_persister import MemoryPersister

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS = ("node", "root", "alice", "bob", "carol")
JAAS = f'{PLAIN} username="node" password="p-node" ' + " ".join(f'user_{user}="p-{user}"' for user in USERS) + ";"
SETTINGS = {
    "listeners": "INSIDE://:9094,OUTSIDE://:9092,OPEN://:9095",
    "listener.security.protocol.map": (
        "INSIDE:SASL_PLAINTEXT,OUTSIDE:SASL_PLAINTEXT,OPEN:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"
    ),
    "inter.broker.listener.name": "INSIDE",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.sasl.jaas.config": JAAS,
    "listener.name.inside.sasl.jaas.config": JAAS,
    "listener.name.outside.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:node;User:root",
    "default.replication.factor": "1",
    "num.partitions": "1",
}
DENIED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
NAMES = {
    AclResource.TOPIC: "t",
    AclResource.GROUP: "g",
    AclResource.CLUSTER: "kafka-cluster",
    AclResource.TRANSACTIONAL_ID: "x",
}
ALLOW, DENY, LITERAL, PREFIXED = 3, 2, 3, 4


def run_secured(scenario, seed=1, **more):
    return run_cluster(scenario, seed=seed, **{"brokers": 1, "controllers": 1, **SETTINGS, **more})


@asynccontextmanager
async def connected(cluster, user, host="b1", port=9092):
    """A connection of a user; for None an anonymous one, to the listener without authentication."""
    environment = cluster.client_environment
    if user is None:
        port = 9095
    else:
        config = ADMIN_CONFIG.parse(client_settings(user))
        environment = client_environment(environment, config)
    connection = await RpcConnection.open(environment, host, port, "test")
    try:
        yield connection
    finally:
        connection.close()


def client_settings(user, **more):
    return {
        "bootstrap.servers": "b1:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"p-{user}",
        **more,
    }


def acl(user, operation, resource, name=None, permission=ALLOW, pattern=LITERAL):
    return AclCreation(
        resource_type=int(resource),
        resource_name=name or NAMES[resource],
        resource_pattern_type=pattern,
        principal=f"User:{user}",
        host="*",
        operation=int(operation),
        permission_type=permission,
    )


async def allow(connection, cluster, *entries):
    """Adds entries, and waits until all brokers know them."""
    response = await connection.request(CreateAclsRequest(creations=list(entries)), timeout_ms=10_000)
    assert [each.error_code for each in response.results] == [0] * len(entries)
    wanted = {(each.principal, each.operation, each.resource_name) for each in entries}

    def known(broker):
        held = {(e.principal, e.operation, e.resource_name) for e in broker.metadata.image.acls.values()}
        return wanted <= held

    await cluster.until(lambda: all(map(known, cluster.running.values())))


async def forget_all(connection, cluster):
    everything = DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    await connection.request(DeleteAclsRequest(filters=[everything]), timeout_ms=10_000)
    await cluster.until(lambda: all(not broker.metadata.image.acls for broker in cluster.running.values()))


def codes(struct):
    """Returns all error codes of a response."""
    found = set()
    for name, spec in struct.__fields__.items():
        value = getattr(struct, name)
        if name.endswith("error_code"):
            found.add(value)
        elif spec.is_array and value:
            found |= {code for each in value if isinstance(each, Struct) for code in codes(each)}
    return found


TOPIC_LISTS = ("topic_names", "subscribed_topic_names", "source_topics", "repartition_sink_topics")


def named(struct):
    """Returns a request that names the resources of ``NAMES``, whatever its fields are."""
    for name, spec in struct.__fields__.items():
        value = getattr(struct, name)
        if isinstance(value, str):
            if name in ("name", "topic", "topic_name", "resource_name"):
                setattr(struct, name, "t")
            elif name in ("group_id", "key"):
                setattr(struct, name, "g")
            elif "transactional_id" in name and "pattern" not in name:
                setattr(struct, name, "x")
        elif spec.is_array and value:
            if spec.struct is not None:
                setattr(struct, name, [named(each) for each in value][:1])
            elif isinstance(value[0], str):
                setattr(struct, name, ["x" if name == "transactional_ids" else "t" if name in TOPIC_LISTS else "g"])
        elif isinstance(value, Struct):
            named(value)
    for name, value in {"key_type": 0, "resource_type": 2, "replica_id": -1, "timeout_ms": 5_000}.items():
        if name in struct.__fields__:
            setattr(struct, name, value)
    return struct


def is_filled(struct, version):
    """Whether no array of a request is empty, at any depth."""
    arrays = [getattr(struct, key) for key, spec in fields_in(type(struct), version) if spec.is_array]
    return all(arrays) and all(
        is_filled(each, version) for array in arrays for each in array if isinstance(each, Struct)
    )


QUIET = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
}
"""APIs that need no permission."""
FILTERED = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}
"""Never refused: the answer leaves out what may not be seen."""
DISRUPTIVE = {
    ApiKey.UNREGISTER_BROKER,
    ApiKey.REMOVE_RAFT_VOTER,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.UPDATE_FEATURES,
    ApiKey.DELETE_ACLS,
    ApiKey.CREATE_ACLS,
    ApiKey.JOIN_GROUP,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
}
"""With the right these would change the cluster of the other cases, or wait: only their refusals are sent."""
OF_TOKENS = {key for key in ApiKey if key.name.endswith("DELEGATION_TOKEN")}
"""``test_delegation_tokens`` tries them: their rights depend on the owner of a token."""
OF_SHARES = {ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE}
"""``test_share_groups`` tries them: their answers depend on a session."""
APART = QUIET | FILTERED | OF_TOKENS | OF_SHARES
MATRIX = [api for api in BASE_APIS if api.handle is not None and api.key not in APART]


BY_NAME = {
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.METADATA: 9,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
}
"""The last versions that name topics, and that clients send."""


def request_for(api):
    """Returns a sampled request with at least one entry, and its version."""
    version = BY_NAME.get(api.key, api.last_version)
    for seed in range(300):
        request = named(Sampler(seed).message(APIS[api.key].request, version))
        if is_filled(request, version):
            if api.key is ApiKey.DESCRIBE_TOPIC_PARTITIONS:
                request.cursor = None
            return request, version
    raise AssertionError(f"no sample of {api.key.name} names anything")


EXPECTED = ((None, True), ("alice", True), ("bob", False), ("carol", True), ("root", False))


@pytest.mark.parametrize("part", range(4))
def test_matrix_of_apis_and_principals(part):
    """An anonymous client and users without an ACL or with a DENY are refused; an allowed or super user is not.

    Requests that only brokers send are tried at the listener of brokers; others do not serve them.
    """

    async def scenario(cluster):
        async with connected(cluster, "root") as root:
            for api in MATRIX[part::4]:
                request, version = request_for(api)
                needs = api.rules.needs
                permits = [acl("bob", *need) for need in needs] + [acl("carol", *need) for need in needs]
                await allow(root, cluster, *permits, *(acl("carol", *need, permission=DENY) for need in needs))
                is_for_clients = Listeners.CLIENT in api.rules.listeners
                for user, is_refused in EXPECTED:
                    if not is_refused and api.key in DISRUPTIVE:
                        continue
                    if user is None and not is_for_clients:
                        with pytest.raises(ConnectionError):
                            async with connected(cluster, user) as connection:
                                await connection.request(request, version, timeout_ms=40_000)
                        continue
                    async with connected(cluster, user, port=9092 if is_for_clients else 9094) as connection:
                        response = await connection.request(request, version, timeout_ms=40_000)
                    refused = bool(codes(response) & DENIED)
                    assert refused is is_refused, (api.key.name, user, response)
                await forget_all(root, cluster)

    run_secured(scenario)


def test_share_groups():
    """A share session needs READ on the group, and on each topic at each fetch, also when the right is taken away.

    A fetch that waits may wait for minutes: it answers by the rights at its end.
    """

    async def scenario(cluster):
        async with connected(cluster, "root") as root, connected(cluster, "bob") as bob:
            await root.request(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), timeout_ms=10_000)
            await cluster.leader("t")
            topic_id = cluster.running[1].metadata.image.topics_by_name["t"].topic_id

            def request(epoch, wait_ms=50):
                part = share_fetch.FetchPartition(partition_index=0)
                topic = share_fetch.FetchTopic(topic_id=topic_id, partitions=[part])
                return share_fetch.ShareFetchRequest(
                    group_id="g",
                    member_id="m",
                    share_session_epoch=epoch,
                    max_wait_ms=wait_ms,
                    max_records=10,
                    topics=[topic] if epoch == 0 else [],
                )

            async def fetched(epoch):
                response = await bob.request(request(epoch), timeout_ms=40_000)
                return codes(response) & DENIED

            for broker in cluster.running.values():
                broker.context.share_partitions.persister = MemoryPersister()
            assert await fetched(0) == {ErrorCode.GROUP_AUTHORIZATION_FAILED}
            refused = await bob.request(ShareAcknowledgeRequest(group_id="g", member_id="m", share_session_epoch=1))
            assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
            await allow(root, cluster, acl("bob", AclOperation.READ, AclResource.GROUP))
            assert await fetched(0) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            await allow(root, cluster, acl("bob", AclOperation.READ, AclResource.TOPIC))
            assert await fetched(1) == set()
            late = []
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def fetch_late():
                    late.append(await bob.request(request(2, wait_ms=20_000), timeout_ms=40_000))

                await trio.sleep(1)
                await allow(root, cluster, acl("bob", AclOperation.READ, AclResource.TOPIC, permission=DENY))
                assert await produce(root) == 0
            (part,) = late[0].responses[0].partitions
            assert (part.error_code, bytes(part.records)) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")
            assert await fetched(3) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}

    run_secured(scenario)


async def produce(connection, topic="t", acks=1):
    part = PartitionProduceData(index=0, records=batch(b"v"))
    request = ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[part])]
    )
    response = await connection.request(request, 12, timeout_ms=10_000)
    return response.responses[0].partition_responses[0].error_code


async def fetch(connection, topic="t", replica_id=-1, wait_ms=0):
    request = FetchRequest(
        replica_id=replica_id,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])],
    )
    response = await connection.request(request, 12, timeout_ms=10_000)
    return response.error_code or response.responses[0].partitions[0].error_code


async def make_topic(connection, cluster, name="t"):
    topics = [MetadataRequestTopic(name=name)]
    await connection.request(MetadataRequest(topics=topics, allow_auto_topic_creation=True), 12, timeout_ms=10_000)
    await cluster.leader(name)


FAILED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def records_follow_changes(cluster):
    async with connected(cluster, "root") as root, connected(cluster, "alice") as alice:
        await make_topic(root, cluster, "t-1")
        assert (await produce(alice, "t-1"), await fetch(alice, "t-1")) == (FAILED, FAILED)
        await allow(root, cluster, acl("alice", AclOperation.WRITE, AclResource.TOPIC, "t-", pattern=PREFIXED))
        assert (await produce(alice, "t-1"), await fetch(alice, "t-1")) == (0, FAILED)
        await allow(root, cluster, acl("alice", AclOperation.READ, AclResource.TOPIC, "t-1"))
        assert (await produce(alice, "t-1"), await fetch(alice, "t-1")) == (0, 0)
        await allow(root, cluster, acl("alice", 2, AclResource.TOPIC, "t-", permission=DENY, pattern=PREFIXED))
        assert (await produce(alice, "t-1"), await fetch(alice, "t-1")) == (FAILED, FAILED)
        await forget_all(root, cluster)
        assert (await produce(alice, "t-1"), await fetch(alice, "t-1")) == (FAILED, FAILED)


def test_records_follow_changes_of_acls():
    """One connection gains and loses rights with the ACLs, without a new connection."""
    run_secured(records_follow_changes)


@pytest.mark.parametrize("bug", ["produce is not checked", "fetch is not checked", "rights are not refreshed"])
def test_planted_bugs_are_noticed(bug, monkeypatch):
    rights = BrokerConnection._rights
    if bug == "produce is not checked":
        monkeypatch.setattr(produce_module, "permitted", lambda request, version, permissions: (request, []))
    elif bug == "fetch is not checked":
        check_produce_only = lambda self: None if "_fetch" in caller() else rights(self)  # noqa: E731
        monkeypatch.setattr(BrokerConnection, "_rights", check_produce_only)
        fetch = BrokerConnection._fetch

        def forgetful(self, *arguments):
            self._permissions = None  # else those of an earlier request are used without a call
            return fetch(self, *arguments)

        monkeypatch.setattr(BrokerConnection, "_fetch", forgetful)
    else:
        monkeypatch.setattr("moldau_quorum.authorization.authorizer.Permissions.refresh", lambda self: None)
    with pytest.raises(AssertionError, match="29"):
        run_secured(records_follow_changes)


def caller():
    import sys

    return sys._getframe(2).f_code.co_name


def test_requests_without_an_answer_end_the_connection():
    async def scenario(cluster):
        async with connected(cluster, "root") as root, connected(cluster, "alice") as alice:
            await make_topic(root, cluster)
            with pytest.raises((OSError, trio.TooSlowError)):
                await produce(alice, acks=0)
            assert cluster.replica(1, "t").log.log_end_offset == 0

    run_secured(scenario)


def test_rights_that_change_while_records_are_checked():
    """Checks are numbered among the topics that may be written: with others they would be those of other records."""

    async def scenario(cluster):
        async with connected(cluster, "root") as root:
            await make_topic(root, cluster, "a")
            await make_topic(root, cluster, "b")
            await allow(root, cluster, acl("alice", AclOperation.WRITE, AclResource.TOPIC, "*"))
            context = cluster.running[1].context
            services = listener_services(context, "OUTSIDE", api_table(BASE_APIS))
            who = Identity(principal="User:alice", host="h", listener_name="OUTSIDE", security_protocol="x")
            handler = BrokerConnection(services, SimpleNamespace(peer_address=("h", 1)), Peer(who))
            records = encode_batch([(1, None, b"v" * 1000, ())] * 5_000, compression=Compression.GZIP)
            data = [
                TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=records)])
                for name in ("a", "b")
            ]
            sent = frame(ProduceRequest(acks=1, timeout_ms=1000, topic_data=data), 12)
            checked = handler.handle(memoryview(sent)[4:])
            assert isinstance(checked, Preparation)
            await checked.prepare()
            await allow(root, cluster, acl("alice", AclOperation.WRITE, AclResource.TOPIC, "a", permission=DENY))
            with pytest.raises(CloseConnection, match="rights of the client changed"):
                checked.handle()
            handler.flush()
            assert [cluster.replica(1, name).log.log_end_offset for name in ("a", "b")] == [0, 0]

    run_secured(scenario)


def test_only_nodes_speak_as_nodes(caplog):
    """A client with all rights but CLUSTER_ACTION cannot replicate, write markers, forward, or read the metadata."""

    caplog.set_level(logging.INFO, "moldau.authorizer")

    async def scenario(cluster):
        async with connected(cluster, "root") as root:
            await make_topic(root, cluster)
            rights = [op for op in AclOperation if op is not AclOperation.CLUSTER_ACTION]
            topics = [acl("alice", op, AclResource.TOPIC, "*") for op in rights]
            await allow(root, cluster, *topics)
            for port in (9092, 9094):
                async with connected(cluster, "alice", port=port) as alice:
                    assert await fetch(alice, replica_id=1) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            async with connected(cluster, "alice", "c101", 9093) as alice:
                for key in (
                    ApiKey.BROKER_REGISTRATION,
                    ApiKey.BROKER_HEARTBEAT,
                    ApiKey.ALTER_PARTITION,
                    ApiKey.ALLOCATE_PRODUCER_IDS,
                    ApiKey.ASSIGN_REPLICAS_TO_DIRS,
                    ApiKey.UPDATE_RAFT_VOTER,
                ):
                    request = Sampler(3).message(APIS[key].request, APIS[key].versions.last)
                    response = await alice.request(request, timeout_ms=10_000)
                    assert codes(response) & DENIED, key.name
                envelope = EnvelopeRequest(request_data=b"x", request_principal=None, client_host_address=b"")
                response = await alice.request(envelope, timeout_ms=10_000)
                assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            for private in (20_000, 20_100, 20_101):
                async with connected(cluster, "alice", "c101", 9093) as alice:
                    with pytest.raises(OSError, match=r"clos|end"):
                        await alice.request_raw(private, 0, b"\0" * 40, timeout_ms=2_000)

    run_secured(scenario)
    private = [line for line in caplog.messages if 'api=""' in line and "operation=CLUSTER_ACTION" in line]
    assert len(private) == 3


def test_controllers_check_forwarded_requests(monkeypatch):
    """A broker that forgets its check cannot do for a client what the client may not."""
    monkeypatch.setattr(BrokerConnection, "_judge", lambda self, request, version: None)

    async def scenario(cluster):
        async with connected(cluster, "alice") as alice:
            response = await alice.request(
                CreateAclsRequest(creations=[acl("alice", 2, AclResource.TOPIC)]), timeout_ms=9_000
            )
            assert codes(response) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
            assert not cluster.image().acls

    run_secured(scenario)


def test_refusals_are_logged_and_bounded(caplog):
    caplog.set_level(logging.INFO, "moldau.authorizer")

    async def scenario(cluster):
        async with connected(cluster, "root") as root, connected(cluster, "alice") as alice:
            await make_topic(root, cluster)
            for _ in range(300):
                await fetch(alice)
            await trio.sleep(2)
            await fetch(alice)

    run_secured(scenario)
    lines = [line for line in caplog.messages if line.startswith("denied")]
    assert "principal=User:alice operation=READ resource=TOPIC:t host=" in lines[0]
    assert "api=FETCH" in lines[0]
    assert len(lines) <= 201
    assert [line for line in caplog.messages if line.startswith("audit-lines-left-out")]


def test_without_an_authorizer_acls_are_refused():
    """An ACL that nothing enforces would be a false promise."""

    async def scenario(cluster):
        async with connected(cluster, "alice") as alice:
            response = await alice.request(
                CreateAclsRequest(creations=[acl("alice", 2, AclResource.TOPIC)]), timeout_ms=9_000
            )
            assert codes(response) == {ErrorCode.SECURITY_DISABLED}

    run_secured(scenario, **{"authorizer.class.name": "", "super.users": ""})


def test_clients_work_with_their_rights_alone_through_failures():
    """A simulated run with the authorizer on: three brokers, a killed leader, and clients with the least rights."""

    async def scenario(cluster):
        async with connected(cluster, "root") as root:
            await make_topic(root, cluster)
            await allow(
                root,
                cluster,
                acl("alice", AclOperation.WRITE, AclResource.TOPIC),
                acl("bob", AclOperation.READ, AclResource.TOPIC),
                acl("bob", AclOperation.READ, AclResource.GROUP),
            )
        bootstrap = {"bootstrap.servers": "b1:9092,b2:9092,b3:9092"}
        async with Producer(client_settings("alice", **bootstrap), environment=cluster.client_environment) as producer:
            for number in range(30):
                if number == 10:
                    cluster.kill(await cluster.leader("t"))
                await (await producer.send("t", b"%d" % number))
        more = {"group.id": "g", "auto.offset.reset": "earliest", **bootstrap}
        found = []
        async with Consumer(client_settings("bob", **more), environment=cluster.client_environment) as consumer:
            consumer.subscribe(["t"])
            with trio.fail_after(60):
                while len(found) < 30:
                    for part in await consumer.poll(200):
                        found += [bytes(record.value) for record in part.records]
            await consumer.commit()
        assert found == [b"%d" % number for number in range(30)]
        async with Producer(client_settings("bob", **bootstrap), environment=cluster.client_environment) as producer:
            with pytest.raises(KafkaError) as raised:
                await (await producer.send("t", b"no"))
        assert raised.value.code in DENIED

    more = {"brokers": 3, "controllers": 3, "default.replication.factor": "3", "min.insync.replicas": "2"}
    run_secured(scenario, seed=7, **more)


def test_a_refused_group_does_not_keep_the_others():
    """One call is about several groups: the coordinator of one of them is not shown to the user."""

    async def scenario(cluster):
        environment = cluster.client_environment
        async with connected(cluster, "root") as root:
            await allow(root, cluster, acl("alice", AclOperation.DELETE, AclResource.GROUP))
        async with Admin(client_settings("root"), environment=environment) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])
            for group in ("g", "hidden"):
                await admin.alter_group_offsets(group, {("t", 0): 0})
            async with Admin(client_settings("alice"), environment=environment) as alice:
                with pytest.raises(AdminError) as undescribed:
                    await alice.describe_groups(["hidden", "g"])
                with pytest.raises(AdminError) as refused:
                    await alice.delete_groups(["hidden", "g"])
            for problem in (undescribed.value, refused.value):
                failures = {name: error.code for name, error in problem.failures.items()}
                assert failures == {"hidden": ErrorCode.GROUP_AUTHORIZATION_FAILED}
            assert list(undescribed.value.results) == ["g"]
            assert [each.group_id for each in await admin.list_groups()] == ["hidden"]

    run_secured(scenario)
