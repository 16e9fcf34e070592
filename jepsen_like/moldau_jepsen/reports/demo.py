"""The demo's report: what went in, what was killed, what came out, and the proof, on one page."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from moldau_jepsen.reports.chart import Mark, Span, timeline
from moldau_jepsen.reports.page import cards, page, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_jepsen.reports.page import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How the records that one reader saw compare with those that were acknowledged."""

    reader: str
    seen: int
    lost: int  # acknowledged, not seen
    duplicated: int  # seen more than once
    unknown: int  # seen, never sent, or under another key than it was sent with
    disordered: int  # seen after a later record of the same key

    @property
    def exactly_once(self) -> bool:
        """Whether each acknowledged record was seen once, and in order."""
        return not (self.lost or self.duplicated or self.unknown or self.disordered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """The fault, in seconds since the first record was sent.

    ``first_ack_s`` is the time of the first acknowledgement by a new leader.
    """

    node_id: int
    partitions: int  # that the node led
    killed_s: float
    first_ack_s: float
    all_acked_s: float  # every partition that the node led has acknowledged again
    restarted_s: float | None  # back and unfenced; None if production ended before

    @property
    def unavailable_ms(self) -> float:
        """From the kill to the next acknowledged write of a partition that the node led."""
        return (self.first_ack_s - self.killed_s) * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The content of the report."""

    source: str
    records: int
    acknowledged: int
    produce_s: float
    cluster_ready_s: float
    bootstrap: str
    throughput: Sequence[tuple[float, float]]  # seconds, acknowledged records/s
    failover: Failover | None
    tallies: Sequence[Tally]
    aggregate_title: str
    aggregate_columns: Sequence[str] = ()
    aggregate_rows: Sequence[Sequence[str]] = ()
    phases: Sequence[tuple[str, float]] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def rate(self) -> float:
        """Acknowledged records per second over the whole produce phase, failover included."""
        return self.acknowledged / self.produce_s if self.produce_s > 0 else 0.0

    @property
    def exactly_once(self) -> bool:
        """Whether all was acknowledged and every reader saw it exactly once."""
        return (
            self.acknowledged == self.records and bool(self.tallies) and all(one.exactly_once for one in self.tallies)
        )


def render(result: DemoResult, origin: Origin) -> str:
    """Returns the page as HTML text."""
    verdict = (
        f"Each of {result.acknowledged:,} acknowledged records arrived exactly once."
        if result.exactly_once
        else "The proof failed: see the table below."
    )
    sections = [
        f'<p class="verdict {"good" if result.exactly_once else "bad"}">{escape(verdict)}</p>',
        _figures(result),
        "<h2>Acknowledged records per second</h2>",
        timeline(
            result.throughput,
            marks=_marks(result.failover),
            spans=_spans(result.failover),
            unit="records/s, by seconds since the first send",
            title="Throughput of the produce phase with the fault marked",
        ),
        "<h2>The proof</h2>",
        "<p>Every record carries its number in the input. A reader's records are compared with the acknowledged ones "
        "by key and number.</p>",
        table(
            ["reader", "seen", "lost", "duplicated", "unknown", "out of order"],
            [
                [
                    one.reader,
                    f"{one.seen:,}",
                    f"{one.lost:,}",
                    f"{one.duplicated:,}",
                    f"{one.unknown:,}",
                    f"{one.disordered:,}",
                ]
                for one in result.tallies
            ],
        ),
    ]
    if result.aggregate_rows:
        sections += [
            f"<h2>{escape(result.aggregate_title)}</h2>",
            table(result.aggregate_columns, result.aggregate_rows),
        ]
    sections += [
        "<h2>Where the time went</h2>",
        table(["phase", "seconds"], [[name, f"{seconds:.1f}"] for name, seconds in result.phases]),
    ]
    if result.notes:
        sections.append("<ul>" + "".join(f"<li>{escape(note)}</li>" for note in result.notes) + "</ul>")
    return page("Moldau demo", "\n".join(sections), origin)


def _figures(result: DemoResult) -> str:
    failover = result.failover
    figures = [
        ("records", f"{result.records:,}", result.source),
        ("records/s acknowledged", f"{result.rate:,.0f}", "acks=all, idempotent, over the whole phase"),
        (
            "failover",
            f"{failover.unavailable_ms:,.0f} ms" if failover else "-",
            f"kill -9 of broker {failover.node_id}, leader of {failover.partitions} partitions"
            if failover
            else "no fault",
        ),
        ("cluster ready", f"{result.cluster_ready_s:.1f} s", result.bootstrap),
    ]
    return cards(figures)


def _marks(failover: Failover | None) -> list[Mark]:
    if failover is None:
        return []
    marks = [
        Mark(at_s=failover.killed_s, label=f"kill -9 broker {failover.node_id}", kind="fault"),
        Mark(
            at_s=failover.first_ack_s, label=f"new leader acknowledges, {failover.unavailable_ms:.0f} ms", kind="repair"
        ),
    ]
    if failover.restarted_s is not None:
        marks.append(Mark(at_s=failover.restarted_s, label=f"broker {failover.node_id} is back", kind="repair"))
    return marks


def _spans(failover: Failover | None) -> list[Span]:
    if failover is None:
        return []
    return [Span(start_s=failover.killed_s, end_s=failover.all_acked_s, label="until all partitions acknowledge again")]
