"""The page of a chaos run.

It shows the faults over throughput, latency, replicas and high watermark, and every anomaly with its evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from moldau_jepsen.history import Operation, Poll, Send
from moldau_jepsen.reports.chart import timeline
from moldau_jepsen.reports.consumption import groups_table
from moldau_jepsen.reports.controls import ControlRow, control_headline, controls_section
from moldau_jepsen.reports.coverage import machines_section, messages_section
from moldau_jepsen.reports.over_time import CHART, FaultSpan, RunSeries, over_time
from moldau_jepsen.reports.page import cards, origin_line, page, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau_jepsen.chaos.nemesis.nemesis import FaultEvent
    from moldau_jepsen.checkers import Anomaly, Verdict
    from moldau_jepsen.reports.consumption import GroupFigures
    from moldau_jepsen.reports.coverage import MachineRows, MessageRow
    from moldau_jepsen.reports.load import Series
    from moldau_jepsen.reports.over_time import Active, PartitionSeries
    from moldau_jepsen.reports.page import Origin

OPERATIONS_SHOWN = 12
RECORDS_SHOWN = 20
NEAR = 3
"""Records of a long poll are shown that are at most so many offsets from those that an anomaly is about."""
ANOMALIES_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSample:
    """The brokers' reports on the workload's partitions at one moment."""

    at_ms: float
    in_sync_min: int  # smallest in-sync set
    leaderless: int  # partitions without a leader
    high_watermark_sum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosReport:
    """The content of the page."""

    title: str
    origin: Origin
    """Of the run."""
    verdict: Verdict
    series: Series
    faults: Sequence[FaultEvent]
    samples: Sequence[ClusterSample]
    duration_s: float
    settings: Mapping[str, str]
    reads: GroupFigures | None = None
    """The observations of groups, if they were measured."""
    operations: Mapping[int, Operation] = field(default_factory=dict)
    """The operations that anomalies name."""
    notes: Sequence[str] = ()
    partitions: tuple[PartitionSeries, ...] = ()
    """Of the workload, one by one; empty where only sums are known."""
    active: tuple[Active, ...] = ()
    """The leaders of the quorum over time."""
    messages: tuple[MessageRow, ...] = ()
    messages_hint: str = ""
    messages_missing: str = ""
    """Why messages were not observed, if they were not."""
    machines: tuple[MachineRows, ...] = ()
    machines_hint: str = ""
    deaths: Sequence[str] = ()
    """Nodes that ended without a fault, and nodes that did not come back."""
    control: ControlRow | None = None
    """The purpose of this run as a control, if it is one."""
    controls: Sequence[ControlRow] = ()
    """The negative controls of this run."""
    judged: Origin | None = None
    """Of a verdict that was found later than the run ended."""


FAILED = "The run failed, although the history of sends and polls has no anomaly:"
CALM = "No fault took effect: what this run shows is how the cluster serves while all is well."


def chaos_page(report: ChaosReport) -> str:
    """Draws the whole page."""
    verdict = report.verdict
    if verdict.valid and report.deaths:  # what members of groups, the register and the topics saw is among them
        headline = f'<p class="verdict bad">{FAILED}</p>'
    elif verdict.valid:
        headline = '<p class="verdict good">No anomaly: nothing acknowledged was lost, reordered or duplicated.</p>'
    else:
        wrong = ", ".join(sorted({one.kind.value for one in verdict.anomalies if not one.allowed}))
        headline = f'<p class="verdict bad">Anomalies found: {escape(wrong)}</p>'
    headline += "".join(f'<p class="verdict bad">{escape(death)}</p>' for death in report.deaths)
    if report.control is None and not any(fault.took_effect for fault in report.faults):
        headline += f"<p class='hint'>{CALM}</p>"
    headline += control_headline(report.control, report.controls)
    body = [headline, _cards(report), _charts(report), _reads(report.reads)]
    body += [_fault_tables(report.faults), _anomalies(report)]
    if report.control is None:
        body.append(controls_section(report.controls))
    body.append(_coverage(report))
    body.append("<h2>Run</h2>" + table(("setting", "value"), sorted(report.settings.items()), words=(1,)))
    body.extend(f"<p class='hint'>{escape(note)}</p>" for note in report.notes)
    if report.judged is not None:
        body.append(origin_line(report.judged, "judged again"))
    return page(report.title, "\n".join(body), report.origin)


def _coverage(report: ChaosReport) -> str:
    machines = machines_section(report.machines, report.machines_hint) if report.machines else ""
    if report.messages_missing:
        reason = f"<p class='hint'>Not observed: {escape(report.messages_missing)}.</p>"
        return f"{machines}<h2>Messages</h2>{reason}"
    return machines + (messages_section(report.messages, report.messages_hint) if report.messages else "")


def _cards(report: ChaosReport) -> str:
    figures, series, reads = report.verdict.figures, report.series, report.reads
    effective = sum(fault.took_effect for fault in report.faults)
    entries = [
        ("operations", f"{figures.operations:,}", f"{figures.partitions} partitions"),
        ("writes acknowledged", f"{figures.sends_acknowledged:,}", f"{figures.sends_failed:,} failed for certain"),
        ("writes of unknown outcome", f"{figures.sends_unknown:,}", "time-outs and lost connections"),
        ("records read", f"{figures.records_polled:,}", f"{figures.values_seen:,} distinct"),
        ("leader epochs", f"{figures.leaderships:,}", "of partitions and the quorum, whose leader is known"),
        ("faults", f"{effective}", f"in {report.duration_s:,.0f} s{_missed_text(len(report.faults) - effective)}"),
        (
            "no write acknowledged for",
            f"{series.unavailable_s:.1f} s",
            f"stretches over 1 s: {len(series.unavailable)}",
        ),
        (
            "acknowledgement",
            f"{series.latency_ms['p50']:.1f} ms",
            f"median; p99 {series.latency_ms['p99']:.0f} ms, worst {series.latency_ms['max']:.0f} ms",
        ),
    ]
    if reads is not None and reads.lags:
        lag_ms = reads.lag_ms
        hint = f"median; p99 {lag_ms['p99']:.0f} ms, worst {lag_ms['max']:.0f} ms"
        entries.append(("realtime lag", f"{lag_ms['p50']:.1f} ms", hint))
    return cards(entries)


def _reads(reads: GroupFigures | None) -> str:
    if reads is None:
        return ""
    lag = (
        f"<p class='hint'>The realtime lag of {reads.lags:,} records: from a record's acknowledgement to the first "
        "poll by a member of a group that returned it.</p>"
        if reads.lags
        else ""
    )
    return f"<h2>Records read by groups</h2>{groups_table(reads.groups, reads.unread)}{lag}"


def _charts(report: ChaosReport) -> str:
    samples = report.samples
    ends = [*(fault.end_ms / 1000 for fault in report.faults), *(sample.at_ms / 1000 for sample in samples[-1:])]
    ends += [point[0] for point in report.series.acknowledged[-1:]]
    run = RunSeries(
        until_s=max([report.duration_s, *ends]),
        load=report.series,
        faults=tuple(
            FaultSpan(
                kind=fault.kind,
                begin_s=fault.begin_ms / 1000,
                end_s=fault.end_ms / 1000,
                detail=f"{fault.target} {_names(fault)} {fault.detail}".strip(),
            )
            for fault in report.faults
            if fault.took_effect
        ),
        active=report.active,
        partitions=report.partitions,
        looked_until_s=samples[-1].at_ms / 1000 if samples else None,
    )
    return "<h2>The run over time</h2>" + over_time(run) + ("" if report.partitions else _sums(samples, run.until_s))


def _sums(samples: Sequence[ClusterSample], until_s: float) -> str:
    """Of a cluster whose partitions were not looked at one by one."""
    charts = (
        ("Smallest in-sync set", "replicas", [(one.at_ms / 1000, float(one.in_sync_min)) for one in samples]),
        ("Partitions without a leader", "partitions", [(one.at_ms / 1000, float(one.leaderless)) for one in samples]),
        (
            "High watermarks, sum over partitions",
            "records",
            [(one.at_ms / 1000, float(one.high_watermark_sum)) for one in samples],
        ),
    )
    return "".join(
        f"<h3>{escape(title)}</h3>"
        + timeline(points, marks=(), spans=(), unit=unit, title=title, until_s=until_s, size=CHART)
        for title, unit, points in charts
        if points
    )


def _names(fault: FaultEvent) -> str:
    return ", ".join(str(node) for node in fault.nodes)


def _missed_text(count: int) -> str:
    """Counts the faults of the plan that took no effect."""
    return f"; {count} more of the plan had no effect" if count else ""


def _fault_tables(faults: Sequence[FaultEvent]) -> str:
    """Those that took effect, and those of the plan that did not."""
    missed = [fault for fault in faults if not fault.took_effect]
    text = "<h2>Faults</h2>" + _fault_table([fault for fault in faults if fault.took_effect], "what was done")
    if missed:
        hint = "They found no target when they were due, or the cluster refused them; they count nowhere."
        text += f"<h3>Planned only</h3><p class='hint'>{hint}</p>" + _fault_table(missed, "why not")
    return text


def _fault_table(faults: Sequence[FaultEvent], last: str) -> str:
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
    return table(("fault", "target", "nodes", "begin, s", "end, s", last), rows, words=(1, 2, 5))


def _anomalies(report: ChaosReport) -> str:
    """Returns the anomalies found, and apart from them those that the configuration allows."""
    verdict = report.verdict
    wrong = [one for one in verdict.anomalies if not one.allowed]
    allowed = [one for one in verdict.anomalies if one.allowed]
    text = ""
    if wrong:
        text += "<h2>Anomalies</h2>" + _counts(verdict, wrong) + _shown(wrong, report.operations)
    if allowed:
        summary = f"{len(allowed)} of them, with what lies behind each"
        text += (
            "<h2>Allowed by the configuration</h2><p class='hint'>No anomalies: this run's clients and topics promise "
            "nothing against them. Transactions of Kafka, for example, do not order their writes against each other "
            f"(G0).</p>{_counts(verdict, allowed)}"
            f"<details><summary>{summary}</summary>{_shown(allowed, report.operations)}</details>"
        )
    return text


def _counts(verdict: Verdict, found: Sequence[Anomaly]) -> str:
    kinds = sorted({one.kind for one in found}, key=lambda kind: kind.value)
    return table(("kind", "count"), [(kind.value, f"{verdict.counts.get(kind, 0):,}") for kind in kinds])


def _shown(found: Sequence[Anomaly], operations: Mapping[int, Operation]) -> str:
    texts = "".join(_anomaly(anomaly, operations) for anomaly in found[:ANOMALIES_SHOWN])
    more = len(found) - ANOMALIES_SHOWN
    rest = f'<p class="hint">{more} more are in verdict.json.</p>' if more > 0 else ""
    return f'<div class="operations">{texts}</div>{rest}'


def _anomaly(anomaly: Anomaly, operations: Mapping[int, Operation]) -> str:
    where = f" in {anomaly.partition.topic}-{anomaly.partition.partition}" if anomaly.partition is not None else ""
    allowed = " (allowed by the configuration)" if anomaly.allowed else ""
    lines = [
        f"<li>{escape(describe(operations[index], anomaly))}</li>"
        for index in anomaly.operations[:OPERATIONS_SHOWN]
        if index in operations
    ]
    return (
        f"<p><b>{escape(anomaly.kind.value)}</b>{escape(where + allowed)}: {escape(anomaly.text)}</p>"
        f"<ul>{''.join(lines)}</ul>"
    )


def describe(operation: Operation, anomaly: Anomaly | None = None) -> str:
    """Returns one line about an operation; of long polls, what is near the offsets that ``anomaly`` is about."""
    parts = []
    for part in operation.operations:
        if isinstance(part, Send):
            at = "unknown offset" if part.offset is None else f"offset {part.offset}"
            parts.append(f"send {part.value} to {part.partition.topic}-{part.partition.partition} at {at}")
        else:
            parts.append(f"poll {_poll_text(part, anomaly)}")
    end = "" if not operation.error else f": {operation.error}"
    return (
        f"operation {operation.index} of process {operation.process}, "
        f"{operation.begun_ms / 1000:.3f} s to {operation.ended_ms / 1000:.3f} s, {operation.kind.value} "
        f"{operation.status.value}{end}; {'; '.join(parts)}"
    )


def _poll_text(poll: Poll, anomaly: Anomaly | None) -> str:
    texts = []
    for partition, pairs in poll.records:
        chosen = pairs[:RECORDS_SHOWN]
        if anomaly is not None and anomaly.partition == partition and len(pairs) > RECORDS_SHOWN:
            near = [pair for pair in pairs if any(abs(pair[0] - each) <= NEAR for each in anomaly.offsets)]
            chosen = tuple(near[:RECORDS_SHOWN]) or chosen
        shown = ", ".join(f"{offset}={value}" for offset, value in chosen)
        left = len(pairs) - len(chosen)
        more = f" and {left} more from offset {pairs[0][0]} to {pairs[-1][0]}" if left else ""
        texts.append(f"{partition.topic}-{partition.partition}: {shown}{more}")
    return "; ".join(texts)
