"""Goal: each argument of an admin call reaches the broker in the field of the request that Kafka has for it.

Method: canned answers of a small cluster on virtual time. Each call has all its arguments, with values of their own;
its request is compared as a whole. None for a cluster id means any; Kafka's controllers refuse an empty one.
"""

from uuid import UUID

import pytest

from moldau import KafkaError
from moldau.admin import (
    Acl,
    AclFilter,
    ConfigAlteration,
    ConfigOperation,
    ConfigResource,
    NewTopic,
    QuotaAlteration,
    QuotaEntity,
    QuotaName,
    ResourceType,
)
from moldau.consumer import CommittedOffset
from moldau.producer import PreparedTransaction
from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.refusals import refusal
from moldau.protocol.schema import Struct
from support.client.admin_stories import simulate

ID = UUID(int=7)
REFUSED = ErrorCode.POLICY_VIOLATION
TIMEOUT = {"timeout_ms": 30_000}
T = ConfigResource(type=ResourceType.TOPIC, name="t")
ACL = Acl(
    resource="group", name="n", principal="User:p", operation="delete", permission="deny", pattern="prefixed", host="h"
)
FILTER = AclFilter(
    resource="user", name="n", principal="User:p", operation="alter", permission="allow", pattern="match", host="h"
)
FILTERED = {
    "resource_type_filter": 7,
    "resource_name_filter": "n",
    "pattern_type_filter": 2,
    "principal_filter": "User:p",
    "host_filter": "h",
    "operation": 7,
    "permission_type": 3,
}
PLACES = {("u", 3): 30, ("t", 2): 20, ("t", 1): 10}
"""Partitions in another order than that of a request, and a number for each."""


def by_topic(part, name="name", more=None):
    """The topics of a request about PLACES; ``part`` makes an entry of a partition."""
    topics = {"t": [part(1, 10), part(2, 20)], "u": [part(3, 30)]}
    return [{name: topic, "partitions": parts} | (more or {}) for topic, parts in topics.items()]


