"""The task that sends the requests of a transactional producer, as ``transaction_core`` decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.cluster import arguments
from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.cluster.group_metadata import GroupMetadata
from moldau.producer.core.transaction_core import NO_PRODUCER_ID, TransactionManager
from moldau.producer.core.transaction_errors import TransactionAbortedError
from moldau.producer.core.transaction_values import Call, OffsetToCommit, Outcome, PreparedTransaction, State
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.runtime.net.served_versions import NeededVersion
from moldau.runtime.tasks.sync import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.committed import CommittedOffset
    from moldau.cluster.metadata import TopicPartition
    from moldau.producer.core.accumulator import Accumulator
    from moldau.producer.core.batches import ProducerBatch
    from moldau.producer.sender import Sender
    from moldau.runtime.config import Config

_MEMBER_CHECK: Final = NeededVersion(
    3, "offsets of a transaction that are checked against the group (KIP-447, Kafka 2.5)"
)
"""Older coordinators take them from a member that has left its group: another one reads the same records."""


TRANSACTION_VERSION = "transaction.version"


class Transactions:
    """Runs the transactions of one producer. ``max_block_ms`` bounds each wait of the application."""

    def __init__(
        self,
        client: ClusterClient,
        accumulator: Accumulator,
        sender: Sender,
        manager: TransactionManager,
        max_block_ms: float,
    ) -> None:
        self.manager = manager
        self._client = client
        self._accumulator = accumulator
        self._sender = sender
        self._max_block_ms = max_block_ms
        self._wake = Signal()
        self._is_wanted = False
        self._changed = Signal()
        self._is_closed = False
        accumulator.admitted = manager.admitted
        client.watches_features = True

    @staticmethod
    def of(
        config: Config, transactional_id: str, client: ClusterClient, accumulator: Accumulator, sender: Sender
    ) -> Transactions:
        """Returns the transactions of a producer with this configuration, and connects them to its sender."""
        manager = TransactionManager(
            transactional_id=transactional_id,
            timeout_ms=config.get_int("transaction.timeout.ms"),
            retry_backoff_ms=config.get_int("retry.backoff.ms"),
            retry_backoff_max_ms=config.get_int("retry.backoff.max.ms"),
        )
        transactions = Transactions(client, accumulator, sender, manager, config.get_int("max.block.ms"))
        sender.transactions = transactions
        client.on_other_cluster = transactions.leave_cluster
        return transactions

    def leave_cluster(self) -> None:
        """Makes a producer that has its id fail for good, because another cluster is in use.

        There the id and the transactional id may belong to another producer, whose transaction this one would end.
        """
        if self.manager.producer_id != NO_PRODUCER_ID:
            self.manager.fail(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "the client works with another cluster")
            self._reflect()

    # --- calls of the application

    async def init(self, timeout_ms: float | None = None) -> None:
        """Gets the producer id; fences earlier producers of the transactional id and ends their transaction."""
        limit_ms = self._limit_ms("init_transactions", timeout_ms)
        await self._known(self.manager.begin_init(), "initialize transactions", limit_ms)

    def begin(self) -> None:
        """Begins a transaction, at the cluster's present level of ``transaction.version``."""
        self.manager.cluster_level = self._client.feature_level(TRANSACTION_VERSION)
        self.manager.begin()

    @property
    def is_abortable(self) -> bool:
        """Whether a transaction can be aborted or is being aborted."""
        return self.manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING)

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open and takes records."""
        return self.manager.state is State.IN_TRANSACTION

    def check_sending(self) -> None:
        """Checks that records may be sent now.

        Raises:
            KafkaError: the error of the transaction.
            RuntimeError: there is no transaction.
        """
        self.manager.check_sending()

    def admit(self, partition: TopicPartition) -> None:
        """Adds a record's partition to the transaction, or raises the error that forbids sending."""
        if self.manager.admit(partition):
            self.wake()

    async def send_offsets(
        self,
        offsets: Mapping[tuple[str, int], int | CommittedOffset],
        group: GroupMetadata | str,
        timeout_ms: float | None = None,
    ) -> None:
        """Commits offsets with the transaction; returns when their coordinator has them."""
        call = "send_offsets_to_transaction"
        limit_ms = self._limit_ms(call, timeout_ms)
        given = {
            partition: OffsetToCommit(offset=offset, leader_epoch=epoch, metadata=metadata)
            for partition, offset, epoch, metadata in arguments.committed_offsets(call, offsets)
        }
        if not isinstance(group, GroupMetadata):
            group = GroupMetadata(group_id=arguments.text(call, "group", group))
        outcome = self.manager.send_offsets(given, group)
        await self._known(outcome, "send offsets to the transaction", limit_ms)

    async def commit(self, timeout_ms: float | None = None) -> None:
        """Delivers every record of the transaction and commits it."""
        limit_ms = self._limit_ms("commit_transaction", timeout_ms)
        await self._known(self.manager.begin_commit(), "commit the transaction", limit_ms)

    async def prepare(self, timeout_ms: float | None = None) -> PreparedTransaction:
        """Delivers every record and offset of the transaction and returns what ends it elsewhere."""
        limit_ms = self._limit_ms("prepare_transaction", timeout_ms)
        self.manager.check_sending()
        accumulator = self._accumulator
        accumulator.flushes += 1
        self._sender.wake()

        def is_delivered() -> bool:
            is_settled = self.manager.prepared() is not None  # raises the error of a record that failed
            return is_settled and not accumulator.incomplete

        try:
            await self._until(is_delivered, "deliver the transaction's records", limit_ms)
        finally:
            accumulator.flushes -= 1
        prepared = self.manager.prepared()
        assert prepared is not None, "nothing ran since the condition held"
        return prepared

    async def abort(self, timeout_ms: float | None = None) -> None:
        """Drops unsent records and aborts the transaction."""
        limit_ms = self._limit_ms("abort_transaction", timeout_ms)
        outcome = self.manager.begin_abort()
        self._drop_unsent()
        await self._known(outcome, "abort the transaction", limit_ms)

    async def leave(self, timeout_ms: float) -> None:
        """Ends the transaction of a producer that closes, for at most ``max.block.ms``; logs a failure.

        It waits for a commit under way, and aborts an open transaction.
        """
        limit_ms = min(timeout_ms, self._max_block_ms)
        outcome = self.manager.outcome
        if self.manager.state is State.COMMITTING and outcome is not None:
            with trio.move_on_after(limit_ms / 1000):
                await self._changed.wait_until(lambda: outcome.is_known)
        if not self.is_abortable:
            return
        client, transactional_id = self._client, self.manager.transactional_id
        client.logger.info("transaction-aborted-on-close", transactional_id=transactional_id)
        try:
            await self.abort(limit_ms)
        except KafkaError as error:
            client.logger.warning("abort-failed", error=error)  # its coordinator ends it after its timeout

    def close(self) -> None:
        """Ends the calls that wait, because no request leaves any more."""
        self._is_closed = True
        self._changed.notify()

    def _drop_unsent(self) -> None:
        """Fails the records without a sequence number, because they were never sent."""
        error = TransactionAbortedError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the record's transaction was aborted")
        self._sender.dropped(self._accumulator.abort_unsent(error))

    def _limit_ms(self, call: str, timeout_ms: float | None) -> float:
        """Returns the time limit of a call of the application, which is ``max.block.ms`` without one of its own."""
        return arguments.time_limit(call, timeout_ms, self._max_block_ms)

    async def _known(self, outcome: Outcome, action: str, limit_ms: float) -> None:
        """Waits until an outcome is known and raises its error.

        Returns without a checkpoint once the outcome is delivered.
        """
        self._accumulator.is_completing = self.manager.state in (State.COMMITTING, State.ABORTING)
        self._sender.wake()
        await self._until(lambda: outcome.is_known, action, limit_ms)
        outcome.is_delivered = True
        if outcome.error is not None:
            raise outcome.error

    async def _until(self, condition: Callable[[], bool], action: str, limit_ms: float) -> None:
        """Waits for a condition, which raises the failure of the action.

        Raises:
            KafkaError: REQUEST_TIMED_OUT; the action continues unless the producer is closed.
        """
        self.wake()
        with trio.move_on_after(limit_ms / 1000):
            await trio.lowlevel.checkpoint()
            await self._changed.wait_until(lambda: condition() or self._is_closed)
        if not condition():
            if self._is_closed:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"could not {action} before the producer was closed")
            last = self._client.last_error or self.manager.retried_for
            reason = f"; the last failure: {last}" if last else ""
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"could not {action} within {limit_ms:g} ms{reason}; call again to go on waiting",
            )

    # --- calls of the sender

    def records_sent(self) -> bool:
        """Notes that records leave for a broker; returns whether that broker adds their partitions (KIP-890)."""
        self.manager.records_sent()
        return self.manager.adds_by_sending

    def settled(self, batches: Sequence[ProducerBatch]) -> None:
        """Takes batches that are delivered or have failed."""
        for batch in batches:
            if batch.error is not None:
                self.manager.record_failed(batch.error.code, str(batch.partition))
        self.wake()

    # --- the task

    def wake(self) -> None:
        """Wakes the task."""
        self._is_wanted = True
        self._wake.notify()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sends the requests that are due until cancelled."""
        task_status.started()
        manager = self.manager
        while True:
            self._is_wanted = False
            call = manager.next_call(has_records=bool(self._accumulator.incomplete))
            self._reflect()
            if call is None:
                if not self._is_wanted:
                    await self._wake.wait()
                await trio.lowlevel.checkpoint()
                continue
            delay_ms = manager.retry_at_ms - self._client.now_ms
            if delay_ms > 0:
                await trio.sleep(delay_ms / 1000)
                continue  # other requests may be due now
            await self._perform(call)

    async def _perform(self, call: Call) -> None:
        manager, client = self.manager, self._client
        try:
            if call.request is None:
                manager.found(call, await client.find_coordinator(call.key, int(call.coordinator)))
                return
            with client.silence.coordinator(call.node_id, call.key, int(call.coordinator)) as watched:
                connection = await watched.connect()
                if isinstance(call.request, TxnOffsetCommitRequest) and call.request.member_id:
                    connection.require(call.request, _MEMBER_CHECK)
                version = connection.version_for(call.request)
                if version > call.version_max:
                    version = connection.version_for(call.request, call.version_max)
                response = await connection.request(call.request, version, timeout_ms=client.request_timeout_ms)
        except TRANSPORT_ERRORS as error:
            client.logger.info("transaction-request-failed", transactional_id=manager.transactional_id, error=error)
            manager.unanswered(call, client.now_ms)
        except KafkaError as error:
            manager.not_found(call, error.code, client.now_ms, error.message)
        else:
            manager.cluster_level = client.feature_level(TRANSACTION_VERSION)
            manager.answered(call, response, client.now_ms)

    def _reflect(self) -> None:
        """Applies the core's state to the accumulator, the sender and the waiting tasks."""
        manager, accumulator = self.manager, self._accumulator
        if manager.state is State.FATAL_ERROR:
            assert manager.error is not None
            if self._sender.fatal_error is None:
                self._sender.fail(manager.error)
        elif (manager.producer_id, manager.producer_epoch) != (accumulator.producer_id, accumulator.producer_epoch):
            accumulator.set_producer_id(manager.producer_id, manager.producer_epoch)
        accumulator.is_completing = manager.state in (State.COMMITTING, State.ABORTING)
        self._sender.wake()
        self._changed.notify()
