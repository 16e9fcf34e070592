"""Settings of one log (Kafka's topic configuration) and of the manager (broker configuration)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_LIMIT = -1
"""Retention without a limit."""

AS_RETENTION = -2
"""Local retention that is that of the whole log."""

_LONG_MAX = (1 << 63) - 1
_POSITION_MAX = (1 << 31) - 1


class TypedConfig(Protocol):
    """The typed reads of ``moldau.runtime.config.Config`` that the log needs."""

    def get_int(self, name: str) -> int:
        """Returns the value of an integer key."""
        ...

    def get_double(self, name: str) -> float:
        """Returns the value of a floating-point key."""
        ...

    def get_str(self, name: str) -> str:
        """Returns the value of a text key."""
        ...

    def get_bool(self, name: str) -> bool:
        """Returns the value of a boolean key."""
        ...

    def get_list(self, name: str) -> Sequence[str]:
        """Returns the value of a list key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The topic settings that the log uses; names and defaults are Kafka's, with ``_`` instead of ``.``."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    flush_messages: int = _LONG_MAX  # fewer acknowledged records than this are not durable; 1: all are
    flush_ms: int = _LONG_MAX
    retention_bytes: int = NO_LIMIT
    retention_ms: int = 7 * 24 * 3600 * 1000
    max_message_bytes: int = 1048588
    max_message_uncompressed_bytes: int = 32 * 1024 * 1024
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    compact: bool = False  # cleanup.policy holds compact
    delete: bool = True  # cleanup.policy holds delete
    compression_type: str = "producer"
    compression_level: int | None = None  # of the codec named by compression_type; None is the codec's default
    preallocate: bool = False
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = _LONG_MAX
    message_timestamp_after_max_ms: int = 3600 * 1000
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    local_retention_ms: int = AS_RETENTION
    local_retention_bytes: int = AS_RETENTION

    # What the settings mean for each append, computed once.
    bounds_unsynced: bool = field(init=False, repr=False, compare=False)
    """Whether ``flush.messages`` is set, so that acknowledgements may have to wait for a sync."""
    roll_ms: int = field(init=False, repr=False, compare=False)
    """Age at which a segment is closed; compacted topics close early enough for ``max.compaction.lag.ms``."""
    jitter_ms_max: int = field(init=False, repr=False, compare=False)
    """Greatest random part that is taken off ``roll_ms``, never more than all of it."""
    roll_bytes: int = field(init=False, repr=False, compare=False)
    """The largest size of a segment; positions in a segment have 31 bits."""
    batch_bytes_max: int = field(init=False, repr=False, compare=False)
    """The largest batch that both ``max.message.bytes`` and ``segment.bytes`` allow."""
    keeps_codec: bool = field(init=False, repr=False, compare=False)
    """Whether batches stay in the codec of their producer."""
    stores_as_sent: bool = field(init=False, repr=False, compare=False)
    """Whether a batch without compression is stored with the bytes that its producer sent."""
    copies_segments: bool = field(init=False, repr=False, compare=False)
    """Whether segments are copied to the object store, and leave this disk only after that."""
    disk_retention_ms: int = field(init=False, repr=False, compare=False)
    disk_retention_bytes: int = field(init=False, repr=False, compare=False)
    """Retention of the segments on this disk; without copies it is that of the log."""

    def __post_init__(self) -> None:
        """Computes the fields that follow from others."""
        age_ms = min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms
        stores_as_sent = (
            self.compression_type in ("producer", "uncompressed") and self.message_timestamp_type == "CreateTime"
        )
        copies = self.remote_storage_enable and not self.remote_log_copy_disable
        is_local_ms = copies and self.local_retention_ms != AS_RETENTION
        is_local_bytes = copies and self.local_retention_bytes != AS_RETENTION
        for name, value in (
            ("bounds_unsynced", self.flush_messages != _LONG_MAX),
            ("roll_ms", age_ms),
            ("jitter_ms_max", min(self.segment_jitter_ms, age_ms)),
            ("roll_bytes", min(self.segment_bytes, _POSITION_MAX)),
            ("batch_bytes_max", min(self.max_message_bytes, self.segment_bytes)),
            ("keeps_codec", self.compression_type == "producer"),
            ("stores_as_sent", stores_as_sent),
            ("copies_segments", copies),
            ("disk_retention_ms", self.local_retention_ms if is_local_ms else self.retention_ms),
            ("disk_retention_bytes", self.local_retention_bytes if is_local_bytes else self.retention_bytes),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def from_config(cls, config: TypedConfig) -> LogConfig:
        """Reads the topic keys; ``config`` falls back to the broker's values where the topic sets none."""
        policy = config.get_list("cleanup.policy")
        compression = config.get_str("compression.type")
        level = config.get_int(f"compression.{compression}.level") if compression in ("gzip", "lz4", "zstd") else None
        return cls(
            segment_bytes=config.get_int("segment.bytes"),
            segment_ms=config.get_int("segment.ms"),
            segment_jitter_ms=config.get_int("segment.jitter.ms"),
            segment_index_bytes=config.get_int("segment.index.bytes"),
            index_interval_bytes=config.get_int("index.interval.bytes"),
            flush_messages=config.get_int("flush.messages"),
            flush_ms=config.get_int("flush.ms"),
            retention_bytes=config.get_int("retention.bytes"),
            retention_ms=config.get_int("retention.ms"),
            max_message_bytes=config.get_int("max.message.bytes"),
            max_message_uncompressed_bytes=config.get_int("max.message.uncompressed.bytes"),
            file_delete_delay_ms=config.get_int("file.delete.delay.ms"),
            delete_retention_ms=config.get_int("delete.retention.ms"),
            min_compaction_lag_ms=config.get_int("min.compaction.lag.ms"),
            max_compaction_lag_ms=config.get_int("max.compaction.lag.ms"),
            min_cleanable_dirty_ratio=config.get_double("min.cleanable.dirty.ratio"),
            compact="compact" in policy,
            delete="delete" in policy,
            compression_type=compression,
            compression_level=level,
            preallocate=config.get_bool("preallocate"),
            message_timestamp_type=config.get_str("message.timestamp.type"),
            message_timestamp_before_max_ms=config.get_int("message.timestamp.before.max.ms"),
            message_timestamp_after_max_ms=config.get_int("message.timestamp.after.max.ms"),
            remote_storage_enable=config.get_bool("remote.storage.enable"),
            remote_log_copy_disable=config.get_bool("remote.log.copy.disable"),
            remote_log_delete_on_disable=config.get_bool("remote.log.delete.on.disable"),
            local_retention_ms=config.get_int("local.retention.ms"),
            local_retention_bytes=config.get_int("local.retention.bytes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerSettings:
    """The broker settings that the log manager and the cleaner use.

    Names are Kafka's, with ``_`` instead of ``.``.
    """

    retention_check_interval_ms: int = 300_000  # log.retention.check.interval.ms
    flush_offset_checkpoint_interval_ms: int = 60_000  # log.flush.offset.checkpoint.interval.ms
    flush_start_offset_checkpoint_interval_ms: int = 60_000  # log.flush.start.offset.checkpoint.interval.ms
    high_watermark_checkpoint_interval_ms: int = 5000  # replica.high.watermark.checkpoint.interval.ms
    producer_id_expiration_ms: int = 86_400_000  # producer.id.expiration.ms
    producer_id_expiration_check_interval_ms: int = 600_000  # producer.id.expiration.check.interval.ms
    initial_task_delay_ms: int = 30_000  # log.initial.task.delay.ms
    cleaner_enable: bool = True  # log.cleaner.enable
    cleaner_dedupe_buffer_size: int = 128 * 1024 * 1024  # log.cleaner.dedupe.buffer.size
    cleaner_io_buffer_load_factor: float = 0.9  # log.cleaner.io.buffer.load.factor
    cleaner_io_max_bytes_per_second: float = float("inf")  # log.cleaner.io.max.bytes.per.second
    cleaner_backoff_ms: int = 15_000  # log.cleaner.backoff.ms

    @classmethod
    def from_config(cls, config: TypedConfig) -> LogManagerSettings:
        """Reads the broker keys named above."""
        return cls(
            retention_check_interval_ms=config.get_int("log.retention.check.interval.ms"),
            flush_offset_checkpoint_interval_ms=config.get_int("log.flush.offset.checkpoint.interval.ms"),
            flush_start_offset_checkpoint_interval_ms=config.get_int("log.flush.start.offset.checkpoint.interval.ms"),
            high_watermark_checkpoint_interval_ms=config.get_int("replica.high.watermark.checkpoint.interval.ms"),
            producer_id_expiration_ms=config.get_int("producer.id.expiration.ms"),
            producer_id_expiration_check_interval_ms=config.get_int("producer.id.expiration.check.interval.ms"),
            initial_task_delay_ms=config.get_int("log.initial.task.delay.ms"),
            cleaner_enable=config.get_bool("log.cleaner.enable"),
            cleaner_dedupe_buffer_size=config.get_int("log.cleaner.dedupe.buffer.size"),
            cleaner_io_buffer_load_factor=config.get_double("log.cleaner.io.buffer.load.factor"),
            cleaner_io_max_bytes_per_second=config.get_double("log.cleaner.io.max.bytes.per.second"),
            cleaner_backoff_ms=config.get_int("log.cleaner.backoff.ms"),
        )
