"""Judges the dead letters of a share group (KIP-1191) beside what its members saw.

* ``share-letter-missing``: a record was given up, and the queue has no dead letter of it. A record was given up if a
  rejection is stored, or if it was neither accepted nor rejected at the end, and is not lost either.
* ``share-letter-wrong``: a dead letter is of a record that was never sent nor delivered, or copies another value, or
  says that a member rejected what none has, or that the limit of deliveries was reached below it.

A record may have several dead letters: a leader that dies may have written one already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau_jepsen.checkers.group.share import Acknowledged, Place


class DeadLetter(NamedTuple):
    """A record of a dead letter queue."""

    place: Place
    """That of the record that was given up."""
    value: int | None
    """The value that was copied; None if there is none."""
    deliveries: int
    is_rejection: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one record."""

    value: int | None
    """That of the producer's acknowledgement, or of a delivery."""
    rejections: Sequence[Acknowledged]
    acceptances: Sequence[Acknowledged]

    @property
    def is_given_up(self) -> bool:
        """Whether the record surely was given up, if all records were drained and none is lost."""
        if any(each.is_stored is True for each in self.rejections):
            return all(each.is_stored is False for each in self.acceptances)
        return not any(each.is_stored is not False for each in (*self.rejections, *self.acceptances))


def missing(places: Mapping[Place, Evidence], letters: Sequence[DeadLetter]) -> list[Place]:
    """Returns the records that were given up without a dead letter."""
    there = {letter.place for letter in letters}
    return [place for place, evidence in places.items() if evidence.is_given_up and place not in there]


def wrong(
    places: Mapping[Place, Evidence], letters: Sequence[DeadLetter], delivery_count_max: int
) -> list[tuple[Place, str]]:
    """Returns the dead letters that do not fit their records, and why."""
    found: list[tuple[Place, str]] = []
    for letter in letters:
        evidence = places.get(letter.place)
        why = _misfit(letter, evidence, delivery_count_max)
        if why:
            found.append((letter.place, f"{letter}: {why}"))
    return found


def _misfit(letter: DeadLetter, evidence: Evidence | None, delivery_count_max: int) -> str:
    if not 1 <= letter.deliveries <= delivery_count_max:
        return f"the limit is {delivery_count_max}"
    if not letter.is_rejection and letter.deliveries < delivery_count_max:
        return f"the limit of {delivery_count_max} deliveries was not reached"
    if evidence is None:
        return "" if not letter.is_rejection else "no member has had the record"
    if letter.value is not None and evidence.value is not None and letter.value != evidence.value:
        return f"the record has the value {evidence.value}"
    if letter.is_rejection and all(each.is_stored is False for each in evidence.rejections):
        return "no member has rejected the record"
    return ""
