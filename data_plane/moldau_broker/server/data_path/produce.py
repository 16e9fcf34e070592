"""Produce: validates, numbers and appends batches, and answers when the required replicas have them.

Everything before the answer is synchronous: batches are staged while the request's bytes are still in the receive
buffer, and written when all requests that arrived together have been staged (``flush``). acks=0 gets no answer. With
acks=1 the answer leaves after the flush, or, where ``flush.messages`` demands it, after the sync. With acks=all it
waits for the high watermark. A change of leadership and the request's timeout end each wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.hot import ProducePartitionResult, read_produce_request, wire, write_produce_response
from moldau.records.compression import Compression
from moldau.runtime.net.serving.answers import CloseConnection
from moldau.values import BrokerId, Offset
from moldau_broker.log.errors import LogError
from moldau_broker.log.files.checkpoint import uuid_to_text
from moldau_broker.log.partition.validator import WALK_IS_CHEAP, BatchValidation
from moldau_broker.log.values import AppendOrigin
from moldau_broker.replication.purgatory import PurgatoryFullError
from moldau_broker.server.data_path.fetch_query import TOPIC_IDS
from moldau_broker.server.data_path.produce_rights import NOTHING_DENIED, permitted
from moldau_broker.server.data_path.record_checks import RequestChecks
from moldau_broker.server.data_path.transaction_checks import (
    ATTRIBUTES_LOW_BYTE,
    TRANSACTIONAL_FLAG,
    TransactionChecks,
)
from moldau_broker.server.replicas.delayed import ProduceOperation, ProduceWait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from moldau.protocol.hot import NodeEndpointResult, ProduceRequestView
    from moldau.runtime.net.serving.answers import Answer, ResponsePart
    from moldau.runtime.ports.environment import Clock
    from moldau_broker.server.coordination.transaction_verifier import TransactionVerifier
    from moldau_broker.server.data_path.hints import Hints
    from moldau_broker.server.data_path.produce_rights import Results
    from moldau_broker.server.data_path.record_checks import CheckLanes, InlineBudget
    from moldau_broker.server.data_path.transaction_checks import Verified
    from moldau_broker.server.replicas.delayed import Waiters
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager
    from moldau_quorum.authorization.authorizer import Permissions

_LEADER_HINTS = 10
_CODEC_MASK = 0x07
_ZSTD_FROM = 7
"""The first version of Produce with zstd (KIP-110): consumers of older versions cannot read it."""
RESULT_BYTES = 256
"""Approximate memory of the result of one partition while its request waits."""
TIMEOUT_MS_MAX = 15 * 60_000.0
"""Bound of a produce's wait, even if its request asks for more."""

_ACKS = (-1, 0, 1)
_RESULT_ERROR = ProducePartitionResult._fields.index("error_code")
_new = tuple.__new__  # a named tuple's own constructor is a function in Python


