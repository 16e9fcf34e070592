"""Metadata, DescribeCluster and DescribeTopicPartitions.

The handlers answer from the committed image, with the endpoints of the client's listener.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

import trio

from moldau.protocol.access import AUTHORIZED_OPERATIONS, AclResource, operations_mask
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from moldau.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.protocol.refusals import refusal_of
from moldau.values import ZERO_UUID, BrokerId
from moldau_broker.server.cluster_metadata.shared_answers import SharedAnswer
from moldau_quorum.authorization.responses import asked_topics, names_by_id_too_early
from moldau_quorum.metadata.internal_topics import INTERNAL_TOPICS, OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from moldau_quorum.metadata.records import NO_LEADER

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from moldau.runtime.config import Config
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.cluster_metadata.topic_creation import TopicCreation
    from moldau_broker.server.handlers.context import Call
    from moldau_quorum.broker_side.controller_client import ForwardedClient
    from moldau_quorum.broker_side.metadata_follower import MetadataFollower
    from moldau_quorum.metadata.image import MetadataImage, PartitionImage, TopicImage

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
TOPIC_OPERATIONS = operations_mask(*AUTHORIZED_OPERATIONS[AclResource.TOPIC])
CLUSTER_OPERATIONS = operations_mask(*AUTHORIZED_OPERATIONS[AclResource.CLUSTER])
_BROKER_ENDPOINTS = 1
_CONTROLLER_ENDPOINTS = 2
DESCRIBED_PER_TURN = 2_000
"""Topics and partitions that Metadata describes between two checkpoints: about 20 ms of work."""
ELECTION_WAIT_MS = 300.0
"""How long a Metadata request waits for the successor of a crashed leader.

