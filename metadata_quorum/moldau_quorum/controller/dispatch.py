"""The table of the APIs that the controller decides: the deciding function, listeners and rights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.access import AclOperation, AclResource, ApiRules, Cost, Listeners, Need
from moldau.protocol.api import ApiKey
from moldau_quorum.controller import partitions, reassignment, topics
from moldau_quorum.controller.cluster import brokers, directories, features
from moldau_quorum.controller.context import Context, Result
from moldau_quorum.controller.entities import acls, configs, quotas, scram, tokens

if TYPE_CHECKING:
    from moldau_quorum.controller.cluster.sessions import BrokerSessions
    from moldau_quorum.metadata.image import MetadataImage

ALTER, ALTER_CONFIGS, CLUSTER_ACTION = AclOperation.ALTER, AclOperation.ALTER_CONFIGS, AclOperation.CLUSTER_ACTION
CREATE, DELETE = AclOperation.CREATE, AclOperation.DELETE
DESCRIBE, DESCRIBE_CONFIGS = AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
CLUSTER, GROUP, TOPIC = AclResource.CLUSTER, AclResource.GROUP, AclResource.TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionInputs:
    """The inputs of a decision besides the request."""

    image: MetadataImage
    context: Context
    sessions: BrokerSessions


Decide = Callable[[Any, DecisionInputs], Result[Any]]
"""Takes the request of its API; the dispatcher guarantees the type."""
Decision = Callable[[Any, "MetadataImage", Context], Result[Any]]
"""A deciding function that asks for no broker's session, as most do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedApi:
    """One API that the controller decides."""

    key: ApiKey
    decide: Decide
    is_read: bool
    """Whether the committed image answers it after a read barrier, so that it is linearizable with the changes."""
    rules: ApiRules


_NODES = Listeners.CONTROLLER
"""Sent by nodes, or by administrators who talk to a controller."""
_ALL = Listeners.ANY
"""Sent by clients as well: brokers forward it."""


def _with_sessions(decide: Callable[[Any, MetadataImage, Context, BrokerSessions], Result[Any]]) -> Decide:
    return lambda request, inputs: decide(request, inputs.image, inputs.context, inputs.sessions)


def _without_sessions(decide: Decision) -> Decide:
    return lambda request, inputs: decide(request, inputs.image, inputs.context)


def _from_brokers(key: ApiKey, decide: Decide) -> DecidedApi:
    """A change that only brokers ask for; no client is charged for it."""
    rules = ApiRules(listeners=_NODES, needs=(CLUSTER_ACTION.on(CLUSTER),), cost=Cost.NONE)
    return DecidedApi(key=key, decide=decide, is_read=False, rules=rules)


def _change(key: ApiKey, decide: Decision, listeners: Listeners, *needs: Need, cost: Cost = Cost.REQUEST) -> DecidedApi:
    rules = ApiRules(listeners=listeners, needs=needs, cost=cost)
    return DecidedApi(key=key, decide=_without_sessions(decide), is_read=False, rules=rules)


def _read(key: ApiKey, decide: Decision, listeners: Listeners, *needs: Need) -> DecidedApi:
    rules = ApiRules(listeners=listeners, needs=needs, cost=Cost.REQUEST)
    return DecidedApi(key=key, decide=_without_sessions(decide), is_read=True, rules=rules)


