"""Arguments and results of the admin client."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.runtime.config import ConfigSource
from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from moldau.cluster.metadata import BrokerNode, TopicPartition
    from moldau.protocol.errors import ErrorCode


EARLIEST = -2
"""Time of ``list_offsets``: the log start offset."""

LATEST = -1
"""Time of ``list_offsets``: the high watermark, or the last stable offset for isolation level 1."""

MAX_TIMESTAMP = -3
"""Time of ``list_offsets``: the record with the greatest timestamp."""

EARLIEST_LOCAL = -4
"""Time of ``list_offsets``: the first offset on the leader's disk (KIP-405)."""

LATEST_TIERED = -5
"""Time of ``list_offsets``: the last offset in the object store (KIP-1005); -1 if that has none of the log."""


class ResourceType(enum.IntEnum):
    """The kinds of objects that have a configuration; the numbers are Kafka's."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """Names the owner of a configuration, such as a topic, broker or group.

    An empty broker name means the default of all brokers.
    """

    type: ResourceType
    name: str


class ConfigOperation(enum.IntEnum):
    """The operations on a key (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigAlteration:
    """A change of one key. ``value`` is None for DELETE."""

    name: str
    value: str | None = None
    operation: ConfigOperation = ConfigOperation.SET


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One key of a described configuration. ``value`` is None for a sensitive key."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether the value is the default."""
        return self.source is ConfigSource.DEFAULT


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create.

    The number -1 means the brokers' default. ``assignments`` (partition to brokers) replaces both numbers.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """A topic that was created (or could be, with ``validate_only``)."""

    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicListing:
    """A topic in a list."""

    name: str
    topic_id: UUID
    is_internal: bool
    partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """A partition. ``leader`` is -1 while there is none.

    ``elr`` are the eligible leader replicas, which have left the ISR with all committed records; ``last_known_elr`` are
    those of before an unclean stop (KIP-966). Both are empty if the brokers do not say.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic with its partitions, ascending."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]
    authorized_operations: tuple[str, ...] | None = None
    """The operations that this client may do; None if it did not ask, or the brokers do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The cluster as a broker sees it. ``controller_id`` is -1 while there is none."""

    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerNode, ...]
    fenced: tuple[int, ...] = ()
    """Those of ``brokers`` that are registered but not in service."""
    authorized_operations: tuple[str, ...] | None = None
    """The operations that this client may do; None if it did not ask, or the brokers do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplica:
    """A voter or observer of the metadata quorum. Times are wall-clock milliseconds, -1 where they are not known.

    ``directory_id`` is that of its metadata log (KIP-853), ``ZERO_UUID`` where it is not known.
    """

    replica_id: int
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int
    directory_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The metadata quorum: leader, epoch, high watermark, and the progress of each replica."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: tuple[tuple[int, str, int], ...] = ()  # id, host and port of each voter, if known


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group with its assigned partitions.

    Members of classic groups have no ``epoch``. Members of the consumer protocol (KIP-848) have a ``target`` that
    differs from the assignment while they move towards it. ``type`` is ``classic``, ``consumer`` or ``share``: the
    protocol that the member speaks. While a group migrates, a group of the consumer protocol has members of both.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]
    epoch: int = -1
    target: tuple[TopicPartition, ...] = ()
    type: str = "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group; ``type`` is ``classic``, ``consumer`` (KIP-848) or ``share`` (KIP-932).

    ``protocol`` is the assignor. Classic groups have no epochs.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: int
    members: tuple[GroupMember, ...]
    type: str = "classic"
    epoch: int = -1
    assignment_epoch: int = -1
    authorized_operations: tuple[str, ...] | None = None
    """The operations that this client may do; None if it did not ask, or the brokers do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupMember:
    """A member of a streams group: a thread of a Kafka Streams application (KIP-1071).

    Tasks have the names that Kafka Streams logs: subtopology, underscore, partition. ``is_settled`` tells whether the
    member has exactly the tasks of its target assignment.
    """

    member_id: str
    client_id: str
    client_host: str
    process_id: str
    """The process whose thread the member is."""
    epoch: int
    topology_epoch: int
    endpoint: str | None
    """Host and port for interactive queries; None if the application has none."""
    active: tuple[str, ...]
    standby: tuple[str, ...]
    warmup: tuple[str, ...]
    is_settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupDescription:
    """A streams group (KIP-1071)."""

    group_id: str
    state: str
    coordinator: int
    epoch: int
    assignment_epoch: int
    topology_epoch: int
    """The epoch of the group's topology; -1 if it has none."""
    subtopologies: Mapping[str, tuple[str, ...]]
    """The input topics of each subtopology."""
    internal_topics: tuple[str, ...]
    """Repartition and changelog topics, which the group coordinator creates."""
    members: tuple[StreamsGroupMember, ...]
    authorized_operations: tuple[str, ...] | None = None
    """The operations that this client may do; None if it did not ask, or the brokers do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOffset:
    """How far a share group is with a partition (KIP-932); -1 stands for what is not known."""

    start_offset: int
    """The first offset that is not done with; -1 until a member has read the partition."""
    leader_epoch: int
    lag: int
    """Records from the start offset on that are not done with (KIP-1226)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReassignment:
    """A move of replicas that is in progress."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirPartition:
    """A partition in a log directory.

    ``offset_lag`` is its distance in offsets to the high watermark, or of a future replica to the current one.
    """

    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirDescription:
    """A log directory of a broker.

    ``error`` is not NONE if it is offline. The sizes of the volume are -1 if unknown. A cordoned directory takes no new
    replicas (KIP-1066).
    """

    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    partitions: tuple[LogDirPartition, ...]
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLogDir:
    """The log directory of a replica, None if the broker has no such replica; ``future_path`` while it moves."""

    path: str | None
    offset_lag: int
    future_path: str | None
    future_offset_lag: int
