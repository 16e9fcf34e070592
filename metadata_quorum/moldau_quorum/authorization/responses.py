"""Changes of responses that authorization makes: entries that may not be seen, and bit fields of operations."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.access import AclOperation, AclResource
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from moldau.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsResponse, TopicRequest
from moldau.protocol.messages.metadata import MetadataRequestTopic, MetadataResponse, MetadataResponseTopic
from moldau.protocol.messages.offset_fetch import OffsetFetchResponsePartitions, OffsetFetchResponseTopics
from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moldau_quorum.authorization.authorizer import Permissions

__all__ = ["TopicRequest"]

AnyMessage = Any
"""A request, a response or an entry, of the class that the API has; the table of checks guarantees it."""
METADATA_BY_ID_FROM: Final = 12
"""The first version of Metadata in which a topic may be named by its id."""
NO_TOPIC_PARTITIONS: Final = DescribeTopicPartitionsResponse
CLUSTER, GROUP, TOPIC = AclResource.CLUSTER, AclResource.GROUP, AclResource.TOPIC
DESCRIBE = AclOperation.DESCRIBE
DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def topic_of(entry: AnyMessage, permissions: Permissions) -> str | None:
    """Returns the name of the topic that an entry names, by name or by id; None if no topic has the id."""
    name = getattr(entry, "name", None)
    if name is None:
        name = getattr(entry, "topic", None)
    if name is None:
        name = getattr(entry, "topic_name", None)
    topic_id = getattr(entry, "topic_id", ZERO_UUID)
    if not name and topic_id != ZERO_UUID:
        return permissions.topic_name(topic_id)
    assert name is None or isinstance(name, str)
    return name


def asked_topics(request: AnyMessage) -> list[AnyMessage]:
    """Returns the topics that a Metadata request asks for by name or by id.

    As in Kafka, one id makes the whole request one by ids: names beside an id, and entries without an id, do not count.
    """
    topics = list(request.topics)
    by_id = [topic for topic in topics if topic.topic_id != ZERO_UUID]
    if not by_id:
        return topics
    return [MetadataRequestTopic(topic_id=topic.topic_id, name=None) for topic in by_id]


def names_by_id_too_early(request: AnyMessage, version: int) -> bool:
    """Returns whether a Metadata request has ids, or lacks names, in a version that has fields but no use for it."""
    if version >= METADATA_BY_ID_FROM or not request.topics:
        return False
    return any(topic.name is None or topic.topic_id != ZERO_UUID for topic in request.topics)


def allowed_topic(permissions: Permissions, name: str | None) -> bool:
    """Returns whether a topic that the request does not name may be described."""
    return name is not None and permissions.may(DESCRIBE, TOPIC, name, quiet=True)


def refused_topic(wanted: AnyMessage, version: int) -> MetadataResponseTopic:
    """Returns the Metadata entry of a topic that may not be described; it does not show whether the topic exists."""
    if wanted.name is None:
        return MetadataResponseTopic(error_code=DENIED, name=None if version >= 12 else "", topic_id=wanted.topic_id)
    return MetadataResponseTopic(error_code=DENIED, name=wanted.name, topic_id=ZERO_UUID)


def refused_topics(topics: list[MetadataResponseTopic]) -> MetadataResponse:
    """Returns a response that only holds refused topics, to be joined to another."""
    return MetadataResponse(topics=topics)


def without_topics(response: AnyMessage) -> AnyMessage:
    """Drops all topics."""
    response.topics = []
    return response


def metadata(request: AnyMessage, response: AnyMessage, permissions: Permissions) -> AnyMessage:
    """Fills the bit fields of Metadata."""
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            if topic.error_code == ErrorCode.NONE and topic.name is not None:
                topic.topic_authorized_operations = permissions.operations(TOPIC, topic.name)
    return cluster_operations(request, response, permissions)


def cluster_operations(request: AnyMessage, response: AnyMessage, permissions: Permissions) -> AnyMessage:
    """Fills the bit field of the cluster; 0 for clients that may not describe it."""
    if request.include_cluster_authorized_operations:
        allowed = permissions.may_cluster(DESCRIBE, quiet=True)
        response.cluster_authorized_operations = permissions.operations(CLUSTER, "kafka-cluster") if allowed else 0
    return response


def topic_operations(response: AnyMessage, permissions: Permissions) -> AnyMessage:
    """Fills the bit fields of DescribeTopicPartitions."""
    for topic in response.topics:
        if topic.error_code == ErrorCode.NONE:
            topic.topic_authorized_operations = permissions.operations(TOPIC, topic.name)
    return response


def created_topics(response: AnyMessage, permissions: Permissions) -> AnyMessage:
    """Hides the configurations of new topics from clients that may not describe them."""
    for topic in response.topics:
        may = topic.error_code != ErrorCode.NONE or permissions.may(
            AclOperation.DESCRIBE_CONFIGS, TOPIC, topic.name, quiet=True
        )
        if not may:
            topic.topic_config_error_code = DENIED
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = None
    return response


def only_described(response: AnyMessage, permissions: Permissions) -> AnyMessage:
    """Drops the topics that may not be described."""
    response.topics = [
        each for each in response.topics if (name := topic_of(each, permissions)) and allowed_topic(permissions, name)
    ]
    return response


def narrowed_offset_fetch(
    request: AnyMessage, permissions: Permissions
) -> tuple[AnyMessage, Callable[[AnyMessage], AnyMessage]]:
    """Returns the request without the topics that may not be described, and what answers these."""
    request = copy(request)
    groups: list[AnyMessage] = []
    refused: dict[str, list[OffsetFetchResponseTopics] | None] = {}
    for group in request.groups:
        group = copy(group)
        groups.append(group)
        if group.topics is None:
            refused[group.group_id] = None
            continue
        served: list[AnyMessage] = []
        denied: list[AnyMessage] = []
        for topic in group.topics:
            name = topic_of(topic, permissions)
            may = name is None or permissions.may(DESCRIBE, TOPIC, name)
            (served if may else denied).append(topic)
        group.topics = served
        refused[group.group_id] = [_refused_offsets(topic) for topic in denied]
    request.groups = groups

    def amend(response: AnyMessage) -> AnyMessage:
        for group in response.groups:
            if group.error_code != ErrorCode.NONE or group.group_id not in refused:
                continue
            more = refused[group.group_id]
            if more is None:
                only_described(group, permissions)
            else:
                group.topics = [*group.topics, *more]
        return response

    return request, amend


def _refused_offsets(topic: AnyMessage) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, metadata="", error_code=DENIED)
            for index in topic.partition_indexes
        ],
    )


def group_operations(asked: AnyMessage, response: AnyMessage) -> AnyMessage:
    """Fills the bit fields of DescribeGroups."""
    for group in response.groups:
        if asked.request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = asked.permissions.operations(GROUP, group.group_id)
    return response


def consumer_groups(asked: AnyMessage, response: AnyMessage) -> AnyMessage:
    """Fills the bit fields of ConsumerGroupDescribe; hides groups with a topic that may not be described."""
    for group in response.groups:
        if group.error_code != ErrorCode.NONE:
            continue
        if asked.request.include_authorized_operations:
            group.authorized_operations = asked.permissions.operations(GROUP, group.group_id)
        names = {
            topic.topic_name
            for member in group.members
            for assignment in (member.assignment, member.target_assignment)
            for topic in assignment.topic_partitions
        }
        if not all(asked.permissions.may(DESCRIBE, TOPIC, name) for name in sorted(names)):
            group.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            group.error_message = "the group reads topics that the client may not describe"
            group.members = []
    return response


def share_groups(asked: AnyMessage, response: AnyMessage) -> AnyMessage:
    """Fills the bit fields of ShareGroupDescribe; hides groups with a topic that may not be described."""
    for group in response.groups:
        if group.error_code != ErrorCode.NONE:
            continue
        if asked.request.include_authorized_operations:
            group.authorized_operations = asked.permissions.operations(GROUP, group.group_id)
        names = {topic.topic_name for member in group.members for topic in member.assignment.topic_partitions}
        if not all(asked.permissions.may(DESCRIBE, TOPIC, name) for name in sorted(names)):
            group.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            group.error_message = "the group reads topics that the client may not describe"
            group.members = []
    return response


def topics_of_subtopologies(subtopologies: Iterable[AnyMessage]) -> dict[str, None]:
    """Returns the names of all topics of a topology, each once."""
    names: dict[str, None] = {}
    for part in subtopologies:
        names.update(dict.fromkeys((*part.source_topics, *part.repartition_sink_topics)))
        internal = (*part.repartition_source_topics, *part.state_changelog_topics)
        names.update(dict.fromkeys(topic.name for topic in internal))
    return names


def streams_groups(asked: AnyMessage, response: AnyMessage) -> AnyMessage:
    """Fills the bit fields of StreamsGroupDescribe; hides groups with a topic that may not be described."""
    for group in response.groups:
        if group.error_code != ErrorCode.NONE:
            continue
        if asked.request.include_authorized_operations:
            group.authorized_operations = asked.permissions.operations(GROUP, group.group_id)
        parts = () if group.topology is None else group.topology.subtopologies or ()
        if not all(asked.permissions.may(DESCRIBE, TOPIC, name) for name in topics_of_subtopologies(parts)):
            group.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            group.error_message = "the group reads topics that the client may not describe"
            group.members, group.topology = [], None
    return response


def narrowed_share_offsets(
    request: AnyMessage, permissions: Permissions
) -> tuple[AnyMessage, Callable[[AnyMessage], AnyMessage]]:
    """Returns DescribeShareGroupOffsets without the topics that may not be described, and what answers these."""
    request = copy(request)
    groups: list[AnyMessage] = []
    refused: dict[str, list[DescribeShareGroupOffsetsResponseTopic] | None] = {}
    for group in request.groups:
        group = copy(group)
        groups.append(group)
        if group.topics is None:
            refused[group.group_id] = None
            continue
        allowed = [topic for topic in group.topics if permissions.may(DESCRIBE, TOPIC, topic.topic_name)]
        names = {topic.topic_name for topic in allowed}
        refused[group.group_id] = [
            DescribeShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                partitions=[
                    DescribeShareGroupOffsetsResponsePartition(
                        partition_index=number, start_offset=-1, error_code=DENIED
                    )
                    for number in topic.partitions
                ],
            )
            for topic in group.topics
            if topic.topic_name not in names
        ]
        group.topics = allowed
    request.groups = groups

    def amend(response: AnyMessage) -> AnyMessage:
        for group in response.groups:
            if group.error_code != ErrorCode.NONE or group.group_id not in refused:
                continue
            more = refused[group.group_id]
            if more is None:
                group.topics = [each for each in group.topics if allowed_topic(permissions, each.topic_name)]
            else:
                group.topics = [*group.topics, *more]
        return response

    return request, amend


def listed_groups(response: AnyMessage, permissions: Permissions) -> AnyMessage:
    """Drops the groups that may not be described."""
    response.groups = [each for each in response.groups if permissions.may(DESCRIBE, GROUP, each.group_id, quiet=True)]
    return response


def listed_transactions(asked: AnyMessage, response: AnyMessage) -> AnyMessage:
    """Drops the transactions that may not be described."""
    response.transaction_states = [
        each
        for each in response.transaction_states
        if asked.permissions.may(DESCRIBE, AclResource.TRANSACTIONAL_ID, each.transactional_id, quiet=True)
    ]
    return response


def transaction_topics(asked: AnyMessage, response: AnyMessage) -> AnyMessage:
    """Drops topics that may not be described from the transactions that may be."""
    for state in response.transaction_states:
        state.topics = [each for each in state.topics if asked.permissions.may(DESCRIBE, TOPIC, each.topic)]
    return response


def visible_tokens(asked: AnyMessage, response: AnyMessage) -> AnyMessage:
    """Removes the delegation tokens that the peer neither owns, created, may renew, nor may describe."""
    permissions = asked.permissions
    principal = permissions.identity.principal

    def is_visible(token: AnyMessage) -> bool:
        owner = f"{token.principal_type}:{token.principal_name}"
        own = [owner, f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"]
        own += [f"{each.principal_type}:{each.principal_name}" for each in token.renewers]
        return (
            principal in own
            or permissions.may(AclOperation.DESCRIBE, AclResource.DELEGATION_TOKEN, token.token_id, quiet=True)
            or permissions.may(AclOperation.DESCRIBE_TOKENS, AclResource.USER, owner, quiet=True)
        )

    response.tokens = [token for token in response.tokens if is_visible(token)]
    return response
