"""Goal: no call of the admin client takes a refusal for a success, or repeats one that will stay.

Method: canned answers of a small cluster on virtual time; the refusals are those that Moldau's brokers would send.
"""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio

from moldau.admin import (
    Acl,
    AclFilter,
    AdminError,
    ConfigAlteration,
    ConfigResource,
    NewTopic,
    QuotaAlteration,
    QuotaEntity,
    ResourceType,
)
from moldau.admin.calls.quorum import Quorum
from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages import alter_user_scram_credentials as scram
from moldau.protocol.messages import create_topics as ct
from moldau.protocol.messages import delete_records as dr
from moldau.protocol.messages import describe_groups as desc
from moldau.protocol.messages import describe_log_dirs as dl
from moldau.protocol.messages import incremental_alter_configs as ia
from moldau.protocol.messages import offset_commit as oc
from moldau.protocol.messages import offset_fetch as of
from moldau.protocol.messages import share_group_describe as sgd
from moldau.protocol.messages import streams_group_describe as stgd
from moldau.protocol.messages.update_features import UpdateFeaturesResponse
from moldau.protocol.refusals import refusal
from moldau.runtime.sasl.core.scram import ITERATIONS_MAX, ITERATIONS_MIN
from support.client.admin_stories import simulate

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TOPIC = ConfigResource(type=ResourceType.TOPIC, name="t")
ACL = Acl(resource="topic", name="t", principal="User:a", operation="read")
QUOTA = QuotaAlteration(entity=QuotaEntity(user="a"), quotas={"producer_byte_rate": 1})

CALLS = {
    ApiKey.CREATE_TOPICS: lambda admin: admin.create_topics([NewTopic(name="n")]),
    ApiKey.DELETE_TOPICS: lambda admin: admin.delete_topics(["t"]),
    ApiKey.CREATE_PARTITIONS: lambda admin: admin.create_partitions({"t": 5}),
    ApiKey.DELETE_RECORDS: lambda admin: admin.delete_records({("t", 0): 5}),
    ApiKey.DESCRIBE_CONFIGS: lambda admin: admin.describe_configs([TOPIC]),
    ApiKey.LIST_CONFIG_RESOURCES: lambda admin: admin.list_config_resources(),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda admin: admin.alter_configs(
        {TOPIC: [ConfigAlteration(name="retention.ms", value="1")]}
    ),
    ApiKey.DESCRIBE_CLUSTER: lambda admin: admin.describe_cluster(),
    ApiKey.UNREGISTER_BROKER: lambda admin: admin.unregister_broker(7),
    ApiKey.DESCRIBE_QUORUM: lambda admin: admin.describe_quorum(),
    ApiKey.ADD_RAFT_VOTER: lambda admin: admin.add_voter(7, "h", 9093),
    ApiKey.REMOVE_RAFT_VOTER: lambda admin: admin.remove_voter(7),
    ApiKey.UPDATE_FEATURES: lambda admin: admin.update_features({"metadata.version": 1}),
    ApiKey.LIST_GROUPS: lambda admin: admin.list_groups(),
    ApiKey.DESCRIBE_GROUPS: lambda admin: admin.describe_groups(["g"]),
    ApiKey.DELETE_GROUPS: lambda admin: admin.delete_groups(["g"]),
    ApiKey.OFFSET_FETCH: lambda admin: admin.list_group_offsets("g"),
    ApiKey.OFFSET_DELETE: lambda admin: admin.delete_group_offsets("g", [("t", 0)]),
    ApiKey.OFFSET_COMMIT: lambda admin: admin.alter_group_offsets("g", {("t", 0): 5}),
    ApiKey.LEAVE_GROUP: lambda admin: admin.remove_group_members("g", ["i"]),
    ApiKey.SHARE_GROUP_DESCRIBE: lambda admin: admin.describe_share_groups(["g"]),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: lambda admin: admin.list_share_group_offsets("g"),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: lambda admin: admin.alter_share_group_offsets("g", {("t", 0): 5}),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: lambda admin: admin.delete_share_group_offsets("g", ["t"]),
    ApiKey.STREAMS_GROUP_DESCRIBE: lambda admin: admin.describe_streams_groups(["g"]),
    ApiKey.ELECT_LEADERS: lambda admin: admin.elect_leaders([("t", 0)]),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda admin: admin.alter_partition_reassignments({("t", 0): [1, 2]}),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda admin: admin.list_partition_reassignments(),
    ApiKey.DESCRIBE_LOG_DIRS: lambda admin: admin.describe_log_dirs([1]),
    ApiKey.ALTER_REPLICA_LOG_DIRS: lambda admin: admin.alter_replica_log_dirs({("t", 0, 1): "/d"}),
    ApiKey.DESCRIBE_ACLS: lambda admin: admin.describe_acls(),
    ApiKey.CREATE_ACLS: lambda admin: admin.create_acls([ACL]),
    ApiKey.DELETE_ACLS: lambda admin: admin.delete_acls(AclFilter(name="t")),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda admin: admin.describe_client_quotas(QuotaEntity()),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda admin: admin.describe_users(["a"]),
    ApiKey.CREATE_DELEGATION_TOKEN: lambda admin: admin.create_delegation_token(),
    ApiKey.RENEW_DELEGATION_TOKEN: lambda admin: admin.renew_delegation_token("aGVsbG8="),
    ApiKey.EXPIRE_DELEGATION_TOKEN: lambda admin: admin.expire_delegation_token("aGVsbG8="),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: lambda admin: admin.describe_delegation_tokens(),
    ApiKey.LIST_TRANSACTIONS: lambda admin: admin.list_transactions(),
    ApiKey.DESCRIBE_TRANSACTIONS: lambda admin: admin.describe_transactions(["x"]),
    ApiKey.DESCRIBE_PRODUCERS: lambda admin: admin.describe_producers(("t", 0)),
    ApiKey.WRITE_TXN_MARKERS: lambda admin: admin.abort_transaction(
        ("t", 0), producer_id=1, producer_epoch=0, coordinator_epoch=0
    ),
    ApiKey.INIT_PRODUCER_ID: lambda admin: admin.fence_producers(["x"]),
}