It is a little longer than the grace period of a broker whose connection broke. Later answers on the same connection
wait with it.
"""


class InternalTopicsContext(Protocol):
    """The parts of a broker needed for creating internal topics."""

    @property
    def config(self) -> Config: ...
    @property
    def topic_creation(self) -> TopicCreation: ...


class MetadataContext(InternalTopicsContext, Protocol):
    """The parts of a broker needed for describing topics, brokers and the cluster."""

    @property
    def broker_id(self) -> int: ...
    @property
    def follower(self) -> MetadataFollower: ...
    @property
    def metadata(self) -> MetadataCache: ...


def valid_topic_name(name: str) -> bool:
    """Returns whether Kafka allows the name."""
    return name not in (".", "..") and _TOPIC_NAME.fullmatch(name) is not None


async def handle_metadata(
    context: MetadataContext, request: MetadataRequest, call: Call
) -> MetadataResponse | SharedAnswer:
    """Returns metadata of topics and brokers.

    First creates unknown topics where request and configuration allow it, and waits up to ``ELECTION_WAIT_MS`` for the
    successors of crashed leaders. A topic that is named twice is answered once, as in Kafka. Clients that ask the same
    while the image stays the same share one answer, unless authorization has removed a part of the question. As in
    Kafka, a request of a version before 12 that names a topic by id is refused.
    """
    if names_by_id_too_early(request, call.version):
        return refusal_of(MetadataResponse, request, ErrorCode.INVALID_REQUEST, version=call.version)
    _drop_repeats(request)
    await _create_missing(context, request, call)
    await _await_elections(context, request)
    image = context.metadata.image
    if call.verdict is not None:
        return (await _described_cluster(context, image, request, call))[0]
    answers, key = context.metadata.answers, _question(request, call)
    known = answers.get(image, key)
    if known is not None:
        return known
    response, described = await _described_cluster(context, image, request, call)
    answer = SharedAnswer(response)
    if context.metadata.image is image:
        answers.keep(image, key, answer, described)
    return answer


def _question(request: MetadataRequest, call: Call) -> Hashable:
    """Returns the parts of a request, and of its client, that its answer depends on besides the image."""
    topics = None if request.topics is None else tuple((topic.name, topic.topic_id) for topic in request.topics)
    included = (request.include_topic_authorized_operations, request.include_cluster_authorized_operations)
    return (call.version, call.listener_name, included, topics)


async def _described_cluster(
    context: MetadataContext, image: MetadataImage, request: MetadataRequest, call: Call
) -> tuple[MetadataResponse, int]:
    """Returns the answer, and the number of topics and partitions in it."""
    topics: list[MetadataResponseTopic] = []
    described = 0
    turn_ends = DESCRIBED_PER_TURN  # the next checkpoint
    if request.topics is None or (call.version == 0 and not request.topics):
        for _, topic in sorted(image.topics_by_name.items()):
            if (described := described + 1 + len(topic.partitions)) > turn_ends:
                turn_ends = described + DESCRIBED_PER_TURN
                await trio.lowlevel.checkpoint()
            topics.append(_topic(context, topic, request, call))
    else:
        for wanted in request.topics:
            if (described := described + 1) > turn_ends:
                turn_ends = described + DESCRIBED_PER_TURN
                await trio.lowlevel.checkpoint()
            if wanted.name is not None:
                found = image.topics_by_name.get(wanted.name)
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not valid_topic_name(wanted.name):
                    error = ErrorCode.INVALID_TOPIC_EXCEPTION
            else:
                found = image.topics_by_id.get(wanted.topic_id)
                error = ErrorCode.UNKNOWN_TOPIC_ID
            if found is None:
                topics.append(
                    MetadataResponseTopic(
                        error_code=error,
                        name=wanted.name if wanted.name is not None or call.version >= 12 else "",
                        topic_id=wanted.topic_id,
                    )
                )
            else:
                described += len(found.partitions)
                topics.append(_topic(context, found, request, call))
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            for _, broker in sorted(image.brokers.items())
            if not broker.fenced and (endpoint := broker.endpoint(call.listener_name)) is not None
        ],
        cluster_id=image.cluster_id,
        controller_id=_some_controller(context),
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else -2147483648
        ),
    )
    return response, described


def _drop_repeats(request: MetadataRequest) -> None:
    """Drops repeated topics, and names beside ids, as Kafka does: the answer for a topic is larger than its name."""
    if request.topics:
        distinct = {(topic.name, topic.topic_id): topic for topic in asked_topics(request)}
        request.topics = list(distinct.values())


async def _create_missing(context: MetadataContext, request: MetadataRequest, call: Call) -> None:
    if not request.topics or not request.allow_auto_topic_creation:
        return
    if not context.config.get_bool("auto.create.topics.enable"):
        return
    known = context.metadata.image.topics_by_name
    missing = [
        topic.name
        for topic in request.topics
        if topic.name is not None and topic.name not in known and valid_topic_name(topic.name)
    ]
    plain = [name for name in missing if name not in INTERNAL_TOPICS]
    if plain:
        await _ensure_with_defaults(context, plain, {}, call.forwarded)
    if OFFSETS_TOPIC in missing:
        await ensure_offsets_topic(context)
    if TRANSACTIONS_TOPIC in missing:
        await ensure_transactions_topic(context)
    if SHARE_STATE_TOPIC in missing:
        await ensure_share_state_topic(context)


async def _await_elections(context: MetadataContext, request: MetadataRequest) -> None:
    """Waits up to ``ELECTION_WAIT_MS`` until suspected brokers lead none of the requested partitions.

    Clients request metadata when their leader is gone. If the answer names the crashed leader or none, librdkafka may
    ask again only at its next scan of topics, a second later; if it names the new leader, librdkafka continues at once.
    """
    cache = context.metadata

    def elected(_: MetadataImage) -> bool:
        suspects = cache.suspects()
        if not suspects:
            return True
        return not any(
            partition.leader in suspects
            for topic in _wanted_topics(cache.image, request)
            for partition in topic.partitions.values()
        )

    with trio.move_on_after(ELECTION_WAIT_MS / 1000):
        await context.follower.wait_until(elected)


def _wanted_topics(image: MetadataImage, request: MetadataRequest) -> Iterator[TopicImage]:
    if request.topics is None:
        yield from image.topics_by_name.values()
        return
    for wanted in request.topics:
        found = (
            image.topics_by_id.get(wanted.topic_id) if wanted.name is None else image.topics_by_name.get(wanted.name)
        )
        if found is not None:
            yield found


async def ensure_offsets_topic(context: InternalTopicsContext) -> ErrorCode:
    """Creates ``__consumer_offsets`` on first use."""
    config = context.config
    errors = await context.topic_creation.ensure(
        [OFFSETS_TOPIC],
        partitions=config.get_int("offsets.topic.num.partitions"),
        replication_factor=config.get_int("offsets.topic.replication.factor"),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.get_int("offsets.topic.segment.bytes")),
        },
    )
    return errors.get(OFFSETS_TOPIC, ErrorCode.NONE)


async def ensure_transactions_topic(context: InternalTopicsContext) -> ErrorCode:
    """Creates ``__transaction_state`` on first use."""
    config = context.config
    errors = await context.topic_creation.ensure(
        [TRANSACTIONS_TOPIC],
        partitions=config.get_int("transaction.state.log.num.partitions"),
        replication_factor=config.get_int("transaction.state.log.replication.factor"),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.get_int("transaction.state.log.min.isr")),
            "segment.bytes": str(config.get_int("transaction.state.log.segment.bytes")),
            "unclean.leader.election.enable": "false",
        },
    )
    return errors.get(TRANSACTIONS_TOPIC, ErrorCode.NONE)


async def create_with_defaults(context: InternalTopicsContext, topic: str, configs: Mapping[str, str]) -> ErrorCode:
    """Creates a topic that the broker itself needs, with its defaults for partitions and replicas; no error if there.

    Returns:
        The error of the controller; REQUEST_TIMED_OUT: this broker does not know the topic in time.
    """
    errors = await _ensure_with_defaults(context, [topic], configs, None)
    return errors.get(topic, ErrorCode.NONE)


async def _ensure_with_defaults(
    context: InternalTopicsContext, topics: Sequence[str], configs: Mapping[str, str], client: ForwardedClient | None
) -> dict[str, ErrorCode]:
    """Creates topics with the broker's defaults for partitions and replicas; see ``TopicCreation.ensure``."""
    return await context.topic_creation.ensure(
        topics,
        partitions=context.config.get_int("num.partitions"),
        replication_factor=context.config.get_int("default.replication.factor"),
        configs=configs,
        client=client,
    )


