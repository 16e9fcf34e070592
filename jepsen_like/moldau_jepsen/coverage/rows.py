"""Builds report rows of reached and reachable messages and transitions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from moldau_jepsen.coverage.coverage import (
    START,
    Coverage,
    Transition,
    message_name,
    reachable_messages,
    reachable_transitions,
)
from moldau_jepsen.reports.coverage import MachineRows, MessageRow, TransitionRow

if TYPE_CHECKING:
    from collections.abc import Mapping


def message_rows(
    coverage: Coverage, errors: Mapping[tuple[int, str], Mapping[str, int]] | None = None
) -> tuple[MessageRow, ...]:
    """Returns one row for each API of each kind of server that is served or was asked.

    ``errors`` are by API key and kind of server, and by name.
    """
    served = reachable_messages()
    counts: dict[tuple[int, str], Counter[tuple[int, bool]]] = {key: Counter() for key in served}
    senders: dict[tuple[int, str], dict[str, None]] = {key: {} for key in served}
    for kind, count in sorted(coverage.messages.items()):
        key = (kind.api_key, kind.receiver if kind.is_request else kind.sender)
        counts.setdefault(key, Counter())[kind.version, kind.is_request] += count
        if kind.is_request:
            senders.setdefault(key, {})[kind.sender] = None
    rows: list[MessageRow] = []
    for (api_key, server), seen in counts.items():
        versions = sorted({version for version, _ in seen})
        requests = sum(count for (_, is_request), count in seen.items() if is_request)
        rows.append(
            MessageRow(
                name=message_name(api_key),
                api_key=api_key,
                server=server,
                versions_served=tuple(served.get((api_key, server), ())),
                versions_seen=tuple(versions),
                requests=requests,
                responses=seen.total() - requests,
                senders=tuple(senders.get((api_key, server), ())),
                errors=dict((errors or {}).get((api_key, server), {})),
                by_version={str(version): (seen[version, True], seen[version, False]) for version in versions},
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.server, row.api_key)))


def machine_rows(coverage: Coverage) -> tuple[MachineRows, ...]:
    """Returns the transitions taken, and those of the tables that were not."""
    possible: dict[str, list[Transition]] = {}
    for transition in reachable_transitions():
        possible.setdefault(transition.machine, []).append(transition)
    taken = coverage.transitions
    found: list[MachineRows] = []
    for machine, transitions in possible.items():
        rows = [
            TransitionRow(before=one.before if one.before != START else "", after=one.after, count=taken[one])
            for one in sorted(taken)
            if one.machine == machine and (one.before != START or not transitions[0].before)
        ]
        entered = {row.after for row in rows}
        rows += [
            TransitionRow(before=one.before, after=one.after, count=0)
            for one in transitions
            if (one.after not in entered if not one.before else one not in taken)
        ]
        found.append(MachineRows(name=machine, transitions=tuple(rows)))
    return tuple(found)
