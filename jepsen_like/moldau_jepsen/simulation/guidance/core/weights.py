"""Weighs kinds of runs by the rare transitions that they reached, per unit of work.

A campaign learns from each run which transitions of the coverage it reached and how much work it was. A transition is
rare while few runs have reached it. The weight of a kind is the value that one of its runs is expected to have, divided
by the work of such a run. The value of a run is the sum over the rare transitions that it reaches; each is worth the
reciprocal of the number of runs that reached it before. So a transition that has become common is worth little, and the
choice moves on.

A kind with few runs is judged mainly by the runs of all kinds together, so one without runs is a usual one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RARE_SHARE = 0.25
"""A transition is rare while at most this share of all runs has reached it."""
PRIOR_RUNS = 1.0
"""The runs of all kinds together count as so many runs of each kind."""


@dataclass(slots=True)
class Record:
    """The outcome of the runs of one kind."""

    runs: int = 0
    work: int = 0
    """Work of all of them, in any unit that is the same for all kinds."""
    reached: Counter[str] = field(default_factory=Counter)
    """How many of the runs reached each transition."""

    def add(self, work: int, reached: Iterable[str]) -> None:
        """Counts a run; ``reached`` names each transition once."""
        self.runs += 1
        self.work += work
        self.reached.update(reached)


def rare_values(records: Mapping[str, Record]) -> dict[str, float]:
    """Returns what reaching each rare transition is worth."""
    runs = sum(record.runs for record in records.values())
    totals: Counter[str] = Counter()
    for record in records.values():
        totals.update(record.reached)
    return {name: 1 / count for name, count in sorted(totals.items()) if 0 < count <= RARE_SHARE * runs}


def weights_of(records: Mapping[str, Record]) -> dict[str, float]:
    """Returns the weight of each kind; all are above 0, and the sum is 1.

    The result depends on the sums in the records alone, not on the order in which runs were added.
    """
    assert records, "there is a kind to choose"
    runs = sum(record.runs for record in records.values())
    work = sum(record.work for record in records.values())
    values = rare_values(records)
    # Of all runs, as many reach a transition as its value is the reciprocal of: so each adds one to their sum.
    usual_value = len(values) / runs if values else 1.0
    usual_work = max(work / runs, 1.0) if runs else 1.0
    scores = {
        kind: _expected(_value(record, values), usual_value, record.runs)
        / _expected(record.work, usual_work, record.runs)
        for kind, record in sorted(records.items())
    }
    total = sum(scores.values())
    return {kind: score / total for kind, score in scores.items()}


def _value(record: Record, values: Mapping[str, float]) -> float:
    """Returns the value of all runs of a kind."""
    return sum(values[name] * count for name, count in sorted(record.reached.items()) if name in values)


def _expected(total: float, usual: float, runs: int) -> float:
    """Returns what the next run of a kind is expected to add to the total of its ``runs``."""
    return (total + PRIOR_RUNS * usual) / (runs + PRIOR_RUNS)
