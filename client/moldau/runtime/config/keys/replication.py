"""Keys of replication, fetching and quotas."""

from __future__ import annotations

from moldau.runtime.config.declaration import LONG_MAX
from moldau.runtime.config.declare import CLUSTER_WIDE, MIB, boolean, integer, long, string

REPLICATION_KEYS = (
    integer(
        name="min.insync.replicas",
        default=1,
        group="Replication",
        dynamic=CLUSTER_WIDE,
        minimum=1,
        doc="In-sync replicas that acks=all needs, and without which the high watermark does not advance. "
        "When a cluster is born, the value of its first controller's file becomes the default of all brokers in the "
        "metadata, which overrides the files of the brokers. Where that file does not name the key, each broker goes "
        "by its own file until a default is set: `moldau configs alter --entity-type brokers --entity-default "
        "--add-config min.insync.replicas=2`. A node whose file is overridden logs a warning.",
    ),
    boolean(
        name="unclean.leader.election.enable",
        default=False,
        group="Replication",
        dynamic=CLUSTER_WIDE,
        doc="Whether a replica that may lack records can become leader when no other is left.",
    ),
    long(
        name="replica.lag.time.max.ms",
        default=30000,
        group="Replication",
        minimum=0,
        doc=("How long a follower may not have caught up before it leaves the in-sync replicas, in milliseconds."),
    ),
    integer(
        name="replica.fetch.max.bytes",
        default=MIB,
        group="Replication",
        minimum=0,
        doc="Bytes of one partition that a follower asks for.",
    ),
    integer(
        name="replica.fetch.response.max.bytes",
        default=10 * MIB,
        group="Replication",
        minimum=0,
        doc="Bytes of one answer that a follower asks for.",
    ),
    integer(
        name="replica.fetch.min.bytes",
        default=1,
        group="Replication",
        doc="Bytes for which the leader makes a follower wait.",
    ),
    integer(
        name="replica.fetch.wait.max.ms",
        default=500,
        group="Replication",
        minimum=0,
        doc="How long the leader makes a follower wait, in milliseconds; at most replica.socket.timeout.ms and "
        "replica.lag.time.max.ms.",
    ),
    integer(
        name="replica.fetch.backoff.ms",
        default=1000,
        group="Replication",
        minimum=0,
        doc="Wait of a fetcher after an error of a partition, in milliseconds.",
    ),
    integer(
        name="replica.socket.timeout.ms",
        default=30000,
        group="Replication",
        minimum=1,
        doc="How long a follower's request may take, in milliseconds.",
    ),
    long(
        name="replica.high.watermark.checkpoint.interval.ms",
        default=5000,
        group="Replication",
        minimum=0,
        doc="How often high watermarks are written, in milliseconds.",
    ),
    string(
        name="replica.selector.class",
        default=None,
        group="Replication",
        choices=("RackAwareReplicaSelector", "org.apache.kafka.common.replica.RackAwareReplicaSelector"),
        doc=(
            "How a consumer's closest replica is chosen; RackAwareReplicaSelector (also with Kafka's package "
            "name) compares racks."
        ),
    ),
    boolean(
        name="auto.leader.rebalance.enable",
        default=True,
        group="Replication",
        doc="Whether leadership goes back to preferred replicas by itself.",
    ),
    long(
        name="leader.imbalance.check.interval.seconds",
        default=300,
        group="Replication",
        minimum=1,
        doc="How often preferred leaders are looked at, in seconds.",
    ),
    integer(
        name="leader.imbalance.per.broker.percentage",
        default=10,
        group="Replication",
        minimum=0,
        doc="Part of a broker's leaders that may be in wrong places before leadership goes back, in percent.",
    ),
    long(
        name="leader.replication.throttled.rate",
        default=LONG_MAX,
        group="Replication",
        dynamic=CLUSTER_WIDE,
        minimum=0,
        doc="Bytes a second that a leader sends for throttled replicas.",
    ),
    long(
        name="follower.replication.throttled.rate",
        default=LONG_MAX,
        group="Replication",
        dynamic=CLUSTER_WIDE,
        minimum=0,
        doc="Bytes a second that a follower fetches for throttled replicas.",
    ),
    long(
        name="replica.alter.log.dirs.io.max.bytes.per.second",
        default=LONG_MAX,
        group="Replication",
        dynamic=CLUSTER_WIDE,
        minimum=0,
        doc="Bytes a second that a broker copies to move replicas between its log directories; 0 halts the moves.",
    ),
)


FETCH_KEYS = (
    integer(
        name="fetch.max.bytes",
        default=55 * MIB,
        group="Fetch and quotas",
        minimum=1024,
        doc="Greatest size of an answer to a fetch.",
    ),
    integer(
        name="max.incremental.fetch.session.cache.slots",
        default=1000,
        group="Fetch and quotas",
        minimum=0,
        doc="Fetch sessions that are kept.",
    ),
    integer(
        name="max.request.partition.size.limit",
        default=2000,
        group="Fetch and quotas",
        minimum=1,
        doc="Partitions that one DescribeTopicPartitions answer holds at most.",
    ),
    integer(
        name="fetch.purgatory.purge.interval.requests",
        default=1000,
        group="Fetch and quotas",
        has_effect=False,
        doc="Accepted, without effect: waiting fetches leave no garbage.",
    ),
    integer(
        name="producer.purgatory.purge.interval.requests",
        default=1000,
        group="Fetch and quotas",
        has_effect=False,
        doc="Accepted, without effect: waiting produce requests leave no garbage.",
    ),
    integer(
        name="quota.window.num",
        default=11,
        group="Fetch and quotas",
        minimum=1,
        doc="Number of windows over which client quotas are counted.",
    ),
    integer(
        name="quota.window.size.seconds",
        default=1,
        group="Fetch and quotas",
        minimum=1,
        doc="Length of a window of client quotas.",
    ),
)
