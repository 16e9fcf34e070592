"""The tables from API key to deciding function, and the responses that refuse a whole request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.messages import alter_client_quotas as alter_quotas
from moldau.protocol.messages import (
    alter_configs,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_topics,
    describe_configs,
)
from moldau.protocol.messages import alter_user_scram_credentials as alter_scram
from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau_quorum.controller import partitions, reassignment, topics
from moldau_quorum.controller.cluster import brokers, directories, features
from moldau_quorum.controller.context import Context, Result
from moldau_quorum.controller.entities import acls, configs, quotas, scram

if TYPE_CHECKING:
    from moldau.protocol.errors import ErrorCode
    from moldau.protocol.schema import Request, Response
    from moldau_quorum.controller.cluster.sessions import BrokerSessions
    from moldau_quorum.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionInputs:
    """The inputs of a decision besides the request."""

    image: MetadataImage
    context: Context
    sessions: BrokerSessions


Decide = Callable[[Any, DecisionInputs], Result[Any]]
"""Takes the request of its API; the dispatcher guarantees the type."""

CHANGES: Final[Mapping[int, Decide]] = {
    ApiKey.BROKER_REGISTRATION: lambda q, k: brokers.register_broker(q, k.image, k.context, k.sessions),
    ApiKey.BROKER_HEARTBEAT: lambda q, k: brokers.heartbeat(q, k.image, k.context, k.sessions),
    ApiKey.UNREGISTER_BROKER: lambda q, k: brokers.unregister_broker(q, k.image, k.context),
    ApiKey.ALLOCATE_PRODUCER_IDS: lambda q, k: brokers.allocate_producer_ids(q, k.image, k.context),
    ApiKey.ALTER_PARTITION: lambda q, k: partitions.alter_partition(q, k.image, k.context),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: lambda q, k: directories.assign_replicas(q, k.image, k.context),
    ApiKey.ELECT_LEADERS: lambda q, k: partitions.elect_leaders(q, k.image, k.context),
    ApiKey.CREATE_TOPICS: lambda q, k: topics.create_topics(q, k.image, k.context),
    ApiKey.DELETE_TOPICS: lambda q, k: topics.delete_topics(q, k.image, k.context),
    ApiKey.CREATE_PARTITIONS: lambda q, k: topics.create_partitions(q, k.image, k.context),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda q, k: configs.incremental_alter_configs(q, k.image, k.context),
    ApiKey.ALTER_CONFIGS: lambda q, k: configs.alter_configs(q, k.image, k.context),
    ApiKey.UPDATE_FEATURES: lambda q, k: features.update_features(q, k.image, k.context),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda q, k: reassignment.alter_reassignments(q, k.image, k.context),
    ApiKey.ALTER_CLIENT_QUOTAS: lambda q, k: quotas.alter_client_quotas(q, k.image, k.context),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda q, k: scram.alter_user_scram_credentials(q, k.image, k.context),
    ApiKey.CREATE_ACLS: lambda q, k: acls.create_acls(q, k.image, k.context),
    ApiKey.DELETE_ACLS: lambda q, k: acls.delete_acls(q, k.image, k.context),
}
"""Requests that the active controller's single task decides, against the projection of its earlier decisions."""

READS: Final[Mapping[int, Decide]] = {
    ApiKey.DESCRIBE_CONFIGS: lambda q, k: configs.describe_configs(q, k.image, k.context),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda q, k: reassignment.list_reassignments(q, k.image, k.context),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda q, k: quotas.describe_client_quotas(q, k.image, k.context),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda q, k: scram.describe_user_scram_credentials(q, k.image, k.context),
    ApiKey.DESCRIBE_ACLS: lambda q, k: acls.describe_acls(q, k.image, k.context),
}
"""Requests answered from the committed image after a read barrier, so that they are linearizable with the changes.
Brokers may also call these functions with their own image, and then answer from the metadata that they have seen."""


def error_response(request: Request, code: ErrorCode, message: str) -> Response:
    """Returns a response in which every part of the request failed with one code and message."""
    match request:
        case create_topics.CreateTopicsRequest():
            return topics.refuse_creations(request, code, message)
        case delete_topics.DeleteTopicsRequest():
            return topics.refuse_deletions(request, code, message)
        case create_partitions.CreatePartitionsRequest():
            return topics.refuse_partitions(request, code, message)
        case incremental.IncrementalAlterConfigsRequest():
            return configs.refuse_incremental(request, code, message)
        case alter_configs.AlterConfigsRequest():
            return configs.refuse_full(request, code, message)
        case _:
            return _other_error_response(request, code, message)


def _other_error_response(request: Request, code: ErrorCode, message: str) -> Response:
    match request:
        case describe_configs.DescribeConfigsRequest():
            return describe_configs.DescribeConfigsResponse(
                results=[
                    describe_configs.DescribeConfigsResult(
                        error_code=code,
                        error_message=message,
                        resource_type=resource.resource_type,
                        resource_name=resource.resource_name,
                    )
                    for resource in request.resources
                ]
            )
        case alter_quotas.AlterClientQuotasRequest():
            return alter_quotas.AlterClientQuotasResponse(
                entries=[quotas.outcome(entry, code, message) for entry in request.entries]
            )
        case alter_scram.AlterUserScramCredentialsRequest():
            users = dict.fromkeys([*[d.name for d in request.deletions], *[u.name for u in request.upsertions]])
            return alter_scram.AlterUserScramCredentialsResponse(
                results=[
                    alter_scram.AlterUserScramCredentialsResult(user=user, error_code=code, error_message=message)
                    for user in users
                ]
            )
        case create_acls.CreateAclsRequest():
            return create_acls.CreateAclsResponse(
                results=[
                    create_acls.AclCreationResult(error_code=code, error_message=message) for _ in request.creations
                ]
            )
        case delete_acls.DeleteAclsRequest():
            return delete_acls.DeleteAclsResponse(
                filter_results=[
                    delete_acls.DeleteAclsFilterResult(error_code=code, error_message=message) for _ in request.filters
                ]
            )
        case _:
            return _top_level_error(request, code, message)


def _top_level_error(request: Request, code: ErrorCode, message: str) -> Response:
    response_class = APIS[request.__api_key__].response
    values: dict[str, Any] = {"error_code": int(code)}
    if "error_message" in response_class.__fields__:
        values["error_message"] = message
    return response_class(**values)
