"""Judges what the members of a streams group did and which answers they got (KIP-1071).

A member acts on an active task from the answer that assigns it until it has closed the task, which it does before the
heartbeat that reports the revocation. The rules:

1. In one member epoch, one member acts on a task.
2. Two members act on one task at the same time only if the coordinator may have removed the first one: the second
   begins no earlier than a session after the first one's last heartbeat that the same coordinator accepted was sent. A
   coordinator that another one has replaced, and that does not know it yet, still accepts heartbeats.
3. A committed offset is neither lost nor replaced by an older one, nor by one that no commit named, or a refused one
   only. A coordinator that another one has replaced may still answer with the older offset that it knows: such a read
   does not count if another broker accepted both the last commit before it and the first one after it.
4. After the faults have ended, each task runs on exactly one member.

A commit without an answer may reach the coordinator late, and replace later commits of the same holding: the member is
still the owner. So rule 3 trusts the commits of a holding only up to its first unknown commit.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

Task = tuple[str, int]
"""Subtopology and partition."""

NO_OFFSET = -1
"""The offset of a partition without a commit."""


class StreamsAnomalyKind(enum.Enum):
    """The ways in which a run breaks the rules: two members, an older commit, a lost commit, no rest."""

    TWO_IN_EPOCH = "streams-two-in-epoch"
    TWO_AT_ONCE = "streams-two-at-once"
    OFFSET_BACK = "streams-offset-back"
    OFFSET_LOST = "streams-offset-lost"
    NOT_SETTLED = "streams-not-settled"


@dataclass(frozen=True, slots=True)
class StreamsAnomaly:
    """One broken rule."""

    kind: StreamsAnomalyKind
    text: str


@dataclass(slots=True, eq=False)
class Holding:
    """One member's time with one active task. ``ended_ms`` is None while the member acts on it."""

    task: Task
    member: str
    begun_ms: float
    ended_ms: float | None = None
    epochs: set[int] = field(default_factory=set)
    coordinator: str = ""
    """The broker whose answer began it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit of one offset; ``accepted`` is None if the member got no answer."""

    holding: Holding
    partition: int
    offset: int
    begun_ms: float
    ended_ms: float
    accepted: bool | None
    coordinator: str = ""
    """The broker that accepted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """An answered OffsetFetch of one partition; ``offset`` may be ``NO_OFFSET``."""

    partition: int
    offset: int
    begun_ms: float
    coordinator: str = ""
    """The broker that answered."""


@dataclass(slots=True)
class History:
    """Records the actions of the members of one run."""

    holdings: list[Holding] = field(default_factory=list)
    accepted: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    """When each member sent the heartbeats that were accepted, in order, and the coordinator that accepted them."""
    commits: list[Commit] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    fenced: int = 0
    """Heartbeats that were refused because the coordinator had removed the member."""
    refused: int = 0
    """Commits that were refused because of the sender's epoch."""
    unsettled: str = ""
    """Holds the problems of a group that should have come to rest."""


def judge(history: History, session_ms: float) -> list[StreamsAnomaly]:
    """Returns the broken rules."""
    found = [*_one_member_in_an_epoch(history), *_one_member_at_a_time(history, session_ms), *_commits_stay(history)]
    if history.unsettled:
        found.append(StreamsAnomaly(StreamsAnomalyKind.NOT_SETTLED, history.unsettled))
    return found


def _one_member_in_an_epoch(history: History) -> list[StreamsAnomaly]:
    found: list[StreamsAnomaly] = []
    actor: dict[tuple[Task, int], str] = {}
    for holding in history.holdings:
        for epoch in sorted(holding.epochs):
            other = actor.setdefault((holding.task, epoch), holding.member)
            if other != holding.member:
                text = f"{other} and {holding.member} act on {holding.task} in epoch {epoch}"
                found.append(StreamsAnomaly(StreamsAnomalyKind.TWO_IN_EPOCH, text))
    return found


