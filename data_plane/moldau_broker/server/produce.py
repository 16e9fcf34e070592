"""Produce: validate, number, append, and answer when the wanted replicas have it.

Synchronous up to the answer: batches are staged while the request's bytes are still in the receive buffer, and written
when all requests that arrived together have been staged (``flush``). acks=0 gets no answer; with acks=1 the answer is
ready and leaves after the flush; with acks=all it waits for the high watermark, for a change of leadership, or for the
request's timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.hot import ProducePartitionResult, read_produce_request, write_produce_response
from moldau.runtime.server import CloseConnection
from moldau_broker.log.errors import LogError
from moldau_broker.replication.purgatory import PurgatoryFullError
from moldau_broker.server.delayed import ProduceOperation, ProduceWait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.protocol.hot import NodeEndpointResult
    from moldau.runtime.environment import Clock
    from moldau.runtime.server import Answer, ResponsePart
    from moldau_broker.server.fetch import Hints
    from moldau_broker.server.partition import Partition
    from moldau_broker.server.replica_manager import ReplicaManager

_TOPIC_IDS = 13
_LEADER_HINTS = 10
_TRANSACTIONAL_FLAG = 0x10
_ATTRIBUTES_LOW_BYTE = 22  # of a batch
TIMEOUT_MS_MAX = 15 * 60_000.0
"""A produce waits no longer than this, whatever it asks for."""

Results = list[tuple[bytes, list[ProducePartitionResult]]]


class ProduceService:
    """Serves Produce for one broker."""

    __slots__ = ("_clock", "_hints", "_replicas")

    def __init__(self, clock: Clock, replicas: ReplicaManager, hints: Hints) -> None:
        self._clock = clock
        self._replicas = replicas
        self._hints = hints

    def handle(
        self, frame: memoryview, position: int, version: int, correlation_id: int, touched: dict[Partition, int]
    ) -> tuple[Answer, ProduceOperation | None]:
        """Stages the batches of one request.

        ``touched`` gets each partition that was staged into, with its failure count before: the connection compares it
        after the flush. Raises ``DecodeError`` for bytes that are no such request, ``CloseConnection`` where acks=0
        leaves no other way to tell of an error.
        """
        request = read_produce_request(frame, position, version)
        acks = request.acks
        if acks not in (-1, 0, 1):
            results: Results = [
                (
                    topic,
                    [ProducePartitionResult(index, ErrorCode.INVALID_REQUIRED_ACKS) for index, _ in partitions],
                )
                for topic, partitions in request.topics
            ]
            return (write_produce_response(version, correlation_id, results),), None
        replicas = self._replicas
        lookup = replicas.by_raw_id if version >= _TOPIC_IDS else replicas.by_raw_name
        results = []
        waiting: dict[Partition, ProduceWait] = {}
        failed = False
        number = 0
        for topic, partitions in request.topics:
            topic_results: list[ProducePartitionResult] = []
            results.append((topic, topic_results))
            for index, records in partitions:
                partition = lookup.get((topic, index))
                if partition is None:
                    result = self._absent(topic, index, version)
                else:
                    result, required_offset = self._append(partition, topic, index, records, acks, version, touched)
                    if acks == -1 and required_offset >= 0:
                        wait = waiting.get(partition)
                        if wait is None:
                            leader_epoch = partition.replica.state.leader_epoch
                            waiting[partition] = ProduceWait(leader_epoch, required_offset, number)
                        else:  # one partition named twice
                            wait.required_offset = max(wait.required_offset, required_offset)
                            wait.indexes.append(number)
                failed = failed or bool(result.error_code)
                topic_results.append(result)
                number += 1
        if acks == 0:
            if failed:
                raise CloseConnection(f"produce with acks=0 failed: {_first_error(results)}")
            return None, None
        if not waiting:
            return (self._encode(version, correlation_id, results, {}),), None
        return self._start_waiting(waiting, version, correlation_id, results, request.timeout_ms)

    def _start_waiting(
        self,
        waiting: dict[Partition, ProduceWait],
        version: int,
        correlation_id: int,
        results: Results,
        timeout_ms: int,
    ) -> tuple[Answer, ProduceOperation | None]:
        def encode(errors: dict[int, ErrorCode]) -> Sequence[ResponsePart]:
            return (self._encode(version, correlation_id, results, errors),)

        operation = ProduceOperation(waiting, encode)
        deadline_ms = self._clock.monotonic_ms() + min(max(0, timeout_ms), TIMEOUT_MS_MAX)
        try:
            operation.delayed = self._replicas.produces.watch(operation, tuple(waiting), deadline_ms)
        except PurgatoryFullError:
            errors = {index: ErrorCode.REQUEST_TIMED_OUT for wait in waiting.values() for index in wait.indexes}
            return (self._encode(version, correlation_id, results, errors),), None
        return operation, operation

    def _append(
        self,
        partition: Partition,
        topic: bytes,
        index: int,
        records: memoryview,
        acks: int,
        version: int,
        touched: dict[Partition, int],
    ) -> tuple[ProducePartitionResult, int]:
        """Stages one batch; returns its result and the offset (exclusive) that must be committed, -1 after an error."""
        if len(records) > _ATTRIBUTES_LOW_BYTE and records[_ATTRIBUTES_LOW_BYTE] & _TRANSACTIONAL_FLAG:
            message = "no transaction of this producer includes the partition"
            return ProducePartitionResult(index, ErrorCode.INVALID_TXN_STATE, error_message=message), -1
        touched.setdefault(partition, partition.staged_failures)
        try:
            info = self._replicas.stage(partition, records, acks)
        except LogError as error:
            record_errors = tuple((entry.batch_index, entry.message) for entry in error.record_errors)
            return (
                ProducePartitionResult(index, error.code, record_errors=record_errors, error_message=error.message),
                -1,
            )
        except KafkaError as error:
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                return self._not_leader(topic, index, version), -1
            return ProducePartitionResult(index, error.code, error_message=error.message), -1
        return (
            ProducePartitionResult(index, 0, info.first_offset, info.log_append_time_ms, info.log_start_offset),
            info.next_offset,
        )

    def _not_leader(self, topic: bytes, index: int, version: int) -> ProducePartitionResult:
        if version >= _LEADER_HINTS:
            hint = self._hints.leader_hint(topic, index, by_id=version >= _TOPIC_IDS)
            if hint is not None:
                return ProducePartitionResult(
                    index, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=hint[0], leader_epoch=hint[1]
                )
        return ProducePartitionResult(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _absent(self, topic: bytes, index: int, version: int) -> ProducePartitionResult:
        by_id = version >= _TOPIC_IDS
        if self._hints.leader_hint(topic, index, by_id=by_id) is not None:
            return self._not_leader(topic, index, version)
        if by_id and not self._hints.topic_exists(topic, by_id=True):
            return ProducePartitionResult(index, ErrorCode.UNKNOWN_TOPIC_ID)
        return ProducePartitionResult(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _encode(self, version: int, correlation_id: int, results: Results, errors: dict[int, ErrorCode]) -> bytes:
        """The answer; ``errors`` replaces successes of the append that were not committed, by number in the request."""
        if errors:
            number = 0
            for _, topic_results in results:
                for position, result in enumerate(topic_results):
                    error = errors.get(number)
                    if error is not None:
                        topic_results[position] = ProducePartitionResult(result.partition, error)
                    number += 1
        endpoints: dict[int, NodeEndpointResult] = {}
        if version >= _LEADER_HINTS:
            for _, topic_results in results:
                for result in topic_results:
                    if result.leader_id >= 0 and result.leader_id not in endpoints:
                        endpoint = self._hints.endpoint_hint(result.leader_id)
                        if endpoint is not None:
                            endpoints[result.leader_id] = endpoint
        return write_produce_response(version, correlation_id, results, 0, tuple(endpoints.values()))


def _first_error(results: Results) -> str:
    for topic, topic_results in results:
        for result in topic_results:
            if result.error_code:
                return f"{topic!r}-{result.partition}: {ErrorCode(result.error_code).name}"
    return "none"
