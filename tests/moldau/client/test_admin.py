"""The admin client against canned answers: its requests, their destinations, its results and errors."""

from uuid import UUID

import pytest
import trio

from moldau import Admin, KafkaError, TopicPartition
from moldau.admin import (
    EARLIEST,
    LATEST,
    AdminError,
    ConfigAlteration,
    ConfigOperation,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from moldau.cluster.group_bytes import encode_assignment
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import alter_partition_reassignments as apr
from moldau.protocol.messages import alter_share_group_offsets as asg
from moldau.protocol.messages import consumer_group_describe as cgd
from moldau.protocol.messages import create_partitions as cp
from moldau.protocol.messages import create_topics as ct
from moldau.protocol.messages import delete_groups as dg
from moldau.protocol.messages import delete_records as dr
from moldau.protocol.messages import delete_topics as dt
from moldau.protocol.messages import describe_cluster as dcl
from moldau.protocol.messages import describe_configs as dc
from moldau.protocol.messages import describe_groups as desc
from moldau.protocol.messages import describe_log_dirs as dld
from moldau.protocol.messages import describe_quorum as dq
from moldau.protocol.messages import elect_leaders as el
from moldau.protocol.messages import incremental_alter_configs as iac
from moldau.protocol.messages import list_config_resources as lcr
from moldau.protocol.messages import list_groups as lg
from moldau.protocol.messages import list_offsets as lo
from moldau.protocol.messages import list_partition_reassignments as lpr
from moldau.runtime.config import ConfigError, ConfigSource
from support.client.admin_stories import simulate


def asked(cluster, key):
    return [(broker, request) for broker, each, request in cluster.requests if each == key]


def once(answer):
    """A handler with one answer."""
    return lambda broker, request: answer


def test_topics_are_created_as_described():
    codes = iter([ErrorCode.NOT_CONTROLLER, ErrorCode.NONE])

    def create(broker, request):
        code = next(codes)
        return ct.CreateTopicsResponse(
            topics=[
                ct.CreatableTopicResult(
                    name=each.name, topic_id=UUID(int=5), error_code=code, num_partitions=3, replication_factor=2
                )
                for each in request.topics
            ]
        )

    async def scenario(cluster, admin):
        plain = NewTopic(name="a", partitions=3, replication_factor=2, configs={"retention.ms": "5"})
        placed = NewTopic(name="b", assignments={0: [2, 1]})
        created = await admin.create_topics([plain, placed])
        assert [(each.name, each.partitions, each.topic_id) for each in created] == [
            ("a", 3, UUID(int=5)),
            ("b", 3, UUID(int=5)),
        ]
        requests = asked(cluster, ApiKey.CREATE_TOPICS)
        assert len(requests) == 2, "a retriable error is tried again"
        first, second = requests[-1][1].topics
        assert (first.num_partitions, first.configs[0].name, first.configs[0].value) == (3, "retention.ms", "5")
        assert (second.num_partitions, second.assignments[0].broker_ids) == (-1, (2, 1))

    simulate(scenario, {ApiKey.CREATE_TOPICS: create})


def test_each_failure_is_named():
    def create(broker, request):
        codes = {"a": ErrorCode.TOPIC_ALREADY_EXISTS, "b": ErrorCode.NONE, "c": ErrorCode.INVALID_PARTITIONS}
        return ct.CreateTopicsResponse(
            topics=[ct.CreatableTopicResult(name=n, error_code=c, error_message=f"no {n}") for n, c in codes.items()]
        )

    def delete(broker, request):
        return dt.DeleteTopicsResponse(
            responses=[dt.DeletableTopicResult(name=n, error_code=3 if n == "x" else 0) for n in request.topic_names]
            or [dt.DeletableTopicResult(name=t.name, error_code=3 if t.name == "x" else 0) for t in request.topics]
        )

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.create_topics([NewTopic(name=name) for name in "abc"])
        assert {name: error.code for name, error in caught.value.failures.items()} == {
            "a": ErrorCode.TOPIC_ALREADY_EXISTS,
            "c": ErrorCode.INVALID_PARTITIONS,
        }
        assert str(caught.value).startswith("a: TOPIC_ALREADY_EXISTS: no a; c: INVALID_PARTITIONS: ")
        await admin.delete_topics(["t"])
        with pytest.raises(AdminError, match="x: UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.delete_topics(["t", "x"])

    simulate(scenario, {ApiKey.CREATE_TOPICS: create, ApiKey.DELETE_TOPICS: delete})


def test_topics_are_listed_and_described():
    async def scenario(cluster, admin):
        assert [(each.name, each.partition_count) for each in await admin.list_topics()] == [("t", 2)]
        described = await admin.describe_topics(["t"])
        assert [(part.partition, part.leader, part.isr) for part in described["t"].partitions] == [
            (0, 1, (1, 2)),
            (1, 2, (1, 2)),
        ]
        with pytest.raises(AdminError, match="nope: UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.describe_topics(["t", "nope"])

    simulate(scenario, {})


def test_one_broker_is_asked_what_it_knows_of_a_topic():
    """The second broker has not yet heard of the topic."""

    async def scenario(cluster, admin):
        def metadata_of_others(broker, request):
            answer = cluster.on_metadata(broker, request)
            if broker == 2:
                for topic in answer.topics:
                    topic.error_code, topic.partitions = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
            return answer

        cluster.handlers[ApiKey.METADATA] = metadata_of_others
        for _ in range(5):
            assert list(await admin.describe_topics(["t"], node_id=1)) == ["t"]
            with pytest.raises(AdminError, match="t: UNKNOWN_TOPIC_OR_PARTITION"):
                await admin.describe_topics(["t"], node_id=2)
        with pytest.raises(KafkaError, match="no live broker 9"):
            await admin.describe_topics(["t"], node_id=9)

    simulate(scenario, {})


def test_partitions_are_added():
    answer = cp.CreatePartitionsResponse(results=[cp.CreatePartitionsTopicResult(name="t")])

    async def scenario(cluster, admin):
        await admin.create_partitions({"t": 4}, assignments={"t": [[1], [2]]})
        (topic,) = asked(cluster, ApiKey.CREATE_PARTITIONS)[0][1].topics
        assert (topic.count, [each.broker_ids for each in topic.assignments]) == (4, [(1,), (2,)])

    simulate(scenario, {ApiKey.CREATE_PARTITIONS: once(answer)})


def test_configurations_of_a_broker_come_from_that_broker():
    def describe(broker, request):
        return dc.DescribeConfigsResponse(
            results=[
                dc.DescribeConfigsResult(
                    error_code=0 if each.resource_name != "x" else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    configs=[
                        dc.DescribeConfigsResourceResult(name="retention.ms", value="5", config_source=5),
                        dc.DescribeConfigsResourceResult(name="answered.by", value=str(broker), config_source=99),
                    ],
                )
                for each in request.resources
            ]
        )

    async def scenario(cluster, admin):
        topic = ConfigResource(type=ResourceType.TOPIC, name="t")
        second = ConfigResource(type=ResourceType.BROKER, name="2")
        found = await admin.describe_configs([topic, second])
        assert found[topic]["retention.ms"].is_default
        assert found[topic]["answered.by"].source is ConfigSource.UNKNOWN
        assert found[second]["answered.by"].value == "2"
        with pytest.raises(AdminError, match="x: UNKNOWN_TOPIC"):
            await admin.describe_configs([ConfigResource(type=ResourceType.TOPIC, name="x")])
        with pytest.raises(KafkaError, match="no live broker 9"):
            await admin.describe_configs([ConfigResource(type=ResourceType.BROKER, name="9")])
        with pytest.raises(ValueError, match="no number"):
            await admin.describe_configs([ConfigResource(type=ResourceType.BROKER, name="nine")])

    simulate(scenario, {ApiKey.DESCRIBE_CONFIGS: describe})


def test_configurations_are_altered_key_by_key():
    def alter(broker, request):
        return iac.IncrementalAlterConfigsResponse(
            responses=[
                iac.AlterConfigsResourceResponse(
                    resource_type=2, resource_name=each.resource_name, error_code=40 if each.resource_name == "x" else 0
                )
                for each in request.resources
            ]
        )

    async def scenario(cluster, admin):
        topic = ConfigResource(type=ResourceType.TOPIC, name="t")
        changes = [
            ConfigAlteration(name="retention.ms", value="5"),
            ConfigAlteration(name="segment.ms", value="ignored", operation=ConfigOperation.DELETE),
        ]
        await admin.alter_configs({topic: changes}, validate_only=True)
        request = asked(cluster, ApiKey.INCREMENTAL_ALTER_CONFIGS)[0][1]
        assert request.validate_only
        assert [(c.name, c.config_operation, c.value) for c in request.resources[0].configs] == [
            ("retention.ms", 0, "5"),
            ("segment.ms", 1, None),
        ]
        with pytest.raises(AdminError, match="x: INVALID_CONFIG"):
            await admin.alter_configs({ConfigResource(type=ResourceType.TOPIC, name="x"): changes})

    simulate(scenario, {ApiKey.INCREMENTAL_ALTER_CONFIGS: alter})


@pytest.mark.parametrize("refused", [{2}, {32}, {2, 32}])
def test_resources_of_one_name_fail_with_their_types(refused):
    """A topic and a group may have one name, and one answer holds both."""

    def alter(broker, request):
        return iac.IncrementalAlterConfigsResponse(
            responses=[
                iac.AlterConfigsResourceResponse(
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    error_code=40 if each.resource_type in refused else 0,
                )
                for each in request.resources
            ]
        )

    def describe(broker, request):
        return dc.DescribeConfigsResponse(
            results=[
                dc.DescribeConfigsResult(
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    error_code=40 if each.resource_type in refused else 0,
                )
                for each in request.resources
            ]
        )

    async def scenario(cluster, admin):
        resources = [ConfigResource(type=kind, name="orders") for kind in (ResourceType.TOPIC, ResourceType.GROUP)]
        wanted = {f"{each.type.name.lower()} orders" for each in resources if each.type in refused}
        with pytest.raises(AdminError, match="orders: INVALID_CONFIG") as caught:
            await admin.alter_configs({each: [ConfigAlteration(name="a.key", value="5")] for each in resources})
        assert set(caught.value.failures) == wanted
        with pytest.raises(AdminError, match="orders: INVALID_CONFIG") as caught:
            await admin.describe_configs([*resources, resources[0]])
        assert set(caught.value.failures) == wanted
        with pytest.raises(AdminError) as caught:
            await admin.describe_configs([each for each in resources if each.type in refused][:1] * 2)
        assert set(caught.value.failures) == {"orders"}

    simulate(scenario, {ApiKey.INCREMENTAL_ALTER_CONFIGS: alter, ApiKey.DESCRIBE_CONFIGS: describe})


def test_cluster_and_quorum():
    cluster_answer = dcl.DescribeClusterResponse(
        cluster_id="c",
        controller_id=101,
        brokers=[dcl.DescribeClusterBroker(broker_id=n, host=f"h{n}", port=n, rack="r") for n in (2, 1)],
    )
    states = [dq.ReplicaState(replica_id=101, log_end_offset=9, last_fetch_timestamp=5)]
    partition = dq.DescribeQuorumResponsePartitionData(
        leader_id=101, leader_epoch=3, high_watermark=8, current_voters=states
    )
    topics = [dq.DescribeQuorumResponseTopicData(topic_name="__cluster_metadata", partitions=[partition])]
    answers = iter([dq.DescribeQuorumResponse(error_code=41), dq.DescribeQuorumResponse(topics=topics)])

    async def scenario(cluster, admin):
        described = await admin.describe_cluster()
        assert (described.cluster_id, described.controller_id) == ("c", 101)
        assert [(b.node_id, b.host, b.rack) for b in described.brokers] == [(1, "h1", "r"), (2, "h2", "r")]
        quorum = await admin.describe_quorum()
        assert (quorum.leader_id, quorum.leader_epoch, quorum.high_watermark) == (101, 3, 8)
        assert [(v.replica_id, v.log_end_offset, v.last_fetch_ms) for v in quorum.voters] == [(101, 9, 5)]

    handlers = {
        ApiKey.DESCRIBE_CLUSTER: once(cluster_answer),
        ApiKey.DESCRIBE_QUORUM: lambda broker, request: next(answers),
    }
    simulate(scenario, handlers)


def test_offsets_at_both_ends():
    async def scenario(cluster, admin):
        cluster.topics["t"][0].end = 7
        found = await admin.list_offsets({("t", 0): LATEST, ("t", 1): EARLIEST})
        assert found == {TopicPartition("t", 0): (7, -1), TopicPartition("t", 1): (0, -1)}
        with pytest.raises(KafkaError, match="topic t has partitions 0 to 1, not 5"):
            await admin.list_offsets({("t", 5): LATEST})

    simulate(scenario, {}, **{"default.api.timeout.ms": 2000})


def test_each_missing_offset_has_its_own_reason():
    """An offset that a broker left out was blamed on a missing leader, or on the last error of another partition."""

    def answer(broker, request):
        if broker == 2:
            return trio.sleep_forever
        parts = {
            each.partition_index: lo.ListOffsetsPartitionResponse(
                partition_index=each.partition_index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
            for topic in request.topics
            for each in topic.partitions
        }
        parts.pop(0)
        return lo.ListOffsetsResponse(topics=[lo.ListOffsetsTopicResponse(name="u", partitions=list(parts.values()))])

    async def scenario(cluster, admin):
        for part, leader in zip(cluster.add_topic("u", 4), (1, 1, 2, -1), strict=True):
            part.leader = leader
        cluster.handlers[ApiKey.LIST_OFFSETS] = answer
        with pytest.raises(AdminError) as caught:
            await admin.within(3_000).list_offsets({("u", number): LATEST for number in range(4)})
        causes = [str(error).partition(" ms (")[2] for error in caught.value.failures.values()]
        assert causes == [
            "the answer of broker 1 has neither an offset nor an error)",
            "NOT_LEADER_OR_FOLLOWER)",
            "broker 2 (broker2:9092) does not answer)",
            "LEADER_NOT_AVAILABLE)",
        ]

    simulate(scenario, {})


def test_offsets_of_one_partition_fail_alone():
    """One partition is refused, one has no leader that answers, and the third one's offset is known."""

    def answer(broker, request):
        if broker == silent:
            return None
        parts = [each.partition_index for topic in request.topics for each in topic.partitions]
        code = {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        answers = [
            lo.ListOffsetsPartitionResponse(partition_index=each, error_code=code.get(each, ErrorCode.NONE), offset=9)
            for each in parts
        ]
        return lo.ListOffsetsResponse(topics=[lo.ListOffsetsTopicResponse(name="u", partitions=answers)])

    async def scenario(cluster, admin):
        nonlocal silent
        for part, leader in zip(cluster.add_topic("u", 3), (1, 2, 1), strict=True):
            part.leader = leader
        silent = 2
        began = trio.current_time()
        with pytest.raises(AdminError) as caught:
            await admin.within(3_000).list_offsets({("u", number): LATEST for number in range(3)})
        assert trio.current_time() - began < 3.6
        assert caught.value.results == {TopicPartition("u", 2): (9, -1)}
        assert {name: error.code for name, error in caught.value.failures.items()} == {
            "u-0": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "u-1": ErrorCode.REQUEST_TIMED_OUT,
        }

    silent = -1
    simulate(scenario, {ApiKey.LIST_OFFSETS: answer})


def test_deletions_of_one_partition_fail_alone():
    """A topic and a partition do not exist, one leader does not answer, and one leaves a partition out."""

    def delete(broker, request):
        if broker == 2:
            return None
        done = [dr.DeleteRecordsPartitionResult(partition_index=0, low_watermark=5)]
        return dr.DeleteRecordsResponse(topics=[dr.DeleteRecordsTopicResult(name="u", partitions=done)])

    async def scenario(cluster, admin):
        for part, leader in zip(cluster.add_topic("u", 3), (1, 2, 1), strict=True):
            part.leader = leader
        wanted = {("nope", 0): 1, ("u", 0): 5, ("u", 1): 5, ("u", 2): 5, ("u", 9): 5}
        with pytest.raises(AdminError) as caught:
            await admin.within(3_000).delete_records(wanted)
        assert caught.value.results == {TopicPartition("u", 0): 5}
        assert {name: error.code for name, error in caught.value.failures.items()} == {
            "nope-0": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "u-1": ErrorCode.REQUEST_TIMED_OUT,
            "u-2": ErrorCode.UNKNOWN_SERVER_ERROR,
            "u-9": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }

    simulate(scenario, {ApiKey.DELETE_RECORDS: delete})


def test_groups():
    def list_groups(broker, request):
        return lg.ListGroupsResponse(
            groups=[lg.ListedGroup(group_id=f"g{broker}", protocol_type="consumer", group_state="Stable")]
        )

    def describe(broker, request):
        member = desc.DescribedGroupMember(
            member_id="m",
            client_id="c",
            client_host="/h",
            member_assignment=encode_assignment([TopicPartition("t", 1)]) if list(request.groups) == ["g"] else b"\xff",
        )
        return desc.DescribeGroupsResponse(
            groups=[
                desc.DescribedGroup(
                    group_id=request.groups[0], group_state="Stable", protocol_type="consumer", members=[member]
                )
            ]
        )

    def delete(broker, request):
        (name,) = request.groups_names
        code = ErrorCode.NON_EMPTY_GROUP if name == "busy" else ErrorCode.NONE
        return dg.DeleteGroupsResponse(results=[dg.DeletableGroupResult(group_id=name, error_code=code)])

    async def scenario(cluster, admin):
        assert [group.group_id for group in await admin.list_groups()] == ["g1", "g2"]
        described = (await admin.describe_groups(["g"]))["g"]
        assert (described.coordinator, described.members[0].assignment) == (1, (TopicPartition("t", 1),))
        foreign = (await admin.describe_groups(["other"]))["other"]
        assert foreign.members[0].assignment == ()
        await admin.delete_groups(["idle"])
        with pytest.raises(AdminError, match="busy: NON_EMPTY_GROUP"):
            await admin.delete_groups(["busy"])
        await admin.alter_group_offsets("g", {("t", 0): 44})
        assert cluster.offsets["g", "t", 0][0] == 44

    simulate(
        scenario,
        {ApiKey.LIST_GROUPS: list_groups, ApiKey.DESCRIBE_GROUPS: describe, ApiKey.DELETE_GROUPS: delete},
    )


def test_groups_of_the_consumer_protocol():
    """The coordinator does not know the group as a classic one, and is asked again."""

    def describe(broker, request):
        group = desc.DescribedGroup(
            group_id=request.groups[0], group_state="Dead", error_code=ErrorCode.GROUP_ID_NOT_FOUND
        )
        return desc.DescribeGroupsResponse(groups=[group])

    def describe_consumers(broker, request):
        (group_id,) = request.group_ids
        if group_id != "g":
            group = cgd.DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND)
            return cgd.ConsumerGroupDescribeResponse(groups=[group])
        held = cgd.Assignment(topic_partitions=[cgd.TopicPartitions(topic_name="t", partitions=[1, 0])])
        target = cgd.Assignment(topic_partitions=[cgd.TopicPartitions(topic_name="t", partitions=[1])])
        member = cgd.Member(member_id="m", member_epoch=3, assignment=held, target_assignment=target)
        group = cgd.DescribedGroup(
            group_id="g",
            group_state="Reconciling",
            group_epoch=4,
            assignment_epoch=4,
            assignor_name="uniform",
            members=[member],
        )
        return cgd.ConsumerGroupDescribeResponse(groups=[group])

    async def scenario(cluster, admin):
        found = await admin.describe_groups(["g", "none"])
        assert found["none"].state == "Dead"
        group = found["g"]
        assert (group.type, group.state, group.epoch, group.assignment_epoch) == ("consumer", "Reconciling", 4, 4)
        (member,) = group.members
        assert (member.epoch, member.assignment) == (3, (TopicPartition("t", 0), TopicPartition("t", 1)))
        assert member.target == (TopicPartition("t", 1),)

    simulate(scenario, {ApiKey.DESCRIBE_GROUPS: describe, ApiKey.CONSUMER_GROUP_DESCRIBE: describe_consumers})


def test_replicas_records_and_directories():
    def delete_records(broker, request):
        return dr.DeleteRecordsResponse(
            topics=[
                dr.DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        dr.DeleteRecordsPartitionResult(partition_index=p.partition_index, low_watermark=p.offset)
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    elected = el.ElectLeadersResponse(
        replica_election_results=[
            el.ReplicaElectionResult(
                topic="t",
                partition_result=[
                    el.PartitionResult(partition_id=0),
                    el.PartitionResult(partition_id=1, error_code=ErrorCode.ELECTION_NOT_NEEDED),
                ],
            )
        ]
    )
    reassigned = apr.AlterPartitionReassignmentsResponse(
        responses=[
            apr.ReassignableTopicResponse(
                name="t", partitions=[apr.ReassignablePartitionResponse(partition_index=1, error_code=39)]
            )
        ]
    )
    moving = lpr.ListPartitionReassignmentsResponse(
        topics=[
            lpr.OngoingTopicReassignment(
                name="t",
                partitions=[
                    lpr.OngoingPartitionReassignment(replicas=[1, 2], adding_replicas=[2], removing_replicas=[1])
                ],
            )
        ]
    )
    directory = dld.DescribeLogDirsResult(
        log_dir="/d",
        total_bytes=100,
        topics=[
            dld.DescribeLogDirsTopic(
                name="t", partitions=[dld.DescribeLogDirsPartition(partition_index=1, partition_size=7)]
            )
        ],
    )

    async def scenario(cluster, admin):
        assert await admin.delete_records({("t", 0): 5, ("t", 1): 6}) == {("t", 0): 5, ("t", 1): 6}
        assert sorted(broker for broker, _ in asked(cluster, ApiKey.DELETE_RECORDS)) == [1, 2], "each leader is asked"
        assert await admin.elect_leaders([("t", 0), ("t", 1)]) == [("t", 0)]
        with pytest.raises(AdminError, match="t-1: INVALID_REPLICA_ASSIGNMENT"):
            await admin.alter_partition_reassignments({("t", 1): [2, 3], ("t", 0): None})
        request = asked(cluster, ApiKey.ALTER_PARTITION_REASSIGNMENTS)[0][1]
        assert [p.replicas for p in request.topics[0].partitions] == [None, (2, 3)]
        moves = await admin.list_partition_reassignments()
        assert (moves[TopicPartition("t", 0)].adding, moves[TopicPartition("t", 0)].removing) == ((2,), (1,))
        ((described,),) = (await admin.describe_log_dirs([2])).values()
        assert (described.path, described.partitions[0].size_bytes) == ("/d", 7)
        await admin.describe_log_dirs([2], partitions=[])
        await admin.describe_log_dirs([2], partitions=[("t", 1), ("t", 0)])
        topics = [request.topics for _, request in asked(cluster, ApiKey.DESCRIBE_LOG_DIRS)]
        named = [[(topic.topic, list(topic.partitions)) for topic in each or ()] for each in topics]
        assert (topics[0], named[1:]) == (None, [[], [("t", [0, 1])]])
        with pytest.raises(AdminError, match="t-9: UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.delete_records({("t", 9): 0})

    simulate(
        scenario,
        {
            ApiKey.DELETE_RECORDS: delete_records,
            ApiKey.ELECT_LEADERS: once(elected),
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: once(reassigned),
            ApiKey.LIST_PARTITION_REASSIGNMENTS: once(moving),
            ApiKey.DESCRIBE_LOG_DIRS: once(dld.DescribeLogDirsResponse(results=[directory])),
        },
    )


def test_a_dead_cluster_is_given_up_in_time():
    async def scenario(cluster, admin):
        await admin.list_topics()
        cluster.kill_broker(1)
        assert len(await admin.list_topics()) == 1, "any broker answers"
        cluster.kill_broker(2)
        started = trio.current_time()
        with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT: Metadata: no broker of broker1:9092"):
            await admin.list_topics()
        assert 2.9 < trio.current_time() - started < 6

    simulate(scenario, {}, **{"default.api.timeout.ms": 3000})


def test_a_request_that_is_given_up_tells_the_brokers_reason():
    def create(broker, request):
        refused = ct.CreatableTopicResult(name="a", error_code=89, error_message="no controller today")
        return ct.CreateTopicsResponse(topics=[refused])

    async def scenario(cluster, admin):
        with pytest.raises(KafkaError) as caught:
            await admin.create_topics([NewTopic(name="a")])
        assert str(caught.value) == "REQUEST_TIMED_OUT: CreateTopics: no controller today"
        with pytest.raises(KafkaError, match="DescribeQuorum: NOT_CONTROLLER: This node is not the active controller"):
            await admin.describe_quorum()

    handlers = {
        ApiKey.CREATE_TOPICS: create,
        ApiKey.DESCRIBE_QUORUM: once(dq.DescribeQuorumResponse(error_code=41)),
    }
    simulate(scenario, handlers, **{"default.api.timeout.ms": 1000})


def test_a_topic_unknown_to_the_controller_is_refused_at_once():
    absent = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def refuse_partitions(broker, request):
        return cp.CreatePartitionsResponse(results=[cp.CreatePartitionsTopicResult(name="no", error_code=absent)])

    def refuse_configs(broker, request):
        refused = iac.AlterConfigsResourceResponse(resource_type=2, resource_name="no", error_code=absent)
        return iac.IncrementalAlterConfigsResponse(responses=[refused])

    async def scenario(cluster, admin):
        resource = ConfigResource(type=ResourceType.TOPIC, name="no")
        change = ConfigAlteration(name="retention.ms", value="1")
        begun = trio.current_time()
        for call in (admin.create_partitions({"no": 3}), admin.alter_configs({resource: [change]})):
            with pytest.raises(AdminError) as raised:
                await call
            assert raised.value.failures["no"].code is absent
        assert trio.current_time() - begun < 1

    handlers = {ApiKey.CREATE_PARTITIONS: refuse_partitions, ApiKey.INCREMENTAL_ALTER_CONFIGS: refuse_configs}
    simulate(scenario, handlers)


def test_a_value_that_no_broker_could_read_is_refused_at_once():
    async def scenario(cluster, admin):
        begun = trio.current_time()
        with pytest.raises(KafkaError, match="does not fit its field") as raised:
            await admin.create_topics([NewTopic("new", configs={"retention.ms": "1" * 40_000})])
        assert raised.value.code is ErrorCode.INVALID_REQUEST
        assert trio.current_time() - begun < 1
        return asked(cluster, ApiKey.CREATE_TOPICS)

    assert simulate(scenario, {ApiKey.CREATE_TOPICS: once(ct.CreateTopicsResponse())}) == []


def test_an_unsupported_api_is_refused_at_once():
    async def scenario(cluster, admin):
        with pytest.raises(KafkaError, match=r"UNSUPPORTED_VERSION: CreateTopics: .* does not serve it"):
            await admin.create_topics([NewTopic(name="a")])

    simulate(scenario, {})


@pytest.mark.parametrize(
    ("types", "missing"),
    [
        ([], "all types"),
        ([ResourceType.TOPIC, ResourceType.CLIENT_METRICS, ResourceType.BROKER], "TOPIC, BROKER"),
    ],
)
def test_older_brokers_list_client_metrics_only(types, missing):
    """Version 0 of the request has no types: an answer to it would hide topics and brokers."""
    answer = lcr.ListConfigResourcesResponse(config_resources=[lcr.ConfigResource(resource_name="metrics")])

    async def scenario(cluster, admin):
        cluster.max_versions[ApiKey.LIST_CONFIG_RESOURCES] = 0
        with pytest.raises(KafkaError, match=rf"UNSUPPORTED_VERSION: .* versions 0 to 0; a listing of {missing} \(KIP"):
            await admin.list_config_resources(types)
        assert asked(cluster, ApiKey.LIST_CONFIG_RESOURCES) == []
        metrics = ConfigResource(ResourceType.CLIENT_METRICS, "metrics")
        assert await admin.list_config_resources([ResourceType.CLIENT_METRICS]) == [metrics]
        cluster.max_versions.clear()

    simulate(scenario, {ApiKey.LIST_CONFIG_RESOURCES: once(answer)})


def test_misuse_is_refused():
    with pytest.raises(ConfigError, match=r"bootstrap\.servers: must name at least one host:port"):
        Admin({})

    async def unopened():
        with pytest.raises(RuntimeError, match="not open"):
            await Admin({"bootstrap.servers": "a:1"}).list_topics()

    trio.run(unopened)


def test_share_offsets_without_an_answer_are_failures():
    """Brokers of Kafka 4.1 lose the topics of the request and answer without an error."""

    def answer(broker, request):
        (topic,) = request.topics
        return asg.AlterShareGroupOffsetsResponse(
            responses=[
                asg.AlterShareGroupOffsetsResponseTopic(
                    topic_name=topic.topic_name,
                    partitions=[asg.AlterShareGroupOffsetsResponsePartition(partition_index=0)],
                )
            ]
        )

    async def scenario(cluster, admin):
        await admin.alter_share_group_offsets("g", {("t", 0): 7})
        with pytest.raises(AdminError, match=r"t-1: UNKNOWN_SERVER_ERROR: .*its offset is as before") as caught:
            await admin.alter_share_group_offsets("g", {("t", 0): 7, ("t", 1): 7})
        assert list(caught.value.failures) == ["t-1"]

    simulate(scenario, {ApiKey.ALTER_SHARE_GROUP_OFFSETS: answer})


def test_a_call_ends_within_its_own_time():
    """Both where brokers answer with an error that may pass, and where they do not answer at all."""

    def create(broker, request):
        return ct.CreateTopicsResponse(
            topics=[ct.CreatableTopicResult(name=each.name, error_code=41) for each in request.topics]
        )

    async def scenario(cluster, admin):
        for call in (
            lambda bounded: bounded.create_topics([NewTopic(name="a")]),
            lambda bounded: bounded.describe_cluster(),
        ):
            began = trio.current_time()
            with pytest.raises(KafkaError) as raised:
                await call(admin.within(1_500))
            assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
            assert 1.4 <= trio.current_time() - began < 2.6
        bounded = admin.within(1_000)
        await trio.sleep(2)
        began = trio.current_time()
        with pytest.raises(KafkaError):
            await bounded.describe_cluster()
        assert trio.current_time() - began < 0.2, "the time runs from the call of within"
        assert [topic.name for topic in await admin.list_topics()] == ["t"], "the client itself has no limit"
        with pytest.raises(ValueError, match="timeout_ms must be 1 or more"):
            admin.within(0)

    simulate(scenario, {ApiKey.CREATE_TOPICS: create, ApiKey.DESCRIBE_CLUSTER: once(None)})


def test_a_limit_needs_an_open_client():
    with pytest.raises(RuntimeError):
        Admin({"bootstrap.servers": "h:1"}).within(1_000)
