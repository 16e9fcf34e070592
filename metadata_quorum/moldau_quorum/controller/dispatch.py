"""The tables from API key to deciding function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.api import ApiKey
from moldau.protocol.refusals import refusal
from moldau_quorum.controller import partitions, reassignment, topics
from moldau_quorum.controller.cluster import brokers, directories, features
from moldau_quorum.controller.context import Context, Result
from moldau_quorum.controller.entities import acls, configs, quotas, scram

if TYPE_CHECKING:
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

error_response: Final = refusal
"""Refuses a whole request: the name under which the active controller knows `moldau.protocol.refusals.refusal`."""
