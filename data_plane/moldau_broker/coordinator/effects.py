"""What a coordinator's core asks its shell to do, and what it is told about a request. Frozen values, no behaviour.

A request enters a core with an id; exactly one `Answer` with that id comes out, at once or in the effects of a later
event. An `Append` is written to the log in the order of its id; its outcome comes back as ``committed`` or ``failed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from moldau.protocol.schema import Response


class Moment(NamedTuple):
    """The time of an event. Deadlines follow ``now_ms`` (monotonic); what is written into records follows ``wall_ms``
    (Unix)."""

    now_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Where a request came from.

    ``fresh_id`` is a drawn value, unique among all requests; ids of new members end in it.
    """

    version: int
    client_id: str
    client_host: str
    fresh_id: str


class StateRecord(NamedTuple):
    """A record of an internal topic; a null value is a tombstone."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalProducer:
    """The producer on whose behalf offsets are written inside a transaction."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The end of a producer's transaction in this partition."""

    producer: TransactionalProducer
    coordinator_epoch: int
    commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Complete a request. Of all effects only this one leaves the broker, so nothing it tells may be uncommitted."""

    request_id: int
    response: Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Write records as one batch, or a marker; report the outcome under ``append_id``. Ids grow in the order of the
    log."""

    append_id: int
    records: tuple[StateRecord, ...] = ()
    producer: TransactionalProducer | None = None
    marker: Marker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMarkers:
    """Have the end of a transaction written into partitions, wherever they are led, until it is done.

    Each partition is reported back on its own. ``(topic, partition)`` pairs.
    """

    transactional_id: str
    marker: Marker
    partitions: tuple[tuple[str, int], ...]


Effect = Answer | Append | SendMarkers
