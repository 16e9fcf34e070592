"""The page of a campaign of simulated clusters: what was run and reached, what clients noticed, and what failed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING

from moldau_jepsen.reports.bars import Bar, bars
from moldau_jepsen.reports.consumption import groups_table
from moldau_jepsen.reports.coverage import machines_section, messages_section
from moldau_jepsen.reports.over_time import over_time
from moldau_jepsen.reports.page import cards, page, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau_jepsen.reports.consumption import GroupReads
    from moldau_jepsen.reports.coverage import MachineRows, MessageRow
    from moldau_jepsen.reports.over_time import RunSeries
    from moldau_jepsen.reports.page import Origin

FAILURES_SHOWN = 50
FINDINGS_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One violation of a failed seed."""

    kind: str
    text: str
    operations: tuple[str, ...] = ()
    """The client operations behind it, one line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSeed:
    """A seed that did not pass."""

    seed: int
    replay: str
    folder: str
    findings: tuple[Finding, ...]
    """For more failures than the page shows only their kinds, each once and without a text."""
    series: RunSeries | None = None
    """The run over time, for as many failures as the page shows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeedRun:
    """A seed that is drawn though it passed."""

    seed: int
    faults: int
    replay: str
    series: RunSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRow:
    """A configuration that promises less, and whether it was convicted, as it must be."""

    name: str
    text: str
    convicted: bool
    seeds: int
    found_by: str
    detail: str
    """The finding that convicted it and its seed, or the failure of the kit."""
    skipped: str = ""
    """Why it was not run; empty if it was."""

    @property
    def acquitted(self) -> bool:
        """Whether it was on trial and was not convicted."""
        return not self.convicted and not self.skipped

    @property
    def verdict(self) -> str:
        """In words."""
        if self.skipped:
            return f"skipped: {self.skipped}"
        return "convicted" if self.convicted else "ACQUITTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """One kind of fault."""

    kind: str
    planned: int
    """How many had their time."""
    strikes: int
    """How many of them had a target."""
    runs: int
    """Runs in which it took effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution: quantiles and a histogram."""

    unit: str
    count: int
    quantiles: Mapping[str, float]
    buckets: tuple[tuple[float, int], ...] = ()
    """End of each bucket (exclusive) and what is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """The runs of one profile, or of the swarm of everything."""

    name: str
    seeds: int
    chosen: int
    """Of them: those for which a guide, or the user, chose the profile; the others drew it."""
    turns: int
    """Turns of the event loop, which measure the work."""
    situations: int
    """Rare situations, each counted once for each run that reached it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignReport:
    """The content of the page. The JSON beside the page holds the same."""

    seeds: int
    seed_first: int
    seed_last: int
    processes: int
    virtual_seconds: float
    wall_seconds: float
    busy_seconds: float
    """Sum over the seeds of the real time that each took."""
    steps: int
    faults: int
    acknowledged: int
    polled: int
    operations: Mapping[str, int]
    cores: int
    """Runs that came so far that a core of the nodes was healed first."""
    cores_without_some: int
    """Of them: a node stayed outside of it."""
    fault_rows: tuple[FaultRow, ...]
    latency: Spread
    lag: Spread
    """From a record's acknowledgement to the first poll by a group that returned it."""
    groups: tuple[GroupReads, ...]
    unread: int
    """Acknowledged records that no group was given."""
    throughput: Spread
    unavailability: Spread
    runs_without_gap: int
    messages: tuple[MessageRow, ...]
    machines: tuple[MachineRows, ...]
    failures: tuple[FailedSeed, ...]
    controls: tuple[ControlRow, ...] = ()
    profiles: tuple[ProfileRow, ...] = ()
    runs: tuple[SeedRun, ...] = ()
    """Some that passed, to be drawn."""
    notes: tuple[str, ...] = field(default=())
    unfinished: str = ""
    """The state of a campaign that has not ended: still running, or interrupted. Empty if it has run to its end."""

    @property
    def virtual_hours(self) -> float:
        """Virtual time of all clusters."""
        return self.virtual_seconds / 3600

    @property
    def time_ratio(self) -> float:
        """Virtual seconds of a cluster per real second of one process."""
        return self.virtual_seconds / self.busy_seconds if self.busy_seconds else 0.0

    @property
    def seeds_per_hour(self) -> float:
        """At the speed of this campaign, with its processes."""
        return self.seeds / self.wall_seconds * 3600 if self.wall_seconds else 0.0

    @property
    def passed(self) -> bool:
        """Whether it has run to its end, no seed of it failed and every control that was run was convicted.

        A campaign without seeds has shown nothing.
        """
        acquitted = any(control.acquitted for control in self.controls)
        return self.seeds > 0 and not (self.unfinished or self.failures or acquitted)

    def to_json(self) -> dict[str, object]:
        """Returns the report as JSON values."""
        return {
            **asdict(self),
            "failed": [failure.seed for failure in self.failures],
            "passed": self.passed,
            "virtual_hours": self.virtual_hours,
            "time_ratio": self.time_ratio,
            "seeds_per_hour": self.seeds_per_hour,
        }


