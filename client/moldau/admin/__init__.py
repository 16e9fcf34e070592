"""The admin client and the values it takes and returns.

Importing the package loads nothing else; each name is loaded at its first use, because the values of all subjects take
longer to load than a command such as ``moldau topics list`` takes to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.lazy import lazy_names

if TYPE_CHECKING:
    from moldau.admin.admin import Admin
    from moldau.admin.calls.acls import Acl, AclFilter
    from moldau.admin.calls.quorum import ApiVersion, FeatureDescription
    from moldau.admin.calls.quotas import ClientQuota, QuotaAlteration, QuotaEntity, QuotaName
    from moldau.admin.calls.tokens import DelegationToken
    from moldau.admin.calls.transactions import (
        FencedProducer,
        ProducerDescription,
        TransactionDescription,
        TransactionListing,
    )
    from moldau.admin.calls.users import UserCredential
    from moldau.admin.failures import AdminError
    from moldau.admin.values import (
        EARLIEST,
        EARLIEST_LOCAL,
        LATEST,
        LATEST_TIERED,
        MAX_TIMESTAMP,
        ClusterDescription,
        ConfigAlteration,
        ConfigEntry,
        ConfigOperation,
        ConfigResource,
        CreatedTopic,
        GroupDescription,
        GroupListing,
        GroupMember,
        LogDirDescription,
        LogDirPartition,
        NewTopic,
        PartitionDescription,
        PartitionReassignment,
        QuorumDescription,
        QuorumReplica,
        ReplicaLogDir,
        ResourceType,
        ShareOffset,
        StreamsGroupDescription,
        StreamsGroupMember,
        TopicDescription,
        TopicListing,
    )

__all__ = [
    "EARLIEST",
    "EARLIEST_LOCAL",
    "LATEST",
    "LATEST_TIERED",
    "MAX_TIMESTAMP",
    "Acl",
    "AclFilter",
    "Admin",
    "AdminError",
    "ApiVersion",
    "ClientQuota",
    "ClusterDescription",
    "ConfigAlteration",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "CreatedTopic",
    "DelegationToken",
    "FeatureDescription",
    "FencedProducer",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "LogDirDescription",
    "LogDirPartition",
    "NewTopic",
    "PartitionDescription",
    "PartitionReassignment",
    "ProducerDescription",
    "QuorumDescription",
    "QuorumReplica",
    "QuotaAlteration",
    "QuotaEntity",
    "QuotaName",
    "ReplicaLogDir",
    "ResourceType",
    "ShareOffset",
    "StreamsGroupDescription",
    "StreamsGroupMember",
    "TopicDescription",
    "TopicListing",
    "TransactionDescription",
    "TransactionListing",
    "UserCredential",
]

_HOMES = dict.fromkeys(__all__, "values") | {
    "Acl": "calls.acls",
    "AclFilter": "calls.acls",
    "Admin": "admin",
    "AdminError": "failures",
    "ApiVersion": "calls.quorum",
    "ClientQuota": "calls.quotas",
    "DelegationToken": "calls.tokens",
    "FeatureDescription": "calls.quorum",
    "FencedProducer": "calls.transactions",
    "ProducerDescription": "calls.transactions",
    "QuotaAlteration": "calls.quotas",
    "QuotaEntity": "calls.quotas",
    "QuotaName": "calls.quotas",
    "TransactionDescription": "calls.transactions",
    "TransactionListing": "calls.transactions",
    "UserCredential": "calls.users",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
