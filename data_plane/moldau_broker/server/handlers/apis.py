"""The table of the APIs that a broker serves: one row states versions, handler, listeners, rights and cost.

ApiVersions, the dispatcher of ``connection``, docs/compat.md and the kit's coverage read it. The rules of an API that
the controller decides stand in the controller's own row (``moldau_quorum.controller.dispatch``): the broker forwards
what clients may send, through ``forwarded.relay`` unless a row here names another handler.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from moldau.protocol.access import AclOperation, AclResource, ApiRules, Cost, Listeners, Need
from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.alter_configs import AlterConfigsRequest
from moldau.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from moldau.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from moldau.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from moldau.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    supported_feature_keys,
)
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.delete_records import DeleteRecordsRequest
from moldau.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from moldau.protocol.messages.delete_share_group_state import DeleteShareGroupStateRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest
from moldau.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.describe_producers import DescribeProducersRequest
from moldau.protocol.messages.describe_share_group_offsets import DescribeShareGroupOffsetsRequest
from moldau.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.list_config_resources import ListConfigResourcesRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.list_transactions import ListTransactionsRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from moldau.protocol.messages.push_telemetry import PushTelemetryRequest
from moldau.protocol.messages.read_share_group_state import ReadShareGroupStateRequest
from moldau.protocol.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest
from moldau.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.messages.sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from moldau.protocol.messages.share_fetch import ShareFetchRequest
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.protocol.messages.update_features import UpdateFeaturesRequest
from moldau.protocol.messages.write_share_group_state import WriteShareGroupStateRequest
from moldau.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from moldau.protocol.schema import Request, Response
from moldau_broker.coordinator.runtime.completion import Completion
from moldau_broker.server.cluster_metadata.shared_answers import SharedAnswer
from moldau_broker.server.handlers import (
    configs,
    credentials,
    forwarded,
    logs,
    metadata,
    producers,
    telemetry,
    tokens,
    transactions,
)
from moldau_broker.server.handlers.context import LongAnswer
from moldau_broker.server.handlers.groups import membership as groups
from moldau_broker.server.handlers.groups import offsets, share_delivery, shares
from moldau_quorum.authorization.checks import SPECIAL_CHECKS, Check, checks_of
from moldau_quorum.node.serving.apis import CONTROLLER_APIS

if TYPE_CHECKING:
    from moldau_broker.coordinator.share.core.requests import ShareStateRequest
    from moldau_broker.server.handlers.context import BrokerContext, Call

ALTER, CLUSTER_ACTION, CREATE, DELETE = (
    AclOperation.ALTER,
    AclOperation.CLUSTER_ACTION,
    AclOperation.CREATE,
    AclOperation.DELETE,
)
DESCRIBE, DESCRIBE_CONFIGS = AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
IDEMPOTENT_WRITE, READ, WRITE = AclOperation.IDEMPOTENT_WRITE, AclOperation.READ, AclOperation.WRITE
CLUSTER, GROUP, TOPIC = AclResource.CLUSTER, AclResource.GROUP, AclResource.TOPIC
TRANSACTIONAL_ID = AclResource.TRANSACTIONAL_ID

Q = TypeVar("Q", bound=Request)
Outcome = Response | Completion | LongAnswer | Awaitable[Response | SharedAnswer]
Handler = Callable[["BrokerContext", Request, "Call"], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """One API: its served versions, its handler and its rules."""

    key: ApiKey
    request: type[Request]
    first_version: int
    last_version: int
    advertised_first: int  # below ``first_version`` only where clients need it (Produce)
    handle: Handler | None  # None: the connection serves it itself
    waits: bool  # the handler is a coroutine function
    rules: ApiRules


def served(
    request_class: type[Q],
    handler: Callable[[BrokerContext, Q, Call], Outcome],
    *needs: Need,
    last: int | None = None,
    listeners: Listeners = Listeners.BROKER,
    cost: Cost = Cost.REQUEST,
) -> ServedApi:
    """Returns the row of an API that this broker answers itself.

    ``last`` is the highest served version, if the codec knows higher ones; ``needs`` are the rights that some use of
    the API requires.
    """
    rules = ApiRules(listeners=listeners, needs=needs, cost=cost)
    return _row(
        ApiKey(request_class.__api_key__),
        _typed(request_class, handler),
        rules,
        waits=inspect.iscoroutinefunction(handler),
        last=last,
    )


def _share_state(request_class: type[ShareStateRequest]) -> ServedApi:
    """Returns the row of a request to the share coordinator, which only brokers send."""
    return served(
        request_class,
        shares.handle_share_state,
        CLUSTER_ACTION.on(CLUSTER),
        listeners=Listeners.INTER_BROKER,
        cost=Cost.NONE,
    )


def _forwarded(request_class: type[Q], handler: Callable[[BrokerContext, Q, Call], Outcome]) -> ServedApi:
    """Returns the row of an API that this broker forwards with some work of its own, with the controller's rules."""
    key = ApiKey(request_class.__api_key__)
    return _row(key, _typed(request_class, handler), _FORWARDED_RULES[key], waits=True)


