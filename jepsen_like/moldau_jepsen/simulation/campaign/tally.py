"""Adds up the results of a campaign for its report.

Memory does not grow with the number of seeds: only as many failed seeds as the page shows are kept with all their
findings; of the others little more than number and kind is kept.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from moldau_jepsen.coverage.coverage import SITUATIONS, Coverage
from moldau_jepsen.coverage.rows import machine_rows, message_rows
from moldau_jepsen.reports.chaos import describe
from moldau_jepsen.reports.simulation import (
    FAILURES_SHOWN,
    CampaignReport,
    FailedSeed,
    FaultRow,
    Finding,
    ProfileRow,
    SeedRun,
    Spread,
)
from moldau_jepsen.simulation.campaign.figures import QUANTILES, Histogram, bucket_end_ms
from moldau_jepsen.simulation.guidance.kinds import kind_of
from moldau_jepsen.simulation.mutants.mutants import finder_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_jepsen.reports.consumption import GroupReads
    from moldau_jepsen.reports.simulation import ControlRow
    from moldau_jepsen.simulation.campaign.options import Result

OPERATIONS_SHOWN = 12
GAP_FACTOR = 2 ** (1 / 3)
"""Buckets of stretches without an acknowledged write grow by this factor, from one second on."""


class Tally:
    """The sums of a campaign."""

    def __init__(self, processes: int) -> None:
        """Starts without runs; ``processes`` is for the report."""
        self._processes = processes
        self.coverage = Coverage()
        self.failures: list[FailedSeed] = []
        """By seed."""
        self.seeds = 0
        self.virtual_s = self.busy_s = 0.0
        self.faults = self.acknowledged = self.polled = self.steps = 0
        self._cores: Counter[bool] = Counter()  # whether a node stayed outside
        self._first: int | None = None
        self._last = 0
        self._operations: Counter[str] = Counter()
        self._strikes: Counter[str] = Counter()
        self._planned: Counter[str] = Counter()
        self._runs_with: Counter[str] = Counter()
        self._profiles: dict[str, Counter[str]] = {}
        self._latency = Histogram()
        self._lag = Histogram()
        self._groups: dict[str, GroupReads] = {}
        self._unread = 0
        self._rates: Counter[float] = Counter()
        self._gaps: Counter[float] = Counter()
        self._without_gap = 0
        self._first_run: SeedRun | None = None
        self._most_faults: SeedRun | None = None

    def add(self, result: Result, folder: str = "") -> None:
        """Takes in the result of a seed; ``folder`` is where a failed one was written."""
        self.seeds += 1
        self._first = result.seed if self._first is None else min(self._first, result.seed)
        self._last = max(self._last, result.seed)
        self.virtual_s += result.virtual_seconds
        self.busy_s += result.wall_seconds
        self.steps += result.steps
        self.faults += result.faults
        self.acknowledged += result.acknowledged
        self.polled += result.polled
        self.coverage.add(result.coverage)
        self._strikes.update(result.faults_by_kind)
        if result.outside is not None:
            self._cores[result.outside > 0] += 1
        self._planned.update(result.planned_by_kind)
        self._runs_with.update(kind for kind, count in result.faults_by_kind.items() if count)
        self._profiles.setdefault(kind_of(result), Counter()).update(
            seeds=1,
            chosen=int(bool(result.kind)),
            turns=result.steps,
            situations=sum(one.machine == SITUATIONS for one, count in result.coverage.transitions.items() if count),
        )
        figures = result.figures
        self._operations.update(figures.operations)
        self._latency.merge(figures.latency)
        self._lag.merge(figures.lag)
        for group in figures.groups:
            before = self._groups.get(group.group)
            self._groups[group.group] = group if before is None else before.plus(group)
        self._unread += figures.unread
        self._rates[float(f"{figures.per_second:.2g}")] += 1
        self._gaps.update(round(seconds, 1) for seconds in figures.dark_s)
        self._without_gap += not figures.dark_s
        if result.passed:
            self._choose(result)
        else:
            bisect.insort(self.failures, failed_seed(result, folder), key=lambda failure: failure.seed)
            self.failures[FAILURES_SHOWN:] = [_brief(failure) for failure in self.failures[FAILURES_SHOWN:]]

    def lacks_folder(self, seed: int) -> None:
        """Records that the files of a failed seed could not be written."""
        self.failures = [replace(one, folder="") if one.seed == seed else one for one in self.failures]

    def _choose(self, result: Result) -> None:
        """Chooses two passed runs of a campaign for drawing: an early one, and the one with most faults."""
        if result.series is None:
            return
        run = SeedRun(seed=result.seed, faults=result.faults, replay=result.replay_command, series=result.series)
        if self._first_run is None or run.seed < self._first_run.seed:
            self._first_run = run
        most = self._most_faults
        if most is None or (run.faults, -run.seed) > (most.faults, -most.seed):
            self._most_faults = run

    def report(
        self,
        wall_seconds: float,
        controls: Sequence[ControlRow] = (),
        notes: Sequence[str] = (),
        *,
        unfinished: str = "",
    ) -> CampaignReport:
        """Returns the report of what was added so far."""
        return CampaignReport(
            seeds=self.seeds,
            seed_first=self._first or 0,
            seed_last=self._last,
            processes=self._processes,
            virtual_seconds=self.virtual_s,
            wall_seconds=wall_seconds,
            busy_seconds=self.busy_s,
            steps=self.steps,
            faults=self.faults,
            cores=self._cores.total(),
            cores_without_some=self._cores[True],
            acknowledged=self.acknowledged,
            polled=self.polled,
            operations=dict(sorted(self._operations.items())),
            fault_rows=tuple(
                FaultRow(kind=kind, planned=count, strikes=self._strikes[kind], runs=self._runs_with[kind])
                for kind, count in sorted(self._planned.items(), key=lambda row: (-self._strikes[row[0]], row[0]))
            ),
            latency=_latency_spread(self._latency),
            lag=_latency_spread(self._lag),
            groups=tuple(group for _, group in sorted(self._groups.items())),
            unread=self._unread,
            throughput=_spread(self._rates, "records/s"),
            unavailability=_gap_spread(self._gaps),
            runs_without_gap=self._without_gap,
            messages=message_rows(self.coverage),
            machines=machine_rows(self.coverage),
            failures=tuple(self.failures),
            runs=tuple(dict.fromkeys(run for run in (self._first_run, self._most_faults) if run is not None)),
            controls=tuple(controls),
            profiles=tuple(
                ProfileRow(name=name, **counts)
                for name, counts in sorted(self._profiles.items(), key=lambda row: (-row[1]["seeds"], row[0]))
            ),
            notes=tuple(notes),
            unfinished=unfinished,
        )


def failed_seed(result: Result, folder: str) -> FailedSeed:
    """Returns a failed run in the form of the page; ``folder`` is the path of its folder."""
    return FailedSeed(
        seed=result.seed,
        replay=result.replay_command,
        folder=folder,
        findings=findings_of(result),
        series=result.series,
    )


def _brief(failure: FailedSeed) -> FailedSeed:
    """A failed seed that the page only counts."""
    if all(not finding.text for finding in failure.findings):
        return failure
    kinds = dict.fromkeys(finding.kind for finding in failure.findings)
    return replace(failure, findings=tuple(Finding(kind=kind, text="") for kind in kinds), series=None)


def findings_of(result: Result) -> tuple[Finding, ...]:
    """Returns the findings of a failed run, with the client operations behind the checkers' findings."""
    operations = {operation.index: operation for operation in result.history}
    behind = {f"at the end: {one.kind.value}: {one.text}": one for one in result.anomalies}
    return tuple(
        Finding(
            kind=finder_of(violation),
            text=violation,
            operations=tuple(
                describe(operations[index], anomaly)
                for index in (() if anomaly is None else anomaly.operations[:OPERATIONS_SHOWN])
                if index in operations
            ),
        )
        for violation, anomaly in ((each, behind.get(each)) for each in result.violations)
    )


