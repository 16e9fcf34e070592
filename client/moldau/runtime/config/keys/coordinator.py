"""Keys of the group and transaction coordinators."""

from __future__ import annotations

from moldau.runtime.config.declaration import INT_MAX
from moldau.runtime.config.declare import (
    CLUSTER_WIDE,
    DAY_MS,
    HOUR_MS,
    KIB,
    MIB,
    MINUTE_MS,
    boolean,
    integer,
    long,
    names,
    short,
    string,
)
from moldau.runtime.config.keys.groups.pace import pace_keys

GROUP_KEYS = (
    integer(
        name="group.min.session.timeout.ms",
        default=6000,
        group="Groups",
        minimum=1,
        doc="Least session timeout that a member may ask for, in milliseconds.",
    ),
    integer(
        name="group.max.session.timeout.ms",
        default=30 * MINUTE_MS,
        group="Groups",
        minimum=1,
        doc="Greatest session timeout that a member may ask for, in milliseconds.",
    ),
    integer(
        name="group.initial.rebalance.delay.ms",
        default=3000,
        group="Groups",
        minimum=0,
        doc=(
            "How long a new group waits for more members, in milliseconds. `moldau cluster start`, `moldau demo`, "
            "`moldau chaos` and the pytest plugin set 0 by default, so that the first read starts at once."
        ),
    ),
    integer(
        name="group.max.size",
        default=INT_MAX,
        group="Groups",
        minimum=1,
        doc="Greatest number of members of a group.",
    ),
    long(
        name="group.max.metadata.bytes",
        default=16 * MIB,
        group="Groups",
        is_own=True,
        minimum=64 * KIB,
        doc=(
            "Greatest memory that the members of a group may take, in bytes, with what they say in JoinGroup. A member "
            "that would exceed it is refused with GROUP_MAX_SIZE_REACHED."
        ),
    ),
    long(
        name="group.coordinator.max.metadata.bytes",
        default=128 * MIB,
        group="Groups",
        is_own=True,
        minimum=MIB,
        doc=(
            "Greatest memory that the members of all groups of a broker may take, in bytes. Joins that would exceed it "
            "are answered with COORDINATOR_NOT_AVAILABLE, and clients try again."
        ),
    ),
    names(
        name="group.coordinator.rebalance.protocols",
        default=("classic", "consumer", "streams"),
        group="Groups",
        choices=("classic", "consumer", "share", "streams"),
        doc="Group protocols that are served; members of others than `classic` get UNSUPPORTED_VERSION without it. "
        "`share` is accepted without effect: `share.version` decides on share groups.",
    ),
    integer(
        name="group.consumer.session.timeout.ms",
        default=45000,
        group="Groups",
        minimum=1,
        doc="Session timeout of members of the consumer protocol, in milliseconds.",
    ),
    integer(
        name="group.consumer.min.session.timeout.ms",
        default=45000,
        group="Groups",
        minimum=1,
        doc="Least session timeout of the consumer protocol, in milliseconds.",
    ),
    integer(
        name="group.consumer.max.session.timeout.ms",
        default=60000,
        group="Groups",
        minimum=1,
        doc="Greatest session timeout of the consumer protocol, in milliseconds.",
    ),
    integer(
        name="group.consumer.heartbeat.interval.ms",
        default=5000,
        group="Groups",
        minimum=1,
        doc="Heartbeat interval of members of the consumer protocol, in milliseconds.",
    ),
    integer(
        name="group.consumer.min.heartbeat.interval.ms",
        default=5000,
        group="Groups",
        minimum=1,
        doc="Least heartbeat interval of the consumer protocol, in milliseconds.",
    ),
    integer(
        name="group.consumer.max.heartbeat.interval.ms",
        default=15000,
        group="Groups",
        minimum=1,
        doc="Greatest heartbeat interval of the consumer protocol, in milliseconds.",
    ),
    integer(
        name="group.consumer.max.size",
        default=INT_MAX,
        group="Groups",
        minimum=1,
        doc="Greatest number of members of a group of the consumer protocol.",
    ),
    names(
        name="group.consumer.assignors",
        default=("uniform", "range"),
        group="Groups",
        choices=(
            "uniform",
            "range",
            "org.apache.kafka.coordinator.group.assignor.UniformAssignor",
            "org.apache.kafka.coordinator.group.assignor.RangeAssignor",
        ),
        doc="Assignors of the consumer protocol, the first is the default; Kafka's class names are understood.",
    ),
    string(
        name="group.consumer.migration.policy",
        default="bidirectional",
        group="Groups",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
        ignores_case=True,
        doc="Which groups are converted while they have members: upgrade, from classic to consumer; downgrade, back.",
    ),
    *pace_keys("consumer", "Groups"),
    integer(
        name="group.consumer.regex.refresh.interval.ms",
        default=10 * MINUTE_MS,
        group="Groups",
        minimum=10_000,
        doc="Time after which the topics of subscribed regular expressions are looked up again although neither topics "
        "nor ACLs seem to have changed, in milliseconds.",
    ),
    integer(
        name="offset.metadata.max.bytes",
        default=4096,
        group="Groups",
        minimum=0,
        doc="Greatest size of the text kept with a committed offset.",
    ),
    integer(
        name="offsets.load.buffer.size",
        default=5 * MIB,
        group="Groups",
        minimum=1,
        doc="Bytes read at once when a coordinator loads its groups.",
    ),
    short(
        name="offsets.topic.replication.factor",
        default=3,
        group="Groups",
        minimum=1,
        doc="Replicas of the topic of committed offsets; it is not created with fewer brokers than that.",
    ),
    integer(
        name="offsets.topic.num.partitions",
        default=50,
        group="Groups",
        minimum=1,
        doc="Partitions of the topic of committed offsets.",
    ),
    integer(
        name="offsets.topic.segment.bytes",
        default=100 * MIB,
        group="Groups",
        minimum=1,
        doc="Segment size of the topic of committed offsets.",
    ),
    integer(
        name="offsets.retention.minutes",
        default=10080,
        group="Groups",
        minimum=1,
        doc="How long offsets of an empty group are kept, in minutes.",
    ),
    long(
        name="offsets.retention.check.interval.ms",
        default=10 * MINUTE_MS,
        group="Groups",
        minimum=1,
        doc="How often old offsets are looked for, in milliseconds.",
    ),
    integer(
        name="offsets.commit.timeout.ms",
        default=5000,
        group="Groups",
        minimum=1,
        doc="How long a commit waits for its replicas, in milliseconds.",
    ),
)


