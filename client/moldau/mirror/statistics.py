"""The numbers of a running mirror, and their metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.cluster.metadata import TopicPartition
    from moldau.runtime.telemetry.metrics import Registry


@dataclass(slots=True, kw_only=True)
class PartitionState:
    """One partition of a source, as of the last poll; offsets are the source's, -1 where they are not known."""

    position: int = -1
    end_offset: int = -1
    failures: int = 0
    """Failures in a row; the partition is tried again later."""

    @property
    def lag(self) -> int:
        """Records of the source that the target has not acknowledged."""
        return max(self.end_offset - self.position, 0) if min(self.end_offset, self.position) >= 0 else 0


@dataclass(slots=True, kw_only=True)
class SourceStatistics:
    """The numbers of one source; counters only grow."""

    alias: str
    is_running: bool = False
    """Whether both clusters have answered and partitions are mirrored."""
    ended_early: bool = False
    """Whether the mirror was stopped and did not get its last outcomes in time."""
    records: int = 0
    bytes: int = 0
    batches_passed: int = 0
    batches_encoded: int = 0
    records_refused: int = 0
    """Records that had been in the target."""
    transactions: int = 0
    offset_syncs: int = 0
    checkpoints: int = 0
    heartbeats: int = 0
    failures: int = 0
    restarts: int = 0
    last_error: str = ""
    partitions: dict[TopicPartition, PartitionState] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """Records of all partitions that the target has not acknowledged."""
        return sum(each.lag for each in self.partitions.values())

    def state(self, partition: TopicPartition) -> PartitionState:
        """Returns the state of a partition, made on first use."""
        return self.partitions.setdefault(partition, PartitionState())


PARTITIONS_SHOWN_MAX = 5_000
"""Partitions that have metrics of their own; the gauges of the sources count all. Deleted ones give way to new ones."""

COUNTERS = {
    "records": ("moldau_mirror_records_total", "Records acknowledged by the target."),
    "bytes": ("moldau_mirror_bytes_total", "Bytes of batches acknowledged by the target, compressed."),
    "batches_passed": ("moldau_mirror_batches_passed_total", "Batches that were copied without being decoded."),
    "batches_encoded": ("moldau_mirror_batches_encoded_total", "Batches that were decoded and encoded again."),
    "records_refused": ("moldau_mirror_records_refused_total", "Records not copied: they had been in the target."),
    "transactions": ("moldau_mirror_transactions_total", "Transactions committed in the target."),
    "offset_syncs": ("moldau_mirror_offset_syncs_total", "Offset syncs written."),
    "checkpoints": ("moldau_mirror_checkpoints_total", "Checkpoints written."),
    "heartbeats": ("moldau_mirror_heartbeats_total", "Heartbeats written."),
    "failures": ("moldau_mirror_failures_total", "Failures after which something is tried again."),
    "restarts": ("moldau_mirror_restarts_total", "Starts of a source after a failure of the whole source."),
}
"""Metric name and help of each counter."""


def register_metrics(registry: Registry, sources: list[SourceStatistics]) -> None:
    """Adds the metrics of all sources; ``source`` is a label, for partitions also ``topic`` and ``partition``."""
    counters = {name: registry.counter(metric, text, "source") for name, (metric, text) in COUNTERS.items()}
    running = registry.gauge("moldau_mirror_running", "1 while the source is mirrored.", "source")
    total = registry.gauge("moldau_mirror_source_lag_records", "Sum of the lags of all partitions.", "source")
    labels = ("source", "topic", "partition")
    lag = registry.gauge("moldau_mirror_lag_records", "Records that the target has not acknowledged.", *labels)
    failing = registry.gauge("moldau_mirror_partition_failures", "Failures in a row of a partition.", *labels)

    shown: dict[tuple[str, str, int], None] = {}

    def update() -> None:
        for source in sources:
            for name, family in counters.items():
                family.labels(source.alias).value = getattr(source, name)
            running.labels(source.alias).set(source.is_running)
            total.labels(source.alias).set(source.lag)
        present = {
            (source.alias, partition.topic, partition.partition): state
            for source in sources
            for partition, state in source.partitions.items()
        }
        gone = [values for values in shown if values not in present]
        for values in gone:  # partitions that are no longer mirrored have no lag
            lag.labels(*values).set(0)
            failing.labels(*values).set(0)
        for values, state in present.items():
            if values not in shown and len(shown) >= PARTITIONS_SHOWN_MAX:
                if not gone:
                    continue
                former = gone.pop(0)
                lag.remove(*former)
                failing.remove(*former)
                del shown[former]
            shown[values] = None
            lag.labels(*values).set(state.lag)
            failing.labels(*values).set(state.failures)

    registry.on_expose(update)
