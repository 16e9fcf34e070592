"""Goal: each API of each listener is checked as Kafka checks it, and none is forgotten.

Method: ``KAFKA`` lists the operations that Kafka's KafkaApis and ControllerApis ask for, written from their source; the
rows of both tables must state exactly these. Sampled requests of all versions are checked for a super user, for a user
without rights, and for users with every subset of the needed rights; the row must name all rights of a check.
"""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from moldau.protocol.access import AclOperation, AclResource
from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.codec import decode, encode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    TopicRequest,
)
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from moldau.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderTopic
from moldau.runtime.sasl.core.identity import Identity
from moldau_broker.server.handlers.apis import BASE_APIS, BROKER_CHECKS
from moldau_quorum.authorization import checks
from moldau_quorum.authorization.authorizer import Authorizer
from moldau_quorum.authorization.checks import check
from moldau_quorum.metadata.persistent_map import PersistentMap
from moldau_quorum.node.serving.apis import CONTROLLER_APIS, CONTROLLER_CHECKS
from support.protocol_samples import Sampler, versions_of

BY_CONNECTION = {ApiKey.PRODUCE, ApiKey.FETCH}
KAFKA = {
    "Produce": "WRITE TRANSACTIONAL_ID, WRITE TOPIC",
    "Fetch": "CLUSTER_ACTION CLUSTER, READ TOPIC",
    "ListOffsets": "DESCRIBE TOPIC",
    "Metadata": "DESCRIBE TOPIC, CREATE CLUSTER, CREATE TOPIC, DESCRIBE CLUSTER",
    "OffsetCommit": "READ GROUP, READ TOPIC",
    "OffsetFetch": "DESCRIBE GROUP, DESCRIBE TOPIC",
    "FindCoordinator": "DESCRIBE GROUP, DESCRIBE TRANSACTIONAL_ID, CLUSTER_ACTION CLUSTER",
    "JoinGroup": "READ GROUP",
    "Heartbeat": "READ GROUP",
    "LeaveGroup": "READ GROUP",
    "SyncGroup": "READ GROUP",
    "DescribeGroups": "DESCRIBE GROUP",
    "ConsumerGroupHeartbeat": "READ GROUP, DESCRIBE TOPIC",
    "ShareGroupHeartbeat": "READ GROUP, DESCRIBE TOPIC",
    "StreamsGroupHeartbeat": "READ GROUP, DESCRIBE TOPIC, CREATE CLUSTER, CREATE TOPIC",
    "StreamsGroupDescribe": "DESCRIBE GROUP, DESCRIBE TOPIC",
    "ShareGroupDescribe": "DESCRIBE GROUP, DESCRIBE TOPIC",
    "DescribeShareGroupOffsets": "DESCRIBE GROUP, DESCRIBE TOPIC",
    "AlterShareGroupOffsets": "READ GROUP, READ TOPIC",
    "DeleteShareGroupOffsets": "DELETE GROUP, READ TOPIC",
    "InitializeShareGroupState": "CLUSTER_ACTION CLUSTER",
    "ReadShareGroupState": "CLUSTER_ACTION CLUSTER",
    "WriteShareGroupState": "CLUSTER_ACTION CLUSTER",
    "DeleteShareGroupState": "CLUSTER_ACTION CLUSTER",
    "ReadShareGroupStateSummary": "CLUSTER_ACTION CLUSTER",
    "ConsumerGroupDescribe": "DESCRIBE GROUP, DESCRIBE TOPIC",
    "ShareFetch": "READ GROUP, READ TOPIC",
    "ShareAcknowledge": "READ GROUP, READ TOPIC",
    "ListGroups": "DESCRIBE CLUSTER, DESCRIBE GROUP",
    "SaslHandshake": "",
    "ApiVersions": "",
    "GetTelemetrySubscriptions": "",
    "PushTelemetry": "",
    "CreateTopics": "CREATE CLUSTER, CREATE TOPIC, DESCRIBE_CONFIGS TOPIC",
    "DeleteTopics": "DELETE CLUSTER, DESCRIBE TOPIC, DELETE TOPIC",
    "DeleteRecords": "DELETE TOPIC",
    "InitProducerId": "WRITE TRANSACTIONAL_ID, IDEMPOTENT_WRITE CLUSTER, WRITE TOPIC",
    "OffsetForLeaderEpoch": "CLUSTER_ACTION CLUSTER, DESCRIBE TOPIC",
    "AddPartitionsToTxn": "CLUSTER_ACTION CLUSTER, WRITE TRANSACTIONAL_ID, WRITE TOPIC",
    "AddOffsetsToTxn": "WRITE TRANSACTIONAL_ID, READ GROUP",
    "EndTxn": "WRITE TRANSACTIONAL_ID",
    "WriteTxnMarkers": "ALTER CLUSTER, CLUSTER_ACTION CLUSTER",
    "TxnOffsetCommit": "WRITE TRANSACTIONAL_ID, READ GROUP, READ TOPIC",
    "CreateDelegationToken": "CREATE_TOKENS USER",
    "RenewDelegationToken": "",
    "ExpireDelegationToken": "",
    "DescribeDelegationToken": "DESCRIBE DELEGATION_TOKEN, DESCRIBE_TOKENS USER",
    "DescribeAcls": "DESCRIBE CLUSTER",
    "CreateAcls": "ALTER CLUSTER",
    "DeleteAcls": "ALTER CLUSTER",
    "DescribeConfigs": "DESCRIBE_CONFIGS CLUSTER, DESCRIBE_CONFIGS TOPIC, DESCRIBE_CONFIGS GROUP",
    "AlterConfigs": "ALTER_CONFIGS CLUSTER, ALTER_CONFIGS TOPIC, ALTER_CONFIGS GROUP",
    "AlterReplicaLogDirs": "ALTER CLUSTER",
    "DescribeLogDirs": "DESCRIBE CLUSTER",
    "SaslAuthenticate": "",
    "CreatePartitions": "ALTER TOPIC",
    "DeleteGroups": "DELETE GROUP",
    "ElectLeaders": "ALTER CLUSTER",
    "IncrementalAlterConfigs": "ALTER_CONFIGS CLUSTER, ALTER_CONFIGS TOPIC, ALTER_CONFIGS GROUP",
    "AlterPartitionReassignments": "ALTER CLUSTER",
    "ListPartitionReassignments": "DESCRIBE CLUSTER",
    "OffsetDelete": "DELETE GROUP, READ TOPIC",
    "DescribeClientQuotas": "DESCRIBE_CONFIGS CLUSTER",
    "AlterClientQuotas": "ALTER_CONFIGS CLUSTER",
    "DescribeUserScramCredentials": "DESCRIBE CLUSTER",
    "AlterUserScramCredentials": "ALTER CLUSTER",
    "DescribeQuorum": "DESCRIBE CLUSTER",
    "UpdateFeatures": "ALTER CLUSTER",
    "DescribeCluster": "DESCRIBE CLUSTER",
    "DescribeProducers": "READ TOPIC",
    "UnregisterBroker": "ALTER CLUSTER",
    "DescribeTransactions": "DESCRIBE TRANSACTIONAL_ID, DESCRIBE TOPIC",
    "ListTransactions": "DESCRIBE TRANSACTIONAL_ID",
    "ListConfigResources": "DESCRIBE_CONFIGS CLUSTER",
    "DescribeTopicPartitions": "DESCRIBE TOPIC",
    "AddRaftVoter": "ALTER CLUSTER",
    "RemoveRaftVoter": "ALTER CLUSTER",
    "UpdateRaftVoter": "CLUSTER_ACTION CLUSTER",
    "AlterPartition": "CLUSTER_ACTION CLUSTER",
    "Envelope": "CLUSTER_ACTION CLUSTER",
    "BrokerRegistration": "CLUSTER_ACTION CLUSTER",
    "BrokerHeartbeat": "CLUSTER_ACTION CLUSTER",
    "AllocateProducerIds": "CLUSTER_ACTION CLUSTER",
    "AssignReplicasToDirs": "CLUSTER_ACTION CLUSTER",
}
"""The operations that Kafka asks for, in its order."""
ON_CONTROLLERS = {"DescribeCluster": "ALTER CLUSTER, DESCRIBE CLUSTER"}
"""Operations that its controllers ask for instead."""