TRANSACTION_KEYS = (
    integer(
        name="transactional.id.expiration.ms",
        default=7 * DAY_MS,
        group="Transactions",
        minimum=1,
        doc="How long an unused transactional id is kept, in milliseconds.",
    ),
    integer(
        name="transaction.max.timeout.ms",
        default=15 * MINUTE_MS,
        group="Transactions",
        minimum=1,
        doc="Greatest transaction timeout that a producer may ask for, in milliseconds.",
    ),
    short(
        name="transaction.state.log.replication.factor",
        default=3,
        group="Transactions",
        minimum=1,
        doc="Replicas of the topic of transaction states.",
    ),
    integer(
        name="transaction.state.log.num.partitions",
        default=50,
        group="Transactions",
        minimum=1,
        doc="Partitions of the topic of transaction states.",
    ),
    integer(
        name="transaction.state.log.min.isr",
        default=2,
        group="Transactions",
        minimum=1,
        doc="min.insync.replicas of the topic of transaction states.",
    ),
    integer(
        name="transaction.state.log.segment.bytes",
        default=100 * MIB,
        group="Transactions",
        minimum=1,
        doc="Segment size of the topic of transaction states.",
    ),
    integer(
        name="transaction.state.log.load.buffer.size",
        default=5 * MIB,
        group="Transactions",
        minimum=1,
        doc="Bytes read at once when a coordinator loads its transactions.",
    ),
    integer(
        name="transaction.abort.timed.out.transaction.cleanup.interval.ms",
        default=10000,
        group="Transactions",
        minimum=1,
        has_effect=False,
        doc="Accepted, without effect: each transaction is aborted at the moment when its time is up.",
    ),
    integer(
        name="transaction.remove.expired.transaction.cleanup.interval.ms",
        default=HOUR_MS,
        group="Transactions",
        minimum=1,
        doc="How often unused transactional ids are looked for, in milliseconds.",
    ),
    boolean(
        name="transaction.partition.verification.enable",
        default=True,
        group="Transactions",
        dynamic=CLUSTER_WIDE,
        doc="Whether a transactional append is checked with the coordinator first.",
    ),
    integer(
        name="add.partitions.to.txn.retry.backoff.ms",
        default=20,
        group="Transactions",
        minimum=1,
        doc="Pause before a broker tries again to add a partition while another transaction ends, in milliseconds.",
    ),
    integer(
        name="add.partitions.to.txn.retry.backoff.max.ms",
        default=100,
        group="Transactions",
        minimum=0,
        doc="How long a broker tries to add a partition while another transaction ends, in milliseconds.",
    ),
    integer(
        name="producer.id.expiration.ms",
        default=DAY_MS,
        group="Transactions",
        dynamic=CLUSTER_WIDE,
        minimum=1,
        doc="How long the state of an idle producer is kept, in milliseconds.",
    ),
    integer(
        name="producer.id.expiration.check.interval.ms",
        default=10 * MINUTE_MS,
        group="Transactions",
        minimum=1,
        doc="How often idle producers are looked for, in milliseconds.",
    ),
)
