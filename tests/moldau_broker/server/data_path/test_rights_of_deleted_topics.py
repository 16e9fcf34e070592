"""Goal: a topic that was deleted is closed to clients without a right to it, though its logs are still there.

Method: a simulated broker whose metadata lack the topic already, as between a deletion and the end of its replicas; a
client without ACLs asks on the path of real connections.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.runtime.sasl.core.identity import Identity, Peer
from moldau_broker.server.data_path.connection import BrokerConnection, listener_services
from moldau_broker.server.handlers.apis import BASE_APIS, api_table
from moldau_quorum.metadata.records import RemoveTopicRecord
from support.cluster.broker_cluster import batch, decode_response, frame, run_cluster

SETTINGS: dict[str, Any] = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:ANONYMOUS"}
VERSION = 17
ALICE = Identity(principal="User:alice", host="client", listener_name="PLAINTEXT", security_protocol="PLAINTEXT")


def answer_of(handler: BrokerConnection, request: FetchRequest) -> tuple[int, int]:
    """Returns the error of the only partition, and how many bytes of records came."""
    parts: Any = handler.handle(memoryview(bytearray(frame(request, VERSION)[4:])))
    if not isinstance(parts, list):
        parts = parts.answer_now()
    raw = b"".join(part if isinstance(part, bytes | memoryview) else bytes(part.count) for part in parts)
    _, response = decode_response(FetchResponse, VERSION, memoryview(raw)[4:])
    part = response.responses[0].partitions[0]
    return part.error_code, len(part.records or b"")


def test_a_deleted_topic_is_not_read_by_its_id() -> None:
    """Its replicas end one after the other, with checkpoints between them: any client with the id could read it."""
    seen = []

    async def scenario(cluster: Any) -> None:
        client = cluster.client(1)
        await client.create_topic("secret")
        await cluster.leader("secret")
        await client.produce("secret", batch(b"v" * 500))
        broker = cluster.running[1]
        topic_id = broker.metadata.image.topics_by_name["secret"].topic_id
        connection: Any = SimpleNamespace(peer_address=("client", 1))
        services = listener_services(broker.context, "PLAINTEXT", api_table(BASE_APIS))
        handler = BrokerConnection(services, connection, Peer(ALICE))
        part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[FetchTopic(topic="", topic_id=topic_id, partitions=[part])],
        )
        seen.append(answer_of(handler, request))
        before = broker.metadata.image
        try:
            broker.metadata.image = before.apply([RemoveTopicRecord(topic_id=topic_id)], offset=1, epoch=1).image
            seen.append(answer_of(handler, request))
        finally:
            broker.metadata.image = before

    run_cluster(scenario, brokers=1, controllers=1, **SETTINGS)
    assert seen == [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0), (ErrorCode.UNKNOWN_TOPIC_ID, 0)]
