"""Sends the fetches that ``fetch_plan`` plans, and adds the fetched chunks to the positions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.cluster.metadata import NO_EPOCH, NO_TOPIC_ID, BrokerNode, TopicPartition
from moldau.consumer.core.chunk import FetchedChunk
from moldau.consumer.core.fetch_plan import FetchLimits, FetchPlan, Lane, PlannedFetch
from moldau.consumer.core.fetch_session import SESSION_ERRORS, Asked, SessionRequest, full_request
from moldau.consumer.core.values import PartitionError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from moldau.records import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from moldau.cluster.client import ClusterClient
    from moldau.consumer.core.positions import PartitionPosition
    from moldau.consumer.core.statistics import ConsumerCounters
    from moldau.runtime.config import Config
    from moldau.runtime.net.rpc import RpcConnection
    from moldau.runtime.tasks.sync import Signal

FETCH_PURPOSES = {Lane.MAIN: "fetch", Lane.LATE: "fetch-late"}
"""Fetches use separate connections, because the broker answers the requests of a connection in order."""

_TOPIC_ID_VERSION = 13
_SESSION_VERSION = 7
CLOSING_MS = 100.0
"""How long a consumer that closes waits for the ends of its fetch sessions."""
_PREFERRED_REPLICA_MS = 300_000.0
_BEHIND_MS = 1_000.0
"""How long a partition is read from its leader after a follower did not have the offset, or was unknown."""
_UNREACHABLE_MS = 30_000.0
"""The same after a follower that could not be reached: each further attempt may delay the partition."""


class FetchHost(Protocol):
    """The part of the consumer's fetcher that the fetches use."""

    arrived: Signal

    def wake(self) -> None:
        """Plans the next fetches."""
        ...

    def report(self, error: Exception, position: PartitionPosition | None = None) -> None:
        """Makes the next poll raise ``error``, unless its ``position`` has moved by then."""
        ...

    def back_off(self, position: PartitionPosition) -> None:
        """Delays the next fetch of a partition."""
        ...

    def failed(self, position: PartitionPosition, code: ErrorCode) -> None:
        """Handles an error code of a partition."""
        ...

    def out_of_range(self, position: PartitionPosition, offset: int) -> None:
        """Handles OFFSET_OUT_OF_RANGE for the fetched offset."""
        ...


