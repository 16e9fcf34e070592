"""Goal: a request that waits is answered by the rights of the moment of its answer, in a fetch session too.

Method: the handler of one connection, without a socket, on a simulated broker whose authorizer is on. While a fetch
waits, its client names a further topic in the same session, or an administrator takes a right away.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from moldau.protocol.access import AclOperation, AclResource
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.sasl.core.identity import Identity, Peer
from moldau_broker.server.data_path.connection import BrokerConnection, listener_services
from moldau_broker.server.handlers.apis import BASE_APIS, api_table
from support.cluster.broker_cluster import batch, decode_response, frame, run_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
SETTINGS: dict[str, Any] = {
    "authorizer.class.name": "StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # nodes and the administrator of this test do not log in
}
BY_NAME, BY_ID = 12, 17
ALL_OPERATIONS = 2
DENY, ALLOW = 2, 3
Answered = dict[str, tuple[int, int]]
"""Error code and bytes of records, by topic."""


class Reader:
    """One connection of alice's consumer."""

    def __init__(self, cluster: Any, version: int) -> None:
        services = listener_services(cluster.running[1].context, "PLAINTEXT", api_table(BASE_APIS))
        connection: Any = SimpleNamespace(peer_address=("client", 1))
        alice = Identity(principal="User:alice", host="client", listener_name="PLAINTEXT", security_protocol="x")
        self.handler = BrokerConnection(services, connection, Peer(alice))
        self.topics = cluster.image().topics_by_name
        self.version = version
        self.session_id = self.epoch = 0

    def send(self, offsets: Mapping[str, int], *, min_bytes: int = 1, max_wait_ms: int = 60_000) -> Any:
        """Sends a fetch of the session; returns its answer, or the operation that waits."""
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[
                FetchTopic(
                    topic=name,
                    topic_id=self.topics[name].topic_id,
                    partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)],
                )
                for name, offset in offsets.items()
            ],
        )
        self.epoch += 1
        return self.handler.handle(memoryview(bytearray(frame(request, self.version)[4:])))

    def read(self, parts: Sequence[Any]) -> Answered:
        """Reads an answer."""
        sizes = [part if isinstance(part, bytes | memoryview) else bytes(part.count) for part in parts]
        _, response = decode_response(FetchResponse, self.version, memoryview(b"".join(sizes))[4:])
        assert response.error_code == 0
        self.session_id = response.session_id
        names = {topic.topic_id: name for name, topic in self.topics.items()}
        return {
            topic.topic or names[topic.topic_id]: (part.error_code, len(part.records or b""))
            for topic in response.responses
            for part in topic.partitions
        }


async def permit(
    cluster: Any,
    name: str,
    permission: int = ALLOW,
    operation: int = AclOperation.READ,
    resource: int = AclResource.TOPIC,
) -> None:
    """Permits or forbids alice to use a topic or another resource, and waits until the broker knows it."""
    entry = AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=3,
        principal="User:alice",
        host="*",
        operation=operation,
        permission_type=permission,
    )
    before = len(cluster.running[1].metadata.image.acls)
    connection = await RpcConnection.open(cluster.client_environment, "b1", 9092, "test")
    try:
        await connection.request(CreateAclsRequest(creations=[entry]), timeout_ms=10_000)
    finally:
        connection.close()
    await cluster.until(lambda: len(cluster.running[1].metadata.image.acls) > before)


async def reader_of(cluster: Any, version: int) -> Reader:
    """Makes the topics ``mine`` and ``secret`` with a record each, of which alice may read the former."""
    for name in ("mine", "secret"):
        await cluster.client(1).create_topic(name)
        await cluster.leader(name)
        await cluster.client(1).produce(name, batch(b"v"))
    await permit(cluster, "mine")
    return Reader(cluster, version)


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_a_waiting_fetch_reads_no_forbidden_topic(version: int) -> None:
    """The second request of a session names a topic while the first one waits: that is planned again at its end."""

    async def scenario(cluster: Any) -> None:
        reader = await reader_of(cluster, version)
        assert reader.read(reader.send({"mine": 0})).keys() == {"mine"}
        waiting = reader.send({"mine": 1})
        refused = reader.read(reader.send({"secret": 0}))
        assert refused["secret"] == (DENIED, 0)
        assert reader.read(waiting.answer_now()).get("secret", (DENIED, 0)) == (DENIED, 0)

    run_cluster(scenario, brokers=1, controllers=1, **SETTINGS)


