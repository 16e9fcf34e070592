"""Judges a group whose offsets are committed, reset and deleted while its members come and go.

Each write has a value of its own, so a read shows which write it saw. A read is wrong if no client had asked for the
write, or if another one had certainly replaced it. Reads of the run may be stale for a while: a coordinator that is cut
off answers OffsetFetch until it learns that it was replaced, as in Kafka. Reads after the run may not, nor may a broker
forget what it has acknowledged itself.

Beside that, some requests must be refused: commits of a member that has a later epoch already, or was replaced by a
member with the same instance id; the deletion of a group, and a commit without a member, while a member is in the
group; the deletion of offsets of a topic that a member reads; and offsets with too long metadata, whose refusal no
other partition of the request may hide.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau_jepsen.history import TopicPartition

OPEN = float("inf")
"""The end of a request of unknown outcome: it may take effect at any later time, or never."""


UNKNOWN_NODE = -1


class Act(enum.Enum):
    """The kinds of operations on a group."""

    COMMIT = "commit"  # of a member, in its epoch
    RESET = "reset"  # a commit without a member
    DELETE_OFFSETS = "delete-offsets"
    DELETE_GROUP = "delete-group"


class Membership(NamedTuple):
    """A member as it was given its partitions."""

    member_id: str
    epoch: int
    """The generation of a classic group, or the epoch of the member (KIP-848)."""
    instance_id: str
    """Empty for a dynamic member."""
    topics: frozenset[str]
    """Topics that it is certainly subscribed to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOperation:
    """One operation that was accepted, or may have been; refused ones are left out."""

    act: Act
    begun_ms: float
    ended_ms: float
    """``OPEN`` if the outcome is unknown."""
    values: tuple[tuple[TopicPartition, int | None], ...]
    """The value of each partition afterwards; None after a deletion."""
    node: int = UNKNOWN_NODE
    """The broker that answered."""
    member: Membership | None = None
    oversized: TopicPartition | None = None
    """A partition whose metadata were too long, and that was answered without an error."""


class OffsetRead(NamedTuple):
    """One answer of OffsetFetch."""

    begun_ms: float
    ended_ms: float
    offsets: tuple[tuple[TopicPartition, int | None], ...]
    node: int = UNKNOWN_NODE
    """The broker that answered."""
    is_final: bool = False
    """It was sent after all faults had been healed, and all clients had ended."""


class Sighting(NamedTuple):
    """Shows that a member was in the group at some moment between two times."""

    begun_ms: float
    """The begin of its accepted commit; of its life, if its assignment shows it."""
    seen_ms: float
    member: Membership


class Parting(NamedTuple):
    """A member gave up its membership, or learned that it had lost it.

    It may come back with the same id (KIP-848). If the group was deleted meanwhile, its epochs begin again at 1, so the
    member may then have an epoch for the second time, or a lower one than before.
    """

    at_ms: float
    member_id: str


def check_administered(
    operations: Sequence[GroupOperation],
    reads: Iterable[OffsetRead],
    sightings: Sequence[Sighting],
    partings: Sequence[Parting] = (),
    *,
    stale_ms: float,
) -> list[str]:
    """Returns the anomalies, one sentence each. Reads of the run may be stale by ``stale_ms``."""
    found = _wrong_admissions(operations, sightings, partings)
    by_partition: dict[TopicPartition, list[tuple[GroupOperation, int | None]]] = defaultdict(list)
    for operation in operations:
        for partition, value in operation.values:
            by_partition[partition].append((operation, value))
    for read in reads:
        for partition, value in read.offsets:
            wrong = _wrong_read(read, value, by_partition[partition], stale_ms)
            if wrong:
                found.append(f"{partition}: a read that began at {read.begun_ms:.0f} ms returned {value}, {wrong}")
    return found


