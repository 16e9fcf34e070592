"""Goal: requests that name impossible things are refused before they cost anything; only brokers read as followers.

Method: whole brokers on virtual time; hand-written frames whose arrays are larger than any honest client's, and fetches
that claim a replica id.
"""

from __future__ import annotations

import struct

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import decode_response
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from moldau_broker.server.data_path import connection
from moldau_broker.server.data_path.connection import ENTRIES_FREE
from support.cluster.broker_cluster import BROKER_PORT, batch, frame, read_frame, run_cluster, values_of

NONE = ErrorCode.NONE


def fetch_frame(entries: int, version: int = 11, *, announced: int | None = None) -> bytes:
    """A fetch of many partitions of one topic; ``announced`` replaces their number."""
    wanted = [FetchPartition(partition=0, partition_max_bytes=1000)] * entries
    written = frame(
        FetchRequest(max_wait_ms=0, max_bytes=1000, topics=[FetchTopic(topic="t", partitions=wanted)]), version
    )
    if announced is None:
        return written
    count = struct.pack(">i", entries)
    return written.replace(b"\x00\x01t" + count, b"\x00\x01t" + struct.pack(">i", announced))


def produce_frame(entries: int) -> bytes:
    """A Produce request of version 9 with many partitions without records, six bytes each."""
    count = entries + 1
    varint = bytes((count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14))
    partition = struct.pack(">i", 0) + b"\x00\x00"
    body = b"\x00" + struct.pack(">hi", -1, 1000) + b"\x02\x02t" + varint + partition * entries + b"\x00\x00"
    request = struct.pack(">hhih", 0, 9, 7, -1) + b"\x00" + body
    return struct.pack(">i", len(request)) + request


async def answer_to(cluster, request: bytes) -> memoryview | None:
    """Returns the answer without its size; None if the connection was closed instead."""
    client = await cluster.client(1).raw()
    await client.send_all([request])
    answer = await read_frame(client)
    client.close()
    return answer


def test_a_fetch_may_name_all_partitions_and_some_more() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=3)
        await cluster.leader("t")
        assert cluster.running[1].metadata.partition_count() == 3
        allowed = ENTRIES_FREE + 6 - 1  # the topic counts as well
        _, served = decode_response(FetchResponse, 11, await answer_to(cluster, fetch_frame(allowed)))
        assert (served.error_code, len(served.responses[0].partitions)) == (NONE, allowed)
        _, refused = decode_response(FetchResponse, 11, await answer_to(cluster, fetch_frame(allowed + 1)))
        assert (refused.error_code, refused.responses) == (ErrorCode.INVALID_REQUEST, ())
        assert await answer_to(cluster, fetch_frame(allowed + 1, 5)) is None, "that version cannot say it"
        assert cluster.running[1].metadata.partition_count() == 3
        await cluster.client(1).create_topic("u", partitions=4)
        await cluster.until(lambda: cluster.running[1].metadata.partition_count() == 7)

    run_cluster(scenario)


@pytest.mark.parametrize("announced", [1_000_000, 3_000_000])
def test_too_large_announced_arrays_are_refused_unread(monkeypatch, announced: int) -> None:
    """A hundred megabytes of partitions follow, and none of them is read."""
    looked_at = []
    made = connection.FetchPartition

    def noted(*fields):
        looked_at.append(fields)
        return made(*fields)

    monkeypatch.setattr(connection, "FetchPartition", noted)

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        await client.produce("t", batch(b"x"))
        answer = await answer_to(cluster, fetch_frame(20_000, announced=announced))
        assert decode_response(FetchResponse, 11, answer)[1].error_code == ErrorCode.INVALID_REQUEST
        assert looked_at == []
        assert values_of((await client.fetch("t")).records) == [b"x"]
        assert len(looked_at) == 1

    run_cluster(scenario)


