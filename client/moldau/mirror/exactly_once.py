"""Copies records exactly once: records and the positions behind them are written in one transaction of the target.

A transaction takes what can be read within a short time or up to a number of bytes. If it fails, it is aborted, and its
partitions are read again from the positions before it. If its outcome is unknown, the source starts again: a new
producer ends the transaction, and the positions in the target show whether it was committed. A producer that starts
fences the earlier one, so two mirrors never write the same records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.mirror.reading import FIRST_STORE_MS
from moldau.producer import (
    AbortableTransactionError,
    FatalTransactionError,
    TransactionAbortedError,
    TransactionError,
)
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import CorruptRecordError, InvalidRecordError

if TYPE_CHECKING:
    from moldau.cluster.metadata import TopicPartition
    from moldau.mirror.core.formats import Position
    from moldau.mirror.positions import PositionStore
    from moldau.mirror.reading import Part, SourceReader
    from moldau.mirror.sending import Sent, TargetSender
    from moldau.mirror.statistics import SourceStatistics
    from moldau.mirror.syncs import SyncWriter
    from moldau.producer import Producer
    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.telemetry.log import EventLogger

POLL_MS = 200.0
POLL_BYTES = 4 * 1024 * 1024
END_TIMEOUT_MS = 60_000.0
CLOSING_MS = 5_000.0
WATCH_S = 1.0
"""How often failed producers are looked for."""


class ExactlyOnce:
    """Copies one source. ``producer`` has initialized its transactions."""

    def __init__(
        self,
        reader: SourceReader,
        sender: TargetSender,
        producer: Producer,
        store: PositionStore,
        syncs: SyncWriter,
        syncs_producer: Producer,
        *,
        clock: Clock,
        boundary_ms: float,
        timeout_ms: float,
        bytes_max: int,
        flush_ms: float,
        statistics: SourceStatistics,
        logger: EventLogger,
    ) -> None:
        """``timeout_ms`` is the producer's ``transaction.timeout.ms``."""
        self._reader = reader
        self._sender = sender
        self._producer = producer
        self._store = store
        self._syncs = syncs
        self._syncs_producer = syncs_producer
        self._clock = clock
        self._boundary_ms = boundary_ms
        self._timeout_ms = timeout_ms
        self._bytes_max = bytes_max
        self._flush_ms = flush_ms
        self._statistics = statistics
        self._logger = logger
        self._begun_ms = clock.monotonic_ms()
        self._stored_at_ms = self._begun_ms - max(flush_ms - FIRST_STORE_MS, 0)  # of the last store
        self._failures = 0  # transactions in a row that failed although no partition was refused

    async def run(self, stop: trio.Event) -> None:
        """Copies until ``stop`` is set.

        Raises:
            ProducerFencedError: another mirror of the same name has taken over.
            KafkaError: the source or the target cannot be used, or the outcome of a transaction is unknown.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flush_syncs_forever)
            nursery.start_soon(self._watch_producer)
            while not stop.is_set():
                failures = self._failures
                await self._step()
                if self._failures > failures:
                    with trio.move_on_after(self._reader.delay_ms(self._failures) / 1000):
                        await stop.wait()
            nursery.cancel_scope.cancel()
        with trio.move_on_after(CLOSING_MS / 1000):
            await self._flush_syncs()

    async def _step(self) -> None:
        parts = await self._reader.poll(POLL_MS, POLL_BYTES)
        if not any(part.batches.batches for part in parts):
            for part in parts:  # a position that moved past markers is stored later, with others
                await self._mark(part)
            if not self._positions_due():
                return
            parts = []
        self._begun_ms = self._clock.monotonic_ms()
        try:
            await self._transact(parts)
        except FatalTransactionError as error:
            self._raise_judged(error)

    def _raise_judged(self, failure: FatalTransactionError) -> NoReturn:
        """Reports a failure of the producer.

        The coordinator fences the producer of a transaction that timed out, too: the target was down, or this process
        stood still. A new producer may then go on.

        Raises:
            FatalTransactionError: the failure, of a young transaction.
            KafkaError: REQUEST_TIMED_OUT, with the failure as its cause, where the transaction may have timed out.
        """
        age_ms = self._clock.monotonic_ms() - self._begun_ms
        if age_ms < self._timeout_ms / 2:
            raise failure
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, f"a transaction of {age_ms:.0f} ms failed: {failure}"
        ) from failure

    async def _watch_producer(self) -> None:
        """Ends the run when the producer has failed while the transaction waits for records of the source.

        Raises:
            KafkaError: the failure.
        """
        while True:
            failure = self._producer.failure
            if isinstance(failure, FatalTransactionError):
                self._raise_judged(failure)
            if failure is not None:
                raise failure
            await trio.sleep(WATCH_S)

    async def _transact(self, parts: list[Part]) -> None:
        """Copies parts, and what can be read with them, in one transaction; aborts it if it cannot be committed."""
        progress = self._reader.progress
        sent: list[Sent] = []
        read: dict[TopicPartition, None] = {}
        moved: dict[TopicPartition, Position] = {}
        self._producer.begin_transaction()
        try:
            await self._fill(parts, sent, read)
            for one in sent:
                if progress.generation(one.span.partition) != one.span.generation:
                    raise _BegunAgainError(one.span.partition)
            moved = progress.take_moved()
            await self._store.send(self._producer, moved | behind(sent))
            await self._producer.commit_transaction(END_TIMEOUT_MS)
        except FatalTransactionError:
            raise
        except (TransactionError, TransactionAbortedError, _RefusedError, _BegunAgainError) as error:
            progress.keep_moved(moved)
            await self._abort(sent, read, error)
            return
        self._stored_at_ms = self._clock.monotonic_ms()
        self._failures = 0
        self._committed(sent)

    async def _mark(self, part: Part) -> None:
        sent: list[Sent] = []
        await self._sender.send(part, sent)
        for one in sent:
            self._reader.progress.acknowledged(one.span)
            self._reader.acknowledged(one.span.partition)

    def _positions_due(self) -> bool:
        waited_ms = self._clock.monotonic_ms() - self._stored_at_ms
        return waited_ms >= self._flush_ms and self._reader.progress.has_moved

    async def _fill(self, parts: list[Part], sent: list[Sent], read: dict[TopicPartition, None]) -> None:
        """Sends parts, and what else can be read within the limits of a transaction; ``read`` gets their partitions.

        Raises:
            TransactionError: the transaction has failed.
            _RefusedError: records of a partition cannot be sent.
        """
        deadline_ms = self._clock.monotonic_ms() + (self._boundary_ms if parts else 0)
        while True:
            read.update(dict.fromkeys(part.partition for part in parts))
            for part in parts:
                try:
                    await self._sender.send(part, sent)
                except TransactionError:
                    raise
                except (KafkaError, CorruptRecordError, InvalidRecordError) as error:
                    raise _RefusedError(part.partition, error) from error
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0 or sum(one.size_bytes for one in sent) >= self._bytes_max:
                return
            parts = await self._reader.poll(left_ms, POLL_BYTES, may_assign=False)

    async def _abort(self, sent: list[Sent], read: dict[TopicPartition, None], error: Exception) -> None:
        """Aborts the transaction, and reads its partitions again; one whose batch was refused waits for a while.

        ``read`` has also the partitions of which nothing was sent before the transaction failed.
        """
        refused: dict[TopicPartition, Exception] = {}
        if isinstance(error, _RefusedError):
            refused[error.partition] = error.reason
        if isinstance(error, AbortableTransactionError):  # below level 2 the coordinator refuses before records leave
            refused |= {each: error for each in read if self._sender.copy_of(each) in error.partitions}
        judged = dict.fromkeys(refused)
        for one in sent:
            cause = failure_of(one)
            if cause is None or one.span.partition in judged:
                continue
            judged[one.span.partition] = None  # batches behind the first refused one fail because of it
            if self._sender.shrinks(one, cause):
                self._logger.info("batch-divided", partition=one.span.partition, size_bytes=one.size_bytes)
            else:
                refused[one.span.partition] = cause
        # Else the positions were refused, for example: records would be written and aborted again without a pause.
        self._failures = 0 if judged or isinstance(error, _BegunAgainError) else self._failures + 1
        self._statistics.failures += 1
        if self._failures:
            self._statistics.last_error = f"transaction aborted: {error}"
        self._logger.warning("transaction-aborted", error=error, partitions=len(read), refused=len(refused))
        await self._producer.abort_transaction(END_TIMEOUT_MS)
        for partition in read:
            if partition not in refused:
                self._reader.back_to(partition)
        for partition, reason in refused.items():
            self._reader.failed(partition, reason)

    def _committed(self, sent: list[Sent]) -> None:
        self._statistics.transactions += 1
        for one in sent:
            counts = self._reader.progress.acknowledged(one.span)
            self._reader.acknowledged(one.span.partition)
            if one.delivery is not None:
                self._statistics.records += sum(run.count for run in one.span.runs)
                self._statistics.bytes += one.size_bytes
                if counts:
                    self._syncs.copied(one.span, one.delivery.result().offset)
        self._reader.progress.take_moved()  # the transaction has stored them

    # --- offset syncs

    async def _flush_syncs_forever(self) -> None:
        while True:
            await trio.sleep(self._flush_ms / 1000)
            await self._flush_syncs()

    async def _flush_syncs(self) -> None:
        try:
            await self._syncs.flush(self._syncs_producer)
        except (KafkaError, *TRANSPORT_ERRORS) as error:
            self._statistics.failures += 1
            self._logger.warning("offset-syncs-not-written", error=error)


class _RefusedError(Exception):
    """Records of a partition cannot be sent, so the transaction is aborted."""

    def __init__(self, partition: TopicPartition, reason: Exception) -> None:
        super().__init__(f"{partition}: {reason}")
        self.partition = partition
        self.reason = reason


class _BegunAgainError(Exception):
    """A partition whose records are in the transaction has begun again elsewhere, so the transaction is aborted.

    The source's log was cut, or its topic created again. After a commit the records might be written again, or the
    position behind them might leave others out.
    """


def behind(sent: list[Sent]) -> dict[TopicPartition, Position]:
    """Returns the position behind the last span of each partition."""
    return {one.span.partition: one.span.after for one in sent}


def failure_of(one: Sent) -> KafkaError | None:
    """Returns why the target refused a batch; None if it did not, or only because the transaction was aborted."""
    if one.delivery is None or not one.delivery.is_done:
        return None
    try:
        one.delivery.result()
    except (TransactionError, TransactionAbortedError):
        return None
    except KafkaError as error:
        return error
    return None
