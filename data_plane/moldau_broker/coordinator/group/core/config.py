"""The limits of the group coordinator, with Kafka's keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from moldau.runtime.config import Config

_CLASSES: Final = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""Kafka's names of the classes of assignors, which files of its earlier releases contain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Limits of groups and offsets; times in milliseconds."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    size_max: int = 0x7FFFFFFF
    metadata_bytes_max: int = 16 * 1024 * 1024
    """Memory of the members of one group; further members get GROUP_MAX_SIZE_REACHED."""
    coordinator_metadata_bytes_max: int = 128 * 1024 * 1024
    """Memory of the members of all groups of a broker; further members get COORDINATOR_NOT_AVAILABLE."""
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait in a rebalance; it sends no heartbeats whose absence would expire it."""
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000
    commit_timeout_ms: int = 5_000
    appends_pending_max: int = 10_000
    """Pending writes of one partition; further requests are refused with COORDINATOR_NOT_AVAILABLE."""
    load_bytes_max: int = 5 * 1024 * 1024
    expired_batch_records_max: int = 1_000
    expired_rounds_pause_ms: int = 10_000
    """The pause before the next round if more offsets have expired: clients may use a new group for each run."""
    expired_groups_max: int = 1_000
    """Groups whose offsets are looked at in one turn of the loop."""
    gone_offsets_retry_ms: int = 1_000
    """How long the coordinator waits before it retries to remove offsets of a deleted topic."""

    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_size_max: int = 0x7FFFFFFF
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """Assignors of consumer groups; the first one is used if members have no preference."""
    consumer_assignment_interval_ms: int = 0
    """Least time between two target assignments of a group; 0 for none."""
    consumer_regex_refresh_interval_ms: int = 600_000
    """Time after which the topics of regular expressions are looked up again although nothing seems to have changed."""
    share_session_timeout_ms: int = 45_000
    share_heartbeat_interval_ms: int = 5_000
    share_size_max: int = 200
    share_assignment_interval_ms: int = 0
    streams_session_timeout_ms: int = 45_000
    streams_heartbeat_interval_ms: int = 5_000
    streams_size_max: int = 0x7FFFFFFF
    streams_standby_replicas: int = 0
    streams_initial_delay_ms: int = 3_000
    """How long a new streams group waits for further members before its first assignment."""
    streams_task_offset_interval_ms: int = 60_000
    streams_assignment_interval_ms: int = 0
    migration_policy: str = "bidirectional"
    """Which online conversions between classic and consumer groups are allowed."""
    protocols: tuple[str, ...] = ("classic", "consumer", "streams")
    """The group protocols that are served."""

    @classmethod
    def of(cls, config: Config) -> GroupConfig:
        """Reads the broker's configuration."""
        return cls(
            session_timeout_min_ms=config.get_int("group.min.session.timeout.ms"),
            session_timeout_max_ms=config.get_int("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=config.get_int("group.initial.rebalance.delay.ms"),
            size_max=config.get_int("group.max.size"),
            metadata_bytes_max=config.get_int("group.max.metadata.bytes"),
            coordinator_metadata_bytes_max=config.get_int("group.coordinator.max.metadata.bytes"),
            offset_metadata_bytes_max=config.get_int("offset.metadata.max.bytes"),
            offsets_retention_ms=config.get_int("offsets.retention.minutes") * 60_000,
            offsets_retention_check_interval_ms=config.get_int("offsets.retention.check.interval.ms"),
            commit_timeout_ms=config.get_int("offsets.commit.timeout.ms"),
            consumer_session_timeout_ms=config.get_int("group.consumer.session.timeout.ms"),
            consumer_heartbeat_interval_ms=config.get_int("group.consumer.heartbeat.interval.ms"),
            consumer_size_max=config.get_int("group.consumer.max.size"),
            consumer_assignors=tuple(
                dict.fromkeys(_CLASSES.get(name, name) for name in config.get_list("group.consumer.assignors"))
            ),
            consumer_assignment_interval_ms=config.get_int("group.consumer.assignment.interval.ms"),
            consumer_regex_refresh_interval_ms=config.get_int("group.consumer.regex.refresh.interval.ms"),
            share_session_timeout_ms=config.get_int("group.share.session.timeout.ms"),
            share_heartbeat_interval_ms=config.get_int("group.share.heartbeat.interval.ms"),
            share_size_max=config.get_int("group.share.max.size"),
            share_assignment_interval_ms=config.get_int("group.share.assignment.interval.ms"),
            streams_session_timeout_ms=config.get_int("group.streams.session.timeout.ms"),
            streams_heartbeat_interval_ms=config.get_int("group.streams.heartbeat.interval.ms"),
            streams_size_max=config.get_int("group.streams.max.size"),
            streams_standby_replicas=config.get_int("group.streams.num.standby.replicas"),
            streams_initial_delay_ms=config.get_int("group.streams.initial.rebalance.delay.ms"),
            streams_task_offset_interval_ms=config.get_int("group.streams.task.offset.interval.ms"),
            streams_assignment_interval_ms=config.get_int("group.streams.assignment.interval.ms"),
            migration_policy=config.get_str("group.consumer.migration.policy"),
            protocols=config.get_list("group.coordinator.rebalance.protocols"),
            load_bytes_max=config.get_int("offsets.load.buffer.size"),
        )
