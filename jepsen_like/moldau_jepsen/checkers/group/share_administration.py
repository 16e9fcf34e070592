"""Judges a share group that an administrator changes while its members come and go (KIP-932).

Calls set the start offsets of share-partitions, delete them, or delete the group. A refused call changes nothing. One
of unknown outcome may take effect at any later time, or never. From the calls follow the *sources* of an observation:
the calls that may have made the state which it shows. Another call has *replaced* a source if it began after the source
had ended, and certainly took effect before the observation.

* A delivery lies at or behind the start offset of a source. After a deletion the group begins by its reset rule.
* The delivery count does not exceed the limit of the group, and begins again with each source.
* Each record behind the start of all last sources ends accepted, rejected or at the limit.
* DescribeShareGroupOffsets shows the start offset of a source, or a later one if members may have moved it. It never
  goes back between two calls.
* No call is accepted while a member is in the group.
* No offset is far above those of the records that were written.

A leader, or a share coordinator, that was replaced shows what it remembers until it learns of its successor, as in
Kafka. Also, a leader keeps a share-partition while any member has a session with it, even one that the group has
removed. So a call is certain for a delivery only if the same member has had an acknowledgement stored before, of a
record that was delivered after the call: a write of the former state would have been refused. Descriptions may be stale
for a while. After the run, when all faults are healed and all members have left, nothing may be stale.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.checkers.group.share import Acknowledgement
from moldau_jepsen.checkers.log.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from moldau_jepsen.checkers.group.share import Acknowledged, Archived, Delivered, Place
    from moldau_jepsen.history import TopicPartition

OPEN = math.inf
"""The end of a call of unknown outcome, of a membership that may last, and of a setting that some broker may lack."""
RESET, LIMIT = "share.auto.offset.reset", "share.delivery.count.limit"
DEFAULT_LIMIT = 5
"""The limit of a group without one of its own."""


class ShareAct(Enum):
    """The kinds of calls."""

    ALTER = "alter-offsets"
    DELETE_OFFSETS = "delete-offsets"
    DELETE_GROUP = "delete-group"


class Outcome(Enum):
    """The outcome of a call, as its caller knows it."""

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCall:
    """One call with the start offset that it gives to each share-partition; None where it deletes the state."""

    act: ShareAct
    outcome: Outcome
    begun_ms: float
    answered_ms: float
    starts: tuple[tuple[TopicPartition, int | None], ...]
    has_member: bool = False
    """Whether a member was certainly in the group: its heartbeats before and after the call were answered."""


class Setting(NamedTuple):
    """A configuration of the group."""

    name: str
    value: str
    begun_ms: float
    answered_ms: float
    """``OPEN`` if the outcome is unknown."""
    known_ms: float
    """When all brokers were seen to have it."""


class OffsetsRead(NamedTuple):
    """One answer of DescribeShareGroupOffsets; None where a share-partition has no start offset."""

    begun_ms: float
    ended_ms: float
    starts: tuple[tuple[TopicPartition, int | None], ...]
    is_final: bool = False
    """It was sent after all faults had been healed, and all members had left."""


@dataclass(slots=True, kw_only=True)
class Presence:
    """The time during which a member may have been in the group."""

    begun_ms: float
    ended_ms: float = OPEN
    is_exact: bool = True
    """Whether all acquisitions of the member are known: deliveries, and ``ShareAdministrationHistory.lost_fetches``."""


class Written(NamedTuple):
    """A record that its producer knows to be stored."""

    place: Place
    answered_ms: float


@dataclass(slots=True, kw_only=True)
class ShareAdministrationHistory:
    """Everything that was seen of one group."""

    group: str
    calls: list[ShareCall] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    reads: list[OffsetsRead] = field(default_factory=list)
    members: list[Presence] = field(default_factory=list)
    deliveries: list[Delivered] = field(default_factory=list)
    answers: list[Acknowledged] = field(default_factory=list)
    lost_fetches: list[float] = field(default_factory=list)
    """When fetches began that were not answered: each may acquire a record once, at any later time."""
    archived: list[Archived] = field(default_factory=list)
    """Records that the share coordinators have given up since the last call."""


class _Source(NamedTuple):
    """A call as it concerns one share-partition, or the beginning of the run."""

    start: int | None
    begun_ms: float
    ended_ms: float
    text: str


_BEGINNING = _Source(None, -OPEN, -OPEN, "the beginning")


def check_share_administration(
    history: ShareAdministrationHistory,
    written: Iterable[Written],
    kept: Iterable[TopicPartition],
    *,
    undivided: Collection[str],
    final_ms: float,
    stale_ms: float,
) -> list[str]:
    """Returns the anomalies of one group, one sentence each.

    Args:
        history: the group.
        written: the records of all its topics.
        kept: the partitions whose topics were not deleted, and that were read to their ends after the run.
        undivided: the topics that have one partition.
        final_ms: the end of the run; nothing is stale afterwards.
        stale_ms: how long a replaced coordinator may answer.
    """
    return _Judge(history, written, undivided, final_ms, stale_ms).judge(kept)


class _Judge:
    """The state of one judgement."""

    def __init__(
        self,
        history: ShareAdministrationHistory,
        written: Iterable[Written],
        undivided: Collection[str],
        final_ms: float,
        stale_ms: float,
    ) -> None:
        self._history = history
        self._undivided = undivided
        self._final_ms = final_ms
        self._stale_ms = stale_ms
        self._written: dict[TopicPartition, list[Written]] = defaultdict(list)
        for each in written:
            self._written[each.place[0]].append(each)
        self._reaches: dict[TopicPartition, Reach] = defaultdict(Reach)
        for partition, records in self._written.items():
            for offset in sorted(each.place[1] for each in records):
                self._reaches[partition].admits(offset)
        self._answered = {each.place: each.answered_ms for records in self._written.values() for each in records}
        self._sources: dict[TopicPartition, list[_Source]] = defaultdict(lambda: [_BEGINNING])
        for call in history.calls:
            if call.outcome is not Outcome.REFUSED:
                ended_ms = call.answered_ms if call.outcome is Outcome.OK else OPEN
                for partition, start in call.starts:
                    text = f"{call.act.value} of {call.begun_ms:.0f} ms ({call.outcome.value}, start {start})"
                    self._sources[partition].append(_Source(start, call.begun_ms, ended_ms, text))
        self._deliveries: dict[Place, list[Delivered]] = defaultdict(list)
        for delivery in history.deliveries:
            self._deliveries[delivery.place].append(delivery)
        self._answers: dict[Place, list[Acknowledged]] = defaultdict(list)
        for answer in history.answers:
            self._answers[answer.place].append(answer)
        self._limits = self._find_limits()
        self._proofs = self._find_proofs()

    def judge(self, kept: Iterable[TopicPartition]) -> list[str]:
        """Returns all anomalies."""
        found = [
            f"{call.act.value} of {call.begun_ms:.0f} ms was accepted while a member was in the group"
            for call in self._history.calls
            if call.has_member and call.outcome is Outcome.OK
        ]
        for read in self._history.reads:
            found += [text for partition, start in read.starts if (text := self._wrong_read(read, partition, start))]
        found += self._gone_back()
        for delivery in self._history.deliveries:
            sources = self._sources_of(delivery)
            found += [
                text for text in (self._wrong_start(delivery, sources), self._wrong_count(delivery, sources)) if text
            ]
        for partition in kept:
            found += self._lost(partition)
        return [f"group {self._history.group}: {text}" for text in found]

    # --- sources

    def _possible(
        self, partition: TopicPartition, ended_ms: float, is_certain: Callable[[_Source], bool]
    ) -> list[_Source]:
        """Returns the sources of an observation; ``is_certain``: a call took effect before, and the observer knows."""
        begun = [each for each in self._sources[partition] if each.begun_ms <= ended_ms]
        certain_ms = max((each.begun_ms for each in begun if is_certain(each)), default=-OPEN)
        return [each for each in begun if each.ended_ms >= certain_ms]

    def _sources_of(self, delivery: Delivered) -> list[_Source]:
        partition = delivery.place[0]

        def is_certain(source: _Source) -> bool:
            if source.ended_ms >= delivery.begun_ms:
                return False
            return delivery.begun_ms >= self._final_ms or any(
                acquired_ms > source.ended_ms and stored_ms < delivery.begun_ms
                for acquired_ms, stored_ms in self._proofs.get((delivery.member, partition), ())
            )

        return self._possible(partition, delivery.ended_ms, is_certain)

    def _find_limits(self) -> list[tuple[float, int]]:
        """Returns the limits of deliveries that may have held, each with the time from which on.

        A lower limit does not lower counts, so all former ones matter.
        """
        limits = [each for each in self._history.settings if each.name == LIMIT]
        first_ms = min((each.begun_ms for each in self._history.members), default=OPEN)
        found = [(each.begun_ms, int(each.value)) for each in limits]
        return found if any(each.known_ms < first_ms for each in limits) else [(-OPEN, DEFAULT_LIMIT), *found]

    def _find_proofs(self) -> dict[tuple[int, TopicPartition], list[tuple[float, float]]]:
        """Returns for each member the stored acknowledgements that needed a write: acquisition and end of the answer.

        A renewal needs none, nor does a record that was given up at the limit.
        """
        limit = min(limit for _, limit in self._limits)
        found: dict[tuple[int, TopicPartition], list[tuple[float, float]]] = defaultdict(list)
        for place, answers in self._answers.items():
            for answer in answers:
                own = [
                    each
                    for each in self._deliveries[place]
                    if each.member == answer.member and each.ended_ms <= answer.begun_ms
                ]
                if not own or answer.is_stored is not True or answer.kind is Acknowledgement.RENEW:
                    continue
                last = max(own, key=lambda each: each.ended_ms)
                if last.count < limit:
                    found[answer.member, place[0]].append((last.begun_ms, answer.ended_ms))
        return found

    # --- deliveries

    def _wrong_start(self, delivery: Delivered, sources: Sequence[_Source]) -> str:
        why = self._refusal(*delivery.place)
        if why:
            return f"{delivery.place[0]}: offset {delivery.place[1]} was delivered between {_span(delivery)}, {why}"
        if not all(self._forbids(source, delivery) for source in sources):
            return ""
        partition, offset = delivery.place
        after = "; ".join(each.text for each in sources)
        return f"{partition}: offset {offset} was delivered between {_span(delivery)}, before the start set by {after}"

    def _forbids(self, source: _Source, delivery: Delivered) -> bool:
        """Returns whether a record lies before the start offset of a source.

        After a deletion with the rule ``latest`` a group begins behind the records that were acknowledged before. Where
        a topic has several partitions, those that begin after the first one begin with their first record.
        """
        partition, offset = delivery.place
        if source.start is not None:
            return offset < source.start
        chosen_ms = self._first_choice_ms(source)
        if partition.topic not in self._undivided or self._answered.get(delivery.place, OPEN) >= chosen_ms:
            return False
        return self._reset_rules(chosen_ms, delivery.ended_ms) == {"latest"}

    def _first_choice_ms(self, source: _Source) -> float:
        """Returns when a leader may first have chosen the start offset after a deletion: not without a member."""
        present = [each.begun_ms for each in self._history.members if each.ended_ms >= source.begun_ms]
        return max(source.begun_ms, min(present, default=OPEN))

    def _reset_rules(self, begun_ms: float, ended_ms: float) -> set[str]:
        """Returns the reset rules that may have held at some broker during a time."""
        rules = [each for each in self._history.settings if each.name == RESET and each.begun_ms <= ended_ms]
        known = [each for each in rules if each.known_ms < begun_ms]
        since_ms = max((each.begun_ms for each in known), default=-OPEN)
        found = {each.value for each in rules if each.answered_ms >= since_ms}
        return found if known else {*found, "default"}

    def _wrong_count(self, delivery: Delivered, sources: Sequence[_Source]) -> str:
        partition, offset = delivery.place
        where = f"{partition}: offset {offset} was delivered between {_span(delivery)} with the count {delivery.count}"
        limits = [limit for begun_ms, limit in self._limits if begun_ms <= delivery.ended_ms]
        if delivery.count > max(limits):
            return f"{where}, the limit is {max(limits)}"
        if not all(each.is_exact for each in self._history.members if each.begun_ms <= delivery.ended_ms):
            return ""  # consumers do not say which of their fetches were lost
        since_ms = min(each.begun_ms for each in sources)
        seen = sum(
            each.ended_ms >= since_ms and each.begun_ms <= delivery.ended_ms
            for each in self._deliveries[delivery.place]
        )
        unseen = sum(begun_ms <= delivery.ended_ms for begun_ms in self._history.lost_fetches)
        if delivery.count <= seen + unseen:
            return ""
        after = "; ".join(each.text for each in sources)
        return f"{where}, but at most {seen + unseen} deliveries followed {after}"

    # --- the end

    def _lost(self, partition: TopicPartition) -> list[str]:
        """Returns the records that the last sources still owe."""
        sources = self._possible(partition, OPEN, lambda each: each.ended_ms < OPEN)
        since_ms = min(each.begun_ms for each in sources)
        limit = min(limit for _, limit in self._limits)
        archived = {each.place: each.deliveries for each in self._history.archived}
        found = []
        for place, _ in self._written[partition]:
            if not all(self._owes(source, place[1]) for source in sources):
                continue
            is_done = any(
                each.kind in (Acknowledgement.ACCEPT, Acknowledgement.REJECT)
                and each.is_stored is not False
                and each.ended_ms >= since_ms
                for each in self._answers[place]
            )
            counts = [each.count for each in self._deliveries[place] if each.ended_ms >= since_ms]
            if not is_done and max([*counts, archived.get(place, 0)]) < limit:
                after = "; ".join(each.text for each in sources)
                text = f"delivered with the counts {counts}" if counts else "never delivered"
                found.append(f"{partition}: offset {place[1]} was {text} after {after}, and is not done")
        return found

    def _owes(self, source: _Source, offset: int) -> bool:
        if source.start is not None:
            return offset >= source.start
        return self._reset_rules(self._first_choice_ms(source), OPEN) == {"earliest"}

    # --- descriptions

    def _refusal(self, partition: TopicPartition, offset: int | None) -> str:
        """Returns why a partition cannot have an offset, empty if it can."""
        reach = self._reaches[partition]
        return "" if offset is None or reach.may_admit(offset) else reach.refusal(offset)

    def _wrong_read(self, read: OffsetsRead, partition: TopicPartition, start: int | None) -> str:
        why = self._refusal(partition, start)
        if why:
            return f"{partition}: a description between {_span(read)} shows the start offset {start}, {why}"
        known_ms = self._known_ms(read)
        sources = self._possible(partition, read.ended_ms, lambda each: each.ended_ms < known_ms)
        if any(self._explains(source, start, read) for source in sources):
            return ""
        after = "; ".join(each.text for each in sources)
        return f"{partition}: a description between {_span(read)} shows the start offset {start} after {after}"

    def _known_ms(self, read: OffsetsRead) -> float:
        """Returns the time until which an answer knows what has happened."""
        return read.begun_ms - (0.0 if read.is_final else self._stale_ms)

    def _explains(self, source: _Source, start: int | None, read: OffsetsRead) -> bool:
        if start is None:
            return source.start is None
        moved = any(
            each.ended_ms >= source.begun_ms and each.begun_ms <= read.ended_ms for each in self._history.members
        )
        if source.start is None:
            return moved
        return start == source.start or (moved and start > source.start)

    def _gone_back(self) -> list[str]:
        """Returns the start offsets that went back although no call may have changed them."""
        found = []
        highest: dict[TopicPartition, tuple[int, OffsetsRead]] = {}
        for read in sorted(self._history.reads, key=lambda each: each.ended_ms):
            for partition, start in read.starts:
                before = highest.get(partition)
                if before is not None and any(
                    each.ended_ms >= before[1].begun_ms and each.begun_ms <= read.ended_ms
                    for each in self._sources[partition]
                ):
                    before = None
                    del highest[partition]
                if start is None or self._refusal(partition, start):
                    continue
                if before is None or start > before[0]:
                    highest[partition] = start, read
                elif start < before[0] and before[1].ended_ms < self._known_ms(read):
                    spans = f"{_span(before[1])} and {_span(read)}"
                    found.append(
                        f"{partition}: the start offset went back from {before[0]} to {start}, between {spans}"
                    )
        return found


def _span(observed: Delivered | OffsetsRead) -> str:
    return f"{observed.begun_ms:.0f} and {observed.ended_ms:.0f} ms"