TOPICS = {name: SimpleNamespace(name=name) for name in ("known", "other")}
ROWS = [("broker", api) for api in BASE_APIS] + [("controller", api) for api in CONTROLLER_APIS]
CASES = [
    (role, api, version)
    for role, api in ROWS
    if api.key not in BY_CONNECTION
    for version in versions_of(APIS[api.key].request)
]


class EveryId(dict):
    """Ids of topics, each of which is known."""

    def get(self, key, default=None):
        return TOPICS["known"]


def image(ids=None):
    return SimpleNamespace(acls=PersistentMap(), topics_by_name=TOPICS, topics_by_id=EveryId() if ids is None else ids)


class Grants:
    """Permissions that grant chosen rights, and note what was asked."""

    def __init__(self, granted=lambda operation, resource, name: False, ids=None):
        self.granted, self.asked, self.api = granted, set(), None
        self.refusals_in_log = []
        self.identity = Identity(principal="User:asker", host="h", listener_name="L", security_protocol="SASL_SSL")
        self.image = image(ids)

    def may(self, operation, resource, name, *, quiet=False):
        self.asked.add((operation, resource))
        is_granted = self.granted(operation, resource, name)
        if not (is_granted or quiet):
            self.refusals_in_log.append((operation.name, name))
        return is_granted

    def may_cluster(self, operation, *, quiet=False):
        return self.may(operation, AclResource.CLUSTER, "kafka-cluster", quiet=quiet)

    def may_some(self, operation, resource):
        return self.may(operation, resource, "some", quiet=True)

    def topic_name(self, topic_id):
        found = self.image.topics_by_id.get(topic_id)
        return None if found is None else found.name

    def operations(self, resource, name):
        return 0


