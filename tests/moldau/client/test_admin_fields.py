"""Goal: each value of a broker's answer reaches the admin client's result under its own name, and in the stated order.

Method: canned answers of a small cluster on virtual time. Every field of an answer has a value of its own, made from
the message tables; numbers fall from one entry to the next, so that no list is sorted by itself.
"""

import itertools

import pytest

from moldau import TopicPartition
from moldau.admin import (
    Acl,
    AclFilter,
    ClientQuota,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    DelegationToken,
    FencedProducer,
    GroupDescription,
    GroupListing,
    GroupMember,
    LogDirDescription,
    LogDirPartition,
    NewTopic,
    PartitionDescription,
    PartitionReassignment,
    ProducerDescription,
    QuorumDescription,
    QuorumReplica,
    QuotaEntity,
    ResourceType,
    ShareOffset,
    StreamsGroupDescription,
    StreamsGroupMember,
    TopicDescription,
    TopicListing,
    TransactionDescription,
    TransactionListing,
    UserCredential,
)
from moldau.cluster.committed import CommittedOffset
from moldau.cluster.group_bytes import encode_assignment
from moldau.cluster.metadata import BrokerNode
from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.runtime.config import ConfigSource
from support.client.admin_stories import simulate
from support.client.filled import filled

TOPICS = [ConfigResource(type=ResourceType.TOPIC, name="t")]
HMAC = "aGVsbG8="
ASSIGNMENT = encode_assignment([TopicPartition("t", 2), TopicPartition("u", 1)])


def partitions(topics, name="topic_name"):
    """The partitions of an answer's topics, in order."""
    return tuple(sorted(TopicPartition(getattr(each, name), number) for each in topics for number in each.partitions))


def consumer_member(each):
    return GroupMember(
        member_id=each.member_id,
        instance_id=each.instance_id,
        client_id=each.client_id,
        client_host=each.client_host,
        assignment=partitions(each.assignment.topic_partitions),
        epoch=each.member_epoch,
        target=partitions(each.target_assignment.topic_partitions),
        type="consumer" if each.member_type else "classic",
    )


def share_member(each):
    held = partitions(each.assignment.topic_partitions)
    return GroupMember(
        member_id=each.member_id,
        instance_id=None,
        client_id=each.client_id,
        client_host=each.client_host,
        assignment=held,
        epoch=each.member_epoch,
        target=held,
        type="share",
    )


def described(group, members, **more):
    return GroupDescription(
        group_id="g",
        state=group.group_state,
        coordinator=1,
        members=tuple(members),
        authorized_operations=("READ",),
        **more,
    )


def tasks(entries):
    found = sorted((each.subtopology_id, number) for each in entries for number in each.partitions)
    return tuple(f"{name}_{number}" for name, number in found)


def streams_member(each):
    return StreamsGroupMember(
        member_id=each.member_id,
        client_id=each.client_id,
        client_host=each.client_host,
        process_id=each.process_id,
        epoch=each.member_epoch,
        topology_epoch=each.topology_epoch,
        endpoint=f"{each.user_endpoint.host}:{each.user_endpoint.port}",
        active=tasks(each.assignment.active_tasks),
        standby=tasks(each.assignment.standby_tasks),
        warmup=tasks(each.assignment.warmup_tasks),
        is_settled=False,
    )


def streams_group(group):
    parts = group.topology.subtopologies
    return StreamsGroupDescription(
        group_id="g",
        state=group.group_state,
        coordinator=1,
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        topology_epoch=group.topology.epoch,
        subtopologies={
            each.subtopology_id: tuple(sorted([*each.source_topics, *(t.name for t in each.repartition_source_topics)]))
            for each in parts
        },
        internal_topics=tuple(
            sorted(t.name for each in parts for t in (*each.repartition_source_topics, *each.state_changelog_topics))
        ),
        members=tuple(map(streams_member, group.members)),
        authorized_operations=("READ",),
    )


def replica(each):
    return QuorumReplica(
        replica_id=each.replica_id,
        log_end_offset=each.log_end_offset,
        last_fetch_ms=each.last_fetch_timestamp,
        last_caught_up_ms=each.last_caught_up_timestamp,
        directory_id=each.replica_directory_id,
    )


def quorum(answer):
    part = answer.topics[0].partitions[0]
    return QuorumDescription(
        leader_id=part.leader_id,
        leader_epoch=part.leader_epoch,
        high_watermark=part.high_watermark,
        voters=tuple(map(replica, part.current_voters)),
        observers=tuple(map(replica, part.observers)),
        endpoints=tuple((each.node_id, each.listeners[0].host, each.listeners[0].port) for each in answer.nodes[::-1]),
    )


