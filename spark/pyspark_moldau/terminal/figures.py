"""The figures of a query's micro-batches, from Spark's progress reports. Pure.

The lag is how many offsets the log had, beyond those that the query had read, when the report was made: Spark's report
has the end of the log (``latestOffset``) and the end of the micro-batch (``endOffset``) as the source gave them.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark_moldau.source.core.offsets import from_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark_moldau.source.core.offsets import Offsets

BATCHES_MAX: Final = 10_000
"""Figures of older micro-batches are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch."""

    number: int
    started: str  # ISO 8601, as Spark writes it
    rows: int
    rows_per_second: float
    duration_ms: int
    lag: int | None  # None where the report does not have it


class History:
    """The micro-batches of one run of a query, in order, and their sums."""

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque(maxlen=BATCHES_MAX)
        self.count = 0
        self.rows = 0
        self.busy_ms = 0

    def add(self, reports: Iterable[Mapping[str, object]]) -> None:
        """Takes progress reports; one that was taken before is left out."""
        for report in reports:
            batch = batch_of(report)
            last = self.batches[-1] if self.batches else None
            if last is not None and batch.number <= last.number:
                # Idle triggers have the number of the batch that comes next: the newest one says the present lag, and
                # the batch itself takes their place.
                if batch.number < last.number or last.rows:
                    continue
                self.batches.pop()
                self.count -= 1
                self.busy_ms -= last.duration_ms
            self.batches.append(batch)
            self.count += 1
            self.rows += batch.rows
            self.busy_ms += batch.duration_ms


def batch_of(report: Mapping[str, object]) -> Batch:
    """Reads one of Spark's progress reports, in the form of its JSON."""
    durations = report.get("durationMs")
    duration = durations.get("triggerExecution", 0) if isinstance(durations, dict) else 0
    return Batch(
        number=int(str(report["batchId"])),
        started=str(report["timestamp"]),
        rows=int(_over_sources(report, "numInputRows")),
        rows_per_second=_over_sources(report, "processedRowsPerSecond"),
        duration_ms=int(str(duration)),
        lag=lag_of(report),
    )


def _over_sources(report: Mapping[str, object], name: str) -> float:
    """Returns a figure of a report; those of Spark Connect have it for each source only."""
    if name in report:
        return float(str(report[name]))
    sources = report.get("sources")
    return sum(float(str(each.get(name, 0))) for each in (sources if isinstance(sources, list) else []))


def lag_of(report: Mapping[str, object]) -> int | None:
    """Returns the lag over all sources that report their latest offset; None where none does."""
    sources = report.get("sources")
    lags = []
    for source in sources if isinstance(sources, list) else []:
        latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        if latest is not None and end is not None:
            lags.append(sum(max(0, offset - end.get(partition, 0)) for partition, offset in latest.items()))
    return sum(lags) if lags else None


def _offsets(value: object) -> Offsets | None:
    """Returns offsets of a report, where they may be an object or its text; None for another source's."""
    try:
        document = json.loads(value) if isinstance(value, str) else value
        return from_checkpoint(document) if isinstance(document, dict) else None
    except ValueError:  # of JSON, or of a source with another form of offsets
        return None