def parse(text):
    pairs = [each.split() for each in text.split(", ") if each]
    return tuple((AclOperation[operation], AclResource[resource]) for operation, resource in pairs)


def camel(key):
    return "".join(part.capitalize() for part in key.name.split("_"))


def requests_of(key, version):
    for seed in range(12):
        request = Sampler(seed).message(APIS[key].request, version)
        for number, resource in enumerate(getattr(request, "resources", ())):
            resource.resource_type = (2, 4, 32)[(seed + number) % 3]
        yield request


def checks_of(role):
    return CONTROLLER_CHECKS if role == "controller" else BROKER_CHECKS


@pytest.mark.parametrize(("role", "api"), ROWS, ids=lambda each: each if isinstance(each, str) else each.key.name)
def test_rows_state_what_kafka_asks_for(role, api):
    name = camel(api.key)
    expected = ON_CONTROLLERS.get(name, KAFKA[name]) if role == "controller" else KAFKA[name]
    assert tuple(api.rules.needs) == parse(expected)
    assert api.key in BY_CONNECTION or api.key in checks_of(role)


@pytest.mark.parametrize(("role", "api"), dict.fromkeys((role, api) for role, api, _ in CASES))
def test_checks_ask_for_what_the_row_states(role, api):
    """A user with all rights is served whole; one without is refused, with an answer of the right version."""
    every = (
        (version, request)
        for version in versions_of(APIS[api.key].request)
        for request in requests_of(api.key, version)
    )
    for version, request in every:
        allowed = Grants(lambda *q: True)
        verdict = check(request, version, allowed, checks_of(role), creates_topics=True)
        assert verdict.remainder is not None
        assert verdict.refused is None
        changes = (ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.METADATA)  # into names, or into ids alone
        assert verdict.remainder == request or api.key in changes
        without_rights = Grants()
        verdict = check(request, version, without_rights, checks_of(role), creates_topics=True)
        if verdict.refused is not None:
            encoded = encode(verdict.refused, version)
            decode(APIS[api.key].response, version, encoded)
        asked = without_rights.asked | allowed.asked
        assert asked <= {tuple(need) for need in api.rules.needs}
        if api.rules.needs and verdict.remainder == request and verdict.refused is None:
            assert verdict.amend is not None or not has_entries(request) or creates_own_token(request)


