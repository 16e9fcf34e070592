"""The effects that a core returns to its shell, and the values that describe a request. Frozen, without behaviour.

A request enters a core with an id. The core returns exactly one `Answer` with that id, at once or among the effects
of a later event. The shell writes each `Append` to the log in the order of the ids, and reports the outcome with
``committed`` or ``failed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.errors import ErrorCode
    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.streams.core.topology import InternalTopic
    from moldau_broker.coordinator.share.core.requests import ShareStateRequest


class Moment(NamedTuple):
    """The time of an event.

    Deadlines use ``now_ms`` (monotonic); timestamps in records use ``wall_ms`` (Unix).
    """

    now_ms: int
    wall_ms: int


class DescribeRight(Protocol):
    """The topics that a client may describe, by the ACLs of the moment. Equal for clients with equal rights."""

    def allows(self, topic: str) -> bool:
        """Returns whether the client may describe a topic."""
        ...

    def __hash__(self) -> int: ...


class TopicCreator(Protocol):
    """Creates topics with the rights of the client that needs them."""

    async def create(self, topics: tuple[InternalTopic, ...]) -> Mapping[str, ErrorCode]:
        """Creates topics and waits until this broker knows them; returns the errors by name.

        Ends by a deadline of its own and does not raise.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The version and the sender of a request.

    ``fresh_id`` is a random value, unique among all requests; ids of new members end in it.
    """

    version: int
    client_id: str
    client_host: str
    fresh_id: str
    may_describe: DescribeRight | None = None
    """Which topics the client may describe; None if there is no authorizer, and so everyone may describe all."""
    creator: TopicCreator | None = None
    """Creates internal topics on behalf of the client; None if nothing can create them."""


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
    """A control record that ends a producer's transaction in a partition."""

    producer: TransactionalProducer
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 0
    """From 2 on, the marker carries a higher epoch than the records of its transaction (KIP-890, KIP-1228)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Completes a request.

    No other effect leaves the broker, so the response contains committed state only.
    """

    request_id: int
    response: Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Writes records as one batch, or a marker.

    The shell reports the outcome under ``append_id``. Ids grow in the order of the log.
    """

    append_id: int
    records: tuple[StateRecord, ...] = ()
    producer: TransactionalProducer | None = None
    marker: Marker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMarkers:
    """Writes the marker of a transaction into partitions of any leader, and repeats until all have it.

    ``partitions`` are ``(topic, partition)`` pairs; the shell reports each of them as soon as it is done.
    """

    transactional_id: str
    marker: Marker
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecords:
    """Deletes the records below ``end_offset``, which are all committed and redundant."""

    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskShareState:
    """Sends a request to the share coordinators of its share-partitions; the shell reports the answer."""

    question_id: int
    request: ShareStateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics:
    """Creates the internal topics of a streams group; the shell reports the errors."""

    group_id: str
    topics: tuple[InternalTopic, ...]
    creator: TopicCreator


Effect = Answer | Append | SendMarkers | DeleteRecords | AskShareState | CreateTopics
