"""Judges what the members of a share group saw (KIP-932).

The events of a run are sends, deliveries and acknowledgements. From them follow, whatever the faults were:

* ``share-two-holders``: a member's acknowledgement was taken, although another member surely held the record: it was
  delivered to that one since, and the lock cannot have expired, even if a broker's clock runs at twice the rate. Later
  the record may have come back to the first member, which acknowledges it before the application sees it again.
* ``share-delivered-again``: a record was delivered after its acceptance or rejection was stored. A leader that was cut
  off and replaced delivers what it remembers until it learns of its successor, as in Kafka. No answer to that is
  stored, so only a delivery counts whose answer was.
* ``share-count``: the delivery count does not rise after a stored release, or exceeds the group's limit, or is below 1.
* ``share-lost``: an acknowledged record was neither accepted nor rejected at the end, and the limit was not reached.
  Some deliveries reach no member: a fetch counts although its answer is lost, or its member dies. So the limit may be
  reached by deliveries that the history lacks, and the state that the coordinator has stored (``Archived``) decides.
* ``share-altered``: another value was delivered at an offset than the producer's acknowledgement or an earlier delivery
  names, or a value at another offset, or at one that no log has. No two records have one value.
* ``share-letter-missing`` and ``share-letter-wrong``: see ``dead_letters``.

Times are those of the run. An interval counts only where it is certain: a delivery happened between the beginning of
the fetch and the end of the poll that returned it, an acknowledgement between its beginning and its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.checkers.group import dead_letters
from moldau_jepsen.checkers.group.dead_letters import DeadLetter, Evidence
from moldau_jepsen.checkers.log.reach import Reaches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from moldau_jepsen.history import TopicPartition

CLOCK_RATE_MAX = 2
"""A lock may end in half of its time: runs let clocks of brokers run at twice the rate."""

Place = tuple["TopicPartition", int]
"""Partition and offset of a record."""


class ShareAnomalyKind(Enum):
    """Violations of a share group."""

    TWO_HOLDERS = "share-two-holders"
    DELIVERED_AGAIN = "share-delivered-again"
    COUNT = "share-count"
    LOST = "share-lost"
    ALTERED = "share-altered"
    LETTER_MISSING = "share-letter-missing"
    LETTER_WRONG = "share-letter-wrong"


class Acknowledgement(Enum):
    """A member's verdict on a record."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Sent(NamedTuple):
    """A record that the producer knows to be stored."""

    place: Place
    value: int


@dataclass(slots=True)
class Delivered:
    """A record that a member received; the broker acquired it for the member between the two times."""

    place: Place
    value: int
    count: int
    member: int
    begun_ms: float
    ended_ms: float


class Acknowledged(NamedTuple):
    """An acknowledgement of a delivery; ``is_stored`` is None if the outcome is unknown."""

    place: Place
    member: int
    kind: Acknowledgement
    begun_ms: float
    ended_ms: float
    is_stored: bool | None


class Archived(NamedTuple):
    """A record that the group's coordinator has stored as archived after so many deliveries."""

    place: Place
    deliveries: int


Event = Sent | Delivered | Acknowledged | Archived | DeadLetter


@dataclass(frozen=True, slots=True)
class ShareAnomaly:
    """One violation."""

    kind: ShareAnomalyKind
    place: Place
    text: str


@dataclass(frozen=True, slots=True)
class ShareVerdict:
    """The violations of a run, and how much it exercised."""

    anomalies: tuple[ShareAnomaly, ...]
    records: int
    deliveries: int
    acknowledged: int

    @property
    def valid(self) -> bool:
        """Whether there are no violations."""
        return not self.anomalies