def creates_own_token(request):
    """Whether it is the one request whose right depends on the owner, and it names no owner."""
    return request.__api_key__ == ApiKey.CREATE_DELEGATION_TOKEN and not request.owner_principal_name


def has_entries(request):
    return any(getattr(request, name) for name, spec in request.__fields__.items() if spec.is_array)


def test_each_right_is_asked_for():
    """Over all samples each right of a row is needed somewhere, if only for what an answer shows."""
    never = {}
    for role, api in ROWS:
        if api.key in BY_CONNECTION:
            continue
        asked = set()
        for version in versions_of(APIS[api.key].request):
            for request in requests_of(api.key, version):
                for granted in (
                    lambda *q: False,
                    lambda *q: True,
                    lambda operation, resource, name: operation in (8, 5),
                ):
                    grants = Grants(granted)
                    check(request, version, grants, checks_of(role), creates_topics=True)
                    asked |= grants.asked
        missing = {tuple(need) for need in api.rules.needs} - asked
        if missing:
            never[role, api.key.name] = missing
    in_answers = {"METADATA", "LIST_GROUPS", "DESCRIBE_TRANSACTIONS", "LIST_TRANSACTIONS", "CREATE_TOPICS"}
    in_answers |= {
        "DESCRIBE_DELEGATION_TOKEN",
        "DESCRIBE_CLUSTER",
        "FIND_COORDINATOR",
        "DELETE_TOPICS",
        "CONSUMER_GROUP_DESCRIBE",
        "SHARE_GROUP_DESCRIBE",
        "STREAMS_GROUP_DESCRIBE",
    }
    in_handlers = {"SHARE_FETCH", "SHARE_ACKNOWLEDGE"}  # the partitions of a session are not all in the request
    in_handlers.add("STREAMS_GROUP_HEARTBEAT")  # the controller checks the creation of internal topics
    assert {name for _, name in never} <= in_answers | in_handlers


def only(*allowed):
    return lambda operation, resource, name: (operation.name, name) in allowed


