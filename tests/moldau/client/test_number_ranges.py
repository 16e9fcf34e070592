"""Goal: a number that no request can carry is refused with the call, the argument, the value and the range.

Method: each call of the admin client with an integer gets one beyond its field, on virtual time; none sends a request.
"""

import pytest

from moldau.admin import NewTopic
from moldau.cluster.committed import CommittedOffset
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from support.client.admin_stories import simulate

INT16, INT32, INT64 = 2**15, 2**31, 2**63
EPOCH = CommittedOffset(offset=1, leader_epoch=INT32)
ENDED = {"producer_id": 1, "producer_epoch": 1, "coordinator_epoch": 1}

CALLS = [
    (lambda a: a.create_topics([NewTopic(name="n", partitions=INT32)]), "create_topics: partitions of n", INT32),
    (lambda a: a.create_topics([NewTopic("n", replication_factor=INT16)]), "replication_factor of n", INT16),
    (lambda a: a.create_topics([NewTopic("n", assignments={0: [INT32]})]), "the brokers of n-0", INT32),
    (lambda a: a.create_topics([NewTopic("n", assignments={INT32: [1]})]), "a partition in assignments of n", INT32),
    (lambda a: a.create_partitions({"t": INT32}), "the count of t", INT32),
    (lambda a: a.create_partitions({"t": 3}, assignments={"t": [[INT32]]}), "the assignment of t", INT32),
    (lambda a: a.delete_records({("t", 0): INT64}), "the offset of t-0", INT64),
    (lambda a: a.delete_records({("t", INT32): 1}), "delete_records: partition", INT32),
    (lambda a: a.list_offsets({("t", 0): INT64}), "the time of t-0", INT64),
    (lambda a: a.alter_group_offsets("g", {("t", 0): INT64}), "alter_group_offsets: offset", INT64),
    (lambda a: a.alter_group_offsets("g", {("t", 0): EPOCH}), "the leader epoch of t-0", INT32),
    (lambda a: a.alter_group_offsets("g", {("t", 0): 1}, retention_ms=INT64), "retention_ms", INT64),
    (lambda a: a.alter_share_group_offsets("g", {("t", 0): INT64}), "alter_share_group_offsets: ", INT64),
    (lambda a: a.alter_streams_group_offsets("g", {("t", 0): INT64}), "offset", INT64),
    (lambda a: a.alter_partition_reassignments({("t", 0): [INT32]}), "the replicas of t-0", INT32),
    (lambda a: a.describe_log_dirs([INT32]), "each of broker_ids", INT32),
    (lambda a: a.alter_replica_log_dirs({("t", 0, INT32): "/d"}), "broker", INT32),
    (lambda a: a.describe_topics(["t"], node_id=INT32), "node_id", INT32),
    (lambda a: a.unregister_broker(INT32), "broker_id", INT32),
    (lambda a: a.add_voter(INT32, "h", 1), "voter_id", INT32),
    (lambda a: a.add_voter(1, "h", 2**16), "add_voter: port", 2**16),
    (lambda a: a.remove_voter(INT32), "voter_id", INT32),
    (lambda a: a.describe_api_versions([INT32]), "each of broker_ids", INT32),
    (lambda a: a.update_features({"metadata.version": INT16}), "the level of metadata.version", INT16),
    (lambda a: a.create_delegation_token(max_lifetime_ms=INT64), "max_lifetime_ms", INT64),
    (lambda a: a.renew_delegation_token("aGk=", period_ms=INT64), "period_ms", INT64),
    (lambda a: a.expire_delegation_token("aGk=", period_ms=INT64), "period_ms", INT64),
    (lambda a: a.list_transactions(producer_ids=[INT64]), "each of producer_ids", INT64),
    (lambda a: a.list_transactions(min_duration_ms=INT64), "min_duration_ms", INT64),
    (lambda a: a.abort_transaction(("t", 0), **ENDED | {"producer_id": INT64}), "producer_id", INT64),
    (lambda a: a.abort_transaction(("t", 0), **ENDED | {"producer_epoch": INT16}), "producer_epoch", INT16),
    (lambda a: a.abort_transaction(("t", 0), **ENDED | {"coordinator_epoch": INT32}), "coordinator_epoch", INT32),
]


def test_calls_refuse_numbers_that_no_request_carries():
    async def scenario(cluster, admin):
        asked = len(cluster.requests)
        for call, name, number in CALLS:
            with pytest.raises(ValueError, match=rf"{name}\b.*2\*\*\d+ - 1") as raised:
                await call(admin)
            assert str(number) in str(raised.value)
        assert len(cluster.requests) == asked

    simulate(scenario, {ApiKey.CREATE_TOPICS: lambda *_: CreateTopicsResponse()})


def test_the_encoder_refuses_what_no_check_has_seen():
    """Calls share the text: it names the request's field, its value and the range."""

    async def scenario(cluster, admin):
        client = admin._requester.client
        with pytest.raises(
            KafkaError, match=r"timeout_ms is 2147483648; it must be between .* and 2147483647"
        ) as raised:
            await client.request_any(CreateTopicsResponse, CreateTopicsRequest(timeout_ms=INT32))
        assert raised.value.code is ErrorCode.INVALID_REQUEST

    simulate(scenario, {ApiKey.CREATE_TOPICS: lambda *_: CreateTopicsResponse()})
