"""Keys of share groups and of the share coordinator (KIP-932)."""

from __future__ import annotations

from moldau.runtime.config.declare import MIB, MINUTE_MS, SECOND_MS, integer, names, short

SHARE_KEYS = (
    integer(
        name="group.share.session.timeout.ms",
        default=45 * SECOND_MS,
        group="Share groups",
        minimum=1,
        doc="Silence after which a member of a share group counts as gone, in milliseconds.",
    ),
    integer(
        name="group.share.min.session.timeout.ms",
        default=45 * SECOND_MS,
        group="Share groups",
        minimum=1,
        doc="Least session timeout that a share group may have of its own, in milliseconds.",
    ),
    integer(
        name="group.share.max.session.timeout.ms",
        default=MINUTE_MS,
        group="Share groups",
        minimum=1,
        doc="Greatest session timeout that a share group may have of its own, in milliseconds.",
    ),
    integer(
        name="group.share.heartbeat.interval.ms",
        default=5 * SECOND_MS,
        group="Share groups",
        minimum=1,
        doc="Time between heartbeats of a member of a share group, in milliseconds.",
    ),
    integer(
        name="group.share.min.heartbeat.interval.ms",
        default=5 * SECOND_MS,
        group="Share groups",
        minimum=1,
        doc="Least heartbeat interval that a share group may have of its own, in milliseconds.",
    ),
    integer(
        name="group.share.max.heartbeat.interval.ms",
        default=15 * SECOND_MS,
        group="Share groups",
        minimum=1,
        doc="Greatest heartbeat interval that a share group may have of its own, in milliseconds.",
    ),
    integer(
        name="group.share.max.size",
        default=200,
        group="Share groups",
        minimum=1,
        maximum=1000,
        doc="Greatest number of members of a share group.",
    ),
    names(
        name="group.share.assignors",
        default=("simple",),
        group="Share groups",
        choices=("simple",),
        doc="Assignors of share groups.",
    ),
    integer(
        name="share.coordinator.state.topic.num.partitions",
        default=50,
        group="Share groups",
        minimum=1,
        doc="Partitions of `__share_group_state`. It must not change later.",
    ),
    short(
        name="share.coordinator.state.topic.replication.factor",
        default=3,
        group="Share groups",
        minimum=1,
        doc="Replicas of `__share_group_state`. It is not created while fewer brokers are alive.",
    ),
    short(
        name="share.coordinator.state.topic.min.isr",
        default=2,
        group="Share groups",
        minimum=1,
        doc="`min.insync.replicas` of `__share_group_state`.",
    ),
    integer(
        name="share.coordinator.state.topic.segment.bytes",
        default=100 * MIB,
        group="Share groups",
        minimum=1,
        doc="Segment size of `__share_group_state`.",
    ),
    integer(
        name="share.coordinator.snapshot.update.records.per.snapshot",
        default=500,
        group="Share groups",
        minimum=0,
        maximum=500,
        doc="Updates of a share-partition that are written between two snapshots of its state.",
    ),
    integer(
        name="share.coordinator.write.timeout.ms",
        default=5 * SECOND_MS,
        group="Share groups",
        minimum=1,
        doc="How long the share coordinator waits until a write is committed, in milliseconds.",
    ),
    integer(
        name="share.coordinator.load.buffer.size",
        default=5 * MIB,
        group="Share groups",
        minimum=1,
        doc="Bytes read at once when a share coordinator loads its state.",
    ),
    integer(
        name="share.coordinator.state.topic.prune.interval.ms",
        default=5 * MINUTE_MS,
        group="Share groups",
        minimum=1,
        doc="How often redundant records of `__share_group_state` are deleted, in milliseconds.",
    ),
    integer(
        name="share.coordinator.cold.partition.snapshot.interval.ms",
        default=5 * MINUTE_MS,
        group="Share groups",
        minimum=1,
        doc="Age of a snapshot after which it is written again, so that the log before it can go, in milliseconds.",
    ),
)