def test_topics_that_may_not_be_described_do_not_show():
    request = MetadataRequest(topics=[MetadataRequestTopic(name=n) for n in ("known", "other", "new")])
    verdict = check(
        request, 12, Grants(only(("DESCRIBE", "known"), ("DESCRIBE", "new"))), BROKER_CHECKS, creates_topics=True
    )
    assert [each.name for each in verdict.remainder.topics] == ["known"]
    assert [(each.name, each.error_code) for each in verdict.refused.topics] == [
        ("other", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("new", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ]
    all_topics = check(MetadataRequest(topics=None), 12, Grants(only(("DESCRIBE", "known"))), BROKER_CHECKS)

    found = all_topics.answer(MetadataResponse(topics=[MetadataResponseTopic(name=n) for n in ("known", "other")]), 12)
    assert [each.name for each in found.topics] == ["known"]


def test_unknown_ids_are_answered_as_such():
    wanted = MetadataRequestTopic(name=None, topic_id=UUID(int=9))
    verdict = check(MetadataRequest(topics=[wanted]), 12, Grants(ids={}), BROKER_CHECKS)
    assert verdict.refused is None
    assert list(verdict.remainder.topics) == [wanted]


def test_the_right_to_the_topic_of_the_id_counts():
    """A name beside the id is not the topic that Metadata describes."""
    topic_id = UUID(int=9)
    wanted = MetadataRequestTopic(name="mine", topic_id=topic_id)
    grants = Grants(only(("DESCRIBE", "mine")), ids={topic_id: SimpleNamespace(name="secret")})
    verdict = check(MetadataRequest(topics=[wanted]), 12, grants, BROKER_CHECKS)
    answer = verdict.answer(MetadataResponse(topics=[]), 12)
    assert [(each.name, each.error_code) for each in answer.topics] == [(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]


def test_needs_of_a_row_are_asked_of_the_cluster_or_by_name():
    rules = SimpleNamespace(needs=parse("ALTER CLUSTER, READ GROUP"))
    table = checks.checks_of([(ApiKey.HEARTBEAT, rules)], {})
    request = HeartbeatRequest(group_id="g")
    wanted = (("ALTER", "kafka-cluster"), ("READ", "g"))
    assert check(request, 4, Grants(only(*wanted)), table).refused is None
    for missing in wanted:
        assert check(request, 4, Grants(only(*(each for each in wanted if each != missing))), table).refused is not None


def test_version_0_of_metadata_cannot_ask_for_none():
    request = MetadataRequest(topics=[MetadataRequestTopic(name="other")])
    verdict = check(request, 0, Grants(), BROKER_CHECKS)
    answer = verdict.answer(MetadataResponse(topics=["all", "topics"]), 0)
    assert [(each.name, each.error_code) for each in answer.topics] == [("other", 29)]


def test_transactions_take_all_topics_or_none():
    topics = [AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in ("known", "other")]
    request = AddPartitionsToTxnRequest(v3_and_below_transactional_id="x", v3_and_below_topics=topics)
    verdict = check(request, 3, Grants(only(("WRITE", "x"), ("WRITE", "known"))), BROKER_CHECKS)
    assert verdict.remainder is None
    codes = {
        topic.name: topic.results_by_partition[0].partition_error_code
        for topic in verdict.refused.results_by_topic_v3_and_below
    }
    assert codes == {"known": ErrorCode.OPERATION_NOT_ATTEMPTED, "other": ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_committed_offsets_of_hidden_topics_do_not_show():
    topics = [OffsetFetchRequestTopics(name=name, partition_indexes=[0, 1]) for name in ("known", "other")]
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id="g", topics=topics),
            OffsetFetchRequestGroup(group_id="h", topics=None),
        ]
    )
    verdict = check(request, 9, Grants(only(("DESCRIBE", "g"), ("DESCRIBE", "known"))), BROKER_CHECKS)
    assert [[each.name for each in group.topics] for group in verdict.remainder.groups] == [["known"]]
    answer = verdict.answer(OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=[])]), 9)
    assert [(group.group_id, group.error_code) for group in answer.groups] == [("g", 0), ("h", 30)]
    assert [(p.partition_index, p.error_code) for p in answer.groups[0].topics[0].partitions] == [(0, 29), (1, 29)]