def _one_member_at_a_time(history: History, session_ms: float) -> list[StreamsAnomaly]:
    found: list[StreamsAnomaly] = []
    former: dict[Task, list[Holding]] = {}
    for holding in sorted(history.holdings, key=lambda each: each.begun_ms):
        for other in former.setdefault(holding.task, []):
            overlap = other.ended_ms is None or other.ended_ms > holding.begun_ms
            if not overlap or other.member == holding.member:
                continue
            # Which of the two the coordinator has removed does not matter: a late answer may assign in vain.
            gaps = [holding.begun_ms - _last_accepted(history, each, holding.coordinator) for each in (other, holding)]
            if max(gaps) < session_ms:
                text = (
                    f"{holding.member} begins {holding.task} at {holding.begun_ms:.0f}, and {other.member} acts on it"
                )
                found.append(StreamsAnomaly(StreamsAnomalyKind.TWO_AT_ONCE, text))
        former[holding.task].append(holding)
    return found


def _last_accepted(history: History, holding: Holding, coordinator: str) -> float:
    """Returns when the member sent its last heartbeat within the holding, or that began it, that was accepted there."""
    end = float("inf") if holding.ended_ms is None else holding.ended_ms
    beats = history.accepted.get(holding.member, ())
    return max((at for at, host in beats if at <= end and host == coordinator), default=float("-inf"))


def _firm(commits: list[Commit]) -> list[Commit]:
    """Returns the accepted commits of one partition that no late commit of the same holding can replace."""
    doubtful: dict[int, float] = {}
    for commit in commits:
        if commit.accepted is None:
            key = id(commit.holding)
            doubtful[key] = min(doubtful.get(key, float("inf")), commit.begun_ms)
    return [each for each in commits if each.accepted and each.ended_ms <= doubtful.get(id(each.holding), float("inf"))]


def _is_outdated(read: Read, history: History) -> bool:
    """Returns whether other brokers coordinated the group right before and after a read, by the accepted commits."""
    accepted = sorted((each.ended_ms, each.coordinator) for each in history.commits if each.accepted)
    before = [coordinator for ended_ms, coordinator in accepted if ended_ms <= read.begun_ms]
    after = [coordinator for ended_ms, coordinator in accepted if ended_ms > read.begun_ms]
    return bool(before and after) and read.coordinator not in (before[-1], after[0])


def _commits_stay(history: History) -> list[StreamsAnomaly]:
    found: list[StreamsAnomaly] = []
    partitions = {each.partition for each in history.commits} | {each.partition for each in history.reads}
    for partition in sorted(partitions):
        commits = [each for each in history.commits if each.partition == partition]
        possible = {each.offset for each in commits if each.accepted is not False}
        firm = _firm(commits)
        ends = sorted((each.ended_ms, each.offset) for each in firm)

        def floor(moment: float, ends: list[tuple[float, int]] = ends) -> int:
            return max((offset for ended, offset in ends if ended <= moment), default=NO_OFFSET)

        for commit in firm:
            least = floor(commit.begun_ms)
            if commit.offset < least:
                text = f"{commit.holding.member} commits {commit.offset} of partition {partition} after {least}"
                found.append(StreamsAnomaly(StreamsAnomalyKind.OFFSET_BACK, text))
        for read in (each for each in history.reads if each.partition == partition):
            least = floor(read.begun_ms)
            if read.offset < least and not _is_outdated(read, history):
                text = f"{read.offset} is committed for partition {partition}, and {least} was before"
                found.append(StreamsAnomaly(StreamsAnomalyKind.OFFSET_LOST, text))
            elif read.offset != NO_OFFSET and read.offset not in possible:
                text = f"{read.offset} is committed for partition {partition}, which no accepted commit named"
                found.append(StreamsAnomaly(StreamsAnomalyKind.OFFSET_LOST, text))
    return found
