"""Which request and response belong to which API key, and the header versions that go with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from moldau.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from moldau.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from moldau.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from moldau.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from moldau.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from moldau.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from moldau.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from moldau.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from moldau.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from moldau.protocol.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from moldau.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from moldau.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from moldau.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from moldau.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from moldau.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from moldau.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from moldau.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from moldau.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from moldau.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from moldau.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from moldau.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from moldau.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse
from moldau.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from moldau.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from moldau.protocol.messages.produce import ProduceRequest, ProduceResponse
from moldau.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from moldau.protocol.messages.read_share_group_state import ReadShareGroupStateRequest, ReadShareGroupStateResponse
from moldau.protocol.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from moldau.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from moldau.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from moldau.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from moldau.protocol.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from moldau.protocol.messages.write_share_group_state import WriteShareGroupStateRequest, WriteShareGroupStateResponse
from moldau.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from moldau.protocol.schema import Request, Response
from moldau.protocol.versions import VersionRange


class ApiKey(IntEnum):
    """Kafka's API keys of the messages that Moldau knows."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its classes and what they share."""

    key: ApiKey
    request: type[Request]
    response: type[Response]

    @property
    def versions(self) -> VersionRange:
        """The versions that the tables cover; a server may serve fewer."""
        return self.request.__versions__

    def is_flexible(self, version: int) -> bool:
        """Whether a version uses compact lengths and tagged fields (KIP-482)."""
        return version in self.request.__flexible__


