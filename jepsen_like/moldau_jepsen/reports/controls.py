"""Negative controls on the page of a chaos run: which were run, and what convicted each."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.reports.page import table

if TYPE_CHECKING:
    from collections.abc import Sequence


class ControlRow(NamedTuple):
    """One negative control, as it was judged."""

    name: str
    text: str
    """Its defect."""
    wanted: tuple[str, ...]
    """Anomalies that convict it; others are found by the way."""
    found: tuple[tuple[str, int], ...]
    """Anomalies that were found, and how often."""
    report: str = ""
    """Its own page, relative to that of the campaign; empty on its own page."""
    runs: int = 1
    """How many were made until one was convicted."""

    @property
    def convicted_by(self) -> tuple[str, ...]:
        """Anomalies that were found and convict it; none if it was acquitted."""
        return tuple(kind for kind, _ in self.found if kind in self.wanted)

    @property
    def convicted(self) -> bool:
        """Whether the checkers found what must be found."""
        return bool(self.convicted_by)

    @property
    def found_text(self) -> str:
        """Numbers and names of what was found."""
        return ", ".join(f"{count} {kind}" for kind, count in self.found) or "nothing"

    @property
    def verdict(self) -> str:
        """One clause."""
        again = f" in run {self.runs}" if self.runs > 1 else ""
        if self.convicted:
            return f"convicted by {', '.join(self.convicted_by)}{again}"
        return f"ACQUITTED: found {self.found_text}{again}, and none of {', '.join(self.wanted)}"


def joined(rows: Sequence[ControlRow]) -> tuple[ControlRow, ...]:
    """Returns one row for each control, of rows in the order in which their runs were made: the last of each."""
    by_name: dict[str, ControlRow] = {}
    for row in rows:
        before = by_name.get(row.name)
        by_name[row.name] = row._replace(runs=1 if before is None else before.runs + 1)
    return tuple(by_name[name] for name in sorted(by_name))


def acquitted_text(controls: Sequence[ControlRow]) -> str:
    """Why a campaign fails by its controls; empty if it does not."""
    acquitted = [control.name for control in controls if not control.convicted]
    if not acquitted:
        return ""
    return f"negative controls were not convicted, so the checkers prove nothing: {', '.join(acquitted)}"


def control_headline(control: ControlRow | None, controls: Sequence[ControlRow]) -> str:
    """HTML for the head of the page: of a control's own, and of a campaign with a control that was acquitted."""
    lines = []
    if control is not None:
        quality = "good" if control.convicted else "bad"
        lines.append((quality, f"This is the negative control {control.name} ({control.text}): {control.verdict}."))
    if controls:
        text = acquitted_text(controls)
        named = "; ".join(f"{one.name} {one.verdict}" for one in controls)
        lines.append(("bad", text) if text else ("good", f"Negative controls: {named}."))
    return "".join(f'<p class="verdict {quality}">{escape(text)}</p>' for quality, text in lines)


def controls_section(controls: Sequence[ControlRow]) -> str:
    """HTML: the table of a campaign's controls."""
    if not controls:
        return "<h2>Negative controls</h2><p class='hint'>They were not run.</p>"
    rows = [(one.name, one.text, one.verdict, one.found_text) for one in controls]
    links = ", ".join(f'<a href="{escape(one.report)}">{escape(one.name)}</a>' for one in controls if one.report)
    return (
        "<h2>Negative controls</h2><p class='hint'>Configurations that promise less, under faults that make use of it, "
        "judged by the full promise. Each must be convicted, or the verdict above proves nothing.</p>"
        + table(("control", "what goes wrong", "verdict", "found"), rows, words=(1, 2, 3))
        + (f"<p class='hint'>Their own pages: {links}</p>" if links else "")
    )
