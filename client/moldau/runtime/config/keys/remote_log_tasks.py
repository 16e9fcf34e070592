"""Keys of the background work of tiered storage (KIP-405): copies, retention and deletions."""

from __future__ import annotations

from moldau.runtime.config.declaration import LONG_MAX
from moldau.runtime.config.declare import CLUSTER_WIDE, HOUR_MS, SECOND_MS, double, integer, long

REMOTE_TASK_KEYS = (
    long(
        name="remote.log.manager.task.interval.ms",
        default=30 * SECOND_MS,
        group="Tiered storage",
        minimum=1,
        doc="How often a leader looks for segments to copy and to delete, and a follower for segments that it may "
        "remove from its disk, in milliseconds.",
    ),
    integer(
        name="remote.log.manager.copier.thread.pool.size",
        default=10,
        group="Tiered storage",
        dynamic=CLUSTER_WIDE,
        minimum=1,
        doc="Segments that a broker copies to the object store at the same time.",
    ),
    integer(
        name="remote.log.manager.expiration.thread.pool.size",
        default=10,
        group="Tiered storage",
        dynamic=CLUSTER_WIDE,
        minimum=1,
        doc="Partitions whose folders a broker lists, or whose segments it deletes, at the same time.",
    ),
    long(
        name="remote.log.manager.copy.max.bytes.per.second",
        default=LONG_MAX,
        group="Tiered storage",
        dynamic=CLUSTER_WIDE,
        minimum=1,
        doc="Bytes that a broker copies to the object store in a second, on average. A copy is not slowed down; the "
        "next one waits.",
    ),
    long(
        name="remote.log.manager.task.retry.backoff.ms",
        default=500,
        group="Tiered storage",
        minimum=1,
        doc="Pause of a partition's work after the object store has failed, in milliseconds. Each further pause is "
        "twice as long.",
    ),
    long(
        name="remote.log.manager.task.retry.backoff.max.ms",
        default=30 * SECOND_MS,
        group="Tiered storage",
        minimum=1,
        doc="The longest of these pauses, in milliseconds.",
    ),
    double(
        name="remote.log.manager.task.retry.jitter",
        default=0.2,
        group="Tiered storage",
        minimum=0,
        maximum=0.5,
        doc="The part of a pause by which it may be longer or shorter at random.",
    ),
    long(
        name="remote.log.unfinished.delete.delay.ms",
        default=HOUR_MS,
        group="Tiered storage",
        is_own=True,
        minimum=SECOND_MS,
        doc="Age at which objects are deleted that belong to no segment, because a broker failed during a copy, or to "
        "no topic of the cluster, in milliseconds. It must be several times longer than the copy of a segment takes.",
    ),
)