def test_a_produce_of_impossible_partitions_ends_its_connection() -> None:
    """A Produce with more partitions than can exist ends its connection."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        assert await answer_to(cluster, produce_frame(ENTRIES_FREE - 100)) is not None
        assert await answer_to(cluster, produce_frame(2_000_000 // 6)) is None
        assert (await client.produce("t", batch(b"x"))).error_code == NONE

    run_cluster(scenario)


async def fetch_as(
    cluster, to: int, replica_id: int, version: int, epoch: int = -1, port: int = BROKER_PORT
) -> FetchResponse | None:
    """Returns the error code of a fetch with that replica id; None if the connection was closed."""
    fields = {"replica_id": replica_id}
    if version >= 15:
        fields = {"replica_state": ReplicaState(replica_id=replica_id, replica_epoch=epoch)}
    topic_id = cluster.image().topics_by_name.get("t").topic_id
    topic = {"topic_id": topic_id} if version >= 13 else {"topic": "t"}
    wanted = FetchTopic(**topic, partitions=[FetchPartition(partition=0, partition_max_bytes=1000)])
    request = FetchRequest(max_wait_ms=0, max_bytes=1000, session_epoch=0, topics=[wanted], **fields)
    client = await cluster.client_environment.network.connect(f"b{to}", port)
    await client.send_all([frame(request, version)])
    answer = await read_frame(client)
    client.close()
    return None if answer is None else decode_response(FetchResponse, version, answer)[1]


def test_only_a_registered_broker_fetches_as_a_follower() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=2)
        leader = await cluster.leader("t")
        follower = next(b for b in cluster.partition_image("t").replicas if b != leader)
        neither = next(b for b in cluster.broker_ids if b not in (leader, follower))
        assert (await cluster.client(leader).produce("t", batch(b"x"))).error_code == NONE
        sessions = cluster.running[leader].context.sessions
        before = len(sessions)
        for stranger in (4, 101, leader):
            for version in (12, 17):
                refused = await fetch_as(cluster, leader, stranger, version)
                assert (refused.error_code, refused.responses) == (ErrorCode.BROKER_ID_NOT_REGISTERED, ())
            assert await fetch_as(cluster, leader, stranger, 6) is None, "that version cannot say it"
        epoch = cluster.image().brokers[follower].broker_epoch
        stale = await fetch_as(cluster, leader, follower, 17, epoch - 1)
        assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
        assert len(sessions) == before, "none of them got a session"
        # A broker that does not replicate the partition gets an error and no record.
        other = await fetch_as(cluster, leader, neither, 12)
        (found,) = other.responses[0].partitions
        assert (found.error_code, bytes(found.records or b"")) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
        # Fetches of the present epoch, and of one that this leader does not know yet, are served.
        for known in (epoch, epoch + 1, -1):
            served = await fetch_as(cluster, leader, follower, 17, known)
            assert (served.error_code, values_of(served.responses[0].partitions[0].records)) == (NONE, [b"x"])

    run_cluster(scenario, brokers=3)


def test_followers_fetch_where_brokers_ask_each_other() -> None:
    """If brokers have a listener of their own, no fetch at another listener counts as a follower's."""
    clients_port = 9192

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=2)
        leader = await cluster.leader("t")
        follower = next(b for b in cluster.broker_ids if b != leader)
        assert (await cluster.client(leader).produce("t", batch(b"x"))).error_code == NONE
        refused = await fetch_as(cluster, leader, follower, 12, port=clients_port)
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        served = await fetch_as(cluster, leader, follower, 12)
        assert served.error_code == NONE
        consumer = await fetch_as(cluster, leader, -1, 12, port=clients_port)
        assert values_of(consumer.responses[0].partitions[0].records) == [b"x"]

    run_cluster(
        scenario,
        brokers=2,
        own_listeners={
            broker_id: f"PLAINTEXT://b{broker_id}:{BROKER_PORT},OUT://b{broker_id}:{clients_port}"
            for broker_id in (1, 2)
        },
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OUT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        inter_broker_listener_name="PLAINTEXT",
    )