def test_names_of_topics_do_not_show_for_ids():

    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=UUID(int=7))])
    for granted in (only(), only(("DELETE", "known"))):
        verdict = check(request, 6, Grants(granted), BROKER_CHECKS)
        (refused,) = verdict.refused.responses
        assert (refused.name, refused.error_code) == (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert check(request, 6, Grants(only(("DELETE", "known"), ("DESCRIBE", "known"))), BROKER_CHECKS).refused is None
    assert check(request, 6, Grants(ids={}), BROKER_CHECKS).refused is None  # unknown: answered as such


def test_cursors_name_no_hidden_topic():
    """A page of all topics is made of those that may be described, so that its cursor cannot name another."""
    cursor = DescribeTopicPartitionsRequestCursor(topic_name="a", partition_index=0)
    request = DescribeTopicPartitionsRequest(topics=[], cursor=cursor)
    verdict = check(request, 0, Grants(only(("DESCRIBE", "other"))), BROKER_CHECKS)
    assert [each.name for each in verdict.remainder.topics] == ["other"]
    nothing = check(request, 0, Grants(), BROKER_CHECKS)
    assert nothing.remainder is None
    assert not nothing.refused.topics


def test_a_page_begins_with_the_topic_of_its_cursor():
    """The cursor names the first partition that the answer before had no room for."""
    cursor = DescribeTopicPartitionsRequestCursor(topic_name="known", partition_index=3)
    asked = [TopicRequest(name=name) for name in ("a", "known", "other")]
    for topics in ([], asked):
        request = DescribeTopicPartitionsRequest(topics=topics, cursor=cursor)
        verdict = check(request, 0, Grants(only(("DESCRIBE", "known"), ("DESCRIBE", "other"))), BROKER_CHECKS)
        assert [each.name for each in verdict.remainder.topics] == ["known", "other"]


def test_the_right_to_the_cluster_creates_all_topics():
    """Without it each topic needs a right of its own."""
    request = CreateTopicsRequest(topics=[CreatableTopic(name=name) for name in ("known", "new")])
    verdict = check(request, 7, Grants(only(("CREATE", "kafka-cluster"))), CONTROLLER_CHECKS)
    assert (verdict.refused, verdict.remainder) == (None, request)
    verdict = check(request, 7, Grants(only(("CREATE", "new"))), CONTROLLER_CHECKS)
    assert [each.name for each in verdict.remainder.topics] == ["new"]
    assert [(each.name, each.error_code) for each in verdict.refused.topics] == [("known", 29)]


@pytest.mark.parametrize(("version", "right"), [(3, "WRITE"), (4, "CLUSTER_ACTION"), (5, "CLUSTER_ACTION")])
def test_only_brokers_add_partitions_of_several_transactions(version, right):
    """From version 4 on a request holds the transactions of a broker's producers (KIP-890)."""
    grants = Grants()
    check(AddPartitionsToTxnRequest(v3_and_below_transactional_id="x"), version, grants, BROKER_CHECKS)
    assert {operation.name for operation, _ in grants.asked} == {right}


@pytest.mark.parametrize(
    ("request_", "version", "granted"),
    [
        (CreateTopicsRequest(topics=[CreatableTopic(name="t")]), 7, only(("CREATE", "t"))),
        (DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]), 6, only(("DELETE", "t"))),
        (InitProducerIdRequest(transactional_id=None), 5, only(("WRITE", "some"))),
        (ListGroupsRequest(), 5, only()),
        (MetadataRequest(topics=[MetadataRequestTopic(name="new")]), 12, only(("DESCRIBE", "new"), ("CREATE", "new"))),
        (
            OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="known")]),
            4,
            only(("DESCRIBE", "known")),
        ),
    ],
    ids=lambda each: type(each).__name__ if hasattr(each, "__fields__") else "",
)
def test_a_narrower_right_leaves_no_refusal_in_the_audit_log(request_, version, granted):
    grants = Grants(granted)
    table = CONTROLLER_CHECKS if request_.__api_key__ in CONTROLLER_CHECKS else BROKER_CHECKS
    verdict = check(request_, version, grants, table, creates_topics=True)
    assert verdict.refused is None
    assert grants.refusals_in_log == []


def test_a_refused_producer_id_is_in_the_audit_log():
    grants = Grants()
    verdict = check(InitProducerIdRequest(transactional_id=None), 5, grants, BROKER_CHECKS)
    assert verdict.refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert grants.refusals_in_log == [("IDEMPOTENT_WRITE", "kafka-cluster")]


def test_an_audit_entry_names_the_api_of_its_request():
    """A connection sends many requests; each refusal is one of the request in hand."""
    attempts = []
    identity = Identity(principal="User:a", host="h", listener_name="L", security_protocol="SSL")
    rights = Authorizer(image, audit=attempts.append).permissions(identity)
    check(HeartbeatRequest(group_id="g"), 0, rights, BROKER_CHECKS)
    check(DeleteTopicsRequest(topic_names=["t"]), 3, rights, CONTROLLER_CHECKS)
    assert list(dict.fromkeys(attempt.api for attempt in attempts)) == [ApiKey.HEARTBEAT, ApiKey.DELETE_TOPICS]


def test_rights_are_asked_of_the_real_authorizer():
    """The stand-in of these tests has the methods of the real one."""
    identity = Identity(principal="User:a", host="h", listener_name="L", security_protocol="SSL")
    real = Authorizer(image, super_users=["User:a"]).permissions(identity)
    for role, api, version in CASES[::7]:
        for request in requests_of(api.key, version):
            assert check(request, version, real, checks_of(role)).refused is None