async def ensure_share_state_topic(context: InternalTopicsContext) -> ErrorCode:
    """Creates ``__share_group_state`` on first use; its coordinators delete what is redundant, and only that."""
    config = context.config
    errors = await context.topic_creation.ensure(
        [SHARE_STATE_TOPIC],
        partitions=config.get_int("share.coordinator.state.topic.num.partitions"),
        replication_factor=config.get_int("share.coordinator.state.topic.replication.factor"),
        configs={
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "compression.type": "producer",
            "min.insync.replicas": str(config.get_int("share.coordinator.state.topic.min.isr")),
            "segment.bytes": str(config.get_int("share.coordinator.state.topic.segment.bytes")),
            "unclean.leader.election.enable": "false",
        },
    )
    return errors.get(SHARE_STATE_TOPIC, ErrorCode.NONE)


def _some_controller(context: MetadataContext) -> int:
    """Returns a live broker, which forwards to the active controller; clients may only see brokers (KIP-590)."""
    brokers = map(BrokerId, sorted(context.metadata.image.brokers))
    alive = [broker for broker in brokers if context.metadata.is_alive(broker)]
    if context.broker_id in alive:
        return context.broker_id
    return alive[0] if alive else -1


def _topic(context: MetadataContext, topic: TopicImage, request: MetadataRequest, call: Call) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _partition(context, index, partition, call)
            for index in range(len(topic.partitions))
            if (partition := topic.partitions.get(index)) is not None
        ],
        topic_authorized_operations=TOPIC_OPERATIONS if request.include_topic_authorized_operations else -2147483648,
    )


