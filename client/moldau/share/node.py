"""Share requests to one broker: fetches with acknowledgements, and acknowledgements alone, one at a time."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages import share_acknowledge as acknowledging
from moldau.protocol.messages import share_fetch as fetching
from moldau.runtime.net.served_versions import NeededVersion, UnsupportedApiError
from moldau.share.core.deliveries import Deliveries, ShareKey, batches_of, offsets_of
from moldau.share.core.session import FINAL_EPOCH, ShareSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.metadata import TopicPartition

PURPOSE = "share"
"""The connection whose end is the end of the share session."""
_LOST = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
_LEFT_OUT = (int(ErrorCode.INVALID_RECORD_STATE), "the broker's answer leaves the partition out")
"""The outcome of acknowledgements that an answer does not mention, as in Kafka's client: they may not be stored."""
_RENEWAL = NeededVersion(2, "a renewal (Kafka 4.2)")
_RECORD_LIMIT = NeededVersion(2, "share.acquire.mode=record_limit (Kafka 4.2)")
R = TypeVar("R", fetching.ShareFetchResponse, acknowledging.ShareAcknowledgeResponse)
Taken = dict[ShareKey, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """The limits of a fetch, from the configuration."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    acquire_mode: int
    request_timeout_ms: int


class Outcome(NamedTuple):
    """The outcome of acknowledgements of one partition: their offsets, and the error if they do not hold."""

    partition: TopicPartition
    offsets: list[int]
    error: KafkaError | None


@dataclass(frozen=True, slots=True)
class Arrival:
    """An answer with records: its partitions, and until when they are locked for this member."""

    node_id: int
    session_number: int
    begun_ms: float
    """When the request began."""
    locked_until_ms: float
    """The broker locks records at the end of its wait. An answer that comes later than that was on its way."""
    lock_timeout_ms: int
    partitions: list[tuple[ShareKey, fetching.PartitionData]]


class ShareNode:
    """The share session with one broker. ``lock`` is held during a request, because epochs are consecutive."""

    def __init__(
        self,
        client: ClusterClient,
        node_id: int,
        group_id: str,
        member_id: str,
        deliveries: Deliveries,
        report: Callable[[Outcome], None],
    ) -> None:
        """``report`` receives the outcome of each acknowledgement."""
        self._client = client
        self.node_id = node_id
        self._group_id = group_id
        self._member_id = member_id
        self._deliveries = deliveries
        self._report = report
        self.session = ShareSession()
        self.lock = trio.Lock()
        self.is_fetching = False
        self.is_carrying = False
        """Whether acknowledgements are on their way, and their outcome is not known."""
        self._is_sending = False

    async def fetch(self, wanted: Iterable[ShareKey], limits: ShareLimits) -> Arrival:
        """Fetches records of the partitions, and sends the acknowledgements that are due.

        Raises:
            KafkaError: the broker refused the request; the session may have ended.
            TRANSPORT_ERRORS: no answer; the session has ended.
        """
        keys = {(topic_id, partition.partition): (topic_id, partition) for topic_id, partition in wanted}
        async with self.lock:
            await self._renew()
            taken = self._take()
            added, forgotten = self.session.changes(keys)
            # The broker adds every partition that a request names, also one with nothing but acknowledgements.
            named = ((topic_id, partition.partition) for topic_id, partition in taken)
            forgotten += [place for place in named if place not in keys and place not in forgotten]
            begun_ms = self._client.now_ms
            request = fetching.ShareFetchRequest(
                group_id=self._group_id,
                member_id=self._member_id,
                share_session_epoch=self.session.epoch,
                max_wait_ms=limits.max_wait_ms,
                min_bytes=limits.min_bytes,
                max_bytes=limits.max_bytes,
                max_records=limits.max_records,
                batch_size=limits.max_records,
                share_acquire_mode=limits.acquire_mode,
                topics=_fetch_topics(added, taken),
                forgotten_topics_data=[
                    fetching.ForgottenTopic(topic_id=topic_id, partitions=numbers)
                    for topic_id, numbers in _by_topic(forgotten).items()
                ],
            )
            response = await self._exchange(
                fetching.ShareFetchResponse,
                request,
                taken,
                limits.max_wait_ms + limits.request_timeout_ms,
                reads=[partition for _, partition in wanted],
                wait_ms=limits.max_wait_ms,
                needed=_RECORD_LIMIT if limits.acquire_mode else None,
            )
            self.session.fetched(keys)
        arrived: list[tuple[ShareKey, fetching.PartitionData]] = []
        outcomes: dict[tuple[UUID, int], tuple[int, str | None]] = {}
        for topic in response.responses:
            for data in topic.partitions:
                place = (topic.topic_id, data.partition_index)
                outcomes[place] = (data.acknowledge_error_code, data.acknowledge_error_message)
                key = keys.get(place)
                if key is not None:
                    arrived.append((key, data))
        self._report_all(taken, outcomes)
        lock_timeout_ms = response.acquisition_lock_timeout_ms
        locked_until_ms = min(begun_ms + limits.max_wait_ms, self._client.now_ms) + lock_timeout_ms
        return Arrival(self.node_id, self.session.number, begun_ms, locked_until_ms, lock_timeout_ms, arrived)

    async def acknowledge(self, limits: ShareLimits, *, is_final: bool = False) -> None:
        """Sends the acknowledgements that are due; ``is_final`` ends the session, which releases all other records.

        The outcomes are reported; nothing is raised. Released records do not belong to the application any more.
        """
        async with self.lock:
            try:
                await self._renew()
                taken = self._take()
                if taken or (is_final and self.session.is_open):
                    await self._acknowledge(taken, limits.request_timeout_ms, is_final=is_final)
            except (*TRANSPORT_ERRORS, KafkaError) as error:
                self._client.logger.info("acknowledgements-failed", node=self.node_id, error=error)

    async def send(self, limits: ShareLimits) -> None:
        """Sends the acknowledgements that are due; does nothing if such a call waits already, which will send them."""
        if self._is_sending:
            return
        self._is_sending = True
        try:
            await self.acknowledge(limits)
        finally:
            self._is_sending = False

    async def _renew(self) -> None:
        if not self.session.is_open:
            return
        taken = self._deliveries.take(self.node_id, renewals=True)
        if taken:
            with contextlib.suppress(UnsupportedApiError):  # it is reported
                await self._acknowledge(taken, self._client.request_timeout_ms, renews=True)

    def _take(self) -> Taken:
        """Takes the acknowledgements to send; without a session they are lost, and reported so."""
        if not self.session.is_open:
            self.lose(KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND))
            return {}
        return self._deliveries.take(self.node_id, renewals=False)

    async def _acknowledge(
        self, taken: Taken, timeout_ms: float, *, renews: bool = False, is_final: bool = False
    ) -> None:
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            share_session_epoch=FINAL_EPOCH if is_final else self.session.epoch,
            is_renew_ack=renews,
            topics=_acknowledge_topics(taken),
        )
        needed = _RENEWAL if renews else None
        response = await self._exchange(
            acknowledging.ShareAcknowledgeResponse, request, taken, timeout_ms, needed=needed
        )
        if is_final:
            self.lose(KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND))
        else:
            self.session.acknowledged()
        outcomes = {
            (topic.topic_id, data.partition_index): (data.error_code, data.error_message)
            for topic in response.responses
            for data in topic.partitions
        }
        self._report_all(taken, outcomes)

    async def _exchange(
        self,
        response_class: type[R],
        request: fetching.ShareFetchRequest | acknowledging.ShareAcknowledgeRequest,
        taken: Taken,
        timeout_ms: float,
        *,
        reads: Sequence[TopicPartition] = (),
        wait_ms: float = 0.0,
        needed: NeededVersion | None = None,
    ) -> R:
        """Sends a request; if it fails, reports that for its acknowledgements.

        The broker may hold the request for ``wait_ms``, until it has records of the partitions ``reads``. One that does
        not know the ``needed`` version is not asked, and the session goes on.

        Raises:
            KafkaError: the broker refused the request as a whole.
            TRANSPORT_ERRORS: no answer.
        """
        is_answered = False
        self.is_carrying = bool(taken)
        try:
            connection = await self._client.connection(self.node_id, PURPOSE)
            if needed is not None:
                try:
                    connection.require(request, needed)
                except UnsupportedApiError as error:
                    is_answered = True
                    self._failed(taken, error)
                    raise
            watch, partitions = self._client.silence, dict.fromkeys([*reads, *(partition for _, partition in taken)])
            awaited = watch.sent(connection, self.node_id, self._epochs(partitions), wait_ms=wait_ms)
            began_ms = self._client.now_ms
            try:
                response = await connection.request_as(response_class, request, None, timeout_ms)
                self._client.telemetry.answered(self.node_id, began_ms)
            finally:
                watch.ended(awaited)
            is_answered = True
        finally:
            self.is_carrying = False
            if not is_answered:  # lost, refused by the client's version check, or cancelled
                failure = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the broker has not answered")
                self._failed(taken, failure)
                self.lose(failure)
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            refused = KafkaError(code, response.error_message)
            self._failed(taken, refused)
            if code in _LOST:
                self.lose(refused)
            raise refused
        return response

    def _epochs(self, partitions: Iterable[TopicPartition]) -> list[tuple[TopicPartition, int]]:
        """Returns the partitions with their leader epochs, as far as the client knows them."""
        known = ((partition, self._client.cluster_metadata.partition_info(partition)) for partition in partitions)
        return [(partition, info.leader_epoch) for partition, info in known if info is not None]

    def lose(self, error: KafkaError) -> None:
        """Ends the session on this side: what came in it belongs to the group again."""
        self.session.lose()
        for partition, offsets in self._deliveries.lose(self.node_id).items():
            self._report(Outcome(partition, offsets, error))

    def _failed(self, taken: Taken, error: KafkaError) -> None:
        for (_, partition), acknowledgements in taken.items():
            if offsets := offsets_of(acknowledgements):
                self._report(Outcome(partition, offsets, error))

    def _report_all(self, taken: Taken, outcomes: Mapping[tuple[UUID, int], tuple[int, str | None]]) -> None:
        # A topic that was deleted and created again has two ids under one name, and an outcome for each.
        for (topic_id, partition), acknowledgements in taken.items():
            if offsets := offsets_of(acknowledgements):
                number, message = outcomes.get((topic_id, partition.partition), _LEFT_OUT)
                code = ErrorCode.of(number)
                error = None if code is ErrorCode.NONE else KafkaError(code, message)
                self._report(Outcome(partition, offsets, error))


def _by_topic(keys: Iterable[tuple[UUID, int]]) -> dict[UUID, list[int]]:
    found: dict[UUID, list[int]] = {}
    for topic_id, number in keys:
        found.setdefault(topic_id, []).append(number)
    return found


def _fetch_topics(added: Iterable[tuple[UUID, int]], taken: Taken) -> list[fetching.FetchTopic]:
    parts: dict[tuple[UUID, int], fetching.FetchPartition] = {
        key: fetching.FetchPartition(partition_index=key[1]) for key in added
    }
    for (topic_id, partition), acknowledgements in taken.items():
        key = (topic_id, partition.partition)
        parts[key] = fetching.FetchPartition(
            partition_index=partition.partition,
            acknowledgement_batches=[
                fetching.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                for first, last, types in batches_of(acknowledgements)
            ],
        )
    topics: dict[UUID, list[fetching.FetchPartition]] = {}
    for (topic_id, _), part in parts.items():
        topics.setdefault(topic_id, []).append(part)
    return [fetching.FetchTopic(topic_id=topic_id, partitions=each) for topic_id, each in topics.items()]


def _acknowledge_topics(taken: Taken) -> list[acknowledging.AcknowledgeTopic]:
    topics: dict[UUID, list[acknowledging.AcknowledgePartition]] = {}
    for (topic_id, partition), acknowledgements in taken.items():
        topics.setdefault(topic_id, []).append(
            acknowledging.AcknowledgePartition(
                partition_index=partition.partition,
                acknowledgement_batches=[
                    acknowledging.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                    for first, last, types in batches_of(acknowledgements)
                ],
            )
        )
    return [acknowledging.AcknowledgeTopic(topic_id=topic_id, partitions=each) for topic_id, each in topics.items()]