def _by_connection(key: ApiKey, *needs: Need, last: int, advertised_first: int | None = None, cost: Cost) -> ServedApi:
    """Returns the row of an API that the connection serves itself."""
    rules = ApiRules(listeners=Listeners.BROKER, needs=needs, cost=cost)
    return _row(key, None, rules, waits=False, last=last, advertised_first=advertised_first)


def _typed(request_class: type[Q], handler: Callable[[BrokerContext, Q, Call], Outcome]) -> Handler:
    def handle(context: BrokerContext, request: Request, call: Call) -> Outcome:
        assert isinstance(request, request_class)
        return handler(context, request, call)

    return handle


def _row(
    key: ApiKey,
    handler: Handler | None,
    rules: ApiRules,
    *,
    waits: bool,
    last: int | None = None,
    advertised_first: int | None = None,
) -> ServedApi:
    versions = APIS[key].versions
    return ServedApi(
        key=key,
        request=APIS[key].request,
        first_version=versions.first,
        last_version=versions.last if last is None else min(last, versions.last),
        advertised_first=versions.first if advertised_first is None else advertised_first,
        handle=handler,
        waits=waits,
        rules=rules,
    )


_FORWARDED_RULES = {api.key: api.rules for api in CONTROLLER_APIS}

_OWN_APIS: tuple[ServedApi, ...] = (
    # librdkafka 2.0 turns compression off unless Produce is advertised from version 0; versions below 3 are refused.
    _by_connection(
        ApiKey.PRODUCE,
        WRITE.on(TRANSACTIONAL_ID),
        WRITE.on(TOPIC),
        last=13,
        advertised_first=0,
        cost=Cost.RECORDS,
    ),
    _by_connection(ApiKey.FETCH, CLUSTER_ACTION.on(CLUSTER), READ.on(TOPIC), last=18, cost=Cost.RECORDS),
    _by_connection(ApiKey.API_VERSIONS, last=5, cost=Cost.NONE),
    served(ListOffsetsRequest, offsets.handle_list_offsets, DESCRIBE.on(TOPIC)),
    served(
        MetadataRequest,
        metadata.handle_metadata,
        DESCRIBE.on(TOPIC),
        CREATE.on(CLUSTER),
        CREATE.on(TOPIC),
        DESCRIBE.on(CLUSTER),
    ),
    _forwarded(CreateTopicsRequest, forwarded.handle_create_topics),
    _forwarded(DeleteTopicsRequest, forwarded.handle_delete_topics),
    served(DeleteRecordsRequest, logs.handle_delete_records, DELETE.on(TOPIC)),
    served(
        FindCoordinatorRequest,
        groups.handle_find_coordinator,
        DESCRIBE.on(GROUP),
        DESCRIBE.on(TRANSACTIONAL_ID),
        CLUSTER_ACTION.on(CLUSTER),
    ),
    served(JoinGroupRequest, groups.handle_group_request, READ.on(GROUP)),
    served(SyncGroupRequest, groups.handle_group_request, READ.on(GROUP)),
    served(HeartbeatRequest, groups.handle_group_request, READ.on(GROUP)),
    served(LeaveGroupRequest, groups.handle_group_request, READ.on(GROUP)),
    served(OffsetCommitRequest, groups.handle_group_request, READ.on(GROUP), READ.on(TOPIC)),
    served(OffsetFetchRequest, groups.handle_offset_fetch, DESCRIBE.on(GROUP), DESCRIBE.on(TOPIC)),
    served(OffsetDeleteRequest, groups.handle_group_request, DELETE.on(GROUP), READ.on(TOPIC)),
    served(DescribeGroupsRequest, groups.handle_many_groups, DESCRIBE.on(GROUP)),
    served(ConsumerGroupHeartbeatRequest, groups.handle_group_request, READ.on(GROUP), DESCRIBE.on(TOPIC)),
    served(ConsumerGroupDescribeRequest, groups.handle_many_groups, DESCRIBE.on(GROUP), DESCRIBE.on(TOPIC)),
    served(ShareGroupHeartbeatRequest, groups.handle_group_request, READ.on(GROUP), DESCRIBE.on(TOPIC)),
    served(ShareGroupDescribeRequest, groups.handle_many_groups, DESCRIBE.on(GROUP), DESCRIBE.on(TOPIC)),
    served(
        DescribeShareGroupOffsetsRequest,
        shares.handle_describe_share_group_offsets,
        DESCRIBE.on(GROUP),
        DESCRIBE.on(TOPIC),
    ),
    served(
        StreamsGroupHeartbeatRequest,
        groups.handle_streams_heartbeat,
        READ.on(GROUP),
        DESCRIBE.on(TOPIC),
        CREATE.on(CLUSTER),
        CREATE.on(TOPIC),
    ),
    served(StreamsGroupDescribeRequest, groups.handle_many_groups, DESCRIBE.on(GROUP), DESCRIBE.on(TOPIC)),
    served(AlterShareGroupOffsetsRequest, groups.handle_group_request, READ.on(GROUP), READ.on(TOPIC)),
    served(DeleteShareGroupOffsetsRequest, groups.handle_group_request, DELETE.on(GROUP), READ.on(TOPIC)),
    served(ListGroupsRequest, groups.handle_group_request, DESCRIBE.on(CLUSTER), DESCRIBE.on(GROUP)),
    served(DeleteGroupsRequest, groups.handle_many_groups, DELETE.on(GROUP)),
    served(ShareFetchRequest, share_delivery.handle_share_fetch, READ.on(GROUP), READ.on(TOPIC), cost=Cost.RECORDS),
    served(ShareAcknowledgeRequest, share_delivery.handle_share_acknowledge, READ.on(GROUP), READ.on(TOPIC)),
    _share_state(InitializeShareGroupStateRequest),
    _share_state(ReadShareGroupStateRequest),
    _share_state(WriteShareGroupStateRequest),
    _share_state(DeleteShareGroupStateRequest),
    _share_state(ReadShareGroupStateSummaryRequest),
    served(
        InitProducerIdRequest,
        transactions.handle_init,
        WRITE.on(TRANSACTIONAL_ID),
        IDEMPOTENT_WRITE.on(CLUSTER),
        WRITE.on(TOPIC),
        last=5,
    ),
    served(
        AddPartitionsToTxnRequest,
        transactions.handle_transaction_request,
        CLUSTER_ACTION.on(CLUSTER),
        WRITE.on(TRANSACTIONAL_ID),
        WRITE.on(TOPIC),
    ),
    served(AddOffsetsToTxnRequest, transactions.handle_add_offsets, WRITE.on(TRANSACTIONAL_ID), READ.on(GROUP)),
    served(EndTxnRequest, transactions.handle_transaction_request, WRITE.on(TRANSACTIONAL_ID)),
    served(
        WriteTxnMarkersRequest,
        transactions.handle_write_txn_markers,
        ALTER.on(CLUSTER),
        CLUSTER_ACTION.on(CLUSTER),
        cost=Cost.NONE,
    ),
    served(
        TxnOffsetCommitRequest,
        transactions.handle_txn_offset_commit,
        WRITE.on(TRANSACTIONAL_ID),
        READ.on(GROUP),
        READ.on(TOPIC),
    ),
    served(
        DescribeTransactionsRequest,
        transactions.handle_transaction_request,
        DESCRIBE.on(TRANSACTIONAL_ID),
        DESCRIBE.on(TOPIC),
    ),
    served(ListTransactionsRequest, transactions.handle_transaction_request, DESCRIBE.on(TRANSACTIONAL_ID)),
    served(
        OffsetForLeaderEpochRequest,
        offsets.handle_offset_for_leader_epoch,
        CLUSTER_ACTION.on(CLUSTER),
        DESCRIBE.on(TOPIC),
    ),
    served(
        DescribeConfigsRequest,
        configs.handle_describe_configs,
        DESCRIBE_CONFIGS.on(CLUSTER),
        DESCRIBE_CONFIGS.on(TOPIC),
        DESCRIBE_CONFIGS.on(GROUP),
    ),
    served(GetTelemetrySubscriptionsRequest, telemetry.handle_get_telemetry_subscriptions),
    served(PushTelemetryRequest, telemetry.handle_push_telemetry),
    served(ListConfigResourcesRequest, configs.handle_list_config_resources, DESCRIBE_CONFIGS.on(CLUSTER)),
    _forwarded(AlterConfigsRequest, forwarded.handle_alter_configs),
    served(DescribeLogDirsRequest, logs.handle_describe_log_dirs, DESCRIBE.on(CLUSTER)),
    served(AlterReplicaLogDirsRequest, logs.handle_alter_replica_log_dirs, ALTER.on(CLUSTER)),
    _forwarded(CreatePartitionsRequest, forwarded.handle_create_partitions),
    _forwarded(IncrementalAlterConfigsRequest, forwarded.handle_incremental_alter_configs),
    _forwarded(UpdateFeaturesRequest, forwarded.handle_update_features),
    served(DescribeClusterRequest, metadata.handle_describe_cluster, DESCRIBE.on(CLUSTER)),
    served(DescribeProducersRequest, producers.handle_describe_producers, READ.on(TOPIC)),
    served(DescribeTopicPartitionsRequest, metadata.handle_describe_topic_partitions, DESCRIBE.on(TOPIC)),
    served(SaslHandshakeRequest, credentials.handle_sasl_handshake, cost=Cost.NONE),
    served(SaslAuthenticateRequest, credentials.handle_sasl_authenticate, cost=Cost.NONE),
    served(
        DescribeUserScramCredentialsRequest, credentials.handle_describe_user_scram_credentials, DESCRIBE.on(CLUSTER)
    ),
    _forwarded(AlterUserScramCredentialsRequest, credentials.handle_alter_user_scram_credentials),
    _forwarded(CreateDelegationTokenRequest, tokens.change_token),
    _forwarded(RenewDelegationTokenRequest, tokens.change_token),
    _forwarded(ExpireDelegationTokenRequest, tokens.change_token),
    served(
        DescribeDelegationTokenRequest,
        tokens.handle_describe_delegation_token,
        DESCRIBE.on(AclResource.DELEGATION_TOKEN),
        AclOperation.DESCRIBE_TOKENS.on(AclResource.USER),
    ),
)

