"""The records that the application has received and not yet acknowledged, and acknowledgements to send. Pure.

A record is *held* from its delivery until its acknowledgement has been sent. A renewal does not end that. All records
that came from one broker are lost together when the share session with it ends: the broker has released them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from moldau.share.core.values import GAP, AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from moldau.cluster.metadata import TopicPartition

ShareKey = tuple["UUID", "TopicPartition"]
"""Topic id, and topic and partition."""
Sent = dict["TopicPartition", list[int]]
"""Offsets by partition."""


class AckBatch(NamedTuple):
    """Acknowledgements of the offsets ``first`` to ``last``: one type for all of them, or one for each."""

    first: int
    last: int
    types: tuple[int, ...]


_UNREAD = -1
"""Kind of a record that no deserializer can read, until the application's next call releases it."""


@dataclass(slots=True)
class _Held:
    node_id: int
    key: ShareKey
    offset: int
    kind: int | None = None  # None: not acknowledged
    is_renewed: bool = False


class Deliveries:
    """The deliveries that the application holds. Invariant: an offset of a partition is held at most once."""

    __slots__ = ("_held", "_unacknowledged", "_unread")

    def __init__(self) -> None:
        self._held: dict[tuple[TopicPartition, int], _Held] = {}
        self._unacknowledged = 0
        self._unread: list[_Held] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def unacknowledged(self) -> int:
        """The number of records that the application has not acknowledged; a renewed record counts."""
        return self._unacknowledged

    @property
    def renewed(self) -> int:
        """The number of unacknowledged records whose lock the application has renewed."""
        return sum(1 for held in self._held.values() if held.kind is None and held.is_renewed)

    def deliver(self, node_id: int, key: ShareKey, offset: int) -> None:
        """Notes a record that the application receives. One that came again replaces the earlier delivery."""
        self._drop((key[1], offset))
        self._held[key[1], offset] = _Held(node_id, key, offset)
        self._unacknowledged += 1

    def settle(self, node_id: int, key: ShareKey, offsets: Iterable[int], kind: int = GAP) -> None:
        """Notes offsets that the application does not receive, with the acknowledgement to send for them."""
        for offset in offsets:
            self._drop((key[1], offset))
            self._held[key[1], offset] = _Held(node_id, key, offset, kind)

    def leave_unread(self, node_id: int, key: ShareKey, offset: int) -> None:
        """Notes a record that the application cannot read: `release_unread` releases it unless it is acknowledged."""
        self.settle(node_id, key, [offset], _UNREAD)
        self._unread.append(self._held[key[1], offset])

    def release_unread(self) -> None:
        """Releases the records that the application could not read, and has not acknowledged since."""
        for held in self._unread:
            if held.kind == _UNREAD:
                held.kind = int(AcknowledgeType.RELEASE)
        self._unread.clear()

    def acknowledge(self, partition: TopicPartition, offset: int, kind: AcknowledgeType) -> None:
        """Notes the application's acknowledgement; a later one before it is sent replaces it.

        Raises:
            KeyError: the record was not delivered, or its acknowledgement was sent, or its session has ended.
        """
        held = self._held[partition, offset]
        if held.kind is None:
            self._unacknowledged -= 1
        held.kind = int(kind)

    def accept_all(self) -> None:
        """Accepts all records that the application has not acknowledged."""
        if self._unacknowledged:
            for held in self._held.values():
                if held.kind is None:
                    held.kind = int(AcknowledgeType.ACCEPT)
            self._unacknowledged = 0

    def nodes(self) -> list[int]:
        """Returns the brokers for which there are acknowledgements."""
        found = (held.node_id for held in self._held.values() if held.kind is not None and held.kind != _UNREAD)
        return list(dict.fromkeys(found))

    def holds(self, node_id: int) -> bool:
        """Returns whether the application works on a record of a broker: it has no acknowledgement, or a renewal."""
        going_on = (None, _UNREAD, AcknowledgeType.RENEW)
        return any(held.node_id == node_id and held.kind in going_on for held in self._held.values())

    def take(self, node_id: int, *, renewals: bool) -> dict[ShareKey, list[tuple[int, int]]]:
        """Takes the acknowledgements for a broker, either the renewals or all others; ascending offsets with types.

        A renewed record is held on, not acknowledged.
        """
        found: dict[ShareKey, list[tuple[int, int]]] = {}
        for place, held in list(self._held.items()):
            if held.kind is None or held.node_id != node_id or (held.kind == AcknowledgeType.RENEW) != renewals:
                continue
            if held.kind == _UNREAD:
                continue
            found.setdefault(held.key, []).append((held.offset, held.kind))
            if renewals:
                held.kind, held.is_renewed = None, True
                self._unacknowledged += 1
            else:
                del self._held[place]
        for each in found.values():
            each.sort()
        return found

    def lose(self, node_id: int) -> Sent:
        """Forgets everything that came from a broker; returns the offsets whose acknowledgements are not sent."""
        lost: Sent = {}
        for place, held in list(self._held.items()):
            if held.node_id == node_id:
                if held.kind not in (None, GAP, _UNREAD):
                    lost.setdefault(held.key[1], []).append(held.offset)
                self._drop(place)
        return lost

    def _drop(self, place: tuple[TopicPartition, int]) -> None:
        held = self._held.pop(place, None)
        if held is not None and held.kind is None:
            self._unacknowledged -= 1


def batches_of(acknowledgements: Iterable[tuple[int, int]]) -> list[AckBatch]:
    """Returns ascending acknowledgements as batches of consecutive offsets, with one type where all are equal."""
    found: list[AckBatch] = []
    first = 0
    types: list[int] = []
    for offset, kind in acknowledgements:
        if types and offset != first + len(types):
            found.append(_batch(first, types))
            types = []
        if not types:
            first = offset
        types.append(kind)
    if types:
        found.append(_batch(first, types))
    return found


def _batch(first: int, types: list[int]) -> AckBatch:
    last = first + len(types) - 1
    return AckBatch(first, last, (types[0],) if len(set(types)) == 1 else tuple(types))


def offsets_of(acknowledgements: Iterable[tuple[int, int]]) -> list[int]:
    """Returns the offsets of acknowledgements of the application, not those of gaps."""
    return [offset for offset, kind in acknowledgements if kind != GAP]