def cluster(answer):
    brokers = answer.brokers[::-1]
    return ClusterDescription(
        cluster_id=answer.cluster_id,
        controller_id=answer.controller_id,
        brokers=tuple(
            BrokerNode(node_id=each.broker_id, host=each.host, port=each.port, rack=each.rack) for each in brokers
        ),
        fenced=tuple(each.broker_id for each in brokers),
        authorized_operations=("READ",),
    )


def config_entry(each):
    return ConfigEntry(
        name=each.name,
        value=each.value,
        source=ConfigSource.UNKNOWN,
        is_read_only=each.read_only,
        is_sensitive=each.is_sensitive,
        documentation=each.documentation,
    )


def transaction(state):
    return TransactionDescription(
        transactional_id="x",
        state=state.transaction_state,
        coordinator=1,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout_ms=state.transaction_timeout_ms,
        start_ms=state.transaction_start_time_ms,
        partitions=tuple(TopicPartition(each.topic, number) for each in state.topics for number in each.partitions),
    )


def producer(each):
    return ProducerDescription(
        producer_id=each.producer_id,
        producer_epoch=each.producer_epoch,
        last_sequence=each.last_sequence,
        last_timestamp_ms=each.last_timestamp,
        coordinator_epoch=each.coordinator_epoch,
        transaction_start_offset=each.current_txn_start_offset,
    )


def reassignment(part):
    return PartitionReassignment(
        replicas=tuple(part.replicas), adding=tuple(part.adding_replicas), removing=tuple(part.removing_replicas)
    )


def directory(each):
    return LogDirDescription(
        path=each.log_dir,
        error=ErrorCode.NONE,
        total_bytes=each.total_bytes,
        usable_bytes=each.usable_bytes,
        partitions=tuple(
            LogDirPartition(
                topic_partition=TopicPartition(topic.name, part.partition_index),
                size_bytes=part.partition_size,
                offset_lag=part.offset_lag,
                is_future=part.is_future_key,
            )
            for topic in each.topics
            for part in topic.partitions
        ),
        is_cordoned=each.is_cordoned,
    )


def acls(resources):
    return sorted(
        Acl(
            resource="group",
            name=each.resource_name,
            pattern="prefixed",
            principal=entry.principal,
            host=entry.host,
            operation="create",
            permission="deny",
        )
        for each in resources
        for entry in getattr(each, "acls", [each])
    )


def token(each, renewers, unit=""):
    """Returns a token; ``unit`` ends the names of its times."""
    issued, expires, last = (getattr(each, f"{name}_timestamp{unit}") for name in ("issue", "expiry", "max"))
    return DelegationToken(
        token_id=each.token_id,
        hmac=HMAC,
        owner=f"{each.principal_type}:{each.principal_name}",
        requester=f"{each.token_requester_principal_type}:{each.token_requester_principal_name}",
        renewers=renewers,
        issue_ms=issued,
        expiry_ms=expires,
        max_ms=last,
    )


def committed(topics):
    return {
        TopicPartition(each.name, part.partition_index): CommittedOffset(
            offset=part.committed_offset, leader_epoch=part.committed_leader_epoch, metadata=part.metadata
        )
        for each in topics
        for part in each.partitions
    }


