"""Transactions as a block, and one step of consume, transform and produce; trio and asyncio share the code."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from moldau.cluster.arguments import shown
from moldau.cluster.background import FAREWELL_MS
from moldau.producer.core.output import OutputRecord
from moldau.producer.core.transaction_errors import AbortableTransactionError, FatalTransactionError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractContextManager

    from moldau.cluster.committed import CommittedOffset
    from moldau.cluster.group_metadata import GroupMetadata
    from moldau.consumer.core.values import ConsumedBatch, ConsumedRecord
    from moldau.values import Buffer

Shield = Callable[[], "AbstractContextManager[object]"]
"""Makes the block in which an abort runs although the task is cancelled, for at most ``FAREWELL_MS``."""


Transform = Callable[
    ["ConsumedRecord[Any, Any]"], "Iterable[OutputRecord[Any, Any]] | Awaitable[Iterable[OutputRecord[Any, Any]]]"
]
"""Returns the output of an input record; it may be a coroutine function."""


def output_of(answer: Iterable[OutputRecord[Any, Any]]) -> Iterable[OutputRecord[Any, Any]]:
    """Returns what the function of a step returned.

    Raises:
        TypeError: it is no list: one record alone, for example, or None after a return that was forgotten.
    """
    if isinstance(answer, OutputRecord | str | bytes) or not isinstance(answer, Iterable):
        raise TypeError(f"transform: the function must return a list of OutputRecord, not {shown(answer)}")
    return answer


class TransactionalProducer(Protocol):
    """The calls of a producer for trio or asyncio that a step makes."""

    def begin_transaction(self) -> Awaitable[None] | None:
        """Begins a transaction; a coroutine under asyncio."""

    async def send(
        self,
        topic: str,
        value: Any,  # noqa: ANN401 - bytes, or what the producer's serializers take
        key: Any = None,  # noqa: ANN401
        *,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> object:
        """Sends a record."""

    async def send_offsets_to_transaction(
        self, offsets: Mapping[tuple[str, int], int | CommittedOffset], group: GroupMetadata | str
    ) -> None:
        """Commits offsets with the transaction."""

    async def commit_transaction(self) -> None:
        """Commits the transaction."""

    async def abort_transaction(self, timeout_ms: float | None = None) -> None:
        """Aborts the transaction."""


class Positioned(Protocol):
    """The part of a consumer of any face that a step needs."""

    @property
    def commits_automatically(self) -> bool:
        """Whether the consumer commits positions by itself."""

    @property
    def clusters_left(self) -> int:
        """How often the consumer has gone to another cluster."""

    def offsets_to_commit(self) -> dict[tuple[str, int], CommittedOffset]:
        """Returns the positions."""

    def seek(
        self, partition: tuple[str, int], offset: int, *, leader_epoch: int = -1, cluster: int | None = None
    ) -> None:
        """Sets a position."""


class Source(Positioned, Protocol):
    """The part of a consumer for trio or asyncio that a step needs."""

    async def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[ConsumedBatch[Any, Any]]:
        """Returns records."""

    def group_metadata(self) -> GroupMetadata:
        """Returns the member's group metadata."""


def note_abort_failure(error: BaseException, failure: Exception) -> None:
    """Adds to an error that the abort after it has failed; the coordinator aborts after its timeout."""
    error.add_note(f"the transaction could not be aborted either: {failure}")


async def _abort_after(producer: TransactionalProducer, error: BaseException, shield: Shield) -> None:
    """Aborts after an error; after a cancellation or Ctrl-C for a short time only.

    The abort goes on in any case. The next transaction cannot begin before it has ended.
    """
    if isinstance(error, FatalTransactionError):
        return
    is_urgent, is_known = not isinstance(error, Exception), False
    try:
        with shield():
            await producer.abort_transaction(FAREWELL_MS if is_urgent else None)
            is_known = True
        if not is_known and not is_urgent:
            await producer.abort_transaction()
    except (KafkaError, RuntimeError) as failure:
        note_abort_failure(error, failure)


