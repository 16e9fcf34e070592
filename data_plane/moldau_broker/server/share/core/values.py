"""Values of the share-partition core: record states, acknowledgements, what was acquired, and effects. Pure.

Offsets called ``last`` are inclusive, as on the wire; offsets called ``end`` are exclusive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence


class RecordState(IntEnum):
    """The state of a record in flight; the numbers are those of the share coordinator's records (KIP-932)."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3  # given up, and its dead letter is not known to be written (KIP-1191)
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """Whether nothing is left to do for the record."""
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class AcknowledgeType(IntEnum):
    """A member's verdict on a record that it has acquired; the numbers are those of the wire."""

    GAP = 0  # the offset holds no record
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4  # the member needs more time (KIP-1222)


class AcquireMode(IntEnum):
    """The strictness with which ``records_max`` limits an acquisition (KIP-1206)."""

    BATCH_OPTIMIZED = 0  # the last record batch is acquired whole, so the limit can be exceeded
    RECORD_LIMIT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """The rules of one share-partition, from the configuration of its group."""

    delivery_count_max: int
    record_locks_max: int
    lock_duration_ms: int
    writes_dead_letters: bool = False
    """Whether records that are given up go to a dead letter queue first (KIP-1191)."""


@dataclass(frozen=True, slots=True)
class AcknowledgementBatch:
    """Acknowledgements of the offsets ``first`` to ``last``: one type for all of them, or one for each offset."""

    first: int
    last: int
    types: Sequence[int]


@dataclass(frozen=True, slots=True)
class AcquiredRange:
    """Offsets ``first`` to ``last`` that a member has acquired; ``delivery_count`` includes this delivery."""

    first: int
    last: int
    delivery_count: int


class Cause(Enum):
    """Why a record was given up; the texts are Kafka's."""

    REJECTED = "Offset rejected by client."
    DELIVERED_TOO_OFTEN = "Offset delivery count exceeded the threshold."


@dataclass(frozen=True, slots=True)
class StateBatch:
    """The state of the offsets ``first`` to ``last``, as the share coordinator stores it; never ``ACQUIRED``."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    cause: Cause | None = field(default=None, compare=False)
    """Of a record that is given up, for its dead letter; it is not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Effect: write this state with WriteShareGroupState, then report the outcome to ``SharePartition.persisted``.

    ``start_offset`` is the start offset that holds once the write succeeds. ``delivery_complete_count`` is the number
    of records from it on that are then acknowledged or archived.
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


def beginning(state_epoch: int, leader_epoch: int, start_offset: int) -> Persist:
    """Returns the write that stores where a group begins to read a partition."""
    return Persist(
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=0,
        batches=(),
    )


@dataclass(frozen=True, slots=True)
class Settled:
    """Effect: the operation that got ``token`` has ended; its changes hold if there is no error, else none of them."""

    token: int
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Effect: write the dead letters of ``first`` to ``last``, then call ``SharePartition.dead_letters_written``.

    The records are stored as ``ARCHIVING``, so a new leader continues if this one ends before the call.
    """

    first: int
    last: int
    delivery_count: int
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The actions of the shell after a call: write, answer operations, write dead letters, wake waiting fetches."""

    persist: Persist | None = None
    settled: tuple[Settled, ...] = ()
    dead_letters: tuple[DeadLetters, ...] = ()
    acquirable: bool = False  # records may have become acquirable: wake the fetches that wait for this partition


NO_EFFECTS = Effects()


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The answer to acknowledgements: an error, or nothing to wait for, or the token of the write to wait for."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    token: int | None = None
    effects: Effects = NO_EFFECTS