ACL_NUMBERS = {"resource_type": 3, "pattern_type": 4, "operation": 5, "permission_type": 2}
GROUP = {"groups": 1, "group_id": "g"}
ANSWERS = {
    "create_topics": (
        ApiKey.CREATE_TOPICS,
        {"topics": 1, "name": "t"},
        lambda admin: admin.create_topics([NewTopic(name="t")]),
        lambda a: [
            CreatedTopic(
                name="t",
                topic_id=a.topics[0].topic_id,
                partitions=a.topics[0].num_partitions,
                replication_factor=a.topics[0].replication_factor,
            )
        ],
    ),
    "describe_configs": (
        ApiKey.DESCRIBE_CONFIGS,
        {"results": 1, "resource_type": 2, "resource_name": "t"},
        lambda admin: admin.describe_configs(TOPICS),
        lambda a: {TOPICS[0]: {each.name: config_entry(each) for each in a.results[0].configs}},
    ),
    "list_config_resources": (
        ApiKey.LIST_CONFIG_RESOURCES,
        {"resource_type": itertools.cycle([32, 99])},
        lambda admin: admin.list_config_resources(),
        lambda a: [ConfigResource(type=ResourceType.GROUP, name=a.config_resources[0].resource_name)],
    ),
    "describe_cluster": (ApiKey.DESCRIBE_CLUSTER, {}, lambda admin: admin.describe_cluster(), cluster),
    "describe_quorum": (ApiKey.DESCRIBE_QUORUM, {}, lambda admin: admin.describe_quorum(), quorum),
    "describe_groups": (
        ApiKey.DESCRIBE_GROUPS,
        GROUP
        | {
            "protocol_type": "consumer",
            "member_assignment": encode_assignment([TopicPartition("u", 1), TopicPartition("t", 2)]),
        },
        lambda admin: admin.describe_groups(["g"]),
        lambda a: {
            "g": described(
                a.groups[0],
                [
                    GroupMember(
                        member_id=each.member_id,
                        instance_id=each.group_instance_id,
                        client_id=each.client_id,
                        client_host=each.client_host,
                        assignment=(TopicPartition("t", 2), TopicPartition("u", 1)),
                    )
                    for each in a.groups[0].members
                ],
                protocol_type="consumer",
                protocol=a.groups[0].protocol_data,
            )
        },
    ),
    "describe_groups of consumers": (
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        GROUP | {"member_type": itertools.cycle([1, 0])},
        lambda admin: admin.describe_groups(["g"]),
        lambda a: {
            "g": described(
                a.groups[0],
                map(consumer_member, a.groups[0].members),
                protocol_type="consumer",
                protocol=a.groups[0].assignor_name,
                type="consumer",
                epoch=a.groups[0].group_epoch,
                assignment_epoch=a.groups[0].assignment_epoch,
            )
        },
    ),
    "describe_share_groups": (
        ApiKey.SHARE_GROUP_DESCRIBE,
        GROUP,
        lambda admin: admin.describe_share_groups(["g"]),
        lambda a: {
            "g": described(
                a.groups[0],
                map(share_member, a.groups[0].members),
                protocol_type="share",
                protocol=a.groups[0].assignor_name,
                type="share",
                epoch=a.groups[0].group_epoch,
                assignment_epoch=a.groups[0].assignment_epoch,
            )
        },
    ),
    "describe_streams_groups": (
        ApiKey.STREAMS_GROUP_DESCRIBE,
        GROUP,
        lambda admin: admin.describe_streams_groups(["g"]),
        lambda a: {"g": streams_group(a.groups[0])},
    ),
    "list_groups": (
        ApiKey.LIST_GROUPS,
        {},
        lambda admin: admin.list_groups(),
        lambda a: [
            GroupListing(
                group_id=each.group_id, protocol_type=each.protocol_type, state=each.group_state, type=each.group_type
            )
            for each in a.groups[::-1]
        ],
    ),
    "list_group_offsets": (
        ApiKey.OFFSET_FETCH,
        GROUP,
        lambda admin: admin.list_group_offsets("g"),
        lambda a: committed(a.groups[0].topics),
    ),
    "list_share_group_offsets": (
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        GROUP,
        lambda admin: admin.list_share_group_offsets("g"),
        lambda a: {
            TopicPartition(each.topic_name, part.partition_index): ShareOffset(
                start_offset=part.start_offset, leader_epoch=part.leader_epoch, lag=part.lag
            )
            for each in a.groups[0].topics
            for part in each.partitions
        },
    ),
    "describe_transactions": (
        ApiKey.DESCRIBE_TRANSACTIONS,
        {"transaction_states": 1, "transactional_id": "x"},
        lambda admin: admin.describe_transactions(["x"]),
        lambda a: {"x": transaction(a.transaction_states[0])},
    ),
    "describe_producers": (
        ApiKey.DESCRIBE_PRODUCERS,
        {"topics": 1, "partitions": 1, "name": "t", "partition_index": 0},
        lambda admin: admin.describe_producers(("t", 0)),
        lambda a: [producer(each) for each in a.topics[0].partitions[0].active_producers[::-1]],
    ),
    "fence_producers": (
        ApiKey.INIT_PRODUCER_ID,
        {},
        lambda admin: admin.fence_producers(["x"]),
        lambda a: {"x": FencedProducer(producer_id=a.producer_id, producer_epoch=a.producer_epoch)},
    ),
    "list_partition_reassignments": (
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        {},
        lambda admin: admin.list_partition_reassignments(),
        lambda a: {
            TopicPartition(each.name, part.partition_index): reassignment(part)
            for each in a.topics
            for part in each.partitions
        },
    ),
    "describe_log_dirs": (
        ApiKey.DESCRIBE_LOG_DIRS,
        {},
        lambda admin: admin.describe_log_dirs([1]),
        lambda a: {1: [directory(each) for each in a.results]},
    ),
    "describe_acls": (
        ApiKey.DESCRIBE_ACLS,
        ACL_NUMBERS,
        lambda admin: admin.describe_acls(),
        lambda a: acls(a.resources),
    ),
    "delete_acls": (
        ApiKey.DELETE_ACLS,
        ACL_NUMBERS | {"filter_results": 1},
        lambda admin: admin.delete_acls(AclFilter()),
        lambda a: acls(a.filter_results[0].matching_acls),
    ),
    "describe_client_quotas": (
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        {"entity_type": itertools.cycle(["user", "client-id"])},
        lambda admin: admin.describe_client_quotas(),
        lambda a: [
            ClientQuota(
                entity=QuotaEntity(user=each.entity[0].entity_name, client_id=each.entity[1].entity_name),
                quotas={one.key: one.value for one in each.values},
            )
            for each in a.entries
        ],
    ),
    "describe_users": (
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        {"mechanism": itertools.cycle([2, 1])},
        lambda admin: admin.describe_users(),
        lambda a: [
            UserCredential(user=each.user, mechanism=name, iterations=info.iterations)
            for each in a.results[::-1]
            for name, info in zip(["SCRAM-SHA-256", "SCRAM-SHA-512"], each.credential_infos[::-1], strict=True)
        ],
    ),
    "create_delegation_token": (
        ApiKey.CREATE_DELEGATION_TOKEN,
        {"hmac": b"hello"},
        lambda admin: admin.create_delegation_token(renewers=["User:r"]),
        lambda a: token(a, ("User:r",), "_ms"),
    ),
    "renew_delegation_token": (
        ApiKey.RENEW_DELEGATION_TOKEN,
        {},
        lambda admin: admin.renew_delegation_token(HMAC),
        lambda a: a.expiry_timestamp_ms,
    ),
    "expire_delegation_token": (
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        {},
        lambda admin: admin.expire_delegation_token(HMAC),
        lambda a: a.expiry_timestamp_ms,
    ),
    "describe_delegation_tokens": (
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        {"hmac": b"hello"},
        lambda admin: admin.describe_delegation_tokens(),
        lambda a: [
            token(each, tuple(f"{one.principal_type}:{one.principal_name}" for one in each.renewers))
            for each in a.tokens
        ],
    ),
}
"""A call, the API that it uses, values that fields of the answer must have, and the result."""