def _partition(
    context: MetadataContext, index: int, partition: PartitionImage, call: Call
) -> MetadataResponsePartition:
    leader, error = partition.leader, ErrorCode.NONE
    if leader < 0 or not context.metadata.is_alive(leader):
        leader, error = NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    elif context.metadata.endpoint(leader, call.listener_name) is None:
        error = ErrorCode.LISTENER_NOT_FOUND if call.version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
        leader = NO_LEADER
    return MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=_offline(context, partition),
    )


def _offline(context: MetadataContext, partition: PartitionImage) -> list[int]:
    image = context.metadata.image
    return [
        replica
        for replica in partition.replicas
        if not (context.metadata.is_alive(replica) and image.replica_online(partition, replica))
    ]


def handle_describe_cluster(
    context: MetadataContext, request: DescribeClusterRequest, call: Call
) -> DescribeClusterResponse:
    """Describes the brokers; controllers describe themselves on their own listeners."""
    if request.endpoint_type != _BROKER_ENDPOINTS:
        if request.endpoint_type == _CONTROLLER_ENDPOINTS:
            code, reason = ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker: ask a controller for the controllers"
        else:
            code, reason = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"there is no endpoint type {request.endpoint_type}"
        return DescribeClusterResponse(error_code=code, error_message=reason)
    image: MetadataImage = context.metadata.image
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=_some_controller(context),
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack,
                is_fenced=broker.fenced,
            )
            for _, broker in sorted(image.brokers.items())
            if (not broker.fenced or request.include_fenced_brokers)
            and (endpoint := broker.endpoint(call.listener_name)) is not None
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else -2147483648
        ),
    )


def handle_describe_topic_partitions(
    context: MetadataContext, request: DescribeTopicPartitionsRequest, call: Call
) -> DescribeTopicPartitionsResponse:
    """Describes topics by name, page by page (KIP-966)."""
    image = context.metadata.image
    names = sorted({topic.name for topic in request.topics}) or sorted(name for name, _ in image.topics_by_name.items())
    cursor = request.cursor
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    page_max = context.config.get_int("max.request.partition.size.limit")
    remaining = max(1, min(request.response_partition_limit, page_max))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        topic = image.topics_by_name.get(name)
        if topic is None:
            valid = valid_topic_name(name)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if valid else ErrorCode.INVALID_TOPIC_EXCEPTION
            topics.append(DescribeTopicPartitionsResponseTopic(error_code=error, name=name, topic_id=ZERO_UUID))
            continue
        first_partition = 0
        if cursor is not None and name == cursor.topic_name:  # it may have been deleted since the last page
            first_partition = max(0, cursor.partition_index)
        if remaining <= 0:
            return DescribeTopicPartitionsResponse(
                topics=topics,
                next_cursor=DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=first_partition),
            )
        last = min(len(topic.partitions), first_partition + remaining)
        topics.append(_described(context, topic, range(first_partition, last)))
        remaining -= max(0, last - first_partition)
        if last < len(topic.partitions):
            return DescribeTopicPartitionsResponse(
                topics=topics,
                next_cursor=DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=last),
            )
    return DescribeTopicPartitionsResponse(topics=topics)


def _described(
    context: MetadataContext, topic: TopicImage, indexes: Sequence[int]
) -> DescribeTopicPartitionsResponseTopic:
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    for index in indexes:
        partition = topic.partitions.get(index)
        assert partition is not None, "partitions are numbered without gaps"
        alive = partition.leader >= 0 and context.metadata.is_alive(partition.leader)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.NONE if alive else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=_offline(context, partition),
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
