"""Keys of a mirror between clusters. Names are those of MirrorMaker 2 and Connect."""

from __future__ import annotations

from moldau.runtime.config.declaration import REQUIRED
from moldau.runtime.config.declare import DAY_MS, MIB, MINUTE_MS, SECOND_MS, boolean, integer, names, string

MIRROR_KEYS = (
    string(
        name="target",
        default=REQUIRED,
        group="Mirror",
        is_own=True,
        doc="Alias of the cluster that is written to. A table [clusters.ALIAS] says how to connect to it.",
    ),
    string(
        name="name",
        default="moldau-mirror",
        group="Mirror",
        is_own=True,
        doc="Name of the mirror, part of its transactional ids. With exactly.once.source.support = enabled, a process "
        "fences earlier ones that have the same name, source and target.",
    ),
    string(
        name="metrics.listener",
        default="",
        group="Mirror",
        is_own=True,
        doc="HOST:PORT of an HTTP endpoint with /metrics, /health/live and /health/ready. Empty: none.",
    ),
    integer(
        name="retry.backoff.max.ms",
        default=MINUTE_MS,
        group="Mirror",
        is_own=True,
        minimum=SECOND_MS,
        doc="Longest wait before a source, or a partition that could not be mirrored, is tried again.",
    ),
)
"""Keys of the whole mirror."""