@pytest.mark.parametrize("name", ANSWERS)
def test_every_value_of_an_answer_is_returned(name):
    key, given, call, wanted = ANSWERS[name]
    answer = filled(APIS[key].response, given)

    async def scenario(cluster, admin):
        return await call(admin)

    handlers = {key: lambda broker, request: answer}
    if key is ApiKey.CONSUMER_GROUP_DESCRIBE:
        absent = {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "members": 0}
        gone = filled(APIS[ApiKey.DESCRIBE_GROUPS].response, GROUP | absent)
        handlers[ApiKey.DESCRIBE_GROUPS] = lambda broker, request: gone
    assert simulate(scenario, handlers) == wanted(answer)


def topic_description(topic):
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=True,
        partitions=tuple(
            PartitionDescription(
                partition=each.partition_index,
                leader=each.leader_id,
                leader_epoch=each.leader_epoch,
                replicas=tuple(each.replica_nodes),
                isr=tuple(each.replica_nodes),
                offline_replicas=tuple(each.offline_replicas),
            )
            for each in topic.partitions[::-1]
        ),
        authorized_operations=("READ",),
    )


def test_every_value_of_a_topic_is_returned():
    """The in-sync replicas are all: those of a partition without some are asked for again."""
    made = APIS[ApiKey.METADATA].response.__fields__["topics"].struct
    topics = [filled(made, {"name": name, "isr_nodes": [8, 9], "replica_nodes": [8, 9]}) for name in "ut"]

    async def scenario(cluster, admin):
        def metadata(broker, request):
            answer = cluster.on_metadata(broker, request)
            if request.topics is None or request.topics:
                answer.topics = topics
            return answer

        cluster.handlers[ApiKey.METADATA] = metadata
        found = await admin.describe_topics(["u", "t"], include_authorized_operations=True)
        assert found == {each.name: topic_description(each) for each in topics}
        assert await admin.list_topics(include_internal=True) == [
            TopicListing(name=each.name, topic_id=each.topic_id, is_internal=True, partition_count=2)
            for each in topics[::-1]
        ]
        assert await admin.list_topics() == []

    simulate(scenario, {})


def test_every_value_of_a_listed_transaction_is_returned():
    made = APIS[ApiKey.LIST_TRANSACTIONS].response
    given = {"unknown_state_filters": []}
    answers = {broker: filled(made, given, itertools.count(1000 * broker, -1)) for broker in (1, 2)}

    async def scenario(cluster, admin):
        assert await admin.list_transactions() == [
            TransactionListing(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                state=each.transaction_state,
                coordinator=broker,
            )
            for broker, answer in answers.items()
            for each in answer.transaction_states[::-1]
        ]

    simulate(scenario, {ApiKey.LIST_TRANSACTIONS: lambda broker, request: answers[broker]})