_APIS = (
    Api(ApiKey.PRODUCE, ProduceRequest, ProduceResponse),
    Api(ApiKey.FETCH, FetchRequest, FetchResponse),
    Api(ApiKey.LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse),
    Api(ApiKey.METADATA, MetadataRequest, MetadataResponse),
    Api(ApiKey.OFFSET_COMMIT, OffsetCommitRequest, OffsetCommitResponse),
    Api(ApiKey.OFFSET_FETCH, OffsetFetchRequest, OffsetFetchResponse),
    Api(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest, FindCoordinatorResponse),
    Api(ApiKey.JOIN_GROUP, JoinGroupRequest, JoinGroupResponse),
    Api(ApiKey.HEARTBEAT, HeartbeatRequest, HeartbeatResponse),
    Api(ApiKey.LEAVE_GROUP, LeaveGroupRequest, LeaveGroupResponse),
    Api(ApiKey.SYNC_GROUP, SyncGroupRequest, SyncGroupResponse),
    Api(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest, DescribeGroupsResponse),
    Api(ApiKey.LIST_GROUPS, ListGroupsRequest, ListGroupsResponse),
    Api(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest, SaslHandshakeResponse),
    Api(ApiKey.API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse),
    Api(ApiKey.CREATE_TOPICS, CreateTopicsRequest, CreateTopicsResponse),
    Api(ApiKey.DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse),
    Api(ApiKey.DELETE_RECORDS, DeleteRecordsRequest, DeleteRecordsResponse),
    Api(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest, InitProducerIdResponse),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    Api(ApiKey.END_TXN, EndTxnRequest, EndTxnResponse),
    Api(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest, WriteTxnMarkersResponse),
    Api(ApiKey.TXN_OFFSET_COMMIT, TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    Api(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest, DescribeAclsResponse),
    Api(ApiKey.CREATE_ACLS, CreateAclsRequest, CreateAclsResponse),
    Api(ApiKey.DELETE_ACLS, DeleteAclsRequest, DeleteAclsResponse),
    Api(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest, DescribeConfigsResponse),
    Api(ApiKey.ALTER_CONFIGS, AlterConfigsRequest, AlterConfigsResponse),
    Api(ApiKey.ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse),
    Api(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest, DescribeLogDirsResponse),
    Api(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest, SaslAuthenticateResponse),
    Api(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest, CreatePartitionsResponse),
    Api(ApiKey.CREATE_DELEGATION_TOKEN, CreateDelegationTokenRequest, CreateDelegationTokenResponse),
    Api(ApiKey.RENEW_DELEGATION_TOKEN, RenewDelegationTokenRequest, RenewDelegationTokenResponse),
    Api(ApiKey.EXPIRE_DELEGATION_TOKEN, ExpireDelegationTokenRequest, ExpireDelegationTokenResponse),
    Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, DescribeDelegationTokenRequest, DescribeDelegationTokenResponse),
    Api(ApiKey.DELETE_GROUPS, DeleteGroupsRequest, DeleteGroupsResponse),
    Api(ApiKey.ELECT_LEADERS, ElectLeadersRequest, ElectLeadersResponse),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
    Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
    Api(ApiKey.OFFSET_DELETE, OffsetDeleteRequest, OffsetDeleteResponse),
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest, DescribeClientQuotasResponse),
    Api(ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest, AlterClientQuotasResponse),
    Api(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        DescribeUserScramCredentialsRequest,
        DescribeUserScramCredentialsResponse,
    ),
    Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse),
    Api(ApiKey.DESCRIBE_QUORUM, DescribeQuorumRequest, DescribeQuorumResponse),
    Api(ApiKey.ALTER_PARTITION, AlterPartitionRequest, AlterPartitionResponse),
    Api(ApiKey.UPDATE_FEATURES, UpdateFeaturesRequest, UpdateFeaturesResponse),
    Api(ApiKey.ENVELOPE, EnvelopeRequest, EnvelopeResponse),
    Api(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest, DescribeClusterResponse),
    Api(ApiKey.DESCRIBE_PRODUCERS, DescribeProducersRequest, DescribeProducersResponse),
    Api(ApiKey.BROKER_REGISTRATION, BrokerRegistrationRequest, BrokerRegistrationResponse),
    Api(ApiKey.BROKER_HEARTBEAT, BrokerHeartbeatRequest, BrokerHeartbeatResponse),
    Api(ApiKey.UNREGISTER_BROKER, UnregisterBrokerRequest, UnregisterBrokerResponse),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest, DescribeTransactionsResponse),
    Api(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest, ListTransactionsResponse),
    Api(ApiKey.ALLOCATE_PRODUCER_IDS, AllocateProducerIdsRequest, AllocateProducerIdsResponse),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    Api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse),
    Api(ApiKey.PUSH_TELEMETRY, PushTelemetryRequest, PushTelemetryResponse),
    Api(ApiKey.ASSIGN_REPLICAS_TO_DIRS, AssignReplicasToDirsRequest, AssignReplicasToDirsResponse),
    Api(ApiKey.LIST_CONFIG_RESOURCES, ListConfigResourcesRequest, ListConfigResourcesResponse),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
    Api(ApiKey.SHARE_GROUP_HEARTBEAT, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse),
    Api(ApiKey.SHARE_GROUP_DESCRIBE, ShareGroupDescribeRequest, ShareGroupDescribeResponse),
    Api(ApiKey.ADD_RAFT_VOTER, AddRaftVoterRequest, AddRaftVoterResponse),
    Api(ApiKey.REMOVE_RAFT_VOTER, RemoveRaftVoterRequest, RemoveRaftVoterResponse),
    Api(ApiKey.UPDATE_RAFT_VOTER, UpdateRaftVoterRequest, UpdateRaftVoterResponse),
    Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, InitializeShareGroupStateRequest, InitializeShareGroupStateResponse),
    Api(ApiKey.READ_SHARE_GROUP_STATE, ReadShareGroupStateRequest, ReadShareGroupStateResponse),
    Api(ApiKey.WRITE_SHARE_GROUP_STATE, WriteShareGroupStateRequest, WriteShareGroupStateResponse),
    Api(ApiKey.DELETE_SHARE_GROUP_STATE, DeleteShareGroupStateRequest, DeleteShareGroupStateResponse),
    Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, ReadShareGroupStateSummaryRequest, ReadShareGroupStateSummaryResponse),
    Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse),
    Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse),
    Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse),
)

APIS: Mapping[int, Api] = MappingProxyType({int(api.key): api for api in _APIS})
"""Every API by key."""


def request_header_version(api_key: int, version: int) -> int:
    """2 for flexible versions, 1 otherwise.

    Raises:
        KeyError: the key is unknown.
    """
    return 2 if APIS[api_key].is_flexible(version) else 1


def response_header_version(api_key: int, version: int) -> int:
    """Returns 1 for flexible versions, 0 otherwise.

    ApiVersions always answers with 0, so that a client can read it before it knows the server's versions (KIP-511).

    Raises:
        KeyError: the key is unknown.
    """
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if APIS[api_key].is_flexible(version) else 0
