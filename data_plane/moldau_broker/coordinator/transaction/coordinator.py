"""The transaction coordinator of a broker.

It finds the partition of each transactional id, runs a `TransactionShard` for every partition of
``__transaction_state`` that this broker leads, and repeats the markers of decided transactions until all are written.
The broker calls `become_leader` and `resign` as leadership changes, and `submit` for each request.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)
from moldau.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from moldau.protocol.messages.describe_transactions import TransactionState as DescribedTransaction
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from moldau.protocol.messages.list_transactions import TransactionState as ListedTransaction
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.coordinator.regexes import compile_regex
from moldau_broker.coordinator.runtime.completion import Combined, Completion
from moldau_broker.coordinator.runtime.effects import SendMarkers
from moldau_broker.coordinator.runtime.partitioning import partition_for
from moldau_broker.coordinator.runtime.replicated import ReplicatedShard
from moldau_broker.coordinator.runtime.sharded import ShardedCoordinator
from moldau_broker.coordinator.transaction.core.answers import (
    BATCHED_FROM,
    partition_codes,
    reshaped,
    transaction_refusal,
    transactions_of,
)
from moldau_broker.coordinator.transaction.core.rules import unknown_states
from moldau_broker.coordinator.transaction.core.transaction_core import TransactionCore
from moldau_quorum.metadata.internal_topics import INTERNAL_TOPICS, OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.protocol.schema import Request, Response
    from moldau.runtime.ports.environment import Environment
    from moldau.values import LeaderEpoch
    from moldau_broker.coordinator.runtime.effects import Effect
    from moldau_broker.coordinator.runtime.ports import InternalLog, MarkerWriter, ProducerIdSource, TopicNames
    from moldau_broker.coordinator.transaction.core.config import TransactionConfig
    from moldau_broker.coordinator.transaction.core.state import TopicPartition

MARKER_ATTEMPTS_MAX = 64
"""The maximum of concurrent attempts to write markers in one partition's coordinator."""
_BACKOFF_FIRST_SECONDS = 0.05
_BACKOFF_MAX_SECONDS = 1.0
_PRODUCER_ID_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStatistics:
    """The transactional ids that a broker coordinates at the moment."""

    states: Mapping[str, int]
    """The number of transactional ids by state, as in ListTransactions."""
    partitions: Mapping[str, int]
    """The number of led partitions of ``__transaction_state`` that are ``active`` or still ``loading``."""
    longest_open_ms: int
    """The age of the oldest transaction whose markers are not all written; 0 without one."""


class TransactionShard(ReplicatedShard[TransactionCore]):
    """The transactions of one partition. Its methods may be called only while `refusal` is NONE."""

    markers: MarkerWriter
    topics: TopicNames

    def begin(self, nursery: trio.Nursery) -> None:
        """Keeps the nursery for the tasks that send markers; they end with the leadership."""
        self._nursery = nursery
        self._attempts = trio.CapacityLimiter(MARKER_ATTEMPTS_MAX)

    def submit(self, request: Request, version: int, fresh_producer_id: int | None) -> Completion:
        """Accepts a request and returns the completion of its answer."""
        return self.ask(
            lambda code: transaction_refusal(request, code),
            lambda core, request_id, moment: core.handle(request_id, request, version, fresh_producer_id, moment),
        )

    def needs_producer_id(self, request: Request, version: int) -> bool:
        """Returns whether the request has to come with a fresh producer id."""
        assert self.core is not None
        return self.core.needs_producer_id(request, version)

    def perform_other(self, effect: Effect) -> None:
        """Sends markers."""
        assert isinstance(effect, SendMarkers)
        self._nursery.start_soon(self._send_markers, effect)

    async def _send_markers(self, effect: SendMarkers) -> None:
        """Repeats until every partition has the marker or is deleted, or until the leadership ends."""
        left = effect.partitions
        backoff = _BACKOFF_FIRST_SECONDS
        while True:
            async with self._attempts:
                codes = await self.markers.write_markers(effect.marker, left)
            done = tuple(partition for partition in left if self._is_done(partition, codes.get(partition)))
            if ErrorCode.TRANSACTION_COORDINATOR_FENCED in codes.values():
                self._logger.warning("transaction-coordinator-fenced", transactional_id=effect.transactional_id)
                self.resign(ErrorCode.NOT_COORDINATOR)
                return
            left = tuple(partition for partition in left if partition not in done)
            if self.core is None:
                return
            self.perform(self.core.markers_written(effect, done, self.moment()))
            if not left:
                return
            self._logger.info(
                "transaction-markers-outstanding", transactional_id=effect.transactional_id, partitions=len(left)
            )
            await trio.sleep(backoff)
            backoff = min(2 * backoff, _BACKOFF_MAX_SECONDS)

    def _is_done(self, partition: TopicPartition, code: ErrorCode | None) -> bool:
        """Returns whether a partition needs no further attempt.

        The marker is written, the partition is deleted, or a higher producer epoch has ended the transaction there.
        """
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return not self.topics.has_partition(*partition)
        return code is ErrorCode.NONE or code is ErrorCode.INVALID_PRODUCER_EPOCH


