"""An admin client of a small cluster that exists in memory only.

It describes the same things to every command, and notes each change that it is asked for.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from moldau import Admin, TopicPartition
from moldau.admin import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    Acl,
    AdminError,
    ApiVersion,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    FeatureDescription,
    GroupDescription,
    GroupListing,
    GroupMember,
    LogDirDescription,
    LogDirPartition,
    NewTopic,
    PartitionDescription,
    PartitionReassignment,
    ProducerDescription,
    QuorumDescription,
    QuorumReplica,
    ShareOffset,
    StreamsGroupDescription,
    StreamsGroupMember,
    TopicDescription,
    TopicListing,
    TransactionDescription,
    TransactionListing,
    UserCredential,
)
from moldau.admin.calls.quotas import ClientQuota, QuotaEntity, QuotaName
from moldau.admin.calls.tokens import DelegationToken
from moldau.cluster.metadata import BrokerNode
from moldau.consumer import CommittedOffset
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import ConfigSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NOON_MS = 1_772_366_400_000
"""2026-03-01T12:00:00Z."""
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOGS_0, STATE_0 = TopicPartition("logs", 0), TopicPartition("__state", 0)


def part(
    number: int, leader: int, replicas: tuple[int, ...], isr: tuple[int, ...], **more: Any
) -> PartitionDescription:
    """Returns a partition; its leader epoch tells it from others."""
    return PartitionDescription(
        partition=number, leader=leader, leader_epoch=4 + number, replicas=replicas, isr=isr, **more
    )


PARTITIONS = {
    "__state": (part(0, 1, (1,), (1,)),),
    "logs": (part(0, 2, (2,), (2,)),),
    "orders": (part(0, 1, (1, 2), (1, 2)), part(1, -1, (2, 1), (2,), offline_replicas=(1,))),
}
CONFIGS = {
    "retention.ms": ("60000", ConfigSource.DYNAMIC_TOPIC),
    "cleanup.policy": ("delete", ConfigSource.DEFAULT),
    "leader.replication.throttled.replicas": ("", ConfigSource.DEFAULT),
    "follower.replication.throttled.replicas": ("", ConfigSource.DEFAULT),
    "min.insync.replicas": ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER),
    "ssl.key.password": ("secret", ConfigSource.DYNAMIC_BROKER),
}
ENDS = {
    EARLIEST: {STATE_0: (0, -1), ORDERS_0: (3, -1), LOGS_0: (0, -1)},
    LATEST: {STATE_0: (0, -1), ORDERS_0: (13, -1), LOGS_0: (2, -1)},
    MAX_TIMESTAMP: {STATE_0: (-1, -1), ORDERS_0: (11, NOON_MS), LOGS_0: (-1, -1)},
    EARLIEST_LOCAL: {STATE_0: (0, -1), ORDERS_0: (7, -1), LOGS_0: (0, -1)},
    LATEST_TIERED: {STATE_0: (-1, -1), ORDERS_0: (8, -1), LOGS_0: (-1, -1)},
}
COMMITTED = {ORDERS_0: 5, LOGS_0: 0}
MEMBER = GroupMember(
    member_id="m1",
    instance_id="i1",
    client_id="app",
    client_host="10.0.0.7",
    assignment=(ORDERS_0, ORDERS_1),
    epoch=8,
    target=(ORDERS_0,),
    type="consumer",
)
GROUPS = {
    "idle": GroupDescription(
        group_id="idle", state="Empty", protocol_type="consumer", protocol="range", coordinator=2, members=()
    ),
    "busy": GroupDescription(
        group_id="busy",
        state="Stable",
        protocol_type="consumer",
        protocol="uniform",
        coordinator=1,
        members=(MEMBER,),
        type="consumer",
        epoch=9,
        assignment_epoch=8,
    ),
}
SHARED = {
    "jobs": GroupDescription(
        group_id="jobs",
        state="Stable",
        protocol_type="share",
        protocol="simple",
        coordinator=2,
        members=(MEMBER,),
        type="share",
        epoch=6,
        assignment_epoch=5,
    ),
    "rest": GroupDescription(
        group_id="rest",
        state="Empty",
        protocol_type="share",
        protocol="simple",
        coordinator=2,
        members=(),
        type="share",
        epoch=7,
        assignment_epoch=7,
    ),
}
TASKS = StreamsGroupMember(
    member_id="m2",
    client_id="app",
    client_host="10.0.0.8",
    process_id="p1",
    epoch=3,
    topology_epoch=2,
    endpoint=None,
    active=("0_0", "0_1"),
    standby=("1_0",),
    warmup=(),
    is_settled=True,
)
STREAMS = {
    name: StreamsGroupDescription(
        group_id=name,
        state="Stable" if members else "Empty",
        coordinator=1,
        epoch=4,
        assignment_epoch=3,
        topology_epoch=2,
        subtopologies={"0": ("orders",), "1": ("logs", "orders")},
        internal_topics=("stopped-repartition", "logs"),
        members=members,
    )
    for name, members in (("flow", (TASKS,)), ("stopped", ()))
}
KINDS = {
    "idle": "classic",
    "busy": "consumer",
    "jobs": "share",
    "rest": "share",
    "flow": "streams",
    "stopped": "streams",
}
RIGHT = Acl(resource="topic", name="orders", principal="User:al", operation="read", host="10.0.0.0/8")
DENIED = Acl(
    resource="cluster", name="kafka-cluster", principal="User:bo", operation="all", permission="deny", pattern="literal"
)
QUOTAS = (
    ClientQuota(entity=QuotaEntity(user="al", client_id=QuotaName.DEFAULT), quotas={"request_percentage": 12.5}),
    ClientQuota(entity=QuotaEntity(ip="::1"), quotas={"connection_creation_rate": 20.0}),
)
TOKEN = DelegationToken(
    token_id="t1",
    hmac="c2VjcmV0",
    owner="User:al",
    requester="User:bo",
    renewers=("User:cy", "User:dee"),
    issue_ms=NOON_MS,
    expiry_ms=NOON_MS + 60_000,
    max_ms=NOON_MS + 3_600_000,
)
PRODUCERS = tuple(
    ProducerDescription(
        producer_id=number,
        producer_epoch=number + 1,
        last_sequence=number + 2,
        last_timestamp_ms=NOON_MS - number * 60_000,
        coordinator_epoch=coordinator,
        transaction_start_offset=start,
    )
    for number, coordinator, start in ((7, 3, -1), (17, -1, 11), (27, 5, 12))
)


def unknown(what: str) -> KafkaError:
    """Returns the error of brokers for what they do not have."""
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {what}")


class SampleAdmin:
    """The admin client. Invariant: ``changes`` are all calls that are no questions, with their arguments.

    Changes of the things whose names are in ``refused`` fail, those of others that the same call names succeed. The
    leaders of the partitions ``silent`` do not answer; ``_waited`` are those for which a command has waited.
    """

    def __init__(self, refused: Iterable[str] = (), silent: Iterable[str] = ()) -> None:
        self.changes: list[tuple[str, dict[str, Any]]] = []
        self._refused = frozenset(refused)
        self._silent = frozenset(silent)
        self._waited: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        signature = inspect.signature(getattr(Admin, name))  # fails for a call that the client does not have

        async def change(*args: Any, **kwargs: Any) -> Any:
            await trio.lowlevel.checkpoint()
            given = dict(signature.bind(self, *args, **kwargs).arguments)
            del given["self"]
            self.changes.append((name, given))
            things = [one for value in given.values() if isinstance(value, list | tuple | dict) for one in value]
            answer = _answer_of(name, [one for one in things if _name(one) not in self._refused])
            denied = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed")
            if failures := {_name(one): denied for one in things if _name(one) in self._refused}:
                raise AdminError(failures, answer)
            return answer

        return change

    def within(self, timeout_ms: int) -> SampleAdmin:
        assert timeout_ms > 0
        return self

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        await trio.lowlevel.checkpoint()
        return [
            TopicListing(name=name, topic_id=UUID(int=at), is_internal=name == "__state", partition_count=len(parts))
            for at, (name, parts) in enumerate(PARTITIONS.items(), 1)
            if include_internal or name != "__state"
        ]

    async def describe_topics(self, topics: Iterable[str]) -> dict[str, TopicDescription]:
        await trio.lowlevel.checkpoint()
        wanted = list(topics)
        found = {
            name: TopicDescription(
                name=name, topic_id=UUID(int=at), is_internal=name == "__state", partitions=PARTITIONS[name]
            )
            for at, name in enumerate(PARTITIONS, 1)
            if name in wanted
        }
        if failures := {name: unknown(f"topic {name}") for name in wanted if name not in PARTITIONS}:
            raise AdminError(failures, found)
        return found

    async def describe_configs(self, resources: Iterable[Any]) -> dict[Any, dict[str, ConfigEntry]]:
        await trio.lowlevel.checkpoint()
        return {
            one: {
                name: ConfigEntry(
                    name=name,
                    value=value,
                    source=ConfigSource.DEFAULT if one.name == "logs" else source,
                    is_read_only=name == "cleanup.policy",
                    is_sensitive=name == "ssl.key.password",
                )
                for name, (value, source) in CONFIGS.items()
            }
            for one in resources
        }

    async def list_offsets(self, times: Mapping[Any, int], *, isolation_level: int = 0) -> dict[TopicPartition, Any]:
        await trio.lowlevel.checkpoint()
        named = {TopicPartition(*where): at for where, at in times.items()}
        late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
        failures = {str(one): late for one in named if one == ORDERS_1 or str(one) in self._silent}
        assert not failures.keys() & self._waited, "a leader that did not answer is not waited for again"
        self._waited |= failures.keys()
        found = {one: ENDS.get(at, {one: (at, at + 1)})[one] for one, at in named.items() if str(one) not in failures}
        if isolation_level:
            found = {one: (offset - 1, at) for one, (offset, at) in found.items()}
        if failures:
            raise AdminError(failures, found)
        return found

    async def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        await trio.lowlevel.checkpoint()
        brokers = [BrokerNode(node_id=1, host="a", port=9092, rack="r1"), BrokerNode(node_id=2, host="b", port=9093)]
        more = [BrokerNode(node_id=3, host="c", port=9094, rack="r3")] if include_fenced else []
        return ClusterDescription(
            cluster_id="c1", controller_id=1, brokers=(*brokers, *more), fenced=tuple(one.node_id for one in more)
        )

    async def describe_quorum(self) -> QuorumDescription:
        await trio.lowlevel.checkpoint()
        replicas = [
            QuorumReplica(
                replica_id=node,
                log_end_offset=end,
                last_fetch_ms=at_ms,
                last_caught_up_ms=at_ms,
                directory_id=UUID(int=node),
            )
            for node, end, at_ms in ((101, 40, NOON_MS), (102, 38, NOON_MS - 3_001), (1, 41, NOON_MS), (2, -1, -1))
        ]
        return QuorumDescription(
            leader_id=101,
            leader_epoch=6,
            high_watermark=39,
            voters=tuple(replicas[:2]),
            observers=tuple(replicas[2:]),
            endpoints=((101, "q1", 9000), (102, "q2", 9001)),
        )

    async def describe_features(self) -> list[FeatureDescription]:
        await trio.lowlevel.checkpoint()
        levels = (("group.version", 0, 1, 1), ("metadata.version", 1, 9, 7))
        return [
            FeatureDescription(name=name, level_min=low, level_max=high, level=level)
            for name, low, high, level in levels
        ]

    async def describe_api_versions(self, broker_ids: Iterable[int]) -> dict[int, list[ApiVersion]]:
        await trio.lowlevel.checkpoint()
        return {
            node: [
                ApiVersion(key=18, name="ApiVersions", version_min=0, version_max=node, used=node),
                ApiVersion(key=999, name="API 999", version_min=1, version_max=2, used=None),
            ]
            for node in broker_ids
        }

    async def list_groups(self, *, states: Any = (), types: Any = ()) -> list[GroupListing]:
        await trio.lowlevel.checkpoint()
        described: dict[str, Any] = {**GROUPS, **SHARED, **STREAMS}
        listed = [
            GroupListing(group_id=name, protocol_type="consumer", state=described[name].state, type=kind)
            for name, kind in sorted(KINDS.items())
        ]
        return [one for one in listed if one.state in (states or [one.state]) and one.type in (types or [one.type])]

    async def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        await trio.lowlevel.checkpoint()
        none: dict[str, Any] = {"protocol_type": "", "protocol": "", "coordinator": 1, "members": ()}
        return {name: GROUPS.get(name) or GroupDescription(group_id=name, state="Dead", **none) for name in groups}

    async def describe_share_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        await trio.lowlevel.checkpoint()
        return _of(SHARED, groups)

    async def describe_streams_groups(self, groups: Iterable[str]) -> dict[str, StreamsGroupDescription]:
        await trio.lowlevel.checkpoint()
        return _of(STREAMS, groups)

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        await trio.lowlevel.checkpoint()
        held = COMMITTED if group_id in GROUPS else {}
        return {one: CommittedOffset(offset=at) for one, at in held.items()}

    async def list_streams_group_offsets(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        await trio.lowlevel.checkpoint()
        return {one: CommittedOffset(offset=at) for one, at in COMMITTED.items() if group_id in STREAMS}

    async def list_share_group_offsets(self, group_id: str) -> dict[TopicPartition, ShareOffset]:
        await trio.lowlevel.checkpoint()
        known = {
            ORDERS_0: ShareOffset(start_offset=4, leader_epoch=4, lag=9),
            LOGS_0: ShareOffset(start_offset=-1, leader_epoch=-1, lag=-1),
            STATE_0: ShareOffset(start_offset=0, leader_epoch=0, lag=0),
        }
        return {one: at for one, at in known.items() if group_id in SHARED}

    async def list_partition_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        await trio.lowlevel.checkpoint()
        return {ORDERS_0: PartitionReassignment(replicas=(1, 2), adding=(2,), removing=(1,))}

    async def describe_log_dirs(
        self, broker_ids: Iterable[int], *, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[int, list[LogDirDescription]]:
        await trio.lowlevel.checkpoint()
        wanted = None if partitions is None else [TopicPartition(*one) for one in partitions]
        held = {1: {ORDERS_0: 500, ORDERS_1: 20}, 2: {ORDERS_0: 300, LOGS_0: 7}}
        found = {
            node: [
                LogDirDescription(
                    path=f"/d{node}",
                    error=ErrorCode.NONE,
                    total_bytes=1000,
                    usable_bytes=900 + node,
                    partitions=tuple(
                        LogDirPartition(topic_partition=one, size_bytes=size, offset_lag=node, is_future=False)
                        for one, size in held[node].items()
                        if wanted is None or one in wanted
                    ),
                    is_cordoned=node == 2,
                )
            ]
            for node in broker_ids
            if node in held
        }
        if 2 in found:
            failed: dict[str, Any] = {
                "error": ErrorCode.KAFKA_STORAGE_ERROR,
                "total_bytes": -1,
                "usable_bytes": -1,
                "partitions": (),
            }
            found[2].append(LogDirDescription(path="/bad", **failed))
        return found

    async def describe_acls(self, wanted: Any = None) -> list[Acl]:
        await trio.lowlevel.checkpoint()
        return [one for one in (RIGHT, DENIED) if wanted is None or wanted.principal in (None, one.principal)]

    async def describe_client_quotas(self, wanted: QuotaEntity, *, strict: bool = False) -> list[ClientQuota]:
        await trio.lowlevel.checkpoint()
        return [one for one in QUOTAS if wanted == one.entity or (not strict and wanted == QuotaEntity())]

    async def describe_users(self) -> list[UserCredential]:
        await trio.lowlevel.checkpoint()
        return [
            UserCredential(user="al", mechanism="SCRAM-SHA-256", iterations=4096),
            UserCredential(user="al", mechanism="SCRAM-SHA-512", iterations=8192),
            UserCredential(user="bo", mechanism="SCRAM-SHA-512", iterations=4096),
        ]

    async def describe_delegation_tokens(self, owners: Iterable[str] | None = None) -> list[DelegationToken]:
        await trio.lowlevel.checkpoint()
        return [TOKEN] if owners is None or TOKEN.owner in owners else []

    async def list_transactions(self, **filters: Any) -> list[TransactionListing]:
        await trio.lowlevel.checkpoint()
        given = {name: value for name, value in filters.items() if value not in ((), None, -1)}
        name = "tx" if not given else " ".join(f"{key}={value}" for key, value in given.items())
        return [TransactionListing(transactional_id=name, producer_id=7, state="Ongoing", coordinator=2)]

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        await trio.lowlevel.checkpoint()
        return {
            name: TransactionDescription(
                transactional_id=name,
                state="Ongoing" if name == "tx" else "Empty",
                coordinator=2,
                producer_id=7,
                producer_epoch=8,
                timeout_ms=60_000,
                start_ms=NOON_MS if name == "tx" else -1,
                partitions=(ORDERS_1, LOGS_0) if name == "tx" else (),
            )
            for name in transactional_ids
        }

    async def describe_producers(self, partition: tuple[str, int]) -> list[ProducerDescription]:
        await trio.lowlevel.checkpoint()
        return list(PRODUCERS) if tuple(partition) == ORDERS_0 else []


def _name(thing: Any) -> str:
    """Returns the name under which a call reports that it failed for a thing."""
    if isinstance(thing, tuple):
        return str(TopicPartition(*thing))
    return str(thing.name) if isinstance(thing, NewTopic | ConfigResource) else str(thing)


def _answer_of(call: str, things: list[Any]) -> Any:
    """Returns the result of a change for the things that it succeeds for."""
    match call:
        case "create_topics":
            return [
                CreatedTopic(
                    name=one.name,
                    topic_id=UUID(int=9),
                    partitions=len(one.assignments) or max(1, one.partitions),
                    replication_factor=max(1, one.replication_factor),
                )
                for one in things
            ]
        case "delete_records":
            return {TopicPartition(*one): 4 for one in things}
        case "elect_leaders":
            return [TopicPartition(*one) for one in things]
        case "delete_acls":
            return [RIGHT]
        case "create_delegation_token":
            return TOKEN
        case "renew_delegation_token" | "expire_delegation_token":
            return TOKEN.expiry_ms
        case _:
            return None


def _of(described: Mapping[str, Any], groups: Iterable[str]) -> dict[str, Any]:
    wanted = list(groups)
    found = {name: described[name] for name in wanted if name in described}
    # Clusters that do not serve the type of group know none of this name.
    codes = {
        name: ErrorCode.UNSUPPORTED_VERSION if name == "unserved" else ErrorCode.GROUP_ID_NOT_FOUND
        for name in wanted
        if name not in described
    }
    if codes:
        raise AdminError({name: KafkaError(code, "not there") for name, code in codes.items()}, found)
    return found