def _wrong_read(
    read: OffsetRead, value: int | None, writes: Sequence[tuple[GroupOperation, int | None]], stale_ms: float
) -> str:
    """Returns what is wrong with the value; empty if a write explains it that was not certainly replaced."""
    sources = [operation for operation, written in writes if written == value and operation.begun_ms <= read.ended_ms]
    if not sources and value is not None:
        return "which no client had asked for"
    ends = [source.ended_ms for source in sources]
    if value is None:
        ends.append(-1.0)  # the group began without offsets
    latest = max(ends)
    for operation, written in writes:
        own = operation.node == read.node != UNKNOWN_NODE
        known_ms = read.begun_ms - (0.0 if own or read.is_final else stale_ms)
        if written != value and latest < operation.begun_ms and operation.ended_ms < known_ms:
            return f"which {operation.act.value} had replaced by {written} at {operation.ended_ms:.0f} ms"
    return ""


def _wrong_admissions(
    operations: Sequence[GroupOperation], sightings: Sequence[Sighting], partings: Sequence[Parting]
) -> list[str]:
    found: list[str] = []
    spans = _spans(sightings, partings)
    for operation in operations:
        if operation.oversized is not None:
            found.append(f"{operation.oversized}: too long metadata were accepted, or their refusal was hidden")
        if operation.ended_ms == OPEN:
            continue
        when = f"{operation.act.value} of {operation.begun_ms:.0f} ms"
        if operation.member is not None:
            later = _superseded(operation.member, operation, sightings, partings)
            if later is not None:
                found.append(f"{when}, of {_name(operation.member)}, was accepted after {_name(later)} was there")
            continue
        for begun_ms, ended_ms, member in spans:
            if not (begun_ms <= operation.begun_ms and operation.ended_ms <= ended_ms):
                continue
            topics = {partition.topic for partition, _ in operation.values}
            if operation.act is not Act.DELETE_OFFSETS or topics & member.topics:
                found.append(f"{when} was accepted while {_name(member)} was in the group")
                break
    return found


def _superseded(
    member: Membership, operation: GroupOperation, sightings: Sequence[Sighting], partings: Sequence[Parting]
) -> Membership | None:
    """Returns a later epoch of the member, or the member that replaced it, known before the operation."""
    own = [each.seen_ms for each in sightings if each.member.member_id == member.member_id]
    for each in sightings:
        if each.seen_ms >= operation.begun_ms:
            continue
        if each.member.member_id == member.member_id:
            parted = _parted(partings, member.member_id, each.seen_ms, operation.ended_ms)
            if each.member.epoch > member.epoch and not parted:
                return each.member
        elif member.instance_id and each.member.instance_id == member.instance_id:
            # The member whose life began after the other one was in the group has replaced it for good.
            begun = min(other.begun_ms for other in sightings if other.member.member_id == each.member.member_id)
            if own and min(own) < begun:
                return each.member
    return None


def _spans(sightings: Sequence[Sighting], partings: Sequence[Parting]) -> list[tuple[float, float, Membership]]:
    """Returns times during which a member was in the group: between two sightings of one epoch, without a parting.

    It reads the topics that both of them name.
    """
    by_epoch: dict[tuple[str, int], list[Sighting]] = defaultdict(list)
    for each in sightings:
        by_epoch[each.member.member_id, each.member.epoch].append(each)
    return [
        (before.seen_ms, after.begun_ms, before.member._replace(topics=before.member.topics & after.member.topics))
        for (member_id, _), seen in by_epoch.items()
        for before, after in pairwise(seen)
        if before.seen_ms < after.begun_ms and not _parted(partings, member_id, before.seen_ms, after.seen_ms)
    ]


def _parted(partings: Sequence[Parting], member_id: str, begun_ms: float, ended_ms: float) -> bool:
    return any(each.member_id == member_id and begun_ms <= each.at_ms <= ended_ms for each in partings)


def _name(member: Membership) -> str:
    instance = f" (instance {member.instance_id})" if member.instance_id else ""
    return f"member {member.member_id}{instance} in epoch {member.epoch}"
