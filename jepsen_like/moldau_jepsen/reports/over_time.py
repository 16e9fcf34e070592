"""A run over time: the faults, what clients noticed, and how the cluster stood, under one axis of time."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.reports.chart import Line, Mark, Size, Span, lines, timeline
from moldau_jepsen.reports.lanes import LANE_LEFT, Band, Lane, lanes

if TYPE_CHECKING:
    from moldau_jepsen.reports.load import Series

LASTING_SHARE = 0.8
"""A fault that lasts for more of the run does not stand out from the rest: it is not shaded."""
PHASES_APART_SHARE = 0.03
PARTITIONS_SHOWN = 24
CHART = Size(left=LANE_LEFT, height=190)
DARK = "no write acknowledged"


class PartitionState(NamedTuple):
    """How a partition stood from one moment on."""

    since_s: float
    leader: int
    """-1: none."""
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: int
    """How many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSeries:
    """One partition over time."""

    name: str
    states: tuple[PartitionState, ...]
    """Each but the first unlike the one before."""
    high_watermarks: tuple[tuple[float, float | None], ...]
    """Moments and offsets, as reported by the leader of that moment; None without a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpan:
    """One fault."""

    kind: str
    begin_s: float
    end_s: float
    detail: str = ""


class Active(NamedTuple):
    """The active controller from one moment on; -1 for none."""

    since_s: float
    controller: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """All that is drawn of a run."""

    until_s: float
    """End of the axis."""
    load: Series
    faults: tuple[FaultSpan, ...] = ()
    down: tuple[tuple[str, float, float], ...] = ()
    """Node, and from when until when it did not run."""
    phases: tuple[tuple[float, str], ...] = ()
    active: tuple[Active, ...] = ()
    partitions: tuple[PartitionSeries, ...] = ()
    looked_until_s: float | None = None
    """Until when controllers and partitions were looked at; None: to the end."""

    @property
    def known_until_s(self) -> float:
        """Where rows of controllers and partitions end."""
        return self.until_s if self.looked_until_s is None else min(self.looked_until_s, self.until_s)


def over_time(run: RunSeries) -> str:
    """Draws a run: rows of faults, charts of load, rows of partitions, lines of high watermarks."""
    spans = _spans(run)
    marks = _marks(run)
    charts = [
        ("Faults by time", lanes(_faults(run), until_s=run.until_s, title="Faults over time")),
        (
            "Acknowledged writes",
            timeline(
                run.load.acknowledged,
                marks=marks,
                spans=spans,
                unit="records/s",
                title="Acknowledged writes",
                until_s=run.until_s,
                size=CHART,
            ),
        ),
        (
            "Time to acknowledge, 99th percentile of each point",
            timeline(
                run.load.latency_p99_ms,
                marks=(),
                spans=spans,
                unit="ms",
                title="Time to acknowledge",
                until_s=run.until_s,
                size=CHART,
            ),
        ),
    ]
    shown = run.partitions[:PARTITIONS_SHOWN]
    if run.active or shown:
        rows = [*_quorum(run), *(_partition(one, run.known_until_s) for one in shown)]
        drawn = lanes(rows, until_s=run.until_s, title="In-sync sets over time")
        charts.append(("In-sync sets and leaders", _key() + drawn))
    if shown:
        drawn = lines(
            [Line(label=one.name, points=one.high_watermarks) for one in shown],
            spans=spans,
            unit="offset",
            title="High watermarks over time",
            until_s=run.until_s,
            size=CHART,
        )
        charts.append(("High watermarks", drawn))
    left_out = len(run.partitions) - len(shown)
    more = f"<p class='hint'>{left_out} more partitions are not drawn.</p>" if left_out else ""
    return "".join(f"<h3>{escape(title)}</h3>{drawn}" for title, drawn in charts if drawn) + more


def _spans(run: RunSeries) -> list[Span]:
    affected = [fault for fault in run.faults if fault.end_s - fault.begin_s < LASTING_SHARE * run.until_s]
    spans: list[Span] = []
    for one in sorted(affected, key=lambda fault: fault.begin_s):
        # Faults that overlap are one shade: many would hide the lines.
        if spans and one.begin_s <= spans[-1].end_s:
            last = spans.pop()
            end_s = max(last.end_s, one.end_s)
            spans.append(Span(start_s=last.start_s, end_s=end_s, label=f"{last.label}, {one.kind}"))
        else:
            spans.append(Span(start_s=one.begin_s, end_s=one.end_s, label=one.kind))
    return spans


def _marks(run: RunSeries) -> list[Mark]:
    """The beginnings of phases; those that are too near each other to be distinguished are one mark."""
    marks: list[Mark] = []
    for at_s, name in run.phases:
        if marks and at_s - marks[-1].at_s < PHASES_APART_SHARE * run.until_s:
            last = marks.pop()
            marks.append(Mark(at_s=last.at_s, label=f"{last.label}, {name}", kind=last.kind))
        else:
            marks.append(Mark(at_s=at_s, label=name, kind="fault" if name == "faults" else "repair"))
    return marks


def _title(fault: FaultSpan) -> str:
    return f"{fault.kind}, {fault.begin_s:.1f} s to {fault.end_s:.1f} s: {fault.detail}".removesuffix(": ")


def _faults(run: RunSeries) -> list[Lane]:
    """One row for each kind of fault, one for each node that did not run, and one for the time without a write."""
    kinds: dict[str, list[Band]] = {}
    for fault in sorted(run.faults, key=lambda one: one.begin_s):
        band = Band(start_s=fault.begin_s, end_s=fault.end_s, label=_title(fault))
        kinds.setdefault(fault.kind, []).append(band)
    down: dict[str, list[Band]] = {}
    for node, begin_s, end_s in run.down:
        band = Band(start_s=begin_s, end_s=end_s, label=f"{node}: {begin_s:.1f} s to {end_s:.1f} s", kind="alone")
        down.setdefault(f"{node} is down", []).append(band)
    rows = [Lane(name=name, bands=bands) for group in (kinds, down) for name, bands in sorted(group.items())]
    dark = [
        Band(start_s=begin, end_s=end, label=f"{DARK} for {end - begin:.1f} s", kind="dark")
        for begin, end in run.load.unavailable
    ]
    return [*rows, Lane(name=DARK, bands=dark)] if dark else rows


def _quorum(run: RunSeries) -> list[Lane]:
    if not run.active:
        return []
    ends = [*(one.since_s for one in run.active[1:]), max(run.known_until_s, run.active[-1].since_s)]
    bands = [
        Band(
            start_s=one.since_s,
            end_s=end_s,
            label=f"controller {one.controller} of epoch {one.epoch}"
            if one.controller >= 0
            else "no active controller",
            kind="active" if one.controller >= 0 else "",
            text=str(one.controller) if one.controller >= 0 else "none",
        )
        for one, end_s in zip(run.active, ends, strict=True)
    ]
    return [Lane(name="active controller", bands=bands)]


def _partition(one: PartitionSeries, until_s: float) -> Lane:
    if not one.states:
        return Lane(name=one.name, bands=())
    ends = [*(state.since_s for state in one.states[1:]), max(until_s, one.states[-1].since_s)]
    bands = [
        Band(
            start_s=state.since_s,
            end_s=end_s,
            label=_state_text(state),
            kind=_state_kind(state),
            text=f"{state.leader}: {len(state.isr)} of {state.replicas}" if state.leader >= 0 else "no leader",
        )
        for state, end_s in zip(one.states, ends, strict=True)
    ]
    return Lane(name=one.name, bands=bands)


def _state_kind(state: PartitionState) -> str:
    if state.leader < 0:
        return ""
    if len(state.isr) >= state.replicas:
        return "whole"
    return "alone" if len(state.isr) == 1 else "shrunk"


def _state_text(state: PartitionState) -> str:
    leader = f"leader {state.leader}" if state.leader >= 0 else "no leader"
    isr = " ".join(map(str, state.isr)) or "none"
    return (
        f"from {state.since_s:.1f} s: {leader}, epoch {state.leader_epoch}, in sync {isr} of {state.replicas} replicas"
    )


def _key() -> str:
    """The meaning of the colours of partitions."""
    kinds = (("whole", "all in sync"), ("shrunk", "some in sync"), ("alone", "one in sync"), ("", "no leader"))
    boxes = "".join(
        f'<span class="key"><svg viewBox="0 0 14 10"><rect class="lane {kind}" width="14" height="10"/></svg>'
        f"{text}</span>"
        for kind, text in kinds
    )
    return f"<p class='hint'>In each stretch the leader and how many replicas are in sync.{boxes}</p>"