def campaign_page(report: CampaignReport, origin: Origin) -> str:
    """Draws the whole page."""
    body = [
        _headline(report),
        *(f"<p><b>{escape(note)}</b></p>" for note in report.notes),
        _figures(report),
        _failures(report.failures),
        _controls(report.controls),
        _runs(report.runs),
        _noticed(report),
        _faults(report),
        _profiles(report.profiles),
        machines_section(report.machines),
        messages_section(report.messages),
    ]
    return page("Moldau simulation campaign", "\n".join(body), origin)


def _headline(report: CampaignReport) -> str:
    acquitted = [control.name for control in report.controls if control.acquitted]
    if report.failures:
        text = f"{len(report.failures)} of {report.seeds:,} seeds failed."
    elif acquitted:
        text = f"No seed failed, but the checkers acquitted {', '.join(acquitted)}: they prove nothing."
    elif not report.seeds:
        text = "No seed has ended: nothing is shown."
    else:
        text = f"{report.seeds:,} seeds, no violation: nothing acknowledged was lost, reordered or duplicated."
    if report.unfinished:
        text = f"{report.unfinished.capitalize()}. So far: {text}"
    color = " good" if report.passed else "" if report.unfinished and not report.failures else " bad"
    return f'<p class="verdict{color}">{escape(text)}</p>'


def _figures(report: CampaignReport) -> str:
    seen = sum(len(row.versions_seen) for row in report.messages)
    served = sum(len(row.versions_served) for row in report.messages)
    taken = sum(len(rows.transitions) - len(rows.never) for rows in report.machines)
    possible = sum(len(rows.transitions) for rows in report.machines)
    entries = [
        ("virtual time", _duration(report.virtual_seconds), f"{report.time_ratio:,.1f} times as fast as real time"),
        (
            "seeds",
            f"{report.seeds:,}",
            f"{report.seed_first} to {report.seed_last}; {report.seeds_per_hour:,.0f} an hour, "
            f"{report.processes} process{'' if report.processes == 1 else 'es'}",
        ),
        ("faults", f"{report.faults:,}", f"{report.faults / max(report.seeds, 1):.1f} a run"),
        ("cores healed first", f"{report.cores:,}", f"{report.cores_without_some:,} of them without some of the nodes"),
        ("steps judged", f"{report.steps:,}", "invariants are checked after each"),
        ("writes acknowledged", f"{report.acknowledged:,}", f"{report.polled:,} records read"),
        ("state transitions", f"{taken} of {possible}", "reached of those that are possible"),
        ("message versions", f"{seen} of {served}", "seen of those that are served"),
        ("real time", _duration(report.wall_seconds), f"{report.busy_seconds:,.0f} s over all processes"),
    ]
    return cards(entries)


def _duration(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:,.1f} min" if seconds >= 60 else f"{seconds:.1f} s"


def _failures(failures: Sequence[FailedSeed]) -> str:
    if not failures:
        return ""
    parts = ["<h2>Failed seeds</h2>", *(_failure(failure) for failure in failures[:FAILURES_SHOWN])]
    if len(failures) > FAILURES_SHOWN:
        parts.append(f"<p class='hint'>and {len(failures) - FAILURES_SHOWN} more seeds; the JSON names all</p>")
    return "".join(parts)


def _failure(failure: FailedSeed) -> str:
    return (
        f'<details open><summary><b>seed {failure.seed}</b> <span class="bad">'
        f"{escape(failure.findings[0].kind if failure.findings else '')}</span></summary>"
        f"<p><code>{escape(failure.replay)}</code><br><span class='hint'>history and timeline: "
        f"{escape(failure.folder)}</span></p>{_findings(failure)}</details>"
    )


def _findings(failure: FailedSeed) -> str:
    findings = "".join(_finding(finding) for finding in failure.findings[:FINDINGS_SHOWN])
    more = len(failure.findings) - FINDINGS_SHOWN
    rest = f"<p class='hint'>and {more} more</p>" if more > 0 else ""
    return findings + rest + ("" if failure.series is None else over_time(failure.series))