def check_share_group(
    events: Iterable[Event],
    *,
    delivery_count_max: int,
    lock_ms: float,
    drained: bool = True,
    has_queue: bool = False,
) -> ShareVerdict:
    """Judges the events of one group, whose locks last for ``lock_ms``.

    ``drained``: at the end a member accepted whatever it was given, until nothing came for longer than the lock.
    ``has_queue``: the group has a dead letter queue, which was read after that.
    """
    events = list(events)
    letters = [event for event in events if isinstance(event, DeadLetter)]
    sent: dict[Place, int] = {}
    deliveries: dict[Place, list[Delivered]] = {}
    acknowledgements: dict[Place, list[Acknowledged]] = {}
    archived: dict[Place, int] = {}
    for event in events:
        if isinstance(event, Sent):
            sent[event.place] = event.value
        elif isinstance(event, Delivered):
            deliveries.setdefault(event.place, []).append(event)
        elif isinstance(event, Archived):
            archived[event.place] = max(event.deliveries, archived.get(event.place, 0))
        elif isinstance(event, Acknowledged):
            acknowledgements.setdefault(event.place, []).append(event)
    found, misplaced = _misplaced(sent, deliveries)
    for place in sorted(dict.fromkeys((*sent, *deliveries))):
        received = sorted(deliveries.get(place, []), key=lambda each: each.ended_ms)
        answers = acknowledgements.get(place, [])
        found += _altered(place, sent.get(place), received)
        found += _two_holders(place, received, answers, lock_ms)
        found += _delivered_again(place, received, answers)
        found += _counts(place, received, answers, delivery_count_max)
        if drained and place in sent and place not in misplaced:
            found += _lost(place, received, answers, delivery_count_max, archived.get(place, 0))
    lost = {each.place for each in found if each.kind is ShareAnomalyKind.LOST}
    known = _evidence(sent, deliveries, acknowledgements)
    for place, text in dead_letters.wrong(known, letters, delivery_count_max):
        found.append(ShareAnomaly(ShareAnomalyKind.LETTER_WRONG, place, text))
    for place in dead_letters.missing(known, letters) if has_queue and drained else ():
        if place not in lost | misplaced:
            text = "the record was given up, and the queue has no dead letter of it"
            found.append(ShareAnomaly(ShareAnomalyKind.LETTER_MISSING, place, text))
    return ShareVerdict(
        anomalies=tuple(found),
        records=len(sent),
        deliveries=sum(map(len, deliveries.values())),
        acknowledged=sum(each.is_stored is True for answers in acknowledgements.values() for each in answers),
    )


def _evidence(
    sent: dict[Place, int],
    deliveries: dict[Place, list[Delivered]],
    acknowledgements: dict[Place, list[Acknowledged]],
) -> dict[Place, Evidence]:
    """Returns what is known of each record that is surely there."""
    found: dict[Place, Evidence] = {}
    for place in dict.fromkeys((*sent, *deliveries)):
        received = deliveries.get(place, [])
        answers = acknowledgements.get(place, [])
        found[place] = Evidence(
            value=sent.get(place, received[0].value if received else None),
            rejections=[each for each in answers if each.kind is Acknowledgement.REJECT],
            acceptances=[each for each in answers if each.kind is Acknowledgement.ACCEPT],
        )
    return found


def _misplaced(
    sent: dict[Place, int], deliveries: dict[Place, list[Delivered]]
) -> tuple[list[ShareAnomaly], set[Place]]:
    """Finds records at other places than their acknowledgements or other deliveries name, or at impossible ones.

    Returns the places that the acknowledgements name, too: their records were not lost.
    """
    place_of = {value: place for place, value in sent.items()}
    reaches: Reaches[TopicPartition] = Reaches()
    found: list[ShareAnomaly] = []
    misplaced: set[Place] = set()
    for place in sorted({*sent, *deliveries}):
        why = reaches.refusal(*place)
        received: dict[int, Delivered] = {}
        for each in deliveries.get(place, []):
            received.setdefault(each.value, each)
        texts = []
        for each in received.values() if place not in sent else ():
            right = place_of.setdefault(each.value, place)
            if right != place:
                how = "acknowledged" if right in sent else "and came"
                texts.append(f"{_came(each)}, {how} at offset {right[1]}{_of(right, place)}")
                misplaced.add(right)
        if place not in sent and len(received) > 1:
            texts.append(" and ".join(map(_came, received.values())))
        if why and not texts:
            first = next(iter(received.values()), None)
            texts.append(f"{_came(first) if first else f'value {sent[place]} was acknowledged there'}, {why}")
        found += [ShareAnomaly(ShareAnomalyKind.ALTERED, place, text) for text in texts]
    return found, misplaced


def _came(delivery: Delivered) -> str:
    return f"value {delivery.value} came to member {delivery.member} at {delivery.ended_ms:.0f} ms"


def _of(place: Place, other: Place) -> str:
    return "" if place[0] == other[0] else f" of {place[0]}"


