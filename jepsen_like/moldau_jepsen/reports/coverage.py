"""The coverage of a run or a campaign, as parts of a page: messages by API and version, and transitions of states."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from moldau_jepsen.reports.page import table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One API of one kind of server."""

    name: str
    api_key: int
    server: str
    versions_served: tuple[int, ...]
    versions_seen: tuple[int, ...]
    requests: int
    responses: int
    senders: tuple[str, ...]
    by_version: Mapping[str, tuple[int, int]]
    """Requests and responses by version."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Error codes of the answers, where they were looked into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionRow:
    """One transition; ``before`` is empty where only the state that was entered is known."""

    before: str
    after: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRows:
    """One kind of state machine."""

    name: str
    transitions: tuple[TransitionRow, ...]
    """Those that were taken, and those of the table of what is possible that were not (count 0)."""

    @property
    def never(self) -> list[TransitionRow]:
        """The rows that were never reached."""
        return [row for row in self.transitions if not row.count]


def machines_section(machines: Sequence[MachineRows], hint: str = "") -> str:
    """Returns the transitions of state machines; ``hint`` says how they are known."""
    parts = ["<h2>State transitions</h2>", f"<p class='hint'>{escape(hint)}</p>" if hint else ""]
    for machine in machines:
        never = machine.never
        reached = len(machine.transitions) - len(never)
        rows = [
            (row.after if not row.before else f"{row.before} \N{RIGHTWARDS ARROW} {row.after}", f"{row.count:,}")
            for row in machine.transitions
            if row.count
        ]
        names = ", ".join(
            row.after if not row.before else f"{row.before} \N{RIGHTWARDS ARROW} {row.after}" for row in never
        )
        missing = f'<p class="bad">never reached: {escape(names)}</p>' if never else ""
        parts.append(
            f"<details><summary><b>{escape(machine.name)}</b> {reached} of {len(machine.transitions)}</summary>"
            f"{missing}{table(('transition', 'times'), rows)}</details>"
        )
    return "".join(parts)


def messages_section(messages: Sequence[MessageRow], hint: str = "") -> str:
    """Returns the requests and their answers; ``hint`` explains the counts."""
    seen = [row for row in messages if row.requests]
    unseen = [row for row in messages if not row.requests]
    rows = [
        (
            row.name,
            row.server,
            ", ".join(row.senders),
            _versions(row.versions_seen),
            _versions(row.versions_served),
            f"{row.requests:,}",
            f"{row.responses:,}",
        )
        for row in seen
    ]
    never = ", ".join(f"{row.name} ({row.server})" for row in unseen)
    missing = ""
    if never:
        missing = f'<details><summary>never sent: {len(unseen)}</summary><p class="bad">{escape(never)}</p></details>'
    head = ("API", "asked of", "asked by", "versions seen", "versions served", "requests", "answers")
    errors = sorted(
        ((-count, row.name, row.server, name) for row in messages for name, count in row.errors.items()),
    )
    codes = ""
    if errors:
        lines = [(name, server, code, f"{-count:,}") for count, name, server, code in errors]
        codes = "<h3>Error codes of answers</h3>" + table(("API", "asked of", "code", "times"), lines, words=(1, 2))
    return (
        f"<h2>Messages</h2><p class='hint'>{len(seen)} of {len(messages)} APIs were used. Requests without an answer "
        "were cut off, timed out, or go one way. What brokers pass on to the controller for clients travels in "
        f"Envelope. {escape(hint)}</p>" + missing + table(head, rows, words=(1, 2)) + codes
    )


def _versions(versions: Sequence[int]) -> str:
    """Runs of numbers: 0, 3-5."""
    parts: list[list[int]] = []
    for version in sorted(versions):
        if parts and version == parts[-1][-1] + 1:
            parts[-1].append(version)
        else:
            parts.append([version])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in parts) or "-"
