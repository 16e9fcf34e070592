"""The limits of the share coordinator, with Kafka's keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.runtime.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConfig:
    """Limits of the share coordinator; times in milliseconds."""

    updates_per_snapshot: int = 500
    """Updates of a share-partition after which the next write is a snapshot."""
    write_timeout_ms: int = 5_000
    prune_interval_ms: int = 300_000
    cold_interval_ms: int = 300_000
    """Age of a snapshot after which it is written again, so that the log before it can be deleted."""
    load_bytes_max: int = 5 * 1024 * 1024
    appends_pending_max: int = 10_000
    """Pending writes of one partition; further requests are refused with COORDINATOR_NOT_AVAILABLE."""
    retry_ms: int = 1_000
    """How long the coordinator waits before it retries a write of its own."""

    @classmethod
    def of(cls, config: Config) -> ShareConfig:
        """Reads the broker's configuration."""
        return cls(
            updates_per_snapshot=config.get_int("share.coordinator.snapshot.update.records.per.snapshot"),
            write_timeout_ms=config.get_int("share.coordinator.write.timeout.ms"),
            prune_interval_ms=config.get_int("share.coordinator.state.topic.prune.interval.ms"),
            cold_interval_ms=config.get_int("share.coordinator.cold.partition.snapshot.interval.ms"),
            load_bytes_max=config.get_int("share.coordinator.load.buffer.size"),
        )
