"""The admin client and the values it takes and returns."""

from moldau.admin.acls import Acl, AclFilter
from moldau.admin.admin import Admin
from moldau.admin.failures import AdminError
from moldau.admin.quorum import FeatureDescription
from moldau.admin.quotas import ClientQuota, QuotaAlteration, QuotaEntity, QuotaName
from moldau.admin.tokens import DelegationToken
from moldau.admin.transactions import FencedProducer, ProducerDescription, TransactionDescription, TransactionListing
from moldau.admin.users import UserCredential
from moldau.admin.values import (
    EARLIEST,
    LATEST,
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
    TopicDescription,
    TopicListing,
)

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Acl",
    "AclFilter",
    "Admin",
    "AdminError",
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
    "TopicDescription",
    "TopicListing",
    "TransactionDescription",
    "TransactionListing",
    "UserCredential",
]