DECIDED_APIS: Final[tuple[DecidedApi, ...]] = (
    _from_brokers(ApiKey.BROKER_REGISTRATION, _with_sessions(brokers.register_broker)),
    _from_brokers(ApiKey.BROKER_HEARTBEAT, _with_sessions(brokers.heartbeat)),
    _change(ApiKey.UNREGISTER_BROKER, brokers.unregister_broker, _ALL, ALTER.on(CLUSTER)),
    _from_brokers(ApiKey.ALLOCATE_PRODUCER_IDS, _without_sessions(brokers.allocate_producer_ids)),
    _from_brokers(ApiKey.ALTER_PARTITION, _without_sessions(partitions.alter_partition)),
    _from_brokers(ApiKey.ASSIGN_REPLICAS_TO_DIRS, _without_sessions(directories.assign_replicas)),
    _change(ApiKey.ELECT_LEADERS, partitions.elect_leaders, _ALL, ALTER.on(CLUSTER)),
    _change(
        ApiKey.CREATE_TOPICS,
        topics.create_topics,
        _ALL,
        CREATE.on(CLUSTER),
        CREATE.on(TOPIC),
        DESCRIBE_CONFIGS.on(TOPIC),
        cost=Cost.MUTATION,
    ),
    _change(
        ApiKey.DELETE_TOPICS,
        topics.delete_topics,
        _ALL,
        DELETE.on(CLUSTER),
        DESCRIBE.on(TOPIC),
        DELETE.on(TOPIC),
        cost=Cost.MUTATION,
    ),
    _change(ApiKey.CREATE_PARTITIONS, topics.create_partitions, _ALL, ALTER.on(TOPIC), cost=Cost.MUTATION),
    _change(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        configs.incremental_alter_configs,
        _ALL,
        ALTER_CONFIGS.on(CLUSTER),
        ALTER_CONFIGS.on(TOPIC),
        ALTER_CONFIGS.on(GROUP),
    ),
    _change(
        ApiKey.ALTER_CONFIGS,
        configs.alter_configs,
        _ALL,
        ALTER_CONFIGS.on(CLUSTER),
        ALTER_CONFIGS.on(TOPIC),
        ALTER_CONFIGS.on(GROUP),
    ),
    _change(ApiKey.UPDATE_FEATURES, features.update_features, _ALL, ALTER.on(CLUSTER)),
    _change(ApiKey.ALTER_PARTITION_REASSIGNMENTS, reassignment.alter_reassignments, _ALL, ALTER.on(CLUSTER)),
    _change(ApiKey.ALTER_CLIENT_QUOTAS, quotas.alter_client_quotas, _ALL, ALTER_CONFIGS.on(CLUSTER)),
    _change(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, scram.alter_user_scram_credentials, _ALL, ALTER.on(CLUSTER)),
    _change(ApiKey.CREATE_DELEGATION_TOKEN, tokens.create_token, _ALL, AclOperation.CREATE_TOKENS.on(AclResource.USER)),
    _change(ApiKey.RENEW_DELEGATION_TOKEN, tokens.renew_token, _ALL),
    _change(ApiKey.EXPIRE_DELEGATION_TOKEN, tokens.expire_token, _ALL),
    _change(ApiKey.CREATE_ACLS, acls.create_acls, _ALL, ALTER.on(CLUSTER)),
    _change(ApiKey.DELETE_ACLS, acls.delete_acls, _ALL, ALTER.on(CLUSTER)),
    _read(
        ApiKey.DESCRIBE_CONFIGS,
        configs.describe_configs,
        _NODES,
        DESCRIBE_CONFIGS.on(CLUSTER),
        DESCRIBE_CONFIGS.on(TOPIC),
        DESCRIBE_CONFIGS.on(GROUP),
    ),
    _read(ApiKey.LIST_PARTITION_REASSIGNMENTS, reassignment.list_reassignments, _ALL, DESCRIBE.on(CLUSTER)),
    _read(ApiKey.DESCRIBE_CLIENT_QUOTAS, quotas.describe_client_quotas, _ALL, DESCRIBE_CONFIGS.on(CLUSTER)),
    _read(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, scram.describe_user_scram_credentials, _NODES, DESCRIBE.on(CLUSTER)),
    _read(ApiKey.DESCRIBE_ACLS, acls.describe_acls, _ALL, DESCRIBE.on(CLUSTER)),
)
"""All that the controller decides. Brokers forward what clients may send; see ``moldau_broker.server.handlers.apis``.

``node.serving.apis`` adds what a controller answers without a decision."""

CHANGES: Final[dict[int, Decide]] = {api.key: api.decide for api in DECIDED_APIS if not api.is_read}
"""Requests that the active controller's single task decides, against the projection of its earlier decisions."""

READS: Final[dict[int, Decide]] = {api.key: api.decide for api in DECIDED_APIS if api.is_read}
"""Requests answered from the committed image. Brokers may also call these functions with their own image, and then
answer from the metadata that they have seen."""