@pytest.mark.parametrize("opens", [True, False])
def test_a_right_taken_away_ends_waiting_fetches(opens: bool) -> None:
    """Records that were written after a right was taken away are not sent, also to a fetch that waited before."""

    async def scenario(cluster: Any) -> None:
        reader = await reader_of(cluster, BY_ID)
        if not opens:
            assert reader.read(reader.send({"mine": 0})).keys() == {"mine"}
        waiting = reader.send({"mine": 1})
        await permit(cluster, "mine", DENY)
        await cluster.client(1).produce("mine", batch(b"later"))
        assert reader.read(waiting.answer_now()) == {"mine": (DENIED, 0)}

    run_cluster(scenario, brokers=1, controllers=1, **SETTINGS)


def test_a_request_is_judged_when_it_is_carried_out() -> None:
    """Behind a fetch that waits, a request may be carried out minutes after it has come."""

    async def scenario(cluster: Any) -> None:
        reader = await reader_of(cluster, BY_ID)
        request = MetadataRequest(topics=[MetadataRequestTopic(name="mine")])
        body = memoryview(bytearray(frame(request, 12)[4:]))
        answers: list[Any] = [reader.handler.handle(body) for _ in range(2)]

        async def outcome(answer: Any) -> int:
            data = b"".join(map(bytes, await answer.wait()))
            _, response = decode_response(MetadataResponse, 12, memoryview(data)[4:])
            code: int = response.topics[0].error_code
            return code

        assert await outcome(answers[0]) == ErrorCode.NONE
        await permit(cluster, "mine", DENY, ALL_OPERATIONS)
        assert await outcome(answers[1]) == DENIED

    run_cluster(scenario, brokers=1, controllers=1, **SETTINGS)


def test_a_topic_forbidden_meanwhile_is_named_in_the_answer() -> None:
    """Without its error the client would wait for its answer, or take it for a success."""

    async def scenario(cluster: Any) -> None:
        reader = await reader_of(cluster, BY_ID)
        await permit(cluster, "secret")
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in ("mine", "secret")])
        waiting: Any = reader.handler.handle(memoryview(bytearray(frame(request, 12)[4:])))
        await permit(cluster, "secret", DENY, ALL_OPERATIONS)
        data = b"".join(map(bytes, await waiting.wait()))
        _, response = decode_response(MetadataResponse, 12, memoryview(data)[4:])
        assert {topic.name: topic.error_code for topic in response.topics} == {"mine": 0, "secret": DENIED}

    run_cluster(scenario, brokers=1, controllers=1, **SETTINGS)


def test_records_of_a_transaction_need_the_rights_of_their_turn() -> None:
    """They wait for the coordinator's answer about their transaction, and behind earlier requests."""

    async def scenario(cluster: Any) -> None:
        reader = await reader_of(cluster, BY_ID)
        await permit(cluster, "mine", operation=AclOperation.WRITE)
        await permit(cluster, "x", operation=AclOperation.WRITE, resource=AclResource.TRANSACTIONAL_ID)
        records = batch(b"v", producer_id=900, producer_epoch=0, base_sequence=0, is_transactional=True)
        part = PartitionProduceData(index=0, records=records)
        topics = [TopicProduceData(name="mine", partition_data=[part])]
        request = ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1_000, topic_data=topics)
        waiting: Any = reader.handler.handle(memoryview(bytearray(frame(request, 11)[4:])))
        await permit(cluster, "mine", DENY, AclOperation.WRITE)
        data = b"".join(map(bytes, await waiting.wait()))
        _, response = decode_response(ProduceResponse, 11, memoryview(data)[4:])
        assert response.responses[0].partition_responses[0].error_code == DENIED

    run_cluster(scenario, brokers=1, controllers=1, **SETTINGS)