_OWN_KEYS = frozenset(api.key for api in _OWN_APIS)

BASE_APIS: tuple[ServedApi, ...] = (
    *_OWN_APIS,
    *(
        _row(api.key, forwarded.relay, api.rules, waits=True)
        for api in CONTROLLER_APIS
        if Listeners.CLIENT in api.rules.listeners and api.key not in _OWN_KEYS
    ),
)
"""All APIs of a broker: those with a row of their own, and those that it merely forwards."""

BROKER_CHECKS: Mapping[int, Check] = checks_of(
    ((api.key, api.rules) for api in BASE_APIS if api.key not in (ApiKey.PRODUCE, ApiKey.FETCH)), SPECIAL_CHECKS
)
"""The check of each API. Produce and Fetch are missing: the data path checks them, topic by topic."""

TELEMETRY_KEYS = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})
"""APIs that only a broker with the extra ``telemetry`` offers."""

_QUORUM = "voters speak Moldau's own Raft messages, which simulation and both engines share"
ABSENT_APIS: Mapping[str, str] = {
    "BeginQuorumEpoch": _QUORUM,
    "ControllerRegistration": "controllers announce their features in Moldau's own messages",
    "EndQuorumEpoch": _QUORUM,
    "FetchSnapshot": _QUORUM,
    "StreamsGroupTopologyDescriptionUpdate": "Kafka hands descriptions to a plugin; brokers here do not ask for them",
    "UnregisterController": "a controller that lost its vote leaves no registration behind",
    "Vote": _QUORUM,
}
"""Why an API that Kafka 4.4 serves on some listener is served by no listener of that kind here."""

