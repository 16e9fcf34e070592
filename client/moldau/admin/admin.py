"""The admin client: topics, configurations, offsets, groups, quorum, replicas.

    async with Admin({"bootstrap.servers": "127.0.0.1:9092"}) as admin:
        await admin.create_topics([NewTopic(name="flights", partitions=6, replication_factor=3)])

Every call is tried again until ``default.api.timeout.ms`` is over, as long as the error says that it may help. Calls
on several things raise an ``AdminError`` that names each one that failed; those that it does not name succeeded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

import trio

from moldau.admin.values import (
    ClusterDescription,
    ConfigAlteration,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    CreatedTopic,
    NewTopic,
    PartitionDescription,
    QuorumDescription,
    QuorumReplica,
    ResourceType,
    TopicDescription,
    TopicListing,
)
from moldau.cluster.background import Background
from moldau.cluster.client import TRANSPORT_ERRORS, ClusterClient
from moldau.cluster.metadata import NO_TOPIC_ID, BrokerNode, TopicPartition
from moldau.cluster.offsets import list_offsets
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from moldau.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    ReplicaState,
)
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.schema import Response
from moldau.runtime.config import ADMIN_CONFIG, Config, ConfigError, ConfigSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from moldau.protocol.schema import Request
    from moldau.runtime.environment import Environment

R = TypeVar("R", bound=Response)

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
_METADATA_TOPIC = "__cluster_metadata"

QUESTIONS = (
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
)
"""What any broker answers and nothing changes by: may be put to a second broker while a first one is silent."""


class AdminError(KafkaError):
    """Some of the things a call was about failed. ``failures`` maps each of them to its error."""

    def __init__(self, failures: Mapping[str, KafkaError]) -> None:
        first = next(iter(failures.values()))
        super().__init__(first.code, "; ".join(f"{name}: {error}" for name, error in failures.items()))
        self.failures = dict(failures)


def raise_failures(failures: Mapping[str, KafkaError]) -> None:
    """Raises ``AdminError`` unless there are none."""
    if failures:
        raise AdminError(failures)


class AdminBase:
    """Life of the admin client, and its way of asking."""

    def __init__(self, config: Mapping[str, object] | Config, *, environment: Environment | None = None) -> None:
        """Takes Kafka's admin configuration keys; raises ``ConfigError`` for what is wrong with them."""
        self._config = config if isinstance(config, Config) else ADMIN_CONFIG.parse(config)
        if self._config.schema is not ADMIN_CONFIG:
            raise ConfigError([f"an admin client cannot use a {self._config.schema.name} configuration"])
        self._environment = environment
        self._timeout_ms = self._config.get_int("default.api.timeout.ms")
        self._retries = self._config.get_int("retries")
        self._background = Background()
        self._client: ClusterClient | None = None

    async def __aenter__(self) -> Self:
        """Starts the background task. Does not wait for a broker."""
        environment = self._environment
        if environment is None:
            from moldau.runtime.real import real_environment

            environment = real_environment()
        self._client = ClusterClient(environment, self._config, "admin")
        await self._background.open(self._client.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Closes the connections."""
        ended = None if self._client is None else self._client.close
        return await self._background.close(kind, error, traceback, ended=ended)

    def _opened(self) -> ClusterClient:
        if self._client is None:
            raise RuntimeError("the admin client is not open; use it as `async with Admin(...) as admin`")
        return self._client

    async def _ask(
        self,
        response_class: type[R],
        request: Request,
        *,
        node_id: int | None = None,
        code_of: Callable[[R], ErrorCode | None] | None = None,
    ) -> R:
        """Asks any broker (or ``node_id``) until it answers without a retriable error, or time is over."""
        client = self._opened()
        deadline_ms = client.now_ms + self._timeout_ms
        failures = 0
        while True:
            problem: str
            try:
                if node_id is None:
                    put = client.ask_any if isinstance(request, QUESTIONS) else client.request_any
                    response = await put(response_class, request)
                else:
                    response = await client.request(node_id, response_class, request)
            except TRANSPORT_ERRORS as error:
                problem = str(error)
            else:
                code = None if code_of is None else code_of(response)
                if code is None or not code.retriable:
                    return response
                problem = f"{code.name}: {code.message}"
            failures += 1
            if failures > self._retries or client.now_ms >= deadline_ms:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{type(request).__name__}: {problem}")
            client.request_update()
            await client.backoff(failures)

    async def _node_known(self, node_id: int) -> None:
        """Waits until the address of a broker is known. Raises ``KafkaError`` where there is none."""
        client = self._opened()
        if node_id not in client.picture.brokers:
            response = await self._ask(MetadataResponse, MetadataRequest(topics=[], allow_auto_topic_creation=False))
            client.picture.update(response)
        if node_id not in client.picture.brokers:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no live broker {node_id}")


def _error(code: int, message: str | None = None) -> KafkaError | None:
    found = ErrorCode.of(code)
    return None if found is ErrorCode.NONE else KafkaError(found, message)


def _first_retriable(codes: Iterable[int]) -> ErrorCode | None:
    """Returns a retriable code if all that failed may be tried again together, else None."""
    failed = [ErrorCode.of(code) for code in codes if code]
    return failed[0] if failed and all(code.retriable for code in failed) else None


class TopicsAdmin(AdminBase):
    """Topics, configurations, cluster and quorum."""

    # --- topics

    async def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Creates topics; they are committed to the metadata log on return. Raises ``AdminError``."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic.name,
                    num_partitions=-1 if topic.assignments else topic.partitions,
                    replication_factor=-1 if topic.assignments else topic.replication_factor,
                    assignments=[
                        CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                        for index, brokers in topic.assignments.items()
                    ],
                    configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
                )
                for topic in topics
            ],
            timeout_ms=min(self._timeout_ms, self._opened().request_timeout_ms),
            validate_only=validate_only,
        )
        response = await self._ask(
            CreateTopicsResponse, request, code_of=lambda each: _first_retriable(t.error_code for t in each.topics)
        )
        errors = {topic.name: _error(topic.error_code, topic.error_message) for topic in response.topics}
        raise_failures({name: error for name, error in errors.items() if error is not None})
        return [
            CreatedTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=topic.num_partitions,
                replication_factor=topic.replication_factor,
            )
            for topic in response.topics
        ]

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Deletes topics with their records. Raises ``AdminError``."""
        wanted = list(names)
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in wanted],
            topic_names=wanted,
            timeout_ms=min(self._timeout_ms, self._opened().request_timeout_ms),
        )
        response = await self._ask(DeleteTopicsResponse, request)
        errors = {
            topic.name or str(topic.topic_id): _error(topic.error_code, topic.error_message)
            for topic in response.responses
        }
        raise_failures({name: error for name, error in errors.items() if error is not None})

    async def create_partitions(
        self, counts: Mapping[str, int], *, assignments: Mapping[str, Sequence[Sequence[int]]] | None = None
    ) -> None:
        """Raises the number of partitions of topics to ``counts``; ``assignments`` places the new ones. Raises
        ``AdminError``.
        """
        placed = assignments or {}
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(
                    name=name,
                    count=count,
                    assignments=[CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in placed[name]]
                    if name in placed
                    else None,
                )
                for name, count in counts.items()
            ],
            timeout_ms=min(self._timeout_ms, self._opened().request_timeout_ms),
        )
        response = await self._ask(
            CreatePartitionsResponse, request, code_of=lambda each: _first_retriable(t.error_code for t in each.results)
        )
        errors = {topic.name: _error(topic.error_code, topic.error_message) for topic in response.results}
        raise_failures({name: error for name, error in errors.items() if error is not None})

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """Returns all topics, by name."""
        response = await self._ask(MetadataResponse, MetadataRequest(topics=None, allow_auto_topic_creation=False))
        return [
            TopicListing(
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partition_count=len(topic.partitions),
            )
            for topic in sorted(response.topics, key=lambda each: each.name or "")
            if topic.name is not None and (include_internal or not topic.is_internal)
        ]

    async def describe_topics(self, names: Iterable[str], *, node_id: int | None = None) -> dict[str, TopicDescription]:
        """Returns topics with their partitions, as any broker (or ``node_id``) knows them. Raises ``AdminError`` for
        those that do not exist.
        """
        if node_id is not None:
            await self._node_known(node_id)
        request = MetadataRequest(
            topics=[MetadataRequestTopic(topic_id=NO_TOPIC_ID, name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        response = await self._ask(
            MetadataResponse,
            request,
            node_id=node_id,
            code_of=lambda each: _first_retriable(
                t.error_code for t in each.topics if t.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ),
        )
        found: dict[str, TopicDescription] = {}
        failures: dict[str, KafkaError] = {}
        for topic in response.topics:
            name = topic.name or str(topic.topic_id)
            error = _error(topic.error_code)
            if error is not None:
                failures[name] = error
                continue
            found[name] = TopicDescription(
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=tuple(
                    PartitionDescription(
                        partition=part.partition_index,
                        leader=part.leader_id,
                        leader_epoch=part.leader_epoch,
                        replicas=tuple(part.replica_nodes),
                        isr=tuple(part.isr_nodes),
                        offline_replicas=tuple(part.offline_replicas),
                    )
                    for part in sorted(topic.partitions, key=lambda each: each.partition_index)
                ),
            )
        raise_failures(failures)
        return found

    # --- configurations

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_documentation: bool = False
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Returns every key of the configurations. Those of a broker come from that broker. Raises ``AdminError``."""
        found: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        failures: dict[str, KafkaError] = {}
        for node_id, group in self._by_broker(resources).items():
            if node_id is not None:
                await self._node_known(node_id)
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(resource_type=each.type, resource_name=each.name, configuration_keys=None)
                    for each in group
                ],
                include_documentation=include_documentation,
            )
            response = await self._ask(DescribeConfigsResponse, request, node_id=node_id)
            for result in response.results:
                error = _error(result.error_code, result.error_message)
                if error is not None:
                    failures[result.resource_name] = error
                    continue
                resource = ConfigResource(type=ResourceType(result.resource_type), name=result.resource_name)
                found[resource] = {
                    entry.name: ConfigEntry(
                        name=entry.name,
                        value=entry.value,
                        source=ConfigSource(entry.config_source)
                        if 0 <= entry.config_source <= max(ConfigSource)
                        else ConfigSource.UNKNOWN,
                        is_read_only=entry.read_only,
                        is_sensitive=entry.is_sensitive,
                        documentation=entry.documentation,
                    )
                    for entry in result.configs
                }
        raise_failures(failures)
        return found

    @staticmethod
    def _by_broker(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
        groups: dict[int | None, list[ConfigResource]] = {}
        for resource in resources:
            is_one_broker = resource.type is ResourceType.BROKER and resource.name
            if is_one_broker and not resource.name.isdigit():
                raise ValueError(f"broker {resource.name!r} is no number")
            groups.setdefault(int(resource.name) if is_one_broker else None, []).append(resource)
        return groups

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigAlteration]], *, validate_only: bool = False
    ) -> None:
        """Changes single keys; all keys of a resource change together or not at all. Raises ``AdminError``."""
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configs=[
                        AlterableConfig(
                            name=change.name,
                            config_operation=change.operation,
                            value=None if change.operation is ConfigOperation.DELETE else change.value,
                        )
                        for change in alterations
                    ],
                )
                for resource, alterations in changes.items()
            ],
            validate_only=validate_only,
        )
        response = await self._ask(
            IncrementalAlterConfigsResponse,
            request,
            code_of=lambda each: _first_retriable(r.error_code for r in each.responses),
        )
        errors = {each.resource_name: _error(each.error_code, each.error_message) for each in response.responses}
        raise_failures({name: error for name, error in errors.items() if error is not None})

    # --- cluster and quorum

    async def describe_cluster(self) -> ClusterDescription:
        """Returns id, controller and live brokers."""
        response = await self._ask(
            DescribeClusterResponse, DescribeClusterRequest(), code_of=lambda each: ErrorCode.of(each.error_code)
        )
        error = _error(response.error_code, response.error_message)
        if error is not None:
            raise error
        return ClusterDescription(
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            brokers=tuple(
                BrokerNode(node_id=each.broker_id, host=each.host, port=each.port, rack=each.rack)
                for each in sorted(response.brokers, key=lambda each: each.broker_id)
            ),
        )

    async def describe_quorum(self) -> QuorumDescription:
        """Returns the state of the metadata quorum."""
        request = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name=_METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
                )
            ]
        )
        response = await self._ask(
            DescribeQuorumResponse,
            request,
            code_of=lambda each: _first_retriable(
                [each.error_code, *(p.error_code for topic in each.topics for p in topic.partitions)]
            ),
        )
        error = _error(response.error_code, response.error_message)
        if error is not None:
            raise error
        partitions = [part for topic in response.topics for part in topic.partitions]
        if not partitions:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer to DescribeQuorum holds no partition")
        part = partitions[0]
        error = _error(part.error_code, part.error_message)
        if error is not None:
            raise error
        return QuorumDescription(
            leader_id=part.leader_id,
            leader_epoch=part.leader_epoch,
            high_watermark=part.high_watermark,
            voters=tuple(map(_quorum_replica, part.current_voters)),
            observers=tuple(map(_quorum_replica, part.observers)),
            endpoints=tuple(
                (node.node_id, node.listeners[0].host, node.listeners[0].port)
                for node in sorted(response.nodes, key=lambda each: each.node_id)
                if node.listeners
            ),
        )

    # --- offsets

    async def list_offsets(
        self, wanted: Mapping[tuple[str, int], int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Returns (offset, timestamp) of each partition at EARLIEST, LATEST, MAX_TIMESTAMP or a time in
        milliseconds.
        """
        asked = {TopicPartition(*partition): timestamp for partition, timestamp in wanted.items()}
        try:
            return await list_offsets(self._opened(), asked, self._timeout_ms, isolation_level)
        except trio.TooSlowError as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error


def _quorum_replica(state: ReplicaState) -> QuorumReplica:
    return QuorumReplica(
        replica_id=state.replica_id,
        log_end_offset=state.log_end_offset,
        last_fetch_ms=state.last_fetch_timestamp,
        last_caught_up_ms=state.last_caught_up_timestamp,
    )
