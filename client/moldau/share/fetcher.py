"""Fetches acquired records of a share group from all leaders, and sends acknowledgements to them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import CorruptRecordError
from moldau.runtime.tasks.sync import Signal
from moldau.share.core.acquired import acquired_records
from moldau.share.core.pace import Pace
from moldau.share.core.statistics import ShareCounters
from moldau.share.core.values import AcknowledgeType
from moldau.share.node import ShareNode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.cluster.client import ClusterClient
    from moldau.protocol.messages.share_fetch import PartitionData
    from moldau.records import Record
    from moldau.share.core.deliveries import Deliveries, ShareKey
    from moldau.share.node import Arrival, Outcome, ShareLimits

SEND_MS = 1_000
"""A poll that finds buffered records sends acknowledgements that are older, so that their locks do not expire."""
_STALE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors of a partition after which the metadata are asked again."""


class Buffered(NamedTuple):
    """A record that has arrived and was not polled yet."""

    node: ShareNode
    session_number: int
    locked_until_ms: float
    key: ShareKey
    record: Record
    delivery_count: int


class ShareFetcher:
    """The sessions of one share consumer with brokers.

    ``buffer`` holds the records that have arrived, at most ``limits.max_records`` from each broker.
    """

    def __init__(
        self,
        client: ClusterClient,
        *,
        group_id: str,
        member_id: str,
        limits: ShareLimits,
        deliveries: Deliveries,
        check_crcs: bool,
        start_soon: Callable[..., object],
    ) -> None:
        """``start_soon`` starts a task that ends with the consumer."""
        self._client = client
        self._group_id = group_id
        self._member_id = member_id
        self._limits = limits
        self._deliveries = deliveries
        self._check_crcs = check_crcs
        self._start_soon = start_soon
        self._failures = 0
        self.nodes: dict[int, ShareNode] = {}
        self.buffer: deque[Buffered] = deque()
        self.errors: deque[tuple[str | None, KafkaError]] = deque()
        """Errors that no poll has raised, each with its topic, unless it is about all that a broker leads."""
        self.outcomes: deque[Outcome] = deque()
        self.arrived = Signal()
        self.lock_timeout_ms: int | None = None
        self.sent_ms = 0.0
        self.counters = ShareCounters()
        self.pace = Pace()

    def start(self, wanted: Sequence[ShareKey]) -> None:
        """Starts a fetch at each broker that leads wanted partitions and is not asked already."""
        client = self._client
        by_leader: dict[int, list[ShareKey]] = {}
        for key in wanted:
            led = client.cluster_metadata.leader(key[1])
            if led is None or led[0] < 0:
                client.request_update()
            else:
                by_leader.setdefault(led[0], []).append(key)
        records_max = self.pace.records_max(self.lock_timeout_ms, self._limits.max_records * max(1, len(by_leader)))
        limits = replace(self._limits, max_records=max(1, records_max // max(1, len(by_leader))))
        for node_id in dict.fromkeys((*by_leader, *self.nodes)):
            node = self.node(node_id)
            if not node.is_fetching and (by_leader.get(node_id) or self._is_leaving(node)):
                node.is_fetching = True
                self.sent_ms = client.now_ms
                self._start_soon(self._fetch, node, by_leader.get(node_id, []), limits)

    def _is_leaving(self, node: ShareNode) -> bool:
        """Returns whether a session without partitions has acknowledgements to send, or can end.

        Its end would release the records that the application works on, which has renewed their locks.
        """
        has_news = node.node_id in self._deliveries.nodes()
        return node.session.is_open and (has_news or not self._deliveries.holds(node.node_id))

    def node(self, node_id: int) -> ShareNode:
        """Returns the session with a broker."""
        node = self.nodes.get(node_id)
        if node is None:
            node = self.nodes[node_id] = ShareNode(
                self._client, node_id, self._group_id, self._member_id, self._deliveries, self._report
            )
        return node

    def _report(self, outcome: Outcome) -> None:
        self.counters.acknowledged(len(outcome.offsets), failed=outcome.error is not None)
        self.outcomes.append(outcome)

    async def _fetch(self, node: ShareNode, wanted: list[ShareKey], limits: ShareLimits) -> None:
        client = self._client
        try:
            if wanted:
                has_news = self._arrive(node, await node.fetch(wanted, limits))
            else:
                # No partition is left there.
                await node.acknowledge(self._limits, is_final=not self._deliveries.holds(node.node_id))
                has_news = True
            self._failures = 0
            if not has_news:  # a broker that has an error of a partition to say does not wait
                self.arrived.notify()
                await client.backoff(1)
        except TRANSPORT_ERRORS as error:
            client.logger.info("share-fetch-failed", node=node.node_id, error=error)
            await self._after_failure()
        except KafkaError as error:
            if not error.retriable and error.code is not ErrorCode.INVALID_SHARE_SESSION_EPOCH:
                self.errors.append((None, error))
            await self._after_failure()
        finally:
            node.is_fetching = False
            self.arrived.notify()

    async def _after_failure(self) -> None:
        client = self._client
        client.request_update()
        self._failures += 1
        await client.backoff(self._failures)

    def _arrive(self, node: ShareNode, arrival: Arrival) -> bool:
        """Takes an answer; returns False if it brought nothing but errors of partitions."""
        self.lock_timeout_ms = arrival.lock_timeout_ms
        buffered, now_ms = len(self.buffer), self._client.now_ms
        failed = acquired = False
        for key, data in arrival.partitions:
            code = ErrorCode.of(data.error_code)
            if code is not ErrorCode.NONE:
                failed = True
                self._partition_failed(key, code, data)
            if data.acquired_records:
                acquired = True
                self._buffer_records(node, arrival, key, data)
        size_bytes = sum(len(data.records or b"") for _, data in arrival.partitions)
        self.counters.fetched(size_bytes, len(self.buffer) - buffered, now_ms - arrival.begun_ms, now_ms)
        return acquired or not failed

    def _partition_failed(self, key: ShareKey, code: ErrorCode, data: PartitionData) -> None:
        client = self._client
        if data.current_leader.leader_epoch > 0:
            leader = data.current_leader
            client.cluster_metadata.set_leader(key[1], leader.leader_id, leader.leader_epoch, key[0])
        if code in _STALE:
            client.request_update()
        elif not code.retriable or code is ErrorCode.CORRUPT_MESSAGE:  # a damaged log stays damaged, unless it moves
            self._note_error(key, code, data.error_message or f"{key[1]}: {code.message}")

    def _note_error(self, key: ShareKey, code: ErrorCode, message: str) -> None:
        self.errors.append((key[1].topic, KafkaError(code, message)))

    def _buffer_records(self, node: ShareNode, arrival: Arrival, key: ShareKey, data: PartitionData) -> None:
        try:
            found = acquired_records(data, check_crcs=self._check_crcs)
        except CorruptRecordError as error:
            self._note_error(key, ErrorCode.CORRUPT_MESSAGE, f"{key[1]}: {error}")
            return
        self._deliveries.settle(node.node_id, key, found.gaps)
        if found.corrupt:
            self._deliveries.settle(node.node_id, key, found.corrupt, AcknowledgeType.REJECT)
        if found.error is not None:
            self._note_error(key, ErrorCode.CORRUPT_MESSAGE, f"{key[1]}: {found.error}")
        for record, count in found.records:
            self.buffer.append(Buffered(node, arrival.session_number, arrival.locked_until_ms, key, record, count))

    # --- acknowledgements

    def send(self) -> None:
        """Begins to send the acknowledgements."""
        self.sent_ms = self._client.now_ms
        for node_id in self._deliveries.nodes():
            self._start_soon(self.node(node_id).send, self._limits)

    def send_old(self) -> None:
        """Begins to send acknowledgements if nothing was sent for a while."""
        if self._client.now_ms - self.sent_ms >= SEND_MS:
            self.send()

    async def acknowledge_all(self) -> None:
        """Sends the acknowledgements, and waits until the brokers have answered these and those on their way.

        The requests go on if the call is cancelled: without their answers the sessions would end, with all records.
        """
        await trio.lowlevel.checkpoint()
        carrying = (node_id for node_id, node in self.nodes.items() if node.is_carrying)
        asked = dict.fromkeys((*self._deliveries.nodes(), *carrying))
        answered = Signal()

        async def acknowledge(node_id: int) -> None:
            try:
                await self.node(node_id).acknowledge(self._limits)
            finally:
                del asked[node_id]
                answered.notify()

        for node_id in asked:
            self._start_soon(acknowledge, node_id)
        await answered.wait_until(lambda: not asked)

    async def end_sessions(self) -> None:
        """Sends the acknowledgements, and releases all other records."""
        self.buffer.clear()
        async with trio.open_nursery() as nursery:
            for node in self.nodes.values():
                nursery.start_soon(self._end_session, node)

    async def _end_session(self, node: ShareNode) -> None:
        await node.acknowledge(self._limits, is_final=True)
