"""Writes whose outcome is not known yet, and the continuations that follow when it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.core.records import GroupRecord, OffsetRecord, parse_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.protocol.errors import ErrorCode
    from moldau.protocol.messages.join_group import JoinGroupResponse
    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.core.offsets.committed import FullKey
    from moldau_broker.coordinator.group.core.records import CommittedOffset
    from moldau_broker.coordinator.runtime.effects import Marker, StateRecord, TransactionalProducer


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentWritten:
    """Follows the write of a generation's assignment: answers its SyncGroups."""

    group_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticMemberWritten:
    """Follows the write of a static member's new id: answers its JoinGroup."""

    group_id: str
    member_id: str
    request_id: int
    version: int
    answer: JoinGroupResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answers a request whose response depends on the outcome alone."""

    request_id: int
    respond: Callable[[ErrorCode], Response]
    """Pure function from the outcome (NONE, or the error code of the write) to the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRemoved:
    """Follows the write of a part of what a request removes: with it, the request has failed."""

    failures: list[ErrorCode]
    """Takes the error of the write; the answer follows a later write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneRemoved:
    """Follows the write of tombstones for offsets of deleted topics: retries them if the write fails."""

    keys: Mapping[FullKey, CommittedOffset | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupWritten:
    """Follows a write of a consumer group, which answers the requests that it contains."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupWritten:
    """Follows a write of a share group, which answers the requests that it contains."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupWritten:
    """Follows a write of a streams group, which answers the requests that it contains."""

    group_id: str


Continuation = (
    ConsumerGroupWritten
    | ShareGroupWritten
    | StreamsGroupWritten
    | AssignmentWritten
    | StaticMemberWritten
    | Reply
    | PartRemoved
    | GoneRemoved
)


@dataclass(slots=True, kw_only=True)
class PendingWrite:
    """A write between its append and its commit.

    ``then`` is None once the outcome has been delivered, or once the deadline has passed. Records that are committed
    after the deadline are still replayed.
    """

    append_id: int
    records: tuple[StateRecord, ...]
    producer: TransactionalProducer | None = None
    marker: Marker | None = None
    then: Continuation | None = None
    _parsed: tuple[tuple[OffsetRecord, ...], tuple[GroupRecord, ...]] | None = None

    def offset_records(self) -> tuple[OffsetRecord, ...]:
        """Returns the offset records of the write."""
        return self._by_kind()[0]

    def group_records(self) -> tuple[GroupRecord, ...]:
        """Returns the generations of classic groups, and their tombstones, of the write."""
        return self._by_kind()[1]

    def _by_kind(self) -> tuple[tuple[OffsetRecord, ...], tuple[GroupRecord, ...]]:
        """Parses the records at the first call only."""
        if self._parsed is None:
            parsed = [parse_record(*record) for record in self.records]
            self._parsed = (
                tuple(record for record in parsed if isinstance(record, OffsetRecord)),
                tuple(record for record in parsed if isinstance(record, GroupRecord)),
            )
        return self._parsed
