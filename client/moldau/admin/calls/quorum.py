"""The cluster, its metadata quorum and its feature levels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import trio

from moldau.admin.failures import error_of, first_retriable, only_passing, raise_error, raise_failures
from moldau.admin.requester import operations_of
from moldau.admin.values import (
    ClusterDescription,
    QuorumDescription,
    QuorumReplica,
)
from moldau.cluster import arguments
from moldau.cluster.connections.endpoints import BROKERS, CONTROLLERS
from moldau.cluster.metadata import BrokerNode
from moldau.cluster.reports import check_has_instance_id
from moldau.protocol.answers import judge
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    ReplicaState,
)
from moldau.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from moldau.runtime.net.served_versions import NeededVersion, ServedVersions, UnsupportedApiError, name_of_api
from moldau.values import ZERO_UUID
from moldau.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from moldau.admin.requester import Requester


_API_VERSIONS = ApiVersionsRequest(client_software_name="moldau", client_software_version=VERSION)
_DRY_RUN = NeededVersion(1, "a check of feature levels without a change (KIP-778, Kafka 3.3)")
_LONGEST_MS = 1e12  # some thirty years: within the range of a clock, which infinity is not
_METADATA_TOPIC = "__cluster_metadata"
_UPGRADE = 1
_PORT_BITS = 16
_SAFE_DOWNGRADE = 2
_UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """A feature: the levels that the answering node supports, and the finalized level (0: none)."""

    name: str
    level_min: int
    level_max: int
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion:
    """An API that a broker advertises."""

    key: int
    name: str
    """Kafka's name, or ``API`` and the number if this client does not know the API."""
    version_min: int
    version_max: int
    used: int | None
    """The version in which this client would send it; None: it never would."""