class TransactionCoordinator(ShardedCoordinator[TransactionShard]):
    """Serves the transaction requests of one broker.

    ``partition_count`` returns the number of partitions of ``__transaction_state``, ``offsets_partition_count`` that of
    ``__consumer_offsets``; 0 while the topic does not exist. ``level`` returns the cluster's level of
    ``transaction.version``.
    """

    def __init__(
        self,
        *,
        environment: Environment,
        log: InternalLog,
        topics: TopicNames,
        markers: MarkerWriter,
        producer_ids: ProducerIdSource,
        config: TransactionConfig,
        partition_count: Callable[[], int],
        offsets_partition_count: Callable[[], int],
        level: Callable[[], int],
        logger: EventLogger | None = None,
    ) -> None:
        """Starts no task before `run`."""
        super().__init__(partition_count, self._led)
        self._environment = environment
        self._log = log
        self._topics = topics
        self._markers = markers
        self._producer_ids = producer_ids
        self._config = config
        self._offsets_partition_count = offsets_partition_count
        self._level = level
        self._logger = logger if logger is not None else EventLogger("moldau.broker.transactions")

    def _led(self, partition: int, leader_epoch: LeaderEpoch) -> TransactionShard:
        shard = TransactionShard(
            partition=partition,
            leader_epoch=leader_epoch,
            clock=self._environment.clock,
            log=self._log,
            new_core=lambda: TransactionCore(self._config, leader_epoch, self._offsets_partition, self._level),
            load_bytes_max=self._config.load_bytes_max,
            logger=self._logger,
        )
        shard.markers = self._markers
        shard.topics = self._topics
        return shard

    def _offsets_partition(self, group_id: str) -> TopicPartition | None:
        count = self._offsets_partition_count()
        return (OFFSETS_TOPIC, partition_for(group_id, count)) if count else None

    # Requests

    def submit(self, request: Request, *, version: int) -> Completion:
        """Accepts a transaction request and returns the completion of its answer.

        The requests are InitProducerId (with a transactional id), AddPartitionsToTxn, AddOffsetsToTxn, EndTxn,
        DescribeTransactions and ListTransactions (versions 0 to 2). The caller has authorized the request. The answer
        is ready by its own deadline at the latest, or when leadership ends.

        Raises:
            TypeError: the request is not one of a transaction coordinator.
        """
        if isinstance(request, InitProducerIdRequest):
            return self._submit_to(request.transactional_id or "", request, version)
        if isinstance(request, EndTxnRequest | AddOffsetsToTxnRequest):
            return self._submit_to(request.transactional_id, request, version)
        if isinstance(request, AddPartitionsToTxnRequest):
            return self._add_partitions(request, version)
        if isinstance(request, DescribeTransactionsRequest):
            return self._describe(request, version)
        if isinstance(request, ListTransactionsRequest):
            return self._list(request, version)
        raise TypeError(f"{type(request).__name__} is not a request to a transaction coordinator")

    async def handle(self, request: Request, *, version: int) -> Response:
        """Submits a request and waits for its answer."""
        return await self.submit(request, version=version).wait()

    def _submit_to(self, transactional_id: str, request: Request, version: int) -> Completion:
        code, shard = self._shard_of(transactional_id)
        if shard is None:
            return Completion(transaction_refusal(request, code))
        if not shard.needs_producer_id(request, version):
            return shard.submit(request, version, None)
        if not self._tasks.accepts:
            return Completion(transaction_refusal(request, ErrorCode.NOT_COORDINATOR))
        completion = Completion()
        self._tasks.start(self._submit_with_producer_id, transactional_id, request, version, completion)
        return completion

    async def _submit_with_producer_id(
        self, transactional_id: str, request: Request, version: int, completion: Completion
    ) -> None:
        """Takes a producer id and submits the request to the shard that leads the partition after that."""
        response: Response = transaction_refusal(request, ErrorCode.NOT_COORDINATOR)
        try:
            with trio.fail_after(_PRODUCER_ID_SECONDS):
                producer_id = await self._producer_ids.take()
            code, shard = self._shard_of(transactional_id)
            if shard is None:
                response = transaction_refusal(request, code)
            else:
                response = await shard.submit(request, version, producer_id).wait()
        except (KafkaError, trio.TooSlowError) as error:
            self._logger.warning("no-producer-id", transactional_id=transactional_id, error=error)
            response = transaction_refusal(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        finally:
            completion.complete(response)

    def _add_partitions(self, request: AddPartitionsToTxnRequest, version: int) -> Completion:
        parts = [self._add_one(transaction, version) for transaction in transactions_of(request, version)]

        def combine(responses: list[Response]) -> Response:
            results: list[AddPartitionsToTxnResult] = []
            for response in responses:
                assert isinstance(response, AddPartitionsToTxnResponse)
                results += response.results_by_transaction
            return reshaped(AddPartitionsToTxnResponse(results_by_transaction=results), version)

        return Combined(parts, combine)

    def _add_one(self, transaction: AddPartitionsToTxnTransaction, version: int) -> Completion:
        """Adds all partitions of a transaction, or none. Clients add offsets of groups by AddOffsetsToTxn only."""

        def code_of(topic: str, partition: int) -> ErrorCode:
            if version < BATCHED_FROM and topic in INTERNAL_TOPICS:
                return ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if not self._topics.has_partition(topic, partition):
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return ErrorCode.OPERATION_NOT_ATTEMPTED

        named = ((topic.name, partition) for topic in transaction.topics for partition in topic.partitions)
        if any(code_of(*each) is not ErrorCode.OPERATION_NOT_ATTEMPTED for each in named):
            return Completion(partition_codes(transaction, code_of))
        request = AddPartitionsToTxnRequest(transactions=[transaction])
        return self._submit_to(transaction.transactional_id, request, version)

    def statistics(self) -> TransactionStatistics:
        """Counts the loaded transactional ids by state; looks once at each of them."""
        states: Counter[str] = Counter()
        partitions: Counter[str] = Counter()
        now_ms = self._environment.clock.wall_ms()
        longest_ms = 0
        for shard in self._shards.values():
            code = shard.refusal
            if code is ErrorCode.NOT_COORDINATOR:
                continue
            partitions["active" if shard.core is not None else "loading"] += 1
            if shard.core is None:
                continue
            for transaction in shard.core.transactions.values():
                states[transaction.status.label] += 1
                if not transaction.status.is_settled and transaction.start_ms >= 0:
                    longest_ms = max(longest_ms, now_ms - transaction.start_ms)
        return TransactionStatistics(states=states, partitions=partitions, longest_open_ms=longest_ms)

    def _describe(self, request: DescribeTransactionsRequest, version: int) -> Completion:
        states: list[DescribedTransaction] = []
        for name in dict.fromkeys(request.transactional_ids):  # a repeated id is answered once
            part = self._submit_to(name, DescribeTransactionsRequest(transactional_ids=[name]), version)
            response = part.response()
            assert isinstance(response, DescribeTransactionsResponse)
            states += response.transaction_states
        return Completion(DescribeTransactionsResponse(transaction_states=states))

    def _list(self, request: ListTransactionsRequest, version: int) -> Completion:
        """Lists the transactions of all partitions led by this broker; an error if one of them is not loaded yet.

        One whose log is damaged counts: an open transaction that is missing in the list is taken for a hanging one.
        """
        states: list[ListedTransaction] = []
        unknown = unknown_states(request)
        matches = None
        if request.transactional_id_pattern:
            try:
                matches = compile_regex(request.transactional_id_pattern)
            except KafkaError as error:
                return Completion(ListTransactionsResponse(error_code=error.code, unknown_state_filters=unknown))
        for _, shard in sorted(self._shards.items()):
            code = shard.refusal
            if code is ErrorCode.NOT_COORDINATOR:
                continue
            if code is not ErrorCode.NONE:
                return Completion(ListTransactionsResponse(error_code=code))
            response = shard.submit(request, version, None).response()
            assert isinstance(response, ListTransactionsResponse)
            states += [one for one in response.transaction_states if matches is None or matches(one.transactional_id)]
        return Completion(ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=states))