class NodeFetcher:
    """Fetches from all brokers concurrently, as the plan of each says."""

    def __init__(self, client: ClusterClient, config: Config, host: FetchHost, counters: ConsumerCounters) -> None:
        self._client = client
        self._counters = counters
        self._host = host
        self._limits = FetchLimits(
            max_wait_ms=config.get_int("fetch.max.wait.ms"),
            min_bytes=config.get_int("fetch.min.bytes"),
            max_bytes=config.get_int("fetch.max.bytes"),
            partition_bytes=config.get_int("max.partition.fetch.bytes"),
            buffer_bytes=config.get_int("queued.max.messages.kbytes") * 1024,
        )
        self._plan = FetchPlan(self._limits)
        self._is_closing = False
        self._isolation = 1 if config.get_str("isolation.level") == "read_committed" else 0
        self._checks_crc = config.get_bool("check.crcs")
        self._unpacked_bytes_max = config.get_int("fetch.max.uncompressed.bytes")
        self._rack = config.get_str("client.rack")

    def start_due(
        self, nursery: trio.Nursery, by_node: Mapping[int, Sequence[PartitionPosition]], now_ms: float
    ) -> float:
        """Starts the fetches that are due at each broker; returns when to look again."""
        client, plan = self._client, self._plan
        if self._is_closing:
            return math.inf
        for node_id, farewell in plan.forget_nodes(by_node).items():
            if client.connection_nowait(node_id, FETCH_PURPOSES[Lane.MAIN]) is not None:
                nursery.start_soon(self._close_session, node_id, farewell)
        next_ms = math.inf
        for node_id, positions in by_node.items():
            planned = plan.next_fetch(node_id, positions, len(by_node), now_ms)
            if not isinstance(planned, PlannedFetch):
                next_ms = min(next_ms, planned)
                continue
            purpose = FETCH_PURPOSES[planned.lane]
            if client.connection_nowait(node_id, purpose) is None:
                plan.given_up(planned)
                delay_ms = max(client.retry_delay_ms(node_id, purpose), 1.0)
                if math.isfinite(delay_ms) and self._avoid(positions, node_id, _UNREACHABLE_MS):
                    delay_ms = 1.0  # the leader is asked next
                next_ms = min(next_ms, now_ms + delay_ms)
                continue
            nursery.start_soon(self._fetch, planned)
        return next_ms

    def _avoid(self, positions: Sequence[PartitionPosition], node_id: int, duration_ms: float) -> bool:
        """Reads partitions from their leaders that a follower cannot serve; returns whether there are any."""
        found = [position for position in positions if position.preferred_replica == node_id]
        for position in found:
            position.avoid_followers(self._client.now_ms + duration_ms)
        return bool(found)

    async def close_sessions(self) -> None:
        """Starts no more fetches and ends the fetch sessions on the brokers; returns within ``CLOSING_MS``.

        A broker reads the request behind a long poll at once and answers it after the poll: no answer is waited for
        longer. A session that could not be closed ends when the broker needs its space.
        """
        self._is_closing = True
        with trio.move_on_after(CLOSING_MS / 1000):
            async with trio.open_nursery() as nursery:
                for node_id, farewell in self._plan.farewells().items():
                    if self._client.connection_nowait(node_id, FETCH_PURPOSES[Lane.MAIN]) is not None:
                        nursery.start_soon(self._close_session, node_id, farewell)

    async def _close_session(self, node_id: int, farewell: SessionRequest) -> None:
        """Ends the fetch session on a broker, which would otherwise keep it until the space is needed."""
        try:
            connection = await self._client.connection(node_id, FETCH_PURPOSES[Lane.MAIN])
            version = connection.version_for(FetchRequest)
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                session_id=farewell.session_id,
                session_epoch=farewell.epoch,
                topics=[],
                rack_id=self._rack,
            )
            await connection.request_as(FetchResponse, request, version, self._client.request_timeout_ms)
        except (*TRANSPORT_ERRORS, KafkaError) as error:
            self._client.logger.debug("fetch-session-not-closed", node=node_id, error=error)

    async def _fetch(self, planned: PlannedFetch) -> None:
        session = self._plan.session(planned.node_id)
        is_main = planned.lane is Lane.MAIN
        began_ms = self._client.now_ms
        try:
            response, names = await self._request(planned)
            size_bytes = sum(len(part.records or b"") for topic in response.responses for part in topic.partitions)
            now_ms = self._client.now_ms
            self._counters.fetched(size_bytes, now_ms - began_ms, now_ms)
            self._client.telemetry.answered(planned.node_id, began_ms)
            code = ErrorCode.of(response.error_code)
            if is_main and code is ErrorCode.NONE:
                session.answered(response.session_id)
            elif is_main:
                session.lost(code)
            self._fetched(response, code, planned, names)
        except TRANSPORT_ERRORS as error:
            if not self._client.is_closed:
                self._client.logger.info("fetch-unanswered", node=planned.node_id, error=error)
            self._client.request_update()
            self._lost(planned)
            self._avoid(planned.positions, planned.node_id, _UNREACHABLE_MS)
        except KafkaError as error:
            self._host.report(error)
            self._lost(planned)
        finally:
            self._plan.ended(planned, self._client.now_ms)
            self._host.wake()

    def _lost(self, planned: PlannedFetch) -> None:
        if planned.lane is Lane.MAIN:
            self._plan.session(planned.node_id).lost()
        for position in planned.positions:
            self._host.back_off(position)

    async def _request(self, planned: PlannedFetch) -> tuple[FetchResponse, Mapping[UUID, str]]:
        """Returns the answer, and the names of the topics by the ids of the request."""
        connection = await self._client.connection(planned.node_id, FETCH_PURPOSES[planned.lane])
        metadata, partition_bytes = self._client.cluster_metadata, self._limits.partition_bytes
        topic_ids = {name: metadata.topic_id(name) for name in dict.fromkeys(topic for topic, _ in planned.asked)}
        wanted = {
            partition: Asked(
                topic_ids[partition.topic], NO_EPOCH if info is None else info.leader_epoch, offset, partition_bytes
            )
            for (partition, (_, _, offset)), info in zip(
                planned.asked.items(), metadata.partition_infos(planned.asked), strict=True
            )
        }
        has_ids = NO_TOPIC_ID not in topic_ids.values()
        version = connection.version_for(FetchRequest, None if has_ids else _TOPIC_ID_VERSION - 1)
        if planned.lane is Lane.MAIN and version >= _SESSION_VERSION:
            session = self._plan.session(planned.node_id)
            said = session.next_request(wanted, by_topic_id=version >= _TOPIC_ID_VERSION)
        else:
            said = full_request(wanted)
        leaders = [(partition, asked.leader_epoch) for partition, asked in wanted.items()]
        names = {topic_id: name for name, topic_id in topic_ids.items()}
        return await self._send(connection, planned, said, version, leaders), names

    async def _send(
        self,
        connection: RpcConnection,
        planned: PlannedFetch,
        said: SessionRequest,
        version: int,
        leaders: list[tuple[TopicPartition, int]],
    ) -> FetchResponse:
        topics: dict[tuple[str, UUID], list[FetchPartition]] = {}
        for partition, asked in said.partitions.items():
            topics.setdefault((partition.topic, asked.topic_id), []).append(
                FetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=asked.leader_epoch,
                    fetch_offset=asked.fetch_offset,
                    last_fetched_epoch=-1,
                    partition_max_bytes=asked.max_bytes,
                )
            )
        forgotten: dict[tuple[str, UUID], list[int]] = {}
        for partition, topic_id in said.forgotten.items():
            forgotten.setdefault((partition.topic, topic_id), []).append(partition.partition)
        request = FetchRequest(
            max_wait_ms=planned.max_wait_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=planned.max_bytes,
            isolation_level=self._isolation,
            session_id=said.session_id,
            session_epoch=said.epoch,
            topics=[
                FetchTopic(topic=topic, topic_id=topic_id, partitions=parts)
                for (topic, topic_id), parts in topics.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic=topic, topic_id=topic_id, partitions=numbers)
                for (topic, topic_id), numbers in forgotten.items()
            ],
            rack_id=self._rack_for(planned),
        )
        timeout_ms = self._client.request_timeout_ms + planned.max_wait_ms
        watch = self._client.silence
        awaited = watch.sent(connection, planned.node_id, leaders, wait_ms=planned.max_wait_ms)
        try:
            return await connection.request_as(FetchResponse, request, version, timeout_ms)
        finally:
            watch.ended(awaited)

    def _rack_for(self, planned: PlannedFetch) -> str:
        """Returns the rack of this client, or none if a partition is to be read from the leader.

        A leader that knows the rack would name the same follower again, at once.
        """
        now_ms = self._client.now_ms
        return "" if any(each.leader_only_until_ms > now_ms for each in planned.positions) else self._rack

    # --- answers

    def _fetched(
        self, response: FetchResponse, code: ErrorCode, planned: PlannedFetch, names: Mapping[UUID, str]
    ) -> None:
        client, asked = self._client, planned.asked
        if code in SESSION_ERRORS:
            client.logger.debug("fetch-session-lost", node=planned.node_id, code=code.name)
            return  # the next request, which follows at once, opens another session
        if code is not ErrorCode.NONE:
            for position in planned.positions:
                self._host.failed(position, code)
            return
        for endpoint in response.node_endpoints:
            client.cluster_metadata.add_broker(
                BrokerNode(node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack)
            )
        for position, generation, _ in asked.values():
            if position.generation == generation:
                position.is_idle = True  # unless there is something in the answer
        records = 0
        with_records = sum(bool(answer.records) for topic in response.responses for answer in topic.partitions)
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for answer in topic.partitions:
                found = asked.get(TopicPartition(name, answer.partition_index))
                if found is None:
                    # The broker's session differs from the client's: the next request is a full one.
                    self._plan.session(planned.node_id).lost()
                elif found[1] == found[0].generation:
                    leader = answer.current_leader
                    if answer.error_code and leader.leader_id >= 0:
                        # Up to version 12 the answer holds no id, and may be about a former topic of the name.
                        client.cluster_metadata.set_leader(
                            found[0].partition, leader.leader_id, leader.leader_epoch, topic.topic_id
                        )
                    follows = found[0].partition in planned.from_follower
                    copies = with_records > 1
                    records += self._fetched_partition(
                        *found, answer, copies=copies, topic_id=topic.topic_id, follows=follows
                    )
        self._counters.arrived(records, client.now_ms)
        self._host.arrived.notify()

    def _fetched_partition(
        self,
        position: PartitionPosition,
        generation: int,
        offset: int,
        answer: PartitionData,
        *,
        copies: bool,
        topic_id: UUID,
        follows: bool,
    ) -> int:
        """Takes one partition of an answer; returns the number of its records.

        ``copies`` is set if other partitions share the answer's memory and may keep it longer, ``follows`` if a
        follower was asked.
        """
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            self._fetch_error(position, offset, code, answer, follows=follows)
            return 0
        position.high_watermark = answer.high_watermark
        position.end_offset = answer.last_stable_offset if self._isolation else answer.high_watermark
        position.log_start_offset = answer.log_start_offset
        if answer.preferred_read_replica >= 0:
            self._take_advice(position, answer.preferred_read_replica)
        if not answer.records:
            return 0
        aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
        try:
            chunk = FetchedChunk(
                memoryview(bytes(answer.records) if copies else answer.records),
                offset,
                aborted=aborted if self._isolation else (),
                checks_crc=self._checks_crc,
                unpacked_bytes_max=self._unpacked_bytes_max,
                topic_id=topic_id,
            )
        except CorruptRecordError as error:
            self._corrupt(position, offset, str(error))
            return 0
        if chunk.is_empty:
            self._corrupt(position, offset, f"{chunk.size_bytes} bytes came without one whole batch")
            return 0
        position.add_chunk(generation, offset, chunk)
        return chunk.record_count

    def _take_advice(self, position: PartitionPosition, replica: int) -> None:
        """Reads from the follower that the leader names; from the leader while metadata do not contain it."""
        now_ms = self._client.now_ms
        if replica in self._client.cluster_metadata.brokers:
            position.prefer(replica, now_ms + _PREFERRED_REPLICA_MS)
        else:
            self._client.request_update()
            position.avoid_followers(now_ms + _BEHIND_MS)
            position.is_idle = False

    def _corrupt(self, position: PartitionPosition, offset: int, why: str) -> None:
        self._host.back_off(position)
        text = f"{position.partition} at offset {offset}: {why}"
        self._host.report(PartitionError(ErrorCode.CORRUPT_MESSAGE, position.partition, text), position)

    def _fetch_error(
        self, position: PartitionPosition, offset: int, code: ErrorCode, answer: PartitionData, *, follows: bool
    ) -> None:
        position.is_idle = False
        if follows:
            position.avoid_followers(self._client.now_ms + _BEHIND_MS)
        if code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            self._host.failed(position, code)
        elif not follows:  # a follower may be behind the leader, which is asked next and decides
            self._host.out_of_range(position, offset)
