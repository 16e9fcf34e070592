"""The five requests for durable share-group state: what they ask of each share-partition, and their answers. Pure.

Each request names share-partitions of one group. A share coordinator serves those whose keys fall on the partitions of
``__share_group_state`` that it leads, so a request may have to be split, and its answers joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import delete_share_group_state as deleting
from moldau.protocol.messages import initialize_share_group_state as initializing
from moldau.protocol.messages import read_share_group_state as reading
from moldau.protocol.messages import read_share_group_state_summary as summing
from moldau.protocol.messages import write_share_group_state as writing
from moldau.protocol.messages.delete_share_group_state import DeleteShareGroupStateRequest
from moldau.protocol.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from moldau.protocol.messages.read_share_group_state import ReadShareGroupStateRequest
from moldau.protocol.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest
from moldau.protocol.messages.write_share_group_state import WriteShareGroupStateRequest
from moldau_broker.coordinator.share.core.batches import UNCHANGED_OFFSET, StateBatch
from moldau_broker.coordinator.share.core.state import (
    DEFAULT_EPOCH,
    NO_COUNT,
    NO_EPOCH,
    SharePartitionKey,
    ShareState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from moldau.protocol.schema import Response

ShareStateRequest = (
    InitializeShareGroupStateRequest
    | ReadShareGroupStateRequest
    | WriteShareGroupStateRequest
    | DeleteShareGroupStateRequest
    | ReadShareGroupStateSummaryRequest
)
"""A request to a share coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialize:
    """Begins a state, or begins it again with another start offset; -1 leaves the choice to the leader."""

    state_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Reads a state, and fences leaders of an older epoch."""

    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Changes a state."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Deletes a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarize:
    """Reads epochs and start offset of a state."""


Ask = Initialize | Read | Write | Delete | Summarize
"""The part of a request for one share-partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAnswer:
    """The answer for one share-partition; ``state`` is what a successful read found, None if there is no state."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state: ShareState | None = None


def asks_of(request: ShareStateRequest) -> dict[SharePartitionKey, Ask]:
    """Returns what a request asks of each share-partition; of a repeated one, what it asks first."""
    found: dict[SharePartitionKey, Ask] = {}
    for topic in request.topics:
        for entry in topic.partitions:
            found.setdefault(SharePartitionKey(request.group_id, topic.topic_id, entry.partition), _ask(entry))
    return found


def _ask(
    entry: initializing.PartitionData
    | reading.PartitionData
    | writing.PartitionData
    | deleting.PartitionData
    | summing.PartitionData,
) -> Ask:
    if isinstance(entry, initializing.PartitionData):
        return Initialize(state_epoch=entry.state_epoch, start_offset=entry.start_offset)
    if isinstance(entry, reading.PartitionData):
        return Read(leader_epoch=entry.leader_epoch)
    if isinstance(entry, writing.PartitionData):
        return Write(
            state_epoch=entry.state_epoch,
            leader_epoch=entry.leader_epoch,
            start_offset=entry.start_offset,
            delivery_complete_count=entry.delivery_complete_count,
            batches=tuple(
                StateBatch(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count)
                for b in entry.state_batches
            ),
        )
    return Delete() if isinstance(entry, deleting.PartitionData) else Summarize()


def request_of(
    kind: type[ShareStateRequest], group_id: str, asks: Mapping[SharePartitionKey, Ask]
) -> ShareStateRequest:
    """Returns the request of this class with these questions; all keys belong to ``group_id``."""
    shape = _SHAPES[kind]
    topics = [
        shape.asked_topic(topic_id=topic_id, partitions=[shape.entry(key.partition, asks[key]) for key in keys])
        for topic_id, keys in _by_topic(asks).items()
    ]
    return shape.request(group_id=group_id, topics=topics)


def response_of(kind: type[ShareStateRequest], answers: Mapping[SharePartitionKey, KeyAnswer]) -> Response:
    """Returns the response to a request of this class, in the order of the answers."""
    shape = _SHAPES[kind]
    results = [
        shape.answered_topic(topic_id=topic_id, partitions=[_answer(shape, key, answers[key]) for key in keys])
        for topic_id, keys in _by_topic(answers).items()
    ]
    return shape.response(results=results)


def joined(kind: type[ShareStateRequest], responses: Sequence[Response]) -> Response:
    """Returns one response with the results of several responses to requests of this class."""
    shape = _SHAPES[kind]
    topics: dict[UUID, list[Any]] = {}
    for response in responses:
        for topic in cast("Any", response).results:
            topics.setdefault(topic.topic_id, []).extend(topic.partitions)
    return shape.response(
        results=[shape.answered_topic(topic_id=topic_id, partitions=parts) for topic_id, parts in topics.items()]
    )


def codes_of(group_id: str, response: Response) -> dict[SharePartitionKey, ErrorCode]:
    """Returns the code of each share-partition in a response about one group."""
    return {
        SharePartitionKey(group_id, topic.topic_id, entry.partition): ErrorCode.of(entry.error_code)
        for topic in cast("Any", response).results
        for entry in topic.partitions
    }


def narrowed(
    kind: type[ShareStateRequest], response: Response, group_id: str, keeps: Callable[[SharePartitionKey], bool]
) -> Response:
    """Returns a response with the share-partitions only that ``keeps`` accepts."""
    shape = _SHAPES[kind]
    results: list[Any] = []
    for topic in cast("Any", response).results:
        parts = [
            each for each in topic.partitions if keeps(SharePartitionKey(group_id, topic.topic_id, each.partition))
        ]
        if parts:
            results.append(shape.answered_topic(topic_id=topic.topic_id, partitions=parts))
    return shape.response(results=results)


def _by_topic(keys: Iterable[SharePartitionKey]) -> dict[UUID, list[SharePartitionKey]]:
    found: dict[UUID, list[SharePartitionKey]] = {}
    for key in keys:
        found.setdefault(key.topic_id, []).append(key)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """The classes of one kind of request, and what its entries hold."""

    request: Callable[..., ShareStateRequest]
    asked_topic: Callable[..., Any]
    entry: Callable[[int, Any], Any]
    response: Callable[..., Response]
    answered_topic: Callable[..., Any]
    answer: Callable[..., Any]
    reads: Callable[[ShareState | None], dict[str, object]] = lambda _: {}


def _answer(shape: _Shape, key: SharePartitionKey, answer: KeyAnswer) -> object:
    found = shape.reads(answer.state) if answer.code is ErrorCode.NONE else {}
    return shape.answer(partition=key.partition, error_code=answer.code, error_message=answer.message, **found)


def _whole(state: ShareState | None) -> dict[str, object]:
    assert state is not None, "a state that does not exist cannot be read"
    batches = [reading.StateBatch(**batch._asdict()) for batch in state.batches]
    return {"state_epoch": state.state_epoch, "start_offset": state.start_offset, "state_batches": batches}


def _summary(state: ShareState | None) -> dict[str, object]:
    if state is None:
        return {
            "state_epoch": DEFAULT_EPOCH,
            "leader_epoch": DEFAULT_EPOCH,
            "start_offset": UNCHANGED_OFFSET,
            "delivery_complete_count": NO_COUNT,
        }
    return {
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "delivery_complete_count": state.delivery_complete_count,
    }


def _write_entry(partition: int, ask: Write) -> writing.PartitionData:
    return writing.PartitionData(
        partition=partition,
        state_epoch=ask.state_epoch,
        leader_epoch=ask.leader_epoch,
        start_offset=ask.start_offset,
        delivery_complete_count=ask.delivery_complete_count,
        state_batches=[writing.StateBatch(**batch._asdict()) for batch in ask.batches],
    )


_SHAPES: Mapping[type[ShareStateRequest], _Shape] = {
    InitializeShareGroupStateRequest: _Shape(
        request=InitializeShareGroupStateRequest,
        asked_topic=initializing.InitializeStateData,
        entry=lambda partition, ask: initializing.PartitionData(
            partition=partition, state_epoch=ask.state_epoch, start_offset=ask.start_offset
        ),
        response=initializing.InitializeShareGroupStateResponse,
        answered_topic=initializing.InitializeStateResult,
        answer=initializing.PartitionResult,
    ),
    ReadShareGroupStateRequest: _Shape(
        request=ReadShareGroupStateRequest,
        asked_topic=reading.ReadStateData,
        entry=lambda partition, ask: reading.PartitionData(partition=partition, leader_epoch=ask.leader_epoch),
        response=reading.ReadShareGroupStateResponse,
        answered_topic=reading.ReadStateResult,
        answer=reading.PartitionResult,
        reads=_whole,
    ),
    WriteShareGroupStateRequest: _Shape(
        request=WriteShareGroupStateRequest,
        asked_topic=writing.WriteStateData,
        entry=_write_entry,
        response=writing.WriteShareGroupStateResponse,
        answered_topic=writing.WriteStateResult,
        answer=writing.PartitionResult,
    ),
    DeleteShareGroupStateRequest: _Shape(
        request=DeleteShareGroupStateRequest,
        asked_topic=deleting.DeleteStateData,
        entry=lambda partition, _: deleting.PartitionData(partition=partition),
        response=deleting.DeleteShareGroupStateResponse,
        answered_topic=deleting.DeleteStateResult,
        answer=deleting.PartitionResult,
    ),
    ReadShareGroupStateSummaryRequest: _Shape(
        request=ReadShareGroupStateSummaryRequest,
        asked_topic=summing.ReadStateSummaryData,
        entry=lambda partition, ask: summing.PartitionData(partition=partition, leader_epoch=NO_EPOCH),
        response=summing.ReadShareGroupStateSummaryResponse,
        answered_topic=summing.ReadStateSummaryResult,
        answer=summing.PartitionResult,
        reads=_summary,
    ),
}