REQUESTS = {
    "create_topics": (
        ApiKey.CREATE_TOPICS,
        lambda admin: admin.create_topics(
            [
                NewTopic(name="t", partitions=3, replication_factor=2, configs={"a": "b"}),
                NewTopic(name="u", partitions=5, replication_factor=4, assignments={6: [8, 7]}),
            ],
            validate_only=True,
        ),
        TIMEOUT
        | {
            "validate_only": True,
            "topics": [
                {
                    "name": "t",
                    "num_partitions": 3,
                    "replication_factor": 2,
                    "assignments": [],
                    "configs": [{"name": "a", "value": "b"}],
                },
                {
                    "name": "u",
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [{"partition_index": 6, "broker_ids": [8, 7]}],
                    "configs": [],
                },
            ],
        },
    ),
    "delete_topics": (
        ApiKey.DELETE_TOPICS,
        lambda admin: admin.delete_topics(["u", ID]),
        TIMEOUT
        | {"topic_names": [], "topics": [{"name": "u", "topic_id": UUID(int=0)}, {"name": None, "topic_id": ID}]},
    ),
    "create_partitions": (
        ApiKey.CREATE_PARTITIONS,
        lambda admin: admin.create_partitions({"t": 3, "u": 4}, assignments={"u": [[2, 1], [1]]}, validate_only=True),
        TIMEOUT
        | {
            "validate_only": True,
            "topics": [
                {"name": "t", "count": 3, "assignments": None},
                {"name": "u", "count": 4, "assignments": [{"broker_ids": [2, 1]}, {"broker_ids": [1]}]},
            ],
        },
    ),
    "describe_configs": (
        ApiKey.DESCRIBE_CONFIGS,
        lambda admin: admin.describe_configs([T], include_documentation=True),
        {
            "resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}],
            "include_synonyms": False,
            "include_documentation": True,
        },
    ),
    "list_config_resources": (
        ApiKey.LIST_CONFIG_RESOURCES,
        lambda admin: admin.list_config_resources([ResourceType.GROUP, ResourceType.TOPIC]),
        {"resource_types": [32, 2]},
    ),
    "alter_configs": (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        lambda admin: admin.alter_configs(
            {
                T: [
                    ConfigAlteration(name="a", value="1"),
                    ConfigAlteration(name="b", value="2", operation=ConfigOperation.DELETE),
                    ConfigAlteration(name="c", value="3", operation=ConfigOperation.APPEND),
                    ConfigAlteration(name="d", value="4", operation=ConfigOperation.SUBTRACT),
                ]
            },
            validate_only=True,
        ),
        {
            "validate_only": True,
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": "t",
                    "configs": [
                        {"name": name, "config_operation": operation, "value": value}
                        for name, operation, value in (("a", 0, "1"), ("b", 1, None), ("c", 2, "3"), ("d", 3, "4"))
                    ],
                }
            ],
        },
    ),
    "describe_cluster": (
        ApiKey.DESCRIBE_CLUSTER,
        lambda admin: admin.describe_cluster(include_fenced=True),
        {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": True},
    ),
    "describe_cluster with operations": (
        ApiKey.DESCRIBE_CLUSTER,
        lambda admin: admin.describe_cluster(include_authorized_operations=True),
        {"include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": False},
    ),
    "unregister_broker": (
        ApiKey.UNREGISTER_BROKER,
        lambda admin: admin.unregister_broker(9),
        {"broker_id": 9},
    ),
    "describe_quorum": (
        ApiKey.DESCRIBE_QUORUM,
        lambda admin: admin.describe_quorum(),
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
    ),
    "add_voter": (
        ApiKey.ADD_RAFT_VOTER,
        lambda admin: admin.add_voter(5, "h", 99, directory_id=ID, listener="L"),
        TIMEOUT
        | {
            "cluster_id": None,
            "voter_id": 5,
            "voter_directory_id": ID,
            "listeners": [{"name": "L", "host": "h", "port": 99}],
            "ack_when_committed": True,
        },
    ),
    "remove_voter": (
        ApiKey.REMOVE_RAFT_VOTER,
        lambda admin: admin.remove_voter(5, directory_id=ID),
        {"cluster_id": None, "voter_id": 5, "voter_directory_id": ID},
    ),
    "update_features": (
        ApiKey.UPDATE_FEATURES,
        lambda admin: admin.update_features({"b": 2, "a": 1}, validate_only=True),
        TIMEOUT
        | {
            "validate_only": True,
            "feature_updates": [
                {"feature": name, "max_version_level": level, "allow_downgrade": False, "upgrade_type": 1}
                for name, level in (("a", 1), ("b", 2))
            ],
        },
    ),
    "list_groups": (
        ApiKey.LIST_GROUPS,
        lambda admin: admin.list_groups(states=["Empty", "Dead"], types=["share"]),
        {"states_filter": ["Empty", "Dead"], "types_filter": ["share"]},
    ),
    **{
        name: (key, call, {groups: ["g"], "include_authorized_operations": True} | more)
        for name, key, groups, call, more in (
            (
                "describe_groups",
                ApiKey.DESCRIBE_GROUPS,
                "groups",
                lambda admin: admin.describe_groups(["g"], include_authorized_operations=True),
                {},
            ),
            (
                "describe_share_groups",
                ApiKey.SHARE_GROUP_DESCRIBE,
                "group_ids",
                lambda admin: admin.describe_share_groups(["g"], include_authorized_operations=True),
                {},
            ),
            (
                "describe_streams_groups",
                ApiKey.STREAMS_GROUP_DESCRIBE,
                "group_ids",
                lambda admin: admin.describe_streams_groups(["g"], include_authorized_operations=True),
                {"include_topology_description": False},
            ),
        )
    },
    "delete_groups": (ApiKey.DELETE_GROUPS, lambda admin: admin.delete_groups(["g"]), {"groups_names": ["g"]}),
    "list_group_offsets": (
        ApiKey.OFFSET_FETCH,
        lambda admin: admin.list_group_offsets("g", require_stable=True),
        {
            "group_id": "",
            "topics": [],
            "groups": [{"group_id": "g", "member_id": None, "member_epoch": -1, "topics": None}],
            "require_stable": True,
        },
    ),
    "delete_group_offsets": (
        ApiKey.OFFSET_DELETE,
        lambda admin: admin.delete_group_offsets("g", PLACES),
        {"group_id": "g", "topics": by_topic(lambda index, _: {"partition_index": index})},
    ),
    "remove_group_members": (
        ApiKey.LEAVE_GROUP,
        lambda admin: admin.remove_group_members("g", ["i", "h"], reason="why"),
        {
            "group_id": "g",
            "member_id": "",
            "members": [{"member_id": "", "group_instance_id": name, "reason": "why"} for name in "ih"],
        },
    ),
    "alter_group_offsets": (
        ApiKey.OFFSET_COMMIT,
        lambda admin: admin.alter_group_offsets(
            "g", {place: CommittedOffset(offset, 4, f"m{offset}") for place, offset in PLACES.items()}, retention_ms=99
        ),
        {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time_ms": 99,
            "topics": by_topic(
                lambda index, offset: {
                    "partition_index": index,
                    "committed_offset": offset,
                    "committed_leader_epoch": -1,
                    "committed_metadata": f"m{offset}",
                },
                more={"topic_id": UUID(int=0)},
            ),
        },
    ),
    "list_share_group_offsets": (
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        lambda admin: admin.list_share_group_offsets("g"),
        {"groups": [{"group_id": "g", "topics": None}]},
    ),
    "alter_share_group_offsets": (
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        lambda admin: admin.alter_share_group_offsets("g", PLACES),
        {
            "group_id": "g",
            "topics": by_topic(
                lambda index, offset: {"partition_index": index, "start_offset": offset}, name="topic_name"
            ),
        },
    ),
    "delete_records": (
        ApiKey.DELETE_RECORDS,
        lambda admin: admin.delete_records({("t", 1): 20}),
        TIMEOUT | {"topics": [{"name": "t", "partitions": [{"partition_index": 1, "offset": 20}]}]},
    ),
    "delete_share_group_offsets": (
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        lambda admin: admin.delete_share_group_offsets("g", ["u", "t"]),
        {"group_id": "g", "topics": [{"topic_name": "u"}, {"topic_name": "t"}]},
    ),
    "list_transactions": (
        ApiKey.LIST_TRANSACTIONS,
        lambda admin: admin.list_transactions(states=["Empty"], producer_ids=[8], min_duration_ms=9, id_pattern="x"),
        {
            "state_filters": ["Empty"],
            "producer_id_filters": [8],
            "duration_filter": 9,
            "transactional_id_pattern": "x",
        },
    ),
    "describe_transactions": (
        ApiKey.DESCRIBE_TRANSACTIONS,
        lambda admin: admin.describe_transactions(["x"]),
        {"transactional_ids": ["x"]},
    ),
    "describe_producers": (
        ApiKey.DESCRIBE_PRODUCERS,
        lambda admin: admin.describe_producers(("t", 1)),
        {"topics": [{"name": "t", "partition_indexes": [1]}]},
    ),
    "abort_transaction": (
        ApiKey.WRITE_TXN_MARKERS,
        lambda admin: admin.abort_transaction(("t", 1), producer_id=7, producer_epoch=8, coordinator_epoch=9),
        {
            "markers": [
                {
                    "producer_id": 7,
                    "producer_epoch": 8,
                    "transaction_result": False,
                    "topics": [{"name": "t", "partition_indexes": [1]}],
                    "coordinator_epoch": 9,
                    "transaction_version": 0,
                }
            ]
        },
    ),
    **{
        f"end_transaction by {'commit' if commit else 'abort'}": (
            ApiKey.END_TXN,
            lambda admin, commit=commit: admin.end_transaction(
                PreparedTransaction(transactional_id="x", producer_id=7, producer_epoch=8, is_open=True), commit=commit
            ),
            {"transactional_id": "x", "producer_id": 7, "producer_epoch": 8, "committed": commit},
        )
        for commit in (False, True)
    },
    **{
        f"elect_leaders {'unclean' if unclean else 'preferred'}": (
            ApiKey.ELECT_LEADERS,
            lambda admin, unclean=unclean: admin.elect_leaders(PLACES, unclean=unclean),
            TIMEOUT
            | {
                "election_type": int(unclean),
                "topic_partitions": by_topic(lambda index, _: index, name="topic"),
            },
        )
        for unclean in (False, True)
    },
    "alter_partition_reassignments": (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        lambda admin: admin.alter_partition_reassignments(
            {place: None if number == 20 else [number, 1] for place, number in PLACES.items()},
            allow_replication_factor_change=False,
        ),
        TIMEOUT
        | {
            "allow_replication_factor_change": False,
            "topics": by_topic(
                lambda index, number: {
                    "partition_index": index,
                    "replicas": None if number == 20 else [number, 1],
                }
            ),
        },
    ),
    "list_partition_reassignments": (
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        lambda admin: admin.list_partition_reassignments(),
        TIMEOUT | {"topics": None},
    ),
    "describe_log_dirs": (
        ApiKey.DESCRIBE_LOG_DIRS,
        lambda admin: admin.describe_log_dirs([1], partitions=PLACES),
        {"topics": by_topic(lambda index, _: index, name="topic")},
    ),
    "alter_replica_log_dirs": (
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        lambda admin: admin.alter_replica_log_dirs({("u", 3, 1): "/b", ("t", 2, 1): "/b", ("t", 1, 1): "/a"}),
        {
            "dirs": [
                {"path": "/b", "topics": [{"name": "t", "partitions": [2]}, {"name": "u", "partitions": [3]}]},
                {"path": "/a", "topics": [{"name": "t", "partitions": [1]}]},
            ]
        },
    ),
    "describe_acls": (ApiKey.DESCRIBE_ACLS, lambda admin: admin.describe_acls(FILTER), FILTERED),
    "create_acls": (
        ApiKey.CREATE_ACLS,
        lambda admin: admin.create_acls([ACL]),
        {
            "creations": [
                {
                    "resource_type": 3,
                    "resource_name": "n",
                    "resource_pattern_type": 4,
                    "principal": "User:p",
                    "host": "h",
                    "operation": 6,
                    "permission_type": 2,
                }
            ]
        },
    ),
    "delete_acls": (ApiKey.DELETE_ACLS, lambda admin: admin.delete_acls(FILTER), {"filters": [FILTERED]}),
    "describe_client_quotas": (
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        lambda admin: admin.describe_client_quotas(
            QuotaEntity(user="a", client_id=QuotaName.DEFAULT, ip=QuotaName.ANY), strict=True
        ),
        {
            "components": [
                {"entity_type": "user", "match_type": 0, "match": "a"},
                {"entity_type": "client-id", "match_type": 1, "match": None},
                {"entity_type": "ip", "match_type": 2, "match": None},
            ],
            "strict": True,
        },
    ),
    "alter_client_quotas": (
        ApiKey.ALTER_CLIENT_QUOTAS,
        lambda admin: admin.alter_client_quotas(
            [
                QuotaAlteration(
                    entity=QuotaEntity(user="a", client_id=QuotaName.DEFAULT), quotas={"set": 5, "removed": None}
                )
            ],
            validate_only=True,
        ),
        {
            "entries": [
                {
                    "entity": [
                        {"entity_type": "user", "entity_name": "a"},
                        {"entity_type": "client-id", "entity_name": None},
                    ],
                    "ops": [
                        {"key": "set", "value": 5.0, "remove": False},
                        {"key": "removed", "value": 0.0, "remove": True},
                    ],
                }
            ],
            "validate_only": True,
        },
    ),
    "describe_users": (
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        lambda admin: admin.describe_users(["b", "a"]),
        {"users": [{"name": "b"}, {"name": "a"}]},
    ),
    "remove_user_credential": (
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        lambda admin: admin.remove_user_credential("a", mechanism="SCRAM-SHA-512"),
        {"deletions": [{"name": "a", "mechanism": 2}], "upsertions": []},
    ),
    "create_delegation_token": (
        ApiKey.CREATE_DELEGATION_TOKEN,
        lambda admin: admin.create_delegation_token(owner="User:o", renewers=["Kind:r"], max_lifetime_ms=9),
        {
            "owner_principal_type": "User",
            "owner_principal_name": "o",
            "renewers": [{"principal_type": "Kind", "principal_name": "r"}],
            "max_lifetime_ms": 9,
        },
    ),
    "renew_delegation_token": (
        ApiKey.RENEW_DELEGATION_TOKEN,
        lambda admin: admin.renew_delegation_token("aGVsbG8=", period_ms=9),
        {"hmac": b"hello", "renew_period_ms": 9},
    ),
    "expire_delegation_token": (
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        lambda admin: admin.expire_delegation_token("aGVsbG8=", period_ms=9),
        {"hmac": b"hello", "expiry_time_period_ms": 9},
    ),
    "describe_delegation_tokens": (
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        lambda admin: admin.describe_delegation_tokens(["User:o", "Kind:p"]),
        {
            "owners": [
                {"principal_type": "User", "principal_name": "o"},
                {"principal_type": "Kind", "principal_name": "p"},
            ]
        },
    ),
}
"""A call, the API that it uses, and the fields of its request."""


def plain(value):
    """Returns a message as dictionaries and lists."""
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name)) for name in value.__fields__}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize("name", REQUESTS)
def test_every_argument_reaches_the_broker(name):
    """The answer is a refusal, so that the request is the only one of its kind."""
    key, call, wanted = REQUESTS[name]
    requests = []

    def refuse(broker, request):
        requests.append(plain(request))
        return refusal(request, REFUSED, version=APIS[key].versions.last)

    async def scenario(cluster, admin):
        with pytest.raises(KafkaError):
            await call(admin)

    simulate(scenario, {key: refuse})
    assert requests[0] == wanted
