"""The bounds of the group coordinator, with Kafka's keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.runtime.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Limits of groups and offsets; times in milliseconds."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    size_max: int = 0x7FFFFFFF
    new_member_join_timeout_ms: int = 300_000
    """How long a member without an id yet may wait in a rebalance; nobody can expire it by heartbeats."""
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000
    commit_timeout_ms: int = 5_000
    appends_pending_max: int = 10_000
    """Writes of one partition that wait for their commit; more are refused with COORDINATOR_NOT_AVAILABLE."""
    load_bytes_max: int = 5 * 1024 * 1024
    expired_batch_records_max: int = 1_000
    gone_offsets_retry_ms: int = 1_000
    """When offsets of a deleted topic are looked at again that could not be removed."""

    @classmethod
    def of(cls, config: Config) -> GroupConfig:
        """Reads the broker's configuration."""
        return cls(
            session_timeout_min_ms=config.get_int("group.min.session.timeout.ms"),
            session_timeout_max_ms=config.get_int("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=config.get_int("group.initial.rebalance.delay.ms"),
            size_max=config.get_int("group.max.size"),
            offset_metadata_bytes_max=config.get_int("offset.metadata.max.bytes"),
            offsets_retention_ms=config.get_int("offsets.retention.minutes") * 60_000,
            offsets_retention_check_interval_ms=config.get_int("offsets.retention.check.interval.ms"),
            commit_timeout_ms=config.get_int("offsets.commit.timeout.ms"),
            load_bytes_max=config.get_int("offsets.load.buffer.size"),
        )
