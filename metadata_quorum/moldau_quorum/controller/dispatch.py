"""The table of the APIs that the controller decides: the deciding function, listeners and rights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.access import AclOperation, AclResource, ApiRules, Cost, Listeners, Need
from moldau.protocol.api import ApiKey
from moldau.protocol.refusals import refusal
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedApi:
    """One API that the controller decides."""

    key: ApiKey
    decide: Decide
    is_read: bool
    """Whether the committed image answers it after a read barrier, so that it is linearizable with the changes."""
    rules: ApiRules


def _change(key: ApiKey, decide: Decide, listeners: Listeners, *needs: Need, cost: Cost = Cost.REQUEST) -> DecidedApi:
    rules = ApiRules(listeners=listeners, needs=needs, cost=cost)
    return DecidedApi(key=key, decide=decide, is_read=False, rules=rules)


def _read(key: ApiKey, decide: Decide, listeners: Listeners, *needs: Need) -> DecidedApi:
    rules = ApiRules(listeners=listeners, needs=needs, cost=Cost.REQUEST)
    return DecidedApi(key=key, decide=decide, is_read=True, rules=rules)


_NODES = Listeners.CONTROLLER
"""Sent by nodes, or by administrators who talk to a controller."""
_ALL = Listeners.ANY
"""Sent by clients as well: brokers forward it."""

DECIDED_APIS: Final[tuple[DecidedApi, ...]] = (
    _change(
        ApiKey.BROKER_REGISTRATION,
        lambda q, k: brokers.register_broker(q, k.image, k.context, k.sessions),
        _NODES,
        CLUSTER_ACTION.on(CLUSTER),
        cost=Cost.NONE,
    ),
    _change(
        ApiKey.BROKER_HEARTBEAT,
        lambda q, k: brokers.heartbeat(q, k.image, k.context, k.sessions),
        _NODES,
        CLUSTER_ACTION.on(CLUSTER),
        cost=Cost.NONE,
    ),
    _change(
        ApiKey.UNREGISTER_BROKER,
        lambda q, k: brokers.unregister_broker(q, k.image, k.context),
        _ALL,
        ALTER.on(CLUSTER),
    ),
    _change(
        ApiKey.ALLOCATE_PRODUCER_IDS,
        lambda q, k: brokers.allocate_producer_ids(q, k.image, k.context),
        _NODES,
        CLUSTER_ACTION.on(CLUSTER),
        cost=Cost.NONE,
    ),
    _change(
        ApiKey.ALTER_PARTITION,
        lambda q, k: partitions.alter_partition(q, k.image, k.context),
        _NODES,
        CLUSTER_ACTION.on(CLUSTER),
        cost=Cost.NONE,
    ),
    _change(
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        lambda q, k: directories.assign_replicas(q, k.image, k.context),
        _NODES,
        CLUSTER_ACTION.on(CLUSTER),
        cost=Cost.NONE,
    ),
    _change(
        ApiKey.ELECT_LEADERS, lambda q, k: partitions.elect_leaders(q, k.image, k.context), _ALL, ALTER.on(CLUSTER)
    ),
    _change(
        ApiKey.CREATE_TOPICS,
        lambda q, k: topics.create_topics(q, k.image, k.context),
        _ALL,
        CREATE.on(CLUSTER),
        CREATE.on(TOPIC),
        DESCRIBE_CONFIGS.on(TOPIC),
        cost=Cost.MUTATION,
    ),
    _change(
        ApiKey.DELETE_TOPICS,
        lambda q, k: topics.delete_topics(q, k.image, k.context),
        _ALL,
        DELETE.on(CLUSTER),
        DESCRIBE.on(TOPIC),
        DELETE.on(TOPIC),
        cost=Cost.MUTATION,
    ),
    _change(
        ApiKey.CREATE_PARTITIONS,
        lambda q, k: topics.create_partitions(q, k.image, k.context),
        _ALL,
        ALTER.on(TOPIC),
        cost=Cost.MUTATION,
    ),
    _change(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        lambda q, k: configs.incremental_alter_configs(q, k.image, k.context),
        _ALL,
        ALTER_CONFIGS.on(CLUSTER),
        ALTER_CONFIGS.on(TOPIC),
        ALTER_CONFIGS.on(GROUP),
    ),
    _change(
        ApiKey.ALTER_CONFIGS,
        lambda q, k: configs.alter_configs(q, k.image, k.context),
        _ALL,
        ALTER_CONFIGS.on(CLUSTER),
        ALTER_CONFIGS.on(TOPIC),
        ALTER_CONFIGS.on(GROUP),
    ),
    _change(
        ApiKey.UPDATE_FEATURES, lambda q, k: features.update_features(q, k.image, k.context), _ALL, ALTER.on(CLUSTER)
    ),
    _change(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        lambda q, k: reassignment.alter_reassignments(q, k.image, k.context),
        _ALL,
        ALTER.on(CLUSTER),
    ),
    _change(
        ApiKey.ALTER_CLIENT_QUOTAS,
        lambda q, k: quotas.alter_client_quotas(q, k.image, k.context),
        _ALL,
        ALTER_CONFIGS.on(CLUSTER),
    ),
    _change(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        lambda q, k: scram.alter_user_scram_credentials(q, k.image, k.context),
        _ALL,
        ALTER.on(CLUSTER),
    ),
    _change(
        ApiKey.CREATE_DELEGATION_TOKEN,
        lambda q, k: tokens.create_token(q, k.image, k.context),
        _ALL,
        AclOperation.CREATE_TOKENS.on(AclResource.USER),
    ),
    _change(ApiKey.RENEW_DELEGATION_TOKEN, lambda q, k: tokens.renew_token(q, k.image, k.context), _ALL),
    _change(ApiKey.EXPIRE_DELEGATION_TOKEN, lambda q, k: tokens.expire_token(q, k.image, k.context), _ALL),
    _change(ApiKey.CREATE_ACLS, lambda q, k: acls.create_acls(q, k.image, k.context), _ALL, ALTER.on(CLUSTER)),
    _change(ApiKey.DELETE_ACLS, lambda q, k: acls.delete_acls(q, k.image, k.context), _ALL, ALTER.on(CLUSTER)),
    _read(
        ApiKey.DESCRIBE_CONFIGS,
        lambda q, k: configs.describe_configs(q, k.image, k.context),
        _NODES,
        DESCRIBE_CONFIGS.on(CLUSTER),
        DESCRIBE_CONFIGS.on(TOPIC),
        DESCRIBE_CONFIGS.on(GROUP),
    ),
    _read(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        lambda q, k: reassignment.list_reassignments(q, k.image, k.context),
        _ALL,
        DESCRIBE.on(CLUSTER),
    ),
    _read(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        lambda q, k: quotas.describe_client_quotas(q, k.image, k.context),
        _ALL,
        DESCRIBE_CONFIGS.on(CLUSTER),
    ),
    _read(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        lambda q, k: scram.describe_user_scram_credentials(q, k.image, k.context),
        _NODES,
        DESCRIBE.on(CLUSTER),
    ),
    _read(ApiKey.DESCRIBE_ACLS, lambda q, k: acls.describe_acls(q, k.image, k.context), _ALL, DESCRIBE.on(CLUSTER)),
)
"""All that the controller decides. Brokers forward what clients may send; see ``moldau_broker.server.handlers.apis``.

``node.serving.apis`` adds what a controller answers without a decision."""

CHANGES: Final[dict[int, Decide]] = {api.key: api.decide for api in DECIDED_APIS if not api.is_read}
"""Requests that the active controller's single task decides, against the projection of its earlier decisions."""

READS: Final[dict[int, Decide]] = {api.key: api.decide for api in DECIDED_APIS if api.is_read}
"""Requests answered from the committed image. Brokers may also call these functions with their own image, and then
answer from the metadata that they have seen."""

error_response: Final = refusal
"""Refuses a whole request: the name under which the active controller knows `moldau.protocol.refusals.refusal`."""
