"""Writes that are on their way to the log, and what is to happen when their outcome is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.protocol.errors import ErrorCode
    from moldau.protocol.messages.join_group import JoinGroupResponse
    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.effects import Marker, StateRecord, TransactionalProducer
    from moldau_broker.coordinator.group_records import CommittedOffset
    from moldau_broker.coordinator.offsets import FullKey


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentWritten:
    """The assignment of a generation: SyncGroups are answered."""

    group_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticMemberWritten:
    """The new id of a static member: its JoinGroup is answered."""

    group_id: str
    member_id: str
    request_id: int
    version: int
    answer: JoinGroupResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A request whose answer depends on the outcome alone."""

    request_id: int
    respond: Callable[[ErrorCode], Response]
    """Pure: the answer for NONE, or for the code that the write failed with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneRemoved:
    """Tombstones for offsets of deleted topics, which are tried again if they are not written."""

    keys: Mapping[FullKey, CommittedOffset | None]


Continuation = AssignmentWritten | StaticMemberWritten | Reply | GoneRemoved


@dataclass(slots=True, kw_only=True)
class PendingWrite:
    """A write between its append and its commit.

    ``then`` is None once its outcome has been told, be it because the deadline passed: the records are replayed all
    the same when they are committed after all.
    """

    append_id: int
    records: tuple[StateRecord, ...]
    producer: TransactionalProducer | None = None
    marker: Marker | None = None
    then: Continuation | None = None