MORE_CALLS = {
    "alter_client_quotas": (ApiKey.ALTER_CLIENT_QUOTAS, lambda admin: admin.alter_client_quotas([QUOTA])),
    "delete_share_groups": (ApiKey.DELETE_GROUPS, lambda admin: admin.delete_share_groups(["g"])),
    "delete_streams_groups": (ApiKey.DELETE_GROUPS, lambda admin: admin.delete_streams_groups(["g"])),
    "describe_replica_log_dirs": (
        ApiKey.DESCRIBE_LOG_DIRS,
        lambda admin: admin.describe_replica_log_dirs([("t", 0, 1)]),
    ),
    "remove_user_credential": (
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        lambda admin: admin.remove_user_credential("a"),
    ),
    "terminate_transaction": (ApiKey.INIT_PRODUCER_ID, lambda admin: admin.terminate_transaction("x")),
}
"""Calls that share a request with another one."""


@pytest.mark.parametrize(
    ("key", "call"),
    [*CALLS.items(), *MORE_CALLS.values()],
    ids=[*(key.name.lower() for key in CALLS), *MORE_CALLS],
)
def test_a_refused_call_fails_with_the_refusal(key, call):
    """Groups whose type is looked at first are of the right one."""
    asked = []

    def refuse(broker, request):
        asked.append(broker)
        return refusal(request, REFUSED, version=APIS[key].versions.last)

    async def scenario(cluster, admin):
        began = trio.current_time()
        with pytest.raises(KafkaError) as caught:
            await call(admin)
        error = caught.value
        codes = {one.code for one in error.failures.values()} if isinstance(error, AdminError) else {error.code}
        assert codes == {REFUSED}
        assert trio.current_time() - began < 1
        assert len(asked) == len(set(asked)), "no broker is asked again"

    share_group = sgd.ShareGroupDescribeResponse(groups=[sgd.DescribedGroup(group_id="g", group_state="Empty")])
    streams_group = stgd.StreamsGroupDescribeResponse(groups=[stgd.DescribedGroup(group_id="g", group_state="Empty")])
    types = {
        ApiKey.SHARE_GROUP_DESCRIBE: lambda broker, request: share_group,
        ApiKey.STREAMS_GROUP_DESCRIBE: lambda broker, request: streams_group,
    }
    simulate(scenario, {**types, key: refuse})


