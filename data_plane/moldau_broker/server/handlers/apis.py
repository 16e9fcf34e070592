"""The table of the APIs that a broker serves: versions and handlers.

ApiVersions and the dispatcher of ``connection`` read it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest
from moldau.protocol.messages.alter_configs import AlterConfigsRequest
from moldau.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from moldau.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from moldau.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.delete_records import DeleteRecordsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.describe_producers import DescribeProducersRequest
from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest
from moldau.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.list_config_resources import ListConfigResourcesRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from moldau.protocol.messages.list_transactions import ListTransactionsRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau.protocol.messages.update_features import UpdateFeaturesRequest
from moldau.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from moldau.protocol.schema import Request, Response
from moldau_broker.coordinator.runtime.completion import Completion
from moldau_broker.server.handlers import configs, forwarded, groups, logs, metadata, offsets, producers, transactions
from moldau_broker.server.handlers.context import LongAnswer

if TYPE_CHECKING:
    from moldau_broker.server.handlers.context import BrokerContext, Call

Q = TypeVar("Q", bound=Request)
Outcome = Response | Completion | LongAnswer | Awaitable[Response]
Handler = Callable[["BrokerContext", Request, "Call"], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """One API: its served versions and its handler."""

    key: ApiKey
    request: type[Request]
    first_version: int
    last_version: int
    advertised_first: int  # below ``first_version`` only where clients need it (Produce)
    handle: Handler | None  # None: the connection serves it itself
    waits: bool = False  # the handler is a coroutine function


def served(
    request_class: type[Q], handler: Callable[[BrokerContext, Q, Call], Outcome], *, last: int | None = None
) -> ServedApi:
    """Returns an entry of the table; ``last`` is the highest served version, if the codec knows higher ones."""
    versions = request_class.__versions__

    def handle(context: BrokerContext, request: Request, call: Call) -> Outcome:
        assert isinstance(request, request_class)
        return handler(context, request, call)

    return ServedApi(
        key=ApiKey(request_class.__api_key__),
        request=request_class,
        first_version=versions.first,
        last_version=versions.last if last is None else min(last, versions.last),
        advertised_first=versions.first,
        handle=handle,
        waits=inspect.iscoroutinefunction(handler),
    )


def _by_connection(key: ApiKey, *, last: int, advertised_first: int | None = None) -> ServedApi:
    versions = APIS[key].versions
    first = versions.first
    return ServedApi(
        key=key,
        request=APIS[key].request,
        first_version=first,
        last_version=min(last, versions.last),
        advertised_first=first if advertised_first is None else advertised_first,
        handle=None,
    )


BASE_APIS: tuple[ServedApi, ...] = (
    # librdkafka 2.0 turns compression off unless Produce is advertised from version 0; versions below 3 are refused.
    _by_connection(ApiKey.PRODUCE, last=13, advertised_first=0),
    _by_connection(ApiKey.FETCH, last=18),
    _by_connection(ApiKey.API_VERSIONS, last=4),
    served(ListOffsetsRequest, offsets.handle_list_offsets, last=10),
    served(MetadataRequest, metadata.handle_metadata),
    served(CreateTopicsRequest, forwarded.handle_create_topics),
    served(DeleteTopicsRequest, forwarded.handle_delete_topics),
    served(DeleteRecordsRequest, logs.handle_delete_records),
    served(FindCoordinatorRequest, groups.handle_find_coordinator),
    served(JoinGroupRequest, groups.handle_group_request),
    served(SyncGroupRequest, groups.handle_group_request),
    served(HeartbeatRequest, groups.handle_group_request),
    served(LeaveGroupRequest, groups.handle_group_request),
    served(OffsetCommitRequest, groups.handle_group_request),
    served(OffsetFetchRequest, groups.handle_group_request),
    served(OffsetDeleteRequest, groups.handle_group_request),
    served(DescribeGroupsRequest, groups.handle_group_request),
    served(ListGroupsRequest, groups.handle_group_request),
    served(DeleteGroupsRequest, groups.handle_group_request),
    served(InitProducerIdRequest, transactions.handle_init, last=5),
    served(AddPartitionsToTxnRequest, transactions.handle_transaction_request),
    served(AddOffsetsToTxnRequest, transactions.handle_add_offsets),
    served(EndTxnRequest, transactions.handle_transaction_request, last=4),
    served(WriteTxnMarkersRequest, transactions.handle_write_txn_markers, last=1),
    served(TxnOffsetCommitRequest, transactions.handle_txn_offset_commit, last=4),
    served(DescribeTransactionsRequest, transactions.handle_transaction_request),
    served(ListTransactionsRequest, transactions.handle_transaction_request, last=1),
    served(OffsetForLeaderEpochRequest, offsets.handle_offset_for_leader_epoch),
    served(DescribeConfigsRequest, configs.handle_describe_configs),
    served(ListConfigResourcesRequest, configs.handle_list_config_resources),
    served(AlterConfigsRequest, forwarded.handle_alter_configs),
    served(DescribeLogDirsRequest, logs.handle_describe_log_dirs, last=4),
    served(AlterReplicaLogDirsRequest, logs.handle_alter_replica_log_dirs),
    served(CreatePartitionsRequest, forwarded.handle_create_partitions),
    served(ElectLeadersRequest, forwarded.relay),
    served(IncrementalAlterConfigsRequest, forwarded.handle_incremental_alter_configs),
    served(AlterPartitionReassignmentsRequest, forwarded.relay),
    served(ListPartitionReassignmentsRequest, forwarded.relay),
    served(DescribeQuorumRequest, forwarded.relay),
    served(UpdateFeaturesRequest, forwarded.handle_update_features),
    served(DescribeClusterRequest, metadata.handle_describe_cluster),
    served(DescribeProducersRequest, producers.handle_describe_producers),
    served(UnregisterBrokerRequest, forwarded.relay),
    served(AddRaftVoterRequest, forwarded.relay),
    served(RemoveRaftVoterRequest, forwarded.relay),
    served(DescribeTopicPartitionsRequest, metadata.handle_describe_topic_partitions),
)


def api_table(entries: tuple[ServedApi, ...]) -> Mapping[int, ServedApi]:
    """Returns the table by key; no key may appear twice."""
    table = {int(entry.key): entry for entry in entries}
    assert len(table) == len(entries), "an API is served by two handlers"
    return MappingProxyType(dict(sorted(table.items())))


def api_versions(
    table: Mapping[int, ServedApi],
    supported_features: Mapping[str, tuple[int, int]],
    finalized_features: Mapping[str, int],
    features_epoch: int,
) -> ApiVersionsResponse:
    """Returns the response that describes this broker (KIP-35, KIP-584)."""
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=entry.advertised_first, max_version=entry.last_version)
            for key, entry in table.items()
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in sorted(supported_features.items())
        ],
        finalized_features_epoch=features_epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(finalized_features.items())
        ],
    )