SOURCE_KEYS = (
    names(
        name="topics",
        default=(".*",),
        group="Topics",
        doc="Names or regular expressions of the topics to mirror; the whole name must match. Internal topics are "
        "never mirrored.",
    ),
    names(
        name="topics.exclude",
        default=(r".*[\-\.]internal", r".*\.replica", "__.*"),
        group="Topics",
        doc="Names or regular expressions of topics that are not mirrored, although topics matches.",
    ),
    string(
        name="replication.policy.class",
        default="DefaultReplicationPolicy",
        group="Topics",
        choices=(
            "DefaultReplicationPolicy",
            "IdentityReplicationPolicy",
            "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
            "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        ),
        doc="Names in the target: alias of the source, separator and topic, or the topic's own name.",
    ),
    string(
        name="replication.policy.separator",
        default=".",
        group="Topics",
        doc="Separator of the alias and the topic.",
    ),
    boolean(
        name="allow.cycles",
        default=False,
        group="Topics",
        is_own=True,
        doc="Whether mirrors with IdentityReplicationPolicy may form a cycle. Only the headers of records then stop "
        "them, so every mirror of the cycle must be a Moldau mirror.",
    ),
    integer(
        name="replication.factor",
        default=-1,
        group="Topics",
        is_own=True,
        minimum=-1,
        maximum=32767,
        doc="Replication factor of topics that the mirror creates, also of internal ones; -1: the brokers' default.",
    ),
    integer(
        name="refresh.topics.interval.seconds",
        default=60,
        group="Topics",
        is_own=True,
        minimum=1,
        maximum=DAY_MS // SECOND_MS,
        doc="How often new, grown, deleted and recreated topics are looked for.",
    ),
    boolean(
        name="sync.topic.configs.enabled",
        default=True,
        group="Topics",
        doc="Whether topics of the target follow the configuration of the source's topics.",
    ),
    integer(
        name="sync.topic.configs.interval.seconds",
        default=600,
        group="Topics",
        minimum=1,
        maximum=DAY_MS // SECOND_MS,
        doc="How often they do.",
    ),
    names(
        name="config.properties.exclude",
        default=(
            r"follower\.replication\.throttled\.replicas",
            r"leader\.replication\.throttled\.replicas",
            r"message\.timestamp\.difference\.max\.ms",
            r"message\.timestamp\.type",
            r"unclean\.leader\.election\.enable",
            r"min\.insync\.replicas",
        ),
        group="Topics",
        doc="Names or regular expressions of topic configuration keys that are not copied.",
    ),
    string(
        name="use.defaults.from",
        default="target",
        group="Topics",
        choices=("source", "target"),
        doc="The cluster whose defaults hold for keys that the source's topic does not set. A value that only the file "
        "of a source's broker sets is never copied.",
    ),
    boolean(
        name="sync.topic.acls.enabled",
        default=True,
        group="Topics",
        doc="Whether literal ACLs of mirrored topics are copied: never the permission to write, and the permission for "
        "all operations as that to read. ACLs are only added.",
    ),
    integer(
        name="sync.topic.acls.interval.seconds",
        default=600,
        group="Topics",
        minimum=1,
        maximum=DAY_MS // SECOND_MS,
        doc="How often they are copied.",
    ),
    string(
        name="auto.offset.reset",
        default="earliest",
        group="Records",
        choices=("earliest", "latest"),
        doc="Where mirroring a topic begins that has no position yet. Topics that are created later begin at their "
        "first record.",
    ),
    string(
        name="exactly.once.source.support",
        default="disabled",
        group="Records",
        choices=("disabled", "enabled"),
        doc="Whether records and positions are written in one transaction of the target. Otherwise a record may be "
        "written twice after a failure.",
    ),
    integer(
        name="transaction.boundary.interval.ms",
        default=200,
        group="Records",
        is_own=True,
        minimum=1,
        maximum=MINUTE_MS,
        doc="Time for which a transaction takes records (exactly.once.source.support = enabled).",
    ),
    integer(
        name="transaction.bytes.max",
        default=16 * MIB,
        group="Records",
        is_own=True,
        minimum=1024,
        doc="Bytes of batches after which a transaction is committed earlier.",
    ),
    integer(
        name="offset.flush.interval.ms",
        default=5 * SECOND_MS,
        group="Records",
        is_own=True,
        minimum=10,
        maximum=DAY_MS,
        doc="How often positions and delayed offset syncs are written. After a crash, records since then are mirrored "
        "again (exactly.once.source.support = disabled).",
    ),
    boolean(
        name="emit.heartbeats.enabled",
        default=True,
        group="Heartbeats",
        doc="Whether the mirror writes heartbeats to the topic heartbeats of the target.",
    ),
    integer(
        name="emit.heartbeats.interval.seconds",
        default=1,
        group="Heartbeats",
        minimum=1,
        maximum=3600,
        doc="How often it does.",
    ),
    boolean(
        name="heartbeats.replication.enabled",
        default=True,
        group="Heartbeats",
        doc="Whether topics of heartbeats are mirrored, whatever topics says.",
    ),
    boolean(
        name="emit.offset-syncs.enabled",
        default=True,
        group="Groups",
        doc="Whether pairs of offsets are written, which checkpoints need.",
    ),
    string(
        name="offset-syncs.topic.location",
        default="source",
        group="Groups",
        choices=("source", "target"),
        doc="The cluster with the topic of offset syncs.",
    ),
    integer(
        name="offset.lag.max",
        default=100,
        group="Groups",
        minimum=0,
        doc="Records by which a translated offset may be behind before a pair of offsets is written at once.",
    ),
    boolean(
        name="emit.checkpoints.enabled",
        default=True,
        group="Groups",
        doc="Whether committed offsets of the source's groups are translated and written as checkpoints.",
    ),
    integer(
        name="emit.checkpoints.interval.seconds",
        default=60,
        group="Groups",
        minimum=1,
        maximum=DAY_MS // SECOND_MS,
        doc="How often they are.",
    ),
    names(
        name="groups",
        default=(".*",),
        group="Groups",
        doc="Names or regular expressions of the groups whose offsets are translated.",
    ),
    names(
        name="groups.exclude",
        default=("console-consumer-.*", "connect-.*", "__.*"),
        group="Groups",
        doc="Names or regular expressions of groups whose offsets are not translated, although groups matches.",
    ),
    boolean(
        name="sync.group.offsets.enabled",
        default=False,
        group="Groups",
        doc="Whether translated offsets are committed in the target, for groups that have no members there.",
    ),
    integer(
        name="sync.group.offsets.interval.seconds",
        default=60,
        group="Groups",
        minimum=1,
        maximum=DAY_MS // SECOND_MS,
        doc="How often they are.",
    ),
)
"""Keys that may differ between the sources."""
