"""The page of a chaos run: the faults over throughput, latency, replicas and high watermark, and every anomaly with
what lies behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from moldau_jepsen.history import Kind, Operation, Poll, Send, Status
from moldau_jepsen.reports.chart import RIGHT, WIDTH, Span, nice_step, timeline
from moldau_jepsen.reports.page import cards, page, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau_jepsen.chaos.nemesis import FaultEvent
    from moldau_jepsen.checkers import Anomaly, Verdict

UNAVAILABLE_MS = 1_000.0
"""A stretch without any acknowledged write that is longer than this counts as unavailability."""
OPERATIONS_SHOWN = 12
RECORDS_SHOWN = 20
ANOMALIES_SHOWN = 50
LASTING_SHARE = 0.8
"""A fault that lasts for more of the run is no stretch that could be told from the rest: it is not shaded."""
LANE_LEFT = 160
LANE_HEIGHT = 22
LANE_AXIS = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSample:
    """What the brokers said about the workload's partitions at one moment."""

    at_ms: float
    in_sync_min: int  # smallest in-sync set
    leaderless: int  # partitions without a leader
    high_watermark_sum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Figures of a history, one point a second; times in seconds."""

    acknowledged: Sequence[tuple[float, float]]
    latency_p99_ms: Sequence[tuple[float, float]]
    unavailable: Sequence[tuple[float, float]]  # begin and end of each stretch
    latency_ms: Mapping[str, float]  # p50, p99, p99.9, max over the whole run


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosReport:
    """All that the page tells."""

    title: str
    verdict: Verdict
    series: Series
    faults: Sequence[FaultEvent]
    samples: Sequence[ClusterSample]
    duration_s: float
    settings: Mapping[str, str]
    operations: Mapping[int, Operation] = field(default_factory=dict)
    """The operations that anomalies name."""
    notes: Sequence[str] = ()
    deaths: Sequence[str] = ()
    """Nodes that ended though nobody had struck them, and nodes that did not come back."""


class Latencies:
    """Counts of times, rounded to three significant digits: as small for ten million as for ten thousand."""

    __slots__ = ("_counts", "_max", "_total")

    def __init__(self) -> None:
        """No times."""
        self._counts: dict[float, int] = {}
        self._total = 0
        self._max = 0.0

    def add(self, ms: float, count: int = 1) -> None:
        """Adds a time, so many times over."""
        key = round(ms, 2 - math.floor(math.log10(ms))) if ms > 0 else 0.0
        self._counts[key] = self._counts.get(key, 0) + count
        self._total += count
        self._max = max(self._max, ms)

    def percentile(self, share: float) -> float:
        """Nearest-rank percentile; 0 for none. The greatest time is told exactly."""
        rank = min(self._total, max(1, math.ceil(share * self._total)))
        if rank == self._total:
            return self._max
        passed = 0
        for key in sorted(self._counts):
            passed += self._counts[key]
            if passed >= rank:
                return key
        raise AssertionError("the ranks of all times are below their number")


def series_of(history: Iterable[Operation], until_s: float = math.inf) -> Series:
    """Computes the figures of a history in one pass. ``until_s`` is when the load ended: silence after it is no
    unavailability.
    """
    per_second: dict[int, Latencies] = {}
    acknowledged: dict[int, int] = {}
    unavailable: list[tuple[float, float]] = []
    last_ack = None
    latencies = Latencies()
    for operation in history:
        if operation.kind not in (Kind.SEND, Kind.TRANSACTION) or operation.status is not Status.OK:
            continue
        count = sum(1 for _ in operation.sends)
        if not count:
            continue
        latency = operation.ended_ms - operation.begun_ms
        latencies.add(latency)
        second = int(operation.ended_ms // 1000)
        per_second.setdefault(second, Latencies()).add(latency, count)
        acknowledged[second] = acknowledged.get(second, 0) + count
        if last_ack is not None and last_ack < until_s * 1000 and operation.ended_ms - last_ack > UNAVAILABLE_MS:
            unavailable.append((last_ack / 1000, min(operation.ended_ms / 1000, until_s)))
        last_ack = operation.ended_ms
    seconds = range(max(acknowledged, default=-1) + 1)
    empty = Latencies()
    return Series(
        acknowledged=[(second, float(acknowledged.get(second, 0))) for second in seconds],
        latency_p99_ms=[(second, per_second.get(second, empty).percentile(0.99)) for second in seconds],
        unavailable=unavailable,
        latency_ms={
            "p50": latencies.percentile(0.5),
            "p99": latencies.percentile(0.99),
            "p99.9": latencies.percentile(0.999),
            "max": latencies.percentile(1),
        },
    )


def chaos_page(report: ChaosReport) -> str:
    """Draws the whole page."""
    verdict = report.verdict
    if verdict.valid:
        headline = '<p class="verdict good">No anomaly: nothing acknowledged was lost, reordered or duplicated.</p>'
    else:
        wrong = ", ".join(sorted({one.kind.value for one in verdict.anomalies if not one.allowed}))
        headline = f'<p class="verdict bad">Anomalies found: {escape(wrong)}</p>'
    headline += "".join(f'<p class="verdict bad">{escape(death)}</p>' for death in report.deaths)
    body = [headline, _cards(report), _charts(report), _fault_table(report.faults), _anomalies(report)]
    body.append("<h2>Run</h2>" + table(("setting", "value"), sorted(report.settings.items()), words=(1,)))
    body.extend(f"<p class='hint'>{escape(note)}</p>" for note in report.notes)
    return page(report.title, "\n".join(body))


def _cards(report: ChaosReport) -> str:
    figures, series = report.verdict.figures, report.series
    dark = sum(end - begin for begin, end in series.unavailable)
    entries = [
        ("operations", f"{figures.operations:,}", f"{figures.partitions} partitions"),
        ("writes acknowledged", f"{figures.sends_acknowledged:,}", f"{figures.sends_failed:,} failed for certain"),
        ("writes of unknown outcome", f"{figures.sends_unknown:,}", "time-outs and lost connections"),
        ("records read", f"{figures.records_polled:,}", f"{figures.values_seen:,} distinct"),
        ("faults", f"{len(report.faults)}", f"in {report.duration_s:,.0f} s"),
        ("no write acknowledged for", f"{dark:.1f} s", f"stretches over 1 s: {len(series.unavailable)}"),
        (
            "acknowledgement",
            f"{series.latency_ms['p50']:.1f} ms",
            f"median; p99 {series.latency_ms['p99']:.0f} ms, worst {series.latency_ms['max']:.0f} ms",
        ),
    ]
    return cards(entries)


def _charts(report: ChaosReport) -> str:
    struck = [
        fault for fault in report.faults if fault.end_ms - fault.begin_ms < LASTING_SHARE * report.duration_s * 1000
    ]
    spans = [Span(start_s=fault.begin_ms / 1000, end_s=fault.end_ms / 1000, label=_title(fault)) for fault in struck]
    dark = [Span(start_s=begin, end_s=end, label="no write acknowledged") for begin, end in report.series.unavailable]
    samples = report.samples
    charts = [
        ("Acknowledged writes", "records/s", report.series.acknowledged),
        ("Time to acknowledge, 99th percentile of each second", "ms", report.series.latency_p99_ms),
    ]
    if samples:
        charts += [
            ("Smallest in-sync set", "replicas", [(one.at_ms / 1000, float(one.in_sync_min)) for one in samples]),
            (
                "Partitions without a leader",
                "partitions",
                [(one.at_ms / 1000, float(one.leaderless)) for one in samples],
            ),
            (
                "High watermarks, sum over partitions",
                "records",
                [(one.at_ms / 1000, float(one.high_watermark_sum)) for one in samples],
            ),
        ]
    ends = [points[-1][0] for _, _, points in charts if points]
    until_s = max([report.duration_s, *ends, *(fault.end_ms / 1000 for fault in report.faults)])
    drawn = "".join(
        f"<h2>{escape(title)}</h2>" + timeline(points, marks=(), spans=spans, unit=unit, title=title, until_s=until_s)
        for title, unit, points in charts
    )
    return _lanes(report.faults, dark, until_s) + drawn


def _lanes(faults: Sequence[FaultEvent], dark: Sequence[Span], until_s: float) -> str:
    """One row for each kind of fault, and one for the time without an acknowledged write."""
    rows: dict[str, list[Span]] = {}
    for fault in sorted(faults, key=lambda one: one.begin_ms):
        span = Span(start_s=fault.begin_ms / 1000, end_s=fault.end_ms / 1000, label=_title(fault))
        rows.setdefault(fault.kind, []).append(span)
    if dark:
        rows["no write acknowledged"] = list(dark)
    if not rows:
        return ""
    wide = WIDTH - LANE_LEFT - RIGHT
    height = len(rows) * LANE_HEIGHT + LANE_AXIS

    def x_of(at_s: float) -> float:
        return LANE_LEFT + wide * min(max(at_s / until_s, 0.0), 1.0)

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Faults over time">']
    for number, (kind, spans) in enumerate(rows.items()):
        y = number * LANE_HEIGHT
        kind_class = "lane dark" if kind not in {fault.kind for fault in faults} else "lane"
        parts.append(f'<text x="{LANE_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(kind)}</text>')
        parts.append(f'<line class="grid" x1="{LANE_LEFT}" y1="{y + 20}" x2="{LANE_LEFT + wide}" y2="{y + 20}"/>')
        for span in spans:
            left, right = x_of(span.start_s), x_of(span.end_s)
            parts.append(
                f'<rect class="{kind_class}" x="{left:.1f}" y="{y + 3}" width="{max(right - left, 2):.1f}" height="14">'
                f"<title>{escape(span.label)}</title></rect>"
            )
    step = nice_step(until_s, 10)
    for index in range(int(until_s / step + 1e-9) + 1):
        x = x_of(index * step)
        parts.append(f'<text x="{x:.1f}" y="{height - 4}" text-anchor="middle">{index * step:g} s</text>')
    parts.append("</svg>")
    style = "<style>.lane { fill: var(--fault); opacity: .75 } .lane.dark { fill: var(--soft) }</style>"
    return f"<h2>What struck when</h2>{style}" + "\n".join(parts)


def _title(fault: FaultEvent) -> str:
    return f"{fault.kind} {fault.target} {_names(fault)} {fault.detail}".strip()


def _names(fault: FaultEvent) -> str:
    return ", ".join(str(node) for node in fault.nodes)


def _fault_table(faults: Sequence[FaultEvent]) -> str:
    rows = [
        (
            fault.kind,
            fault.target,
            _names(fault),
            f"{fault.begin_ms / 1000:.1f}",
            f"{fault.end_ms / 1000:.1f}",
            fault.detail,
        )
        for fault in faults
    ]
    columns = ("fault", "target", "nodes", "begin, s", "end, s", "what was done")
    return "<h2>Faults</h2>" + table(columns, rows, words=(1, 2, 5))


def _anomalies(report: ChaosReport) -> str:
    verdict = report.verdict
    if not verdict.anomalies:
        return ""
    parts = ["<h2>Anomalies</h2>"]
    counts = sorted(verdict.counts.items(), key=lambda item: item[0].value)
    parts.append(table(("kind", "count"), [(kind.value, f"{count:,}") for kind, count in counts]))
    for allowed in (False, True):
        shown = [anomaly for anomaly in verdict.anomalies if anomaly.allowed is allowed]
        texts = "".join(_anomaly(anomaly, report.operations) for anomaly in shown[:ANOMALIES_SHOWN])
        if shown and allowed:
            texts = f"<details><summary>{len(shown)} that the configuration allows</summary>{texts}</details>"
        parts.append(f'<div class="operations">{texts}</div>')
        if len(shown) > ANOMALIES_SHOWN:
            parts.append(f'<p class="hint">{len(shown) - ANOMALIES_SHOWN} more are in verdict.json.</p>')
    return "".join(parts)


def _anomaly(anomaly: Anomaly, operations: Mapping[int, Operation]) -> str:
    where = f" in {anomaly.partition.topic}-{anomaly.partition.partition}" if anomaly.partition is not None else ""
    allowed = " (allowed by the configuration)" if anomaly.allowed else ""
    lines = [
        f"<li>{escape(describe(operations[index]))}</li>"
        for index in anomaly.operations[:OPERATIONS_SHOWN]
        if index in operations
    ]
    return (
        f"<p><b>{escape(anomaly.kind.value)}</b>{escape(where + allowed)}: {escape(anomaly.text)}</p>"
        f"<ul>{''.join(lines)}</ul>"
    )


def describe(operation: Operation) -> str:
    """One line that tells an operation."""
    parts = []
    for part in operation.operations:
        if isinstance(part, Send):
            at = "unknown offset" if part.offset is None else f"offset {part.offset}"
            parts.append(f"send {part.value} to {part.partition.topic}-{part.partition.partition} at {at}")
        else:
            parts.append(f"poll {_poll_text(part)}")
    end = "" if not operation.error else f": {operation.error}"
    return (
        f"operation {operation.index} of process {operation.process}, "
        f"{operation.begun_ms / 1000:.3f} s to {operation.ended_ms / 1000:.3f} s, {operation.kind.value} "
        f"{operation.status.value}{end}; {'; '.join(parts)}"
    )


def _poll_text(poll: Poll) -> str:
    texts = []
    for partition, pairs in poll.records:
        shown = ", ".join(f"{offset}={value}" for offset, value in pairs[:RECORDS_SHOWN])
        more = f" and {len(pairs) - RECORDS_SHOWN} more" if len(pairs) > RECORDS_SHOWN else ""
        texts.append(f"{partition.topic}-{partition.partition}: {shown}{more}")
    return "; ".join(texts)