def seed_page(failure: FailedSeed, origin: Origin) -> str:
    """Returns a page of one failed seed alone."""
    kinds = ", ".join(dict.fromkeys(finding.kind for finding in failure.findings))
    headline = f'<p class="verdict bad">Seed {failure.seed} failed: {escape(kinds)}</p>'
    again = f"<p><code>{escape(failure.replay)}</code></p>"
    return page(f"Moldau simulation, seed {failure.seed}", headline + again + _findings(failure), origin)


def _runs(runs: Sequence[SeedRun]) -> str:
    if not runs:
        return ""
    drawn = "".join(
        f"<details open><summary><b>seed {run.seed}</b>, {run.faults} faults</summary>"
        f"<p><code>{escape(run.replay)}</code></p>{over_time(run.series)}</details>"
        for run in runs
    )
    return (
        "<h2>Runs over time</h2><p class='hint'>Seeds that passed: the first, and the one with most faults. The time "
        f"is virtual.</p>{drawn}"
    )


def _finding(finding: Finding) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in finding.operations)
    behind = f"<ul class='operations'>{lines}</ul>" if lines else ""
    return f"<p><b>{escape(finding.kind)}</b>: {escape(finding.text)}</p>{behind}"


def _controls(controls: Sequence[ControlRow]) -> str:
    if not controls:
        return "<h2>Negative controls</h2><p class='hint'>They were not run.</p>"
    rows = [
        (
            control.name,
            control.text,
            control.verdict,
            str(control.seeds),
            control.found_by or "-",
            control.detail or "-",
        )
        for control in controls
    ]
    return (
        "<h2>Negative controls</h2><p class='hint'>Configurations, and a library, that promise less. Each must be "
        "convicted.</p>"
        + table(("control", "what goes wrong", "verdict", "seeds", "found by", "at"), rows, words=(1, 2, 4, 5))
    )


def _noticed(report: CampaignReport) -> str:
    gaps, latency = report.unavailability, report.latency
    quantiles = [
        (name, spread.unit, *(f"{spread.quantiles.get(key, 0.0):,.1f}" for key in ("p50", "p90", "p99", "max")))
        for name, spread in (
            ("time to acknowledge", latency),
            ("realtime lag: from then to the first read by a group", report.lag),
            ("acknowledged records a second, per run", report.throughput),
            ("stretch without any acknowledged write", gaps),
        )
    ]
    without = f"{report.runs_without_gap:,} of {report.seeds:,} runs had no stretch of a second or more."
    return (
        "<h2>What clients noticed</h2>"
        + table(("virtual time, under faults", "unit", "median", "p90", "p99", "worst"), quantiles, words=(0, 1))
        + "<h3>Time to acknowledge</h3>"
        + bars([Bar(end=end, count=count) for end, count in latency.buckets], unit="ms", title="Time to acknowledge")
        + "<h3>Records read by groups</h3>"
        + groups_table(report.groups, report.unread)
        + "<h3>Stretches without any acknowledged write</h3>"
        + bars([Bar(end=end, count=count) for end, count in gaps.buckets], unit="s", title="Unavailability")
        + f"<p class='hint'>{escape(without)} Faults cut off majorities on purpose, so long stretches belong to a "
        "campaign; what counts is that each ends after healing.</p>"
    )


def _faults(report: CampaignReport) -> str:
    rows = [
        (row.kind, f"{row.planned:,}", f"{row.strikes:,}", f"{row.runs:,}", f"{row.strikes / max(report.seeds, 1):.2f}")
        for row in report.fault_rows
    ]
    hint = (
        "<p class='hint'>A planned fault has no target where the node is down already, must be spared for a while, or "
        "refuses what is asked of it. Strikes are counted only where something was done.</p>"
    )
    return "<h2>Faults</h2>" + hint + table(("kind", "planned", "took effect", "runs with it", "effects per run"), rows)


def _profiles(profiles: Sequence[ProfileRow]) -> str:
    turns = max(sum(row.turns for row in profiles), 1)
    rows = [
        (
            row.name,
            f"{row.seeds:,}",
            f"{row.chosen:,}",
            f"{row.turns / turns:.1%}",
            f"{row.situations / row.seeds:.1f}",
            f"{row.situations * 100_000 / max(row.turns, 1):.1f}",
        )
        for row in profiles
    ]
    names = ("profile", "seeds", "chosen", "share of the work", "rare situations per seed", "per 100,000 turns")
    return "<h2>Profiles</h2>" + table(names, rows) if rows else ""