async def _begin(producer: TransactionalProducer) -> None:
    begun = producer.begin_transaction()
    if begun is not None:
        await begun


@asynccontextmanager
async def transaction(producer: TransactionalProducer, shield: Shield) -> AsyncIterator[None]:
    """Begins a transaction, commits it at the end of the block, and aborts it after an exception."""
    await _begin(producer)
    try:
        yield
    except BaseException as error:
        await _abort_after(producer, error, shield)
        raise
    try:
        await producer.commit_transaction()
    except AbortableTransactionError as error:
        await _abort_after(producer, error, shield)
        raise


class Steps:
    """Whether the steps of a producer may go on: not after a commit without a known outcome."""

    __slots__ = ("is_undecided",)

    def __init__(self) -> None:
        self.is_undecided = False

    def check(self, consumer: Positioned) -> None:
        """Refuses a step whose offsets would not be exactly those of its records.

        Raises:
            RuntimeError: an earlier step ended without a known outcome.
            ConfigError: the consumer commits by itself.
        """
        if self.is_undecided:
            raise RuntimeError(
                "an earlier transform ended without a known outcome; close producer and consumer and open them again"
            )
        if consumer.commits_automatically:
            raise ConfigError(["enable.auto.commit: must be false for transform, which commits in its transactions"])

    async def run(
        self,
        producer: TransactionalProducer,
        consumer: Source,
        function: Transform,
        timeout_ms: float,
        max_records: int | None,
        shield: Shield,
    ) -> int:
        """Carries one step out and returns the number of input records."""
        self.check(consumer)
        batches = await consumer.poll(timeout_ms, max_records)
        if not batches:
            return 0
        try:
            await _begin(producer)
            for batch in batches:
                for record in batch.with_partition():
                    answer = function(record)
                    outputs = await answer if inspect.isawaitable(answer) else answer
                    for topic, value, key, headers, partition, timestamp in output_of(outputs):
                        await producer.send(
                            topic, value, key, headers=headers, partition=partition, timestamp=timestamp
                        )
            await producer.send_offsets_to_transaction(offsets_behind(consumer, batches), consumer.group_metadata())
        except BaseException as error:
            rewind(consumer, batches)
            await _abort_after(producer, error, shield)
            raise
        try:
            await producer.commit_transaction()
        except AbortableTransactionError as error:
            rewind(consumer, batches)
            await _abort_after(producer, error, shield)
            raise
        except BaseException:
            self.is_undecided = True
            raise
        return sum(len(batch.records) for batch in batches)


def offsets_behind(
    consumer: Positioned, batches: Iterable[ConsumedBatch[Any, Any]]
) -> dict[tuple[str, int], CommittedOffset]:
    """Returns the positions behind the records of a step.

    Raises:
        KafkaError: the consumer has gone to another cluster, and its positions are behind other records.
    """
    offsets = consumer.offsets_to_commit()
    left = consumer.clusters_left  # read last: the number only grows, so that an equal one proves the same cluster
    if any(batch.cluster != left for batch in batches):
        text = "the consumer has gone to another cluster, and its positions are not those behind the step's records"
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
    return offsets


def rewind(consumer: Positioned, batches: Iterable[ConsumedBatch[Any, Any]]) -> None:
    """Sets positions back before records whose transaction did not commit.

    Positions of partitions and clusters that the consumer has left are not set, nor those behind records that an
    interceptor has hidden, all of a batch, nor those of a consumer that another thread or task has closed.
    """
    for batch in batches:
        if not batch.records:
            continue
        first, epoch = batch.records[0].offset, batch.leader_epoch
        with contextlib.suppress(LookupError, RuntimeError):  # whatever happens here, the abort must follow
            consumer.seek(batch.topic_partition, first, leader_epoch=epoch, cluster=batch.cluster)
