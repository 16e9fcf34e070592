"""Rights: usual requests of each API, sent by users who have one right each, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.describe_acls import DescribeAclsRequest
from moldau.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.describe_producers import DescribeProducersRequest
from moldau.protocol.messages.describe_producers import TopicRequest as ProducersOf
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from moldau.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from moldau.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.list_config_resources import ListConfigResourcesRequest
from moldau.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from support.answers import newer_groups, share_groups
from support.answers.administration import election, move
from support.answers.classic_groups import commit, find, join, sync
from support.answers.records import batch, deletion, epochs, fetch, list_offsets, produce
from support.answers.rights import creation_of, credential
from support.answers.settings import BROKER, GROUP, SET, TOPIC, change, description, quota
from support.answers.topics import WAIT_MS, creation, enlargement, made
from support.answers.transactions import Producer, begin

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.protocol.schema import Request
    from support.answers.session import AnswerSession

TOPICS, GROUPS, CLUSTERS, TRANSACTIONS = 2, 3, 4, 5
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(
    3, 13
)
ALLOW = 3
RIGHTS: Final[dict[str, tuple[int, int] | None]] = {
    "nothing": None,
    "topic-read": (TOPICS, READ),
    "topic-write": (TOPICS, WRITE),
    "topic-create": (TOPICS, CREATE),
    "topic-delete": (TOPICS, DELETE),
    "topic-alter": (TOPICS, ALTER),
    "topic-describe": (TOPICS, DESCRIBE),
    "topic-describe-configs": (TOPICS, DESCRIBE_CONFIGS),
    "topic-alter-configs": (TOPICS, ALTER_CONFIGS),
    "group-read": (GROUPS, READ),
    "group-delete": (GROUPS, DELETE),
    "group-describe": (GROUPS, DESCRIBE),
    "group-describe-configs": (GROUPS, DESCRIBE_CONFIGS),
    "group-alter-configs": (GROUPS, ALTER_CONFIGS),
    "transaction-write": (TRANSACTIONS, WRITE),
    "transaction-describe": (TRANSACTIONS, DESCRIBE),
    "cluster-create": (CLUSTERS, CREATE),
    "cluster-alter": (CLUSTERS, ALTER),
    "cluster-describe": (CLUSTERS, DESCRIBE),
    "cluster-action": (CLUSTERS, CLUSTER_ACTION),
    "cluster-describe-configs": (CLUSTERS, DESCRIBE_CONFIGS),
    "cluster-alter-configs": (CLUSTERS, ALTER_CONFIGS),
    "cluster-idempotent-write": (CLUSTERS, IDEMPOTENT_WRITE),
}
"""The users, with the kind of resource and the operation that each of them has a right to."""
PASSWORD: Final = "password"


class Names(NamedTuple):
    """The resources of the requests."""

    topic: str
    topic_id: UUID
    group: str
    transaction: str
    unknown: str


async def denied(session: AnswerSession) -> None:
    """Gives each user its right, and sends the requests of all APIs as that user."""
    topic, topic_id = await made(session, "topic")
    group, transaction = session.name("group"), session.name("transaction")
    await find(session, group, 0)
    await find(session, transaction, 1)
    await session.ask("a record", produce(topic, (0, batch())), 12)
    await session.ask("an offset", commit(group, topic), 9)
    await session.ask("a transaction", begin(transaction))
    names = Names(topic, topic_id, group, transaction, session.name("unknown"))
    for user, right in RIGHTS.items():
        await _grant(session, user, right, names)
    for user in RIGHTS:
        as_user = await session.logged_in(user, PASSWORD)
        for step, (request, version) in _requests(names).items():
            await as_user.ask(f"{user}: {step}", request, version)
        as_user.connection.close()
        session.answers.update(as_user.answers)


async def _grant(session: AnswerSession, user: str, right: tuple[int, int] | None, names: Names) -> None:
    if right is None:
        return
    kind, operation = right
    of_kind = {TOPICS: names.topic, GROUPS: names.group, CLUSTERS: "kafka-cluster", TRANSACTIONS: names.transaction}
    name = of_kind[kind]
    request = creation_of(resource_type=kind, resource_name=name, principal=f"User:{user}", operation=operation)
    await session.ask(f"grant {user}", request)
    step = f"see {user}"
    fields: dict[str, Any] = {
        "resource_type_filter": kind,
        "resource_name_filter": name,
        "pattern_type_filter": 3,
        "principal_filter": f"User:{user}",
        "host_filter": None,
        "operation": operation,
        "permission_type": ALLOW,
    }
    while not (await session.ask(step, DescribeAclsRequest(**fields))).resources:
        session.answers.pop(step)
    session.answers.pop(step)


def _requests(names: Names) -> dict[str, tuple[Request, int | None]]:
    return {
        step: each if isinstance(each, tuple) else (each, None)
        for part in (_of_records, _of_topics, _of_groups, _of_transactions, _of_the_cluster)
        for step, each in part(names).items()
    }


def _of_records(names: Names) -> dict[str, Any]:
    topic, both = names.topic, [names.topic, names.unknown]
    idempotent = batch(producer_id=1, producer_epoch=0, base_sequence=0)
    return {
        "produce": (produce(topic, (0, batch())), 12),
        "produce by id": (produce(names.topic_id, (0, batch())), 13),
        "produce to an unknown topic": (produce(names.unknown, (0, batch())), 12),
        "produce idempotently": (produce(topic, (0, idempotent)), 12),
        "produce in a transaction": (produce(topic, (0, batch()), transactional_id=names.transaction), 12),
        "fetch by name": (fetch(topic, names.topic_id, (0, -1, 0, -1), max_wait_ms=0), 12),
        "fetch": fetch(topic, names.topic_id, (0, -1, 0, -1), max_wait_ms=0),
        "list offsets": list_offsets(topic, (0, -1, -1)),
        "list offsets of an unknown topic": list_offsets(names.unknown, (0, -1, -1)),
        "epochs": epochs(topic, (0, -1, 0)),
        "delete records of an unknown topic": deletion(names.unknown, 0, 0),
        "delete records": deletion(topic, 0, 0),
        "producers": DescribeProducersRequest(topics=[ProducersOf(name=each, partition_indexes=[0]) for each in both]),
    }


def _of_topics(names: Names) -> dict[str, Any]:
    both = [names.topic, names.unknown]
    asked = [MetadataRequestTopic(name=each) for each in both]
    rights = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    return {
        "metadata": MetadataRequest(topics=asked, allow_auto_topic_creation=False),
        "metadata, making topics": MetadataRequest(topics=asked, allow_auto_topic_creation=True),
        "metadata by id": MetadataRequest(topics=[MetadataRequestTopic(topic_id=names.topic_id, name=None)]),
        "metadata with rights": (MetadataRequest(topics=asked, allow_auto_topic_creation=False, **rights), 10),
        "pages": DescribeTopicPartitionsRequest(topics=[TopicRequest(name=each) for each in both]),
        "create": creation(names.topic),
        "create another": creation(names.unknown, validate=True),
        "enlarge": enlargement(names.topic, 1),
        "delete by id": DeleteTopicsRequest(
            topics=[DeleteTopicState(name=None, topic_id=names.topic_id), DeleteTopicState(name=names.topic)],
            timeout_ms=WAIT_MS,
        ),
        "delete an unknown topic": DeleteTopicsRequest(
            topics=[DeleteTopicState(name=names.unknown)], timeout_ms=WAIT_MS
        ),
        "describe settings": description(TOPIC, names.topic, ["retention.ms"]),
        "change settings": change(TOPIC, names.topic, [("retention.ms", SET, "1000")], validate=True),
    }


def _of_groups(names: Names) -> dict[str, Any]:
    group, topic = names.group, names.topic
    asked = OffsetFetchRequestGroup(
        group_id=group,
        topics=[OffsetFetchRequestTopics(name=each, partition_indexes=[0]) for each in (topic, names.unknown)],
    )
    everything = OffsetFetchRequestGroup(group_id=group, topics=None)
    by_id = OffsetFetchRequestGroup(
        group_id=group, topics=[OffsetFetchRequestTopics(topic_id=names.topic_id, partition_indexes=[0])]
    )
    reader = share_groups.Reader(group, names.topic_id)
    part = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    gone = OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    return {
        "find": FindCoordinatorRequest(key_type=0, coordinator_keys=[group]),
        "join": join(group, member_id="none"),
        "sync": sync(group, "none", 1),
        "heartbeat": HeartbeatRequest(group_id=group, generation_id=1, member_id="none"),
        "leave": LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="none")]),
        "commit": (commit(group, topic), 9),
        "commit by id": (commit(group, names.topic_id), 10),
        "offsets": (OffsetFetchRequest(groups=[asked]), 9),
        "offsets of all topics": (OffsetFetchRequest(groups=[everything]), 9),
        "offsets by id": (OffsetFetchRequest(groups=[by_id]), 10),
        "delete offsets": OffsetDeleteRequest(group_id=group, topics=[gone]),
        "describe classic groups": DescribeGroupsRequest(groups=[group], include_authorized_operations=True),
        "describe consumer groups": ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=True),
        "describe share groups": ShareGroupDescribeRequest(group_ids=[group], include_authorized_operations=True),
        "describe streams groups": StreamsGroupDescribeRequest(group_ids=[group], include_authorized_operations=True),
        "enter a consumer group": newer_groups.entry(group, topic, member_id=""),
        "enter a consumer group by an expression": newer_groups.entry(
            group, topic, member_id="", subscribed_topic_names=None, subscribed_topic_regex="a"
        ),
        "enter a share group": share_groups.beat(group, member_id="", subscribed_topic_names=[topic]),
        "fetch in a share group": reader.fetch(5),
        "acknowledge in a share group": reader.acknowledge(5, (0, 0, [share_groups.ACCEPT])),
        "offsets of a share group": DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)]
        ),
        "alter offsets of a share group": AlterShareGroupOffsetsRequest(
            group_id=group, topics=[AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[part])]
        ),
        "delete offsets of a share group": DeleteShareGroupOffsetsRequest(
            group_id=group, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=topic)]
        ),
        "describe settings of a group": description(GROUP, group, ["consumer.session.timeout.ms"]),
        "change settings of a group": change(
            GROUP, group, [("consumer.session.timeout.ms", SET, "50000")], validate=True
        ),
        "delete another group": DeleteGroupsRequest(groups_names=[names.unknown]),
    }


def _of_transactions(names: Names) -> dict[str, Any]:
    producer = Producer(names.transaction, 999_999, 0)
    marker = WritableTxnMarker(
        producer_id=4242,
        producer_epoch=0,
        transaction_result=True,
        coordinator_epoch=0,
        topics=[WritableTxnMarkerTopic(name=names.unknown, partition_indexes=[0])],
    )
    return {
        "find a transaction": FindCoordinatorRequest(key_type=1, coordinator_keys=[names.transaction]),
        "begin": begin(names.transaction, producer_id=999_999, producer_epoch=0),
        "an idempotent producer": begin(None),
        "add partitions": (producer.add((names.topic, [0]), (names.unknown, [0])), 3),
        "add partitions as a broker": (producer.add_as_broker(names.topic, verify=True), 4),
        "add offsets": (producer.add_offsets(names.group), 3),
        "commit offsets": (producer.offsets(names.group, names.topic), 4),
        "end": (producer.end(commit=True), 4),
        "describe a transaction": DescribeTransactionsRequest(transactional_ids=[names.transaction]),
        "write markers": (WriteTxnMarkersRequest(markers=[marker]), 1),
    }


def _of_the_cluster(names: Names) -> dict[str, Any]:
    partitions = [DescribeQuorumRequestPartitionData(partition_index=0)]
    quorum = DescribeQuorumRequestTopicData(topic_name="other", partitions=partitions)
    filtered: dict[str, Any] = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": "User:none",
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return {
        "cluster": DescribeClusterRequest(include_cluster_authorized_operations=True),
        "create an entry": creation_of(resource_name="", principal="User:none"),
        "describe entries": DescribeAclsRequest(**filtered),
        "delete entries": DeleteAclsRequest(filters=[DeleteAclsFilter(**filtered)]),
        "describe a broker": description(BROKER, "1", ["log.retention.ms"]),
        "change a broker": change(BROKER, "1", [("log.retention.ms", SET, "1000000")], validate=True),
        "directories": DescribeLogDirsRequest(topics=[]),
        "tokens": DescribeDelegationTokenRequest(owners=None),
        "election": (election(0, (names.topic, [0])), 2),
        "move": move(names.topic, [1]),
        "moves": ListPartitionReassignmentsRequest(topics=None),
        "quotas": DescribeClientQuotasRequest(strict=True),
        "change a quota": quota((("user", "none"),), ("producer_byte_rate", 1024.0, False), validate=True),
        "credentials": DescribeUserScramCredentialsRequest(users=[]),
        "change credentials": AlterUserScramCredentialsRequest(upsertions=[credential(name="")]),
        "the quorum": DescribeQuorumRequest(topics=[quorum]),
        "resources": (ListConfigResourcesRequest(resource_types=[16]), 1),
        "remove a broker": UnregisterBrokerRequest(broker_id=9),
    }