class ProduceService:
    """Serves Produce for one broker."""

    __slots__ = ("_clock", "_hints", "_lanes", "_offload", "_replicas", "_unpacked_bytes_max", "transactions")

    def __init__(
        self,
        clock: Clock,
        replicas: ReplicaManager,
        hints: Hints,
        verifier: TransactionVerifier,
        *,
        checks: CheckLanes,
        offload: Callable[[Callable[[], None]], Awaitable[None]],
        unpacked_bytes_max: Callable[[], int],
        verifies: Callable[[], bool],
    ) -> None:
        """Stores the parts of the broker that Produce uses.

        ``checks`` and ``offload`` serve batches that take long to check. ``unpacked_bytes_max`` bounds the decompressed
        bytes of a request's batches. ``verifies``: whether the coordinator must confirm the first batch of a
        transaction in a partition (KIP-890).
        """
        self._clock = clock
        self._lanes = checks
        self._offload = offload
        self._unpacked_bytes_max = unpacked_bytes_max
        self.transactions = TransactionChecks(replicas, verifier, verifies)
        self._replicas = replicas
        self._hints = hints

    def handle_one(
        self, frame: memoryview, version: int, touched: dict[Partition, int]
    ) -> tuple[Answer, ProduceOperation | None] | None:
        """Serves a request for one partition, as clients usually send it, with the outcome that ``handle`` would have.

        The version is flexible. Returns None, with nothing changed, for all requests that need more than an append:
        other names, transactions, records that the broker must decompress or convert.

        Raises:
            CloseConnection: a request with acks=0 failed, so that no answer can report the error.
        """
        found = wire.read_one_produce(frame, version >= TOPIC_IDS)
        if found is None:
            return None
        correlation_id, acks, timeout_ms, key, records = found
        replicas = self._replicas
        partition = (replicas.by_raw_id if version >= TOPIC_IDS else replicas.by_raw_name).get(key)
        if partition is None or acks not in _ACKS:
            return None
        config = partition.log.storage.config
        if not (config.keeps_codec and WALK_IS_CHEAP):
            return None
        topic, index = key
        result, required_offset = self._append(partition, topic, index, records, acks, version, touched, None, None)
        failed = result[_RESULT_ERROR] != 0
        if failed:
            partition.traffic.failed_produce += 1
        waiting = None
        if required_offset >= 0 and (acks == -1 or (acks == 1 and config.bounds_unsynced)):
            waiting = {partition: ProduceWait(partition.replica.state.leader_epoch, Offset(required_offset), 0)}
        results = [(topic, [result])]
        if waiting is None and not failed and acks:  # as a rule with acks=1
            return (write_produce_response(version, correlation_id, results),), None
        return self._answer(acks, version, correlation_id, results, waiting, failed, timeout_ms, 0)

    def handle(
        self,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        touched: dict[Partition, int],
        *,
        entries_max: int,
        budget: InlineBudget,
        checks: RequestChecks | None = None,
        is_verifying: bool = False,
        permissions: Permissions | None = None,
        throttle_time_ms: int = 0,
    ) -> tuple[Answer | RequestChecks, ProduceOperation | None]:
        """Stages the batches of one request, or holds it until its transaction is verified (``VerifiedProduce``).

        If ``budget`` is too small to check the records, returns the checks instead: the caller runs them and calls
        again with them. ``is_verifying``: an earlier transactional request of the connection waits for its coordinator,
        so this one must wait too.

        ``touched`` receives each partition that was staged into, with its failure count before: the connection compares
        the count after the flush. ``throttle_time_ms`` is the pause that the answer names.

        Raises:
            DecodeError: the bytes are malformed, or name more than ``entries_max`` topics and partitions.
            CloseConnection: a request with acks=0 failed, so that no answer can report the error.
        """
        request = read_produce_request(frame, position, version, entries_max)
        denied = NOTHING_DENIED
        if permissions is not None:
            request, denied = permitted(request, version, permissions)
        if checks is not None and checks.topics != [topic for topic, _ in request.topics]:
            raise CloseConnection("the rights of the client changed while the records of its request were checked")
        if request.transactional_id is not None and (is_verifying or self.transactions.unverified(request, version)):
            copied = bytes(frame)
            return VerifiedProduce(self, copied, position, version, correlation_id, permissions, throttle_time_ms), None
        if checks is None:
            checks = self.checks_of(request, version)
            if checks is not None and not checks.run_now(budget):
                return checks, None
        return self.append(request, version, correlation_id, touched, None, checks, denied, throttle_time_ms)

    def checks_of(self, request: ProduceRequestView, version: int) -> RequestChecks | None:
        """Returns checks of batches that may take long: compressed ones, and those that the topic compresses."""
        if request.acks not in _ACKS:
            return None  # ``append`` refuses it
        lookup = self._replicas.by_raw_id if version >= TOPIC_IDS else self._replicas.by_raw_name
        validations: dict[int, BatchValidation] = {}
        number = -1
        for topic, partitions in request.topics:
            for index, records in partitions:
                number += 1
                partition = lookup.get((topic, index))
                if partition is None or len(records) <= ATTRIBUTES_LOW_BYTE:
                    continue  # refused without reading the records
                config = partition.log.storage.config
                if (
                    (records[ATTRIBUTES_LOW_BYTE] & _CODEC_MASK or not (config.keeps_codec and WALK_IS_CHEAP))
                    and partition.is_leader
                    and not partition.is_internal
                ):
                    now_ms = self._clock.wall_ms()
                    validations[number] = BatchValidation(records, config, AppendOrigin.CLIENT, now_ms)
        if not validations:
            return None
        return RequestChecks(validations, self._unpacked_bytes_max(), [topic for topic, _ in request.topics])

    async def run_checks(self, checks: RequestChecks) -> None:
        """Runs checks in slices, and lets other tasks run between them."""
        await checks.run(self._lanes, self._offload)

    def append(
        self,
        request: ProduceRequestView,
        version: int,
        correlation_id: int,
        touched: dict[Partition, int],
        verified: Verified | None,
        checks: RequestChecks | None,
        denied: Results,
        throttle_time_ms: int = 0,
    ) -> tuple[Answer, ProduceOperation | None]:
        """Stages the batches of a request.

        ``verified`` holds the coordinator's answers, if it was asked. ``checks`` have run before. ``denied`` are the
        results of partitions that the client may not write, which are not part of the request any more.
        """
        acks = request.acks
        if acks not in _ACKS:
            results: Results = [
                (
                    topic,
                    [ProducePartitionResult(index, ErrorCode.INVALID_REQUIRED_ACKS) for index, _ in partitions],
                )
                for topic, partitions in request.topics
            ]
            return (write_produce_response(version, correlation_id, [*results, *denied], throttle_time_ms),), None
        replicas = self._replicas
        lookup = replicas.by_raw_id if version >= TOPIC_IDS else replicas.by_raw_name
        results = []
        validations = None if checks is None else checks.validations
        waiting: dict[Partition, ProduceWait] | None = None
        failed = bool(denied)
        number = 0
        for topic, partitions in request.topics:
            topic_results: list[ProducePartitionResult] = []
            results.append((topic, topic_results))
            for index, records in partitions:
                partition = lookup.get((topic, index))
                if partition is None:
                    result = self._absent(topic, index, version)
                else:
                    validation = None if validations is None else validations.get(number)
                    result, required_offset = self._append(
                        partition, topic, index, records, acks, version, touched, verified, validation
                    )
                    if required_offset >= 0 and (
                        acks == -1 or (acks == 1 and partition.log.storage.config.bounds_unsynced)
                    ):
                        if waiting is None:
                            waiting = {}
                        wait = waiting.get(partition)
                        if wait is None:
                            leader_epoch = partition.replica.state.leader_epoch
                            waiting[partition] = ProduceWait(leader_epoch, Offset(required_offset), number)
                        else:  # the request names the partition twice
                            wait.required_offset = max(wait.required_offset, Offset(required_offset))
                            wait.indexes.append(number)
                if result[_RESULT_ERROR]:
                    failed = True
                    if partition is not None:
                        partition.traffic.failed_produce += 1
                topic_results.append(result)
                number += 1
        if denied:
            results += denied  # behind the others: a waiting request finds its results by number
        return self._answer(
            acks, version, correlation_id, results, waiting, failed, request.timeout_ms, throttle_time_ms
        )

    def _answer(
        self,
        acks: int,
        version: int,
        correlation_id: int,
        results: Results,
        waiting: dict[Partition, ProduceWait] | None,
        failed: bool,
        timeout_ms: int,
        throttle_time_ms: int,
    ) -> tuple[Answer, ProduceOperation | None]:
        """Answers a staged request: not at all with acks=0, else now, or when it need not wait any more."""
        if acks == 0:
            if failed:
                raise CloseConnection(f"produce with acks=0 failed: {_first_error(results, version)}")
            return None, None
        if waiting is None:
            if failed:
                return (self._encode(version, correlation_id, results, {}, throttle_time_ms),), None
            return (write_produce_response(version, correlation_id, results, throttle_time_ms),), None
        waits = self._replicas.waits
        waiters = waits.produces if acks == -1 else waits.settles
        return self._start_waiting(waiters, waiting, version, correlation_id, results, timeout_ms, throttle_time_ms)

    def _start_waiting(
        self,
        waiters: Waiters[Partition, ProduceOperation],
        waiting: dict[Partition, ProduceWait],
        version: int,
        correlation_id: int,
        results: Results,
        timeout_ms: int,
        throttle_time_ms: int,
    ) -> tuple[Answer, ProduceOperation | None]:
        def encode(errors: dict[int, ErrorCode]) -> Sequence[ResponsePart]:
            return (self._encode(version, correlation_id, results, errors, throttle_time_ms),)

        operation = ProduceOperation(waiting, encode, RESULT_BYTES * sum(len(found) for _, found in results))
        deadline_ms = self._clock.monotonic_ms() + min(max(0, timeout_ms), TIMEOUT_MS_MAX)
        try:
            operation.delayed = waiters.watch(operation, tuple(waiting), deadline_ms)
            operation.waiters = waiters
        except PurgatoryFullError:
            errors = {index: ErrorCode.REQUEST_TIMED_OUT for wait in waiting.values() for index in wait.indexes}
            return (self._encode(version, correlation_id, results, errors, throttle_time_ms),), None
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
        verified: Verified | None,
        validation: BatchValidation | None,
    ) -> tuple[ProducePartitionResult, int]:
        """Stages one batch; returns its result and the offset (exclusive) that must be committed, -1 after an error.

        Refuses batches of clients for internal topics, which only the coordinators write, as Kafka does.
        """
        if partition.is_internal:
            return ProducePartitionResult(index, ErrorCode.INVALID_TOPIC_EXCEPTION), -1
        if version < _ZSTD_FROM and _codec_of(records) == Compression.ZSTD:
            return ProducePartitionResult(index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), -1
        if len(records) > ATTRIBUTES_LOW_BYTE and records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_FLAG:
            error = self.transactions.error(partition, records, verified, (topic, index), version)
            if error is not ErrorCode.NONE:
                return ProducePartitionResult(index, error), -1
        if partition not in touched:
            touched[partition] = partition.staged_failures
        try:
            info = self._replicas.stage(partition, records, acks, AppendOrigin.CLIENT, validation)
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
        first_offset, last_offset, _, append_time_ms, start_offset, *_ = info
        result = _new(ProducePartitionResult, (index, 0, first_offset, append_time_ms, start_offset, (), None, -1, -1))
        return result, last_offset + 1

    def flush(self, touched: dict[Partition, int]) -> None:
        """Writes the staged batches.

        Raises:
            CloseConnection: a disk failed, so that an answer that promises an append must not leave.
        """
        self._replicas.flush()
        for partition, failures in touched.items():
            if partition.staged_failures != failures:
                raise CloseConnection(f"the log of {partition.key} could not be written")

    def abandon(self, operation: ProduceOperation) -> None:
        """Drops a waiting operation whose answer is not needed any more."""
        self._replicas.waits.abandon_produce(operation)

    # --- answers ---------------------------------------------------------------------------------------------------

    def _not_leader(self, topic: bytes, index: int, version: int) -> ProducePartitionResult:
        if version >= _LEADER_HINTS:
            hint = self._hints.leader_hint(topic, index, by_id=version >= TOPIC_IDS)
            if hint is not None:
                return ProducePartitionResult(
                    index, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=hint[0], leader_epoch=hint[1]
                )
        return ProducePartitionResult(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _absent(self, topic: bytes, index: int, version: int) -> ProducePartitionResult:
        by_id = version >= TOPIC_IDS
        if self._replicas.is_offline(topic, index, by_id=by_id):
            return ProducePartitionResult(index, ErrorCode.KAFKA_STORAGE_ERROR)
        if self._hints.leader_hint(topic, index, by_id=by_id) is not None:
            return self._not_leader(topic, index, version)
        if by_id and not self._hints.topic_exists(topic, by_id=True):
            return ProducePartitionResult(index, ErrorCode.UNKNOWN_TOPIC_ID)
        return ProducePartitionResult(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _encode(
        self,
        version: int,
        correlation_id: int,
        results: Results,
        errors: dict[int, ErrorCode],
        throttle_time_ms: int,
    ) -> bytes:
        """Encodes the answer; ``errors`` (by number in the request) replace appends that were not committed."""
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
                        endpoint = self._hints.endpoint_hint(BrokerId(result.leader_id))
                        if endpoint is not None:
                            endpoints[result.leader_id] = endpoint
        return write_produce_response(version, correlation_id, results, throttle_time_ms, tuple(endpoints.values()))


class VerifiedProduce:
    """A transactional produce that the coordinator verifies before it is appended.

    It runs when the answers before it have left. Meanwhile later transactional requests of the connection wait too,
    so that the batches of a producer keep their order.
    """

    __slots__ = (
        "_correlation_id",
        "_frame",
        "_permissions",
        "_position",
        "_service",
        "_throttle_time_ms",
        "_version",
        "on_done",
    )

    def __init__(
        self,
        service: ProduceService,
        frame: bytes,
        position: int,
        version: int,
        correlation_id: int,
        permissions: Permissions | None,
        throttle_time_ms: int,
    ) -> None:
        self._service = service
        self._throttle_time_ms = throttle_time_ms
        self._permissions = permissions
        self._frame = frame
        self._position = position
        self._version = version
        self._correlation_id = correlation_id
        self.on_done: Callable[[], None] = lambda: None

    async def wait(self) -> Sequence[ResponsePart]:
        """Verifies, appends, and waits for the required replicas."""
        service = self._service
        try:
            request = read_produce_request(memoryview(self._frame), self._position, self._version)
            denied = NOTHING_DENIED
            if self._permissions is not None:
                self._permissions.refresh()
                request, denied = permitted(request, self._version, self._permissions)
            checks = service.checks_of(request, self._version)
            if checks is not None:
                await service.run_checks(checks)
            verified = await service.transactions.verify(request, self._version)
            touched: dict[Partition, int] = {}
            answer, operation = service.append(
                request,
                self._version,
                self._correlation_id,
                touched,
                verified,
                checks,
                denied,
                self._throttle_time_ms,
            )
            service.flush(touched)
        finally:
            self.on_done()
        del request, checks
        self._frame = b""  # frees the memory: the wait for replicas may be long
        if operation is None:
            return answer if isinstance(answer, list | tuple) else ()
        try:
            return await operation.wait()
        finally:
            service.abandon(operation)


def _first_error(results: Results, version: int) -> str:
    for topic, topic_results in results:
        for result in topic_results:
            if result.error_code:
                named = uuid_to_text(UUID(bytes=topic)) if version >= TOPIC_IDS else topic.decode(errors="replace")
                return f"{named}-{result.partition}: {ErrorCode(result.error_code).name}"
    return "none"


def _codec_of(records: memoryview) -> int:
    """Returns the codec of a batch; 0 if there is none."""
    return records[ATTRIBUTES_LOW_BYTE] & _CODEC_MASK if len(records) > ATTRIBUTES_LOW_BYTE else Compression.NONE
