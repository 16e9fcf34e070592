"""The task that sends batches from the accumulator to the brokers and gives their answers to the accumulator.

The accumulator decides, the sender performs. One loop looks for ready partitions and drains them into one Produce
request for each leader (at most ``max.in.flight.requests.per.connection`` at a time). It sleeps until a record, an
answer, metadata or a deadline wakes it. One short task waits for each answer; with acks=0 for the transport.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.cluster.metadata import NO_TOPIC_ID, BrokerNode, TopicPartition
from moldau.producer.core.accumulator import Accumulator, Verdict
from moldau.producer.core.counters import ProducerCounters
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from moldau.runtime.net.rpc import REQUESTS_IN_FLIGHT_MAX
from moldau.runtime.tasks.step_loop import StepLoop
from moldau.runtime.tasks.sync import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.silence import Awaited
    from moldau.cluster.silence_watch import Watched
    from moldau.producer.core.batches import ProducerBatch
    from moldau.producer.transactions import Transactions
    from moldau.protocol.schema import Response
    from moldau.runtime.net.pending import PendingResponse
    from moldau.runtime.net.rpc import RpcConnection

_TOPIC_ID_VERSION = 13
_IMPLICIT_TRANSACTION_VERSION = 12
"""From this version of Produce on, brokers add partitions to a transaction themselves (KIP-890)."""


class Sender:
    """Sends the accumulator's batches until it is closed."""

    def __init__(
        self, client: ClusterClient, accumulator: Accumulator, *, acks: int, transactional_id: str | None
    ) -> None:
        self._client = client
        self._accumulator = accumulator
        self._acks = acks
        # Without answers, one request at a time is handed to the transport, which alone slows the producer down.
        self._in_flight_max = accumulator.limits.in_flight_max if acks else 1
        self._transactional_id = transactional_id
        self._in_flight: dict[int, int] = {}
        self._loop = StepLoop(client.environment.clock, client.changed)
        self.memory_freed = Signal()
        self.fatal_error: KafkaError | None = None
        self.on_failure: Callable[[], object] | None = None
        self.transactions: Transactions | None = None
        self.counters = ProducerCounters()
        self._is_fetching_id = False
        self._retry_id_at_ms = -math.inf
        self._stuck_since_ms: dict[int, float] = {}

    def stuck_nodes(self, for_ms: float) -> list[int]:
        """Returns the brokers that have taken no batch for ``for_ms`` although one was ready."""
        now_ms = self._client.now_ms
        return [node_id for node_id, since_ms in self._stuck_since_ms.items() if now_ms - since_ms >= for_ms]

    def wake(self) -> None:
        """Wakes the loop."""
        self._loop.wake()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled."""
        await self._loop.run(self._step, task_status=task_status)

    # --- one look

    def leaders(self) -> dict[TopicPartition, int]:
        """Returns the known leader of every partition that has a queue."""
        cluster_metadata = self._client.cluster_metadata
        leaders: dict[TopicPartition, int] = {}
        for partition, queue in self._accumulator.queues.items():
            if queue.batches:
                leader = cluster_metadata.leader(partition)
                if leader is not None:
                    leaders[partition] = leader[0]
        return leaders

    def _step(self) -> float:
        """Sends all ready batches; returns when to look again without an event."""
        client, accumulator = self._client, self._accumulator
        now_ms = client.now_ms
        self._settled(accumulator.expire(now_ms))
        if self.fatal_error is not None:
            self._settled(accumulator.abort(self.fatal_error))
            return math.inf
        if accumulator.needs_producer_id and self._transactional_id is None and accumulator.incomplete:
            if now_ms >= self._retry_id_at_ms:
                self._fetch_producer_id()
            else:
                return min(self._retry_id_at_ms, accumulator.next_expiry_ms())
        leaders = self.leaders()
        self._fail_refused(leaders)
        ready = accumulator.ready(now_ms, leaders)
        if ready.has_unknown_leader:
            client.request_update()
        next_ms = min(ready.next_check_ms, accumulator.next_expiry_ms())
        for node_id in [node_id for node_id in self._stuck_since_ms if node_id not in ready.by_node]:
            del self._stuck_since_ms[node_id]
        for node_id, queues in ready.by_node.items():
            self._stuck_since_ms.setdefault(node_id, now_ms)
            if self._in_flight.get(node_id, 0) >= self._in_flight_max:
                continue
            connection = client.connection_nowait(node_id)
            if self._acks == 0 and connection is not None and not connection.notice_end():
                client.request_update()  # a broker that does not lead any more answers by closing it
                connection = client.connection_nowait(node_id)
            if connection is None:
                next_ms = min(next_ms, now_ms + max(client.retry_delay_ms(node_id), 1.0))
                continue
            if connection.in_flight >= min(accumulator.limits.in_flight_max, REQUESTS_IN_FLIGHT_MAX):
                # Other requests share the connection; an answer to one of them does not wake this loop.
                next_ms = min(next_ms, now_ms + 1.0)
                continue
            del self._stuck_since_ms[node_id]
            self._send(node_id, connection, accumulator.drain(queues, now_ms))
        return next_ms

    def _fail_refused(self, leaders: Mapping[TopicPartition, int]) -> None:
        """Fails the batches that need a connection while the login is refused, as it would be again."""
        client, accumulator = self._client, self._accumulator
        refused = client.bootstrap_error
        if refused is not None and refused.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
            queues = accumulator.queues.items()
            lost = [queue for at, queue in queues if not client.is_connected(leaders.get(at))]
            self._settled(accumulator.abort(refused, queues=lost))

    def _send(self, node_id: int, connection: RpcConnection, batches: list[ProducerBatch]) -> None:
        if not batches:
            return
        by_topic: dict[str, dict[int, ProducerBatch]] = {}
        cluster_metadata = self._client.cluster_metadata
        leaders: list[tuple[TopicPartition, int]] = []
        infos = cluster_metadata.partition_infos([batch.partition for batch in batches])
        for batch, info in zip(batches, infos, strict=True):
            by_topic.setdefault(batch.partition.topic, {})[batch.partition.partition] = batch
            batch.leader = None
            if info is not None and info.leader == node_id:
                leaders.append((batch.partition, info.leader_epoch))
                if self._acks != 0 and info.is_epoch_of_leader:
                    batch.leader = (node_id, info.leader_epoch)
            batch.topic_id = cluster_metadata.topic_id(batch.partition.topic)
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=self._client.request_timeout_ms,
            topic_data=[
                TopicProduceData(
                    name=topic,
                    topic_id=cluster_metadata.topic_id(topic),
                    partition_data=[
                        PartitionProduceData(index=index, records=batch.data) for index, batch in parts.items()
                    ],
                )
                for topic, parts in by_topic.items()
            ],
        )
        try:
            version = connection.version_for(request)
            if any(topic.topic_id == NO_TOPIC_ID for topic in request.topic_data):
                version = connection.version_for(request, _TOPIC_ID_VERSION - 1)
            if self.transactions is not None and not self.transactions.records_sent():
                # Partitions are added to the transaction by this producer before it sends to them.
                version = connection.version_for(request, _IMPLICIT_TRANSACTION_VERSION - 1)
            if self._acks == 0:
                connection.submit_without_response(request, version)
                self._begun(node_id, batches)
                awaited = self._client.silence.sent(connection, node_id, leaders)
                self._loop.nursery.start_soon(self._hand_over, awaited, connection, batches)
                return
            pending = connection.submit(request, version)
        except KafkaError as error:
            for batch in batches:
                self._accumulator.settle(batch, error.code, self._client.now_ms, message=error.message)
            self._settled(batches)
            return
        except OSError:
            self._unanswered(batches)
            return
        self._begun(node_id, batches)
        awaited = self._client.silence.sent(connection, node_id, leaders)
        self._loop.nursery.start_soon(self._receive, awaited, pending, by_topic)

    def _begun(self, node_id: int, batches: list[ProducerBatch]) -> None:
        self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        self.counters.sending(batches, self._client.now_ms)

    def _ended(self, node_id: int, latency_ms: float | None) -> None:
        self._in_flight[node_id] -= 1
        self.counters.ended(latency_ms, self._client.now_ms)
        self.wake()

    async def _hand_over(
        self, awaited: Awaited[Watched], connection: RpcConnection, batches: list[ProducerBatch]
    ) -> None:
        """Settles the batches of a request without an answer as soon as the transport has taken its bytes, as Kafka.

        Until then they use memory and count as in flight: a broker that reads nothing would otherwise cost memory
        without a bound, and a producer that closes would drop them. As a request without an answer, it is given up when
        another broker leads meanwhile.
        """
        timeout_ms = self._client.request_timeout_ms
        try:
            with trio.fail_after(timeout_ms / 1000):
                await connection.flush()
        except TRANSPORT_ERRORS as error:
            connection.fail(f"the peer reads no bytes within {timeout_ms} ms")  # no effect if it has ended otherwise
            self._client.logger.info("connection-lost", error=error)
            self._unanswered(batches)
        else:
            for batch in batches:
                self._settle(batch, ErrorCode.NONE)
        finally:
            self._client.silence.ended(awaited)
            self._ended(awaited.node_id, None)

    # --- answers

    async def _receive(
        self,
        awaited: Awaited[Watched],
        pending: PendingResponse[Response],
        by_topic: Mapping[str, Mapping[int, ProducerBatch]],
    ) -> None:
        node_id = awaited.node_id
        began_ms = self._client.now_ms
        latency_ms = None
        try:
            response = await pending.wait(self._client.request_timeout_ms)
            latency_ms = self._client.now_ms - began_ms
        except TRANSPORT_ERRORS as error:
            if not self._client.is_closed:
                self._client.logger.info("produce-unanswered", node=node_id, error=error)
            self._unanswered([batch for parts in by_topic.values() for batch in parts.values()])
        else:
            assert isinstance(response, ProduceResponse)
            self.counters.throttled(response.throttle_time_ms, self._client.now_ms)
            self._client.telemetry.answered(node_id, began_ms)
            self._answered(node_id, response, by_topic)
        finally:
            self._client.silence.ended(awaited)
            self._ended(node_id, latency_ms)

    def _unanswered(self, batches: list[ProducerBatch]) -> None:
        self._client.request_update()
        for batch in batches:
            self._settle(batch, ErrorCode.NETWORK_EXCEPTION)

    def _answered(
        self, node_id: int, response: ProduceResponse, by_topic: Mapping[str, Mapping[int, ProducerBatch]]
    ) -> None:
        cluster_metadata = self._client.cluster_metadata
        for endpoint in response.node_endpoints:
            cluster_metadata.add_broker(
                BrokerNode(node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack)
            )
        # By the ids of the request: metadata may have lost or replaced the topic since.
        names = {batch.topic_id: topic for topic, parts in by_topic.items() for batch in parts.values()}
        missing = {batch: None for parts in by_topic.values() for batch in parts.values()}
        for topic in response.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for answer in topic.partition_responses:
                batch = by_topic.get(name, {}).get(answer.index)
                if batch is not None and missing.pop(batch, batch) is None:
                    self._settle_answer(node_id, batch, answer, by_name=bool(topic.name))
        # A broker that leaves out a partition is broken or hostile; the batch is retried like one without an
        # answer.
        for batch in missing:
            self._settle(batch, ErrorCode.NETWORK_EXCEPTION)

    def _settle_answer(
        self, node_id: int, batch: ProducerBatch, answer: PartitionProduceResponse, *, by_name: bool
    ) -> None:
        code = ErrorCode.of(answer.error_code)
        if code is ErrorCode.REQUEST_TIMED_OUT:
            # A leader that only its clients reach answers this each time, and never NOT_LEADER_OR_FOLLOWER.
            self._client.doubt(node_id)
        leader = answer.current_leader
        if leader.leader_id >= 0:
            self._client.cluster_metadata.set_leader(
                batch.partition, leader.leader_id, leader.leader_epoch, batch.topic_id, by_name=by_name
            )
        message = answer.error_message
        if answer.record_errors:
            details = "; ".join(
                f"record {each.batch_index}: {each.batch_index_error_message}" for each in answer.record_errors[:10]
            )
            message = f"{message or code.message} ({details})"
        self._settle(batch, code, answer.base_offset, answer.log_append_time_ms, message)

    def _settle(
        self,
        batch: ProducerBatch,
        code: ErrorCode,
        base_offset: int = -1,
        append_timestamp: int = -1,
        message: str | None = None,
    ) -> None:
        if batch.is_settled:
            return
        if code.refreshes_metadata:
            self._client.request_update()
        verdict = self._accumulator.settle(
            batch,
            code,
            self._client.now_ms,
            base_offset=base_offset,
            append_timestamp=append_timestamp,
            message=message,
            jitter=0.8 + 0.4 * self._client.environment.random.random(),
        )
        if verdict is Verdict.RETRY:
            self.counters.retried(batch)
            self._client.logger.debug(
                "produce-retry", partition=batch.partition, code=code.name, attempts=batch.attempts
            )
            return
        if verdict is Verdict.SPLIT:
            self.counters.split()
            self._client.logger.info(
                "batch-split", partition=batch.partition, records=batch.record_count, bytes=len(batch.close())
            )
            return
        if verdict is Verdict.FAILED:
            self._client.logger.warning("produce-failed", partition=batch.partition, error=batch.error)
        self._settled([batch])

    def _settled(self, batches: list[ProducerBatch]) -> None:
        if batches:
            self.dropped(batches)
            if self.transactions is not None:
                self.transactions.settled(batches)

    def dropped(self, batches: list[ProducerBatch]) -> None:
        """Wakes the tasks that wait for these batches or for memory."""
        for batch in batches:
            self.counters.settled(batch)
            delivered = batch.delivered
            if not delivered.is_settled:
                continue  # other parts of it are not
            if delivered.waiter is not None:
                delivered.waiter.set()
            watchers, delivered.watchers = delivered.watchers, None
            for watcher in watchers or ():
                watcher()
        self.memory_freed.notify()
        self._loop.repeat()

    def fail(self, error: KafkaError) -> None:
        """Fails every record from now on."""
        self.fatal_error = error
        if self.on_failure is not None:
            self.on_failure()
        self.wake()

    # --- producer id

    def _fetch_producer_id(self) -> None:
        if not self._is_fetching_id:
            self._is_fetching_id = True
            self._loop.nursery.start_soon(self._init_producer_id)

    async def _init_producer_id(self) -> None:
        client = self._client
        try:
            response = await client.ask_any(  # a producer id assigned twice leaves the first one unused
                InitProducerIdResponse,
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1),
            )
            code = ErrorCode.of(response.error_code)
            if code is ErrorCode.NONE:
                self._accumulator.set_producer_id(response.producer_id, response.producer_epoch)
            elif code.retriable or not code.fatal:
                client.logger.info("producer-id-refused", code=code.name)
                self._accumulator.id_refusal = code.name
                self._retry_id_at_ms = client.now_ms + client.retry.initial_ms
            else:
                self.fail(KafkaError(code, f"no producer id: {code.message}"))
        except KafkaError as error:
            self.fail(error)
        except TRANSPORT_ERRORS as error:
            client.logger.info("producer-id-failed", error=error)
            self._accumulator.id_refusal = str(error)
            self._retry_id_at_ms = client.now_ms + client.retry.initial_ms
        finally:
            self._is_fetching_id = False
            self.wake()