@pytest.mark.parametrize(
    ("allow_downgrade", "unsafe", "sent"),
    [(False, False, (False, 1)), (True, False, (True, 2)), (False, True, (True, 3)), (True, True, (True, 3))],
)
def test_a_downgrade_is_asked_for_in_both_shapes(allow_downgrade, unsafe, sent):
    """Version 0 of the request has a flag, later ones a type of change (KIP-778)."""
    requests = []

    async def ask(response_class, request, **_):
        await trio.lowlevel.checkpoint()
        requests.append(request)
        return UpdateFeaturesResponse()

    quorum = Quorum(SimpleNamespace(ask=ask, broker_timeout_ms=1_000))

    async def main():
        await quorum.update_features({"metadata.version": 5}, allow_downgrade=allow_downgrade, unsafe=unsafe)

    trio.run(main)
    ((update,),) = (request.feature_updates for request in requests)
    assert (update.allow_downgrade, update.upgrade_type) == sent
    assert (update.feature, update.max_version_level) == ("metadata.version", 5)


def test_offsets_of_an_older_broker_are_read():
    """Until version 7 the answer is about one group, and has its topics at its top."""

    def fetch(broker, request):
        codes = (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        parts = [
            of.OffsetFetchResponsePartition(partition_index=number, committed_offset=offset, error_code=code)
            for number, (offset, code) in enumerate(zip((0, -1, 7), codes, strict=True))
        ]
        return of.OffsetFetchResponse(topics=[of.OffsetFetchResponseTopic(name="t", partitions=parts)])

    async def scenario(cluster, admin):
        cluster.max_versions[ApiKey.OFFSET_FETCH] = 7
        found = await admin.list_group_offsets("g")
        assert {place.partition: each.offset for place, each in found.items()} == {0: 0}

    simulate(scenario, {ApiKey.OFFSET_FETCH: fetch})


@pytest.mark.parametrize("version", [7, 9])
def test_stable_offsets_are_waited_for_on_any_broker(version):
    """An open transaction holds an offset: without it the partition would look as if the group had none."""
    codes = [ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.UNSTABLE_OFFSET_COMMIT]

    def fetch(broker, request):
        code = codes.pop()
        fields = {"committed_offset": -1 if code else 7, "error_code": code}
        if version == 7:
            part = of.OffsetFetchResponsePartition(partition_index=0, **fields)
            return of.OffsetFetchResponse(topics=[of.OffsetFetchResponseTopic(name="t", partitions=[part])])
        topic = of.OffsetFetchResponseTopics(
            name="t", partitions=[of.OffsetFetchResponsePartitions(partition_index=0, **fields)]
        )
        return of.OffsetFetchResponse(groups=[of.OffsetFetchResponseGroup(group_id="g", topics=[topic])])

    async def scenario(cluster, admin):
        cluster.max_versions[ApiKey.OFFSET_FETCH] = version
        found = await admin.list_group_offsets("g", require_stable=True)
        assert {place.partition: each.offset for place, each in found.items()} == {0: 7}
        assert codes == []

    simulate(scenario, {ApiKey.OFFSET_FETCH: fetch})


@pytest.mark.parametrize("version", [7, 8, 9])
def test_an_answer_without_the_group_has_no_offsets_to_show(version):
    """From version 8 on it must name the group; before, a group without offsets has an empty answer."""

    async def scenario(cluster, admin):
        cluster.max_versions[ApiKey.OFFSET_FETCH] = version
        if version == 7:
            assert await admin.list_group_offsets("g") == {}
            return
        with pytest.raises(KafkaError, match="leaves group g out") as caught:
            await admin.list_group_offsets("g")
        assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR

    simulate(scenario, {ApiKey.OFFSET_FETCH: lambda broker, request: of.OffsetFetchResponse()})


def test_records_of_a_missing_partition_are_a_failure():
    """The records of the partitions that exist are deleted."""

    def delete(broker, request):
        parts = [
            dr.DeleteRecordsPartitionResult(partition_index=each.partition_index, low_watermark=5)
            for topic in request.topics
            for each in topic.partitions
        ]
        return dr.DeleteRecordsResponse(topics=[dr.DeleteRecordsTopicResult(name="t", partitions=parts)])

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.delete_records({("t", number): 5 for number in (0, 1, 2, 9)})
        absent = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert {name: one.code for name, one in caught.value.failures.items()} == {"t-2": absent, "t-9": absent}
        assert {place.partition: offset for place, offset in caught.value.results.items()} == {0: 5, 1: 5}

    simulate(scenario, {ApiKey.DELETE_RECORDS: delete})


def test_any_broker_is_asked_to_change_a_topic():
    """Only a change of a broker needs to know which brokers are up."""

    def alter(broker, request):
        responses = [
            ia.AlterConfigsResourceResponse(resource_type=each.resource_type, resource_name=each.resource_name)
            for each in request.resources
        ]
        return ia.IncrementalAlterConfigsResponse(responses=responses)

    async def scenario(cluster, admin):
        change = {TOPIC: [ConfigAlteration(name="retention.ms", value="1")]}
        await admin.alter_configs(change)
        before = len(cluster.requests)
        await admin.alter_configs(change)
        assert [key for _, key, _ in cluster.requests[before:]] == [ApiKey.INCREMENTAL_ALTER_CONFIGS]

    simulate(scenario, {ApiKey.INCREMENTAL_ALTER_CONFIGS: alter})


def test_records_that_a_leader_keeps_for_now_are_asked_for_later():
    asked_s = []

    def delete(broker, request):
        asked_s.append(trio.current_time())
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if len(asked_s) <= 3 else ErrorCode.NONE
        part = dr.DeleteRecordsPartitionResult(partition_index=0, low_watermark=5, error_code=code)
        return dr.DeleteRecordsResponse(topics=[dr.DeleteRecordsTopicResult(name="t", partitions=[part])])

    async def scenario(cluster, admin):
        assert list((await admin.delete_records({("t", 0): 5})).values()) == [5]
        waits = [later - earlier for earlier, later in pairwise(asked_s)]
        assert len(waits) == 3
        assert min(waits) > 0.05

    simulate(scenario, {ApiKey.DELETE_RECORDS: delete})


def test_offsets_that_are_kept_longer_are_sent_and_judged():
    """Of two partitions one is refused."""
    asked = []

    def commit(broker, request):
        asked.append(request)
        topics = [
            oc.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    oc.OffsetCommitResponsePartition(
                        partition_index=part.partition_index,
                        error_code=ErrorCode.OFFSET_METADATA_TOO_LARGE if part.partition_index else ErrorCode.NONE,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return oc.OffsetCommitResponse(topics=topics)

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.alter_group_offsets("g", {("t", 1): 8, ("t", 0): 7}, retention_ms=5_000)
        assert {str(one): error.code for one, error in caught.value.failures.items()} == {
            "t-1": ErrorCode.OFFSET_METADATA_TOO_LARGE
        }

    simulate(scenario, {ApiKey.OFFSET_COMMIT: commit})
    (request,) = asked
    assert (request.group_id, request.retention_time_ms) == ("g", 5_000)
    assert [(part.partition_index, part.committed_offset) for part in request.topics[0].partitions] == [(0, 7), (1, 8)]


def test_a_replica_has_no_lag_where_it_is_not():
    """A replica may be in a directory, on its way to another one, both, or nowhere."""

    def describe(broker, request):
        def directory(path, *replicas):
            topic = dl.DescribeLogDirsTopic(
                name="t",
                partitions=[
                    dl.DescribeLogDirsPartition(partition_index=number, offset_lag=lag, is_future_key=is_future)
                    for number, lag, is_future in replicas
                ],
            )
            return dl.DescribeLogDirsResult(log_dir=path, topics=[topic])

        return dl.DescribeLogDirsResponse(
            results=[directory("/a", (0, 0, False), (1, 3, False)), directory("/b", (1, 9, True), (2, 4, True))]
        )

    async def scenario(cluster, admin):
        found = await admin.describe_replica_log_dirs([("t", number, 1) for number in range(4)])
        assert {
            key[1]: (each.path, each.offset_lag, each.future_path, each.future_offset_lag)
            for key, each in found.items()
        } == {0: ("/a", 0, None, -1), 1: ("/a", 3, "/b", 9), 2: (None, -1, "/b", 4), 3: (None, -1, None, -1)}

    simulate(scenario, {ApiKey.DESCRIBE_LOG_DIRS: describe})


def test_a_refused_look_for_a_successor_ends_the_call():
    """The coordinator has moved, and the client may not ask for the next one any more."""

    def describe(broker, request):
        return desc.DescribeGroupsResponse(
            groups=[desc.DescribedGroup(group_id="g", error_code=ErrorCode.NOT_COORDINATOR)]
        )

    async def scenario(cluster, admin):
        began = trio.current_time()
        calls = 0

        async def find_coordinator(key, key_type):
            nonlocal calls
            calls += 1
            await trio.lowlevel.checkpoint()
            if calls == 1:
                return 1
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

        requester = admin._requester
        requester.client.find_coordinator = find_coordinator
        with pytest.raises(KafkaError) as caught:
            await admin.delete_group_offsets("g", [("t", 0)])
        assert caught.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert trio.current_time() - began < 1

    simulate(
        scenario,
        {
            ApiKey.DESCRIBE_GROUPS: describe,
            ApiKey.OFFSET_DELETE: lambda broker, request: refusal(request, ErrorCode.NOT_COORDINATOR, version=0),
        },
    )


@pytest.mark.parametrize("call", ["list_groups", "list_transactions"])
def test_a_list_without_any_broker_is_an_error(call):
    """An empty list would say that there are none."""

    async def scenario(cluster, admin):
        for broker in cluster.brokers:
            cluster.kill_broker(broker)
        with pytest.raises(KafkaError) as caught:
            await getattr(admin.within(2_000), call)()
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT

    simulate(scenario, {ApiKey.LIST_GROUPS: lambda *_: None, ApiKey.LIST_TRANSACTIONS: lambda *_: None})


def test_the_rest_of_a_change_is_not_sent_at_once():
    """The quota of changes lets one topic through at a time, and asks the client for patience."""
    asked_s = []

    def create(broker, request):
        asked_s.append(trio.current_time())
        first, *others = (each.name for each in request.topics)
        codes = {first: ErrorCode.NONE, **dict.fromkeys(others, ErrorCode.THROTTLING_QUOTA_EXCEEDED)}
        return ct.CreateTopicsResponse(
            topics=[ct.CreatableTopicResult(name=name, error_code=code) for name, code in codes.items()]
        )

    async def scenario(cluster, admin):
        assert len(await admin.create_topics([NewTopic(name=name) for name in "abcd"])) == 4
        waits = [later - earlier for earlier, later in pairwise(asked_s)]
        assert len(waits) == 3
        assert min(waits) > 0.05

    simulate(scenario, {ApiKey.CREATE_TOPICS: create})


@pytest.mark.parametrize(
    ("voter_id", "host", "port"), [("7", "h", 9093), (7, 5, 9093), (7, "h", "9093"), (7, "h", 1.5)]
)
def test_a_voter_of_wrong_types_is_refused(voter_id, host, port):
    async def scenario(cluster, admin):
        with pytest.raises(TypeError, match="add_voter"):
            await admin.add_voter(voter_id, host, port)
        assert not [key for _, key, _ in cluster.requests if key == ApiKey.ADD_RAFT_VOTER]

    simulate(scenario, {ApiKey.ADD_RAFT_VOTER: lambda broker, request: refusal(request, REFUSED, version=0)})


def test_a_password_is_hashed_as_often_as_allowed():
    """Both bounds are allowed; a broker refuses what is outside them."""

    def alter(broker, request):
        results = [scram.AlterUserScramCredentialsResult(user=each.name) for each in request.upsertions]
        return scram.AlterUserScramCredentialsResponse(results=results)

    async def scenario(cluster, admin):
        for iterations in (ITERATIONS_MIN, ITERATIONS_MAX):
            await admin.set_user_password("a", "secret", iterations=iterations)
        for iterations in (ITERATIONS_MIN - 1, ITERATIONS_MAX + 1):
            with pytest.raises(ValueError, match="iterations must be from"):
                await admin.set_user_password("a", "secret", iterations=iterations)
        for user, password in ((None, "secret"), ("a", ""), ("a", None), ("a", b"secret")):
            with pytest.raises((TypeError, ValueError), match=r"set_user_password: (user|password) must be"):
                await admin.set_user_password(user, password)
        sent = [request.upsertions[0].iterations for _, key, request in cluster.requests if key in cluster.handlers]
        assert sent == [ITERATIONS_MIN, ITERATIONS_MAX]

    simulate(scenario, {ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter})