def _latency_spread(latency: Histogram) -> Spread:
    counts = latency.counts
    buckets = tuple(
        (bucket_end_ms(bucket), counts[bucket]) for bucket in range(min(counts, default=0), max(counts, default=-1) + 1)
    )
    return Spread(
        unit="ms",
        count=counts.total(),
        quantiles={name: latency.quantile_ms(share) for name, share in QUANTILES.items()},
        buckets=buckets,
    )


def _spread(values: Counter[float], unit: str) -> Spread:
    return Spread(unit=unit, count=values.total(), quantiles=_quantiles(values))


def _gap_spread(gaps: Counter[float]) -> Spread:
    counts: Counter[int] = Counter()
    for seconds, count in gaps.items():
        counts[int(math.log(max(seconds, 1.0), GAP_FACTOR))] += count
    buckets = tuple((GAP_FACTOR ** (bucket + 1), counts[bucket]) for bucket in range(max(counts, default=-1) + 1))
    return Spread(unit="s", count=gaps.total(), quantiles=_quantiles(gaps), buckets=buckets)


def _quantiles(values: Counter[float]) -> dict[str, float]:
    """Quantiles of counted values, by name."""
    found: dict[str, float] = {}
    total = values.total()
    ordered = sorted(values)
    for name, share in QUANTILES.items():
        seen = 0
        for value in ordered:
            seen += values[value]
            if seen >= share * total:
                found[name] = value
                break
        else:
            found[name] = 0.0
    return found