def _altered(place: Place, value: int | None, received: list[Delivered]) -> list[ShareAnomaly]:
    wrong = [each for each in received if value is not None and each.value != value]
    return [ShareAnomaly(ShareAnomalyKind.ALTERED, place, f"{value} came as {each.value}") for each in wrong]


def _two_holders(
    place: Place, received: list[Delivered], answers: list[Acknowledged], lock_ms: float
) -> list[ShareAnomaly]:
    found = []
    for answer in answers:
        own = _last_before(received, answer)
        if own is None or answer.is_stored is not True or _is_done_by_another(answer, answers):
            continue
        for other in received:
            is_between = own.ended_ms <= other.begun_ms and other.ended_ms <= answer.begun_ms
            is_locked = answer.ended_ms <= other.begun_ms + lock_ms / CLOCK_RATE_MAX
            if other.member != own.member and is_between and is_locked:
                text = (
                    f"member {own.member} held it from {own.ended_ms:.0f} to {answer.begun_ms:.0f} ms, as did {other}"
                )
                found.append(ShareAnomaly(ShareAnomalyKind.TWO_HOLDERS, place, text))
    return found


def _is_done_by_another(answer: Acknowledged, answers: list[Acknowledged]) -> bool:
    """Returns whether the record may have been done already: acknowledgements of such records are taken and ignored."""
    return any(
        other.member != answer.member and _is_final(other) and other.is_stored is not False
        for other in answers
        if other.begun_ms <= answer.ended_ms
    )


def _last_before(received: list[Delivered], answer: Acknowledged) -> Delivered | None:
    """Returns the delivery that a member acknowledged: its last one."""
    own = [each for each in received if each.member == answer.member and each.ended_ms <= answer.begun_ms]
    return own[-1] if own else None


def _delivered_again(place: Place, received: list[Delivered], answers: list[Acknowledged]) -> list[ShareAnomaly]:
    done = [each.ended_ms for each in answers if each.is_stored is True and _is_final(each)]
    if not done:
        return []
    late = [each for each in received if each.begun_ms > min(done) and _is_of_a_leader(each, received, answers)]
    return [
        ShareAnomaly(ShareAnomalyKind.DELIVERED_AGAIN, place, f"{each} after it was done at {min(done):.0f} ms")
        for each in late
    ]


def _counts(
    place: Place, received: list[Delivered], answers: list[Acknowledged], delivery_count_max: int
) -> list[ShareAnomaly]:
    found = [
        ShareAnomaly(ShareAnomalyKind.COUNT, place, f"{each}, the limit is {delivery_count_max}")
        for each in received
        if not 1 <= each.count <= delivery_count_max
    ]
    for answer in answers:
        if answer.kind is not Acknowledgement.RELEASE or answer.is_stored is not True:
            continue
        own = _last_before(received, answer)
        following = next((each for each in _later(received, answer) if _is_of_a_leader(each, received, answers)), None)
        if own is not None and following is not None and following.count <= own.count:
            text = f"{following} after a release at count {own.count}"
            found.append(ShareAnomaly(ShareAnomalyKind.COUNT, place, text))
    return found


def _later(received: list[Delivered], answer: Acknowledged) -> Iterator[Delivered]:
    return (each for each in received if each.begun_ms > answer.ended_ms)


def _is_of_a_leader(delivery: Delivered, received: list[Delivered], answers: list[Acknowledged]) -> bool:
    """Returns whether the partition's leader surely made a delivery: it has stored an answer to it."""
    return any(each.is_stored is True and _last_before(received, each) is delivery for each in answers)


def _lost(
    place: Place, received: list[Delivered], answers: list[Acknowledged], delivery_count_max: int, archived: int
) -> list[ShareAnomaly]:
    is_done = any(_is_final(each) and each.is_stored is not False for each in answers)
    if is_done or max(archived, *(each.count for each in received), 0) >= delivery_count_max:
        return []
    counts = ", ".join(str(each.count) for each in received)
    text = f"delivered {len(received)} times (with the counts {counts}), neither accepted nor rejected"
    if archived:
        text += f"; archived after {archived} deliveries, the limit is {delivery_count_max}"
    return [ShareAnomaly(ShareAnomalyKind.LOST, place, text)]


def _is_final(answer: Acknowledged) -> bool:
    return answer.kind in (Acknowledgement.ACCEPT, Acknowledgement.REJECT)