OLDER_VERSIONS: Mapping[str, str] = {
    "InitProducerId": "6 (two-phase commit, KIP-939) is unstable in Kafka 4.1 to 4.4: "
    "its clients and brokers do not use it unless unstable versions are enabled",
}
"""The additions of the newest version of an API in Kafka 4.4, where a lower one is the last that is served here."""


def api_table(entries: tuple[ServedApi, ...], listeners: Listeners = Listeners.BROKER) -> Mapping[int, ServedApi]:
    """Returns the table by key for a listener; ``listeners`` says what it is used for. No key may appear twice."""
    assert len({entry.key for entry in entries}) == len(entries), "an API is served by two handlers"
    table = {int(entry.key): entry for entry in entries if entry.rules.listeners & listeners}
    return MappingProxyType(dict(sorted(table.items())))


def api_versions(
    table: Mapping[int, ServedApi],
    supported_features: Mapping[str, tuple[int, int]],
    finalized_features: Mapping[str, int],
    features_epoch: int,
    version: int,
) -> ApiVersionsResponse:
    """Returns the response that describes this broker in a version of ApiVersions (KIP-35, KIP-584)."""
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=entry.advertised_first, max_version=entry.last_version)
            for key, entry in table.items()
        ],
        supported_features=supported_feature_keys(supported_features, version),
        finalized_features_epoch=features_epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(finalized_features.items())
        ],
    )
