"""Goal: a call about several things names each one that failed, whatever became of the others.

Method: canned answers of a small cluster on virtual time.
"""

from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from moldau import TopicPartition
from moldau.admin import AdminError
from moldau.admin.calls.transactions import Transactions
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages import alter_replica_log_dirs as ald
from moldau.protocol.messages import alter_share_group_offsets as asg
from moldau.protocol.messages import delete_records as dr
from moldau.protocol.messages import delete_topics as dt
from moldau.protocol.messages import describe_log_dirs as dl
from moldau.protocol.messages import describe_share_group_offsets as dsg
from moldau.protocol.messages import describe_user_scram_credentials as du
from moldau.protocol.messages import leave_group as lg
from moldau.protocol.messages import offset_delete as od
from moldau.protocol.messages import offset_fetch as of
from support.client.admin_stories import simulate


def codes_of(error):
    return {name: each.code for name, each in error.value.failures.items()}


@pytest.mark.parametrize("ends", [True, False])
def test_a_partition_that_stays_refused_keeps_the_others(ends):
    """Records of one partition are deleted, those of one never; a third has no leader at first, or for the whole time.

    A partition that is done is not asked for again.
    """
    codes = {0: ErrorCode.NONE, 1: ErrorCode.OFFSET_OUT_OF_RANGE, 2: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    asked = []

    def delete(broker, request):
        (topic,) = request.topics
        found = {part.partition_index: codes[part.partition_index] for part in topic.partitions}
        asked.append(sorted(found))
        if ends:
            codes[2] = ErrorCode.NONE
        results = [
            dr.DeleteRecordsPartitionResult(partition_index=number, error_code=code, low_watermark=7 + number)
            for number, code in found.items()
        ]
        return dr.DeleteRecordsResponse(topics=[dr.DeleteRecordsTopicResult(name=topic.name, partitions=results)])

    async def scenario(cluster, admin):
        for partition in cluster.add_topic("u", 3):
            partition.leader = 1
        with pytest.raises(AdminError) as caught:
            await admin.within(2_000).delete_records({("u", number): 7 + number for number in range(3)})
        left = {} if ends else {"u-2": ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert codes_of(caught) == {"u-1": ErrorCode.OFFSET_OUT_OF_RANGE} | left
        done = {TopicPartition("u", 0): 7} | ({TopicPartition("u", 2): 9} if ends else {})
        assert caught.value.results == done
        assert asked[0] == [0, 1, 2]
        assert {*map(tuple, asked[1:])} == {(2,)}

    simulate(scenario, {ApiKey.DELETE_RECORDS: delete})


def test_a_topic_that_goes_keeps_the_outcome_of_the_others():
    """One topic is deleted while its records are; another one has no leader yet, and a third is done."""
    outcomes = {"done": ErrorCode.NONE}

    async def scenario(cluster, admin):
        for name in ("done", "gone", "late"):
            cluster.add_topic(name, 1)

        def delete(broker, request):
            cluster.topics.pop("gone", None)
            topics = []
            for topic in request.topics:
                code = outcomes.get(topic.name, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                part = dr.DeleteRecordsPartitionResult(partition_index=0, error_code=code, low_watermark=5)
                topics.append(dr.DeleteRecordsTopicResult(name=topic.name, partitions=[part]))
            return dr.DeleteRecordsResponse(topics=topics)

        cluster.handlers = {ApiKey.DELETE_RECORDS: delete}
        with pytest.raises(AdminError) as caught:
            await admin.delete_records({(name, 0): 5 for name in ("done", "gone", "late")})
        assert codes_of(caught) == {
            "gone-0": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "late-0": ErrorCode.NOT_LEADER_OR_FOLLOWER,
        }
        assert caught.value.results == {TopicPartition("done", 0): 5}

    simulate(scenario, {})


def test_a_user_without_a_credential_keeps_the_others():
    """Their credentials were lost, though ``results`` has what a call returns for those that did not fail."""

    def describe(broker, request):
        info = du.CredentialInfo(mechanism=1, iterations=4096)
        return du.DescribeUserScramCredentialsResponse(
            results=[
                du.DescribeUserScramCredentialsResult(user=each.name, error_code=ErrorCode.RESOURCE_NOT_FOUND)
                if each.name == "none"
                else du.DescribeUserScramCredentialsResult(user=each.name, credential_infos=[info])
                for each in request.users
            ]
        )

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.describe_users(["bob", "none", "alice"])
        assert codes_of(caught) == {"none": ErrorCode.RESOURCE_NOT_FOUND}
        assert caught.value.results == await admin.describe_users(["bob", "alice"])
        assert [each.user for each in caught.value.results] == ["alice", "bob"]

    simulate(scenario, {ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe})


@pytest.mark.parametrize("wanted", [["one", "two", "three"], ["two"]])
def test_a_member_that_stays_is_named(wanted):
    """Some of the static members are removed, and the coordinator does not know one."""

    def leave(broker, request):
        return lg.LeaveGroupResponse(
            members=[
                lg.MemberResponse(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=ErrorCode.UNKNOWN_MEMBER_ID if each.group_instance_id == "two" else ErrorCode.NONE,
                )
                for each in request.members
            ]
        )

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.remove_group_members("g", wanted)
        assert codes_of(caught) == {"two": ErrorCode.UNKNOWN_MEMBER_ID}
        assert caught.value.results == [name for name in wanted if name != "two"]
        assert await admin.remove_group_members("g", ["one"]) == ["one"]

    simulate(scenario, {ApiKey.LEAVE_GROUP: leave})


def test_an_offset_that_stays_is_named():
    """A member reads one of the topics, so the offsets of its partitions are kept."""

    def delete(broker, request):
        return od.OffsetDeleteResponse(
            topics=[
                od.OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        od.OffsetDeleteResponsePartition(
                            partition_index=part.partition_index,
                            error_code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic.name == "read" else ErrorCode.NONE,
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.delete_group_offsets("g", [("free", 0), ("read", 1), ("read", 0), ("same", 2)])
        kept = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert codes_of(caught) == {"read-0": kept, "read-1": kept}
        await admin.delete_group_offsets("g", [("free", 0)])

    simulate(scenario, {ApiKey.OFFSET_DELETE: delete})


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_a_broker_that_shows_no_directories_is_named(code, named):
    """It refuses the client; the other one has a directory, and a third question is about that one alone.

    Brokers before Kafka 3.2 have no code for that, and answer with nothing.
    """

    def describe(broker, request):
        if broker == 2:
            return dl.DescribeLogDirsResponse(error_code=code)
        return dl.DescribeLogDirsResponse(results=[dl.DescribeLogDirsResult(log_dir="/d")])

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.describe_log_dirs([1, 2])
        assert codes_of(caught) == {"broker 2 (broker2:9092)": named}
        assert {node_id: [each.path for each in found] for node_id, found in caught.value.results.items()} == {
            1: ["/d"]
        }
        with pytest.raises(KafkaError) as refused:
            await admin.describe_log_dirs([2])
        assert refused.value.code is named
        assert refused.value.message == named.message
        assert [*await admin.describe_log_dirs([1])] == [1]

    simulate(scenario, {ApiKey.DESCRIBE_LOG_DIRS: describe})


def test_a_share_offset_that_cannot_be_read_is_named():
    """The state of one partition of two is not available, whichever of them it is."""
    refused = {"number": 0}

    def describe(broker, request):
        parts = [
            dsg.DescribeShareGroupOffsetsResponsePartition(
                partition_index=number,
                start_offset=5 + number,
                error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if number == refused["number"] else ErrorCode.NONE,
            )
            for number in range(2)
        ]
        topic = dsg.DescribeShareGroupOffsetsResponseTopic(topic_name="t", partitions=parts)
        return dsg.DescribeShareGroupOffsetsResponse(
            groups=[dsg.DescribeShareGroupOffsetsResponseGroup(group_id="g", topics=[topic])]
        )

    async def scenario(cluster, admin):
        for number in range(2):
            refused["number"] = number
            with pytest.raises(AdminError) as caught:
                await admin.list_share_group_offsets("g")
            assert codes_of(caught) == {f"t-{number}": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            assert {each: found.start_offset for each, found in caught.value.results.items()} == {
                TopicPartition("t", 1 - number): 6 - number
            }

    simulate(scenario, {ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: describe})


def test_moves_of_a_partition_fail_on_each_broker_alone():
    """The replica is to move on both brokers, and each refuses; the names must not hide one another."""

    def alter(broker, request):
        code = ErrorCode.LOG_DIR_NOT_FOUND if broker == 1 else ErrorCode.KAFKA_STORAGE_ERROR
        part = ald.AlterReplicaLogDirPartitionResult(partition_index=0, error_code=code)
        return ald.AlterReplicaLogDirsResponse(
            results=[ald.AlterReplicaLogDirTopicResult(topic_name="t", partitions=[part])]
        )

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.alter_replica_log_dirs({("t", 0, broker): "/d2" for broker in (1, 2)})
        assert codes_of(caught) == {
            "t-0 on broker 1": ErrorCode.LOG_DIR_NOT_FOUND,
            "t-0 on broker 2": ErrorCode.KAFKA_STORAGE_ERROR,
        }

    simulate(scenario, {ApiKey.ALTER_REPLICA_LOG_DIRS: alter})


def test_replicas_of_a_broker_that_answers_have_their_place():
    """The results were those of an inner call: directories by broker, and not places by replica."""

    def describe(broker, request):
        if broker == 2:
            return dl.DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        topic = dl.DescribeLogDirsTopic(name="t", partitions=[dl.DescribeLogDirsPartition(partition_index=0)])
        return dl.DescribeLogDirsResponse(results=[dl.DescribeLogDirsResult(log_dir="/d", topics=[topic])])

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.describe_replica_log_dirs([("t", 0, 1), ("t", 0, 2), ("t", 5, 1)])
        assert codes_of(caught) == {"broker 2 (broker2:9092)": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
        assert {key: each.path for key, each in caught.value.results.items()} == {("t", 0, 1): "/d", ("t", 5, 1): None}

    simulate(scenario, {ApiKey.DESCRIBE_LOG_DIRS: describe})


def test_a_topic_that_stays_is_named_as_it_was_asked_for():
    """Topics are deleted by id; the answers have their names, too (KIP-516)."""
    ids = [UUID(int=number) for number in (71, 72)]

    def delete(broker, request):
        return dt.DeleteTopicsResponse(
            responses=[
                dt.DeletableTopicResult(
                    name=f"topic-{each.topic_id.int}",
                    topic_id=each.topic_id,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED if each.topic_id == ids[0] else ErrorCode.NONE,
                )
                for each in request.topics
            ]
        )

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.delete_topics(ids)
        assert codes_of(caught) == {str(ids[0]): ErrorCode.TOPIC_AUTHORIZATION_FAILED}

    simulate(scenario, {ApiKey.DELETE_TOPICS: delete})


def test_a_refused_share_offset_has_the_brokers_reason():
    """It is not one of those that the answer leaves out."""

    def alter(broker, request):
        part = asg.AlterShareGroupOffsetsResponsePartition(
            partition_index=0, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message="no right"
        )
        topic = asg.AlterShareGroupOffsetsResponseTopic(topic_name="t", partitions=[part])
        return asg.AlterShareGroupOffsetsResponse(responses=[topic])

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.alter_share_group_offsets("g", {("t", 0): 5, ("t", 1): 5})
        assert codes_of(caught) == {
            "t-0": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "t-1": ErrorCode.UNKNOWN_SERVER_ERROR,
        }

    simulate(scenario, {ApiKey.ALTER_SHARE_GROUP_OFFSETS: alter})


@pytest.mark.parametrize(("leader", "code"), [(0, None), (-1, ErrorCode.LEADER_NOT_AVAILABLE)])
def test_a_leader_with_the_id_0_is_a_leader(leader, code):
    """Many clusters number their brokers from 0 on."""

    async def known(_):
        await trio.lowlevel.checkpoint()

    async def describe(names):
        await trio.lowlevel.checkpoint()
        return {"t": SimpleNamespace(partitions=[SimpleNamespace(partition=0, leader=leader)])}

    calls = Transactions(SimpleNamespace(ensure_broker_known=known), SimpleNamespace(describe_topics=describe))
    if code is None:
        assert trio.run(calls._leader, TopicPartition("t", 0)) == leader
    else:
        with pytest.raises(KafkaError) as caught:
            trio.run(calls._leader, TopicPartition("t", 0))
        assert caught.value.code is code


def test_a_group_at_offset_0_has_an_offset():
    """It has read nothing yet, and goes on there; -1 is the one of a partition without an offset."""

    def fetch(broker, request):
        parts = [
            of.OffsetFetchResponsePartitions(partition_index=number, committed_offset=offset)
            for number, offset in enumerate((0, -1, 7))
        ]
        topic = of.OffsetFetchResponseTopics(name="t", partitions=parts)
        return of.OffsetFetchResponse(groups=[of.OffsetFetchResponseGroup(group_id="g", topics=[topic])])

    async def scenario(cluster, admin):
        found = await admin.list_group_offsets("g")
        assert {place.partition: each.offset for place, each in found.items()} == {0: 0, 2: 7}

    simulate(scenario, {ApiKey.OFFSET_FETCH: fetch})
