"""Options of the tiered workload, and settings under which a run of some seconds copies and deletes segments."""

from __future__ import annotations

from dataclasses import dataclass

BROKER_SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.url": "s3://tiered/simulated",
    "remote.log.manager.task.interval.ms": "200",
    "remote.log.manager.task.retry.backoff.ms": "100",
    "remote.log.manager.task.retry.backoff.max.ms": "1000",
    "remote.log.unfinished.delete.delay.ms": "10000",
    "remote.log.read.cache.bytes": "4096",
    "remote.log.index.file.cache.total.size.bytes": "1048576",
    "log.initial.task.delay.ms": "300",
    "log.retention.check.interval.ms": "300",
}
"""Settings of brokers: frequent tasks, short waits, and caches that hold a few segments."""
UNFINISHED_SECONDS = 10.0
"""``remote.log.unfinished.delete.delay.ms`` of these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredOptions:
    """The options of the workload."""

    kept: str = "tiered-kept"
    """Name of the topic of which nothing is deleted."""
    kept_partitions: int = 2
    trimmed: str = "tiered-trimmed"
    """Name of the topic of which DeleteRecords deletes."""
    sized: str = "tiered-sized"
    """Name of the topic that retention by size makes shorter."""
    dropped: str = "tiered-dropped"
    """The beginning of the names of topics that are written, tiered, read and deleted, one after the other."""
    transactional_writers: int = 2
    plain_writers: int = 1
    rounds_per_second: float = 4.0
    """Of each writer: a round is a transaction, or a few single writes."""
    writes_max: int = 5
    """Of one round."""
    abort_share: float = 0.3
    crash_every_s: float = 6.0
    """Mean time until a writer is abandoned; 0 for never."""
    readers: int = 2
    passes_per_second: float = 1.5
    """Of each reader."""
    search_share: float = 0.25
    """Passes that begin where a search by time leads."""
    trims_per_second: float = 0.4
    moves_per_second: float = 1.2
    """Changes of a partition's replicas: a replica that is new has only the store to begin from."""
    toggles_per_second: float = 0.3
    """Changes of ``remote.log.copy.disable`` of the topic of which nothing is deleted (KIP-950)."""
    dropped_writes: int = 40
    """Records of a topic that is dropped."""
    padding_bytes: int = 60
    segment_bytes: int = 1_024
    local_retention_bytes: int = 1_024
    retention_bytes: int = 3_500
    """Of the topic that retention makes shorter."""

    @property
    def topic_settings(self) -> dict[str, str]:
        """The configuration of a topic that keeps everything."""
        return {
            "remote.storage.enable": "true",
            "segment.bytes": str(self.segment_bytes),
            "index.interval.bytes": "64",
            "local.retention.bytes": str(self.local_retention_bytes),
        }

    @property
    def topics(self) -> dict[str, tuple[int, dict[str, str]]]:
        """Partitions and configuration of the topics that live as long as the run."""
        settings = self.topic_settings
        return {
            self.kept: (self.kept_partitions, settings),
            self.trimmed: (1, settings),
            self.sized: (1, {**settings, "retention.bytes": str(self.retention_bytes)}),
        }
