"""Goal: the admin client means what its arguments say, with brokers of any age, and wastes no time of theirs.

Method: canned answers of a small cluster on virtual time.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio

from moldau.admin import (
    LATEST,
    Acl,
    AdminError,
    ConfigResource,
    PartitionDescription,
    QuotaAlteration,
    QuotaEntity,
    ResourceType,
    TopicDescription,
)
from moldau.admin.calls import eligible_replicas
from moldau.admin.calls.topics import _add_eligible
from moldau.admin.requester import NOT_ASKED, Requester, _not_controller, operations_of
from moldau.cluster.client import ClusterClient
from moldau.cluster.metadata import BrokerNode, ClusterMetadata
from moldau.producer import PreparedTransaction
from moldau.protocol.access import AclOperation
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages import alter_client_quotas as quotas
from moldau.protocol.messages import consumer_group_describe as cgd
from moldau.protocol.messages import create_acls as acls
from moldau.protocol.messages import create_partitions as cp
from moldau.protocol.messages import delete_records as dr
from moldau.protocol.messages import describe_configs as dc
from moldau.protocol.messages import describe_groups as desc
from moldau.protocol.messages import describe_producers as dp
from moldau.protocol.messages import find_coordinator as fc
from moldau.protocol.messages import list_transactions as lt
from moldau.protocol.messages import offset_commit as oc
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.end_txn import EndTxnResponse
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau.protocol.refusals import refusal
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.sasl.core.scram import salted_password
from moldau.values import ZERO_UUID
from support.client.admin_stories import simulate


def test_a_bit_field_names_the_operations_that_it_has():
    """Without a bit no operation is allowed; -2147483648 says that the broker was not asked (KIP-430)."""
    assert operations_of(NOT_ASKED) is None
    assert operations_of(0) == ()
    every = tuple(AclOperation)
    for first in every:
        assert operations_of(1 << first) == (first.name,)
        for second in every:
            assert set(operations_of(1 << first | 1 << second)) == {first.name, second.name}


PRINCIPAL_CALLS = {
    "owner": lambda admin, name: admin.create_delegation_token(owner=name),
    "renewers": lambda admin, name: admin.create_delegation_token(renewers=["User:a", name]),
    "owners": lambda admin, name: admin.describe_delegation_tokens(["User:a", name]),
}


@pytest.mark.parametrize("name", ["a", ":", ":a", "User:", "User"])
@pytest.mark.parametrize("call", PRINCIPAL_CALLS)
def test_a_principal_has_a_type_and_a_name(call, name):
    async def scenario(cluster, admin):
        with pytest.raises(ValueError, match=r"a principal has the form User:name"):
            await PRINCIPAL_CALLS[call](admin, name)

    simulate(scenario, {})


GROUP_CALLS = {
    "list_group_offsets": lambda admin, group: admin.list_group_offsets(group),
    "delete_group_offsets": lambda admin, group: admin.delete_group_offsets(group, [("t", 0)]),
    "remove_group_members": lambda admin, group: admin.remove_group_members(group, ["i"]),
    "alter_group_offsets": lambda admin, group: admin.alter_group_offsets(group, {("t", 0): 5}),
    "list_share_group_offsets": lambda admin, group: admin.list_share_group_offsets(group),
    "alter_share_group_offsets": lambda admin, group: admin.alter_share_group_offsets(group, {("t", 0): 5}),
    "delete_share_group_offsets": lambda admin, group: admin.delete_share_group_offsets(group, ["t"]),
    "list_streams_group_offsets": lambda admin, group: admin.list_streams_group_offsets(group),
    "alter_streams_group_offsets": lambda admin, group: admin.alter_streams_group_offsets(group, {("t", 0): 5}),
    "delete_streams_group_offsets": lambda admin, group: admin.delete_streams_group_offsets(group, [("t", 0)]),
}


@pytest.mark.parametrize("group", [5, None, b"g", ["g"]])
@pytest.mark.parametrize("call", GROUP_CALLS)
def test_a_group_that_is_no_text_is_refused(call, group):
    """No broker is asked for its coordinator."""

    async def scenario(cluster, admin):
        before = len(cluster.requests)
        with pytest.raises(TypeError):
            await GROUP_CALLS[call](admin, group)
        assert len(cluster.requests) == before

    simulate(scenario, {})


def test_a_coordinator_that_is_absent_is_looked_for_with_pauses():
    """The brokers have something to do: they create the topic, or elect a leader of its partition."""
    asked = []

    def find(broker, request):
        asked.append(broker)
        is_often = len(asked) >= 60  # without a pause this would have no end
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED if is_often else ErrorCode.COORDINATOR_NOT_AVAILABLE
        return fc.FindCoordinatorResponse(
            coordinators=[fc.Coordinator(key=key, error_code=code) for key in request.coordinator_keys]
        )

    async def scenario(cluster, admin):
        began = trio.current_time()
        with pytest.raises(KafkaError, match="group g") as caught:
            await admin.within(3_000).list_group_offsets("g")
        assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert 2 <= trio.current_time() - began < 5
        assert 2 < len(asked) < 60

    simulate(scenario, {ApiKey.FIND_COORDINATOR: find})


@pytest.mark.parametrize("count", [1, 3])
def test_an_answer_about_fewer_things_is_no_success(count):
    """Answers to the first request are in the order of what was asked, and name nothing."""
    entries = [Acl(resource="topic", name=name, principal="User:a", operation="read") for name in "ab"]
    changes = [QuotaAlteration(entity=QuotaEntity(user=name), quotas={"producer_byte_rate": 1}) for name in "ab"]

    async def scenario(cluster, admin):
        with pytest.raises(AdminError):
            await admin.create_acls(entries)
        with pytest.raises(AdminError):
            await admin.alter_client_quotas(changes)

    created = acls.CreateAclsResponse(results=[acls.AclCreationResult()] * count)
    altered = quotas.AlterClientQuotasResponse(entries=[quotas.AlterClientQuotasResponseEntryData(entity=[])] * count)
    simulate(scenario, {ApiKey.CREATE_ACLS: lambda *_: created, ApiKey.ALTER_CLIENT_QUOTAS: lambda *_: altered})


@pytest.mark.parametrize("call", ["list_topics", "list_config_resources", "list_groups"])
def test_a_refused_login_ends_a_call_at_once(call):
    """Another attempt would be refused, too."""

    async def scenario(cluster, admin):
        attempts = 0

        async def refused(*_, **__):
            nonlocal attempts
            attempts += 1
            await trio.lowlevel.checkpoint()
            raise SaslAuthenticationError(ErrorCode.SASL_AUTHENTICATION_FAILED, "the password is wrong")

        client = admin._requester.client
        client.ask_any = client.request_any = refused
        began = trio.current_time()
        with pytest.raises(SaslAuthenticationError):
            await getattr(admin, call)()
        assert (attempts, trio.current_time()) == (1, began)

    simulate(scenario, {})


def test_an_older_broker_lists_no_transactions_by_a_pattern():
    """It would leave the pattern out, and list all (KIP-1152)."""
    listed = lt.ListTransactionsResponse(
        transaction_states=[lt.TransactionState(transactional_id="x", producer_id=1, transaction_state="Ongoing")]
    )

    async def scenario(cluster, admin):
        cluster.max_versions[ApiKey.LIST_TRANSACTIONS] = 1
        assert [each.transactional_id for each in await admin.list_transactions()] == ["x"]
        with pytest.raises(KafkaError) as caught:
            await admin.list_transactions(id_pattern="y.*")
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION

    simulate(scenario, {ApiKey.LIST_TRANSACTIONS: lambda broker, request: listed})


@pytest.mark.parametrize("is_mixed", [False, True])
def test_an_older_broker_deletes_no_topic_by_its_id(is_mixed):
    """It would read an empty name (KIP-516); nothing is deleted, not even what has a name."""

    async def scenario(cluster, admin):
        cluster.max_versions[ApiKey.DELETE_TOPICS] = 5
        topic_id = cluster.ids["t"]
        with pytest.raises(KafkaError) as caught:
            await admin.delete_topics(["u", topic_id] if is_mixed else [topic_id])
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert not [key for _, key, _ in cluster.requests if key == ApiKey.DELETE_TOPICS]

    simulate(scenario, {ApiKey.DELETE_TOPICS: lambda broker, request: None})


@pytest.mark.parametrize("is_mixed", [False, True])
def test_an_older_broker_describes_no_topic_by_its_id(is_mixed):
    """It would read an empty name (KIP-516)."""

    async def scenario(cluster, admin):
        cluster.max_versions[ApiKey.METADATA] = 11
        topic_id = cluster.ids["t"]
        with pytest.raises(KafkaError, match="descriptions of topics by id"):
            await admin.describe_topics(["t", topic_id] if is_mixed else [topic_id])
        assert list(await admin.describe_topics(["t"])) == ["t"]

    simulate(scenario, {})


def test_a_client_that_is_closed_meanwhile_has_no_answer():
    """The calls that ended before are no complete answer either."""

    async def scenario(cluster, admin):
        async def call(_, name):
            await trio.lowlevel.checkpoint()
            if name == "closed":
                raise RuntimeError("the client was closed")
            return name

        with pytest.raises(RuntimeError, match="the client was closed"):
            await admin._requester.each(["first", "closed", "last"], call)

    simulate(scenario, {})


def test_a_leader_that_has_just_come_is_asked():
    """The client has heard of the other broker alone."""

    async def scenario(cluster, admin):
        host = cluster.brokers.pop(2)
        assert await admin._requester.fetch_brokers() == [1]
        cluster.brokers[2] = host
        began = trio.current_time()
        assert await admin.describe_producers(("t", 1)) == []
        assert trio.current_time() - began < 0.05, "its address is looked up before the first attempt"
        assert [broker for broker, key, _ in cluster.requests if key == ApiKey.DESCRIBE_PRODUCERS] == [2]

    def none(broker, request):
        parts = [dp.PartitionResponse(partition_index=1)]
        return dp.DescribeProducersResponse(topics=[dp.TopicResponse(name="t", partitions=parts)])

    simulate(scenario, {ApiKey.DESCRIBE_PRODUCERS: none})


@pytest.mark.parametrize("limit_ms", [None, 5_000])
def test_a_broker_has_no_more_time_than_the_call(limit_ms):
    """A deletion waits at the leader for its followers: by default as long as a request may take."""
    given = []

    def delete(broker, request):
        given.append(request.timeout_ms)
        part = dr.DeleteRecordsPartitionResult(partition_index=0, low_watermark=5)
        return dr.DeleteRecordsResponse(topics=[dr.DeleteRecordsTopicResult(name="t", partitions=[part])])

    async def scenario(cluster, admin):
        await (admin if limit_ms is None else admin.within(limit_ms)).delete_records({("t", 0): 5})
        wanted = limit_ms or 30_000
        assert wanted - 1000 < given[0] <= wanted

    simulate(scenario, {ApiKey.DELETE_RECORDS: delete})


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (ConnectionError("broker 1 has hung up"), "broker 1 has hung up"),
        (trio.TooSlowError(), "broker 1 (broker1:9092) does not answer in time"),
    ],
    ids=["cut", "silent"],
)
def test_a_leader_that_keeps_records_is_named_with_the_cause(fault, text):
    async def scenario(cluster, admin):
        client = admin._requester.client
        asks = client.request

        async def request(node_id, response_class, message, **named):
            if isinstance(message, dr.DeleteRecordsRequest):
                await trio.lowlevel.checkpoint()
                raise fault
            return await asks(node_id, response_class, message, **named)

        client.request = request
        with pytest.raises(AdminError) as caught:
            await admin.within(500).delete_records({("t", 0): 5})
        assert {name: str(error) for name, error in caught.value.failures.items()} == {
            "t-0": f"REQUEST_TIMED_OUT: {text}"
        }

    simulate(scenario, {})


@pytest.mark.parametrize("refused", [1, 2])
def test_refused_offsets_are_named_unless_all_are(refused):
    """Of two partitions; a refusal of all has one reason, which its code tells."""

    def commit(broker, request):
        return oc.OffsetCommitResponse(
            topics=[
                oc.OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        oc.OffsetCommitResponsePartition(
                            partition_index=each.partition_index,
                            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                            if each.partition_index < refused
                            else ErrorCode.NONE,
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async def scenario(cluster, admin):
        with pytest.raises(KafkaError) as caught:
            await admin.alter_group_offsets("g", {("t", 0): 5, ("t", 1): 6})
        assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert isinstance(caught.value, AdminError) is (refused == 1)
        if refused == 1:
            assert list(caught.value.failures) == ["t-0"]

    simulate(scenario, {ApiKey.OFFSET_COMMIT: commit})


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND])
def test_a_dead_group_may_be_one_of_consumers(code):
    """Versions before 6 of DescribeGroups say that a group is unknown by its state alone (KIP-1043)."""
    dead = desc.DescribeGroupsResponse(groups=[desc.DescribedGroup(group_id="g", group_state="Dead", error_code=code)])
    found = cgd.ConsumerGroupDescribeResponse(
        groups=[cgd.DescribedGroup(group_id="g", group_state="Stable", group_epoch=4)]
    )

    async def scenario(cluster, admin):
        group = (await admin.describe_groups(["g"]))["g"]
        assert (group.type, group.state, group.epoch) == ("consumer", "Stable", 4)

    simulate(scenario, {ApiKey.DESCRIBE_GROUPS: lambda *_: dead, ApiKey.CONSUMER_GROUP_DESCRIBE: lambda *_: found})


class Elsewhere(Requester):
    """Finds the brokers of another cluster when it looks for them."""

    async def fetch_brokers(self):
        await trio.lowlevel.checkpoint()
        self.cluster_client.clusters_left += 1
        return [5]


def test_a_broker_of_another_cluster_is_not_the_named_one():
    """The bootstrap servers lead there while the client looks for the broker, whose id is used there too."""
    client = SimpleNamespace(clusters_left=0, cluster_metadata=ClusterMetadata())
    client.check_cluster = lambda *named: ClusterClient.check_cluster(client, *named)
    requester = Elsewhere(SimpleNamespace(check=lambda: None), timeout_ms=1_000, retries=0)
    requester.cluster_client = client
    with pytest.raises(KafkaError) as caught:
        trio.run(requester.ensure_broker_known, 5)
    assert caught.value.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_a_repeated_request_goes_to_the_broker_that_was_named():
    """The client finds another cluster between two attempts: a broker with the same id there gets nothing."""
    named, client = [], SimpleNamespace(clusters_left=3, now_ms=0.0, asks_controllers=False)
    client.cluster_metadata = ClusterMetadata(brokers={5: BrokerNode(node_id=5, host="b", port=1)})
    client.request_update = lambda: None

    async def backoff(_):
        await trio.lowlevel.checkpoint()
        client.clusters_left += 1

    async def request(*_, named_in, **__):
        await trio.lowlevel.checkpoint()
        named.append(named_in)
        if len(named) == 1:
            raise ConnectionError("lost")
        return "answer"

    client.backoff, client.request = backoff, request
    requester = Requester(SimpleNamespace(check=lambda: None), timeout_ms=1_000, retries=5)
    requester.cluster_client = client

    async def main():
        return await requester.ask(quotas.AlterClientQuotasResponse, quotas.AlterClientQuotasRequest(), node_id=5)

    assert (trio.run(main), named) == ("answer", [3, 3])


@pytest.mark.parametrize("is_open", [True, False])
def test_a_prepared_transaction_without_records_needs_no_end(is_open):
    """Its coordinator does not know it, and would refuse the end."""
    ended = []

    def end(broker, request):
        ended.append(request.committed)
        return EndTxnResponse()

    async def scenario(cluster, admin):
        prepared = PreparedTransaction(transactional_id="tx", producer_id=7, producer_epoch=0, is_open=is_open)
        await admin.end_transaction(prepared, commit=True)

    simulate(scenario, {ApiKey.END_TXN: end})
    assert ended == ([True] if is_open else [])


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.NOT_CONTROLLER, ErrorCode.POLICY_VIOLATION])
def test_only_a_controller_that_does_not_lead_is_passed_over(code):
    """A client of controllers (KIP-919) looks for the active one again, and takes every other answer."""
    answer = refusal(UnregisterBrokerRequest(broker_id=1), code)
    assert _not_controller(answer) is (code if code is ErrorCode.NOT_CONTROLLER else None)


def test_a_refusal_of_a_named_broker_ends_the_call():
    """An attempt before it got no answer; the broker that the caller has named has no successor."""
    faults = [ConnectionError("cut"), KafkaError(ErrorCode.NETWORK_EXCEPTION, "gone"), AssertionError("asked again")]

    async def scenario(cluster, admin):
        client = admin._requester.client
        asks = client.request

        async def request(node_id, response_class, message, **named):
            if isinstance(message, DescribeLogDirsRequest):
                await trio.lowlevel.checkpoint()
                raise faults.pop(0)
            return await asks(node_id, response_class, message, **named)

        client.request = request
        with pytest.raises(KafkaError) as caught:
            await admin.describe_log_dirs([1])
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        assert len(faults) == 1

    simulate(scenario, {})


def test_errors_are_in_the_order_of_the_names():
    """The first is refused for a while and then for good, after the second one."""
    answers = iter(
        [
            {"a": ErrorCode.THROTTLING_QUOTA_EXCEEDED, "b": ErrorCode.POLICY_VIOLATION, "c": ErrorCode.NONE},
            {"a": ErrorCode.INVALID_PARTITIONS},
        ]
    )

    def extend(broker, request):
        codes = next(answers)
        assert [each.name for each in request.topics] == list(codes)
        return cp.CreatePartitionsResponse(
            results=[cp.CreatePartitionsTopicResult(name=name, error_code=code) for name, code in codes.items()]
        )

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.create_partitions(dict.fromkeys("abc", 5))
        assert [(name, one.code) for name, one in caught.value.failures.items()] == [
            ("a", ErrorCode.INVALID_PARTITIONS),
            ("b", ErrorCode.POLICY_VIOLATION),
        ]

    simulate(scenario, {ApiKey.CREATE_PARTITIONS: extend})


def test_a_broker_that_is_gone_hides_no_other_configuration():
    async def scenario(cluster, admin):
        resources = [ConfigResource(type=ResourceType.BROKER, name=name) for name in "17"]
        with pytest.raises(AdminError) as caught:
            await admin.describe_configs(resources)
        assert {name: one.code for name, one in caught.value.failures.items()} == {"7": ErrorCode.BROKER_NOT_AVAILABLE}
        assert caught.value.results == {resources[0]: {}}

    def describe(broker, request):
        results = [dc.DescribeConfigsResult(resource_type=ResourceType.BROKER, resource_name=str(broker))]
        return dc.DescribeConfigsResponse(results=results)

    simulate(scenario, {ApiKey.DESCRIBE_CONFIGS: describe})


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_is_stored_as_a_login_will_prove_it(mechanism):
    asked = []

    def alter(broker, request):
        asked.extend(request.upsertions)
        return refusal(request, ErrorCode.NONE)

    async def scenario(cluster, admin):
        await admin.set_user_password("alice", "secret", mechanism=mechanism, iterations=5000)
        (stored,) = asked
        salt = bytes(stored.salt)
        assert (stored.name, stored.iterations, len(salt) >= 16) == ("alice", 5000, True)
        assert bytes(stored.salted_password) == salted_password(mechanism, "secret", salt, 5000)

    simulate(scenario, {ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter})


@pytest.mark.parametrize(("epoch", "leader"), [(4, 1), (5, 9)])
def test_a_leader_that_the_listener_lacks_is_not_named(monkeypatch, epoch, leader):
    """The second answer, about eligible replicas, names leaders without a look at the listener; a newer one counts."""
    part = PartitionDescription(partition=0, leader=1, leader_epoch=4, replicas=(1, 2), isr=(1,))
    topic = TopicDescription(name="t", topic_id=ZERO_UUID, is_internal=False, partitions=(part,))
    eligible = replace(part, leader=9, leader_epoch=epoch, elr=(2,))

    async def described(requester, names, node_id):
        assert (names, node_id) == (["t"], 3)
        return {(ZERO_UUID, 0): eligible}

    monkeypatch.setattr(eligible_replicas, "described_with_eligible", described)
    found = {"t": topic}
    trio.run(_add_eligible, None, found, 3)
    assert found["t"].partitions == (replace(eligible, leader=leader),)


def test_a_description_that_old_brokers_lack_harms_no_call():
    """Brokers before Kafka 3.1 can be used: only topics by id cannot be described."""

    async def scenario(cluster, admin):
        cluster.max_versions[ApiKey.METADATA] = 11
        with pytest.raises(KafkaError) as caught:
            await admin.describe_topics([cluster.ids["t"]])
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert list(await admin.list_offsets({("t", 0): LATEST})) == [("t", 0)]

    simulate(scenario, {})