class Quorum:
    """Sends the requests about the cluster, its voters and its feature levels."""

    def __init__(self, requester: Requester) -> None:
        self._requester = requester

    async def client_instance_id(self, timeout_ms: float | None) -> UUID:
        """Implements ``Admin.client_instance_id``."""
        requester = self._requester
        check_has_instance_id(requester.client.config)
        limit_ms = arguments.time_limit("client_instance_id", timeout_ms, requester.timeout_ms)
        telemetry = requester.client.telemetry
        if telemetry.assigned_id is None:
            with trio.move_on_after(limit_ms / 1000) as scope:
                response = await requester.within(math.ceil(min(limit_ms, _LONGEST_MS))).ask(
                    GetTelemetrySubscriptionsResponse,
                    GetTelemetrySubscriptionsRequest(),
                    code_of=lambda each: ErrorCode.of(each.error_code),
                )
            if scope.cancelled_caught:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"no client instance id after {limit_ms:g} ms")
            error = error_of(response.error_code, None)
            if error is not None:
                raise error
            if telemetry.assigned_id is None:  # another task may have got one meanwhile
                telemetry.assigned_id = response.client_instance_id
        return telemetry.assigned_id

    async def describe_cluster(
        self, *, include_fenced: bool = False, include_authorized_operations: bool = False
    ) -> ClusterDescription:
        """Implements ``Admin.describe_cluster``."""
        try:
            response = await self._requester.ask(
                DescribeClusterResponse,
                DescribeClusterRequest(
                    endpoint_type=CONTROLLERS if self._requester.client.asks_controllers else BROKERS,
                    include_fenced_brokers=include_fenced,
                    include_cluster_authorized_operations=include_authorized_operations,
                ),
                code_of=lambda each: ErrorCode.of(each.error_code),
            )
        except UnsupportedApiError:
            if include_fenced:
                raise
            return await self._described_by_metadata()
        error = error_of(response.error_code, response.error_message)
        if error is not None:
            raise error
        return ClusterDescription(
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            brokers=tuple(
                BrokerNode(node_id=each.broker_id, host=each.host, port=each.port, rack=each.rack)
                for each in sorted(response.brokers, key=lambda each: each.broker_id)
            ),
            fenced=tuple(sorted(each.broker_id for each in response.brokers if each.is_fenced)),
            authorized_operations=operations_of(response.cluster_authorized_operations),
        )

    async def _described_by_metadata(self) -> ClusterDescription:
        """Describes the cluster of brokers that serve no DescribeCluster: Kafka before 2.8, and other makes."""
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        response = await self._requester.ask(MetadataResponse, request)
        return ClusterDescription(
            cluster_id=response.cluster_id or "",
            controller_id=response.controller_id,
            brokers=tuple(
                BrokerNode(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
                for each in sorted(response.brokers, key=lambda each: each.node_id)
            ),
        )

    async def unregister_broker(self, broker_id: int) -> None:
        """Implements ``Admin.unregister_broker``."""
        request = UnregisterBrokerRequest(
            broker_id=arguments.at_least("unregister_broker", "broker_id", broker_id, 0, bits=arguments.INT32_BITS)
        )
        response = await self._requester.ask(
            UnregisterBrokerResponse,
            request,
            # After a timeout, which may still take effect, a second removal would find no broker, or a new one.
            code_of=lambda each: only_passing([each.error_code], final=[ErrorCode.REQUEST_TIMED_OUT]),
        )
        raise_error(response.error_code, response.error_message)

    async def describe_quorum(self) -> QuorumDescription:
        """Implements ``Admin.describe_quorum``."""
        request = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name=_METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
                )
            ]
        )
        response = await self._requester.ask(
            DescribeQuorumResponse,
            request,
            code_of=lambda each: first_retriable(
                [each.error_code, *(p.error_code for topic in each.topics for p in topic.partitions)]
            ),
        )
        error = error_of(response.error_code, response.error_message)
        if error is not None:
            raise error
        partitions = [part for topic in response.topics for part in topic.partitions]
        if not partitions:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer to DescribeQuorum holds no partition")
        part = partitions[0]
        error = error_of(part.error_code, part.error_message)
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

    async def add_voter(
        self, voter_id: int, host: str, port: int, *, directory_id: UUID = ZERO_UUID, listener: str = "CONTROLLER"
    ) -> None:
        """Implements ``Admin.add_voter``."""
        arguments.integer("add_voter", "voter_id", voter_id)
        arguments.text("add_voter", "host", host)
        arguments.at_least("add_voter", "port", port, 0, bits=_PORT_BITS)
        request = AddRaftVoterRequest(
            cluster_id=None,  # Kafka's controllers compare every other value, even an empty one, with their own id
            timeout_ms=self._requester.broker_timeout_ms,
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=[Listener(name=listener, host=host, port=port)],
        )
        # Not retried: after a first attempt that took effect, the second would fail with DUPLICATE_VOTER.
        response = await self._requester.ask(AddRaftVoterResponse, request)
        raise_error(response.error_code, response.error_message)

    async def remove_voter(self, voter_id: int, *, directory_id: UUID = ZERO_UUID) -> None:
        """Implements ``Admin.remove_voter``."""
        arguments.integer("remove_voter", "voter_id", voter_id)
        request = RemoveRaftVoterRequest(cluster_id=None, voter_id=voter_id, voter_directory_id=directory_id)
        response = await self._requester.ask(RemoveRaftVoterResponse, request)
        raise_error(response.error_code, response.error_message)

    async def describe_features(self) -> list[FeatureDescription]:
        """Implements ``Admin.describe_features``."""
        response = await self._requester.ask(ApiVersionsResponse, _API_VERSIONS)
        raise_error(response.error_code, None)
        levels = {each.name: each.max_version_level for each in response.finalized_features}
        return [
            FeatureDescription(
                name=each.name,
                level_min=each.min_version,
                level_max=each.max_version,
                level=levels.get(each.name, 0),
            )
            for each in sorted(response.supported_features, key=lambda each: each.name)
        ]

    async def describe_api_versions(self, broker_ids: Iterable[int]) -> dict[int, list[ApiVersion]]:
        """Implements ``Admin.describe_api_versions``."""

        async def describe(node_id: int) -> list[ApiVersion]:
            await self._requester.ensure_broker_known(node_id)
            response = await self._requester.ask(ApiVersionsResponse, _API_VERSIONS, node_id=node_id)
            raise_error(response.error_code, f"broker {node_id}")
            served = ServedVersions(response)
            return [
                ApiVersion(
                    key=each.api_key,
                    name=name_of_api(each.api_key),
                    version_min=each.min_version,
                    version_max=each.max_version,
                    used=served.best_version(each.api_key),
                )
                for each in sorted(response.api_keys, key=lambda each: each.api_key)
            ]

        wanted = arguments.integers("describe_api_versions", "broker_ids", broker_ids)
        found, failures = await self._requester.at_once({each: partial(describe, each) for each in wanted})
        raise_failures({self._requester.broker_name(each): error for each, error in failures.items()}, found)
        return found

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        allow_downgrade: bool = False,
        unsafe: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Implements ``Admin.update_features``."""
        for name, level in arguments.mapping("update_features", "levels", levels, '{"metadata.version": 29}').items():
            arguments.integer("update_features", f"the level of {name}", level, bits=arguments.INT16_BITS)
        downgrade = _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE
        request = UpdateFeaturesRequest(
            timeout_ms=self._requester.broker_timeout_ms,
            feature_updates=[
                FeatureUpdateKey(
                    feature=name,
                    max_version_level=level,
                    allow_downgrade=allow_downgrade or unsafe,
                    upgrade_type=downgrade if allow_downgrade or unsafe else _UPGRADE,
                )
                for name, level in sorted(levels.items())
            ],
            validate_only=validate_only,
        )
        response = await self._requester.ask(
            UpdateFeaturesResponse,
            request,
            code_of=lambda each: ErrorCode.of(each.error_code),
            needed=_DRY_RUN if validate_only else None,
        )
        raise_error(response.error_code, response.error_message)
        if not response.results:  # later versions have none
            return
        answers = ((each.feature, error_of(each.error_code, each.error_message), None) for each in response.results)
        raise_failures(judge("feature", sorted(levels), answers).failures)


def _quorum_replica(state: ReplicaState) -> QuorumReplica:
    return QuorumReplica(
        replica_id=state.replica_id,
        log_end_offset=state.log_end_offset,
        last_fetch_ms=state.last_fetch_timestamp,
        last_caught_up_ms=state.last_caught_up_timestamp,
        directory_id=state.replica_directory_id,
    )
